//! Mixtures of experts with quantized weights, on devices other than CUDA.

use super::{QStorage, QTensor};
use crate::{DType, Result, Tensor};

/// Each token's vector times the matrices of its experts, as f32 `[tokens, topk, n]`: the weights are `[experts, n,
/// k]`, `x` `[tokens, topk or 1, k]` and `ids` `[tokens, topk]` of u32.
pub(super) fn indexed_moe_forward(weights: &QTensor, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    match &weights.storage {
        #[cfg(feature = "rocm")]
        QStorage::Rocm(storage) => match (&*x.storage(), &*ids.storage()) {
            (crate::Storage::Rocm(on_x), crate::Storage::Rocm(on_ids)) => {
                let (result, shape) = storage.indexed_moe_forward(
                    weights.shape(),
                    on_x,
                    x.layout(),
                    on_ids,
                    ids.layout(),
                )?;
                let none = crate::op::BackpropOp::none();
                let result = crate::Storage::Rocm(result);
                Ok(crate::tensor::from_storage(result, shape, none, false))
            }
            _ => crate::bail!(
                "indexed_moe_forward: weights are on {:?}, x on {:?} and ids on {:?}; move all to one device",
                weights.device().location(),
                x.device().location(),
                ids.device().location()
            ),
        },
        QStorage::Cpu(_) => on_cpu(weights, x, ids),
        _ => crate::bail!("indexed_moe_forward is not implemented on this device"),
    }
}

/// By the definition: every slot gets a copy of its expert's matrix.
fn on_cpu(weights: &QTensor, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (_, n, k) = weights.shape().dims3()?;
    let (tokens, topk) = ids.dims2()?;
    let slots = tokens * topk;
    let chosen = weights
        .dequantize(x.device())?
        .index_select(&ids.flatten_all()?, 0)?;
    let vectors = x
        .to_dtype(DType::F32)?
        .broadcast_as((tokens, topk, k))?
        .reshape((slots, k, 1))?;
    chosen.matmul(&vectors)?.reshape((tokens, topk, n))
}
