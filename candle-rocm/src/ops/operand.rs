//! Operands in the form that kernels can read.

use super::check::Op;
use super::copy::contiguous;
use crate::kernels::Ptr;
use crate::{contiguous_strides, Buffer, Device, Result, View};

/// An operand as it is, or a contiguous copy of it.
#[derive(Debug)]
pub(super) struct Operand<'a> {
    /// The operand as it was given.
    pub view: View<'a>,
    /// The copy, with its strides.
    copy: Option<(Buffer, Vec<usize>)>,
}

impl<'a> Operand<'a> {
    /// As it is.
    pub fn in_place(view: &View<'a>) -> Self {
        Operand {
            view: *view,
            copy: None,
        }
    }

    /// A copy, unless it is contiguous.
    pub fn contiguous(device: &Device, view: &View<'a>) -> Result<Self> {
        match view.is_contiguous() {
            true => Ok(Self::in_place(view)),
            false => Self::copied(device, view),
        }
    }

    /// A copy, unless its last dimension is dense and, if that is asked for, each row can be loaded `vector` elements
    /// at a time: addresses are multiples of these, or of 16 bytes.
    pub fn with_dense_rows(
        op: Op,
        device: &Device,
        view: &View<'a>,
        vector: Option<usize>,
    ) -> Result<Self> {
        view.check(op.0)?;
        let last = view.dims.len() - 1;
        let is_dense = view.strides[last] == 1 || view.dims[last] <= 1;
        let is_aligned = vector.is_none_or(|vector| {
            let size = view.dtype.size_in_bytes();
            let address = view.buffer.as_ptr() as usize + view.offset * size;
            let mut starts = view.dims[..last].iter().zip(&view.strides[..last]);
            address.is_multiple_of(16.min(vector * size))
                && starts.all(|(dim, stride)| *dim <= 1 || stride.is_multiple_of(vector))
        });
        match is_dense && is_aligned {
            true => Ok(Self::in_place(view)),
            false => Self::copied(device, view),
        }
    }

    fn copied(device: &Device, view: &View<'a>) -> Result<Self> {
        Ok(Operand {
            view: *view,
            copy: Some((contiguous(device, view)?, contiguous_strides(view.dims))),
        })
    }

    /// The memory to read.
    pub fn view(&self) -> View<'_> {
        match &self.copy {
            Some((buffer, strides)) => View {
                buffer,
                offset: 0,
                strides,
                ..self.view
            },
            None => self.view,
        }
    }

    /// Its first element.
    pub fn ptr(&self) -> Ptr<'_> {
        Ptr::of(&self.view())
    }
}
