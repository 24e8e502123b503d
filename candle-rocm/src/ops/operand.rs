//! What operations that want dense operands share.

use super::copy::contiguous;
use crate::{Args, Buffer, DType, Device, Error, Result, View};

/// An operand that the kernels can read: as it is, or a contiguous copy.
pub(super) struct Operand<'a> {
    copy: Option<Buffer>,
    pub view: &'a View<'a>,
}

impl<'a> Operand<'a> {
    pub fn in_place(view: &'a View<'a>) -> Self {
        Operand { copy: None, view }
    }

    pub fn contiguous(device: &Device, view: &'a View<'a>) -> Result<Self> {
        let copy = if view.is_contiguous() {
            None
        } else {
            Some(contiguous(device, view)?)
        };
        Ok(Operand { copy, view })
    }

    pub fn push(&self, args: Args) -> Args {
        match &self.copy {
            Some(copy) => args.ptr(copy, 0),
            None => args.ptr(
                self.view.buffer,
                self.view.offset * self.view.dtype.size_in_bytes(),
            ),
        }
    }
}

pub(super) fn check_float(op: &'static str, dtype: DType, with_f64: bool) -> Result<()> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => Ok(()),
        DType::F64 if with_f64 => Ok(()),
        _ => Err(Error::UnsupportedDType { op, dtype }),
    }
}

pub(super) fn check_same_dtype(op: &'static str, lhs: &View, rhs: &View) -> Result<()> {
    if lhs.dtype == rhs.dtype {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op,
        lhs: lhs.dtype,
        rhs: rhs.dtype,
    })
}

pub(super) fn shape_mismatch(op: &'static str, lhs: &View, rhs: &View) -> Error {
    Error::ShapeMismatch {
        op,
        lhs: lhs.dims.to_vec(),
        rhs: rhs.dims.to_vec(),
    }
}
