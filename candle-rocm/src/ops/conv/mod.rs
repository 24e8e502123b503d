//! Convolutions, plain and transposed, of sequences and images.
//!
//! A sequence is an image of height 1. Most problems are matrix products: the input is laid out as columns first
//! (plain), or the product's columns are summed after (transposed). Sums are made in f32, for f64 in f64, and rounded
//! once; results do not vary from run to run. Integers and f8e4m3, of which no library multiplies matrices, are always
//! computed directly. What would need columns is computed by MIOpen instead where [`miopen`](crate::miopen) finds that
//! worth it.

mod in_miopen;
mod methods;
mod problem;

use crate::{Buffer, DeclaredKernel, Device, Result, View};
use problem::{Axis, Problem};

/// Every kernel that is declared here.
pub(in crate::ops) fn declared() -> Vec<DeclaredKernel> {
    methods::declared()
}

/// Largest workspace that `Method::select` asks for: the columns of a few large images keep a large GPU busy, and it is
/// small beside any model that convolves.
pub const WORKSPACE_BYTES: usize = 64 << 20;

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One matrix product of input and kernel as they are: kernels of one element, stride 1, no padding.
    Product,
    /// A matrix product with columns in a workspace of at most so many bytes, or of one position (plain) or channel
    /// (transposed).
    Columns {
        /// Limit of the workspace.
        workspace_bytes: usize,
    },
    /// One thread per output element.
    Direct,
}

/// Options of a convolution, the same in every spatial dimension.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Zeros around the input on each side.
    pub padding: usize,
    /// Distance of neighbouring outputs in the input.
    pub stride: usize,
    /// Distance of neighbouring kernel elements in the input.
    pub dilation: usize,
    /// `None`: what suits the sizes, MIOpen included.
    pub method: Option<Method>,
}

impl Default for Conv {
    fn default() -> Self {
        Conv {
            padding: 0,
            stride: 1,
            dilation: 1,
            method: None,
        }
    }
}

/// Options of a transposed convolution, the same in every spatial dimension.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose {
    /// Elements cut off the output on each side.
    pub padding: usize,
    /// Elements added to the output at the end.
    pub output_padding: usize,
    /// Distance of neighbouring inputs in the output.
    pub stride: usize,
    /// Distance of neighbouring kernel elements in the output.
    pub dilation: usize,
    /// `None`: what suits the sizes, MIOpen included.
    pub method: Option<Method>,
}

impl Default for ConvTranspose {
    fn default() -> Self {
        ConvTranspose {
            padding: 0,
            output_padding: 0,
            stride: 1,
            dilation: 1,
            method: None,
        }
    }
}

/// Convolution of `x`, `[batch, c_in, length]`, with `kernel`, `[c_out, c_in, k]`: `[batch, c_out, out]` where
/// `out = (length + 2 padding - dilation (k - 1) - 1) / stride + 1`. Both of one dtype; integers wrap.
///
/// # Errors
/// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch), [`Error::ShapeMismatch`](crate::Error::ShapeMismatch),
/// [`Error::InvalidView`](crate::Error::InvalidView); [`Error::InvalidArgument`](crate::Error::InvalidArgument) for
/// options that leave no output and a method that does not apply; [`Error::TooLarge`](crate::Error::TooLarge) beyond 32
/// bits of elements; those of [`crate::blas::matmul`].
pub fn conv1d(device: &Device, x: &View, kernel: &View, options: Conv) -> Result<Buffer> {
    forward::<3>(device, "conv1d", x, kernel, options)
}

/// As [`conv1d`], of `x`, `[batch, c_in, height, width]`, with `kernel`, `[c_out, c_in, k_height, k_width]`.
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv2d(device: &Device, x: &View, kernel: &View, options: Conv) -> Result<Buffer> {
    forward::<4>(device, "conv2d", x, kernel, options)
}

/// Transposed convolution of `x`, `[batch, c_in, length]`, with `kernel`, `[c_in, c_out, k]`: `[batch, c_out, out]`
/// where `out = (length - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1`. Both of one dtype; integers
/// wrap.
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv_transpose1d(
    device: &Device,
    x: &View,
    kernel: &View,
    options: ConvTranspose,
) -> Result<Buffer> {
    transposed::<3>(device, "conv_transpose1d", x, kernel, options)
}

/// As [`conv_transpose1d`], of `x`, `[batch, c_in, height, width]`, with `kernel`, `[c_in, c_out, k_height, k_width]`.
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv_transpose2d(
    device: &Device,
    x: &View,
    kernel: &View,
    options: ConvTranspose,
) -> Result<Buffer> {
    transposed::<4>(device, "conv_transpose2d", x, kernel, options)
}

fn forward<const RANK: usize>(
    device: &Device,
    op: &'static str,
    x: &View,
    kernel: &View,
    options: Conv,
) -> Result<Buffer> {
    let axis = Axis {
        transposed: false,
        padding: options.padding,
        output_padding: 0,
        stride: options.stride,
        dilation: options.dilation,
    };
    Problem::new::<RANK>(op, x, kernel, axis)?.run(device, options.method)
}

fn transposed<const RANK: usize>(
    device: &Device,
    op: &'static str,
    x: &View,
    kernel: &View,
    options: ConvTranspose,
) -> Result<Buffer> {
    let axis = Axis {
        transposed: true,
        padding: options.padding,
        output_padding: options.output_padding,
        stride: options.stride,
        dilation: options.dilation,
    };
    Problem::new::<RANK>(op, x, kernel, axis)?.run(device, options.method)
}
