//! Matrix operands in the form that rocBLAS takes them.

use crate::ops::copy::copy_strided;
use crate::sys::rocblas;
use crate::{Buffer, Device, Result, View};
use std::ffi::{c_int, c_void};

/// A matrix operand as rocBLAS takes it: row-major rows of `ld` elements, or the transpose of that.
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
    fn of(view: &View) -> Option<Self> {
        let (batch, [rows, columns]) = view.dims.split_last_chunk::<2>()?;
        let (batch_strides, [row_stride, column_stride]) = view.strides.split_last_chunk::<2>()?;
        let batch_stride = uniform_stride(batch, batch_strides)?;
        // Along a dimension of one element any stride will do.
        let along_row = *columns == 1 || *column_stride == 1;
        let along_column = *rows == 1 || *row_stride == 1;
        let (transposed, ld) = if along_row && (*rows == 1 || row_stride >= columns) {
            let ld = if *rows == 1 { *columns } else { *row_stride };
            (false, ld)
        } else if along_column && (*columns == 1 || column_stride >= rows) {
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
    pub fn new(device: &Device, view: &'a View<'a>) -> Result<Self> {
        if let Some(operand) = Operand::of(view) {
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
