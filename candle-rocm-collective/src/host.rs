//! Ranks of one process that meet in the host's memory: for tensors on the CPU, and for GPUs that do not reach each other.

use crate::{Backend, Communicator, Error, Reduce};
use candle::{DType, Device, Result, Shape, Tensor};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank waits for the others unless told otherwise: long enough for kernels that are compiled at first use.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// A group with a rank for each device, in their order.
///
/// # Errors
/// For no device.
pub fn group(devices: &[Device]) -> Result<Vec<Communicator>> {
    group_within(devices, TIMEOUT)
}

/// The same with ranks that wait so long for each other.
///
/// # Errors
/// For no device.
pub fn group_within(devices: &[Device], timeout: Duration) -> Result<Vec<Communicator>> {
    let size = devices.len();
    if size == 0 {
        let reason = "a group has one device at least".to_string();
        return Err(Error::InvalidArgument {
            op: "host::group",
            reason,
        }
        .into());
    }
    let place = Arc::new(Place::new(size, timeout));
    let rank = |(rank, device): (usize, &Device)| {
        let host = Host {
            rank,
            device: device.clone(),
            place: place.clone(),
        };
        Communicator::new(rank, size, device.clone(), Arc::new(host))
    };
    Ok(devices.iter().enumerate().map(rank).collect())
}

pub(crate) fn milliseconds(timeout: Duration) -> u64 {
    // More than a deadline can be from now.
    const MOST: u64 = 1 << 40;
    u64::try_from(timeout.as_millis()).unwrap_or(MOST).min(MOST)
}

/// A rank.
#[derive(Debug)]
struct Host {
    rank: usize,
    device: Device,
    place: Arc<Place>,
}

/// Where ranks meet.
#[derive(Debug)]
struct Place {
    size: usize,
    /// In milliseconds.
    timeout: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What ranks brought to the meeting under way; none of those that have not come.
    brought: Vec<Option<Brought>>,
    /// What all brought, as long as some have not taken it, and how many have.
    met: Option<(Arc<Vec<Brought>>, usize)>,
    /// What is on its way: from, to, and the tensor.
    sent: VecDeque<(usize, usize, Tensor)>,
    failure: Option<Error>,
}

/// What a rank brings to a meeting.
#[derive(Debug, Clone)]
struct Brought {
    op: &'static str,
    /// In the host's memory.
    tensor: Option<Tensor>,
}

impl Brought {
    fn describe(&self) -> String {
        match &self.tensor {
            Some(x) => format!("{} of {:?} {:?}", self.op, x.dtype(), x.shape()),
            None => self.op.to_string(),
        }
    }
}

impl Place {
    fn new(size: usize, timeout: Duration) -> Self {
        let brought = vec![None; size];
        Self {
            size,
            timeout: AtomicU64::new(milliseconds(timeout)),
            state: Mutex::new(State {
                brought,
                ..State::default()
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` gives something; `missing` says for whom if it does not.
    fn wait<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        op: &'static str,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        missing: impl Fn(&State) -> usize,
    ) -> std::result::Result<(MutexGuard<'a, State>, T), Error> {
        let timeout = Duration::from_millis(self.timeout.load(Ordering::Relaxed));
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(found) = ready(&mut state) {
                return Ok((state, found));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = Error::TimedOut {
                    rank: missing(&state),
                    size: self.size,
                    op,
                    waited: timeout,
                };
                state.failure = Some(error.clone());
                self.changed.notify_all();
                return Err(error);
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Brings something, and gives what all have brought once they have.
    fn meet(&self, rank: usize, own: Brought) -> std::result::Result<Arc<Vec<Brought>>, Error> {
        let op = own.op;
        // Those of the meeting before have to leave first.
        let gone = |state: &mut State| state.met.is_none().then_some(());
        let (mut state, ()) = self.wait(self.lock(), op, gone, |_| rank)?;
        state.brought[rank] = Some(own.clone());
        if state.brought.iter().all(Option::is_some) {
            let all = state.brought.iter_mut().filter_map(Option::take).collect();
            state.met = Some((Arc::new(all), 0));
            self.changed.notify_all();
        }
        let met = |state: &mut State| {
            let (all, taken) = state.met.as_mut()?;
            *taken += 1;
            Some((all.clone(), *taken == self.size))
        };
        let first_missing = |state: &State| {
            let missing = state.brought.iter().position(Option::is_none);
            missing.unwrap_or(0)
        };
        let (mut state, (all, last)) = self.wait(state, op, met, first_missing)?;
        if last {
            state.met = None;
            self.changed.notify_all();
        }
        drop(state);
        let alike = |other: &Brought| match (&own.tensor, &other.tensor) {
            (Some(a), Some(b)) => a.shape() == b.shape() && a.dtype() == b.dtype(),
            (a, b) => a.is_none() && b.is_none(),
        };
        let other = |other: &&Brought| other.op != op || !alike(other);
        match all.iter().enumerate().find(|(_, brought)| other(brought)) {
            None => Ok(all),
            Some((rank, brought)) => Err(Error::Mismatch {
                op,
                rank,
                found: brought.describe(),
                expected: own.describe(),
            }),
        }
    }
}

impl Host {
    /// What all ranks brought, in their order, in the host's memory.
    fn meet(&self, op: &'static str, x: &Tensor) -> Result<Vec<Tensor>> {
        let tensor = Some(x.to_device(&Device::Cpu)?);
        let all = self.place.meet(self.rank, Brought { op, tensor })?;
        Ok(all.iter().filter_map(|b| b.tensor.clone()).collect())
    }
}

impl Backend for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn is_capturable(&self) -> bool {
        false
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let all = self.meet("all_reduce", x)?;
        by.fold(&all)?.to_device(&self.device)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let all = self.meet("all_gather", x)?;
        Tensor::stack(&all, 0)?.to_device(&self.device)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        let all = self.meet("reduce_scatter", x)?;
        let parts = all.iter().map(|x| x.get(self.rank));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        by.fold(&parts)?.to_device(&self.device)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        let all = self.meet("broadcast", x)?;
        all[root].to_device(&self.device)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        let x = x.to_device(&Device::Cpu)?;
        let mut state = self.place.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        state.sent.push_back((self.rank, to, x));
        self.place.changed.notify_all();
        Ok(())
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        let op = "recv";
        let here = |state: &mut State| {
            let is_ours = |sent: &(usize, usize, Tensor)| (sent.0, sent.1) == (from, self.rank);
            let at = state.sent.iter().position(is_ours)?;
            state.sent.remove(at)
        };
        let waited = self.place.wait(self.place.lock(), op, here, |_| from);
        let (state, (_, _, x)) = waited?;
        drop(state);
        if x.shape() != shape || x.dtype() != dtype {
            return Err(Error::Mismatch {
                op,
                rank: from,
                found: format!("{:?} {:?}", x.dtype(), x.shape()),
                expected: format!("{dtype:?} {shape:?}"),
            }
            .into());
        }
        x.to_device(&self.device)
    }

    fn barrier(&self) -> Result<()> {
        self.device.synchronize()?;
        let op = "barrier";
        let brought = Brought { op, tensor: None };
        self.place.meet(self.rank, brought)?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match &self.place.lock().failure {
            None => Ok(()),
            Some(failure) => Err(failure.clone().into()),
        }
    }

    fn set_timeout(&self, timeout: Duration) {
        (self.place.timeout).store(milliseconds(timeout), Ordering::Relaxed);
    }

    fn abort(&self, reason: &str) {
        let mut state = self.place.lock();
        state.failure.get_or_insert(Error::RankFailed {
            rank: self.rank,
            size: self.place.size,
            reason: reason.to_string(),
        });
        self.place.changed.notify_all();
    }
}
