//! A rank's handle to its group.

use crate::{Backend, Error, Reduce, Report};
use candle::{DType, Device, Result, Shape, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// A rank's handle to its group. Cheap to clone; the clones are the same rank.
#[derive(Clone, Debug)]
pub struct Communicator {
    rank: usize,
    size: usize,
    device: Device,
    backend: Arc<dyn Backend>,
}

impl Communicator {
    /// The rank `rank` of `size` on a device, with what carries its tensors.
    pub fn new(rank: usize, size: usize, device: Device, backend: Arc<dyn Backend>) -> Self {
        Self {
            rank,
            size,
            device,
            backend,
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where its tensors are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What carries tensors, as users call it: `host`, `peers`, `rccl`.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// The same, to make calls of it beside its checks.
    pub(crate) fn carrier(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Whether calls only enqueue launches that a graph can record and repeat.
    pub fn is_capturable(&self) -> bool {
        self.size == 1 || self.backend.is_capturable()
    }

    /// The sum (or the like) of all ranks' tensors, which have one shape and dtype: the same bits on every rank.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let x = self.checked("all_reduce", x)?;
        match self.is_trivial(&x) {
            true => Ok(x),
            false => self.backend.all_reduce(&x, by),
        }
    }

    /// The tensors of all ranks in their order, which have one shape and dtype: `(size, ...)`.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.checked("all_gather", x)?;
        if x.elem_count() == 0 {
            let dims = [&[self.size], x.dims()].concat();
            return Tensor::zeros(dims, x.dtype(), x.device());
        }
        match self.size {
            1 => x.unsqueeze(0),
            _ => self.backend.all_gather(&x),
        }
    }

    /// The tensors of all ranks behind each other along `dim`, in which rank `i`'s has `sizes[i]` elements; the other
    /// dimensions are the same for all.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn all_gather_uneven(&self, x: &Tensor, dim: usize, sizes: &[usize]) -> Result<Tensor> {
        let op = "all_gather_uneven";
        let x = self.checked(op, x)?;
        let own = x.dims().get(dim).copied();
        if sizes.len() != self.size || own != sizes.get(self.rank).copied() {
            let reason = format!(
                "{:?} along dimension {dim} is not rank {} of {sizes:?}",
                x.shape(),
                self.rank
            );
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        let most = sizes.iter().copied().max().unwrap_or(0);
        let x = x.pad_with_zeros(dim, 0, most - sizes[self.rank])?;
        let all = self.all_gather(&x.contiguous()?)?;
        let parts = sizes
            .iter()
            .enumerate()
            .map(|(rank, size)| all.get(rank)?.narrow(dim, 0, *size));
        Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, dim)
    }

    /// Of the sum (or the like) of all ranks' tensors, the same shape `(size n, ...)` on each, this rank's `n` rows.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let op = "reduce_scatter";
        let x = self.checked(op, x)?;
        let rows = x.dims().first().copied().unwrap_or(1);
        if x.rank() == 0 || rows % self.size != 0 {
            let reason = format!(
                "the first dimension of {:?} is not a multiple of {} ranks",
                x.shape(),
                self.size
            );
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        if self.is_trivial(&x) {
            return x.narrow(0, 0, rows / self.size);
        }
        let dims = [&[self.size, rows / self.size], &x.dims()[1..]].concat();
        self.backend.reduce_scatter(&x.reshape(dims)?, by)
    }

    /// The tensor of the rank `root`; the others bring one of the same shape and dtype, whose values do not count.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.check_rank("broadcast", root)?;
        let x = self.checked("broadcast", x)?;
        match self.is_trivial(&x) {
            true => Ok(x),
            false => self.backend.broadcast(&x, root),
        }
    }

    /// Hands a tensor to another rank, which [receives](Communicator::recv) it.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.check_other("send", to)?;
        let x = self.checked("send", x)?;
        match x.elem_count() {
            0 => Ok(()),
            _ => self.backend.send(&x, to),
        }
    }

    /// Takes what another rank sends, of this shape and dtype.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn recv(&self, shape: impl Into<Shape>, dtype: DType, from: usize) -> Result<Tensor> {
        self.check_other("recv", from)?;
        let shape = shape.into();
        match shape.elem_count() {
            0 => Tensor::zeros(shape, dtype, &self.device),
            _ => self.backend.recv(&shape, dtype, from),
        }
    }

    /// Lets all ranks wait for each other.
    ///
    /// # Errors
    /// [`Error`].
    pub fn barrier(&self) -> Result<()> {
        match self.size {
            1 => Ok(()),
            _ => self.backend.barrier(),
        }
    }

    /// Fails with what has gone wrong in calls that were only enqueued, as far as the device has come. Ask behind a wait
    /// for the device, before results are used: kernels that waited in vain leave anything behind.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(&self) -> Result<()> {
        self.backend.check()
    }

    /// Lets all ranks wait for each other for so long from now on, in graphs that were recorded, too.
    pub fn set_timeout(&self, timeout: Duration) {
        self.backend.set_timeout(timeout);
    }

    /// How the backend was chosen; none if it was not.
    pub fn report(&self) -> Option<Arc<Report>> {
        self.backend.report()
    }

    /// Ends the group: ranks that wait, and those that come later, get [`Error::RankFailed`] with this rank and the
    /// reason. May be called from any thread, at any time.
    pub fn abort(&self, reason: &str) {
        self.backend.abort(reason);
    }

    /// Whether nothing has to move.
    fn is_trivial(&self, x: &Tensor) -> bool {
        self.size == 1 || x.elem_count() == 0
    }

    fn checked(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        if !x.device().same_device(&self.device) {
            let (found, own) = (x.device().location(), self.device.location());
            let reason = format!(
                "the tensor is on {found:?}, rank {} on {own:?}, or on another stream there",
                self.rank
            );
            return Err(Error::InvalidArgument { op, reason }.into());
        }
        x.contiguous()
    }

    fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        match rank < self.size {
            true => Ok(()),
            false => {
                let reason = format!("there is no rank {rank} among {}", self.size);
                Err(Error::InvalidArgument { op, reason }.into())
            }
        }
    }

    fn check_other(&self, op: &'static str, rank: usize) -> Result<()> {
        self.check_rank(op, rank)?;
        match rank == self.rank {
            false => Ok(()),
            true => {
                let reason = format!("rank {rank} is this rank");
                Err(Error::InvalidArgument { op, reason }.into())
            }
        }
    }
}
