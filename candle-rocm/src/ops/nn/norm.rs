//! RMS norm and layer norm, with and without the sum before them.

use super::rows::{Rows, MAX_BLOCK};
use crate::ops::operand::check_float;
use crate::ops::quantized::QuantizedActivations;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// `x / sqrt(mean(x²) + eps) * weight` along the last dimension, of f16, bf16 or f32. `weight` is one-dimensional and has the dtype and
/// last size of `x`.
///
/// # Errors
/// Those of [`softmax_last_dim`](super::softmax_last_dim), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) and
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
pub fn rms_norm(device: &Device, x: &View, weight: &View, eps: f32) -> Result<Buffer> {
    Norm::RMS.run(device, x, weight, None, eps)
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` along the last dimension, of f16, bf16 or f32. `weight` and `bias` are
/// one-dimensional and have the dtype and last size of `x`.
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
    Norm::LAYER.run(device, x, weight, bias, eps)
}

/// `x + residual`, rounded to the dtype, and the [`rms_norm`] of it, in one pass over memory: a residual connection and the norm behind it.
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
    Norm::RMS.run_on_sum(device, x, residual, weight, None, eps)
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
    Norm::LAYER.run_on_sum(device, x, residual, weight, bias, eps)
}

/// Rows behind a norm.
pub struct Normed {
    /// As floats.
    pub floats: Buffer,
    /// In 8 bits, for products with quantized matrices.
    pub quantized: QuantizedActivations,
}

/// The [`rms_norm`] of f32, as floats and in 8 bits at once. A block of threads has a row: for few rows, each a multiple of 32 elements.
///
/// # Errors
/// Those of [`rms_norm`] and [`QuantizedActivations::quantize`].
pub fn rms_norm_quantize(device: &Device, x: &View, weight: &View, eps: f32) -> Result<Normed> {
    Ok(quantize(device, x, None, weight, eps)?.1)
}

/// The [`add_rms_norm`] of f32: the sum, and its norm as floats and in 8 bits, in one pass. Otherwise as [`rms_norm_quantize`].
///
/// # Errors
/// Those of [`add_rms_norm`] and [`QuantizedActivations::quantize`].
pub fn add_rms_norm_quantize(
    device: &Device,
    x: &View,
    residual: &View,
    weight: &View,
    eps: f32,
) -> Result<(Buffer, Normed)> {
    let (sum, normed) = quantize(device, x, Some(residual), weight, eps)?;
    Ok((sum.expect("there is a residual"), normed))
}

fn quantize(
    device: &Device,
    x: &View,
    residual: Option<&View>,
    weight: &View,
    eps: f32,
) -> Result<(Option<Buffer>, Normed)> {
    const OP: &str = "rms-norm to 8 bits";
    if x.dtype != DType::F32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    let rows = Rows::new(device, OP, x)?;
    let residual = residual
        .map(|residual| rows.addend(device, OP, residual))
        .transpose()?;
    let weight = rows.parameter(device, OP, weight)?;
    let floats = rows.output(device)?;
    let quantized = QuantizedActivations::alloc(OP, device, rows.count, rows.columns)?;
    let args = rows.operand.push(Args::new());
    let args = match &residual {
        Some(residual) => residual.operand.push(args),
        None => args,
    };
    let sum = residual.as_ref().map(|_| rows.output(device)).transpose()?;
    let args = weight.push(args);
    let args = match &sum {
        Some(sum) => args.ptr(sum, 0),
        None => args,
    };
    let args = args
        .ptr(&floats, 0)
        .ptr(quantized.buffer(), 0)
        .value(&Shape::new(&rows, residual.as_ref(), eps))
        .u32(quantized.stride() as u32);
    if rows.count * rows.columns > 0 {
        let wave = device.properties().wave_size;
        let packs = rows.columns.div_ceil(4).min(MAX_BLOCK) as u32;
        let config = LaunchConfig {
            grid: rows.count.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: packs.next_multiple_of(wave),
            shared_bytes: 0,
        };
        let name = match residual {
            Some(_) => "add_rms_norm_quantize",
            None => "rms_norm_quantize",
        };
        device
            .kernel(Family::QuantizeActivations, name)?
            .launch(config, &args)?;
    }
    Ok((sum, Normed { floats, quantized }))
}

/// The fields are those of `Shape` in `norm.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    rows: u64,
    row_stride: u64,
    residual_stride: u64,
    columns: u32,
    eps: f32,
}

impl Shape {
    fn new(x: &Rows, residual: Option<&Rows>, eps: f32) -> Self {
        Shape {
            rows: x.count as u64,
            row_stride: x.stride as u64,
            residual_stride: residual.map_or(0, |r| r.stride as u64),
            columns: x.columns as u32,
            eps,
        }
    }
}

/// Names for messages and of kernels.
struct Norm {
    op: &'static str,
    kernel: &'static str,
    add_op: &'static str,
    add_kernel: &'static str,
}

impl Norm {
    const RMS: Norm = Norm {
        op: "rms-norm",
        kernel: "rms_norm",
        add_op: "add-rms-norm",
        add_kernel: "add_rms_norm",
    };
    const LAYER: Norm = Norm {
        op: "layer-norm",
        kernel: "layer_norm",
        add_op: "add-layer-norm",
        add_kernel: "add_layer_norm",
    };

    fn run(
        &self,
        device: &Device,
        x: &View,
        weight: &View,
        bias: Option<&View>,
        eps: f32,
    ) -> Result<Buffer> {
        check_float(self.op, x.dtype, false)?;
        let rows = Rows::new(device, self.op, x)?;
        let weight = rows.parameter(device, self.op, weight)?;
        let bias = bias
            .map(|bias| rows.parameter(device, self.op, bias))
            .transpose()?;
        let out = rows.output(device)?;
        let args = weight.push(rows.operand.push(Args::new()));
        let args = match &bias {
            Some(bias) => bias.push(args),
            None => args.u64(0),
        };
        let args = args.ptr(&out, 0).value(&Shape::new(&rows, None, eps));
        rows.launch(device, Family::Norm, self.kernel, &args)?;
        Ok(out)
    }

    fn run_on_sum(
        &self,
        device: &Device,
        x: &View,
        residual: &View,
        weight: &View,
        bias: Option<&View>,
        eps: f32,
    ) -> Result<(Buffer, Buffer)> {
        check_float(self.add_op, x.dtype, false)?;
        let rows = Rows::new(device, self.add_op, x)?;
        let residual = rows.addend(device, self.add_op, residual)?;
        let weight = rows.parameter(device, self.add_op, weight)?;
        let bias = bias
            .map(|bias| rows.parameter(device, self.add_op, bias))
            .transpose()?;
        let (sum, out) = (rows.output(device)?, rows.output(device)?);
        let args = residual.operand.push(rows.operand.push(Args::new()));
        let args = weight.push(args);
        let args = match &bias {
            Some(bias) => bias.push(args),
            None => args.u64(0),
        };
        let shape = Shape::new(&rows, Some(&residual), eps);
        let args = args.ptr(&sum, 0).ptr(&out, 0).value(&shape);
        rows.launch(device, Family::Norm, self.add_kernel, &args)?;
        Ok((sum, out))
    }
}
