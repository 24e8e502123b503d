//! Graphs: a sequence of launches recorded once and enqueued as one.
//!
//! A decode step of a language model is hundreds of small kernels; enqueuing them one by one costs more
//! than running them. A captured step is one call.

use crate::captures::Entry;
use crate::pool::Block;
use crate::sys::hip::{self, Hip, HipGraph, HipGraphExec};
use crate::sys::LoadError;
use crate::{Device, Error, Result};
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
    /// The device's count of launches when it began.
    launches: u64,
    _entry: Entry,
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
        let entry = Entry::new(&device.shared().captures);
        // SAFETY: the stream is alive.
        let status = unsafe { begin(device.stream().as_raw(), hip::STREAM_CAPTURE_MODE_RELAXED) };
        gpu.check("hipStreamBeginCapture", status)?;
        device.pool().begin_capture();
        Ok(Capture {
            device: device.clone(),
            open: true,
            launches: device.launches(),
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
        let recorded = device.launches() - self.launches;
        let (graph, blocks) = self.stop(blocks)?;
        let gpu = device.gpu();
        let instantiate = function(gpu.hip.hipGraphInstantiate, "hipGraphInstantiate")?;
        let destroy = function(gpu.hip.hipGraphDestroy, "hipGraphDestroy")?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is complete and destroyed only after it was instantiated.
        let (made, destroyed) = unsafe {
            let made = instantiate(&mut exec, graph, ptr::null_mut(), ptr::null_mut(), 0);
            (made, destroy(graph))
        };
        gpu.check("hipGraphInstantiate", made)?;
        let graph = Graph {
            exec,
            recorded,
            blocks,
        };
        gpu.check("hipGraphDestroy", destroyed)?;
        Ok(graph)
    }

    fn stop(&mut self, mut blocks: Blocks) -> Result<(HipGraph, Blocks)> {
        self.open = false;
        let device = &self.device;
        device.restore_launches(self.launches);
        blocks.blocks = device.pool().end_capture();
        let gpu = device.gpu();
        gpu.bind()?;
        let end = function(gpu.hip.hipStreamEndCapture, "hipStreamEndCapture")?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured; `graph` receives the handle.
        let status = unsafe { end(device.stream().as_raw(), &mut graph) };
        gpu.check("hipStreamEndCapture", status)?;
        Ok((graph, blocks))
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
        // A capture is mostly given up because something could not be captured, which has spoiled it: then there is no graph, and its
        // reason was told.
        let Ok((graph, _blocks)) = self.stop(blocks) else {
            return;
        };
        let gpu = self.device.gpu();
        let destroyed = function(gpu.hip.hipGraphDestroy, "hipGraphDestroy").and_then(|destroy| {
            // SAFETY: the graph is ours and not used after this.
            gpu.check("hipGraphDestroy", unsafe { destroy(graph) })
        });
        gpu.defer(destroyed);
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
    /// # Errors
    /// HIP's.
    pub fn launch(&self) -> Result<()> {
        let device = &self.blocks.device;
        device.enter()?;
        let gpu = device.gpu();
        let launch = function(gpu.hip.hipGraphLaunch, "hipGraphLaunch")?;
        // SAFETY: graph and stream are alive.
        let status = unsafe { launch(self.exec, device.stream().as_raw()) };
        gpu.check("hipGraphLaunch", status)?;
        device.count_launch();
        device.error_state().arm();
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
