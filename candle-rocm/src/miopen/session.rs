//! A MIOpen handle on a device's stream, with the workspace that its solutions share.

use super::convolution::{call, Convolution, Descriptors, Failure};
use super::{WORKSPACE_FRACTION, WORKSPACE_LIMIT_BYTES};
use crate::pool::{Block, Pool};
use crate::shared::Shared;
use crate::sys::miopen::{self, AlgorithmPerformance, MiOpenHandle, Solution};
use crate::{Device, Error, Result, Stream};
use std::ffi::c_void;
use std::ptr;

/// Device addresses of packed tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub x: *const c_void,
    pub kernel: *const c_void,
    pub y: *mut c_void,
}

/// A solution that is ready to run.
pub(super) struct Prepared {
    pub convolution: Convolution,
    pub descriptors: Descriptors,
    pub solution: Solution,
}

pub(super) struct Session {
    shared: &'static Shared,
    pub library: &'static miopen::MiOpen,
    handle: MiOpenHandle,
    workspace: Option<Block>,
    /// Whether a graph has the workspace's address.
    in_graph: bool,
    /// Outgrown workspaces that graphs use.
    outgrown: Vec<Block>,
    pub limit: usize,
}

// SAFETY: a handle may be used from any thread, one at a time; a mutex holds it.
unsafe impl Send for Session {}

impl Session {
    pub fn new(device: &Device) -> Result<Self> {
        let library = &miopen::MiOpen::get()?.functions;
        let shared = device.shared();
        let total_memory = shared.gpu.properties.total_memory;
        let mut session = Session {
            shared,
            library,
            handle: ptr::null_mut(),
            workspace: None,
            in_graph: false,
            outgrown: Vec::new(),
            limit: WORKSPACE_LIMIT_BYTES.min(total_memory / WORKSPACE_FRACTION),
        };
        // SAFETY: the device is bound, the stream outlives the session, and `handle` receives the handle.
        let create = || unsafe {
            call!(
                library,
                miopenCreateWithStream(&mut session.handle, device.stream().as_raw())
            )
        };
        let created = shared.captures.exclude(create);
        created.map_err(|failure| {
            session.error(failure, "check that this MIOpen supports the architecture")
        })?;
        Ok(session)
    }

    pub fn error(&self, (call, code): Failure, context: impl Into<String>) -> Error {
        Error::MiOpen {
            call,
            arch: self.shared.gpu.properties.full_arch.clone(),
            code,
            status: miopen::status_name(code),
            context: context.into(),
        }
    }

    /// Makes the workspace at least so large. Not during a capture.
    pub fn reserve(&mut self, device: &Device, bytes: usize) -> Result<()> {
        if bytes <= self.workspace.as_ref().map_or(0, |block| block.bytes) {
            return Ok(());
        }
        let larger = device.pool().alloc(bytes, device.stream())?;
        if let Some(outgrown) = self.workspace.replace(larger) {
            if std::mem::take(&mut self.in_graph) {
                self.outgrown.push(outgrown);
            } else {
                device.pool().free(outgrown, device.stream());
            }
        }
        Ok(())
    }

    /// Address and size of the workspace for a solution: null for none.
    fn workspace(&self, bytes: usize) -> (*mut c_void, usize) {
        match &self.workspace {
            Some(block) if bytes > 0 => (block.ptr, bytes),
            _ => (ptr::null_mut(), 0),
        }
    }

    /// Solutions that MIOpen has for the convolution, its favourite first.
    pub fn solutions(&self, d: &Descriptors) -> std::result::Result<Vec<Solution>, Failure> {
        let (x, kernel, y, options) = (d.x.raw, d.kernel.raw, d.y.raw, d.convolution.raw);
        let mut count = 0;
        // SAFETY: handle and descriptors are alive; `count` receives the number.
        unsafe {
            call!(
                self.library,
                miopenConvolutionForwardGetSolutionCount(
                    self.handle,
                    kernel,
                    x,
                    options,
                    y,
                    &mut count
                )
            )?;
        }
        let mut solutions = vec![Solution::default(); count];
        if count > 0 {
            // SAFETY: as above; `solutions` has room for `count`, which receives how many there are.
            unsafe {
                call!(
                    self.library,
                    miopenConvolutionForwardGetSolution(
                        self.handle,
                        kernel,
                        x,
                        options,
                        y,
                        solutions.len(),
                        &mut count,
                        solutions.as_mut_ptr(),
                    )
                )?;
            }
            solutions.truncate(count);
        }
        Ok(solutions)
    }

    /// Makes a solution ready to run, so that its first run compiles nothing.
    pub fn compile(
        &self,
        d: &Descriptors,
        solution: &Solution,
    ) -> std::result::Result<(), Failure> {
        // SAFETY: handle and descriptors are alive.
        unsafe {
            call!(
                self.library,
                miopenConvolutionForwardCompileSolution(
                    self.handle,
                    d.kernel.raw,
                    d.x.raw,
                    d.convolution.raw,
                    d.y.raw,
                    solution.solution_id,
                )
            )
        }
    }

    /// Has MIOpen measure its solutions, those with a workspace within the limit; what it finds is in its database
    /// afterwards. The output is overwritten.
    pub fn find(
        &mut self,
        device: &Device,
        d: &Descriptors,
        operands: Operands,
    ) -> std::result::Result<(), Failure> {
        const RESULTS: usize = 8;
        let (x, kernel, y, options) = (d.x.raw, d.kernel.raw, d.y.raw, d.convolution.raw);
        let mut bytes = 0;
        // SAFETY: handle and descriptors are alive; `bytes` receives the size.
        unsafe {
            call!(
                self.library,
                miopenConvolutionForwardGetWorkSpaceSize(
                    self.handle,
                    kernel,
                    x,
                    options,
                    y,
                    &mut bytes
                )
            )?;
        }
        let bytes = bytes.min(self.limit);
        // Without memory for it, those solutions are measured that need none.
        let bytes = self.reserve(device, bytes).map_or(0, |()| bytes);
        let (workspace, bytes) = self.workspace(bytes);
        let mut results = [AlgorithmPerformance::default(); RESULTS];
        let mut count = 0;
        // SAFETY: the tensors are those that the descriptors describe, and `results` has room for as many as is said.
        unsafe {
            call!(
                self.library,
                miopenFindConvolutionForwardAlgorithm(
                    self.handle,
                    x,
                    operands.x,
                    kernel,
                    operands.kernel,
                    options,
                    y,
                    operands.y,
                    RESULTS as i32,
                    &mut count,
                    results.as_mut_ptr(),
                    workspace,
                    bytes,
                    false,
                )
            )
        }
    }

    /// Enqueues a solution that was compiled and whose workspace was reserved.
    pub fn enqueue(
        &self,
        d: &Descriptors,
        solution: &Solution,
        operands: Operands,
    ) -> std::result::Result<(), Failure> {
        let (workspace, bytes) = self.workspace(solution.workspace_size);
        // SAFETY: the tensors are those that the descriptors describe, the workspace is as large as is said, and all
        // belong to the device, whose stream orders their use.
        unsafe {
            call!(
                self.library,
                miopenConvolutionForwardImmediate(
                    self.handle,
                    d.kernel.raw,
                    operands.kernel,
                    d.x.raw,
                    operands.x,
                    d.convolution.raw,
                    d.y.raw,
                    operands.y,
                    workspace,
                    bytes,
                    solution.solution_id,
                )
            )
        }
    }

    /// Enqueues what was chosen.
    pub fn run(&mut self, device: &Device, prepared: &Prepared, operands: Operands) -> Result<()> {
        device.count_launch();
        self.in_graph |= device.pool().is_capturing() && prepared.solution.workspace_size > 0;
        self.enqueue(&prepared.descriptors, &prepared.solution, operands)
            .map_err(|failure| {
                let context = format!(
                    "solver {} for {:?}; CANDLE_ROCM_MIOPEN=off computes without MIOpen",
                    prepared.solution.solution_id, prepared.convolution
                );
                self.error(failure, context)
            })
    }

    pub fn give_back(&mut self, pool: &Pool, stream: &Stream) {
        for block in self
            .workspace
            .take()
            .into_iter()
            .chain(self.outgrown.drain(..))
        {
            pool.free(block, stream);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.handle.is_null() {
            return;
        }
        let destroyed = self.shared.gpu.bind().and_then(|()| {
            // SAFETY: the handle is ours; the device's stream is idle when it is dropped.
            let destroy = || unsafe { call!(self.library, miopenDestroy(self.handle)) };
            let destroyed = self.shared.captures.exclude(destroy);
            destroyed.map_err(|failure| self.error(failure, "while the device was dropped"))
        });
        self.shared.gpu.defer(destroyed);
    }
}
