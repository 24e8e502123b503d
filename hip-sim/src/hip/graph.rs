//! Stream capture and graphs: a captured call is kept with its arguments and run when the graph is launched.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::stream::{hipStream_t, stream, Stream};
use super::{api, put};
use crate::error::{hipError_t, HipError, HipResult};
use crate::inject::Failure;
use crate::sim::{Counters, Sim};
use crate::wrong::GRAPH;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

/// Handle of a graph.
#[allow(non_camel_case_types)]
pub type hipGraph_t = *mut c_void;
/// Handle of a graph that can be launched.
#[allow(non_camel_case_types)]
pub type hipGraphExec_t = *mut c_void;

/// What a graph's node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Kernel,
    Memcpy,
    Memset,
    Gemm,
    Collective,
}

type Work = Arc<dyn Fn(&'static Sim) -> HipResult + Send + Sync>;

#[derive(Clone)]
struct Node {
    kind: NodeKind,
    work: Work,
}

/// Which calls of which threads a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A capture under way, shared by all streams that take part in it.
pub(crate) struct Capture {
    mode: Mode,
    thread: ThreadId,
    /// Handle of the stream in which it began.
    origin: usize,
    /// Device of that stream.
    device: usize,
    blocking: bool,
    /// Streams that joined by waiting for an event of the capture.
    joined: AtomicUsize,
    invalid: AtomicBool,
    ended: AtomicBool,
    nodes: Mutex<Vec<Node>>,
}

impl Capture {
    pub fn record(&self, kind: NodeKind, work: Work) -> HipResult {
        if self.invalid.load(Ordering::SeqCst) {
            return Err(HipError::StreamCaptureInvalidated);
        }
        self.nodes().push(Node { kind, work });
        Ok(())
    }

    pub fn invalidate(&self) {
        self.invalid.store(true, Ordering::SeqCst);
    }

    pub fn is_active(&self) -> bool {
        !self.ended.load(Ordering::SeqCst)
    }

    pub fn join(&self) {
        self.joined.fetch_add(1, Ordering::SeqCst);
    }

    pub fn makes_default_stream_illegal(&self) -> bool {
        self.blocking && self.mode != Mode::Relaxed
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn forbids(&self) -> bool {
        match self.mode {
            Mode::Global => true,
            Mode::ThreadLocal => self.thread == std::thread::current().id(),
            Mode::Relaxed => false,
        }
    }
}

/// Fails, and spoils the captures, if a capture under way forbids this thread to allocate or to wait.
pub(crate) fn forbid_while_capturing(sim: &Sim) -> HipResult {
    let captures = sim.captures.lock().unwrap_or_else(|e| e.into_inner());
    let mut forbidden = captures.iter().filter(|c| c.forbids()).peekable();
    if forbidden.peek().is_none() {
        return Ok(());
    }
    forbidden.for_each(|c| c.invalidate());
    Err(HipError::StreamCaptureUnsupported)
}

/// Fails, and spoils them, if streams of a device are being captured, in whichever mode: it cannot be waited for.
pub(crate) fn forbid_waiting(sim: &Sim, device: usize) -> HipResult {
    let captures = sim.captures.lock().unwrap_or_else(|e| e.into_inner());
    let mut under_way = captures.iter().filter(|c| c.device == device).peekable();
    if under_way.peek().is_none() {
        return Ok(());
    }
    under_way.for_each(|c| c.invalidate());
    Err(HipError::StreamCaptureUnsupported)
}

/// Takes a capture off the list of those under way.
pub(crate) fn forget(sim: &Sim, capture: &Arc<Capture>) {
    capture.ended.store(true, Ordering::SeqCst);
    sim.captures
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .retain(|c| !Arc::ptr_eq(c, capture));
}

pub(crate) struct Graph {
    nodes: Vec<Node>,
}

pub(crate) struct GraphExec {
    nodes: Mutex<Vec<Node>>,
}

#[no_mangle]
pub extern "C" fn hipStreamBeginCapture(handle: hipStream_t, mode: c_int) -> hipError_t {
    api(|sim| {
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(HipError::InvalidValue),
        };
        // The default stream cannot be captured.
        let stream = sim.streams.get(handle).ok_or(match handle.is_null() {
            true => HipError::StreamCaptureUnsupported,
            false => HipError::InvalidHandle,
        })?;
        let mut slot = stream.capture();
        if slot.is_some() {
            return Err(HipError::IllegalState);
        }
        let capture = Arc::new(Capture {
            mode,
            thread: std::thread::current().id(),
            origin: handle as usize,
            device: stream.device,
            blocking: stream.is_blocking(),
            joined: AtomicUsize::new(0),
            invalid: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            nodes: Mutex::default(),
        });
        *slot = Some(capture.clone());
        sim.captures
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(capture);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamEndCapture(
    handle: hipStream_t,
    graph: *mut hipGraph_t,
) -> hipError_t {
    api(|sim| {
        let stream = sim.streams.get(handle).ok_or(HipError::InvalidHandle)?;
        if graph.is_null() {
            return Err(HipError::InvalidValue);
        }
        let capture = stream.capture().clone().ok_or(HipError::IllegalState)?;
        if capture.origin != handle as usize {
            return Err(HipError::StreamCaptureUnmatched);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(HipError::StreamCaptureWrongThread);
        }
        forget(sim, &capture);
        sim.streams.for_each(|s: &Stream| {
            let mut slot = s.capture();
            if slot.as_ref().is_some_and(|c| Arc::ptr_eq(c, &capture)) {
                *slot = None;
            }
        });
        let injected = sim.config.failures.check(Failure::Capture);
        if injected.is_err() || capture.invalid.load(Ordering::SeqCst) {
            // SAFETY: not null; the caller's pointer.
            unsafe { put(graph, std::ptr::null_mut())? };
            return Err(HipError::StreamCaptureInvalidated);
        }
        let nodes = std::mem::take(&mut *capture.nodes());
        // SAFETY: as above.
        unsafe { put(graph, sim.graphs.insert(Arc::new(Graph { nodes }))) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamIsCapturing(
    handle: hipStream_t,
    status: *mut c_int,
) -> hipError_t {
    api(|sim| {
        let stream = stream(sim, handle)?;
        let state = match stream.capture().as_ref() {
            None => 0,
            Some(capture) if capture.invalid.load(Ordering::SeqCst) => 2,
            Some(_) => 1,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(status, state) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipGraphGetNodes(
    graph: hipGraph_t,
    nodes: *mut *mut c_void,
    count: *mut usize,
) -> hipError_t {
    api(|sim| {
        let graph = sim.graphs.get(graph).ok_or(HipError::InvalidValue)?;
        // Only the number is told: nodes cannot be addressed one by one.
        match nodes.is_null() {
            // SAFETY: the caller's pointer.
            true => unsafe { put(count, graph.nodes.len()) },
            false => Err(HipError::NotSupported),
        }
    })
}

fn instantiate(exec: *mut hipGraphExec_t, graph: hipGraph_t) -> hipError_t {
    api(|sim| {
        let graph = sim.graphs.get(graph).ok_or(HipError::InvalidValue)?;
        if exec.is_null() {
            return Err(HipError::InvalidValue);
        }
        let nodes = Mutex::new(graph.nodes.clone());
        // SAFETY: the caller's pointer.
        unsafe { put(exec, sim.graph_execs.insert(Arc::new(GraphExec { nodes }))) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipGraphInstantiate(
    exec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    _error_node: *mut *mut c_void,
    _log: *mut c_char,
    _log_bytes: usize,
) -> hipError_t {
    instantiate(exec, graph)
}

#[no_mangle]
pub unsafe extern "C" fn hipGraphInstantiateWithFlags(
    exec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    _flags: u64,
) -> hipError_t {
    instantiate(exec, graph)
}

/// Takes over the nodes of a graph of the same shape: the same kinds of nodes in the same order.
#[no_mangle]
pub unsafe extern "C" fn hipGraphExecUpdate(
    exec: hipGraphExec_t,
    graph: hipGraph_t,
    _error_node: *mut *mut c_void,
    result: *mut c_uint,
) -> hipError_t {
    const TOPOLOGY_CHANGED: c_uint = 2;
    api(|sim| {
        let exec = sim.graph_execs.get(exec).ok_or(HipError::InvalidValue)?;
        let graph = sim.graphs.get(graph).ok_or(HipError::InvalidValue)?;
        let mut nodes = exec.nodes.lock().unwrap_or_else(|e| e.into_inner());
        let kinds = |nodes: &[Node]| nodes.iter().map(|n| n.kind).collect::<Vec<_>>();
        let same = kinds(&nodes) == kinds(&graph.nodes);
        if !result.is_null() {
            // SAFETY: not null; the caller's pointer.
            unsafe { put(result, if same { 0 } else { TOPOLOGY_CHANGED })? };
        }
        if !same {
            return Err(HipError::GraphExecUpdateFailure);
        }
        nodes.clone_from(&graph.nodes);
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn hipGraphLaunch(exec: hipGraphExec_t, handle: hipStream_t) -> hipError_t {
    api(|sim| {
        let exec = sim.graph_execs.get(exec).ok_or(HipError::InvalidValue)?;
        let stream = stream(sim, handle)?;
        Counters::count(&sim.counters.graphs);
        let mut nodes = exec.nodes.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let is_kernel = |n: &Node| matches!(n.kind, NodeKind::Kernel | NodeKind::Gemm);
        let last = nodes.iter().rposition(is_kernel);
        if let Some(last) = last.filter(|_| sim.config.wrong.is_on(GRAPH)) {
            nodes.remove(last);
        }
        nodes
            .into_iter()
            .try_for_each(|Node { kind, work }| stream.submit(sim, kind, move |sim| work(sim)))
    })
}

#[no_mangle]
pub extern "C" fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t {
    api(|sim| {
        sim.graphs
            .remove(graph)
            .map(|_| ())
            .ok_or(HipError::InvalidValue)
    })
}

#[no_mangle]
pub extern "C" fn hipGraphExecDestroy(exec: hipGraphExec_t) -> hipError_t {
    api(|sim| {
        sim.graph_execs
            .remove(exec)
            .map(|_| ())
            .ok_or(HipError::InvalidValue)
    })
}
