//! RMS norm and layer norm, with and without the sum before them.

use super::check::Op;
use super::operand::Operand;
use super::quantized::{FloatActivations, QuantizedActivations, Scaling};
use super::rows::{Rows, Team, MAX_BLOCK};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Axis, Ptr};
use crate::{
    contiguous_strides, Buffer, DType, Device, Error, Family, LaunchConfig, Only, Result, View,
};
use candle_rocm_kernels::shared::norm::Shape;

kernels! {
    /// The norm of rows with a team for each.
    normalize = "{norm}{team}_{dtype}" [norm: Norm = Norm::ALL, team: Team = Team::ALL, dtype: DType = FLOATS]
        in Family::Norm, part dtype => (src: Ptr, weight: Ptr, bias: Ptr, out: Ptr, shape: Shape);

    /// The same of a sum, which is stored, too.
    normalize_sum = "add_{norm}{team}_{dtype}" [norm: Norm = Norm::ALL, team: Team = Team::ALL, dtype: DType = FLOATS]
        in Family::Norm, part dtype
        => (src: Ptr, residual: Ptr, weight: Ptr, bias: Ptr, sum: Ptr, out: Ptr, shape: Shape);

    /// The RMS norm of rows, a block for each, as floats and in 8 bits, vectors of which are `stride` apart.
    normalize_quantize = "rms_norm_{to}" [to: Eight = Eight::ALL] in to.family(), only to.only()
        => (src: Ptr, weight: Ptr, out: Ptr, quants: Ptr, shape: Shape, stride: u32);

    /// The same of a sum, which is stored, too.
    normalize_sum_quantize = "add_rms_norm_{to}" [to: Eight = Eight::ALL] in to.family(), only to.only()
        => (src: Ptr, residual: Ptr, weight: Ptr, sum: Ptr, out: Ptr, quants: Ptr, shape: Shape, stride: u32);
}

/// `x / sqrt(mean(x²) + eps) * weight` along the last dimension, of f16, bf16 or f32. `weight` is one-dimensional and
/// has the dtype and last size of `x`.
///
/// # Errors
/// Those of [`softmax_last_dim`](super::softmax::softmax_last_dim),
/// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`].
pub fn rms_norm(device: &Device, x: &View, weight: &View, eps: f32) -> Result<Buffer> {
    Norm::Rms.run(device, x, weight, None, eps)
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` along the last dimension, of f16, bf16 or f32. `weight` and
/// `bias` are one-dimensional and have the dtype and last size of `x`.
///
/// # Errors
/// Those of [`rms_norm`].
pub fn layer_norm(
    device: &Device,
    x: &View,
    weight: &View,
    bias: Option<&View>,
    eps: f32,
) -> Result<Buffer> {
    Norm::Layer.run(device, x, weight, bias, eps)
}

/// `x + residual`, rounded to the dtype, and the [`rms_norm`] of it, in one pass over memory: a residual connection and
/// the norm behind it.
///
/// # Errors
/// Those of [`rms_norm`], where `residual` must have the shape and dtype of `x`.
pub fn add_rms_norm(
    device: &Device,
    x: &View,
    residual: &View,
    weight: &View,
    eps: f32,
) -> Result<(Buffer, Buffer)> {
    Norm::Rms.run_on_sum(device, x, residual, weight, None, eps)
}

/// `x + residual`, rounded to the dtype, and the [`layer_norm`] of it, in one pass over memory.
///
/// # Errors
/// Those of [`layer_norm`], where `residual` must have the shape and dtype of `x`.
pub fn add_layer_norm(
    device: &Device,
    x: &View,
    residual: &View,
    weight: &View,
    bias: Option<&View>,
    eps: f32,
) -> Result<(Buffer, Buffer)> {
    Norm::Layer.run_on_sum(device, x, residual, weight, bias, eps)
}

/// Rows behind a norm.
pub struct Normed<Q = QuantizedActivations> {
    /// As floats.
    pub floats: Buffer,
    /// In 8 bits, for products with quantized matrices.
    pub quantized: Q,
}

/// The [`rms_norm`] of f32, as floats and in 8 bits at once: integers ([`QuantizedActivations`]) or floats
/// ([`FloatActivations`] in steps). A block of threads has a row: for few rows, each a multiple of 32 elements, or of 64.
///
/// # Errors
/// Those of [`rms_norm`] and [`QuantizedActivations::quantize`] or [`FloatActivations::quantize`].
pub fn rms_norm_quantize<Q: InEightBits>(
    device: &Device,
    x: &View,
    weight: &View,
    eps: f32,
) -> Result<Normed<Q>> {
    Ok(quantize(device, x, None, weight, eps)?.1)
}

/// The [`add_rms_norm`] of f32: the sum, and its norm as floats and in 8 bits, in one pass. Otherwise as
/// [`rms_norm_quantize`].
///
/// # Errors
/// Those of [`add_rms_norm`] and [`rms_norm_quantize`].
pub fn add_rms_norm_quantize<Q: InEightBits>(
    device: &Device,
    x: &View,
    residual: &View,
    weight: &View,
    eps: f32,
) -> Result<(Buffer, Normed<Q>)> {
    let (sum, normed) = quantize(device, x, Some(residual), weight, eps)?;
    Ok((sum.expect("there is a residual"), normed))
}

/// What activations are in 8 bits, as kernels' names end.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eight {
    Integers,
    Floats,
}

impl Eight {
    const ALL: [Eight; 2] = [Eight::Integers, Eight::Floats];

    fn family(self) -> Family {
        match self {
            Eight::Integers => Family::QuantizeActivations,
            Eight::Floats => Family::QuantizeFloats,
        }
    }

    /// The GPUs that multiply them, and so have kernels for both at once.
    fn only(self) -> Option<Only> {
        match self {
            Eight::Integers => None,
            Eight::Floats => Some(Only::Float8),
        }
    }

    fn is_there(self, device: &Device) -> Result<bool> {
        match self {
            Eight::Integers => Ok(true),
            Eight::Floats => Scaling::Steps.is_there(device),
        }
    }
}

impl std::fmt::Display for Eight {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Eight::Integers => "quantize",
            Eight::Floats => "float8",
        })
    }
}

impl Axis for Eight {}

/// Activations in 8 bits that a norm can make.
pub trait InEightBits: Sized {
    #[doc(hidden)]
    const KIND: Eight;

    #[doc(hidden)]
    fn room(op: &'static str, device: &Device, columns: usize, len: usize) -> Result<Self>;

    #[doc(hidden)]
    fn from_floats(device: &Device, x: &View) -> Result<Self>;

    /// The device memory, and the elements between the starts of vectors.
    #[doc(hidden)]
    fn memory(&self) -> (&Buffer, usize);
}

impl InEightBits for QuantizedActivations {
    const KIND: Eight = Eight::Integers;

    fn room(op: &'static str, device: &Device, columns: usize, len: usize) -> Result<Self> {
        Self::alloc(op, device, columns, len)
    }

    fn from_floats(device: &Device, x: &View) -> Result<Self> {
        Self::quantize(device, x)
    }

    fn memory(&self) -> (&Buffer, usize) {
        (self.buffer(), self.stride())
    }
}

impl InEightBits for FloatActivations {
    const KIND: Eight = Eight::Floats;

    fn room(op: &'static str, device: &Device, columns: usize, len: usize) -> Result<Self> {
        Self::alloc(op, device, columns, len, Scaling::Steps)
    }

    fn from_floats(device: &Device, x: &View) -> Result<Self> {
        Self::quantize(device, x, Scaling::Steps)
    }

    fn memory(&self) -> (&Buffer, usize) {
        (self.buffer(), self.stride())
    }
}

fn quantize<Q: InEightBits>(
    device: &Device,
    x: &View,
    residual: Option<&View>,
    weight: &View,
    eps: f32,
) -> Result<(Option<Buffer>, Normed<Q>)> {
    const OP: &str = "rms-norm to 8 bits";
    if x.dtype != DType::F32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    let works = match residual {
        _ if !Q::KIND.is_there(device)? => false,
        Some(_) => normalize_sum_quantize::of(Q::KIND)?.works(device)?,
        None => normalize_quantize::of(Q::KIND)?.works(device)?,
    };
    if !works {
        return quantize_apart(device, x, residual, weight, eps);
    }
    let rows = Rows::new(device, OP, x)?;
    let residual = residual
        .map(|residual| rows.addend(device, OP, residual))
        .transpose()?;
    let weight = rows.parameter(device, OP, weight)?;
    let floats = rows.output(device)?;
    let quantized = Q::room(OP, device, rows.count, rows.columns)?;
    let sum = residual.as_ref().map(|_| rows.output(device)).transpose()?;
    let wave = device.properties().wave_size;
    let packs = rows.columns.div_ceil(4).min(MAX_BLOCK) as u32;
    let blocks = if rows.columns == 0 { 0 } else { rows.count };
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: packs.next_multiple_of(wave),
        shared_bytes: 0,
    };
    let shape = shape(&rows, residual.as_ref(), eps);
    let (src, weight) = (rows.operand.ptr(), weight.ptr());
    let (quants, stride) = quantized.memory();
    let (out, quants, stride) = (Ptr::to(&floats), Ptr::to(quants), stride as u32);
    // SAFETY: the rows lie in their views, there is a weight for each column, and the results have room for as many
    // rows.
    unsafe {
        match (&residual, &sum) {
            (Some(residual), Some(sum)) => normalize_sum_quantize::of(Q::KIND)?.launch(
                device,
                config,
                src,
                residual.operand.ptr(),
                weight,
                Ptr::to(sum),
                out,
                quants,
                shape,
                stride,
            )?,
            _ => normalize_quantize::of(Q::KIND)?
                .launch(device, config, src, weight, out, quants, shape, stride)?,
        }
    }
    Ok((sum, Normed { floats, quantized }))
}

/// The same by a kernel for the norm and another for 8 bits.
fn quantize_apart<Q: InEightBits>(
    device: &Device,
    x: &View,
    residual: Option<&View>,
    weight: &View,
    eps: f32,
) -> Result<(Option<Buffer>, Normed<Q>)> {
    let (sum, floats) = match residual {
        Some(residual) => {
            let (sum, out) = add_rms_norm(device, x, residual, weight, eps)?;
            (Some(sum), out)
        }
        None => (None, rms_norm(device, x, weight, eps)?),
    };
    let strides = contiguous_strides(x.dims);
    let view = View::contiguous(&floats, DType::F32, x.dims, &strides);
    let quantized = Q::from_floats(device, &view)?;
    Ok((sum, Normed { floats, quantized }))
}

/// The rows as kernels have them.
pub(super) fn shape(x: &Rows, residual: Option<&Rows>, eps: f32) -> Shape {
    Shape {
        rows: x.count as u64,
        row_stride: x.stride as u64,
        residual_stride: residual.map_or(0, |r| r.stride as u64),
        columns: x.columns as u32,
        eps,
    }
}

/// The norms, as kernels' names begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norm {
    Rms,
    Layer,
}

impl std::fmt::Display for Norm {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Norm::Rms => "rms_norm",
            Norm::Layer => "layer_norm",
        })
    }
}

impl Axis for Norm {}

impl Norm {
    const ALL: [Norm; 2] = [Norm::Rms, Norm::Layer];

    /// The name for messages, of the norm and of the norm of a sum.
    const fn op(self) -> [&'static str; 2] {
        match self {
            Norm::Rms => ["rms-norm", "add-rms-norm"],
            Norm::Layer => ["layer-norm", "add-layer-norm"],
        }
    }

    fn run(
        self,
        device: &Device,
        x: &View,
        weight: &View,
        bias: Option<&View>,
        eps: f32,
    ) -> Result<Buffer> {
        let [op, _] = self.op();
        Op(op).float(x.dtype, false)?;
        let rows = Rows::new(device, op, x)?;
        let weight = rows.parameter(device, op, weight)?;
        let bias = bias
            .map(|bias| rows.parameter(device, op, bias))
            .transpose()?;
        let out = rows.output(device)?;
        let (team, config) = rows.team(device);
        // SAFETY: the rows lie in their view, weight and bias have an element for each column, and the output has room
        // for as many rows.
        unsafe {
            normalize::of(self, team, x.dtype)?.launch(
                device,
                config,
                rows.operand.ptr(),
                weight.ptr(),
                bias.as_ref().map_or(Ptr::NULL, Operand::ptr),
                Ptr::to(&out),
                shape(&rows, None, eps),
            )?;
        }
        Ok(out)
    }

    fn run_on_sum(
        self,
        device: &Device,
        x: &View,
        residual: &View,
        weight: &View,
        bias: Option<&View>,
        eps: f32,
    ) -> Result<(Buffer, Buffer)> {
        let [_, op] = self.op();
        Op(op).float(x.dtype, false)?;
        let rows = Rows::new(device, op, x)?;
        let residual = rows.addend(device, op, residual)?;
        let weight = rows.parameter(device, op, weight)?;
        let bias = bias
            .map(|bias| rows.parameter(device, op, bias))
            .transpose()?;
        let (sum, out) = (rows.output(device)?, rows.output(device)?);
        let (team, config) = rows.team(device);
        // SAFETY: as in `run`; the residual has as many rows, and the sum room for them.
        unsafe {
            normalize_sum::of(self, team, x.dtype)?.launch(
                device,
                config,
                rows.operand.ptr(),
                residual.operand.ptr(),
                weight.ptr(),
                bias.as_ref().map_or(Ptr::NULL, Operand::ptr),
                Ptr::to(&sum),
                Ptr::to(&out),
                shape(&rows, Some(&residual), eps),
            )?;
        }
        Ok((sum, out))
    }
}
