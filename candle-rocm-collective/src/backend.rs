//! What carries tensors between ranks.

use crate::{Pending, Reduce, Report};
use candle::{DType, Result, Shape, Tensor};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What carries tensors between the ranks of a group, on behalf of one of them. Tensors that come in are contiguous, on
/// the rank's device and not empty; what comes out is so as well. Calls of one rank come from one thread at a time.
pub trait Backend: Debug + Send + Sync {
    /// What users call it: `host`, `peers`, `rccl`.
    fn name(&self) -> &'static str;

    /// Whether calls only enqueue launches that a graph can record and repeat.
    fn is_capturable(&self) -> bool;

    /// The tensors of all ranks as one of the same shape, the same bits on all of them.
    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor>;

    /// The tensors of all ranks in their order: `(size, ...)`.
    fn all_gather(&self, x: &Tensor) -> Result<Tensor>;

    /// Of the sum (or the like) of all ranks' tensors `(size, ...)` this rank's part `(...)`.
    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor>;

    /// The tensor of the rank `root`; the others bring one of the same shape, whose values do not count.
    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor>;

    /// Hands a tensor to another rank, which receives it.
    fn send(&self, x: &Tensor, to: usize) -> Result<()>;

    /// Takes what another rank sends.
    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor>;

    /// Sends and receives at once, none of which waits for another; what is received, in the order asked for. `None`
    /// from a backend that has no way of its own: then they are made one by one, in an order in which none waits for
    /// ever.
    fn exchange(
        &self,
        sends: &[(Tensor, usize)],
        receives: &[(Shape, DType, usize)],
    ) -> Result<Option<Vec<Tensor>>> {
        let _ = (sends, receives);
        Ok(None)
    }

    /// Whether [`Backend::start_all_reduce`] runs beside what the device computes next.
    fn has_background(&self) -> bool {
        false
    }

    /// Begins to reduce; the result is there when it is waited for.
    fn start_all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Pending> {
        Ok(Pending::done(self.all_reduce(x, by)?))
    }

    /// What carries tensors between some ranks of the group, of which this is one: all of these call it with the same
    /// list. `None` from a backend that has no way of its own: then sends and receives of the group do.
    fn subgroup(&self, members: &[usize]) -> Result<Option<Arc<dyn Backend>>> {
        let _ = members;
        Ok(None)
    }

    /// Lets all ranks wait for each other, the host included: not for graphs.
    fn barrier(&self) -> Result<()>;

    /// Fails with what has gone wrong in calls that were only enqueued, as far as devices have come. To be asked behind
    /// a wait for the device, before results are used. Nothing where calls wait themselves and say so.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Lets all ranks wait for each other for so long from now on, in graphs that were recorded, too. Nothing where
    /// that is not for the backend to say.
    fn set_timeout(&self, timeout: Duration) {
        let _ = timeout;
    }

    /// How it was chosen; none if it was not.
    fn report(&self) -> Option<Arc<Report>> {
        None
    }

    /// Ends the group: ranks that wait, and those that come later, get an error with this rank and the reason. May be
    /// called from any thread, at any time.
    fn abort(&self, reason: &str);
}
