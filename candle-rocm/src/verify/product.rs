//! Ways to call rocBLAS.

use super::state::PRODUCTS;
use crate::DType;

/// A way to call a matrix product of rocBLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    /// Of the operands: f16, bf16, f32 or f64.
    pub dtype: DType,
    /// Of the result: the same, or f32.
    pub output: DType,
    /// Whether rocBLAS is asked to transpose its first and its second operand.
    pub transposed: [bool; 2],
}

impl Product {
    /// Its place among all of them.
    pub(super) fn index(&self) -> usize {
        let dtype = match self.dtype {
            DType::F16 => 0,
            DType::BF16 => 1,
            DType::F32 => 2,
            _ => 3,
        };
        let [first, second] = self.transposed.map(usize::from);
        let index = dtype << 3 | usize::from(self.output == self.dtype) << 2 | first << 1 | second;
        debug_assert!(index < PRODUCTS);
        index
    }

    /// As rocBLAS's letters have it: `f16 nt`.
    pub(super) fn name(&self) -> String {
        let [first, second] = self.transposed.map(|is| if is { 't' } else { 'n' });
        let to = match self.output == self.dtype {
            true => String::new(),
            false => format!(" to {}", self.output),
        };
        format!("rocblas/{}{to} {first}{second}", self.dtype)
    }
}
