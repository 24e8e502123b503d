//! What goes from one stage of a model to the next one.

use super::network::Network;
use super::norm::Residual;
use candle_core::{bail, DType, Result, Tensor};

/// What a pass of rows comes to.
pub(super) enum Passed {
    /// The stream behind the last block.
    Stream(Residual),
    /// What the next stage goes on with, as [`Network::arriving`] of that one tells.
    Crossing(Vec<Tensor>),
}

/// What the rows of a step come to.
pub(super) enum Left {
    /// What the output matrix would be applied to, `(outputs, width)`.
    Rows(Tensor),
    /// What the next stage goes on with.
    Crossing(Vec<Tensor>),
}

/// The pass of rows where blocks begin: the stream, or several, and what blocks are given besides.
pub(super) struct Entering {
    pub stream: Tensor,
    /// `(rows, blocks of this part and behind, size)`.
    pub per_block: Option<Tensor>,
}

impl Network {
    /// Shapes and dtypes of what a stage takes from the one before, of so many rows.
    pub(super) fn arriving(&self, rows: usize) -> Vec<(Vec<usize>, DType)> {
        let c = &self.config;
        let stream = match c.streams() {
            Some(streams) => vec![rows, streams.count, c.width],
            None => vec![rows, c.width],
        };
        let mut all = vec![(stream, self.activations)];
        if c.per_block() > 0 {
            let behind = c.blocks - self.part.blocks.start;
            all.push((vec![rows, behind, c.per_block()], self.activations));
        }
        if c.has_first_values() {
            all.push((vec![rows, c.width], DType::F32));
        }
        all
    }

    /// Takes what the stage before left behind.
    pub(super) fn enter(&self, arrived: &[Tensor]) -> Result<Entering> {
        let rows = arrived.first().map_or(0, |stream| stream.dims()[0]);
        let expected = self.arriving(rows);
        let fits = |(tensor, (shape, dtype)): (&Tensor, &(Vec<usize>, DType))| {
            tensor.dims() == shape && tensor.dtype() == *dtype
        };
        if arrived.len() != expected.len() || !arrived.iter().zip(&expected).all(fits) {
            bail!("{arrived:?} came from the stage before, in place of {expected:?}")
        }
        let mut rest = arrived[1..].iter().cloned();
        let per_block = match self.config.per_block() {
            0 => None,
            _ => rest.next(),
        };
        self.set_first_values(rest.next())?;
        Ok(Entering {
            stream: arrived[0].clone(),
            per_block,
        })
    }

    /// What the next stage goes on with.
    pub(super) fn leave(&self, stream: Tensor, per_block: Option<Tensor>) -> Result<Vec<Tensor>> {
        let mut all = vec![stream.contiguous()?];
        if let Some(per_block) = per_block {
            let own = self.part.blocks.len();
            let behind = per_block.dim(1)? - own;
            all.push(per_block.narrow(1, own, behind)?.contiguous()?);
        }
        if self.config.has_first_values() {
            match self.first_values()? {
                Some(values) if self.part.is_first() => all.push(values.contiguous()?),
                // What arrived stays what it is, whoever writes into what leaves.
                Some(values) => all.push(values.copy()?),
                None => bail!("the first block has left no values for those behind"),
            }
        }
        Ok(all)
    }

    /// The values of the first block in this pass.
    fn first_values(&self) -> Result<Option<Tensor>> {
        match self.first_values.lock() {
            Ok(values) => Ok(values.clone()),
            Err(_) => bail!("a pass before has ended in the middle"),
        }
    }

    fn set_first_values(&self, new: Option<Tensor>) -> Result<()> {
        match self.first_values.lock() {
            Ok(mut values) => *values = new,
            Err(_) => bail!("a pass before has ended in the middle"),
        }
        Ok(())
    }
}
