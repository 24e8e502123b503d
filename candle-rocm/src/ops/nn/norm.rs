//! RMS norm and layer norm, with and without the sum before them.

use super::rows::Rows;
use crate::ops::operand::{check_float, check_same_dtype, shape_mismatch};
use crate::{Args, Buffer, Device, Result, View};
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

/// The fields are those of `Shape` in `norm.hip`.
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
        check_same_dtype(self.add_op, x, residual)?;
        if x.dims != residual.dims {
            return Err(shape_mismatch(self.add_op, x, residual));
        }
        let rows = Rows::new(device, self.add_op, x)?;
        let residual = Rows::new(device, self.add_op, residual)?;
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
