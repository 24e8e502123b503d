//! A rank's handle to its group.

use crate::relay::Relay;
use crate::{Backend, Error, Pending, Reduce, Report};
use candle::{DType, Device, Result, Shape, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// A rank's handle to its group. Cheap to clone; the clones are the same rank, whose calls come from one thread at a
/// time.
///
/// Tensors that go in may have any strides; those that come out are contiguous and on the rank's device. All ranks make
/// the same calls in the same order with the same shapes and dtypes; [`send`](Self::send), [`recv`](Self::recv) and
/// [`exchange`](Self::exchange) are between two of them, in their order.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_rocm_collective::{host, Reduce};
///
/// # fn main() -> candle::Result<()> {
/// let run = |rank: candle_rocm_collective::Communicator| {
///     let own = Tensor::new(&[[rank.rank() as f32, 10.0]], rank.device())?;
///     let sum = rank.all_reduce(&own, Reduce::Sum)?;
///     assert_eq!(sum.to_vec2::<f32>()?, [[1.0, 20.0]]);
///     let all = rank.all_gather(&own)?;
///     assert_eq!(all.dims(), [2, 1, 2]);
///     let part = rank.reduce_scatter(&own.t()?, Reduce::Max)?;
///     assert_eq!(part.to_vec2::<f32>()?, [[[1.0], [10.0]][rank.rank()]]);
///     let first = rank.broadcast(&own, 0)?;
///     assert_eq!(first.to_vec2::<f32>()?, [[0.0, 10.0]]);
///     // Both send and receive at once.
///     let other = 1 - rank.rank();
///     let theirs = rank.exchange(&[(&own, other)], &[((1, 2).into(), DType::F32, other)])?;
///     assert_eq!(theirs[0].to_vec2::<f32>()?, [[other as f32, 10.0]]);
///     candle::Result::Ok(())
/// };
/// let ranks = host::group(&[Device::Cpu, Device::Cpu])?;
/// std::thread::scope(|scope| {
///     let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().unwrap())
/// })
/// # }
/// ```
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
        let x = self.checked_sum("all_reduce", x)?;
        match self.is_trivial(&x) {
            true => Ok(x),
            false => self.backend.all_reduce(&x, by),
        }
    }

    /// Begins to [reduce](Self::all_reduce); [`Pending::wait`] gives the result. Where
    /// [`runs_in_background`](Self::runs_in_background) says so, the device goes on with what is computed meanwhile;
    /// elsewhere the result is there at once.
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn start_all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Pending> {
        let x = self.checked_sum("all_reduce", x)?;
        match self.is_trivial(&x) {
            true => Ok(Pending::done(x)),
            false => self.backend.start_all_reduce(&x, by),
        }
    }

    /// Whether [`start_all_reduce`](Self::start_all_reduce) runs beside what the device computes next.
    pub fn runs_in_background(&self) -> bool {
        self.size > 1 && self.backend.has_background()
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
        let x = self.checked_sum(op, x)?;
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

    /// Sends tensors to ranks and receives others, of which none waits for another; what is received, in the order
    /// asked for. Each rank that is sent to asks for it in its own `exchange` or [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn exchange(
        &self,
        sends: &[(&Tensor, usize)],
        receives: &[(Shape, DType, usize)],
    ) -> Result<Vec<Tensor>> {
        let op = "exchange";
        let sends = sends.iter().map(|(x, to)| {
            self.check_other(op, *to)?;
            Ok((self.checked(op, x)?, *to))
        });
        let sends: Vec<(Tensor, usize)> = sends.collect::<Result<_>>()?;
        for (_, _, from) in receives {
            self.check_other(op, *from)?;
        }
        let is_empty = sends.iter().any(|(x, _)| x.elem_count() == 0)
            || receives.iter().any(|(shape, ..)| shape.elem_count() == 0);
        if !is_empty {
            if let Some(received) = self.backend.exchange(&sends, receives)? {
                return Ok(received);
            }
        }
        // All ranks go through their pairs in one order, and the lower one of a pair sends first: whoever waits for
        // another waits for one that is further back in this order, so that there is no circle.
        let mut received: Vec<Option<Tensor>> = vec![None; receives.len()];
        for other in (0..self.size).filter(|other| *other != self.rank) {
            let send = || {
                let mut to_other = sends.iter().filter(|(_, to)| *to == other);
                to_other.try_for_each(|(x, to)| self.send(x, *to))
            };
            if self.rank < other {
                send()?;
            }
            let asked = receives.iter().zip(&mut received);
            for ((shape, dtype, from), place) in asked.filter(|((.., from), _)| *from == other) {
                *place = Some(self.recv(shape.clone(), *dtype, *from)?);
            }
            if self.rank > other {
                send()?;
            }
        }
        Ok(received.into_iter().flatten().collect())
    }

    /// Divides the group: ranks of the same color are a group of their own, in the same order; a rank without one is in
    /// none. All ranks call it.
    ///
    /// Collectives of the parts are those of the backend, or made of its sends and receives where it has none for parts
    /// of a group. Calls of the whole group and of its parts may alternate as long as all their ranks agree on the
    /// order.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_rocm_collective::{host, Reduce};
    ///
    /// # fn main() -> candle::Result<()> {
    /// let ranks = host::group(&vec![Device::Cpu; 4])?;
    /// std::thread::scope(|scope| {
    ///     let threads = ranks.into_iter().map(|rank| {
    ///         scope.spawn(move || {
    ///             let half = rank.split(Some(rank.rank() as u32 / 2))?.expect("it has a color");
    ///             assert_eq!((half.rank(), half.size()), (rank.rank() % 2, 2));
    ///             let own = Tensor::new(&[rank.rank() as f32], rank.device())?;
    ///             half.all_reduce(&own, Reduce::Sum)?.to_vec1::<f32>()
    ///         })
    ///     });
    ///     let sums = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap());
    ///     assert_eq!(sums.collect::<candle::Result<Vec<_>>>()?, [[1.0], [1.0], [5.0], [5.0]]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error`], and those of devices.
    pub fn split(&self, color: Option<u32>) -> Result<Option<Self>> {
        let own = color.map_or(-1, i64::from);
        let colors = self.all_gather(&Tensor::new(&[own], &self.device)?)?;
        let colors = colors.flatten_all()?.to_vec1::<i64>()?;
        if color.is_none() {
            return Ok(None);
        }
        let members = (0..self.size).filter(|rank| colors[*rank] == own);
        let members: Vec<usize> = members.collect();
        let before = members.iter().filter(|rank| **rank < self.rank);
        let (rank, size) = (before.count(), members.len());
        let backend = match self.backend.subgroup(&members)? {
            Some(backend) => backend,
            None => Arc::new(Relay::new(self.clone(), members)),
        };
        Ok(Some(Self::new(rank, size, self.device.clone(), backend)))
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

    /// Fails with what has gone wrong in calls that were only enqueued, as far as the device has come. Ask behind a
    /// wait for the device, before results are used: kernels that waited in vain leave anything behind.
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

    fn checked_sum(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        let dtype = x.dtype();
        match dtype {
            DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => {}
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {}
            _ => {
                let reason = "floats of 8 bits and less mean different numbers on different GPUs; convert them first";
                return Err(Error::UnsupportedDType { op, dtype, reason }.into());
            }
        }
        self.checked(op, x)
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
