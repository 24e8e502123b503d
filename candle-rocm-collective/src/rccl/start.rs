//! How groups come up, and how they prove that they work.

use super::comm::Comm;
use super::group::{hint, Group, Member, Settings};
use super::rank::Rank;
use crate::lifeline::Lifeline;
use crate::rendezvous::Meeting;
use crate::tcp::ranks_of_nodes;
use crate::{Backend, Communicator, Error, Reduce};
use candle::{DType, Device, Result, Tensor};
use candle_rocm::sys::rccl::{Rccl, RcclComm, RcclResult, UniqueId, SUCCESS};
use std::ffi::c_int;
use std::ptr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at whether another node has failed.
const LOOK: Duration = Duration::from_millis(50);

fn unavailable(reason: impl ToString) -> Error {
    Error::Unavailable {
        backend: "rccl",
        reason: reason.to_string(),
    }
}

fn library() -> std::result::Result<&'static Rccl, Error> {
    let loaded = Rccl::get().map_err(unavailable)?;
    Ok(&loaded.functions)
}

/// RCCL's version, such as `2.22.3`.
///
/// # Errors
/// [`Error::Unavailable`] with where it was looked for.
pub fn version() -> std::result::Result<String, Error> {
    let library = library()?;
    let mut code = 0;
    // SAFETY: the number is written to.
    let result = unsafe { (library.ncclGetVersion)(&mut code) };
    check(library, result)?;
    // 2.8 and before had another form; ROCm 6.2 has 2.20.
    Ok(format!(
        "{}.{}.{}",
        code / 10_000,
        code / 100 % 100,
        code % 100
    ))
}

fn check(library: &Rccl, result: RcclResult) -> std::result::Result<(), Error> {
    match result {
        SUCCESS => Ok(()),
        // SAFETY: without a communicator.
        result => Err(unavailable(unsafe {
            library.describe(result, ptr::null_mut())
        })),
    }
}

/// A group with a rank for each of these GPUs of this process, in their order.
///
/// # Errors
/// [`Error::Unavailable`] without RCCL or if it gives wrong sums, [`Error::Stalled`] if it does not come up.
pub fn group(devices: &[Device]) -> Result<Vec<Communicator>> {
    group_with(devices, Settings::default())
}

/// The same with one limit for all.
///
/// # Errors
/// Those of [`group`].
pub fn group_within(devices: &[Device], timeout: Duration) -> Result<Vec<Communicator>> {
    let settings = Settings {
        start: timeout,
        proof: timeout,
        collective: timeout,
    };
    group_with(devices, settings)
}

/// The same with other limits.
///
/// # Errors
/// Those of [`group`].
pub fn group_with(devices: &[Device], settings: Settings) -> Result<Vec<Communicator>> {
    let gpus = gpus("rccl::group", devices)?;
    let library = library()?;
    let ordinals: Vec<c_int> = gpus.iter().map(|gpu| gpu.ordinal() as c_int).collect();
    let comms = within(settings.start, devices.len(), None, move || {
        let mut comms = vec![ptr::null_mut(); ordinals.len()];
        // SAFETY: there are as many communicators as ordinals.
        let result = unsafe {
            (library.ncclCommInitAll)(
                comms.as_mut_ptr(),
                ordinals.len() as c_int,
                ordinals.as_ptr(),
            )
        };
        check(library, result)?;
        Ok(comms
            .into_iter()
            .map(|comm| Comm::new(library, comm))
            .collect())
    })?;
    finish(0, devices.len(), devices, gpus, comms, settings, None)
}

/// The ranks of this node, one for each of its GPUs; ranks are numbered by node, then by GPU. All nodes of the meeting
/// call it.
///
/// # Errors
/// Those of [`group`], and [`Error::Rendezvous`] if nodes do not reach each other.
pub fn connect(meeting: &mut Meeting, devices: &[Device]) -> Result<Vec<Communicator>> {
    connect_with(meeting, devices, Settings::default())
}

/// The same with other limits.
///
/// # Errors
/// Those of [`connect`].
pub fn connect_with(
    meeting: &mut Meeting,
    devices: &[Device],
    settings: Settings,
) -> Result<Vec<Communicator>> {
    // A node that cannot take part says so, so that the others do not wait for it.
    let prepared = gpus("rccl::connect", devices).and_then(|gpus| Ok((gpus, library()?)));
    let reason = match &prepared {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let reasons = meeting.all_gather(reason.as_bytes())?;
    let (gpus, library) = prepared?;
    if let Some(node) = reasons.iter().position(|reason| !reason.is_empty()) {
        let reason = String::from_utf8_lossy(&reasons[node]);
        return Err(unavailable(format!("node {node}: {reason}")).into());
    }
    let ranks = ranks_of_nodes(meeting, devices.len())?;
    let first: usize = ranks[..meeting.node()].iter().sum();
    let size: usize = ranks.iter().sum();
    let mut id = UniqueId { internal: [0; 128] };
    if meeting.node() == 0 {
        // SAFETY: the identity is written to.
        check(library, unsafe { (library.ncclGetUniqueId)(&mut id) })?;
    }
    let told = meeting.broadcast(&id.internal)?;
    id.internal = told.try_into().map_err(|_| Error::NodeFailed {
        node: 0,
        reason: "nodes make different calls after they met".to_string(),
    })?;
    let lifeline = Lifeline::new(meeting, &ranks)?;
    let here = gpus.clone();
    let comms = within(settings.start, size, Some(&lifeline), move || {
        // Each rank waits for all others.
        let threads = here
            .into_iter()
            .enumerate()
            .map(|(at, gpu)| std::thread::spawn(move || join(library, &gpu, size, id, first + at)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(joined) => joined,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    let comms = comms.inspect_err(|error| lifeline.fail(first, &error.to_string()))?;
    finish(first, size, devices, gpus, comms, settings, Some(lifeline))
}

fn join(
    library: &'static Rccl,
    gpu: &candle_rocm::Device,
    size: usize,
    id: UniqueId,
    rank: usize,
) -> std::result::Result<Comm, Error> {
    // RCCL takes the thread's current GPU: asking for no memory makes this one it.
    gpu.alloc(0).map_err(unavailable)?;
    let mut comm: RcclComm = ptr::null_mut();
    // SAFETY: the communicator is written to.
    let result = unsafe { (library.ncclCommInitRank)(&mut comm, size as c_int, id, rank as c_int) };
    check(library, result)?;
    Ok(Comm::new(library, comm))
}

/// The devices as GPUs, one for each rank.
fn gpus(op: &'static str, devices: &[Device]) -> Result<Vec<candle_rocm::Device>> {
    let refused = |reason: String| Err(Error::InvalidArgument { op, reason }.into());
    let mut gpus: Vec<candle_rocm::Device> = Vec::with_capacity(devices.len());
    for device in devices {
        let Device::Rocm(device) = device else {
            return refused(format!("{:?} is no AMD GPU", device.location()));
        };
        let device = device.device();
        if gpus.iter().any(|gpu| gpu.ordinal() == device.ordinal()) {
            return refused(format!(
                "GPU {} is there twice: RCCL has one rank on each",
                device.ordinal()
            ));
        }
        gpus.push(device.clone());
    }
    match gpus.is_empty() {
        true => refused("a group has one device at least".to_string()),
        false => Ok(gpus),
    }
}

/// What a thread gives within a time, unless another node fails first. One that hangs in RCCL cannot be ended, only
/// left behind.
fn within<T: Send + 'static>(
    limit: Duration,
    size: usize,
    lifeline: Option<&Lifeline>,
    run: impl FnOnce() -> std::result::Result<T, Error> + Send + 'static,
) -> std::result::Result<T, Error> {
    let (give, given) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody waits any more after the limit.
        let _ = give.send(run());
    });
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match given.recv_timeout(left.min(LOOK)) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(unavailable("its start ended in a panic"))
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(failure) = lifeline.and_then(Lifeline::failure) {
            return Err(failure);
        }
        if left.is_zero() {
            return Err(Error::Stalled {
                op: "the start of RCCL",
                size,
                waited: limit,
                hint: hint(),
            });
        }
    }
}

/// Communicators as a group that works, or the error of what does not.
fn finish(
    first: usize,
    size: usize,
    devices: &[Device],
    gpus: Vec<candle_rocm::Device>,
    comms: Vec<Comm>,
    settings: Settings,
    lifeline: Option<Lifeline>,
) -> Result<Vec<Communicator>> {
    let members = comms.into_iter().zip(gpus).enumerate();
    let members = members.map(|(at, (comm, gpu))| Member::new(first + at, gpu, comm));
    let members = members.collect::<candle_rocm::Result<Vec<_>>>()?;
    let group = Group::new(size, settings.collective, members, lifeline);
    let ranks: Vec<Communicator> = devices
        .iter()
        .enumerate()
        .map(|(at, device)| {
            let backend = Arc::new(Rank::new(group.clone(), at, device.clone()));
            Communicator::new(first + at, size, device.clone(), backend)
        })
        .collect();
    let (give, given) = mpsc::channel();
    for (at, device) in devices.iter().enumerate() {
        let rank = Rank::new(group.clone(), at, device.clone());
        let give = give.clone();
        std::thread::spawn(move || {
            // Nobody waits any more after the limit.
            let _ = give.send(prove(&rank, first + at, size));
        });
    }
    drop(give);
    let deadline = Instant::now() + settings.proof;
    for _ in devices {
        let left = deadline.saturating_duration_since(Instant::now());
        match given.recv_timeout(left) {
            Ok(proved) => proved.inspect_err(|error| {
                let reason = Error::RankFailed {
                    rank: first,
                    size,
                    reason: error.to_string(),
                };
                group.fail(Error::of(error).cloned().unwrap_or(reason));
            })?,
            Err(_) => {
                return Err(group
                    .fail(Error::Stalled {
                        op: "the first collective",
                        size,
                        waited: settings.proof,
                        hint: hint(),
                    })
                    .into())
            }
        }
    }
    Ok(ranks)
}

/// Adds up known numbers and passes others on around the ranks, on each of which this runs.
fn prove(rank: &Rank, own: usize, size: usize) -> Result<()> {
    if size == 1 {
        return Ok(());
    }
    // More than one packet of any protocol, and exact in f32.
    const COUNT: usize = 10_007;
    let device = rank.device();
    let x = Tensor::full((own + 1) as f32, COUNT, device)?;
    let sum = rank.all_reduce(&x, Reduce::Sum)?;
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    let shape = x.shape().clone();
    let received = rank.exchange(&[(x, next)], &[(shape, DType::F32, before)])?;
    rank.wait()?;
    let expected = (size * (size + 1) / 2) as f32;
    let results = received
        .into_iter()
        .flatten()
        .map(|x| (x, (before + 1) as f32));
    for (found, expected) in std::iter::once((sum, expected)).chain(results) {
        let found = found.to_vec1::<f32>()?;
        if let Some(wrong) = found.iter().find(|value| **value != expected) {
            return Err(unavailable(format!(
                "rank {own} of {size} got {wrong} where {expected} is right; {}",
                hint()
            ))
            .into());
        }
    }
    Ok(())
}
