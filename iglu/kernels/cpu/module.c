/* iglu._kernels: the CPU kernels for Python.  They take tensors and answer tensors, or None where a call is not one
 * for them.  Limited API and no torch at build time: one binary serves every Python from 3.10 and every torch from
 * 2.10, whose Tensor type carries a table of C functions that say where a tensor lies (DLPack 1.3).
 *
 *   forward(operation, x, up, sigma, approximate, channel_dim, out=None)
 *   backward(operation, grad, x, up, sigma, approximate, channel_dim, needs_sigma)
 *   twice(operation, by_x, by_up, grad, x, up, sigma, approximate, channel_dim, needs_sigma)
 *
 * mean what they mean in iglu/kernels/record.py.  What they ask of torch is handed to set_up by iglu/kernels/cpu.py. */

#define PY_SSIZE_T_CLEAN
#if !defined(Py_LIMITED_API) && !defined(Py_GIL_DISABLED)
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* Shorter work than this takes less time than handing the GIL over. */
#define WORTH_RELEASING 4096

/* -- DLPack, as its standard lays it out -------------------------------------------------------------------- */

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

/* -- what is asked of torch --------------------------------------------------------------------------------- */

enum {
    TENSOR,           /* the two types that are served: no subclass */
    PARAMETER,
    IS_NEGATIVE,      /* of a tensor that is a view with the sign turned */
    FUNCTION_MODES,   /* three that are true where a mode or a tracer wants to see the call */
    DISPATCH_MODES,
    TRACING,
    TRANSFORMS,       /* whether a transform of torch.func is active */
    FORWARD_AD,       /* the variables of torch.autograd.forward_ad */
    IS_GRAD_ENABLED,
    PROFILER,         /* the variables of torch.autograd.profiler */
    NAMED,            /* a context manager that shows its name in a profile */
    EMPTY_LIKE,
    DOUBLES,          /* {"dtype": torch.float64} */
    RECORD,           /* record.keep_inputs */
    ANSWERS
};
static const char *const answer_names[ANSWERS] = {
    "tensor",  "parameter",  "is_negative", "function_modes",  "dispatch_modes", "tracing", "transforms",
    "forward_ad", "is_grad_enabled", "profiler", "named", "empty_like", "doubles", "record",
};
static PyObject *answers[ANSWERS];
static const dl_exchange *exchange;

/* How torch makes a tensor, by its C interface (AOTInductor's), and shows it to Python: half the time of
 * torch.empty_like.  NULL where a torch has not got them. */
static struct {
    int32_t (*empty_strided)(int64_t dimensions, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                             int32_t device_type, int32_t device_index, void **out);
    int32_t (*delete_tensor)(void *);
    PyObject *(*wrap)(const void *);
} make;
static const int32_t torch_dtypes[] = {[IGLU_F32] = 6, [IGLU_F64] = 7, [IGLU_BF16] = 15, [IGLU_F16] = 5};
enum { TORCH_CPU = 0, NO_INDEX = -1 };

enum {
    VALUE, GATE, GLU, OUTPUT, /* the operations; of the last there is only a backward pass */
    NONE, RATIONAL,           /* the families */
    CURRENT_LEVEL, IS_PROFILED, REQUIRES_GRAD, TO, DTYPE, ENTER, EXIT, NATIVE,
    WORDS
};
static const char *const word_texts[WORDS] = {
    "value", "gate", "glu", "output", "none", "rational",
    "_current_level", "_is_profiler_enabled", "requires_grad", "to", "dtype", "__enter__", "__exit__", "native",
};
static PyObject *words[WORDS];

/* The loops of an operation: forward, backward, twice; -1 where there is none. */
static const int loops_of[3][4] = {
    {[VALUE] = IGLU_VALUE, [GATE] = IGLU_GATE, [GLU] = IGLU_GLU, [OUTPUT] = -1},
    {[VALUE] = IGLU_VALUE_BACKWARD,
     [GATE] = IGLU_GATE_BACKWARD,
     [GLU] = IGLU_GLU_BACKWARD,
     [OUTPUT] = IGLU_OUTPUT_BACKWARD},
    {[VALUE] = IGLU_VALUE_TWICE, [GATE] = -1, [GLU] = IGLU_GLU_TWICE, [OUTPUT] = -1},
};

/* 1, 0, or -1 with an error set; takes the result of a call. */
static int is_true(PyObject *result)
{
    int truth = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return truth;
}

/* Whether no mode, tracer or dual number of torch wants to see the call.  (What a transform of torch.func wraps has no
 * memory to be found; what it does not wrap is as it seems.) */
static int is_plain_eager(void)
{
    if (exchange == NULL)
        return 0;
    for (int question = FUNCTION_MODES; question <= TRACING; question++)
        if (is_true(PyObject_CallNoArgs(answers[question])) != 0)
            return 0;
    /* Without this the tangents of dual numbers would vanish in silence. */
    PyObject *level = PyDict_GetItemWithError(answers[FORWARD_AD], words[CURRENT_LEVEL]);
    return level && PyLong_AsLong(level) < 0;
}

/* Within, new tensors are wrapped, and no Function may be applied but through its own front. */
static int is_outside_transforms(void) { return is_true(PyObject_CallNoArgs(answers[TRANSFORMS])) == 0; }

/* 1, 0, or -1 with an error set. */
static int is_profiled(void)
{
    PyObject *value = PyDict_GetItemWithError(answers[PROFILER], words[IS_PROFILED]);
    return value ? PyObject_IsTrue(value) : PyErr_Occurred() ? -1 : 0;
}

/* What is answered to a call that is not served. */
static PyObject *none_unless_error(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

/* -- reading the arguments: each answers 1, or 0 where it is nothing for these kernels or an error is set --------- */

typedef struct {
    char *data;
    int dtype, dimensions;
    int64_t elements, sizes[IGLU_DIMENSIONS], strides[IGLU_DIMENSIONS];
} tensor;

/* Where a tensor lies.  Sizes and strides are copied: they belong to it, and the GIL may be released. */
static int locate(PyObject *object, tensor *out)
{
    dl_tensor t;
    if (exchange->tensor_from_object(object, &t) != 0) {
        /* no memory of its own: meta, sparse, quantised, wrapped by a transform that is over */
        if (PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear();
        return 0;
    }
    if (t.device_type != DL_CPU || t.data == NULL || t.lanes != 1 || t.ndim > IGLU_DIMENSIONS)
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
    return (type == answers[TENSOR] || type == answers[PARAMETER]) && locate(object, out) &&
        is_true(PyObject_CallFunctionObjArgs(answers[IS_NEGATIVE], object, NULL)) == 0;
}

static int is_same_shape(const tensor *a, const tensor *b)
{
    return a->dtype == b->dtype && a->dimensions == b->dimensions &&
        memcmp(a->sizes, b->sizes, (size_t)a->dimensions * sizeof(int64_t)) == 0;
}

/* Which of the words from `first` to `last` it is, or -1.  Nearly always it is the same object. */
static int read_word(PyObject *object, int first, int last)
{
    for (int i = first; i <= last; i++)
        if (object == words[i])
            return i;
    for (int i = first; i <= last && PyUnicode_Check(object); i++)
        if (PyUnicode_CompareWithASCIIString(object, word_texts[i]) == 0)
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

/* sigma: a number, or a tensor of one value or of one a channel, whose doubles the caller frees. */
typedef struct {
    PyObject *object; /* NULL where sigma is a number */
    tensor at;
    double *values;
} scale;

static int read_sigma(PyObject *object, PyObject *channel_dim, const tensor *x, iglu_call *call, scale *out)
{
    if (PyFloat_CheckExact(object) || PyLong_CheckExact(object)) {
        call->sigma = PyFloat_AsDouble(object);
        if (PyErr_Occurred()) { /* an integer beyond every float */
            PyErr_Clear();
            return 0;
        }
        /* 0 and inf are other functions */
        return call->sigma > 0 && call->sigma <= (x->dtype == IGLU_F64 ? DBL_MAX : FLT_MAX);
    }
    const tensor *t = &out->at;
    if (!read_tensor(object, &out->at) || t->dimensions > 1)
        return 0;
    out->object = object;
    const int64_t n = t->elements;
    if (n == 1) {
        call->sigma = value_at(t->data, t->dtype);
        return 1;
    }
    if (!PyLong_CheckExact(channel_dim))
        return 0;
    long dimension = PyLong_AsLong(channel_dim);
    if (dimension == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    dimension += dimension < 0 ? x->dimensions : 0;
    if (dimension < 0 || dimension >= x->dimensions || x->sizes[dimension] != n)
        return 0;
    out->values = malloc((size_t)n * sizeof(double));
    if (out->values == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (int64_t i = 0; i < n; i++)
        out->values[i] = value_at(t->data + i * t->strides[0] * iglu_bytes(t->dtype), t->dtype);
    call->sigmas = out->values;
    call->channel_dimension = (int)dimension;
    return 1;
}

/* Everything a call consists of. */
typedef struct {
    int operation, family;
    int is_packed; /* x, as it was given, holds both halves of a pair */
    tensor x, up;
    iglu_call call;
    scale sigma;
} request;

static void set_operand(request *r, enum iglu_operand operand, const tensor *t)
{
    r->call.data[operand] = t->data;
    memcpy(r->call.strides[operand], t->strides, (size_t)t->dimensions * sizeof(int64_t));
}

/* The second half of a packed pair, which begins where the first ends. */
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

/* 1 where the object is a tensor like x. */
static int read_alike(PyObject *object, const request *r, tensor *out)
{
    return read_tensor(object, out) && is_same_shape(out, &r->x);
}

/* The other half of a pair, where there is one. */
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
    r->operation = read_word(operation, VALUE, OUTPUT);
    const int family = read_word(approximate, NONE, RATIONAL);
    if (r->operation < 0 || family < 0)
        return 0;
    r->family = family == NONE ? IGLU_EXACT : IGLU_RATIONAL;
    r->is_packed = r->operation == GLU && up == Py_None;
    if (!is_plain_eager() || !read_tensor(x, &r->x) || !read_up(up, r) ||
        !read_sigma(sigma, channel_dim, &r->x, &r->call, &r->sigma))
        return 0;
    r->call.dimensions = r->x.dimensions;
    memcpy(r->call.sizes, r->x.sizes, (size_t)r->x.dimensions * sizeof(int64_t));
    set_operand(r, IGLU_X, &r->x);
    if (r->operation == GLU)
        set_operand(r, IGLU_UP, &r->up);
    return 1;
}

/* Whether the elements of t fill its memory, in whichever order, each with a place of its own. */
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

/* torch.empty_like of `like`, which lies at `at`, in this dtype, and where it lies.  NULL with an error set; None where it
 * is wrapped by a transform. */
static PyObject *empty_like(PyObject *like, const tensor *at, int dtype, tensor *out)
{
    PyObject *result = NULL;
    void *made = NULL;
    if (make.wrap && is_dense(at) &&
        make.empty_strided(at->dimensions, at->sizes, at->strides, torch_dtypes[dtype], TORCH_CPU, NO_INDEX, &made) == 0) {
        result = make.wrap(made);
        make.delete_tensor(made);
    } else {
        PyObject *arguments = PyTuple_Pack(1, like), *options = dtype == at->dtype ? NULL : answers[DOUBLES];
        result = arguments ? PyObject_Call(answers[EMPTY_LIKE], arguments, options) : NULL;
        Py_XDECREF(arguments);
    }
    if (result == NULL || locate(result, out))
        return result;
    Py_DECREF(result);
    return none_unless_error();
}

/* 0, or -1 with an error set. */
static int run(int operation, const request *r)
{
    int result;
    if (r->x.elements < WORTH_RELEASING) {
        result = iglu_run(operation, r->family, r->x.dtype, &r->call);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = iglu_run(operation, r->family, r->x.dtype, &r->call);
        Py_END_ALLOW_THREADS
    }
    if (result != 0)
        PyErr_NoMemory();
    return result;
}

/* -- forward -------------------------------------------------------------------------------------------------- */

/* Whether more than one element of t has the same place. */
static int is_expanded(const tensor *t)
{
    for (int d = 0; d < t->dimensions; d++)
        if (t->sizes[d] > 1 && t->strides[d] == 0)
            return 1;
    return 0;
}

/* 1, 0, or -1 with an error set. */
static int is_recorded(PyObject *const *tensors, int count)
{
    int wanted = 0;
    for (int i = 0; i < count && wanted == 0; i++)
        if (tensors[i])
            wanted = is_true(PyObject_GetAttr(tensors[i], words[REQUIRES_GRAD]));
    return wanted > 0 ? is_true(PyObject_CallNoArgs(answers[IS_GRAD_ENABLED])) : wanted;
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

/* The same with its name in the profile. */
static PyObject *compute_named(request *r, PyObject *operation, PyObject *x, PyObject *out)
{
    PyObject *name = PyUnicode_FromFormat("iglu::%U", operation);
    PyObject *named = name ? PyObject_CallFunctionObjArgs(answers[NAMED], name, NULL) : NULL;
    PyObject *entered = named ? PyObject_CallMethodObjArgs(named, words[ENTER], NULL) : NULL;
    PyObject *result = entered ? compute(r, x, out) : NULL;
    PyObject *left = result ? PyObject_CallMethodObjArgs(named, words[EXIT], Py_None, Py_None, Py_None, NULL) : NULL;
    if (left == NULL)
        Py_CLEAR(result);
    Py_XDECREF(name);
    Py_XDECREF(named);
    Py_XDECREF(entered);
    Py_XDECREF(left);
    return result;
}

static PyObject *forward(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count < 6 || count > 7)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels.forward: expected 6 or 7 arguments, got %zd", count);
    PyObject *operation = args[0], *x = args[1], *up = args[2], *sigma = args[3];
    PyObject *out = count > 6 ? args[6] : Py_None, *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    int recorded = 0, served = read_request(operation, x, up, sigma, args[4], args[5], &r) &&
        loops_of[0][r.operation] >= 0 && (out == Py_None || (out == x && !is_expanded(&r.x)));
    if (served && out == Py_None) {
        PyObject *const tensors[] = {x, up == Py_None ? NULL : up, r.sigma.object};
        recorded = is_recorded(tensors, 3);
        served = recorded == 0 || (recorded > 0 && is_outside_transforms());
    }
    const int profiled = served ? is_profiled() : 0;
    if (!served || profiled < 0)
        result = none_unless_error();
    else
        result = profiled ? compute_named(&r, operation, x, out) : compute(&r, x, out);
    if (recorded > 0 && result && result != Py_None) {
        PyObject *number = r.sigma.object ? Py_None : sigma, *scale = r.sigma.object ? sigma : Py_None, *made = result;
        PyObject *call = PyTuple_Pack(6, words[NATIVE], operation, number, args[4], args[5], made);
        result = call ? PyObject_CallFunctionObjArgs(answers[RECORD], call, x, up, scale, NULL) : NULL;
        Py_XDECREF(call);
        Py_DECREF(made);
    }
    free(r.sigma.values);
    return result;
}

/* -- backward, and backward of that --------------------------------------------------------------------------- */

/* The gradients of grad, if it is given, of x, of up and of sigma, as a tuple. */
static PyObject *gradients(request *r, int loops, PyObject *grad, const tensor *grad_at, PyObject *x, PyObject *up,
                           int needs_sigma)
{
    tensor whole = r->x, made_at;
    if (r->is_packed)
        whole.sizes[whole.dimensions - 1] *= 2;
    PyObject *const like[] = {grad, x, up}, *sums = NULL;
    const tensor *const at[] = {grad_at, &whole, &r->up};
    const int begin = grad == NULL;
    PyObject *result = PyTuple_New(4 - begin);
    int is_well = result != NULL, operand = IGLU_FIRST;
    for (int i = begin; is_well && i < 3; i++) {
        PyObject *made = like[i] == Py_None ? Py_NewRef(Py_None) : empty_like(like[i], at[i], r->x.dtype, &made_at);
        is_well = made && PyTuple_SetItem(result, i - begin, made) == 0;
        if (!is_well || made == Py_None)
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
    if (is_well && needs_sigma) {
        sums = empty_like(r->sigma.object, &r->sigma.at, IGLU_F64, &made_at);
        r->call.by_sigma = sums ? (double *)(void *)made_at.data : NULL;
        is_well = sums != NULL;
    }
    if (is_well && run(loops, r) == 0) {
        PyObject *dtype = needs_sigma ? PyObject_GetAttr(r->sigma.object, words[DTYPE]) : NULL;
        PyObject *by_sigma = dtype ? PyObject_CallMethodObjArgs(sums, words[TO], dtype, NULL) : none_unless_error();
        Py_XDECREF(dtype);
        is_well = by_sigma && PyTuple_SetItem(result, 3 - begin, by_sigma) == 0;
    } else {
        is_well = 0;
    }
    Py_XDECREF(sums);
    if (!is_well)
        Py_CLEAR(result);
    return result;
}

/* by_x and by_up, which are the halves of by_x where x holds both. */
static int read_second(PyObject *by_x, PyObject *by_up, request *r)
{
    tensor first, second;
    if (!read_tensor(by_x, &first) || (r->is_packed && !halve(&first)) || !is_same_shape(&first, &r->x))
        return 0;
    set_operand(r, IGLU_BY_X, &first);
    if (r->operation != GLU)
        return 1;
    if (r->is_packed)
        second = second_half(&first);
    else if (!read_alike(by_up, r, &second))
        return 0;
    set_operand(r, IGLU_BY_UP, &second);
    return 1;
}

/* Backward; or twice, given by_x and by_up. */
static PyObject *differentiate(PyObject *operation, PyObject *by_x, PyObject *by_up, PyObject *const *args)
{
    PyObject *grad_object = args[0], *x = args[1], *up = args[2], *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    tensor grad;
    const int needs_sigma = PyObject_IsTrue(args[6]);
    int served = needs_sigma >= 0 && read_request(operation, x, up, args[3], args[4], args[5], &r);
    const int loops = served ? loops_of[by_x ? 2 : 1][r.operation] : -1;
    served = loops >= 0 && (r.operation != OUTPUT || r.family == IGLU_RATIONAL) && (!needs_sigma || r.sigma.object) &&
        is_outside_transforms() && read_alike(grad_object, &r, &grad) && (!by_x || read_second(by_x, by_up, &r));
    if (served) {
        set_operand(&r, IGLU_GRAD, &grad);
        result = gradients(&r, loops, by_x ? grad_object : NULL, &grad, x, up, needs_sigma);
    } else {
        result = none_unless_error();
    }
    free(r.sigma.values);
    return result;
}

static PyObject *backward(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 8)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels.backward: expected 8 arguments, got %zd", count);
    return differentiate(args[0], NULL, NULL, args + 1);
}

static PyObject *twice(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 10)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels.twice: expected 10 arguments, got %zd", count);
    return differentiate(args[0], args[1], args[2], args + 3);
}

/* -- the module ----------------------------------------------------------------------------------------------- */

static PyObject *set_up(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    (void)module;
    PyObject *table = NULL, *functions[4] = {NULL};
    void *addresses[4];
    if (!PyArg_ParseTuple(arguments, "OOOOO", &table, &functions[0], &functions[1], &functions[2], &functions[3]))
        return NULL;
    const dl_exchange *found = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (found == NULL)
        return NULL;
    if (found->major != 1 || found->tensor_from_object == NULL)
        return PyErr_Format(PyExc_ImportError,
                            "torch's table of C functions must be of DLPack 1 and tell where a tensor lies, got %u.%u%s",
                            found->major, found->minor, found->tensor_from_object ? "" : " without that function");
    for (int i = 0; i < 4; i++) {
        addresses[i] = functions[i] == Py_None ? NULL : PyLong_AsVoidPtr(functions[i]);
        if (PyErr_Occurred())
            return NULL;
    }
    for (int i = 0; i < ANSWERS; i++) {
        PyObject *answer = keywords ? PyDict_GetItemString(keywords, answer_names[i]) : NULL;
        if (answer == NULL)
            return PyErr_Format(PyExc_TypeError, "iglu._kernels.set_up: %s is missing", answer_names[i]);
        Py_XDECREF(answers[i]);
        answers[i] = Py_NewRef(answer);
    }
    iglu_parallel_for *parallel_for;
    *(void **)&parallel_for = addresses[0];
    iglu_set_parallel_for(parallel_for);
    *(void **)&make.empty_strided = addresses[1];
    *(void **)&make.delete_tensor = addresses[2];
    *(void **)&make.wrap = addresses[1] && addresses[2] ? addresses[3] : NULL;
    exchange = found;
    Py_RETURN_NONE;
}

static PyObject *capability(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyUnicode_FromString(iglu_capability());
}

static PyObject *use(PyObject *self, PyObject *name)
{
    (void)self;
    PyObject *bytes = PyUnicode_AsUTF8String(name);
    if (bytes == NULL)
        return NULL;
    int result = iglu_use(PyBytes_AsString(bytes));
    Py_DECREF(bytes);
    if (result != 0)
        return PyErr_Format(PyExc_ValueError,
                            "instruction set must be 'baseline', 'avx2' or 'avx512' and one of this "
                            "processor, got %R",
                            name);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, NULL},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, NULL},
    {"twice", (PyCFunction)(void (*)(void))twice, METH_FASTCALL, NULL},
    {"set_up", (PyCFunction)(void (*)(void))set_up, METH_VARARGS | METH_KEYWORDS,
     "The capsule of torch's table, the addresses of C functions of torch, or None, and what is asked of torch."},
    {"capability", capability, METH_NOARGS, "The instruction set in use: 'baseline', 'avx2' or 'avx512'."},
    {"use", use, METH_O, "Use the named instruction set."},
    {NULL, NULL, 0, NULL},
};

static int initialise(PyObject *module)
{
    (void)module;
    iglu_use_best();
    for (int i = 0; i < WORDS; i++)
        if (words[i] == NULL && (words[i] = PyUnicode_InternFromString(word_texts[i])) == NULL)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, initialise},
#ifdef Py_GIL_DISABLED /* what is static is written by set_up and use alone, before any call */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "iglu._kernels",
    .m_doc = "The CPU kernels of IGLU: tensors in, tensors out, or None where a call is not one for them.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&definition); }
