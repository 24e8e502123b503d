//! Matrices of weights, in whatever format the file has them.
//!
//! On the CPU a row's result does not depend on the rows beside it, bit for bit.

use super::extras::Extras;
use super::float::FloatMatrix;
use super::input::Input;
use super::lora::MatrixAdapters;
use super::rocm;
use super::unpacked::Unpacked;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{fused, Activation};
use std::borrow::Cow;
use std::sync::Arc;
use worker::gguf::SharedBytes;

/// A matrix with an optional bias.
#[derive(Clone)]
pub(super) struct Linear {
    weight: Weight,
    extras: Extras,
    bias: Option<Tensor>,
    adapters: Option<Arc<MatrixAdapters>>,
}

/// `outputs` rows of `inputs` elements.
#[derive(Clone)]
pub(super) enum Weight {
    /// Blocks on the CPU.
    Blocks(QMatMul),
    /// Blocks on the CPU that are never copied into another order.
    Unpacked(Arc<Unpacked>),
    /// Plain numbers on the CPU.
    Floats(Arc<FloatMatrix>),
    /// Plain numbers elsewhere, `(outputs, inputs)` in the dtype of activations.
    Tensor(Tensor),
    /// Blocks on an AMD GPU.
    Rocm(Arc<rocm::Blocks>),
}

/// candle's switch that turns all blocks into plain numbers.
pub(super) fn dequantize_all() -> bool {
    std::env::var("CANDLE_DEQUANTIZE_ALL").is_ok_and(|value| !value.is_empty() && value != "0")
}

impl Weight {
    /// Takes rows as they lie in a file.
    pub(super) fn new(
        bytes: &[u8],
        dtype: GgmlDType,
        (outputs, inputs): (usize, usize),
        device: &Device,
        activations: DType,
    ) -> Result<Self> {
        let plain = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        if plain && device.is_cpu() {
            let matrix = FloatMatrix::new(bytes, dtype, (outputs, inputs))?;
            return Ok(Self::Floats(Arc::new(matrix)));
        }
        if !plain && dequantize_all() {
            let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype)?;
            let floats = QTensor::new(storage, (outputs, inputs))?.dequantize(&Device::Cpu)?;
            let floats = floats.flatten_all()?.to_vec1::<f32>()?;
            let bytes: Vec<u8> = floats.into_iter().flat_map(f32::to_le_bytes).collect();
            let shape = (outputs, inputs);
            return Self::new(&bytes, GgmlDType::F32, shape, device, activations);
        }
        if inputs % dtype.block_size() != 0 {
            bail!("rows of {inputs} elements have no whole blocks of {dtype:?}")
        }
        let storage = QStorage::from_data(Cow::Borrowed(bytes), device, dtype)?;
        let storage = match storage {
            QStorage::Rocm(blocks) if !plain => {
                let blocks = rocm::Blocks::new(blocks, outputs, inputs);
                return Ok(Self::Rocm(Arc::new(blocks)));
            }
            storage => storage,
        };
        let tensor = QTensor::new(storage, (outputs, inputs))?;
        if plain {
            return Ok(Self::Tensor(
                tensor.dequantize(device)?.to_dtype(activations)?,
            ));
        }
        Ok(Self::Blocks(QMatMul::from_qtensor(tensor)?))
    }

    /// Takes rows on the CPU that stay where they are, if they begin where their format's blocks may; else copies them.
    pub(super) fn shared(
        bytes: &SharedBytes,
        dtype: GgmlDType,
        shape: (usize, usize),
    ) -> Result<Self> {
        if let Some(floats) = FloatMatrix::shared(bytes, dtype, shape) {
            return Ok(Self::Floats(Arc::new(floats)));
        }
        let plain = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        match QStorage::in_place(bytes.clone(), dtype).filter(|_| !plain && !dequantize_all()) {
            Some(blocks) => Ok(Self::Blocks(QMatMul::from_qtensor(QTensor::new(
                blocks, shape,
            )?)?)),
            None => Self::new(bytes, dtype, shape, &Device::Cpu, DType::F32),
        }
    }

    /// The same of rows that are too many for a copy in another order, which candle makes for some formats.
    pub(super) fn unpacked(
        bytes: &SharedBytes,
        dtype: GgmlDType,
        shape: (usize, usize),
    ) -> Result<Self> {
        let plain = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        match plain {
            true => Self::shared(bytes, dtype, shape),
            false => Ok(Self::Unpacked(Arc::new(Unpacked::new(
                bytes, dtype, shape,
            )?))),
        }
    }

    /// Rows `ids` of it, in the dtype of activations.
    pub(super) fn rows(&self, ids: &Tensor, activations: DType) -> Result<Tensor> {
        match self {
            Self::Blocks(blocks) => blocks.embedding(ids)?.to_dtype(activations),
            Self::Unpacked(blocks) => blocks.rows(&ids.to_vec1()?)?.to_dtype(activations),
            Self::Floats(matrix) => matrix.rows(&ids.to_vec1()?)?.to_dtype(activations),
            Self::Tensor(tensor) => tensor.index_select(ids, 0),
            Self::Rocm(blocks) => blocks.rows(ids)?.to_dtype(activations),
        }
    }

    pub(super) fn forward(&self, x: &Input) -> Result<Tensor> {
        match self {
            Self::Blocks(blocks) => multiply_blocks(blocks, &x.floats),
            Self::Unpacked(blocks) => blocks.forward(&x.floats),
            Self::Floats(matrix) => matrix.forward(&x.floats),
            Self::Tensor(tensor) => x.floats.matmul(&tensor.t()?),
            Self::Rocm(blocks) => blocks.forward(x),
        }
    }
}

/// candle has kernels for many rows that sum in another order than those for one; whatever comes is given to the
/// former.
fn multiply_blocks(blocks: &QMatMul, x: &Tensor) -> Result<Tensor> {
    let is_q6k = matches!(blocks, QMatMul::QTensor(blocks) if blocks.dtype() == GgmlDType::Q6K);
    if x.dim(0)? == 1 && is_q6k && cfg!(target_arch = "x86_64") {
        let twice = Tensor::cat(&[x, x], 0)?;
        return blocks.forward(&twice)?.narrow(0, 0, 1)?.contiguous();
    }
    blocks.forward(x)
}

impl Linear {
    pub(super) fn new(weight: Weight, bias: Option<Tensor>) -> Self {
        Self {
            weight,
            extras: Extras::default(),
            bias,
            adapters: None,
        }
    }

    /// The same with what a file has beside the matrix.
    pub(super) fn with_extras(self, extras: Extras) -> Self {
        Self { extras, ..self }
    }

    /// The same with adapters beside it, if there are some.
    pub(super) fn with_adapters(self, adapters: Option<Arc<MatrixAdapters>>) -> Self {
        Self { adapters, ..self }
    }

    /// Whether adapters add something in a pass of now.
    fn is_adapted(&self) -> bool {
        self.adapters.as_ref().is_some_and(|a| a.is_active())
    }

    /// Whether it multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        self.extras.order.is_none()
            && matches!(&self.weight, Weight::Rocm(blocks) if blocks.takes_quantized())
    }

    /// Whether it multiplies so many rows of activations as 8-bit floats, as norms give them, on a GPU.
    pub(super) fn takes_float8(&self, rows: usize) -> Result<bool> {
        match &self.weight {
            Weight::Rocm(blocks) if self.extras.order.is_none() => blocks.takes_float8(rows),
            _ => Ok(false),
        }
    }

    /// `(rows, inputs)` to `(rows, outputs)`.
    pub(super) fn forward(&self, x: &Input) -> Result<Tensor> {
        let product = match self.extras.ordered(x)? {
            Some(ordered) => self.weight.forward(&ordered)?,
            None => self.weight.forward(x)?,
        };
        self.finish(product, x)
    }

    /// The product with `x` with all that is made of it.
    fn finish(&self, product: Tensor, x: &Input) -> Result<Tensor> {
        let product = match self.extras.scale {
            Some(scale) => product.affine(scale.into(), 0.0)?,
            None => product,
        };
        let product = match &self.bias {
            Some(bias) => product.broadcast_add(bias)?,
            None => product,
        };
        match &self.adapters {
            Some(adapters) => adapters.add(product, x),
            None => Ok(product),
        }
    }

    /// Products of one input with several matrices.
    pub(super) fn forward_each<const N: usize>(
        linears: [&Self; N],
        x: &Input,
    ) -> Result<[Tensor; N]> {
        let mut all = linears.into_iter();
        let of_one_order = (linears.windows(2)).all(|l| l[0].extras.has_order_of(&l[1].extras));
        if !of_one_order {
            return try_array(|| all.next().expect("one for each").forward(x));
        }
        let ordered = match linears.first() {
            Some(first) => first.extras.ordered(x)?,
            None => None,
        };
        let multiplied = ordered.as_ref().unwrap_or(x);
        let blocks = linears.map(|linear| match &linear.weight {
            Weight::Rocm(blocks) => Some(&**blocks),
            _ => None,
        });
        if blocks.iter().all(Option::is_some) {
            let blocks = blocks.map(|b| b.expect("checked"));
            let mut products = rocm::forward_each(&blocks, multiplied)?
                .into_iter()
                .zip(linears)
                .map(|(product, linear)| linear.finish(product, x));
            return try_array(|| products.next().expect("one for each"));
        }
        try_array(|| {
            let linear = all.next().expect("one for each");
            linear.finish(linear.weight.forward(multiplied)?, x)
        })
    }

    /// `activation(gate x) * up x`.
    pub(super) fn gated(
        gate: &Self,
        up: &Self,
        activation: Activation,
        x: &Input,
    ) -> Result<Tensor> {
        let plain = |linear: &Self| {
            linear.bias.is_none() && linear.extras.scale.is_none() && !linear.is_adapted()
        };
        if let (Weight::Rocm(g), Weight::Rocm(u)) = (&gate.weight, &up.weight) {
            if plain(gate) && plain(up) && up.extras.has_order_of(&gate.extras) {
                let ordered = gate.extras.ordered(x)?;
                let multiplied = ordered.as_ref().unwrap_or(x);
                if let Some(gated) = rocm::gated(g, u, activation, multiplied)? {
                    return Ok(gated);
                }
            }
        }
        let [gate, up] = Self::forward_each([gate, up], x)?;
        fused::gate_mul(activation, &gate, &up)
    }
}

/// Whether each of them [takes](Linear::takes_float8) 8-bit floats.
pub(super) fn all_take_float8(linears: &[&Linear], rows: usize) -> Result<bool> {
    for linear in linears {
        if !linear.takes_float8(rows)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn try_array<T, const N: usize>(mut next: impl FnMut() -> Result<T>) -> Result<[T; N]> {
    let items = (0..N).map(|_| next()).collect::<Result<Vec<T>>>()?;
    items
        .try_into()
        .map_err(|_| candle_core::Error::Msg("a wrong number of products".to_string()))
}
