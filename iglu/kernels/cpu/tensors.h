// Calls of the loops on tensors of torch: which tensors are served, how they lie in memory, and the forward
// and backward pass by themselves, of which autograd knows nothing.  For entry.cpp alone.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/WrapDimUtils.h>

#include "loops.h"

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

const iglu_table *loops = nullptr;

// What one call consists of beside its tensors.
struct Options {
    iglu_operation operation;
    iglu_family family;
    double number;        // sigma where it is no tensor
    int64_t channel_dim;  // of a sigma with more than one value
    bool keep_output;     // for the backward pass, in the place of x
};

// -- which tensors are served ------------------------------------------------------------------------

bool is_ordinary(const Tensor &t) {
    constexpr c10::DispatchKeySet ordinary(
        {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
         c10::DispatchKey::AutocastCPU});
    // Taking keys away from a set leaves its backend bits, so functionality alone is compared.
    return t.device().is_cpu() && t.layout() == at::kStrided &&
        (t.key_set() - ordinary).highestFunctionalityKey() == c10::DispatchKey::Undefined &&
        !t._fw_grad(0).defined();
}

std::optional<iglu_dtype> loop_dtype(const Tensor &t) {
    switch (t.scalar_type()) {
        case at::kFloat: return IGLU_F32;
        case at::kDouble: return IGLU_F64;
        case at::kBFloat16: return IGLU_BF16;
        case at::kHalf: return IGLU_F16;
        default: return std::nullopt;
    }
}

// Whether no mode or transform of torch wants to see this call.
bool is_plain_eager() {
    constexpr c10::DispatchKeySet usual(
        {c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCPU,
         c10::DispatchKey::AutocastCUDA});
    const auto included = c10::impl::tls_local_dispatch_key_set().included_;
    return at::impl::PythonTorchFunctionTLS::stack_len() == 0 && (included - usual).empty();
}

// -- layouts -----------------------------------------------------------------------------------------

// A tensor as rows of dense elements: one row if it is dense in any order of its dimensions.
struct Rows {
    int64_t rows, width, step;
};

// The rows of a tensor that is contiguous but for the distance from one last dimension to the next.
std::optional<Rows> rows_of_last_dimension(const Tensor &t) {
    if (t.dim() == 0 || t.stride(-1) != 1) return std::nullopt;
    const int64_t width = t.size(-1);
    if (width == 0) return std::nullopt;
    const int64_t rows = t.numel() / width;
    int64_t step = width, expected = -1;
    for (int64_t d = t.dim() - 2; d >= 0; --d) {
        if (t.size(d) == 1) continue;
        if (expected < 0) step = t.stride(d);
        else if (t.stride(d) != expected) return std::nullopt;
        expected = t.stride(d) * t.size(d);
    }
    return Rows{rows, width, step};
}

// sigma of a call: the number, or the tensor's values as doubles with the place of the channels.
struct Scale {
    Tensor values;  // keeps the doubles alive
    int64_t channels = 0, inner = 1;
};

void set_sigma(iglu_call &call, Scale &scale, const Tensor &x, const OptionalTensor &sigma,
               const Options &options, bool row_major) {
    if (!sigma) {
        call.sigma = options.number;
        return;
    }
    at::NoGradGuard no_grad;
    scale.values = sigma->detach().to(at::kDouble).contiguous();
    if (scale.values.numel() == 1) {
        call.sigma = *scale.values.const_data_ptr<double>();
        return;
    }
    const int64_t dim = at::maybe_wrap_dim(options.channel_dim, x.dim());
    scale.channels = scale.values.numel();
    if (row_major) {
        for (int64_t d = dim + 1; d < x.dim(); ++d) scale.inner *= x.size(d);
    } else {
        // In dense memory the stride of a dimension is the number of elements that vary faster.
        scale.inner = x.stride(dim);
    }
    call.sigmas = scale.values.const_data_ptr<double>();
    call.channels = scale.channels;
    call.inner = scale.inner;
}

void run(const Options &options, const Tensor &x, const iglu_call &call) {
    const int status = loops->run(options.operation, options.family, *loop_dtype(x), &call);
    TORCH_CHECK(status == 0, "iglu: out of memory in a native kernel");
}

Options backward(Options options) {
    options.operation = options.keep_output
        ? IGLU_OUTPUT_BACKWARD
        : static_cast<iglu_operation>(options.operation - IGLU_VALUE + IGLU_VALUE_BACKWARD);
    return options;
}

// The shape of gate and up where they are the halves of one packed tensor.
std::vector<int64_t> half_shape(const Tensor &packed) {
    auto shape = packed.sizes().vec();
    shape.back() /= 2;
    return shape;
}

void *offset(void *start, const Tensor &t, int64_t elements) {
    return static_cast<char *>(start) + elements * static_cast<int64_t>(t.element_size());
}

// x, and up of a pair, as the loops see them, and the shape of the result.
struct Inputs {
    Rows x, up;
    const void *x_data, *up_data;
    std::vector<int64_t> shape;
    bool row_major;
};

Inputs read_inputs(const Options &options, const Tensor &x, const OptionalTensor &up) {
    const Rows dense{1, x.numel(), 0};
    if (options.operation != IGLU_GLU) {
        return {dense, dense, x.const_data_ptr(), nullptr, x.sizes().vec(), false};
    }
    if (!up) {  // packed
        const Rows packed = *rows_of_last_dimension(x);
        const Rows half{packed.rows, packed.width / 2, packed.step};
        auto *data = const_cast<void *>(x.const_data_ptr());
        return {half, half, data, offset(data, x, half.width), half_shape(x), true};
    }
    if (x.is_non_overlapping_and_dense() && x.strides() == up->strides()) {
        return {dense, dense, x.const_data_ptr(), up->const_data_ptr(), x.sizes().vec(), false};
    }
    return {*rows_of_last_dimension(x), *rows_of_last_dimension(*up), x.const_data_ptr(), up->const_data_ptr(),
            x.sizes().vec(), true};
}

iglu_call call_on(const Inputs &inputs) {
    iglu_call call = {};
    call.rows = inputs.x.rows;
    call.width = inputs.x.width;
    call.x = inputs.x_data;
    call.x_step = inputs.x.step;
    call.up = inputs.up_data;
    call.up_step = inputs.up.step;
    return call;
}

bool is_served(const Options &options, const Tensor &x, const OptionalTensor &up, const OptionalTensor &sigma) {
    if (x.numel() == 0 || !is_ordinary(x) || !loop_dtype(x)) return false;
    if (sigma) {
        if (!is_ordinary(*sigma) || !loop_dtype(*sigma) || sigma->dim() > 1 || sigma->numel() == 0) return false;
        if (sigma->numel() > 1) {
            const int64_t dim = options.channel_dim < 0 ? options.channel_dim + x.dim() : options.channel_dim;
            if (dim < 0 || dim >= x.dim()) return false;
            const bool halved = options.operation == IGLU_GLU && !up && dim == x.dim() - 1;
            if (sigma->numel() * (halved ? 2 : 1) != x.size(dim)) return false;
        }
    }
    if (options.operation != IGLU_GLU) return x.is_non_overlapping_and_dense();
    if (!up) return x.is_contiguous() && x.dim() > 0 && x.size(-1) % 2 == 0;
    if (!is_ordinary(*up) || up->scalar_type() != x.scalar_type() || up->sizes() != x.sizes()) return false;
    return (x.is_non_overlapping_and_dense() && x.strides() == up->strides()) ||
        (rows_of_last_dimension(x) && rows_of_last_dimension(*up));
}

// -- forward -----------------------------------------------------------------------------------------

void forward_into(const Options &options, const Tensor &x, const OptionalTensor &up,
                  const OptionalTensor &sigma, const Inputs &inputs, void *y) {
    iglu_call call = call_on(inputs);
    Scale scale;
    call.y = y;
    call.y_step = inputs.x.width;
    const Tensor shaped = inputs.row_major && !up ? x.narrow(-1, 0, inputs.x.width) : x;
    set_sigma(call, scale, shaped, sigma, options, inputs.row_major);
    run(options, x, call);
}

Tensor forward_cpu(const Options &options, const Tensor &x, const OptionalTensor &up,
                   const OptionalTensor &sigma) {
    const Inputs inputs = read_inputs(options, x, up);
    Tensor y = inputs.row_major ? at::empty(inputs.shape, x.options())
        : x.is_contiguous()     ? at::detail::empty_cpu(x.sizes(), x.scalar_type(), false, std::nullopt)
                                : at::empty_like(x);
    forward_into(options, x, up, sigma, inputs, y.data_ptr());
    return y;
}

// -- backward ----------------------------------------------------------------------------------------

struct Gradients {
    Tensor x, up, sigma;
};

// The gradient in the order of the memory of the output, or as one value for all of it.
struct Upstream {
    Tensor tensor;
    bool is_one_value;
};

Upstream read_upstream(const Tensor &grad, at::IntArrayRef strides, bool row_major) {
    bool is_expanded = true;
    for (int64_t d = 0; d < grad.dim(); ++d) is_expanded &= grad.size(d) == 1 || grad.stride(d) == 0;
    if (is_expanded) return {grad, true};
    if (row_major ? grad.is_contiguous() : grad.strides() == strides) return {grad, false};
    if (row_major) return {grad.contiguous(), false};
    Tensor copy = at::empty_strided(grad.sizes(), strides, grad.options());
    copy.copy_(grad);
    return {copy, false};
}

Gradients backward_cpu(const Options &options, const Tensor &grad, const Tensor &x, const OptionalTensor &up,
                       const OptionalTensor &sigma, bool needs_sigma) {
    const Inputs inputs = read_inputs(options, x, up);
    const Upstream upstream = read_upstream(grad, x.strides(), inputs.row_major);
    iglu_call call = call_on(inputs);
    Scale scale;
    call.grad = upstream.tensor.const_data_ptr();
    call.grad_step = inputs.x.width;
    call.grad_is_one_value = upstream.is_one_value;

    Gradients result;
    const bool is_packed = options.operation == IGLU_GLU && !up;
    if (inputs.row_major && !is_packed) {
        result.x = at::empty(x.sizes(), x.options());
        result.up = at::empty(x.sizes(), x.options());
    } else {
        result.x = at::empty_like(x);
        if (up) result.up = at::empty_like(*up);
    }
    call.grad_x = result.x.data_ptr();
    call.grad_x_step = is_packed ? 2 * inputs.x.width : inputs.x.width;
    if (up) {
        call.grad_up = result.up.data_ptr();
        call.grad_up_step = inputs.x.width;
    } else if (is_packed) {
        call.grad_up = offset(call.grad_x, x, inputs.x.width);
        call.grad_up_step = call.grad_x_step;
    }
    const Tensor shaped = is_packed ? x.narrow(-1, 0, inputs.x.width) : x;
    set_sigma(call, scale, shaped, sigma, options, inputs.row_major);
    Tensor sums;
    if (needs_sigma) {
        sums = at::zeros({std::max<int64_t>(scale.channels, 1)}, at::kDouble);
        call.by_sigma = sums.data_ptr<double>();
    }
    run(backward(options), x, call);
    if (needs_sigma) result.sigma = sums.to(sigma->scalar_type()).reshape(sigma->sizes());
    return result;
}

}  // namespace
