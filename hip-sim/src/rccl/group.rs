//! Calls between `ncclGroupStart` and `ncclGroupEnd`, and how calls run: in their streams, or in graphs.

use super::call::Call;
use super::comm::{exchange, Comm};
use crate::error::{HipError, HipResult};
use crate::exec::describe;
use crate::hip::graph::{Capture, NodeKind};
use crate::hip::stream::Stream;
use crate::inject::Failure as Injected;
use crate::memory::Fault;
use crate::sim::{sim, Sim};
use hip_abi::rccl::{Failure, Outcome};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

/// A call with its memory and stream.
#[derive(Clone)]
pub(super) struct Operation {
    pub comm: Arc<Comm>,
    pub call: Call,
    pub send: usize,
    pub recv: usize,
    pub stream: Arc<Stream>,
}

#[derive(Default)]
struct Group {
    depth: usize,
    /// Communicators that are to meet at the end.
    joining: Vec<Arc<Comm>>,
    operations: Vec<Operation>,
    failed: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group, also inside another one.
pub(super) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group; the outermost one makes its calls, unless one of them was refused.
pub(super) fn end() -> Outcome {
    let group = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1).ok_or(Failure::InvalidUsage)?;
        Ok(match group.depth {
            0 => std::mem::take(group),
            _ => Group::default(),
        })
    })?;
    if let Some(failure) = group.failed {
        return Err(failure);
    }
    (group.joining.iter()).try_for_each(|comm| comm.meet().map_err(|error| comm.learn(error)))?;
    run(group.operations)
}

/// Makes a call that is refused fail its group, too.
pub(super) fn refuse(outcome: Outcome) -> Outcome {
    if let Err(failure) = outcome {
        GROUP.with_borrow_mut(|group| {
            if group.depth > 0 {
                group.failed = Some(failure);
            }
        });
    }
    outcome
}

/// Lets a rank meet the others, now or at the end of the group.
pub(super) fn join(comm: Arc<Comm>) -> Outcome {
    match GROUP.with_borrow(|group| group.depth) {
        0 => comm.meet().map_err(|error| comm.learn(error)),
        _ => {
            GROUP.with_borrow_mut(|group| group.joining.push(comm));
            Ok(())
        }
    }
}

/// Makes a call, now or at the end of the group.
pub(super) fn submit(operation: Operation) -> Outcome {
    match GROUP.with_borrow(|group| group.depth) {
        0 => run(vec![operation]),
        _ => {
            GROUP.with_borrow_mut(|group| group.operations.push(operation));
            Ok(())
        }
    }
}

/// Runs calls that belong together. Those of streams that are captured become one node of each graph.
fn run(operations: Vec<Operation>) -> Outcome {
    let (mut now, mut captured) = (Vec::new(), Vec::<(Arc<Capture>, Vec<Operation>)>::new());
    for operation in operations {
        let capture = operation.stream.capture().clone();
        match capture {
            None => now.push(operation),
            Some(capture) => match captured.iter_mut().find(|(c, _)| Arc::ptr_eq(c, &capture)) {
                Some((_, operations)) => operations.push(operation),
                None => captured.push((capture, vec![operation])),
            },
        }
    }
    for (capture, operations) in captured {
        let work =
            move |sim: &'static Sim| execute(sim, &operations).map_err(|_| HipError::LaunchFailure);
        (capture.record(NodeKind::Collective, Arc::new(work)))
            .map_err(|_| Failure::UnhandledCudaError)?;
    }
    if now.is_empty() {
        return Ok(());
    }
    let mut streams: Vec<&Arc<Stream>> = now.iter().map(|operation| &operation.stream).collect();
    streams.sort_by_key(|stream| Arc::as_ptr(stream));
    streams.dedup_by_key(|stream| Arc::as_ptr(stream));
    let _turns: Vec<_> = streams.into_iter().map(|stream| stream.turn()).collect();
    let sim = sim();
    let outcome = execute(sim, &now);
    sim.memory.stick(&sim.config.wrong.stuck_words());
    outcome
}

/// Brings what is sent, and takes what comes.
fn execute(sim: &'static Sim, operations: &[Operation]) -> Outcome {
    let mut calls = Vec::new();
    for operation in operations {
        (sim.gate()).map_err(|_| Failure::UnhandledCudaError)?;
        (sim.config.failures.check(Injected::Rccl)).map_err(|_| Failure::InternalError)?;
        if sim.config.failures.check(Injected::RcclHang).is_err() {
            return hang(&operation.comm);
        }
        let data = (operation.read(sim)).map_err(|_| Failure::UnhandledCudaError)?;
        calls.push((operation.comm.clone(), operation.call, data));
    }
    let answers = exchange(calls)?;
    for (operation, answer) in operations.iter().zip(&answers) {
        (operation.write(sim, answer.bytes())).map_err(|_| Failure::UnhandledCudaError)?;
    }
    Ok(())
}

/// Never comes to the others: waits until it is aborted or the limit is over.
fn hang(comm: &Comm) -> Outcome {
    let (start, limit) = (Instant::now(), sim().config.spin_limit);
    while !comm.is_aborted() && start.elapsed() < limit {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(Failure::InternalError)
}

impl Operation {
    /// What the rank brings. A graph may run after its memory was freed.
    fn read(&self, sim: &Sim) -> HipResult<Vec<u8>> {
        let bytes = (self.call.send_bytes(self.comm.rank, self.comm.size)).unwrap_or(0);
        if bytes == 0 {
            return Ok(Vec::new());
        }
        self.check(sim, self.send, bytes)?;
        if let Err(Fault::Uninitialised(at)) = sim.memory.check(self.send, bytes, true) {
            let (function, place) = (self.call.function(), describe(&sim.memory, at));
            (sim.reports).add(format!(
                "{function} reads memory that was never written: {place}"
            ));
        }
        // SAFETY: inside of one allocation, or the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(self.send as *const u8, bytes) }.to_vec())
    }

    fn write(&self, sim: &Sim, answer: &[u8]) -> HipResult {
        // What a broadcast's root gets, or who sends, may be nothing.
        if answer.is_empty() {
            return Ok(());
        }
        self.check(sim, self.recv, answer.len())?;
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr(), self.recv as *mut u8, answer.len());
        }
        sim.memory.mark_initialised(self.recv, answer.len());
        Ok(())
    }

    /// Refuses what is not inside an allocation of the communicator's device. Host memory is the caller's promise.
    pub fn check(&self, sim: &Sim, address: usize, bytes: usize) -> HipResult {
        let function = self.call.function();
        let is_wrong = match sim.memory.device_of(address) {
            Some(device) if device != self.comm.device => {
                Some(format!("is memory of device {device}"))
            }
            _ if sim.memory.is_device(address) && !sim.memory.holds(address, bytes) => Some(
                format!("({}) has no {bytes} bytes", describe(&sim.memory, address)),
            ),
            _ => None,
        };
        match is_wrong {
            None => Ok(()),
            Some(why) => {
                let device = self.comm.device;
                sim.reports
                    .add(format!("{function} on device {device}: {address:#x} {why}"));
                Err(HipError::InvalidValue)
            }
        }
    }
}
