//! Graphs: a sequence of launches recorded once and enqueued as one.
//!
//! A decode step of a language model is hundreds of small kernels; enqueuing them one by one costs more
//! than running them. A captured step is one call.

use crate::captures::Entry;
use crate::pool::Block;
use crate::sys::hip::{self, Hip, HipError, HipGraph, HipGraphExec, HipStream};
use crate::sys::LoadError;
use crate::{Device, Error, Result};
use std::ffi::{c_char, c_void};
use std::ptr;

/// A recording in progress: what is enqueued on the device is kept instead of carried out. Dropped without
/// [`Capture::end`], it is discarded.
///
/// During a capture the host must neither wait for the device nor upload or download; rocBLAS must have been
/// used before, or [`blas::prepare`](crate::blas::prepare) called. Other threads must leave the device alone.
#[derive(Debug)]
pub struct Capture {
    device: Device,
    open: bool,
    functions: Functions,
    /// Whether the error word had to be looked at when the capture began.
    armed: bool,
    _entry: Entry,
}

type EndCapture = unsafe extern "C" fn(HipStream, *mut HipGraph) -> HipError;
type Instantiate = unsafe extern "C" fn(
    *mut HipGraphExec,
    HipGraph,
    *mut *mut c_void,
    *mut c_char,
    usize,
) -> HipError;
type Destroy = unsafe extern "C" fn(HipGraph) -> HipError;

/// What a capture needs to end well. All is looked up before it begins: a recording could not be given back without.
#[derive(Clone, Copy, Debug)]
struct Functions {
    end: EndCapture,
    instantiate: Instantiate,
    destroy: Destroy,
}

impl Capture {
    /// Starts recording.
    ///
    /// # Errors
    /// HIP's, and [`Error::Load`] if this HIP has no graphs.
    pub fn begin(device: &Device) -> Result<Self> {
        device.enter()?;
        let gpu = device.gpu();
        let begin = function(gpu.hip.hipStreamBeginCapture, "hipStreamBeginCapture")?;
        let functions = Functions {
            end: function(gpu.hip.hipStreamEndCapture, "hipStreamEndCapture")?,
            instantiate: function(gpu.hip.hipGraphInstantiate, "hipGraphInstantiate")?,
            destroy: function(gpu.hip.hipGraphDestroy, "hipGraphDestroy")?,
        };
        let entry = Entry::new(&device.shared().captures);
        // SAFETY: the stream is alive.
        let status = unsafe { begin(device.stream().as_raw(), hip::STREAM_CAPTURE_MODE_RELAXED) };
        gpu.check("hipStreamBeginCapture", status)?;
        device.stream().set_capturing(true);
        device.pool().begin_capture();
        device.launch_count().begin_recording();
        Ok(Capture {
            device: device.clone(),
            open: true,
            functions,
            armed: device.error_state().set_armed(false),
            _entry: entry,
        })
    }

    /// Stops recording and makes the graph ready to run.
    ///
    /// # Errors
    /// HIP's, for example if something was called that cannot be captured.
    pub fn end(mut self) -> Result<Graph> {
        let device = self.device.clone();
        let blocks = Blocks {
            device: device.clone(),
            blocks: Vec::new(),
        };
        let (graph, recorded, arms, blocks) = self.stop(blocks)?;
        let (gpu, functions) = (device.gpu(), self.functions);
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is complete and destroyed only after it was instantiated.
        let (made, destroyed) = unsafe {
            let nulls = (ptr::null_mut(), ptr::null_mut());
            let made = (functions.instantiate)(&mut exec, graph, nulls.0, nulls.1, 0);
            (made, (functions.destroy)(graph))
        };
        gpu.check("hipGraphInstantiate", made)?;
        let graph = Graph {
            exec,
            recorded,
            arms,
            blocks,
        };
        gpu.check("hipGraphDestroy", destroyed)?;
        Ok(graph)
    }

    /// The raw graph, how many launches it has, whether it leaves the error word to be looked at, and the memory that it
    /// uses.
    fn stop(&mut self, mut blocks: Blocks) -> Result<(HipGraph, u64, bool, Blocks)> {
        self.open = false;
        let device = &self.device;
        device.stream().set_capturing(false);
        let arms = device.error_state().set_armed(self.armed);
        let recorded = device.launch_count().end_recording();
        blocks.blocks = device.pool().end_capture();
        let gpu = device.gpu();
        gpu.bind()?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured; `graph` receives the handle.
        let status = unsafe { (self.functions.end)(device.stream().as_raw(), &mut graph) };
        gpu.check("hipStreamEndCapture", status)?;
        Ok((graph, recorded, arms, blocks))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let blocks = Blocks {
            device: self.device.clone(),
            blocks: Vec::new(),
        };
        // A capture is mostly given up because something could not be captured, which has spoiled it: then there is no
        // graph, and its reason was told.
        let Ok((graph, _, _, _blocks)) = self.stop(blocks) else {
            return;
        };
        let gpu = self.device.gpu();
        // SAFETY: the graph is ours and not used after this.
        let status = unsafe { (self.functions.destroy)(graph) };
        gpu.defer(gpu.check("hipGraphDestroy", status));
    }
}

/// Memory that was freed during a capture: the graph's kernels use it, so nobody else may have it.
#[derive(Debug)]
struct Blocks {
    device: Device,
    blocks: Vec<Block>,
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        self.device.pool().end_graph(blocks, self.device.stream());
    }
}

/// A recorded sequence of work. It holds the temporary memory of the recording; buffers that were made
/// before must live as long as the graph is launched.
#[derive(Debug)]
pub struct Graph {
    exec: HipGraphExec,
    recorded: u64,
    /// Whether its kernels may set the error word and none of them hands it to the host.
    arms: bool,
    blocks: Blocks,
}

// SAFETY: graph handles may be used from any thread.
unsafe impl Send for Graph {}
// SAFETY: HIP serialises launches of a graph.
unsafe impl Sync for Graph {}

impl Graph {
    /// What it recorded of that which [`Device::launches`] counts.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Enqueues the recorded work on the device's stream.
    ///
    /// # Safety
    /// The buffers that were made before the recording and used in it are alive, and stay so until the device has done
    /// the work.
    ///
    /// # Errors
    /// HIP's.
    pub unsafe fn launch(&self) -> Result<()> {
        let device = &self.blocks.device;
        device.enter()?;
        let gpu = device.gpu();
        let launch = function(gpu.hip.hipGraphLaunch, "hipGraphLaunch")?;
        // SAFETY: graph and stream are alive, the graph holds what was allocated while it was recorded, and the rest is
        // the caller's promise.
        let status = unsafe { launch(self.exec, device.stream().as_raw()) };
        gpu.check("hipGraphLaunch", status)?;
        device.count_launch();
        if self.arms {
            device.error_state().arm();
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let device = &self.blocks.device;
        let gpu = device.gpu();
        let destroyed = device.stream().wait_idle().and_then(|()| {
            let destroy = function(gpu.hip.hipGraphExecDestroy, "hipGraphExecDestroy")?;
            // SAFETY: the graph is ours, idle, and not used after this.
            gpu.check("hipGraphExecDestroy", unsafe { destroy(self.exec) })
        });
        gpu.defer(destroyed);
    }
}

/// An optional function of HIP.
fn function<T>(pointer: Option<T>, symbol: &'static str) -> Result<T> {
    let path = Hip::get()?.path.clone();
    pointer.ok_or(Error::Load(LoadError::MissingSymbol {
        path,
        symbol,
        tried: Vec::new(),
    }))
}
