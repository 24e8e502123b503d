//! GPUs of one process that reach each other's memory: collectives are kernels that wait for each other, with no host in
//! between ([`candle_rocm::ops::collective`]).
//!
//! Calls only enqueue; what goes wrong on the devices is told by [`Communicator::check`], and by the next call.

use crate::{Backend, Communicator, Error, Reduce};
use candle::backend::BackendStorage;
use candle::op::BackpropOp;
use candle::{DType, Device, Result, RocmDevice, RocmStorage, Shape, Storage, Tensor};
use candle_rocm::ops::collective::{self, Failure, Rank, Reduction, Shots};
use candle_rocm::{Buffer, View};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A group with a rank for each device, in their order, whose kernels wait for each other for so long.
///
/// # Errors
/// [`Error::Unavailable`] if a device is no GPU, if there are more than [`collective::MAX_RANKS`], or if one does not
/// reach another's memory, which it names; HIP's.
pub fn group(devices: &[Device], timeout: Duration) -> Result<Vec<Communicator>> {
    group_by(devices, timeout, None)
}

/// The same with all-reduces that are made in this way, for measuring; otherwise their size decides.
///
/// # Errors
/// As of [`group`].
pub fn group_by(
    devices: &[Device],
    timeout: Duration,
    shots: Option<Shots>,
) -> Result<Vec<Communicator>> {
    let gpus = devices.iter().map(|device| match device {
        Device::Rocm(gpu) => Ok(gpu.clone()),
        _ => Err(unavailable("a device is no GPU".to_string())),
    });
    let gpus = gpus.collect::<Result<Vec<RocmDevice>>>()?;
    let inner: Vec<_> = gpus.iter().map(|gpu| gpu.device().clone()).collect();
    if inner.len() > collective::MAX_RANKS {
        let (size, most) = (inner.len(), collective::MAX_RANKS);
        return Err(unavailable(format!("{size} ranks are more than {most}")));
    }
    let apart = collective::unreachable_pairs(&inner)?;
    if !apart.is_empty() {
        let pairs = apart.iter().map(|pair| {
            let name = |rank: usize| {
                let gpu = &inner[rank];
                format!("GPU {} ({})", gpu.ordinal(), gpu.properties().pci_id)
            };
            let (from, to) = (name(pair.from), name(pair.to));
            match pair.one_way {
                true => format!("{from} does not reach {to}, though the other way round works"),
                false => format!("{from} does not reach {to}"),
            }
        });
        return Err(unavailable(pairs.collect::<Vec<_>>().join("; ")));
    }
    let size = devices.len();
    let shared = Arc::new(Shared {
        size,
        timeout: Mutex::new(timeout),
        failure: Mutex::default(),
    });
    let ranks = collective::group(&inner, timeout)?;
    let communicators = ranks.into_iter().zip(gpus).map(|(rank, gpu)| {
        let (at, device) = (rank.rank(), Device::Rocm(gpu.clone()));
        let shared = shared.clone();
        let peers = Peers {
            rank,
            gpu,
            shots,
            shared,
        };
        Communicator::new(at, size, device, Arc::new(peers))
    });
    Ok(communicators.collect())
}

fn unavailable(reason: String) -> candle::Error {
    Error::Unavailable {
        backend: "peers",
        reason,
    }
    .into()
}

/// A rank.
#[derive(Debug)]
struct Peers {
    rank: Rank,
    gpu: RocmDevice,
    shots: Option<Shots>,
    shared: Arc<Shared>,
}

/// What all ranks know.
#[derive(Debug)]
struct Shared {
    size: usize,
    timeout: Mutex<Duration>,
    failure: Mutex<Option<Error>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Reduce> for Reduction {
    fn from(by: Reduce) -> Self {
        match by {
            Reduce::Sum => Reduction::Sum,
            Reduce::Max => Reduction::Max,
            Reduce::Min => Reduction::Min,
        }
    }
}

impl Peers {
    /// Calls with the memory of a tensor, and wraps what that gives in a shape.
    fn call(
        &self,
        op: &'static str,
        x: &Tensor,
        shape: impl Into<Shape>,
        call: impl FnOnce(&View) -> candle_rocm::Result<Buffer>,
    ) -> Result<Tensor> {
        self.check()?;
        let (storage, layout) = x.storage_and_layout();
        let Storage::Rocm(storage) = &*storage else {
            return Err(unavailable("a tensor is on no GPU".to_string()));
        };
        let buffer = call(&storage.view(layout, op)?)?;
        Ok(self.wrap(buffer, storage.dtype(), shape.into()))
    }

    fn wrap(&self, buffer: Buffer, dtype: DType, shape: Shape) -> Tensor {
        let storage = RocmStorage::new(buffer, self.gpu.clone(), dtype, shape.elem_count());
        Tensor::from_storage(Storage::Rocm(storage), shape, BackpropOp::none(), false)
    }
}

impl Backend for Peers {
    fn name(&self) -> &'static str {
        "peers"
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let bytes = x.elem_count() * x.dtype().size_in_bytes();
        let shots = self.shots.unwrap_or(Shots::choose(self.shared.size, bytes));
        self.call("all_reduce", x, x.shape(), |view| {
            self.rank.all_reduce(view, by.into(), shots)
        })
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let dims = [&[self.shared.size], x.dims()].concat();
        self.call("all_gather", x, dims, |view| self.rank.all_gather(view))
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        self.call("reduce_scatter", x, &x.dims()[1..], |view| {
            self.rank.reduce_scatter(view, by.into())
        })
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.call("broadcast", x, x.shape(), |view| {
            self.rank.broadcast(view, root)
        })
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        self.check()?;
        let (storage, layout) = x.storage_and_layout();
        let Storage::Rocm(storage) = &*storage else {
            return Err(unavailable("a tensor is on no GPU".to_string()));
        };
        Ok(self.rank.send(&storage.view(layout, "send")?, to)?)
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        self.check()?;
        let bytes = shape.elem_count() * dtype.size_in_bytes();
        let buffer = self.rank.receive(bytes, from)?;
        Ok(self.wrap(buffer, dtype, shape.clone()))
    }

    fn barrier(&self) -> Result<()> {
        self.check()?;
        self.rank.barrier()?;
        self.rank.device().synchronize()?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        if let Some(failure) = self.rank.failure() {
            let error = match failure {
                Failure::Late { missing, .. } => Error::TimedOut {
                    rank: missing,
                    size: self.shared.size,
                    op: "a collective",
                    waited: *lock(&self.shared.timeout),
                },
                // Whoever aborts says why before.
                Failure::Aborted => Error::RankFailed {
                    rank: self.rank.rank(),
                    size: self.shared.size,
                    reason: "the group was ended".to_string(),
                },
            };
            let mut first = lock(&self.shared.failure);
            return Err(first.get_or_insert(error).clone().into());
        }
        Ok(())
    }

    fn set_timeout(&self, timeout: Duration) {
        *lock(&self.shared.timeout) = timeout;
        self.rank.set_limit(timeout);
    }

    fn abort(&self, reason: &str) {
        lock(&self.shared.failure).get_or_insert(Error::RankFailed {
            rank: self.rank.rank(),
            size: self.shared.size,
            reason: reason.to_string(),
        });
        self.rank.abort();
    }
}
