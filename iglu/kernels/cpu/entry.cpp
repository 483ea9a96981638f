// iglu._entry: the loops of iglu._kernels as torch operations with a hand-written autograd node, so that
// a call costs what a call of torch's own activations costs.
//
// Everything here serves plain dense CPU tensors in plain eager mode.  For anything else the functions
// called from Python answer None, and the caller goes on to the plain path; a backward pass that is itself
// recorded, or meets unusual gradients, goes there too.

#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/version.h>

#include "tensors.h"

namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr const char *kNames[] = {"value", "gate", "glu"};
constexpr const char *kFamilies[] = {"none", "rational"};

// The backward pass by the differentiable operations of iglu.kernels.plain.
variable_list backward_plain(const Options &options, const Tensor &grad, const Tensor &x,
                             const OptionalTensor &up, const OptionalTensor &sigma, bool needs_sigma) {
    pybind11::gil_scoped_acquire gil;
    const auto name =
        std::string(options.keep_output ? "output" : kNames[options.operation]) + ":" + kFamilies[options.family];
    const auto plain = pybind11::module_::import("iglu.kernels.plain");
    pybind11::object scale = sigma ? pybind11::cast(*sigma) : pybind11::cast(options.number);
    const auto gradients = plain.attr("gradients_of_call")(name, grad, x, up, scale, options.channel_dim, needs_sigma);
    return gradients.cast<variable_list>();
}

struct IgluBackward : public Node {
    Options options{};
    SavedVariable x, up, sigma;  // x is the output where that is kept
    bool has_up = false, has_sigma = false;
    bool released = false;

    std::string name() const override {
        constexpr const char *names[] = {"IgluBackward", "IgluGateBackward", "IgluGluBackward"};
        return names[options.operation];
    }

    variable_list apply(variable_list &&grads) override {
        variable_list result(next_edges().size());
        const Tensor &grad = grads[0];
        if (!grad.defined()) return result;
        TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
        const auto self = getptr();
        const Tensor saved_x = x.unpack(self);
        const OptionalTensor saved_up = has_up ? OptionalTensor(up.unpack(self)) : std::nullopt;
        const OptionalTensor saved_sigma = has_sigma ? OptionalTensor(sigma.unpack(self)) : std::nullopt;
        const size_t sigma_edge = has_up ? 2 : 1;
        const bool needs_sigma = has_sigma && task_should_compute_output(sigma_edge);

        const bool is_plain = !at::GradMode::is_enabled() && is_plain_eager() && is_ordinary(grad) &&
            grad.scalar_type() == saved_x.scalar_type() && is_served(options, saved_x, saved_up, saved_sigma);
        if (is_plain) {
            Gradients gradients = backward_cpu(options, grad, saved_x, saved_up, saved_sigma, needs_sigma);
            result[0] = gradients.x;
            if (has_up) result[1] = gradients.up;
            if (needs_sigma) result[sigma_edge] = gradients.sigma;
        } else {
            auto gradients = backward_plain(options, grad, saved_x, saved_up, saved_sigma, needs_sigma);
            std::move(gradients.begin(), gradients.end(), result.begin());
        }
        return result;
    }

    void release_variables() override {
        released = true;
        x.reset_data();
        up.reset_data();
        sigma.reset_data();
    }

    // For compiled autograd: name what is saved, and hand over the plain form as a function to be traced.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &args) const override {
        args.collect(static_cast<int64_t>(options.operation));
        args.collect(static_cast<int64_t>(options.family));
        args.collect(options.number);
        args.collect(options.channel_dim);
        args.collect(options.keep_output);
        args.collect(x, options.keep_output);
        args.collect(up, false);
        args.collect(sigma, false);
    }

    variable_list apply_with_saved(const variable_list &grads,
                                   torch::dynamo::autograd::SwapSavedVariables &saved) override {
        using namespace torch::dynamo::autograd;
        saved.before(x);
        saved.before(up);
        saved.before(sigma);
        const auto self = getptr();
        const bool needs_sigma = has_sigma && task_should_compute_output(has_up ? 2 : 1);
        PackedArgs packed;
        packed.pack(static_cast<int64_t>(options.operation));
        packed.pack(static_cast<int64_t>(options.family));
        packed.pack(options.number);
        packed.pack(options.channel_dim);
        packed.pack(options.keep_output);
        packed.pack(needs_sigma);
        packed.pack(x.unpack(self));
        packed.pack(has_up ? up.unpack(self) : Tensor());
        packed.pack(has_sigma ? sigma.unpack(self) : Tensor());
        const auto arguments = std::move(packed).vec();
        std::vector<at::TypePtr> schema;
        for (const auto &each : arguments) schema.push_back(each.isTensor() ? at::TensorType::get() : each.type());
        const auto metadata =
            IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
                get_input_metadata(next_edges()));
        const auto &compiler = getPyCompilerInterface();
        const auto bound = compiler->bind_function(saved.get_py_compiler(), name(), apply_to_packed, schema);
        auto result = compiler->call_function(saved.get_py_compiler(), "apply_functional", bound, grads, arguments,
                                              metadata);
        saved.after(x);
        saved.after(up);
        saved.after(sigma);
        return result;
    }

    static variable_list apply_to_packed(const variable_list &grads, const std::vector<c10::IValue> &arguments) {
        torch::dynamo::autograd::PackedArgs packed(arguments);
        Options options{};
        options.operation = static_cast<iglu_operation>(packed.unpack<int64_t>());
        options.family = static_cast<iglu_family>(packed.unpack<int64_t>());
        options.number = packed.unpack<double>();
        options.channel_dim = packed.unpack<int64_t>();
        options.keep_output = packed.unpack<bool>();
        const bool needs_sigma = packed.unpack<bool>();
        const Tensor x = packed.unpack<Tensor>();
        const Tensor up = packed.unpack<Tensor>();
        const Tensor sigma = packed.unpack<Tensor>();
        auto result = backward_plain(options, grads[0], x, up.defined() ? OptionalTensor(up) : std::nullopt,
                                     sigma.defined() ? OptionalTensor(sigma) : std::nullopt, needs_sigma);
        if (sigma.defined() && !needs_sigma) result.emplace_back();
        return result;
    }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    static auto create() { return c10::make_intrusive<IgluBackward>(); }
#else
    static auto create() { return std::shared_ptr<IgluBackward>(new IgluBackward(), torch::autograd::deleteNode); }
#endif
};

// -- the operations ----------------------------------------------------------------------------------

using Signature = Tensor(const Tensor &, const OptionalTensor &, const OptionalTensor &, double, int64_t, int64_t,
                         bool);

template <iglu_operation operation>
const c10::TypedOperatorHandle<Signature> &handle() {
    static const auto found = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow((std::string("iglu::") + kNames[operation]).c_str(), "")
                                  .typed<Signature>();
    return found;
}

template <iglu_operation operation>
Tensor cpu_kernel(const Tensor &x, const OptionalTensor &up, const OptionalTensor &sigma, double number,
                  int64_t channel_dim, int64_t family, bool keep_output) {
    const Options options{operation, static_cast<iglu_family>(family), number, channel_dim, keep_output};
    TORCH_CHECK(is_served(options, x, up, sigma), "iglu::", kNames[operation],
                " serves dense floating-point CPU tensors; call iglu.", operation == IGLU_VALUE ? "iglu" : "iglu_",
                operation == IGLU_VALUE ? "" : kNames[operation], ", which finds the kernel for any other");
    return forward_cpu(options, x, up, sigma);
}

bool is_recorded(const Tensor &x, const OptionalTensor &up, const OptionalTensor &sigma) {
    return at::GradMode::is_enabled() &&
        (x.requires_grad() || (up && up->requires_grad()) || (sigma && sigma->requires_grad()));
}

// A node with its edges and all that it keeps, but for an output that is not there yet.
auto record(const Options &options, const Tensor &x, const OptionalTensor &up, const OptionalTensor &sigma) {
    auto node = IgluBackward::create();
    node->options = options;
    node->has_up = up.has_value();
    node->has_sigma = sigma.has_value();
    auto edges = torch::autograd::collect_next_edges(x);
    if (up) edges.push_back(torch::autograd::impl::gradient_edge(*up));
    if (sigma) edges.push_back(torch::autograd::impl::gradient_edge(*sigma));
    node->set_next_edges(std::move(edges));
    if (!options.keep_output) node->x = SavedVariable(x, false);
    if (up) node->up = SavedVariable(*up, false);
    if (sigma) node->sigma = SavedVariable(*sigma, false);
    return node;
}

template <iglu_operation operation>
Tensor autograd_kernel(const Tensor &x, const OptionalTensor &up, const OptionalTensor &sigma, double number,
                       int64_t channel_dim, int64_t family, bool keep_output) {
    Tensor y;
    {
        at::AutoDispatchBelowADInplaceOrView below;
        y = cpu_kernel<operation>(x, up, sigma, number, channel_dim, family, keep_output);
    }
    if (is_recorded(x, up, sigma)) {
        auto node = record({operation, static_cast<iglu_family>(family), number, channel_dim, keep_output}, x, up, sigma);
        torch::autograd::set_history(y, node);
        if (keep_output) node->x = SavedVariable(y, true);
    }
    return y;
}

// y over x.  Recorded only where the output is what is kept.
void overwrite(const Options &options, const Tensor &x, const OptionalTensor &sigma) {
    RECORD_FUNCTION("iglu::value_", c10::ArrayRef<const c10::IValue>{});
    const bool records = is_recorded(x, std::nullopt, sigma);
    torch::autograd::check_inplace(x, records);
    decltype(IgluBackward::create()) node;
    if (records) node = record(options, x, std::nullopt, sigma);
    {
        at::AutoDispatchBelowADInplaceOrView below;
        forward_into(options, x, std::nullopt, sigma, read_inputs(options, x, std::nullopt), x.data_ptr());
    }
    x.unsafeGetTensorImpl()->bump_version();
    if (records) {
        torch::autograd::rebase_history(torch::autograd::variable_list{x}, node);
        node->x = SavedVariable(x, true, x.is_view());
    }
}

// -- called from Python ------------------------------------------------------------------------------

// Reads sigma; false where it is nothing for these kernels.
bool read_sigma(PyObject *object, const Tensor &x, double &number, OptionalTensor &sigma) {
    if (PyFloat_CheckExact(object)) {
        number = PyFloat_AS_DOUBLE(object);
    } else if (PyLong_CheckExact(object)) {
        number = PyLong_AsDouble(object);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
    } else if (THPVariable_CheckExact(object)) {
        sigma = THPVariable_Unpack(object);
        return true;
    } else {
        return false;
    }
    // 0 and inf are other functions; a sigma that overflows float32 is for the plain path to judge.
    const double largest = x.scalar_type() == at::kDouble ? std::numeric_limits<double>::max()
                                                          : std::numeric_limits<float>::max();
    return number > 0 && number <= largest;
}

int64_t read_family(PyObject *object) {
    if (!PyUnicode_Check(object)) return -1;
    for (int64_t family = 0; family < IGLU_FAMILIES; ++family) {
        if (PyUnicode_CompareWithASCIIString(object, kFamilies[family]) == 0) return family;
    }
    return -1;
}

// Below this the loop is over before another thread could make use of the interpreter.
constexpr int64_t kWorthReleasing = 4096;

template <iglu_operation operation>
PyObject *serve(PyObject *x_object, PyObject *up_object, PyObject *sigma_object, PyObject *approximate,
                PyObject *channel_dim, bool inplace, bool save_output) {
    if (!THPVariable_CheckExact(x_object) || !is_plain_eager()) Py_RETURN_NONE;
    const Tensor &x = THPVariable_Unpack(x_object);
    OptionalTensor up, sigma;
    if (up_object != nullptr && up_object != Py_None) {
        if (!THPVariable_CheckExact(up_object)) Py_RETURN_NONE;
        up = THPVariable_Unpack(up_object);
    }
    Options options{operation, IGLU_EXACT, 0.0, 1, false};
    const int64_t family = read_family(approximate);
    if (family < 0 || !PyLong_Check(channel_dim) || !read_sigma(sigma_object, x, options.number, sigma)) {
        Py_RETURN_NONE;
    }
    options.family = static_cast<iglu_family>(family);
    options.keep_output = family == IGLU_RATIONAL && (inplace || save_output);
    if (save_output && !options.keep_output) Py_RETURN_NONE;
    if (sigma) options.channel_dim = PyLong_AsLongLong(channel_dim);
    if (PyErr_Occurred()) return nullptr;
    if (!is_served(options, x, up, sigma)) Py_RETURN_NONE;

    if (inplace) {
        if (x.is_inference() || (is_recorded(x, up, sigma) && !options.keep_output)) Py_RETURN_NONE;
        overwrite(options, x, sigma);
        Py_INCREF(x_object);
        return x_object;
    }
    Tensor y;
    if (x.numel() >= kWorthReleasing) {
        pybind11::gil_scoped_release no_gil;
        y = handle<operation>().call(x, up, sigma, options.number, options.channel_dim, family, options.keep_output);
    } else {
        y = handle<operation>().call(x, up, sigma, options.number, options.channel_dim, family, options.keep_output);
    }
    return THPVariable_Wrap(std::move(y));
}

PyObject *value(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    TORCH_CHECK(count == 6, "value takes x, sigma, approximate, channel_dim, inplace, save_output");
    return serve<IGLU_VALUE>(args[0], nullptr, args[1], args[2], args[3], args[4] == Py_True, args[5] == Py_True);
    END_HANDLE_TH_ERRORS
}

PyObject *gate(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    TORCH_CHECK(count == 4, "gate takes x, sigma, approximate, channel_dim");
    return serve<IGLU_GATE>(args[0], nullptr, args[1], args[2], args[3], false, false);
    END_HANDLE_TH_ERRORS
}

PyObject *glu(PyObject *, PyObject *const *args, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    TORCH_CHECK(count == 5, "glu takes gate, up, sigma, approximate, channel_dim");
    return serve<IGLU_GLU>(args[0], args[1], args[2], args[3], args[4], false, false);
    END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"value", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(value)), METH_FASTCALL, nullptr},
    {"gate", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(gate)), METH_FASTCALL, nullptr},
    {"glu", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(glu)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "iglu._entry", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

TORCH_LIBRARY(iglu, library) {
    for (const char *name : kNames) {
        library.def((std::string(name) +
                     "(Tensor x, Tensor? up, Tensor? sigma, float number, int channel_dim, int family, "
                     "bool keep_output=False) -> Tensor")
                        .c_str());
    }
}

TORCH_LIBRARY_IMPL(iglu, CPU, library) {
    library.impl("value", cpu_kernel<IGLU_VALUE>);
    library.impl("gate", cpu_kernel<IGLU_GATE>);
    library.impl("glu", cpu_kernel<IGLU_GLU>);
}

TORCH_LIBRARY_IMPL(iglu, AutogradCPU, library) {
    library.impl("value", autograd_kernel<IGLU_VALUE>);
    library.impl("gate", autograd_kernel<IGLU_GATE>);
    library.impl("glu", autograd_kernel<IGLU_GLU>);
}

// Read from the file before it is loaded (iglu/kernels/compiled.py).
extern "C" __attribute__((used)) const char iglu_entry_mark[] = "iglu entry for torch " IGLU_BUILT_FOR ";";

PyMODINIT_FUNC PyInit__entry() {
    loops = static_cast<const iglu_table *>(PyCapsule_Import(IGLU_TABLE_CAPSULE, 0));
    if (loops == nullptr) return nullptr;
    if (loops->version != IGLU_TABLE_VERSION) {
        PyErr_Format(PyExc_ImportError, "iglu._entry was built for version %d of the loops, iglu._kernels has %d",
                     IGLU_TABLE_VERSION, loops->version);
        return nullptr;
    }
    return PyModule_Create(&definition);
}
