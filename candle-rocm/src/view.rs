//! A strided window onto a buffer: what operations take as input.

use crate::{Buffer, DType, Error, Result};

/// A tensor over device memory: borrowed buffer, element type, and layout.
///
/// `offset` and `strides` count **elements**, never bytes. Dimensions are listed outermost first.
/// A stride may be 0 (broadcast). A tensor without dimensions has one element.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Memory that holds the elements.
    pub buffer: &'a Buffer,
    /// Type of each element.
    pub dtype: DType,
    /// Elements before the first one, from the start of the buffer.
    pub offset: usize,
    /// Size of each dimension.
    pub dims: &'a [usize],
    /// Distance between neighbours in each dimension, in elements.
    pub strides: &'a [usize],
}

impl<'a> View<'a> {
    /// A view from the start of the buffer. A view owns nothing, so the caller keeps the row-major
    /// `strides` of `dims`, which [`contiguous_strides`] computes.
    pub fn contiguous(
        buffer: &'a Buffer,
        dtype: DType,
        dims: &'a [usize],
        strides: &'a [usize],
    ) -> Self {
        View {
            buffer,
            dtype,
            offset: 0,
            dims,
            strides,
        }
    }

    /// Number of elements: the product of the dimensions.
    pub fn elem_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether the elements lie next to each other in row-major order, without gaps.
    /// Dimensions of size 1 may have any stride; a view without elements is contiguous.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&dim, &stride) in self.dims.iter().zip(self.strides).rev() {
            if dim == 0 {
                return true;
            }
            if dim != 1 && stride != expected {
                return false;
            }
            expected *= dim;
        }
        true
    }

    /// Elements between the first and one past the last that the view can touch; 0 for a view without
    /// elements, `None` if the layout's arithmetic overflows.
    pub fn span(&self) -> Option<usize> {
        let mut last = 0usize;
        for (&dim, &stride) in self.dims.iter().zip(self.strides) {
            if dim == 0 {
                return Some(0);
            }
            last = last.checked_add((dim - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    }

    /// Verifies that the layout is well-formed and stays inside the buffer.
    ///
    /// # Errors
    /// [`Error::InvalidView`] with the name of the operation that was asked for.
    pub fn check(&self, op: &'static str) -> Result<()> {
        let fits = self.dims.len() == self.strides.len()
            && self.span().is_some_and(|span| {
                span == 0
                    || self
                        .offset
                        .checked_add(span)
                        .and_then(|end| end.checked_mul(self.dtype.size_in_bytes()))
                        .is_some_and(|end| end <= self.buffer.len())
            });
        if fits {
            return Ok(());
        }
        Err(Error::InvalidView {
            op,
            dtype: self.dtype,
            offset: self.offset,
            dims: self.dims.to_vec(),
            strides: self.strides.to_vec(),
            buffer_bytes: self.buffer.len(),
        })
    }
}

/// Row-major strides of a tensor without gaps, in elements.
pub fn contiguous_strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}
