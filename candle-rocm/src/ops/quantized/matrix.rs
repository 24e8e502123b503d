//! A quantized matrix, and what is done to its products before they are stored.

use super::format::DeviceFormat;
use super::Format;
use crate::{Buffer, DType, Device, Error, Result, View};
pub(super) use candle_rocm_kernels::shared::quantized::Output;
use candle_rocm_kernels::shared::quantized::{
    ACTIVATION_GELU, ACTIVATION_GELU_ERF, ACTIVATION_NONE, ACTIVATION_SILU, OUTPUT_BF16,
    OUTPUT_F16, OUTPUT_F32,
};
use std::ffi::c_void;
use std::ptr;

/// A matrix of `rows` by `cols` in a ggml format, row after row in whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMatrix<'a> {
    /// How the elements are stored.
    pub format: Format,
    /// The device memory.
    pub buffer: &'a Buffer,
    /// Bytes before the first row.
    pub offset: usize,
    /// Rows, each giving one output.
    pub rows: usize,
    /// Elements of a row, whole blocks of the format.
    pub cols: usize,
}

impl<'a> QuantizedMatrix<'a> {
    /// A matrix from the start of a buffer.
    pub fn new(format: Format, buffer: &'a Buffer, rows: usize, cols: usize) -> Self {
        QuantizedMatrix {
            format,
            buffer,
            offset: 0,
            rows,
            cols,
        }
    }

    /// Bytes of a row, after verifying that the matrix lies in its buffer.
    pub(in crate::ops) fn check(&self, op: &'static str) -> Result<usize> {
        check_u32(op, "row count", self.rows)?;
        check_u32(op, "column count", self.cols)?;
        let row_bytes = self.format.size_of(op, self.cols)?;
        // Rows are whole blocks and both counts are below 2^32.
        let bytes = self.format.size_of(op, self.rows * self.cols)?;
        self.buffer.check_range(op, self.offset, bytes)?;
        Ok(row_bytes)
    }

    pub(super) fn address(&self) -> *const u8 {
        self.buffer
            .as_ptr()
            .cast_const()
            .cast::<u8>()
            .wrapping_add(self.offset)
    }
}

/// Functions that a product with two matrices applies to the first, and a product with one to its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// GELU by tanh.
    Gelu,
    /// GELU by erf.
    GeluErf,
}

/// What is done to each sum: `activation(sum + bias) + residual`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Contiguous `[rows]` in the result's dtype.
    pub bias: Option<View<'a>>,
    /// The function.
    pub activation: Option<Activation>,
    /// Contiguous, of the result's shape and dtype.
    pub residual: Option<View<'a>>,
}

impl Epilogue<'_> {
    /// As products take it, for `columns` times `rows` results in `y`.
    pub(in crate::ops) fn raw(
        &self,
        op: &'static str,
        device: &Device,
        y: &Buffer,
        dtype: DType,
        (columns, rows): (usize, usize),
    ) -> Result<Output> {
        let address = |view: &Option<View>, count: usize| -> Result<*const c_void> {
            let Some(view) = view else {
                return Ok(ptr::null());
            };
            view.check(op)?;
            if view.dtype != dtype {
                return Err(Error::DTypeMismatch {
                    op,
                    lhs: dtype,
                    rhs: view.dtype,
                });
            }
            if view.elem_count() != count {
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: vec![columns, rows],
                    rhs: view.dims.to_vec(),
                });
            }
            if !view.is_contiguous() {
                return Err(Error::InvalidArgument {
                    op,
                    reason: format!(
                        "bias and residual must be contiguous, not of shape {:?} with strides {:?}; make them contiguous first",
                        view.dims, view.strides
                    ),
                });
            }
            if !view.buffer.device().same_device(device) {
                return Err(Error::DeviceMismatch { op });
            }
            let at = view.offset * dtype.size_in_bytes();
            Ok(view.buffer.as_ptr().cast_const().wrapping_byte_add(at))
        };
        Ok(Output {
            y: y.as_ptr(),
            bias: address(&self.bias, rows)?,
            residual: address(&self.residual, columns * rows)?,
            dtype: output_type(op, dtype)?,
            activation: match self.activation {
                None => ACTIVATION_NONE,
                Some(Activation::Silu) => ACTIVATION_SILU,
                Some(Activation::Gelu) => ACTIVATION_GELU,
                Some(Activation::GeluErf) => ACTIVATION_GELU_ERF,
            },
        })
    }
}

/// Number of a result's dtype.
fn output_type(op: &'static str, dtype: DType) -> Result<u32> {
    match dtype {
        DType::F32 => Ok(OUTPUT_F32),
        DType::F16 => Ok(OUTPUT_F16),
        DType::BF16 => Ok(OUTPUT_BF16),
        _ => Err(Error::UnsupportedDType { op, dtype }),
    }
}

pub(in crate::ops) fn check_u32(op: &'static str, what: &'static str, value: usize) -> Result<()> {
    if value <= u32::MAX as usize {
        return Ok(());
    }
    Err(Error::TooLarge {
        op,
        what,
        value,
        limit: u32::MAX as usize,
    })
}

pub(super) fn check_blocks_of_32(op: &'static str, len: usize) -> Result<()> {
    if len.is_multiple_of(32) {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        op,
        reason: format!("vectors of {len} elements; quantized products take multiples of 32"),
    })
}
