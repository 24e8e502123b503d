//! What ControlNets add to the blocks of a transformer.

use candle_core::{Result, Tensor};

/// How the residuals of a network with fewer blocks are given out to those of the transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Each to the same number of neighbouring blocks, rounded up, so that the last may get fewer (FLUX.1).
    Groups,
    /// Each to its share of the blocks, which need not be a whole number (Stable Diffusion 3).
    Shares,
    /// In turns (XLabs' for FLUX.1).
    Turns,
}

impl Spread {
    /// For each of so many blocks the residual that it gets; none where there are no residuals.
    pub fn over(self, residuals: &[Tensor], blocks: usize) -> Vec<Tensor> {
        let count = residuals.len();
        if count == 0 {
            return Vec::new();
        }
        let index = |block: usize| match self {
            Self::Groups => block / blocks.div_ceil(count).max(1),
            // As diffusers computes it, with the rounding of a division.
            Self::Shares => (block as f64 / (blocks as f64 / count as f64)) as usize,
            Self::Turns => block % count,
        };
        let index = |block| index(block).min(count - 1);
        (0..blocks)
            .map(|block| residuals[index(block)].clone())
            .collect()
    }
}

/// What is added behind the blocks of a transformer.
#[derive(Debug, Clone, Default)]
pub struct BlockResiduals {
    /// For the blocks with layers of their own for picture and text, `(batch, patches, width)` each; or none.
    pub double: Vec<Tensor>,
    /// For the others.
    pub single: Vec<Tensor>,
}

impl BlockResiduals {
    /// Those of two networks together, which are for the same transformer.
    ///
    /// # Errors
    /// If shapes differ, or the device fails.
    pub fn plus(self, other: Self) -> Result<Self> {
        let sums = |a: Vec<Tensor>, b: Vec<Tensor>| match (a.as_slice(), b.as_slice()) {
            (_, []) => Ok(a),
            ([], _) => Ok(b),
            (a, b) => a.iter().zip(b).map(|(a, b)| a + b).collect(),
        };
        Ok(Self {
            double: sums(self.double, other.double)?,
            single: sums(self.single, other.single)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// The indices that diffusers' transformers compute.
    #[test]
    fn residuals_for_more_blocks() {
        let over = |spread: Spread, count: u32, blocks| -> Vec<u32> {
            let residuals = (0..count).map(|i| Tensor::new(i, &Device::Cpu).unwrap());
            let residuals: Vec<Tensor> = residuals.collect();
            let given = spread.over(&residuals, blocks);
            given.iter().map(|x| x.to_scalar().unwrap()).collect()
        };
        assert_eq!(over(Spread::Groups, 2, 3), [0, 0, 1]);
        assert_eq!(over(Spread::Groups, 4, 5), [0, 0, 1, 1, 2]);
        assert_eq!(over(Spread::Shares, 4, 5), [0, 0, 1, 2, 3]);
        assert_eq!(over(Spread::Turns, 2, 5), [0, 1, 0, 1, 0]);
        assert_eq!(over(Spread::Groups, 3, 2), [0, 1]);
        assert_eq!(over(Spread::Shares, 0, 2), [0u32; 0]);
    }
}
