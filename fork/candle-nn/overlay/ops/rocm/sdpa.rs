//! Scaled dot product attention.

use super::gpu;
use crate::ops::Sdpa;
use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm;
use candle::{Layout, Result, RocmStorage, Shape, Storage};
use candle_rocm::ops::attention::{attention, Attention, Order, Window};

const OP: &str = "sdpa";

/// `softmax(cap tanh(q kᵀ scale / cap) + mask) v`, of f16, bf16, f32 or f64, without the matrix of scores (f64
/// excepted, and head sizes that are no multiple of 8). The last row sees the last key under a causal mask; a row that
/// sees none gives zeros.
pub(in super::super) fn sdpa(
    op: &Sdpa,
    q: &RocmStorage,
    q_l: &Layout,
    k: &RocmStorage,
    k_l: &Layout,
    v: &RocmStorage,
    v_l: &Layout,
) -> Result<(RocmStorage, Shape)> {
    let (batch, heads, rows, _) = q_l.shape().dims4()?;
    let out = Shape::from((batch, heads, rows, v_l.dim(3)?));
    let keys = k_l.dim(2)?;
    let mask = match &op.mask {
        Some(mask) => Some(mask.broadcast_as((batch, heads, rows, keys))?),
        None => None,
    };
    let mask = mask.as_ref().map(|mask| mask.storage_and_layout());
    let mask = match &mask {
        Some((storage, layout)) => match &**storage {
            Storage::Rocm(storage) => Some(storage.view(layout, OP)?),
            _ => candle::bail!("sdpa: the mask must be on the device of q"),
        },
        None => None,
    };
    // The device layer has rows before heads.
    let swapped = [q_l, k_l, v_l].map(|layout| layout.transpose(1, 2));
    let [q_l, k_l, v_l] = swapped;
    let (q_l, k_l, v_l) = (q_l?, k_l?, v_l?);
    let problem = Attention {
        // candle's way to say that there is no bound.
        softcap: (op.softcapping != 1.0).then_some(op.softcapping),
        window: if op.do_causal {
            Window::CAUSAL
        } else {
            Window::default()
        },
        mask,
        order: Order::HeadsRows,
        ..Attention::new(
            q.view(&q_l, OP)?,
            k.view(&k_l, OP)?,
            v.view(&v_l, OP)?,
            op.scale,
        )
    };
    let done = attention(gpu(q), &problem)?;
    let count = out.elem_count();
    Ok((q.with_buffer(done.out, q.dtype(), count), out))
}
