//! Quantized matrices on AMD GPUs, where activations are quantized once for all matrices that they meet.

use super::experts::{Choice, Scores};
use super::input::{Input, Quantized, Wanted};
use super::lora::StackAdapters;
use candle_core::op::BackpropOp;
use candle_core::quantized::rocm::QRocmStorage;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::rocm_backend::candle_rocm::ops::moe::{self as experts, ClampedGate};
use candle_core::rocm_backend::candle_rocm::ops::norm as norms;
use candle_core::rocm_backend::candle_rocm::ops::quantized::{
    self, Epilogue, FloatActivations, Format, QuantizedActivations, QuantizedMatrix, Scaling,
};
pub(super) use candle_core::rocm_backend::candle_rocm::Buffer;
use candle_core::rocm_backend::candle_rocm::{self, DType as DeviceDType, View};
use candle_core::{bail, DType, Device, Module, Result, RocmStorage, Shape, Storage, Tensor};
use candle_nn::{fused, moe, Activation};
use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

const OP: &str = "linear";

/// A matrix of blocks.
pub(super) struct Blocks {
    storage: QRocmStorage,
    outputs: usize,
    inputs: usize,
}

/// The device layer's device.
pub(super) fn device(device: &Device) -> Result<&candle_rocm::Device> {
    Ok(device.as_rocm_device()?.device())
}

fn rocm(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("{OP}: the input must be on the device of the weights"),
    }
}

fn tensor(storage: RocmStorage, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_storage(Storage::Rocm(storage), shape, BackpropOp::none(), false)
}

fn device_dtype(dtype: DType) -> Result<DeviceDType> {
    Ok(match dtype {
        DType::F32 => DeviceDType::F32,
        DType::F16 => DeviceDType::F16,
        DType::BF16 => DeviceDType::BF16,
        dtype => bail!("{OP}: activations of {dtype:?}"),
    })
}

impl Blocks {
    pub(super) fn new(storage: QRocmStorage, outputs: usize, inputs: usize) -> Self {
        Self {
            storage,
            outputs,
            inputs,
        }
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        self.storage.matrix(self.outputs, self.inputs)
    }

    /// Whether it multiplies 8-bit activations; 8-bit floats meet activations as they are.
    pub(super) fn takes_quantized(&self) -> bool {
        self.matrix().format.has_integers()
    }

    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        let (storage, layout) = ids.storage_and_layout();
        let rows =
            self.storage
                .embedding(self.outputs, self.inputs, rocm(storage.deref())?, layout)?;
        Ok(tensor(rows, (layout.shape().elem_count(), self.inputs)))
    }

    /// Whether it multiplies so many rows of f32 as 8-bit floats, as norms give them.
    pub(super) fn takes_float8(&self, rows: usize) -> Result<bool> {
        let matrix = self.matrix();
        if Scaling::of(matrix.format) != Some(Scaling::Steps) {
            return Ok(false);
        }
        let device = matrix.buffer.device();
        Ok(quantized::takes_float8(device, &matrix, rows)?)
    }

    pub(super) fn forward(&self, x: &Input) -> Result<Tensor> {
        if let Some(activations) = self.in_eight_bits(x) {
            return self.product(activations, &x.floats);
        }
        let (storage, layout) = x.floats.storage_and_layout();
        let shape = Shape::from((self.outputs, self.inputs));
        let (y, shape) = self.storage.fwd(&shape, rocm(storage.deref())?, layout)?;
        Ok(tensor(y, shape))
    }

    /// The input in 8 bits, where it is in those that the matrix takes.
    fn in_eight_bits<'a>(&self, x: &'a Input) -> Option<&'a Quantized> {
        x.quantized
            .as_ref()
            .filter(|activations| match activations {
                Quantized::Integers(_) => self.takes_quantized(),
                Quantized::Floats(x) => Scaling::of(self.matrix().format) == Some(x.scaling()),
            })
    }

    /// The product with activations, in the dtype of `like`.
    fn product(&self, activations: &Quantized, like: &Tensor) -> Result<Tensor> {
        let (storage, _) = like.storage_and_layout();
        let device = rocm(storage.deref())?.buffer().device();
        let to = device_dtype(like.dtype())?;
        let (matrix, epilogue) = (self.matrix(), Epilogue::default());
        let y = match activations {
            Quantized::Integers(x) => {
                quantized::linear_quantized(device, &matrix, x, &epilogue, to)?
            }
            Quantized::Floats(x) => quantized::linear_float8(device, &matrix, x, &epilogue, to)?,
        };
        wrap(like, y, (like.dim(0)?, self.outputs))
    }
}

/// A result of the device layer with the dtype and on the device of `like`.
fn wrap(like: &Tensor, buffer: Buffer, shape: (usize, usize)) -> Result<Tensor> {
    let (storage, _) = like.storage_and_layout();
    let count = shape.0 * shape.1;
    let storage = rocm(storage.deref())?.with_buffer(buffer, like.dtype(), count);
    Ok(tensor(storage, shape))
}

/// A result of f32 on the device of `like`.
fn wrap_f32(like: &Tensor, buffer: Buffer, shape: (usize, usize)) -> Result<Tensor> {
    let (storage, _) = like.storage_and_layout();
    let storage = rocm(storage.deref())?.with_buffer(buffer, DType::F32, shape.0 * shape.1);
    Ok(tensor(storage, shape))
}

/// Products of one input with each matrix.
pub(super) fn forward_each(matrices: &[&Blocks], x: &Input) -> Result<Vec<Tensor>> {
    let in_eight_bits: Option<Vec<_>> = matrices.iter().map(|m| m.in_eight_bits(x)).collect();
    if let Some(activations) = in_eight_bits {
        let products = matrices.iter().zip(activations);
        return products
            .map(|(matrix, activations)| matrix.product(activations, &x.floats))
            .collect();
    }
    let (storage, layout) = x.floats.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let view = storage.view(layout, OP)?;
    let device = storage.buffer().device();
    let (count, dtype) = (x.floats.dim(0)?, device_dtype(x.floats.dtype())?);
    if let Some(scaling) = float8_of_all(device, matrices, count)? {
        let activations = FloatActivations::quantize(device, &view, scaling)?;
        let activations = Quantized::Floats(activations);
        let product = |matrix: &&Blocks| matrix.product(&activations, &x.floats);
        return matrices.iter().map(product).collect();
    }
    for matrix in matrices {
        if quantized::multiplies_floats(device, &matrix.matrix(), count, dtype)? {
            return matrices.iter().map(|matrix| matrix.forward(x)).collect();
        }
    }
    let activations = Quantized::Integers(QuantizedActivations::quantize(device, &view)?);
    let product = |matrix: &&Blocks| matrix.product(&activations, &x.floats);
    matrices.iter().map(product).collect()
}

/// How vectors are scaled that all of these matrices multiply as 8-bit floats, if that is how they do.
fn float8_of_all(
    device: &candle_rocm::Device,
    matrices: &[&Blocks],
    count: usize,
) -> Result<Option<Scaling>> {
    let mut of_all = None;
    for matrix in matrices {
        let matrix = matrix.matrix();
        let scaling = Scaling::of(matrix.format);
        let is_other = of_all.is_some() && of_all != scaling;
        if is_other || !quantized::takes_float8(device, &matrix, count)? {
            return Ok(None);
        }
        of_all = scaling;
    }
    Ok(of_all)
}

/// `activation(gate x) * up x`, if the device has it in one.
pub(super) fn gated(
    gate: &Blocks,
    up: &Blocks,
    activation: Activation,
    x: &Input,
) -> Result<Option<Tensor>> {
    let activation = match activation {
        Activation::Silu => quantized::Activation::Silu,
        Activation::GeluPytorchTanh => quantized::Activation::Gelu,
        _ => return Ok(None),
    };
    if gate.storage.dtype() != up.storage.dtype() {
        return Ok(None);
    }
    let (storage, layout) = x.floats.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let device = storage.buffer().device();
    let outputs = gate.outputs;
    let in_eight_bits = gate.in_eight_bits(x);
    let (gate, up) = (gate.matrix(), up.matrix());
    let buffer = match in_eight_bits {
        Some(activations) => {
            let to = device_dtype(x.floats.dtype())?;
            match activations {
                Quantized::Integers(x) => {
                    quantized::gated_quantized(device, &gate, &up, x, activation, to)?
                }
                Quantized::Floats(x) => {
                    quantized::gated_float8(device, &gate, &up, x, activation, to)?
                }
            }
        }
        None => quantized::gated(device, &gate, &up, &storage.view(layout, OP)?, activation)?,
    };
    Ok(Some(wrap(&x.floats, buffer, (x.floats.dim(0)?, outputs))?))
}

/// Rows up to which norms and attention give 8 bits as well: one launch less counts where there is little to do.
const FEW_ROWS: usize = quantized::MATVEC_MAX_COLUMNS;

/// Whether what is made of f32 `x`, `rows` of `width` elements, should come in 8 bits as well.
pub(super) fn gains_by_quantized(x: &Tensor, (rows, width): (usize, usize)) -> bool {
    x.device().is_rocm() && x.dtype() == DType::F32 && rows <= FEW_ROWS && width % 32 == 0
}

/// The RMS norm of f32, by a weight and an epsilon, and the same in 8 bits, behind `x + addend` if there is one, which
/// comes first; none where that is not for the device.
pub(super) fn norm_quantize(
    wanted: Wanted,
    by: (&Tensor, f32),
    x: &Tensor,
    addend: Option<&Tensor>,
) -> Result<Option<(Option<Tensor>, Input)>> {
    let (rows, width) = x.dims2()?;
    match wanted {
        Wanted::Integers if gains_by_quantized(x, (rows, width)) => {
            norm_in_eight_bits(by, x, addend, Quantized::Integers).map(Some)
        }
        Wanted::Floats if x.device().is_rocm() && x.dtype() == DType::F32 => {
            norm_in_eight_bits(by, x, addend, Quantized::Floats).map(Some)
        }
        _ => Ok(None),
    }
}

fn norm_in_eight_bits<Q: norms::InEightBits>(
    (weight, epsilon): (&Tensor, f32),
    x: &Tensor,
    addend: Option<&Tensor>,
    as_input: fn(Q) -> Quantized,
) -> Result<(Option<Tensor>, Input)> {
    let (rows, width) = x.dims2()?;
    let (storage, layout) = x.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let device = storage.buffer().device();
    let view = storage.view(layout, OP)?;
    let (weight, weight_layout) = weight.storage_and_layout();
    let weight = rocm(weight.deref())?.view(weight_layout, OP)?;
    let (sum, normed) = match addend {
        Some(addend) => {
            let (addend, addend_layout) = addend.storage_and_layout();
            let addend = rocm(addend.deref())?.view(addend_layout, OP)?;
            let (sum, normed) =
                norms::add_rms_norm_quantize(device, &addend, &view, &weight, epsilon)?;
            (Some(wrap(x, sum, (rows, width))?), normed)
        }
        None => (
            None,
            norms::rms_norm_quantize(device, &view, &weight, epsilon)?,
        ),
    };
    let input = Input {
        floats: wrap(x, normed.floats, (rows, width))?,
        quantized: Some(as_input(normed.quantized)),
    };
    Ok((sum, input))
}

/// Computes something of tensors on the device.
fn with_views<const N: usize>(
    tensors: [&Tensor; N],
    compute: impl FnOnce(&candle_rocm::Device, [&View; N]) -> Result<Buffer>,
) -> Result<Buffer> {
    let storages = tensors.map(Tensor::storage_and_layout);
    let views = storages
        .iter()
        .map(|(storage, layout)| rocm(storage.deref())?.view(layout, OP));
    let views = views.collect::<Result<Vec<_>>>()?;
    let device = rocm(storages[0].0.deref())?.buffer().device();
    compute(device, std::array::from_fn(|i| &views[i]))
}

/// The experts of each token and their weights, in one launch.
pub(super) fn route(
    logits: &Tensor,
    bias: Option<&Tensor>,
    choice: &Choice,
) -> Result<(Tensor, Tensor)> {
    let (tokens, _) = logits.dims2()?;
    let logits = logits.contiguous()?;
    let (storage, layout) = logits.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let view = storage.view(layout, OP)?;
    // What is not there borrows the numbers' place and is not used.
    let (bias_storage, bias_layout) = bias.unwrap_or(&logits).storage_and_layout();
    let added = rocm(bias_storage.deref())?.view(bias_layout, OP)?;
    let routing = choice.routing;
    let route = experts::Route {
        used: choice.used,
        scores: match routing.scores {
            Scores::Softmax => experts::Scores::Softmax,
            Scores::Sigmoid => experts::Scores::Sigmoid,
            Scores::Chosen => experts::Scores::Chosen,
        },
        groups: choice
            .groups
            .map_or((1, 1), |groups| (groups.count, groups.used)),
        best_of_group: choice.best_of_group(),
        normalised: routing.normalised.then_some(routing.epsilon),
        scale: choice.scale as f32,
    };
    let added = bias.is_some().then_some(&added);
    let (ids, weights) = experts::route(storage.buffer().device(), &view, added, &route)?;
    let shape = (tokens, choice.used);
    let wrapped = |buffer, dtype| {
        let count = tokens * choice.used;
        tensor(storage.with_buffer(buffer, dtype, count), shape)
    };
    Ok((wrapped(ids, DType::U32), wrapped(weights, DType::F32)))
}

/// All experts' matrices, one kernel for those of all tokens.
pub(super) struct Experts {
    pub biased: Option<Biased>,
    /// None where only the activation is between the others.
    pub gate: Option<Stack>,
    pub up: Stack,
    pub down: Stack,
    /// Factors of what each of the three gives, f32 `(experts)`.
    pub scales: [Option<Tensor>; 3],
    /// What adapters have for each of the three.
    pub adapters: [Option<Arc<StackAdapters>>; 3],
}

/// What experts with biases have besides: `(experts, outputs)` of the dtype of activations, and the gate between.
pub(super) struct Biased {
    pub by: ClampedGate,
    pub gate: Tensor,
    pub up: Tensor,
    pub down: Tensor,
}

impl Biased {
    /// That of some experts, u32 `(some)`, in their order.
    pub(super) fn of(&self, experts: &Tensor) -> Result<Self> {
        Ok(Self {
            by: self.by,
            gate: self.gate.index_select(experts, 0)?,
            up: self.up.index_select(experts, 0)?,
            down: self.down.index_select(experts, 0)?,
        })
    }
}

/// A matrix for each expert.
pub(super) enum Stack {
    /// Blocks of `(experts, outputs, inputs)`.
    Blocks(QRocmStorage, Shape),
    /// The same, or plain numbers, at the beginning of memory that others have use for, too.
    Borrowed(Arc<Buffer>, Format, (usize, usize, usize)),
    /// Plain numbers, `(experts, outputs, inputs)` in the dtype of activations.
    Floats(Tensor),
}

impl Experts {
    /// `x` `(tokens, used or 1, width)` and `ids` `(tokens, used)` to `(tokens, used, width)`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        ids: &Tensor,
        activation: Activation,
    ) -> Result<Tensor> {
        let up = self.product(&self.up, 1, x, ids)?;
        let hidden = match &self.gate {
            Some(gate) => fused::gate_mul(activation, &self.product(gate, 0, x, ids)?, &up)?,
            None => activation.forward(&up)?,
        };
        self.product(&self.down, 2, &hidden, ids)
    }

    /// What one of the three gives, with its factors and what adapters add to it.
    fn product(&self, stack: &Stack, part: usize, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let y = stack.forward(x, ids)?;
        let y = match &self.scales[part] {
            Some(scales) => {
                let (tokens, used) = ids.dims2()?;
                let scales = scales.index_select(&ids.flatten_all()?, 0)?;
                let scaled = y.to_dtype(DType::F32)?;
                let scaled = scaled.broadcast_mul(&scales.reshape((tokens, used, 1))?)?;
                scaled.to_dtype(y.dtype())?
            }
            None => y,
        };
        match &self.adapters[part] {
            Some(adapters) => adapters.add(y, x, ids),
            None => Ok(y),
        }
    }

    /// The same, of experts with biases as well.
    pub(super) fn each(&self, x: &Tensor, ids: &Tensor, activation: Activation) -> Result<Tensor> {
        let Some((each, biased)) = self.biased_each(x, ids)? else {
            return self.forward(x, ids, activation);
        };
        let biases = biased.down.index_select(&ids.flatten_all()?, 0)?;
        each.clone() + biases.reshape(each.shape())?
    }

    /// What experts with biases give, but for that of the last matrix. None without biases.
    fn biased_each(&self, x: &Tensor, ids: &Tensor) -> Result<Option<(Tensor, &Biased)>> {
        let (Some(biased), Some(gate)) = (&self.biased, &self.gate) else {
            return Ok(None);
        };
        let gate = self.product(gate, 0, x, ids)?;
        let up = self.product(&self.up, 1, x, ids)?;
        let hidden = with_views(
            [&gate, &up, &biased.gate, &biased.up, ids],
            |device, [gate, up, gate_bias, up_bias, ids]| {
                let (products, biases) = ([gate, up], [gate_bias, up_bias]);
                Ok(experts::gate_experts(
                    device, products, biases, ids, biased.by,
                )?)
            },
        )?;
        let hidden = wrap(&gate, hidden, (gate.dim(0)? * gate.dim(1)?, gate.dim(2)?))?;
        let each = self.product(&self.down, 2, &hidden.reshape(gate.shape())?, ids)?;
        Ok(Some((each, biased)))
    }

    /// The same of experts with biases, times `weights`, f32 `(tokens, used, 1)`, and added up: `(tokens, width)`. None
    /// without biases.
    pub(super) fn biased_sum(
        &self,
        x: &Tensor,
        ids: &Tensor,
        weights: &Tensor,
    ) -> Result<Option<Tensor>> {
        let Some((each, biased)) = self.biased_each(x, ids)? else {
            return Ok(None);
        };
        let weights = weights.reshape(ids.shape())?;
        let (tokens, _, width) = each.dims3()?;
        let count = biased.down.dim(0)?;
        let sum = with_views(
            [&each, &biased.down, ids, &weights],
            |device, [each, biases, ids, weights]| {
                let ids = (ids, count);
                Ok(experts::sum_experts(
                    device,
                    each,
                    Some(biases),
                    ids,
                    weights,
                )?)
            },
        )?;
        Ok(Some(wrap(&each, sum, (tokens, width))?))
    }
}

impl Stack {
    /// Takes matrices as they lie in a file.
    pub(super) fn new(
        bytes: &[u8],
        dtype: GgmlDType,
        shape: (usize, usize, usize),
        device: &Device,
        activations: DType,
    ) -> Result<Self> {
        let shape = Shape::from(shape);
        match QStorage::from_data(Cow::Borrowed(bytes), device, dtype)? {
            QStorage::Rocm(blocks) if dtype.block_size() > 1 => Ok(Self::Blocks(blocks, shape)),
            plain => {
                let tensor = QTensor::new(plain, shape)?.dequantize(device)?;
                Ok(Self::Floats(tensor.to_dtype(activations)?))
            }
        }
    }

    /// Matrices, `(experts, outputs, inputs)`, that lie at the beginning of this memory.
    pub(super) fn borrowed(
        buffer: Arc<Buffer>,
        dtype: GgmlDType,
        shape: (usize, usize, usize),
    ) -> Result<Self> {
        Ok(Self::Borrowed(buffer, dtype.try_into()?, shape))
    }

    /// `x` `(tokens, used or 1, inputs)` to `(tokens, used, outputs)`.
    pub(super) fn forward(&self, x: &Tensor, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Blocks(blocks, shape) => {
                let dtype = x.dtype();
                let (x, x_l) = x.storage_and_layout();
                let (i, ids_l) = ids.storage_and_layout();
                let (x, i) = (rocm(x.deref())?, rocm(i.deref())?);
                let (y, shape) = blocks.indexed_moe_forward(shape, x, x_l, i, ids_l)?;
                tensor(y, shape).to_dtype(dtype)
            }
            Self::Borrowed(buffer, format, shape) => {
                let dtype = x.dtype();
                let y = with_views([x, ids], |device, [x, ids]| {
                    let y = experts::indexed_moe(device, *format, buffer, *shape, x, ids);
                    Ok(y?)
                })?;
                let (tokens, used) = ids.dims2()?;
                let (_, outputs, _) = *shape;
                let y = wrap_f32(x, y, (tokens * used, outputs))?;
                y.reshape((tokens, used, outputs))?.to_dtype(dtype)
            }
            Self::Floats(weights) => {
                let (tokens, used) = ids.dims2()?;
                let (_, outputs, inputs) = weights.dims3()?;
                let slots = ids.flatten_all()?;
                let (experts, order) = sorted(&slots)?;
                // A row for each slot, or one for all of a token's.
                let rows = x.reshape((x.dim(0)? * x.dim(1)?, inputs))?;
                let per_row = tokens * used / rows.dim(0)?;
                let y = moe::moe_gemm(&rows, weights, &None, &order, &experts, per_row, false)?;
                y.reshape((tokens, used, outputs))
            }
        }
    }
}

/// The experts in ascending order, and the slots in the order of their experts.
fn sorted(slots: &Tensor) -> Result<(Tensor, Tensor)> {
    slots.sort_last_dim(true)
}
