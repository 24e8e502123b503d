//! What the operations ask of the storage formats.

use crate::{DType, Error, Result};
use ggml_formats::{Encoding, Format};

/// The device's view of a format.
pub(crate) trait DeviceFormat {
    /// The dtype of the plain formats that operations take.
    fn plain(self) -> Option<DType>;

    /// Bytes that `elements` take.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a format that operations do not take, and unless the elements fill whole blocks;
    /// [`Error::TooLarge`] if their size cannot be represented.
    fn size_of(self, op: &'static str, elements: usize) -> Result<usize>;
}

impl DeviceFormat for Format {
    fn plain(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    fn size_of(self, op: &'static str, elements: usize) -> Result<usize> {
        if self.encoding() == Encoding::Plain && self.plain().is_none() {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "weights in {self} are not supported; convert them to f32, f16 or bf16"
                ),
            });
        }
        if !elements.is_multiple_of(self.block_size()) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "{elements} elements are not whole blocks of {self}, which hold {} each",
                    self.block_size()
                ),
            });
        }
        (elements / self.block_size())
            .checked_mul(self.type_size())
            .ok_or(Error::TooLarge {
                op,
                what: "element count",
                value: elements,
                limit: (usize::MAX / self.type_size()).saturating_mul(self.block_size()),
            })
    }
}
