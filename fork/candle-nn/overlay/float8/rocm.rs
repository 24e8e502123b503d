//! The product on ROCm devices: one kernel, or hipBLASLt where that is chosen.

use candle::op::BackpropOp;
use candle::rocm_backend::candle_rocm::{blas, ops::scaled::Scales, DType as DeviceDType};
use candle::{DType, Result, Storage, Tensor, D};

use super::{Kind, Problem, Scale};
use crate::gradients::rocm::storage;

/// `None` on other devices.
pub(super) fn scaled_matmul(problem: &Problem) -> Result<Option<Tensor>> {
    const OP: &str = "scaled_matmul";
    if !problem.a.device().is_rocm() {
        return Ok(None);
    }
    // The kernel adds a bias of the result's dtype. Others, and results in f8e4m3, are rounded from f32.
    let out = problem.out_dtype;
    let rounds = out != DType::F8E4M3 && problem.bias.is_none_or(|bias| bias.dtype() == out);
    let to = if rounds { out } else { DType::F32 };
    let device_to = match to {
        DType::F16 => DeviceDType::F16,
        DType::BF16 => DeviceDType::BF16,
        _ => DeviceDType::F32,
    };
    let bias = problem
        .bias
        .map(|bias| bias.detach().to_dtype(to)?.contiguous());
    let bias = bias.transpose()?;
    let b = problem.b.transpose(D::Minus2, D::Minus1)?;
    let scale_a = problem.scale_a.factors.contiguous()?;
    let scale_b = &problem.scale_b;
    let scale_b = match scale_b.kind {
        // As the rows of b lie that the kernel takes.
        Kind::Block => scale_b
            .factors
            .transpose(D::Minus2, D::Minus1)?
            .contiguous()?,
        _ => scale_b.factors.contiguous()?,
    };
    let ((a, a_l), (b, b_l)) = (problem.a.storage_and_layout(), b.storage_and_layout());
    let (scale_a, scale_a_l) = scale_a.storage_and_layout();
    let (scale_b, scale_b_l) = scale_b.storage_and_layout();
    let bias = bias.as_ref().map(Tensor::storage_and_layout);
    let bias = match &bias {
        Some((bias, bias_l)) => Some(storage(bias)?.view(bias_l, OP)?),
        None => None,
    };
    let a = storage(&a)?;
    let scales = |scale: &Scale, view| match scale.kind {
        Kind::Tensor => Scales::Tensor(view),
        Kind::Row => Scales::Rows(view),
        Kind::Block => Scales::Blocks(view),
    };
    let buffer = blas::scaled_matmul(
        a.buffer().device(),
        &a.view(a_l, OP)?,
        &storage(&b)?.view(b_l, OP)?,
        &scales(&problem.scale_a, storage(&scale_a)?.view(scale_a_l, OP)?),
        &scales(&problem.scale_b, storage(&scale_b)?.view(scale_b_l, OP)?),
        bias.as_ref(),
        device_to,
    )?;
    let result = Storage::Rocm(a.with_buffer(buffer, to, problem.dims.iter().product()));
    let result = Tensor::from_storage(result, &problem.dims[..], BackpropOp::none(), false);
    result.to_dtype(out).map(Some)
}
