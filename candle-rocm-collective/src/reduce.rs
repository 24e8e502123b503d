//! How tensors of several ranks become one.

use candle::{Result, Tensor};

/// How an element of several ranks becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The sum, added up in the order of ranks.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Reduce {
    /// One of many, in their order; halves are added up in f32 and rounded once.
    pub(crate) fn fold(self, parts: &[Tensor]) -> Result<Tensor> {
        let Some((first, others)) = parts.split_first() else {
            candle::bail!("nothing to reduce");
        };
        let dtype = first.dtype();
        let wide = match dtype {
            candle::DType::F16 | candle::DType::BF16 if self == Self::Sum => candle::DType::F32,
            other => other,
        };
        let mut total = first.to_dtype(wide)?;
        for part in others {
            let part = part.to_dtype(wide)?;
            total = match self {
                Self::Sum => (total + part)?,
                Self::Max => total.maximum(&part)?,
                Self::Min => total.minimum(&part)?,
            };
        }
        total.to_dtype(dtype)
    }
}
