//! What operations check of their operands, and the errors that say what is wrong.

use crate::{DType, Error, Result, View};

/// An operation by its name, which its errors begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op(pub &'static str);

impl Op {
    /// Shapes that do not fit together.
    pub fn mismatch(self, lhs: &View, rhs: &View) -> Error {
        Error::ShapeMismatch {
            op: self.0,
            lhs: lhs.dims.to_vec(),
            rhs: rhs.dims.to_vec(),
        }
    }

    /// An argument that is wrong, and what would be right.
    pub fn invalid(self, reason: impl Into<String>) -> Error {
        Error::InvalidArgument {
            op: self.0,
            reason: reason.into(),
        }
    }

    /// A dtype that the operation lacks.
    pub fn unsupported(self, dtype: DType) -> Error {
        Error::UnsupportedDType { op: self.0, dtype }
    }

    /// The first argument's dtype must be the second's.
    pub fn same_dtype(self, lhs: &View, rhs: &View) -> Result<()> {
        self.has_dtype(lhs, rhs.dtype)
    }

    /// The view's dtype must be the given one.
    pub fn has_dtype(self, view: &View, dtype: DType) -> Result<()> {
        if view.dtype == dtype {
            return Ok(());
        }
        Err(Error::DTypeMismatch {
            op: self.0,
            lhs: view.dtype,
            rhs: dtype,
        })
    }

    /// The dtype must be f16, bf16 or f32, or f64 where that is allowed.
    pub fn float(self, dtype: DType, with_f64: bool) -> Result<()> {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 => Ok(()),
            DType::F64 if with_f64 => Ok(()),
            _ => Err(self.unsupported(dtype)),
        }
    }

    /// A quantity for which the kernels have 32 bits, `limit` at most.
    pub fn narrow(self, what: &'static str, value: usize, limit: u32) -> Result<u32> {
        match u32::try_from(value) {
            Ok(narrow) if narrow <= limit => Ok(narrow),
            _ => Err(Error::TooLarge {
                op: self.0,
                what,
                value,
                limit: limit as usize,
            }),
        }
    }
}
