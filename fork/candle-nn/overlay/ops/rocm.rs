//! The fused operations of this module on AMD GPUs.

use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm;
use candle::{Layout, Result, RocmStorage, Shape};
use candle_rocm::ops::{norm, softmax, unary};
use candle_rocm::Buffer;

use super::{LayerNorm, RmsNorm, Sigmoid, SoftmaxLastDim};

mod sdpa;
pub(super) use sdpa::sdpa;

/// All of these give a contiguous tensor of the input's shape and dtype.
fn like(x: &RocmStorage, l: &Layout, buffer: Buffer) -> (RocmStorage, Shape) {
    let shape = l.shape().clone();
    (x.with_buffer(buffer, x.dtype(), shape.elem_count()), shape)
}

fn gpu(x: &RocmStorage) -> &candle_rocm::Device {
    x.buffer().device()
}

pub(super) fn sigmoid(_: &Sigmoid, x: &RocmStorage, l: &Layout) -> Result<(RocmStorage, Shape)> {
    let view = x.view(l, "sigmoid")?;
    let buffer = unary::unary(gpu(x), unary::UnaryOp::Sigmoid, &view)?;
    Ok(like(x, l, buffer))
}

pub(super) fn softmax_last_dim(
    _: &SoftmaxLastDim,
    x: &RocmStorage,
    l: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let buffer = softmax::softmax_last_dim(gpu(x), &x.view(l, "softmax-last-dim")?)?;
    Ok(like(x, l, buffer))
}

pub(super) fn rms_norm(
    op: &RmsNorm,
    x: &RocmStorage,
    l: &Layout,
    weight: &RocmStorage,
    weight_l: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "rms-norm";
    let (view, weight) = (x.view(l, OP)?, weight.view(weight_l, OP)?);
    let buffer = norm::rms_norm(gpu(x), &view, &weight, op.eps)?;
    Ok(like(x, l, buffer))
}

pub(super) fn layer_norm(
    op: &LayerNorm,
    x: &RocmStorage,
    l: &Layout,
    weight: &RocmStorage,
    weight_l: &Layout,
    bias: &RocmStorage,
    bias_l: &Layout,
) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "layer-norm";
    let (view, weight, bias) = (
        x.view(l, OP)?,
        weight.view(weight_l, OP)?,
        bias.view(bias_l, OP)?,
    );
    let buffer = norm::layer_norm(gpu(x), &view, &weight, Some(&bias), op.eps)?;
    Ok(like(x, l, buffer))
}
