//! Scaled dot product attention in training.

use super::{fits, gradient, storage, HALVES_AND_F32};
use candle::backend::BackendStorage;
use candle::rocm_backend::candle_rocm::{self, Buffer};
use candle::{CpuStorage, CustomOp3, Layout, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::attention::{
    attention, attention_backward, Attended, Attention, Order, Window,
};
use std::sync::OnceLock;

const OP: &str = "sdpa";
/// Head sizes that the kernels of gradients take: multiples of 8 up to this.
const MAX_HEAD: usize = 512;

/// What [`crate::ops::sdpa`] computes with operands that take part in a graph, if the kernels of gradients take them.
pub(crate) fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
    cap: Option<f32>,
) -> Result<Option<Tensor>> {
    let width = |x: &Tensor| x.dims().last().copied().unwrap_or(0);
    let taken = |width: usize| width != 0 && width % 8 == 0 && width <= MAX_HEAD;
    let fixed_mask = mask.is_none_or(|mask| !mask.track_op());
    if !(fits(&[q, k, v], &HALVES_AND_F32) && taken(width(q)) && taken(width(v)) && fixed_mask) {
        return Ok(None);
    }
    let problem = Problem {
        mask: mask.cloned(),
        causal,
        scale,
        cap,
    };
    let op = Tracked {
        problem,
        log_sum_exp: OnceLock::new(),
    };
    q.apply_op3(k, v, op).map(Some)
}

/// Attention but for queries, keys and values.
pub(crate) struct Problem {
    pub mask: Option<Tensor>,
    pub causal: bool,
    pub scale: f32,
    pub cap: Option<f32>,
}

/// A tensor as custom operations receive it.
type Operand<'a> = (&'a RocmStorage, &'a Layout);

impl Problem {
    /// Calls `f` with the problem of the device layer, and gives the shape of the result besides.
    pub fn run<R>(
        &self,
        (q, q_l): Operand,
        (k, k_l): Operand,
        (v, v_l): Operand,
        f: impl FnOnce(&Attention) -> Result<R>,
    ) -> Result<(R, Shape)> {
        let (batch, heads, rows, _) = q_l.shape().dims4()?;
        let out = Shape::from((batch, heads, rows, v_l.dim(3)?));
        let keys = k_l.dim(2)?;
        let mask = match &self.mask {
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
            softcap: self.cap,
            window: if self.causal {
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
                self.scale,
            )
        };
        Ok((f(&problem)?, out))
    }
}

/// Attention whose backward pass finds what the forward pass left.
struct Tracked {
    problem: Problem,
    log_sum_exp: OnceLock<Buffer>,
}

impl CustomOp3 for Tracked {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle::bail!("sdpa: the operands are not on the ROCm device")
    }

    fn rocm_fwd(
        &self,
        q: &RocmStorage,
        q_l: &Layout,
        k: &RocmStorage,
        k_l: &Layout,
        v: &RocmStorage,
        v_l: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        let (attended, shape) = self.problem.run((q, q_l), (k, k_l), (v, v_l), |problem| {
            let problem = Attention {
                log_sum_exp: true,
                ..*problem
            };
            Ok(attention(q.buffer().device(), &problem)?)
        })?;
        let Attended {
            out, log_sum_exp, ..
        } = attended;
        if let Some(log_sum_exp) = log_sum_exp {
            // It is computed once: an operation is applied to its operands alone.
            let _ = self.log_sum_exp.set(log_sum_exp);
        }
        let count = shape.elem_count();
        Ok((q.with_buffer(out, q.dtype(), count), shape))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(log_sum_exp) = self.log_sum_exp.get() else {
            candle::bail!("sdpa: there was no forward pass")
        };
        let ((q_s, q_l), (k_s, k_l)) = (q.storage_and_layout(), k.storage_and_layout());
        let ((v_s, v_l), (out, out_l)) = (v.storage_and_layout(), result.storage_and_layout());
        let (g, g_l) = grad.storage_and_layout();
        let (out, g) = (storage(&out)?.view(out_l, OP)?, storage(&g)?.view(g_l, OP)?);
        let operands = (storage(&q_s)?, storage(&k_s)?, storage(&v_s)?);
        let device = operands.0.buffer().device();
        let (gradients, _) = self.problem.run(
            (operands.0, q_l),
            (operands.1, k_l),
            (operands.2, v_l),
            |problem| {
                let gradients = attention_backward(device, problem, &out, log_sum_exp, &g)?;
                Ok(gradients)
            },
        )?;
        let of = |x: &Tensor, buffer: Buffer| -> Result<Option<Tensor>> {
            x.track_op().then(|| gradient(x, buffer)).transpose()
        };
        Ok((
            of(q, gradients.q)?,
            of(k, gradients.k)?,
            of(v, gradients.v)?,
        ))
    }
}
