//! Optimizers whose gradients are averages of all ranks.

use super::{synchronize, Chain, Reducer, BUCKET_BYTES};
use crate::{Communicator, Reduce};
use candle::{DType, Result, Tensor, Var};
use candle_nn::Optimizer;

/// An optimizer of candle-nn on each rank, with the averages of all ranks' gradients: so that the weights, which are
/// the first rank's when it is made, stay the same on all.
#[derive(Debug)]
pub struct DistributedOptimizer<O> {
    reducer: Reducer,
    optimizer: O,
}

impl<O: Optimizer> DistributedOptimizer<O> {
    /// An optimizer of these variables, which are listed by block in the order of the forward pass, the same on all
    /// ranks ([`Reducer::new`]); a network that is not divided is one block.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of the ranks, and those of the optimizer.
    pub fn new(rank: Communicator, blocks: Vec<Vec<Var>>, config: O::Config) -> Result<Self> {
        Self::with_buckets(rank, blocks, config, BUCKET_BYTES)
    }

    /// The same with buckets of another size.
    ///
    /// # Errors
    /// Those of [`DistributedOptimizer::new`].
    pub fn with_buckets(
        rank: Communicator,
        blocks: Vec<Vec<Var>>,
        config: O::Config,
        bucket_bytes: usize,
    ) -> Result<Self> {
        let reducer = Reducer::new(rank, blocks, bucket_bytes)?;
        let variables = reducer.variables();
        synchronize(reducer.communicator(), &variables)?;
        Ok(Self {
            optimizer: O::new(variables, config)?,
            reducer,
        })
    }

    /// A step along the gradients of a loss, which are reduced when all of them are known. With blocks and a [`Chain`],
    /// [`step_chain`](Self::step_chain) reduces some while others are computed.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of the ranks, and those of the backward pass.
    pub fn step(&mut self, loss: &Tensor) -> Result<()> {
        self.reducer.add_whole(loss.backward()?)?;
        let averages = self.reducer.finish()?;
        self.optimizer.step(&averages)
    }

    /// A step along the gradients of a loss that is computed from what the chain's last block gave. The loss comes back
    /// without its graph: this rank's, of its part of the batch.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of the ranks, and those of the backward passes.
    pub fn step_chain(
        &mut self,
        chain: Chain,
        loss: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let reducer = &mut self.reducer;
        let loss = chain.backward(loss, |block, gradients| reducer.add(block, gradients))?;
        let averages = self.reducer.finish()?;
        self.optimizer.step(&averages)?;
        Ok(loss)
    }

    /// A number of all ranks, such as the loss, averaged as gradients are.
    ///
    /// # Errors
    /// [`Error`](crate::Error) of the ranks.
    pub fn average(&self, of_rank: &Tensor) -> Result<Tensor> {
        let own = (of_rank.detach().to_dtype(DType::F32)? * self.reducer.share())?;
        self.reducer.communicator().all_reduce(&own, Reduce::Sum)
    }

    /// What this rank's gradients count ([`Reducer::set_share`]).
    pub fn set_share(&mut self, share: f64) {
        self.reducer.set_share(share);
    }

    /// The optimizer, for its learning rate and the like: the same changes on all ranks.
    pub fn optimizer(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Every variable once.
    pub fn variables(&self) -> Vec<Var> {
        self.reducer.variables()
    }

    /// The communicator, between two steps.
    pub fn communicator(&self) -> &Communicator {
        self.reducer.communicator()
    }
}
