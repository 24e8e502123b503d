//! The kernels. Each function gives `None` where plain operations are to be used: other devices and dtypes.

use candle::op::BackpropOp;
use candle::rocm_backend::candle_rocm::{self, Buffer};
use candle::{DType, Layout, Result, RocmStorage, Storage, Tensor};
use candle_rocm::ops::gated::{self, Gate};
use candle_rocm::ops::group_norm::{self, GroupNorm};
use candle_rocm::ops::{epilogue, gated_backward, group_norm_backward, modulated_norm, norm, rope};

use crate::gradients::rocm::{done, gradient, storage, Backward};
use crate::gradients::{keeps_graph, norm as norm_gradients};
use crate::Activation;

/// Whether the kernels take these tensors.
fn fits(tensors: &[&Tensor]) -> bool {
    let first = tensors[0];
    first.device().is_rocm()
        && matches!(first.dtype(), DType::F16 | DType::BF16 | DType::F32)
        && tensors
            .iter()
            .all(|t| t.dtype() == first.dtype() && t.device().same_device(first.device()))
        && !(keeps_graph() && is_tracked(tensors))
}

fn is_tracked(tensors: &[&Tensor]) -> bool {
    tensors.iter().any(|t| t.track_op())
}

/// A tensor of `like`'s shape with the outcome of the operation `name` on `of`, the first of which is `x`; if one of
/// them takes part in a graph, with the gradients that `backward` makes.
fn tensor(
    name: &'static str,
    of: [&Tensor; 3],
    x: &RocmStorage,
    like: &Layout,
    buffer: Buffer,
    backward: impl FnOnce() -> Backward,
) -> Result<Tensor> {
    let shape = like.shape().clone();
    let storage = x.with_buffer(buffer, of[0].dtype(), shape.elem_count());
    if is_tracked(&of) {
        return done(name, of, storage, shape, backward());
    }
    let storage = Storage::Rocm(storage);
    let none = BackpropOp::none();
    Ok(Tensor::from_storage(storage, shape, none, false))
}

/// The sum and its norm, as one kernel gives them.
fn sum_and_norm(
    [xs, residual, weight]: [&Tensor; 3],
    bias: Option<&Tensor>,
    x: &RocmStorage,
    like: &Layout,
    [sum, normed]: [Buffer; 2],
    (name, eps, centered): (&'static str, f32, bool),
) -> Result<(Tensor, Tensor)> {
    let sum = tensor("add", [xs, residual, residual], x, like, sum, || {
        Box::new(|[x, residual, _], grad| {
            let of = |t: &Tensor| t.track_op().then(|| grad.clone());
            Ok([of(x), of(residual), None])
        })
    })?;
    let of = [&sum, weight, bias.unwrap_or(weight)];
    let with_bias = bias.is_some();
    let normed = tensor(name, of, x, like, normed, || {
        Box::new(move |[sum, weight, bias], grad| {
            let bias = with_bias.then_some(bias);
            let (x, w, b) = norm_gradients(sum, weight, bias, grad, eps, centered)?;
            Ok([x, w, b])
        })
    })?;
    Ok((sum, normed))
}

pub(super) fn add_rms_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<Option<(Tensor, Tensor)>> {
    const OP: &str = "add-rms-norm";
    if !fits(&[xs, residual, weight]) {
        return Ok(None);
    }
    let ((x, x_l), (r, r_l)) = (xs.storage_and_layout(), residual.storage_and_layout());
    let (w, w_l) = weight.storage_and_layout();
    let (x, r, w) = (storage(&x)?, storage(&r)?, storage(&w)?);
    let (x_view, r, w) = (x.view(x_l, OP)?, r.view(r_l, OP)?, w.view(w_l, OP)?);
    let (sum, normed) = norm::add_rms_norm(x.buffer().device(), &x_view, &r, &w, eps)?;
    let of = [xs, residual, weight];
    sum_and_norm(of, None, x, x_l, [sum, normed], (OP, eps, false)).map(Some)
}

pub(super) fn add_layer_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Option<(Tensor, Tensor)>> {
    const OP: &str = "add-layer-norm";
    if !fits(&[xs, residual, weight, bias.unwrap_or(weight)]) {
        return Ok(None);
    }
    let ((x, x_l), (r, r_l)) = (xs.storage_and_layout(), residual.storage_and_layout());
    let (w, w_l) = weight.storage_and_layout();
    let bias_parts = bias.map(Tensor::storage_and_layout);
    let (x, r, w) = (storage(&x)?, storage(&r)?, storage(&w)?);
    let (x_view, r, w) = (x.view(x_l, OP)?, r.view(r_l, OP)?, w.view(w_l, OP)?);
    let b = match &bias_parts {
        Some((b, b_l)) => Some(storage(b)?.view(b_l, OP)?),
        None => None,
    };
    let device = x.buffer().device();
    let (sum, normed) = norm::add_layer_norm(device, &x_view, &r, &w, b.as_ref(), eps)?;
    let of = [xs, residual, weight];
    sum_and_norm(of, bias, x, x_l, [sum, normed], (OP, eps, true)).map(Some)
}

pub(super) fn group_norm(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
    silu: bool,
) -> Result<Option<Tensor>> {
    const OP: &str = "group-norm";
    if !fits(&[xs, weight, bias]) {
        return Ok(None);
    }
    let (x, x_l) = xs.storage_and_layout();
    let ((w, w_l), (b, b_l)) = (weight.storage_and_layout(), bias.storage_and_layout());
    let (x, w, b) = (storage(&x)?, storage(&w)?, storage(&b)?);
    let (x_view, w, b) = (x.view(x_l, OP)?, w.view(w_l, OP)?, b.view(b_l, OP)?);
    let norm = GroupNorm {
        groups,
        eps: eps as f32,
        silu,
    };
    let buffer = group_norm::group_norm(x.buffer().device(), &x_view, &w, &b, norm)?;
    let of = [xs, weight, bias];
    let backward =
        || -> Backward { Box::new(move |of, grad| group_norm_gradients(of, grad, norm)) };
    tensor(OP, of, x, x_l, buffer, backward).map(Some)
}

fn group_norm_gradients(
    [xs, weight, bias]: [&Tensor; 3],
    grad: &Tensor,
    norm: GroupNorm,
) -> Result<[Option<Tensor>; 3]> {
    const OP: &str = "group-norm gradient";
    let ((x, x_l), (g, g_l)) = (xs.storage_and_layout(), grad.storage_and_layout());
    let ((w, w_l), (b, b_l)) = (weight.storage_and_layout(), bias.storage_and_layout());
    let x = storage(&x)?;
    let device = x.buffer().device();
    let (x, g) = (x.view(x_l, OP)?, storage(&g)?.view(g_l, OP)?);
    let (w, b) = (storage(&w)?.view(w_l, OP)?, storage(&b)?.view(b_l, OP)?);
    let gradients = group_norm_backward::group_norm_backward(device, &x, &w, &b, &g, norm)?;
    Ok([
        Some(gradient(xs, gradients.x)?),
        Some(gradient(weight, gradients.weight)?),
        Some(gradient(bias, gradients.bias)?),
    ])
}

/// The activation as kernels have it.
fn kernel_of(act: Activation) -> Option<Gate> {
    match act {
        Activation::Silu | Activation::Swish => Some(Gate::Silu),
        Activation::Gelu => Some(Gate::GeluErf),
        Activation::NewGelu | Activation::GeluPytorchTanh => Some(Gate::Gelu),
        Activation::Relu => Some(Gate::Relu),
        _ => None,
    }
}

/// Whether the kernels without gradients take these tensors.
fn fits_without_gradients(tensors: &[&Tensor]) -> bool {
    fits(tensors) && tensors[0].rank() > 0 && !is_tracked(tensors)
}

/// The view of a tensor that may be absent.
macro_rules! view {
    ($parts:expr, $op:expr) => {
        match &$parts {
            Some((part, layout)) => Some(storage(part)?.view(layout, $op)?),
            None => None,
        }
    };
}

pub(super) fn modulated_norm(
    xs: &Tensor,
    scale: &Tensor,
    shift: Option<&Tensor>,
    eps: f32,
) -> Result<Option<Tensor>> {
    const OP: &str = "modulated-norm";
    if !fits_without_gradients(&[xs, scale, shift.unwrap_or(scale)]) {
        return Ok(None);
    }
    let scale = scale.broadcast_as(xs.shape())?;
    let shift = shift.map(|shift| shift.broadcast_as(xs.shape()));
    let shift = shift.transpose()?;
    let ((x, x_l), (s, s_l)) = (xs.storage_and_layout(), scale.storage_and_layout());
    let shift = shift.as_ref().map(Tensor::storage_and_layout);
    let (x, s) = (storage(&x)?, storage(&s)?.view(s_l, OP)?);
    let (x_view, shift) = (x.view(x_l, OP)?, view!(shift, OP));
    let device = x.buffer().device();
    let out = modulated_norm::modulated_norm(device, &x_view, &s, shift.as_ref(), eps)?;
    untracked(xs, x, out).map(Some)
}

pub(super) fn epilogue(product: &Tensor, after: &super::Epilogue) -> Result<Option<Tensor>> {
    const OP: &str = "epilogue";
    let activation = match after.activation {
        None => None,
        Some(act) => match kernel_of(act) {
            None => return Ok(None),
            kernel => kernel,
        },
    };
    let of = [
        product,
        after.bias.unwrap_or(product),
        after.gate.unwrap_or(product),
        after.residual.unwrap_or(product),
    ];
    if !fits_without_gradients(&of) {
        return Ok(None);
    }
    let shared = |t: Option<&Tensor>| t.map(|t| t.broadcast_as(product.shape())).transpose();
    let (bias, gate) = (shared(after.bias)?, shared(after.gate)?);
    let (x, x_l) = product.storage_and_layout();
    let bias = bias.as_ref().map(Tensor::storage_and_layout);
    let gate = gate.as_ref().map(Tensor::storage_and_layout);
    let residual = after.residual.map(Tensor::storage_and_layout);
    let (x, bias) = (storage(&x)?, view!(bias, OP));
    let (gate, residual) = (view!(gate, OP), view!(residual, OP));
    let after = epilogue::Epilogue {
        bias: bias.as_ref(),
        activation,
        gate: gate.as_ref(),
        residual: residual.as_ref(),
    };
    let out = epilogue::epilogue(x.buffer().device(), &x.view(x_l, OP)?, &after)?;
    untracked(product, x, out).map(Some)
}

pub(super) fn rope_i_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Option<Tensor>> {
    const OP: &str = "rope-i-thd";
    if !fits_without_gradients(&[xs, cos, sin]) {
        return Ok(None);
    }
    let ((x, x_l), (c, c_l)) = (xs.storage_and_layout(), cos.storage_and_layout());
    let (s, s_l) = sin.storage_and_layout();
    let (x, c, s) = (storage(&x)?, storage(&c)?, storage(&s)?);
    let (x_view, c, s) = (x.view(x_l, OP)?, c.view(c_l, OP)?, s.view(s_l, OP)?);
    let out = rope::rope_i_thd(x.buffer().device(), &x_view, &c, &s)?;
    untracked(xs, x, out).map(Some)
}

/// A tensor like `like`, `x` its storage, that takes no part in a graph.
fn untracked(like: &Tensor, x: &RocmStorage, out: Buffer) -> Result<Tensor> {
    let storage = Storage::Rocm(x.with_buffer(out, like.dtype(), like.elem_count()));
    Ok(Tensor::from_storage(
        storage,
        like.shape().clone(),
        BackpropOp::none(),
        false,
    ))
}

pub(super) fn gate_mul(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Option<Tensor>> {
    const OP: &str = "gate-mul";
    let Some(kernel) = kernel_of(act) else {
        return Ok(None);
    };
    if !fits(&[gate, up]) || gate.rank() == 0 {
        return Ok(None);
    }
    let ((g, g_l), (u, u_l)) = (gate.storage_and_layout(), up.storage_and_layout());
    let (g, u) = (storage(&g)?, storage(&u)?);
    let device = g.buffer().device();
    let buffer = gated::gate_mul(device, kernel, &g.view(g_l, OP)?, &u.view(u_l, OP)?)?;
    let backward = || -> Backward {
        Box::new(move |[gate, up, _], grad| gate_mul_gradients(kernel, gate, up, grad))
    };
    tensor(OP, [gate, up, up], g, g_l, buffer, backward).map(Some)
}

fn gate_mul_gradients(
    kernel: Gate,
    gate: &Tensor,
    up: &Tensor,
    grad: &Tensor,
) -> Result<[Option<Tensor>; 3]> {
    const OP: &str = "gate-mul gradient";
    let ((g, g_l), (u, u_l)) = (gate.storage_and_layout(), up.storage_and_layout());
    let (grad, grad_l) = grad.storage_and_layout();
    let (g, u) = (storage(&g)?, storage(&u)?.view(u_l, OP)?);
    let grad = storage(&grad)?.view(grad_l, OP)?;
    let device = g.buffer().device();
    let backward = gated_backward::gate_mul_backward;
    let (of_gate, of_up) = backward(device, kernel, &g.view(g_l, OP)?, &u, &grad)?;
    Ok([
        Some(gradient(gate, of_gate)?),
        Some(gradient(up, of_up)?),
        None,
    ])
}
