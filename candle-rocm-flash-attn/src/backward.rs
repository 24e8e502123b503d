//! The backward pass.

use crate::cpu;
use crate::op::FlashAttn;
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::{CpuStorage, CustomOp2, Layout, Result, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::attention::attention_backward;

/// The gradients of queries, keys and values, given the result and its gradient.
pub(crate) fn gradients(
    op: &FlashAttn,
    of: [&Tensor; 3],
    result: &Tensor,
    grad: &Tensor,
) -> Result<[Tensor; 3]> {
    let [(q, q_l), (k, k_l), (v, v_l)] = of.map(Tensor::storage_and_layout);
    let (g, g_l) = grad.storage_and_layout();
    let storages = match (&*q, &*k, &*v, &*g) {
        (Storage::Cpu(q), Storage::Cpu(k), Storage::Cpu(v), Storage::Cpu(g)) => {
            cpu::backward(op, (q, q_l), (k, k_l), (v, v_l), (g, g_l))?.map(Storage::Cpu)
        }
        (Storage::Rocm(q), Storage::Rocm(k), Storage::Rocm(v), Storage::Rocm(g)) => {
            on_device(op, [(q, q_l), (k, k_l), (v, v_l)], result, (g, g_l))?.map(Storage::Rocm)
        }
        _ => candle::bail!("flash-attn: operands and gradient are on different devices"),
    };
    let mut gradients = storages.into_iter().zip(of).map(|(storage, x)| {
        let none = BackpropOp::none();
        let gradient = Tensor::from_storage(storage, x.shape().clone(), none, false);
        match keeps_graph() {
            true => gradient.apply_op2(x, Once),
            false => Ok(gradient),
        }
    });
    let mut next = || gradients.next().expect("there are three");
    Ok([next()?, next()?, next()?])
}

fn on_device(
    op: &FlashAttn,
    [q, k, v]: [crate::op::Operand; 3],
    result: &Tensor,
    (g, g_l): crate::op::Operand,
) -> Result<[RocmStorage; 3]> {
    const OP: &str = "flash-attn gradient";
    let (out, out_l) = result.storage_and_layout();
    let (Storage::Rocm(out), Some(log_sum_exp)) = (&*out, op.log_sum_exp.get()) else {
        candle::bail!("flash-attn: there was no forward pass on the device")
    };
    let (out, grad) = (out.view(out_l, OP)?, g.view(g_l, OP)?);
    let device = q.0.buffer().device();
    let gradients = op.with_problem(q, k, v, |problem| {
        let gradients = attention_backward(device, problem, &out, log_sum_exp, &grad)?;
        Ok(gradients)
    })?;
    let of = |(x, layout): crate::op::Operand, buffer| {
        x.with_buffer(buffer, x.dtype(), layout.shape().elem_count())
    };
    Ok([of(q, gradients.q), of(k, gradients.k), of(v, gradients.v)])
}

/// Whether candle keeps the graph of gradients, to differentiate them again.
fn keeps_graph() -> bool {
    std::env::var("CANDLE_GRAD_DO_NOT_DETACH").is_ok_and(|s| !s.is_empty() && s != "0")
}

/// A gradient that has none itself: `backward` through it is an error that says so.
struct Once;

impl CustomOp2 for Once {
    fn name(&self) -> &'static str {
        "flash-attn gradient"
    }

    fn cpu_fwd(
        &self,
        gradient: &CpuStorage,
        layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((gradient.try_clone(layout)?, layout.shape().clone()))
    }

    fn rocm_fwd(
        &self,
        gradient: &RocmStorage,
        layout: &Layout,
        _: &RocmStorage,
        _: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        Ok((gradient.try_clone(layout)?, layout.shape().clone()))
    }
}
