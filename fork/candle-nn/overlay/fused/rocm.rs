//! The kernels. Each function gives `None` where plain operations are to be used: other devices and dtypes, or
//! gradients.

use candle::op::BackpropOp;
use candle::rocm_backend::candle_rocm::{self, Buffer};
use candle::{DType, Layout, Result, RocmStorage, Storage, Tensor};
use candle_rocm::ops::gated::{self, Gate};
use candle_rocm::ops::group_norm::{self, GroupNorm};
use candle_rocm::ops::norm;

use crate::Activation;

/// Whether the kernels take these tensors.
fn fits(tensors: &[&Tensor]) -> bool {
    let first = tensors[0];
    first.device().is_rocm()
        && matches!(first.dtype(), DType::F16 | DType::BF16 | DType::F32)
        && tensors.iter().all(|t| {
            t.dtype() == first.dtype() && t.device().same_device(first.device()) && !t.track_op()
        })
}

fn storage(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => candle::bail!("the tensor is not on a ROCm device"),
    }
}

/// A tensor of `like`'s shape with the outcome of an operation on `x`.
fn tensor(x: &RocmStorage, like: &Layout, buffer: Buffer, dtype: DType) -> Tensor {
    let shape = like.shape().clone();
    let storage = x.with_buffer(buffer, dtype, shape.elem_count());
    Tensor::from_storage(Storage::Rocm(storage), shape, BackpropOp::none(), false)
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
    let [sum, normed] = [sum, normed].map(|buffer| tensor(x, x_l, buffer, xs.dtype()));
    Ok(Some((sum, normed)))
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
    let bias = bias.map(Tensor::storage_and_layout);
    let (x, r, w) = (storage(&x)?, storage(&r)?, storage(&w)?);
    let (x_view, r, w) = (x.view(x_l, OP)?, r.view(r_l, OP)?, w.view(w_l, OP)?);
    let bias = match &bias {
        Some((b, b_l)) => Some(storage(b)?.view(b_l, OP)?),
        None => None,
    };
    let device = x.buffer().device();
    let (sum, normed) = norm::add_layer_norm(device, &x_view, &r, &w, bias.as_ref(), eps)?;
    let [sum, normed] = [sum, normed].map(|buffer| tensor(x, x_l, buffer, xs.dtype()));
    Ok(Some((sum, normed)))
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
    Ok(Some(tensor(x, x_l, buffer, xs.dtype())))
}

pub(super) fn gate_mul(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Option<Tensor>> {
    const OP: &str = "gate-mul";
    let kernel = match act {
        Activation::Silu | Activation::Swish => Gate::Silu,
        Activation::Gelu => Gate::GeluErf,
        Activation::NewGelu | Activation::GeluPytorchTanh => Gate::Gelu,
        Activation::Relu => Gate::Relu,
        _ => return Ok(None),
    };
    if !fits(&[gate, up]) || gate.rank() == 0 {
        return Ok(None);
    }
    let ((g, g_l), (u, u_l)) = (gate.storage_and_layout(), up.storage_and_layout());
    let (g, u) = (storage(&g)?, storage(&u)?);
    let device = g.buffer().device();
    let buffer = gated::gate_mul(device, kernel, &g.view(g_l, OP)?, &u.view(u_l, OP)?)?;
    Ok(Some(tensor(g, g_l, buffer, gate.dtype())))
}
