//! What recurrences have in common on AMD GPUs: tensors as the device layer takes them.

use candle_core::op::BackpropOp;
use candle_core::rocm_backend::candle_rocm::Buffer;
use candle_core::{bail, Result, RocmStorage, Shape, Storage, Tensor};

pub(super) use candle_core::rocm_backend::candle_rocm::ops::Sequences;

pub(super) fn storage(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("states and rows must be on one device"),
    }
}

/// Binds a name to the device layer's view of a tensor.
macro_rules! with_view {
    ($name:ident = $tensor:expr, $op:expr) => {
        let (storage, layout) = $tensor.storage_and_layout();
        let storage = $crate::engine::decoder::mixers::device::storage(&storage)?;
        let $name = storage.view(layout, $op)?;
    };
}
pub(super) use with_view;

/// Binds a name to the device layer's form of a `StateBatch`.
macro_rules! states_of {
    ($name:ident = $states:expr, $op:expr) => {
        with_view!(starts = $states.starts, $op);
        with_view!(from = $states.from, $op);
        with_view!(to = $states.to, $op);
        let $name = Sequences {
            starts,
            from,
            to,
            longest: $states.longest,
        };
    };
}
pub(super) use states_of;

/// A tensor around a result of the device layer, with the dtype and on the device of `like`.
pub(super) fn tensor(like: &Tensor, buffer: Buffer, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let (of_like, _) = like.storage_and_layout();
    let storage = storage(&of_like)?.with_buffer(buffer, like.dtype(), shape.elem_count());
    Ok(Tensor::from_storage(
        Storage::Rocm(storage),
        shape,
        BackpropOp::none(),
        false,
    ))
}
