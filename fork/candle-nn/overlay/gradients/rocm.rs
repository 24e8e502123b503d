//! The kernels. Each function gives `None` where tensor operations are to be used.

use candle::rocm_backend::candle_rocm::{self, Buffer};
use candle::{DType, Result, RocmStorage, Storage, Tensor};
use candle_rocm::ops::norm_backward::{self, Wanted};
use candle_rocm::ops::softmax_backward;

use super::{keeps_graph, OfNorm};

mod attention;
mod done;

pub(crate) use attention::{sdpa, Problem};
pub(crate) use done::{done, Backward};

/// Whether the kernels take these tensors.
fn fits(tensors: &[&Tensor], dtypes: &[DType]) -> bool {
    let first = tensors[0];
    !keeps_graph()
        && first.device().is_rocm()
        && dtypes.contains(&first.dtype())
        && tensors
            .iter()
            .all(|t| t.dtype() == first.dtype() && t.device().same_device(first.device()))
}

const HALVES_AND_F32: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

pub(crate) fn storage(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => candle::bail!("the tensor is not on a ROCm device"),
    }
}

/// A tensor of `like`'s shape and dtype, outside of any graph.
pub(crate) fn gradient(like: &Tensor, buffer: Buffer) -> Result<Tensor> {
    let (x, _) = like.storage_and_layout();
    let result = storage(&x)?.with_buffer(buffer, like.dtype(), like.elem_count());
    let none = candle::op::BackpropOp::none();
    Ok(Tensor::from_storage(
        Storage::Rocm(result),
        like.shape().clone(),
        none,
        false,
    ))
}

pub(super) fn softmax(y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
    const OP: &str = "softmax-last-dim gradient";
    if !fits(&[y, grad], &[&HALVES_AND_F32[..], &[DType::F64]].concat()) {
        return Ok(None);
    }
    let ((result, result_l), (g, g_l)) = (y.storage_and_layout(), grad.storage_and_layout());
    let result = storage(&result)?;
    let device = result.buffer().device();
    let (result, g) = (result.view(result_l, OP)?, storage(&g)?.view(g_l, OP)?);
    let buffer = softmax_backward::softmax_last_dim_backward(device, &result, &g)?;
    gradient(y, buffer).map(Some)
}

pub(super) fn norm(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    grad: &Tensor,
    eps: f32,
    centered: bool,
) -> Result<Option<OfNorm>> {
    const OP: &str = "norm gradient";
    if !fits(&[x, weight, grad], &HALVES_AND_F32) {
        return Ok(None);
    }
    let wanted = Wanted {
        weight: weight.track_op(),
        bias: bias.is_some_and(Tensor::track_op),
    };
    let ((input, input_l), (w, w_l)) = (x.storage_and_layout(), weight.storage_and_layout());
    let (g, g_l) = grad.storage_and_layout();
    let input = storage(&input)?;
    let device = input.buffer().device();
    let (input, w) = (input.view(input_l, OP)?, storage(&w)?.view(w_l, OP)?);
    let g = storage(&g)?.view(g_l, OP)?;
    let backward = match centered {
        true => norm_backward::layer_norm_backward,
        false => norm_backward::rms_norm_backward,
    };
    let gradients = backward(device, &input, &w, &g, eps, wanted)?;
    let parameter = |buffer: Option<Buffer>| {
        let gradient = buffer.map(|buffer| gradient(weight, buffer));
        gradient.transpose()
    };
    Ok(Some((
        Some(gradient(x, gradients.x)?),
        parameter(gradients.weight)?,
        parameter(gradients.bias)?,
    )))
}
