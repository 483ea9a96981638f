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

enum { CURRENT_LEVEL, IS_PROFILED, REQUIRES_GRAD, TO, DTYPE, ENTER, EXIT, NATIVE, WORDS };
static const char *const word_texts[WORDS] = {
    "_current_level", "_is_profiler_enabled", "requires_grad", "to", "dtype", "__enter__", "__exit__", "native",
};
static PyObject *words[WORDS];

enum { OUTPUT = IGLU_OPERATIONS }; /* of which there is only a backward pass, IGLU_OUTPUT_BACKWARD */
static const char *const operation_names[] = {"value", "gate", "glu", "output"};
static const int operation_codes[] = {IGLU_VALUE, IGLU_GATE, IGLU_GLU, OUTPUT};
static const char *const family_names[] = {"none", "rational"};

static int call_is_true(PyObject *function, PyObject *argument)
{
    PyObject *result =
        argument ? PyObject_CallFunctionObjArgs(function, argument, NULL) : PyObject_CallNoArgs(function);
    int truth = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return truth;
}

/* Set while a call is handed to the recorder, which comes back for the result: the questions are answered. */
static _Thread_local int is_asked;

/* Whether no mode, tracer or dual number of torch wants to see the call; -1 with an error set.  (What a transform of
 * torch.func wraps has no memory to be found; what it does not wrap is as it seems.) */
static int is_plain_eager(void)
{
    if (is_asked || exchange == NULL)
        return is_asked;
    for (int question = FUNCTION_MODES; question <= TRACING; question++) {
        int truth = call_is_true(answers[question], NULL);
        if (truth != 0)
            return truth < 0 ? -1 : 0;
    }
    /* Without this the tangents of dual numbers would vanish in silence. */
    PyObject *level = PyDict_GetItemWithError(answers[FORWARD_AD], words[CURRENT_LEVEL]);
    if (level == NULL)
        return PyErr_Occurred() ? -1 : 0;
    return PyLong_AsLong(level) < 0;
}

/* Within, new tensors are wrapped, and no Function may be applied but through its own front. */
static int is_outside_transforms(void)
{
    int truth = call_is_true(answers[TRANSFORMS], NULL);
    return truth < 0 ? -1 : !truth;
}

static int is_profiled(void)
{
    PyObject *value = PyDict_GetItemWithError(answers[PROFILER], words[IS_PROFILED]);
    return value ? PyObject_IsTrue(value) : PyErr_Occurred() ? -1 : 0;
}

static int requires_grad(PyObject *tensor)
{
    PyObject *value = PyObject_GetAttr(tensor, words[REQUIRES_GRAD]);
    int truth = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

/* -- reading the arguments: each answers 1, or 0 where it is nothing for these kernels, or -1 with an error ------- */

typedef struct {
    char *data;
    int dtype, dimensions;
    int64_t elements, sizes[IGLU_DIMENSIONS], strides[IGLU_DIMENSIONS];
} tensor;

static int64_t bytes_of(int dtype) { return dtype == IGLU_F64 ? 8 : dtype == IGLU_F32 ? 4 : 2; }

/* Where a tensor lies.  Sizes and strides are copied: they belong to it, and the GIL may be released. */
static int locate(PyObject *object, tensor *out)
{
    dl_tensor t;
    if (exchange->tensor_from_object(object, &t) != 0) {
        /* no memory of its own: meta, sparse, quantised, wrapped by a transform that is over */
        if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
            return -1;
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
    if ((PyObject *)Py_TYPE(object) != answers[TENSOR] && (PyObject *)Py_TYPE(object) != answers[PARAMETER])
        return 0;
    int served = locate(object, out);
    if (served <= 0)
        return served;
    int negative = is_asked ? 0 : call_is_true(answers[IS_NEGATIVE], object);
    return negative < 0 ? -1 : !negative;
}

static int is_same_shape(const tensor *a, const tensor *b)
{
    return a->dtype == b->dtype && a->dimensions == b->dimensions &&
        memcmp(a->sizes, b->sizes, (size_t)a->dimensions * sizeof(int64_t)) == 0;
}

static int read_word(PyObject *object, const char *const *allowed, int count)
{
    if (!PyUnicode_Check(object))
        return -1;
    for (int i = 0; i < count; i++)
        if (PyUnicode_CompareWithASCIIString(object, allowed[i]) == 0)
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
    double f64;
    float f32;
    uint32_t bits;
    uint16_t half;
    switch (dtype) {
    case IGLU_F64:
        memcpy(&f64, place, sizeof f64);
        return f64;
    case IGLU_F32:
        memcpy(&f32, place, sizeof f32);
        return f32;
    default:
        memcpy(&half, place, sizeof half);
        if (dtype == IGLU_F16)
            return half_value(half);
        bits = (uint32_t)half << 16;
        memcpy(&f32, &bits, sizeof f32);
        return f32;
    }
}

/* sigma: a number, or a tensor of one value or of one a channel, whose doubles the caller frees. */
typedef struct {
    PyObject *object; /* NULL where sigma is a number */
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
    tensor t;
    int served = read_tensor(object, &t);
    if (served <= 0)
        return served;
    if (t.dimensions > 1)
        return 0;
    out->object = object;
    const int64_t n = t.elements;
    if (n == 1) {
        call->sigma = value_at(t.data, t.dtype);
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
        return -1;
    }
    for (int64_t i = 0; i < n; i++)
        out->values[i] = value_at(t.data + i * t.strides[0] * bytes_of(t.dtype), t.dtype);
    call->sigmas = out->values;
    call->channel_dimension = (int)dimension;
    return 1;
}

/* Everything a call consists of. */
typedef struct {
    int operation, family;
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
    second.data += half->sizes[last] * half->strides[last] * bytes_of(half->dtype);
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

static int read_request(PyObject *operation, PyObject *x, PyObject *up, PyObject *sigma, PyObject *approximate,
                        PyObject *channel_dim, request *r)
{
    const int operation_index = read_word(operation, operation_names, 4);
    r->family = read_word(approximate, family_names, IGLU_FAMILIES);
    if (operation_index < 0 || r->family < 0)
        return 0;
    r->operation = operation_codes[operation_index];
    int served = is_plain_eager();
    if (served > 0)
        served = read_tensor(x, &r->x);
    if (served > 0 && up != Py_None) {
        served = r->operation == IGLU_GLU ? read_tensor(up, &r->up) : 0;
        if (served > 0)
            served = is_same_shape(&r->x, &r->up);
    } else if (served > 0 && r->operation == IGLU_GLU) {
        served = halve(&r->x);
        r->up = served ? second_half(&r->x) : r->x;
    }
    if (served > 0)
        served = read_sigma(sigma, channel_dim, &r->x, &r->call, &r->sigma);
    if (served <= 0)
        return served;
    r->call.dimensions = r->x.dimensions;
    memcpy(r->call.sizes, r->x.sizes, (size_t)r->x.dimensions * sizeof(int64_t));
    set_operand(r, IGLU_X, &r->x);
    if (r->operation == IGLU_GLU)
        set_operand(r, IGLU_UP, &r->up);
    return 1;
}

/* A new tensor like `like`, and where it lies; in float64 if `doubles`.  None where it is wrapped by a transform. */
static PyObject *empty_like(PyObject *like, int doubles, tensor *out)
{
    PyObject *arguments = PyTuple_Pack(1, like);
    PyObject *result = arguments ? PyObject_Call(answers[EMPTY_LIKE], arguments, doubles ? answers[DOUBLES] : NULL) : NULL;
    Py_XDECREF(arguments);
    int served = result ? locate(result, out) : -1;
    if (served == 0) {
        Py_DECREF(result);
        result = Py_NewRef(Py_None);
    }
    if (served < 0)
        Py_CLEAR(result);
    return result;
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

static int is_recorded(PyObject *const *tensors, int count)
{
    for (int i = 0; i < count; i++) {
        int wanted = tensors[i] ? requires_grad(tensors[i]) : 0;
        if (wanted < 0)
            return -1;
        if (wanted)
            return call_is_true(answers[IS_GRAD_ENABLED], NULL);
    }
    return 0;
}

static PyObject *compute(request *r, PyObject *x, PyObject *up, PyObject *out)
{
    tensor y = r->x;
    PyObject *result;
    if (out != Py_None) {
        result = Py_NewRef(out);
    } else if (r->operation == IGLU_GLU && up == Py_None) {
        PyObject *half = PyObject_CallMethod(x, "narrow", "iiL", -1, 0, (long long)r->x.sizes[r->x.dimensions - 1]);
        result = half ? empty_like(half, 0, &y) : NULL;
        Py_XDECREF(half);
    } else {
        result = empty_like(x, 0, &y);
    }
    if (result == NULL || result == Py_None)
        return result;
    set_operand(r, IGLU_FIRST, &y);
    if (run(r->operation, r) != 0)
        Py_CLEAR(result);
    return result;
}

/* The same with its name in the profile. */
static PyObject *compute_named(request *r, PyObject *operation, PyObject *x, PyObject *up, PyObject *out)
{
    PyObject *name = PyUnicode_FromFormat("iglu::%U", operation), *result = NULL, *done = NULL;
    PyObject *named = name ? PyObject_CallFunctionObjArgs(answers[NAMED], name, NULL) : NULL;
    PyObject *entered = named ? PyObject_CallMethodObjArgs(named, words[ENTER], NULL) : NULL;
    if (entered) {
        result = compute(r, x, up, out);
        if (result)
            done = PyObject_CallMethodObjArgs(named, words[EXIT], Py_None, Py_None, Py_None, NULL);
        if (done == NULL)
            Py_CLEAR(result);
    }
    Py_XDECREF(name);
    Py_XDECREF(named);
    Py_XDECREF(entered);
    Py_XDECREF(done);
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
    int served = read_request(operation, x, up, sigma, args[4], args[5], &r);
    const int was_asked = is_asked;
    is_asked = 0;
    if (served > 0)
        served = r.operation != OUTPUT && (out == Py_None || (out == x && !is_expanded(&r.x)));
    if (served > 0) {
        PyObject *const tensors[] = {x, up == Py_None ? NULL : up, r.sigma.object};
        int recorded = out == Py_None && !was_asked ? is_recorded(tensors, 3) : 0;
        int profiled = recorded == 0 ? is_profiled() : 0;
        int outside = recorded > 0 ? is_outside_transforms() : 1;
        if (outside == 0) {
            result = Py_NewRef(Py_None);
        } else if (recorded > 0 && outside > 0) {
            PyObject *number = r.sigma.object ? Py_None : sigma, *scale = r.sigma.object ? sigma : Py_None;
            PyObject *call = PyTuple_Pack(5, words[NATIVE], operation, number, args[4], args[5]);
            is_asked = 1;
            result = call ? PyObject_CallFunctionObjArgs(answers[RECORD], call, x, up, scale, NULL) : NULL;
            is_asked = 0;
            Py_XDECREF(call);
        } else if (profiled > 0) {
            result = compute_named(&r, operation, x, up, out);
        } else if (recorded == 0 && profiled == 0) {
            result = compute(&r, x, up, out);
        }
    } else if (served == 0) {
        result = Py_NewRef(Py_None);
    }
    free(r.sigma.values);
    return result;
}

/* -- backward ------------------------------------------------------------------------------------------------- */

/* 1 where the object is a tensor like x. */
static int read_alike(PyObject *object, const request *r, tensor *out)
{
    int served = read_tensor(object, out);
    return served > 0 ? is_same_shape(out, &r->x) : served;
}

/* The gradient of sigma, in its shape and dtype. */
static PyObject *sigma_gradient(const request *r, PyObject *sums)
{
    PyObject *dtype = PyObject_GetAttr(r->sigma.object, words[DTYPE]);
    PyObject *result = dtype ? PyObject_CallMethodObjArgs(sums, words[TO], dtype, NULL) : NULL;
    Py_XDECREF(dtype);
    return result;
}

static PyObject *gradients(request *r, PyObject *x, PyObject *up, int needs_sigma)
{
    static const int backward_of[] = {
        [IGLU_VALUE] = IGLU_VALUE_BACKWARD,
        [IGLU_GATE] = IGLU_GATE_BACKWARD,
        [IGLU_GLU] = IGLU_GLU_BACKWARD,
        [OUTPUT] = IGLU_OUTPUT_BACKWARD,
    };
    tensor first, second, doubles;
    PyObject *by_x = empty_like(x, 0, &first), *by_up = NULL, *sums = NULL, *by_sigma = NULL, *result = NULL;
    if (by_x && up != Py_None)
        by_up = empty_like(up, 0, &second);
    if (by_x && needs_sigma)
        sums = empty_like(r->sigma.object, 1, &doubles);
    if (by_x && (up == Py_None || by_up) && (!needs_sigma || sums)) {
        if (r->operation == IGLU_GLU && up == Py_None) {
            halve(&first);
            second = second_half(&first);
        }
        set_operand(r, IGLU_FIRST, &first);
        if (r->operation == IGLU_GLU)
            set_operand(r, IGLU_SECOND, &second);
        r->call.by_sigma = needs_sigma ? (double *)(void *)doubles.data : NULL;
        if (run(backward_of[r->operation], r) == 0) {
            by_sigma = needs_sigma ? sigma_gradient(r, sums) : Py_NewRef(Py_None);
            if (by_sigma)
                result = PyTuple_Pack(3, by_x, by_up ? by_up : Py_None, by_sigma);
        }
    }
    Py_XDECREF(by_x);
    Py_XDECREF(by_up);
    Py_XDECREF(sums);
    Py_XDECREF(by_sigma);
    return result;
}

static PyObject *backward(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 8)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels.backward: expected 8 arguments, got %zd", count);
    PyObject *grad_object = args[1], *x = args[2], *up = args[3], *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    tensor grad;
    int needs_sigma = PyObject_IsTrue(args[7]);
    int served = needs_sigma < 0 ? -1 : read_request(args[0], x, up, args[4], args[5], args[6], &r);
    if (served > 0)
        served = (r.operation != OUTPUT || r.family == IGLU_RATIONAL) && (!needs_sigma || r.sigma.object);
    if (served > 0)
        served = is_outside_transforms();
    if (served > 0)
        served = read_alike(grad_object, &r, &grad);
    if (served > 0) {
        set_operand(&r, IGLU_GRAD, &grad);
        result = gradients(&r, x, up, needs_sigma);
    } else if (served == 0) {
        result = Py_NewRef(Py_None);
    }
    free(r.sigma.values);
    return result;
}

/* -- twice ---------------------------------------------------------------------------------------------------- */

/* by_x and by_up, which are the halves of by_x where x holds both. */
static int read_second(PyObject *by_x, PyObject *by_up, int is_packed, request *r)
{
    tensor first, second;
    int served = read_tensor(by_x, &first);
    if (served > 0 && is_packed)
        served = halve(&first);
    if (served > 0)
        served = is_same_shape(&first, &r->x);
    if (served > 0 && r->operation == IGLU_GLU) {
        if (is_packed)
            second = second_half(&first);
        else
            served = read_alike(by_up, r, &second);
        if (served > 0)
            set_operand(r, IGLU_BY_UP, &second);
    }
    if (served > 0)
        set_operand(r, IGLU_BY_X, &first);
    return served;
}

static PyObject *second_gradients(request *r, PyObject *grad, PyObject *x, PyObject *up, int needs_sigma)
{
    tensor first, second, third, doubles;
    PyObject *by_grad = empty_like(grad, 0, &first), *by_x = by_grad ? empty_like(x, 0, &second) : NULL;
    PyObject *by_up = by_x && up != Py_None ? empty_like(up, 0, &third) : NULL;
    PyObject *sums = by_x && needs_sigma ? empty_like(r->sigma.object, 1, &doubles) : NULL;
    PyObject *by_sigma = NULL, *result = NULL;
    if (by_x && (up == Py_None || by_up) && (!needs_sigma || sums)) {
        if (r->operation == IGLU_GLU && up == Py_None) {
            halve(&second);
            third = second_half(&second);
        }
        set_operand(r, IGLU_FIRST, &first);
        set_operand(r, IGLU_SECOND, &second);
        if (r->operation == IGLU_GLU)
            set_operand(r, IGLU_THIRD, &third);
        r->call.by_sigma = needs_sigma ? (double *)(void *)doubles.data : NULL;
        if (run(r->operation == IGLU_GLU ? IGLU_GLU_TWICE : IGLU_VALUE_TWICE, r) == 0) {
            by_sigma = needs_sigma ? sigma_gradient(r, sums) : Py_NewRef(Py_None);
            if (by_sigma)
                result = PyTuple_Pack(4, by_grad, by_x, by_up ? by_up : Py_None, by_sigma);
        }
    }
    Py_XDECREF(by_grad);
    Py_XDECREF(by_x);
    Py_XDECREF(by_up);
    Py_XDECREF(sums);
    Py_XDECREF(by_sigma);
    return result;
}

static PyObject *twice(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 10)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels.twice: expected 10 arguments, got %zd", count);
    PyObject *grad_object = args[3], *x = args[4], *up = args[5], *result = NULL;
    request r;
    memset(&r, 0, sizeof r);
    tensor grad;
    int needs_sigma = PyObject_IsTrue(args[9]);
    int served = needs_sigma < 0 ? -1 : read_request(args[0], x, up, args[6], args[7], args[8], &r);
    if (served > 0)
        served = (r.operation == IGLU_VALUE || r.operation == IGLU_GLU) && (!needs_sigma || r.sigma.object);
    if (served > 0)
        served = is_outside_transforms();
    if (served > 0)
        served = read_alike(grad_object, &r, &grad);
    if (served > 0)
        served = read_second(args[1], args[2], r.operation == IGLU_GLU && up == Py_None, &r);
    if (served > 0) {
        set_operand(&r, IGLU_GRAD, &grad);
        result = second_gradients(&r, grad_object, x, up, needs_sigma);
    } else if (served == 0) {
        result = Py_NewRef(Py_None);
    }
    free(r.sigma.values);
    return result;
}

/* -- the module ----------------------------------------------------------------------------------------------- */

static PyObject *set_up(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    (void)module;
    PyObject *table = NULL, *parallel_for = NULL;
    if (!PyArg_ParseTuple(arguments, "OO", &table, &parallel_for))
        return NULL;
    const dl_exchange *found = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (found == NULL)
        return NULL;
    if (found->major != 1 || found->tensor_from_object == NULL)
        return PyErr_Format(PyExc_ImportError,
                            "torch's table of C functions must be of DLPack 1 and tell where a tensor lies, got %u.%u%s",
                            found->major, found->minor, found->tensor_from_object ? "" : " without that function");
    void *address = parallel_for == Py_None ? NULL : PyLong_AsVoidPtr(parallel_for);
    if (PyErr_Occurred())
        return NULL;
    for (int i = 0; i < ANSWERS; i++) {
        PyObject *answer = keywords ? PyDict_GetItemString(keywords, answer_names[i]) : NULL;
        if (answer == NULL)
            return PyErr_Format(PyExc_TypeError, "iglu._kernels.set_up: %s is missing", answer_names[i]);
        Py_XDECREF(answers[i]);
        answers[i] = Py_NewRef(answer);
    }
    iglu_parallel_for *function;
    *(void **)&function = address;
    iglu_set_parallel_for(function);
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
     "The capsule of torch's table, the address of torch_parallel_for or None, and what is asked of torch."},
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
