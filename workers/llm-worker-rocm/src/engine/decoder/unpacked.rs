//! Quantized matrices on the CPU that are multiplied as they lie in a file.
//!
//! candle keeps a copy of some formats in an order that suits wide registers, made with the first product. For experts
//! in the host's memory, which are most of a large model, that would be a second model.

use candle_core::op::BackpropOp;
use candle_core::quantized::{GgmlDType, QStorage, QuantizedType};
use candle_core::{bail, Device, Result, Storage, Tensor};
use std::borrow::Cow;
use worker::gguf::SharedBytes;

/// `outputs` rows of `inputs` elements, in blocks.
pub(super) struct Unpacked {
    blocks: Box<dyn QuantizedType>,
    outputs: usize,
    inputs: usize,
}

impl Unpacked {
    /// Rows that stay where they are, if they begin where the format's blocks may; else they are copied.
    pub(super) fn new(
        bytes: &SharedBytes,
        dtype: GgmlDType,
        (outputs, inputs): (usize, usize),
    ) -> Result<Self> {
        let blocks = inputs / dtype.block_size() * outputs;
        if inputs % dtype.block_size() != 0 || bytes.len() != blocks * dtype.type_size() {
            bail!(
                "{} bytes are not {outputs} rows of {inputs} elements in {dtype:?}",
                bytes.len()
            )
        }
        let storage = match QStorage::in_place(bytes.clone(), dtype) {
            Some(storage) => storage,
            None => QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype)?,
        };
        let QStorage::Cpu(blocks) = storage else {
            bail!("blocks for the CPU are elsewhere")
        };
        Ok(Self {
            blocks,
            outputs,
            inputs,
        })
    }

    /// Rows `ids`, f32.
    pub(super) fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let rows = self.blocks.embedding(ids, self.outputs, self.inputs)?;
        let shape = (ids.len(), self.inputs);
        Ok(Tensor::from_storage(
            Storage::Cpu(rows),
            shape,
            BackpropOp::none(),
            false,
        ))
    }

    /// `(rows, inputs)` of f32 to `(rows, outputs)`; a row's result does not depend on the others.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        if inputs != self.inputs {
            bail!("{:?} times a matrix with {} inputs", x.dims(), self.inputs)
        }
        let x = x.contiguous()?;
        let (storage, layout) = x.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            bail!("the input must be on the CPU, as the matrix is")
        };
        let x = &storage.as_slice::<f32>()?[layout.start_offset()..][..rows * inputs];
        let mut out = vec![0f32; rows * self.outputs];
        let shape = (rows, self.inputs, self.outputs);
        self.blocks.matmul_t(shape, x, &mut out)?;
        Tensor::from_vec(out, (rows, self.outputs), &Device::Cpu)
    }
}
