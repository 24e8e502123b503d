//! Some ranks of a group as a group of their own, whose collectives are made of the group's sends and receives.

use crate::{Backend, Communicator, Reduce};
use candle::{DType, Result, Shape, Tensor};
use std::time::Duration;

/// A rank of a part of a group.
#[derive(Debug)]
pub struct Relay {
    whole: Communicator,
    /// The ranks of the whole that are in it, in their order.
    members: Vec<usize>,
    rank: usize,
}

impl Relay {
    /// The part that consists of these ranks, of which `whole` is one.
    pub fn new(whole: Communicator, members: Vec<usize>) -> Self {
        let rank = members.iter().filter(|rank| **rank < whole.rank()).count();
        Self {
            whole,
            members,
            rank,
        }
    }

    /// Hands each member its part, and gives what each had for this one, in their order: of the shape of the own part.
    fn exchange_parts(&self, part: impl Fn(usize) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let own = part(self.rank)?;
        let others = || (0..self.members.len()).filter(|member| *member != self.rank);
        let parts = others().map(|member| Ok((part(member)?, self.members[member])));
        let parts: Vec<(Tensor, usize)> = parts.collect::<Result<_>>()?;
        let sends: Vec<(&Tensor, usize)> = parts.iter().map(|(x, to)| (x, *to)).collect();
        let receive = |member| (own.shape().clone(), own.dtype(), self.members[member]);
        let receives: Vec<(Shape, DType, usize)> = others().map(receive).collect();
        let mut received = self.whole.exchange(&sends, &receives)?;
        received.insert(self.rank, own);
        Ok(received)
    }
}

impl Backend for Relay {
    fn name(&self) -> &'static str {
        self.whole.backend()
    }

    fn is_capturable(&self) -> bool {
        self.whole.is_capturable()
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        by.fold(&self.exchange_parts(|_| Ok(x.clone()))?)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        Tensor::stack(&self.exchange_parts(|_| Ok(x.clone()))?, 0)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        by.fold(&self.exchange_parts(|member| x.get(member))?)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        if self.rank != root {
            return self.whole.recv(x.shape(), x.dtype(), self.members[root]);
        }
        let others = self
            .members
            .iter()
            .filter(|rank| **rank != self.whole.rank());
        for other in others {
            self.whole.send(x, *other)?;
        }
        Ok(x.clone())
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.whole.send(x, self.members[to])
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        self.whole.recv(shape, dtype, self.members[from])
    }

    fn barrier(&self) -> Result<()> {
        let x = Tensor::zeros(1, DType::U8, self.whole.device())?;
        self.exchange_parts(|_| Ok(x.clone()))?;
        // What was received is there.
        self.whole.device().synchronize()
    }

    fn check(&self) -> Result<()> {
        self.whole.check()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.whole.set_timeout(timeout);
    }

    fn abort(&self, reason: &str) {
        self.whole.abort(reason);
    }
}
