//! Scaled dot product attention.

use super::gpu;
use crate::gradients::rocm::Problem;
use crate::ops::Sdpa;
use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm;
use candle::{Layout, Result, RocmStorage, Shape};
use candle_rocm::ops::attention::attention;

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
    let problem = Problem {
        mask: op.mask.clone(),
        causal: op.do_causal,
        scale: op.scale,
        // candle's way to say that there is no bound.
        cap: (op.softcapping != 1.0).then_some(op.softcapping),
    };
    let (done, out) = problem.run((q, q_l), (k, k_l), (v, v_l), |problem| {
        Ok(attention(gpu(q), problem)?)
    })?;
    let count = out.elem_count();
    Ok((q.with_buffer(done.out, q.dtype(), count), out))
}
