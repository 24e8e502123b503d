//! Gradients of RMS norm and layer norm.

use super::check::Op;
use super::norm::shape;
use super::rows::{Rows, Team};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::backward::{Statistics, PART_COLUMNS, PART_THREADS};
use candle_rocm_kernels::shared::norm::Shape;

kernels! {
    /// Gradients of rows with a team for each, and what their norms did.
    of_rows = "{norm}_backward{team}_{dtype}" [norm: Norm = Norm::ALL, team: Team = Team::ALL, dtype: DType = FLOATS]
        in Family::NormBackward
        => (src: Ptr, grad: Ptr, weight: Ptr, out: Ptr, statistics: Ptr, shape: Shape);

    /// Sums over parts of the rows, for the gradients of weight and bias.
    column_parts = "norm_column_parts_{dtype}" [dtype: DType = FLOATS] in Family::NormBackward
        => (src: Ptr, grad: Ptr, statistics: Ptr, weights: Ptr, biases: Ptr, shape: Shape, parts: u32);

    /// The sums of the parts.
    columns = "norm_columns_{dtype}" [dtype: DType = FLOATS] in Family::NormBackward
        => (sums: Ptr, out: Ptr, columns: u32, parts: u32);
}

/// Rows of a part at least, and parts at most, which one thread sums.
const PART_ROWS: usize = 16;
/// See `PART_ROWS`.
const MAX_PARTS: usize = 64;

/// Gradients of a norm, in the dtype of its input.
pub struct NormGradients {
    /// Of the input.
    pub x: Buffer,
    /// Of the weight, if asked for.
    pub weight: Option<Buffer>,
    /// Of the bias, if asked for.
    pub bias: Option<Buffer>,
}

/// Which gradients of parameters are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The weight's.
    pub weight: bool,
    /// The bias's.
    pub bias: bool,
}

/// The gradients of [`rms_norm`](super::norm::rms_norm), given that of its result, which has the shape and dtype of `x`.
/// Sums are taken in f32, in an order that depends on the shape and the GPU alone.
///
/// # Errors
/// Those of [`rms_norm`](super::norm::rms_norm).
pub fn rms_norm_backward(
    device: &Device,
    x: &View,
    weight: &View,
    grad: &View,
    eps: f32,
    wanted: Wanted,
) -> Result<NormGradients> {
    backward(device, Norm::Rms, x, weight, grad, eps, wanted)
}

/// The gradients of [`layer_norm`](super::norm::layer_norm), otherwise as [`rms_norm_backward`].
///
/// # Errors
/// Those of [`rms_norm_backward`].
pub fn layer_norm_backward(
    device: &Device,
    x: &View,
    weight: &View,
    grad: &View,
    eps: f32,
    wanted: Wanted,
) -> Result<NormGradients> {
    backward(device, Norm::Layer, x, weight, grad, eps, wanted)
}

/// The norms, as kernels' names begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Norm {
    Rms,
    Layer,
}

impl Norm {
    const ALL: [Norm; 2] = [Norm::Rms, Norm::Layer];
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

fn backward(
    device: &Device,
    norm: Norm,
    x: &View,
    weight: &View,
    grad: &View,
    eps: f32,
    wanted: Wanted,
) -> Result<NormGradients> {
    let op = match norm {
        Norm::Rms => "rms-norm gradient",
        Norm::Layer => "layer-norm gradient",
    };
    Op(op).float(x.dtype, false)?;
    let dtype = x.dtype;
    let rows = Rows::new(device, op, x)?;
    let grads = rows.addend(device, op, grad)?;
    let weight = rows.parameter(device, op, weight)?;
    let out = rows.output(device)?;
    let statistics = device.alloc(rows.count * size_of::<Statistics>())?;
    let shape = shape(&rows, Some(&grads), eps);
    let (team, config) = rows.team(device);
    let (src, grad) = (rows.operand.ptr(), grads.operand.ptr());
    let between = Ptr::to(&statistics);
    // SAFETY: the rows lie in their views, the weight has an element for each column, and there is room for as many rows
    // and their statistics.
    unsafe {
        of_rows::of(norm, team, dtype)?.launch(
            device,
            config,
            src,
            grad,
            weight.ptr(),
            Ptr::to(&out),
            between,
            shape,
        )?;
    }
    let mut gradients = NormGradients {
        x: out,
        weight: None,
        bias: None,
    };
    if !(wanted.weight || wanted.bias) {
        return Ok(gradients);
    }
    let blocks = rows.columns.div_ceil(PART_COLUMNS as usize);
    let units = device.properties().compute_units as usize;
    let parts = (4 * units)
        .div_ceil(blocks.max(1))
        .min(rows.count / PART_ROWS)
        .clamp(1, MAX_PARTS);
    let bytes = parts * rows.columns * DType::F32.size_in_bytes();
    let weights = device.alloc(bytes)?;
    let biases = wanted.bias.then(|| device.alloc(bytes)).transpose()?;
    let config = LaunchConfig {
        grid: (blocks * parts) as u32,
        block: PART_THREADS,
        shared_bytes: 0,
    };
    let to = biases.as_ref().map_or(Ptr::NULL, Ptr::to);
    // SAFETY: as above, and there is room for the sums of all parts.
    unsafe {
        column_parts::of(dtype)?.launch(
            device,
            config,
            src,
            grad,
            between,
            Ptr::to(&weights),
            to,
            shape,
            parts as u32,
        )?;
    }
    let total = |sums: &Buffer| -> Result<Buffer> {
        let out = device.alloc(rows.columns * dtype.size_in_bytes())?;
        let config = LaunchConfig::for_elements(rows.columns);
        let (columns_of_row, parts) = (rows.columns as u32, parts as u32);
        // SAFETY: there are sums of all parts, and room for one of each column.
        unsafe {
            columns::of(dtype)?.launch(
                device,
                config,
                Ptr::to(sums),
                Ptr::to(&out),
                columns_of_row,
                parts,
            )?;
        }
        Ok(out)
    };
    gradients.weight = wanted.weight.then(|| total(&weights)).transpose()?;
    gradients.bias = biases.as_ref().map(total).transpose()?;
    Ok(gradients)
}
