/* iglu._kernels: the CPU kernels for Python.  They take tensors and return tensors; None asks the caller to fall back.
 * Limited API, and no torch at build time: one binary for every Python from 3.10 and every torch from 2.10, whose
 * Tensor type carries a table of C functions that return a tensor's data pointer, sizes and strides (DLPack 1.3).
 *
 *   forward(operation, x, up, sigma, approximate, channel_dim, out=None)
 *   backward(operation, grad, x, up, sigma, approximate, channel_dim, needs_sigma)
 *   double_backward(operation, gg_x, gg_up, grad, x, up, sigma, approximate, channel_dim, needs_sigma)
 *
 * See class Kernels in iglu/kernels/autograd.py for their meaning.  iglu/kernels/native.py calls set_up with what they
 * need from torch. */

#define PY_SSIZE_T_CLEAN
#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define UNUSED __attribute__((unused))

/* Fewer elements take less time than releasing and reacquiring the GIL. */
#define RELEASE_GIL_FROM 4096

/* -- DLPack 1.3, by its specification ------------------------------------------------------------------------- */

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void *object, dl_tensor *out);
    void *current_stream;
} dl_exchange;

/* -- what the kernels need from torch ------------------------------------------------------------------------- */

/* native.py passes each of these to set_up as a keyword argument. */
#define TORCH_API(EACH)                                                                                                \
    EACH(TENSOR, tensor) EACH(PARAMETER, parameter) /* the supported types; subclasses are not */                      \
    EACH(IS_NEGATIVE, is_negative)                  /* of a tensor: a view with the sign bit flipped */                \
    EACH(FUNCTION_MODES, function_modes)            /* functions that return true where a mode or a tracer */          \
    EACH(DISPATCH_MODES, dispatch_modes)            /* must see the call */                                            \
    EACH(IS_TRACING, is_tracing)                                                                                       \
    EACH(HAS_TRANSFORMS, has_transforms)            /* whether a transform of torch.func is active */                  \
    EACH(FORWARD_AD, forward_ad)                    /* the variables of torch.autograd.forward_ad */                   \
    EACH(IS_GRAD_ENABLED, is_grad_enabled)                                                                             \
    EACH(PROFILER, profiler)                        /* the variables of torch.autograd.profiler */                     \
    EACH(RECORD_FUNCTION, record_function)          /* a context manager that shows a name in the profile */           \
    EACH(EMPTY_LIKE, empty_like)                                                                                       \
    EACH(FLOAT64_OPTIONS, float64_options)          /* {"dtype": torch.float64} */                                     \
    EACH(SAVE_INPUTS, save_inputs)                  /* the autograd.Function that saves x, up and sigma */             \
    EACH(REAL, real)                                /* numbers.Real */

/* Strings that are compared or looked up in every call.  The first four are the operations ("output" has only a
 * backward pass), the next two the families. */
#define INTERNED(EACH)                                                                                                 \
    EACH(VALUE, value) EACH(GATE, gate) EACH(GLU, glu) EACH(OUTPUT, output)                                            \
    EACH(NONE, none) EACH(RATIONAL, rational)                                                                          \
    EACH(CURRENT_LEVEL, _current_level) EACH(IS_PROFILED, _is_profiler_enabled) EACH(REQUIRES_GRAD, requires_grad)     \
    EACH(TO, to) EACH(DTYPE, dtype) EACH(NATIVE, native)

#define INDEX(index, name) index,
#define TEXT(index, name) #name,
enum { TORCH_API(INDEX) TORCH_API_SIZE };
enum { INTERNED(INDEX) INTERNED_SIZE };
static const char *const torch_api_names[] = {TORCH_API(TEXT)};
static const char *const interned_texts[] = {INTERNED(TEXT)};
static PyObject *torch_api[TORCH_API_SIZE], *interned[INTERNED_SIZE];
static const dl_exchange *exchange;

/* Make a tensor by torch's C interface (AOTInductor's) and wrap it for Python, in half the time of torch.empty_like.
 * NULL if torch does not have them, or is not one of native.TESTED_TORCH. */
static struct {
    int32_t (*empty_strided)(int64_t dimensions, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                             int32_t device_type, int32_t device_index, void **out);
    int32_t (*delete_tensor)(void *);
    PyObject *(*wrap)(const void *);
} allocator;
static const int32_t torch_dtypes[] = {[IGLU_F32] = 6, [IGLU_F64] = 7, [IGLU_BF16] = 15, [IGLU_F16] = 5};
enum { TORCH_CPU = 0, NO_INDEX = -1 };

/* The loops of an operation: forward, backward, double backward; -1: unsupported. */
static const int loops_of[3][4] = {
    {[VALUE] = IGLU_VALUE, [GATE] = IGLU_GATE, [GLU] = IGLU_GLU, [OUTPUT] = -1},
    {[VALUE] = IGLU_VALUE_BACKWARD,
     [GATE] = IGLU_GATE_BACKWARD,
     [GLU] = IGLU_GLU_BACKWARD,
     [OUTPUT] = IGLU_OUTPUT_BACKWARD},
    {[VALUE] = IGLU_VALUE_DOUBLE_BACKWARD, [GATE] = -1, [GLU] = IGLU_GLU_DOUBLE_BACKWARD, [OUTPUT] = -1},
};

/* 1, 0, or -1 with an error set; steals the reference. */
static int is_true(PyObject *result)
{
    int truth = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return truth;
}

/* Whether no mode or tracer of torch must see the call, and forward-mode differentiation is inactive.  (A tensor that
 * torch.func wraps is recognized by its missing memory; one that it does not wrap is an ordinary tensor.) */
static int is_plain_eager(void)
{
    if (exchange == NULL)
        return 0;
    for (int i = FUNCTION_MODES; i <= IS_TRACING; i++)
        if (is_true(PyObject_CallNoArgs(torch_api[i])) != 0)
            return 0;
    /* The kernels would drop the tangents of dual numbers silently. */
    PyObject *level = PyDict_GetItemWithError(torch_api[FORWARD_AD], interned[CURRENT_LEVEL]);
    return level && PyLong_AsLong(level) < 0;
}

/* Inside a transform new tensors are wrapped, and a Function must be applied by its Python method. */
static int is_outside_transforms(void) { return is_true(PyObject_CallNoArgs(torch_api[HAS_TRANSFORMS])) == 0; }

/* 1, 0, or -1 with an error set. */
static int is_profiled(void)
{
    PyObject *value = PyDict_GetItemWithError(torch_api[PROFILER], interned[IS_PROFILED]);
    return value ? PyObject_IsTrue(value) : PyErr_Occurred() ? -1 : 0;
}

/* The result of an unsupported call. */
static PyObject *none_unless_error(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

static PyObject *wrong_count(const char *function, const char *expected, Py_ssize_t got)
{
    return PyErr_Format(PyExc_TypeError, "iglu._kernels.%s: expected %s arguments, got %zd", function, expected, got);
}

/* -- reading the arguments: each returns 1; 0 if the argument is unsupported or an error is set --------------- */

typedef struct {
    char *data;
    int dtype, dimensions;
    int64_t elements, sizes[IGLU_MAX_DIMENSIONS], strides[IGLU_MAX_DIMENSIONS];
} tensor;

/* The memory of a tensor.  Sizes and strides are copied, since the tensor owns them and the GIL may be released. */
static int locate(PyObject *object, tensor *out)
{
    dl_tensor t;
    if (exchange->tensor_from_object(object, &t) != 0) {
        /* no memory of its own: meta, sparse, quantized, or wrapped by a transform that has ended */
        if (PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear();
        return 0;
    }
    if (t.device_type != DL_CPU || t.data == NULL || t.lanes != 1 || t.ndim > IGLU_MAX_DIMENSIONS)
        return 0;
    if (t.code == DL_FLOAT && (t.bits == 16 || t.bits == 32 || t.bits == 64))
        out->dtype = t.bits == 16 ? IGLU_F16 : t.bits == 32 ? IGLU_F32 : IGLU_F64;
    else if (t.code == DL_BFLOAT && t.bits == 16)
        out->dtype = IGLU_BF16;
    else
        return 0;
    out->data = (char *)t.data + t.byte_offset;
    out->dimensions = t.ndim;
    out->elements = 1;
    for (int d = 0; d < t.ndim; d++) {
        out->sizes[d] = t.shape[d];
        out->strides[d] = t.strides[d];
        out->elements *= t.shape[d];
    }
    return out->elements > 0;
}

static int read_tensor(PyObject *object, tensor *out)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    return (type == torch_api[TENSOR] || type == torch_api[PARAMETER]) && locate(object, out) &&
        is_true(PyObject_CallFunctionObjArgs(torch_api[IS_NEGATIVE], object, NULL)) == 0;
}

static int is_like(const tensor *t, const tensor *other, int dtype)
{
    return t->dtype == dtype && t->dimensions == other->dimensions &&
        memcmp(t->sizes, other->sizes, (size_t)t->dimensions * sizeof(int64_t)) == 0;
}

/* The index of a string among interned[first..last], or -1.  Nearly always it is the same object. */
static int read_string(PyObject *object, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (object == interned[i])
            return i;
    for (int i = first; i <= last && PyUnicode_Check(object); i++)
        if (PyUnicode_CompareWithASCIIString(object, interned_texts[i]) == 0)
            return i;
    return -1;
}

static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31, digits = half & 1023;
    double size = exponent == 31 ? (digits ? NAN : INFINITY)
        : exponent == 0          ? ldexp(digits, -24)
                                 : ldexp(digits + 1024, exponent - 25);
    return half & 0x8000 ? -size : size;
}

static double value_at(const char *place, int dtype)
{
    union {
        double f64;
        float f32;
        uint32_t bits;
        uint16_t half;
    } value;
    memcpy(&value, place, (size_t)iglu_bytes(dtype));
    if (dtype == IGLU_F64)
        return value.f64;
    if (dtype == IGLU_F16)
        return half_value(value.half);
    if (dtype == IGLU_BF16)
        value.bits = (uint32_t)value.half << 16;
    return value.f32;
}

/* sigma: a number, or a tensor of one value or of one per channel; the caller frees the values. */
typedef struct {
    PyObject *object; /* NULL where sigma is a number */
    tensor at;
    double *values;
} sigma_argument;

static int read_number(PyObject *object, const tensor *x, double *out)
{
    *out = PyFloat_AsDouble(object);
    if (PyErr_Occurred()) { /* an integer too large for a double */
        PyErr_Clear();
        return 0;
    }
    /* 0 and inf are handled in Python: x/2 and ReLU */
    return *out > 0 && *out <= (x->dtype == IGLU_F64 ? DBL_MAX : FLT_MAX);
}

/* The channel dimension.  None means the last of at most two; for more, Python raises the error. */
static int read_channel_dim(PyObject *object, const tensor *x, int64_t channels, int *out)
{
    if (object == Py_None && x->dimensions > 2)
        return 0;
    long dimension = -1;
    if (object != Py_None) {
        int overflow = !PyLong_CheckExact(object);
        dimension = overflow ? -1 : PyLong_AsLongAndOverflow(object, &overflow);
        if (overflow)
            return 0;
    }
    dimension += dimension < 0 ? x->dimensions : 0;
    *out = (int)dimension;
    return dimension >= 0 && dimension < x->dimensions && x->sizes[dimension] == channels;
}

static int read_sigma(PyObject *object, PyObject *channel_dim, const tensor *x, iglu_call *call,
                      sigma_argument *out)
{
    if (PyFloat_CheckExact(object) || PyLong_CheckExact(object))
        return read_number(object, x, &call->sigma);
    const tensor *t = &out->at;
    if (!read_tensor(object, &out->at)) /* perhaps a number of another type, such as numpy's */
        return !PyErr_Occurred() && !PyBool_Check(object) && PyObject_IsInstance(object, torch_api[REAL]) == 1 &&
            read_number(object, x, &call->sigma);
    if (t->dimensions > 1)
        return 0;
    out->object = object;
    const int64_t n = t->elements;
    if (n == 1) {
        call->sigma = value_at(t->data, t->dtype);
        return 1;
    }
    if (!read_channel_dim(channel_dim, x, n, &call->channel_dimension))
        return 0;
    out->values = malloc((size_t)n * sizeof(double));
    if (out->values == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (int64_t i = 0; i < n; i++)
        out->values[i] = value_at(t->data + i * t->strides[0] * iglu_bytes(t->dtype), t->dtype);
    call->sigmas = out->values;
    return 1;
}

/* All arguments of a call. */
typedef struct {
    int operation; /* an index of interned */
    int is_packed; /* x as given holds both halves of a gated pair */
    tensor x, up;
    iglu_call call;
    sigma_argument sigma;
} request;

static void set_operand(request *r, enum iglu_operand operand, const tensor *t)
{
    r->call.data[operand] = t->data;
    memcpy(r->call.strides[operand], t->strides, (size_t)t->dimensions * sizeof(int64_t));
}

/* The second half of a packed pair, given the first. */
static tensor second_half(const tensor *half)
{
    tensor second = *half;
    const int last = half->dimensions - 1;
    second.data += half->sizes[last] * half->strides[last] * iglu_bytes(half->dtype);
    return second;
}

/* Halves t along its last dimension. */
static int halve(tensor *t)
{
    const int last = t->dimensions - 1;
    if (last < 0 || t->sizes[last] % 2)
        return 0;
    t->sizes[last] /= 2;
    t->elements /= 2;
    return 1;
}

/* A tensor with the shape and dtype of x. */
static int read_alike(PyObject *object, const request *r, tensor *out)
{
    return read_tensor(object, out) && is_like(out, &r->x, r->x.dtype);
}

/* The other half of a gated pair; for other operations it must be None. */
static int read_up(PyObject *up, request *r)
{
    if (!r->is_packed)
        return up == Py_None || (r->operation == GLU && read_alike(up, r, &r->up));
    if (!halve(&r->x))
        return 0;
    r->up = second_half(&r->x);
    return 1;
}

static int read_request(PyObject *operation, PyObject *x, PyObject *up, PyObject *sigma, PyObject *approximate,
                        PyObject *channel_dim, request *r)
{
    r->operation = read_string(operation, VALUE, OUTPUT);
    const int family = read_string(approximate, NONE, RATIONAL);
    if (r->operation < 0 || family < 0)
        return 0;
    r->call.family = family == NONE ? IGLU_EXACT : IGLU_RATIONAL;
    r->is_packed = r->operation == GLU && up == Py_None;
    if (!is_plain_eager() || !read_tensor(x, &r->x) || !read_up(up, r) ||
        !read_sigma(sigma, channel_dim, &r->x, &r->call, &r->sigma))
        return 0;
    r->call.dtype = r->x.dtype;
    r->call.dimensions = r->x.dimensions;
    memcpy(r->call.sizes, r->x.sizes, (size_t)r->x.dimensions * sizeof(int64_t));
    set_operand(r, IGLU_X, &r->x);
    if (r->operation == GLU)
        set_operand(r, IGLU_UP, &r->up);
    return 1;
}

/* Whether t is non-overlapping and dense, in any order of its dimensions. */
static int is_dense(const tensor *t)
{
    int64_t filled = 1;
    for (unsigned left = (1u << t->dimensions) - 1, found; left != 0; left &= ~found) {
        found = 0;
        for (int d = t->dimensions - 1; d >= 0 && !found; d--)
            if (left >> d & 1 && (t->sizes[d] == 1 || t->strides[d] == filled)) {
                found = 1u << d;
                filled *= t->sizes[d];
            }
        if (!found)
            return 0;
    }
    return 1;
}

/* torch.empty_like of `like`, whose memory is `at`, in this dtype; `out` is the memory of the result.  NULL with an
 * error set; None, and `out` is invalid, if the memory of the result is not accessible (a transform wraps it). */
static PyObject *empty_like(PyObject *like, const tensor *at, int dtype, tensor *out)
{
    PyObject *result = NULL;
    void *handle = NULL;
    if (allocator.wrap && is_dense(at) &&
        allocator.empty_strided(at->dimensions, at->sizes, at->strides, torch_dtypes[dtype], TORCH_CPU, NO_INDEX,
                                &handle) == 0) {
        result = allocator.wrap(handle);
        allocator.delete_tensor(handle);
    } else {
        PyObject *arguments = PyTuple_Pack(1, like), *options = dtype == at->dtype ? NULL : torch_api[FLOAT64_OPTIONS];
        result = arguments ? PyObject_Call(torch_api[EMPTY_LIKE], arguments, options) : NULL;
        Py_XDECREF(arguments);
    }
    if (result == NULL || (locate(result, out) && is_like(out, at, dtype)))
        return result;
    Py_DECREF(result);
    return none_unless_error();
}

/* 0, or -1 with an error set. */
static int run(int operation, request *r)
{
    int result;
    r->call.operation = operation;
    if (r->x.elements < RELEASE_GIL_FROM) {
        result = iglu_run(&r->call);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = iglu_run(&r->call);
        Py_END_ALLOW_THREADS
    }
    if (result != 0)
        PyErr_NoMemory();
    return result;
}

/* -- forward -------------------------------------------------------------------------------------------------- */

/* Whether elements of t share memory. */
static int is_expanded(const tensor *t)
{
    for (int d = 0; d < t->dimensions; d++)
        if (t->sizes[d] > 1 && t->strides[d] == 0)
            return 1;
    return 0;
}

/* 1, 0, or -1 with an error set. */
static int needs_grad(PyObject *const *tensors, int count)
{
    int wanted = 0;
    for (int i = 0; i < count && wanted == 0; i++)
        if (tensors[i])
            wanted = is_true(PyObject_GetAttr(tensors[i], interned[REQUIRES_GRAD]));
    return wanted > 0 ? is_true(PyObject_CallNoArgs(torch_api[IS_GRAD_ENABLED])) : wanted;
}

static PyObject *compute(request *r, PyObject *x, PyObject *out)
{
    tensor y = r->x;
    PyObject *result;
    if (out != Py_None) {
        result = Py_NewRef(out);
    } else if (r->is_packed) {
        PyObject *half = PyObject_CallMethod(x, "narrow", "iiL", -1, 0, (long long)r->x.sizes[r->x.dimensions - 1]);
        result = half ? empty_like(half, &r->x, r->x.dtype, &y) : NULL;
        Py_XDECREF(half);
    } else {
        result = empty_like(x, &r->x, r->x.dtype, &y);
    }
    if (result == NULL || result == Py_None)
        return result;
    set_operand(r, IGLU_FIRST, &y);
    if (run(loops_of[0][r->operation], r) != 0)
        Py_CLEAR(result);
    return result;
}

/* compute(), with the name of the operation in the profile. */
static PyObject *compute_profiled(request *r, PyObject *operation, PyObject *x, PyObject *out)
{
    PyObject *name = PyUnicode_FromFormat("iglu::%U", operation);
    PyObject *context = name ? PyObject_CallFunctionObjArgs(torch_api[RECORD_FUNCTION], name, NULL) : NULL;
    PyObject *entered = context ? PyObject_CallMethod(context, "__enter__", NULL) : NULL;
    PyObject *result = entered ? compute(r, x, out) : NULL;
    PyObject *exited = result ? PyObject_CallMethod(context, "__exit__", "OOO", Py_None, Py_None, Py_None) : NULL;
    if (exited == NULL)
        Py_CLEAR(result);
    Py_XDECREF(name);
    Py_XDECREF(context);
    Py_XDECREF(entered);
    Py_XDECREF(exited);
    return result;
}

static PyObject *forward(UNUSED PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count < 6 || count > 7)
        return wrong_count("forward", "6 or 7", count);
    PyObject *operation = args[0], *x = args[1], *up = args[2], *sigma = args[3];
    PyObject *out = count > 6 ? args[6] : Py_None, *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    int records = 0, supported = read_request(operation, x, up, sigma, args[4], args[5], &r) &&
        loops_of[0][r.operation] >= 0 && (out == Py_None || (out == x && !is_expanded(&r.x)));
    if (supported && out == Py_None) {
        PyObject *const tensors[] = {x, up == Py_None ? NULL : up, r.sigma.object};
        records = needs_grad(tensors, 3);
        supported = records == 0 || (records > 0 && is_outside_transforms());
    }
    const int profiled = supported ? is_profiled() : 0;
    if (!supported || profiled < 0)
        result = none_unless_error();
    else
        result = profiled ? compute_profiled(&r, operation, x, out) : compute(&r, x, out);
    if (records > 0 && result && result != Py_None) {
        PyObject *y = result, *saved = r.sigma.object ? sigma : Py_None;
        PyObject *number = r.sigma.object ? Py_NewRef(Py_None) : PyFloat_FromDouble(r.call.sigma);
        PyObject *dimension = PyLong_FromLong(r.call.channel_dimension);
        PyObject *call = number && dimension
            ? PyTuple_Pack(6, interned[NATIVE], operation, number, args[4], dimension, y) : NULL;
        result = call ? PyObject_CallFunctionObjArgs(torch_api[SAVE_INPUTS], call, x, up, saved, NULL) : NULL;
        Py_XDECREF(number);
        Py_XDECREF(dimension);
        Py_XDECREF(call);
        Py_DECREF(y);
    }
    free(r.sigma.values);
    return result;
}

/* -- backward and double backward ----------------------------------------------------------------------------- */

/* The gradients of grad (double backward: grad is not NULL), of x, of up and of sigma, as a tuple.  The loops run only
 * if torch returned accessible memory for every one of them; otherwise None. */
static PyObject *gradients(request *r, int loops, PyObject *grad, const tensor *grad_at, PyObject *x, PyObject *up,
                           int needs_sigma)
{
    tensor complete_x = r->x, made_at;
    if (r->is_packed)
        complete_x.sizes[complete_x.dimensions - 1] *= 2;
    PyObject *const like[] = {grad, x, up}, *sums = NULL;
    const tensor *const at[] = {grad_at, &complete_x, &r->up};
    const int begin = grad == NULL;
    PyObject *result = PyTuple_New(4 - begin);
    int is_complete = result != NULL, operand = IGLU_FIRST;
    for (int i = begin; is_complete && i < 3; i++) {
        PyObject *made = like[i] == Py_None ? Py_NewRef(Py_None) : empty_like(like[i], at[i], r->x.dtype, &made_at);
        const int is_operand = made && made != Py_None;
        is_complete = made && PyTuple_SetItem(result, i - begin, made) == 0 && is_operand == (like[i] != Py_None);
        if (!is_complete || !is_operand)
            continue;
        const int is_both = r->is_packed && like[i] == x;
        if (is_both)
            halve(&made_at);
        set_operand(r, operand++, &made_at);
        if (is_both) {
            made_at = second_half(&made_at);
            set_operand(r, operand++, &made_at);
        }
    }
    /* Every result of the loops has memory. */
    assert(!is_complete || operand == IGLU_FIRST + 1 + (r->operation == GLU) + (grad != NULL));
    if (is_complete && needs_sigma) {
        sums = empty_like(r->sigma.object, &r->sigma.at, IGLU_F64, &made_at);
        is_complete = sums && sums != Py_None;
        r->call.grad_sigma = is_complete ? (double *)(void *)made_at.data : NULL;
    }
    if (is_complete && (is_complete = run(loops, r) == 0)) {
        PyObject *dtype = needs_sigma ? PyObject_GetAttr(r->sigma.object, interned[DTYPE]) : NULL;
        PyObject *sum = dtype ? PyObject_CallMethodObjArgs(sums, interned[TO], dtype, NULL) : none_unless_error();
        Py_XDECREF(dtype);
        is_complete = sum && PyTuple_SetItem(result, 3 - begin, sum) == 0;
    }
    Py_XDECREF(sums);
    if (is_complete)
        return result;
    Py_XDECREF(result);
    return none_unless_error();
}

/* gg_x and gg_up; if x is packed, they are the halves of gg_x. */
static int read_grad_grads(PyObject *gg_x, PyObject *gg_up, request *r)
{
    tensor first, second;
    if (!read_tensor(gg_x, &first) || (r->is_packed && !halve(&first)) || !is_like(&first, &r->x, r->x.dtype))
        return 0;
    set_operand(r, IGLU_GG_X, &first);
    if (r->operation != GLU)
        return 1;
    if (r->is_packed)
        second = second_half(&first);
    else if (!read_alike(gg_up, r, &second))
        return 0;
    set_operand(r, IGLU_GG_UP, &second);
    return 1;
}

/* The backward pass; or the double backward, given gg_x and gg_up. */
static PyObject *differentiate(PyObject *operation, PyObject *gg_x, PyObject *gg_up, PyObject *const *args)
{
    PyObject *grad_object = args[0], *x = args[1], *up = args[2], *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    tensor grad;
    const int needs_sigma = PyObject_IsTrue(args[6]);
    int supported = needs_sigma >= 0 && read_request(operation, x, up, args[3], args[4], args[5], &r);
    const int loops = supported ? loops_of[gg_x ? 2 : 1][r.operation] : -1;
    supported = loops >= 0 && (r.operation != OUTPUT || r.call.family == IGLU_RATIONAL) &&
        (!needs_sigma || r.sigma.object) && is_outside_transforms() && read_alike(grad_object, &r, &grad) &&
        (!gg_x || read_grad_grads(gg_x, gg_up, &r));
    if (supported) {
        set_operand(&r, IGLU_GRAD, &grad);
        result = gradients(&r, loops, gg_x ? grad_object : NULL, &grad, x, up, needs_sigma);
    } else {
        result = none_unless_error();
    }
    free(r.sigma.values);
    return result;
}

static PyObject *backward(UNUSED PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8)
        return wrong_count("backward", "8", count);
    return differentiate(args[0], NULL, NULL, args + 1);
}

static PyObject *double_backward(UNUSED PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 10)
        return wrong_count("double_backward", "10", count);
    return differentiate(args[0], args[1], args[2], args + 3);
}

/* -- the module ----------------------------------------------------------------------------------------------- */

/* A converter for PyArg_ParseTuple: an integer, or None for NULL. */
static int read_address(PyObject *object, void *out)
{
    *(void **)out = object == Py_None ? NULL : PyLong_AsVoidPtr(object);
    return !PyErr_Occurred();
}

static PyObject *set_up(UNUSED PyObject *module, PyObject *arguments, PyObject *keywords)
{
    PyObject *table = NULL;
    void *parallel_for, *empty_strided, *delete_tensor, *wrap;
    if (!PyArg_ParseTuple(arguments, "OO&O&O&O&", &table, read_address, &parallel_for, read_address, &empty_strided,
                          read_address, &delete_tensor, read_address, &wrap))
        return NULL;
    const dl_exchange *found = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (found == NULL)
        return NULL;
    if (found->major != 1 || found->tensor_from_object == NULL)
        return PyErr_Format(PyExc_ImportError,
                            "torch's table of C functions must be DLPack 1 with dltensor_from_py_object, got %u.%u%s",
                            found->major, found->minor, found->tensor_from_object ? "" : " without that function");
    for (int i = 0; i < TORCH_API_SIZE; i++) {
        PyObject *given = keywords ? PyDict_GetItemString(keywords, torch_api_names[i]) : NULL;
        if (given == NULL)
            return PyErr_Format(PyExc_TypeError, "iglu._kernels.set_up: %s is missing", torch_api_names[i]);
        Py_XDECREF(torch_api[i]);
        torch_api[i] = Py_NewRef(given);
    }
    iglu_set_parallel_for((iglu_parallel_for *)parallel_for);
    *(void **)&allocator.empty_strided = empty_strided;
    *(void **)&allocator.delete_tensor = delete_tensor;
    *(void **)&allocator.wrap = empty_strided && delete_tensor ? wrap : NULL;
    exchange = found;
    Py_RETURN_NONE;
}

static PyObject *capability(UNUSED PyObject *module, UNUSED PyObject *arguments)
{
    return PyUnicode_FromString(iglu_capability());
}

static PyObject *use(UNUSED PyObject *module, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL)
        return NULL;
    if (iglu_use(text) != 0)
        return PyErr_Format(PyExc_ValueError,
                            "instruction set must be 'baseline', 'avx2' or 'avx512' and supported by "
                            "this processor, got %R",
                            name);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, NULL},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, NULL},
    {"double_backward", (PyCFunction)(void (*)(void))double_backward, METH_FASTCALL, NULL},
    {"set_up", (PyCFunction)(void (*)(void))set_up, METH_VARARGS | METH_KEYWORDS,
     "The capsule of torch's table, addresses of C functions of torch or None, and TORCH_API by name."},
    {"capability", capability, METH_NOARGS, "The instruction set in use: 'baseline', 'avx2' or 'avx512'."},
    {"use", use, METH_O, "Use the named instruction set."},
    {NULL, NULL, 0, NULL},
};

static int initialize(UNUSED PyObject *module)
{
    iglu_use_best();
    for (int i = 0; i < INTERNED_SIZE; i++)
        if (interned[i] == NULL && (interned[i] = PyUnicode_InternFromString(interned_texts[i])) == NULL)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, initialize},
#ifdef Py_GIL_DISABLED /* only set_up and use write static variables, before any call */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "iglu._kernels",
    .m_doc = "The CPU kernels of IGLU: tensors in, tensors out; None asks the caller to fall back.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&definition); }
