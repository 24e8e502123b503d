//! Matrix operands in the form that multipliers take them.

use crate::kernels::Ptr;
use crate::ops::copy::copy_strided;
use crate::ops::matmul::Matrices;
use crate::sys::rocblas;
use crate::{Buffer, DType, Device, Result, View};
use std::ffi::{c_int, c_void};

/// A matrix operand: row-major rows that begin `ld` elements apart, or the transpose of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub transposed: bool,
    /// Elements between rows as stored.
    pub ld: usize,
    /// Elements between the matrices of a batch.
    pub batch_stride: usize,
}

impl Operand {
    /// The matrices of a view, if rocBLAS can take its strides.
    pub fn of(view: &View) -> Option<Self> {
        Self::with_stride(view, |stride, length| stride >= length)
    }

    /// The matrices of a view, if its rows or its columns lie dense and `may_be(stride, length)` allows the distance
    /// between them.
    fn with_stride(view: &View, may_be: impl Fn(usize, usize) -> bool) -> Option<Self> {
        let (batch, [rows, columns]) = view.dims.split_last_chunk::<2>()?;
        let (batch_strides, [row_stride, column_stride]) = view.strides.split_last_chunk::<2>()?;
        let batch_stride = uniform_stride(batch, batch_strides)?;
        // Along a dimension of one element any stride will do.
        let along_row = *columns == 1 || *column_stride == 1;
        let along_column = *rows == 1 || *row_stride == 1;
        let (transposed, ld) = if along_row && (*rows == 1 || may_be(*row_stride, *columns)) {
            let ld = if *rows == 1 { *columns } else { *row_stride };
            (false, ld)
        } else if along_column && (*columns == 1 || may_be(*column_stride, *rows)) {
            let ld = if *columns == 1 { *rows } else { *column_stride };
            (true, ld)
        } else {
            return None;
        };
        Some(Operand {
            transposed,
            ld,
            batch_stride,
        })
    }

    pub fn operation(self) -> c_int {
        if self.transposed {
            rocblas::OPERATION_TRANSPOSE
        } else {
            rocblas::OPERATION_NONE
        }
    }
}

/// The one stride that walks all dimensions in row-major order, if there is one.
fn uniform_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut walk: Option<(usize, usize)> = None;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1) {
        walk = Some(match walk {
            None => (stride, stride.checked_mul(dim)?),
            Some((first, next)) if stride == next => (first, stride.checked_mul(dim)?),
            Some(_) => return None,
        });
    }
    Some(walk.map_or(0, |(first, _)| first))
}

/// Device memory of an operand, copied if need be.
pub(super) struct Placed<'a> {
    pub operand: Operand,
    owned: Option<Buffer>,
    view: &'a View<'a>,
}

impl<'a> Placed<'a> {
    /// With `any_stride`, rows may overlap.
    pub fn new(device: &Device, view: &'a View<'a>, any_stride: bool) -> Result<Self> {
        let operand = match any_stride {
            true => Operand::with_stride(view, |_, _| true),
            false => Operand::of(view),
        };
        if let Some(operand) = operand {
            return Ok(Placed {
                operand,
                owned: None,
                view,
            });
        }
        let copy = device.alloc(view.elem_count() * view.dtype.size_in_bytes())?;
        copy_strided(device, view, &copy, 0)?;
        let [rows, columns] = *view.dims.last_chunk::<2>().expect("checked to be matrices");
        Ok(Placed {
            operand: Operand {
                transposed: false,
                ld: columns,
                batch_stride: rows * columns,
            },
            owned: Some(copy),
            view,
        })
    }

    pub fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// As our own kernels take them, of a left operand.
    pub fn matrices(&self) -> Matrices<'_> {
        Matrices {
            at: match &self.owned {
                Some(copy) => Ptr::to(copy),
                None => Ptr::of(self.view),
            },
            along_k: !self.operand.transposed,
            stride: self.operand.ld,
            batch_stride: self.operand.batch_stride,
        }
    }

    pub fn ptr(&self) -> *const c_void {
        match &self.owned {
            Some(copy) => copy.as_ptr(),
            None => {
                let offset = self.view.offset * self.view.dtype.size_in_bytes();
                self.view.buffer.as_ptr().wrapping_byte_add(offset)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::uniform_stride;

    #[test]
    fn batch_strides_merge_only_if_one_step_walks_them() {
        assert_eq!(uniform_stride(&[], &[]), Some(0));
        assert_eq!(uniform_stride(&[2, 3], &[36, 12]), Some(12));
        assert_eq!(uniform_stride(&[2, 1, 3], &[36, 999, 12]), Some(12));
        assert_eq!(uniform_stride(&[2, 3], &[0, 0]), Some(0));
        assert_eq!(uniform_stride(&[2, 3], &[12, 0]), None);
        assert_eq!(uniform_stride(&[2, 3], &[0, 12]), None);
        assert_eq!(uniform_stride(&[1, 1], &[7, 9]), Some(0));
    }
}
