//! The kernel of the device layer, which takes f16, bf16 and f32.

use candle::op::BackpropOp;
use candle::rocm_backend::candle_rocm::ops::moe::{self, Routing};
use candle::{DType, Result, RocmStorage, Storage, Tensor};

use super::Sizes;

fn storage(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => candle::bail!("moe_gemm: all operands have to be on the input's device"),
    }
}

/// `None` where the plain way has to do.
pub(super) fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: Option<&Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    sizes: &Sizes,
) -> Result<Option<Tensor>> {
    const OP: &str = "moe-gemm";
    let fits =
        input.device().is_rocm() && matches!(input.dtype(), DType::F16 | DType::BF16 | DType::F32);
    // The kernel has no gradients; the plain way does.
    let operands = [Some(input), Some(weights), topk_weights];
    let is_tracked = operands.into_iter().flatten().any(|t| t.track_op());
    if !fits || is_tracked {
        return Ok(None);
    }
    let ((x, x_l), (w, w_l)) = (input.storage_and_layout(), weights.storage_and_layout());
    let (slots, slots_l) = sorted_token_ids.storage_and_layout();
    let (experts, experts_l) = experts_ids.storage_and_layout();
    let scale = topk_weights.map(Tensor::storage_and_layout);
    let scale = match &scale {
        Some((scale, scale_l)) => Some(storage(scale)?.view(scale_l, OP)?),
        None => None,
    };
    let x = storage(&x)?;
    let routing = Routing {
        slots: &storage(&slots)?.view(slots_l, OP)?,
        experts: &storage(&experts)?.view(experts_l, OP)?,
        scale: scale.as_ref(),
    };
    let buffer = moe::moe_gemm(
        x.buffer().device(),
        &x.view(x_l, OP)?,
        &storage(&w)?.view(w_l, OP)?,
        routing,
    )?;
    let shape = (sizes.slots, sizes.n);
    let result = x.with_buffer(buffer, input.dtype(), sizes.slots * sizes.n);
    let result = Storage::Rocm(result);
    Ok(Some(Tensor::from_storage(
        result,
        shape,
        BackpropOp::none(),
        false,
    )))
}
