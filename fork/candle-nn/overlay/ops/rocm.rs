//! The fused operations of this module on AMD GPUs.

use candle::backend::BackendStorage;
use candle::op::{Add, Tanh};
use candle::rocm_backend::candle_rocm;
use candle::{DType, Device, Layout, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::{nn, unary};
use candle_rocm::Buffer;

use super::{LayerNorm, RmsNorm, Sdpa, Sigmoid, SoftmaxLastDim};

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
    let buffer = nn::softmax_last_dim(gpu(x), &x.view(l, "softmax-last-dim")?)?;
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
    let buffer = nn::rms_norm(gpu(x), &view, &weight, op.eps)?;
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
    let buffer = nn::layer_norm(gpu(x), &view, &weight, Some(&bias), op.eps)?;
    Ok(like(x, l, buffer))
}

/// softmax(q kᵀ scale) v as products with a softmax in between, in f32 (f64 for f64). Queries of the heads that share keys are
/// rows of one product, so keys and values are never repeated.
pub(super) fn sdpa(
    op: &Sdpa,
    q: &RocmStorage,
    q_l: &Layout,
    k: &RocmStorage,
    k_l: &Layout,
    v: &RocmStorage,
    v_l: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let (batch, heads, rows, width) = q_l.shape().dims4()?;
    let (_, kv_heads, columns, _) = k_l.shape().dims4()?;
    let out_width = v_l.dim(3)?;
    let fits = k_l.dims() == [batch, kv_heads, columns, width]
        && v_l.dims() == [batch, kv_heads, columns, out_width]
        && kv_heads > 0
        && heads % kv_heads == 0;
    if !fits || op.do_causal && rows > columns {
        candle::bail!(
            "sdpa: q {:?}, k {:?} and v {:?} do not fit together (causal: {})",
            q_l.dims(),
            k_l.dims(),
            v_l.dims(),
            op.do_causal
        )
    }
    let dtype = q.dtype();
    let wide = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let (q, k, v) = (
        q.to_dtype(q_l, wide)?,
        k.to_dtype(k_l, wide)?,
        v.to_dtype(v_l, wide)?,
    );
    let shared_rows = heads / kv_heads * rows;
    let packed = |rows, columns| Layout::contiguous((batch, kv_heads, rows, columns));
    let groups = batch * kv_heads;
    let by_head = Layout::contiguous((batch, heads, rows, columns));

    let keys = packed(columns, width).transpose(2, 3)?;
    let product = (groups, shared_rows, columns, width);
    let mut scores = q.matmul(&k, product, &packed(shared_rows, width), &keys)?;
    let cap = f64::from(op.softcapping);
    if cap == 1. {
        scores = scores.affine(&by_head, op.scale.into(), 0.)?;
    } else {
        scores = scores.affine(&by_head, f64::from(op.scale) / cap, 0.)?;
        scores = scores.unary_impl::<Tanh>(&by_head)?;
        scores = scores.affine(&by_head, cap, 0.)?;
    }
    let causal = op
        .do_causal
        .then(|| causal_mask(rows, columns))
        .transpose()?;
    for mask in op.mask.iter().chain(&causal) {
        let mask = mask
            .to_device(&Device::Rocm(q.device().clone()))?
            .to_dtype(wide)?;
        let mask = mask.broadcast_as(by_head.shape())?;
        let (storage, layout) = mask.storage_and_layout();
        let Storage::Rocm(mask) = &*storage else {
            candle::bail!("sdpa: the mask is not on the device of q")
        };
        scores = scores.binary_impl::<Add>(mask, &by_head, layout)?;
    }
    let weights = nn::softmax_last_dim(gpu(&q), &scores.view(&by_head, "sdpa")?)?;
    let weights = q.with_buffer(weights, wide, by_head.shape().elem_count());
    let product = (groups, shared_rows, out_width, columns);
    let out = weights.matmul(
        &v,
        product,
        &packed(shared_rows, columns),
        &packed(columns, out_width),
    )?;
    let out_l = Layout::contiguous((batch, heads, rows, out_width));
    Ok((out.to_dtype(&out_l, dtype)?, out_l.shape().clone()))
}

/// 0 where the row may look, minus infinity elsewhere; the last row sees everything.
fn causal_mask(rows: usize, columns: usize) -> Result<Tensor> {
    let hidden = |row: usize, column: usize| column > row + columns - rows;
    let mask = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| hidden(row, column)))
        .map(|hidden| if hidden { f32::NEG_INFINITY } else { 0. })
        .collect::<Vec<_>>();
    Tensor::from_vec(mask, (rows, columns), &Device::Cpu)
}
