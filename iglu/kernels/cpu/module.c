/* iglu._kernels: the native CPU kernels for Python, by pointer.  Limited API, no torch: one binary serves every
 * Python from 3.10 and every torch.
 *
 * For each operation, family (exact, rational) and dtype (f32, f64, bf16, f16) there is one function, so that no
 * argument has to be looked up: value_exact_f32 and so on.  Arguments are positional; pointers are ints.
 *
 *   value_*, gate_*       (x, y, n, sigma, channels=0, inner=1)
 *   glu_*                 (gate, up, y, rows, width, gate_step, up_step, y_step, sigma, channels=0, inner=1)
 *   value_backward_*,     (grad, x, grad_x, n, sigma, channels=0, inner=1, grad_is_one_value=0, by_sigma=0)
 *   gate_backward_*,      x of output_backward_rational_* being the output
 *   output_backward_*
 *   glu_backward_*        (grad, gate, up, grad_gate, grad_up, rows, width, grad_step, gate_step, up_step,
 *                          grad_gate_step, grad_up_step, sigma, channels=0, inner=1, grad_is_one_value=0, by_sigma=0)
 *
 * They mean what the fields of iglu_call mean (loops.h).  Where channels is not 0, sigma is a pointer to that many
 * doubles; by_sigma is a pointer to as many (or one), or 0. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "run.h"

/* Shorter work than this takes less time than handing the GIL over. */
#define WORTH_RELEASING 4096

static int64_t integer_at(PyObject *const *args, Py_ssize_t count, Py_ssize_t i, int64_t otherwise)
{
    return i < count ? (int64_t)PyLong_AsLongLong(args[i]) : otherwise;
}

static void *pointer_at(PyObject *const *args, Py_ssize_t count, Py_ssize_t i)
{
    return i < count ? PyLong_AsVoidPtr(args[i]) : NULL;
}

/* sigma, channels, inner, and for a backward grad_is_one_value and by_sigma, from args[first] on. */
static void read_sigma(iglu_call *call, PyObject *const *args, Py_ssize_t count, Py_ssize_t first)
{
    call->channels = integer_at(args, count, first + 1, 0);
    call->inner = integer_at(args, count, first + 2, 1);
    if (call->channels == 0)
        call->sigma = PyFloat_AsDouble(args[first]);
    else
        call->sigmas = PyLong_AsVoidPtr(args[first]);
    call->grad_is_one_value = (int32_t)integer_at(args, count, first + 3, 0);
    call->by_sigma = pointer_at(args, count, first + 4);
}

static PyObject *called(int operation, int family, int dtype, PyObject *const *args, Py_ssize_t count)
{
    /* The arguments up to sigma, and all of them. */
    static const struct {
        Py_ssize_t required, allowed;
    } arity[IGLU_OPERATIONS] = {
        [IGLU_VALUE] = {4, 6},          [IGLU_GATE] = {4, 6},          [IGLU_GLU] = {9, 11},
        [IGLU_VALUE_BACKWARD] = {5, 9}, [IGLU_GATE_BACKWARD] = {5, 9}, [IGLU_GLU_BACKWARD] = {13, 17},
        [IGLU_OUTPUT_BACKWARD] = {5, 9},
    };
    if (count < arity[operation].required || count > arity[operation].allowed)
        return PyErr_Format(PyExc_TypeError, "iglu._kernels: expected %zd to %zd arguments, got %zd",
                            arity[operation].required, arity[operation].allowed, count);
    iglu_call call = {.rows = 1};
    switch (operation) {
    case IGLU_VALUE:
    case IGLU_GATE:
        call.x = pointer_at(args, count, 0);
        call.y = pointer_at(args, count, 1);
        call.width = integer_at(args, count, 2, 0);
        break;
    case IGLU_VALUE_BACKWARD:
    case IGLU_GATE_BACKWARD:
    case IGLU_OUTPUT_BACKWARD:
        call.grad = pointer_at(args, count, 0);
        call.x = pointer_at(args, count, 1);
        call.grad_x = pointer_at(args, count, 2);
        call.width = integer_at(args, count, 3, 0);
        break;
    case IGLU_GLU:
        call.x = pointer_at(args, count, 0);
        call.up = pointer_at(args, count, 1);
        call.y = pointer_at(args, count, 2);
        call.rows = integer_at(args, count, 3, 0);
        call.width = integer_at(args, count, 4, 0);
        call.x_step = integer_at(args, count, 5, 0);
        call.up_step = integer_at(args, count, 6, 0);
        call.y_step = integer_at(args, count, 7, 0);
        break;
    default:
        call.grad = pointer_at(args, count, 0);
        call.x = pointer_at(args, count, 1);
        call.up = pointer_at(args, count, 2);
        call.grad_x = pointer_at(args, count, 3);
        call.grad_up = pointer_at(args, count, 4);
        call.rows = integer_at(args, count, 5, 0);
        call.width = integer_at(args, count, 6, 0);
        call.grad_step = integer_at(args, count, 7, 0);
        call.x_step = integer_at(args, count, 8, 0);
        call.up_step = integer_at(args, count, 9, 0);
        call.grad_x_step = integer_at(args, count, 10, 0);
        call.grad_up_step = integer_at(args, count, 11, 0);
    }
    read_sigma(&call, args, count, arity[operation].required - 1);
    if (PyErr_Occurred())
        return NULL;
    int result;
    if (call.rows * call.width < WORTH_RELEASING) {
        result = iglu_run(operation, family, dtype, &call);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = iglu_run(operation, family, dtype, &call);
        Py_END_ALLOW_THREADS
    }
    if (result != 0)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define FUNCTION(OPERATION, FAMILY, DTYPE, operation)                                                        \
    static PyObject *OPERATION##_##FAMILY##_##DTYPE(PyObject *self, PyObject *const *args, Py_ssize_t count) \
    {                                                                                                        \
        (void)self;                                                                                          \
        return called(IGLU_##OPERATION, IGLU_##FAMILY, IGLU_##DTYPE, args, count);                           \
    }
#define METHOD(OPERATION, FAMILY, DTYPE, name)                                                               \
    {name, (PyCFunction)(void (*)(void))OPERATION##_##FAMILY##_##DTYPE, METH_FASTCALL, NULL},

#define EACH_DTYPE(X, OPERATION, FAMILY, name)                                                               \
    X(OPERATION, FAMILY, F32, name "_f32")                                                                   \
    X(OPERATION, FAMILY, F64, name "_f64")                                                                   \
    X(OPERATION, FAMILY, BF16, name "_bf16")                                                                 \
    X(OPERATION, FAMILY, F16, name "_f16")
#define EACH_FAMILY(X, OPERATION, name)                                                                      \
    EACH_DTYPE(X, OPERATION, EXACT, name "_exact")                                                           \
    EACH_DTYPE(X, OPERATION, RATIONAL, name "_rational")
#define EACH_FUNCTION(X)                                                                                     \
    EACH_FAMILY(X, VALUE, "value")                                                                           \
    EACH_FAMILY(X, GATE, "gate")                                                                             \
    EACH_FAMILY(X, GLU, "glu")                                                                               \
    EACH_FAMILY(X, VALUE_BACKWARD, "value_backward")                                                         \
    EACH_FAMILY(X, GATE_BACKWARD, "gate_backward")                                                           \
    EACH_FAMILY(X, GLU_BACKWARD, "glu_backward")                                                             \
    EACH_DTYPE(X, OUTPUT_BACKWARD, RATIONAL, "output_backward_rational")

EACH_FUNCTION(FUNCTION)

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

static PyObject *set_parallel_for(PyObject *self, PyObject *address)
{
    (void)self;
    void *pointer = address == Py_None ? NULL : PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    iglu_parallel_for *function;
    *(void **)&function = pointer;
    iglu_set_parallel_for(function);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    EACH_FUNCTION(METHOD)
    {"capability", capability, METH_NOARGS, "The instruction set in use: 'baseline', 'avx2' or 'avx512'."},
    {"use", use, METH_O, "Use the named instruction set."},
    {"set_parallel_for", set_parallel_for, METH_O, "The address of torch_parallel_for, or None for one thread."},
    {NULL, NULL, 0, NULL},
};

static const iglu_table table = {IGLU_TABLE_VERSION, iglu_run, iglu_capability};

static int initialise(PyObject *module)
{
    iglu_use_best();
    PyObject *capsule = PyCapsule_New((void *)&table, IGLU_TABLE_CAPSULE, NULL);
    int result = PyModule_AddObjectRef(module, "table", capsule);
    Py_XDECREF(capsule);
    return result;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, initialise}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "iglu._kernels",
    .m_doc = "Native CPU kernels of IGLU, by pointer.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&definition); }
