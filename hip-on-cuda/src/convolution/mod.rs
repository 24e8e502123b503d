//! MIOpen's convolutions over cuDNN: configurations of its engines are the solutions, and execution plans are what is
//! compiled. The transposed convolution is the gradient of one by its input.

mod engine;
mod plan;

use crate::cuda::{check, cuda, within};
use crate::cudnn::*;
use hip_abi::miopen::{
    lock, miopenConvSolution_t, misused, Addresses, Backend, Failure, Outcome, Problem, Type,
};
use plan::Plan;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

/// What is offered without measuring: the first of `CUDNN_HEUR_MODE_A` and of `_FALLBACK`, engines that take almost
/// everything.
const OFFERED: &[c_int] = &[3, 2];
/// What is measured besides: the first of `CUDNN_HEUR_MODE_B`, which takes longer to answer. On an H200 it has the
/// faster engines in f32 here and there (486 us instead of 730 for 1x512x64x64, 3x3), and in 16 bits the slower ones.
const MEASURED: &[c_int] = &[1];
/// Runs of a measurement, after one that warms up.
const MEASURED_RUNS: u32 = 3;
/// Bytes that tensors are aligned to, unless they are not.
const ALIGNMENT: usize = 16;

/// Numbers of the tensors in a graph.
const TENSORS: [i64; 3] = [1, 2, 3];

fn is_aligned(memory: Addresses) -> bool {
    (memory.x | memory.w | memory.y).is_multiple_of(ALIGNMENT)
}

/// What is known of a problem: plans for aligned tensors and, once there was need for them, for others.
struct Known {
    aligned: Vec<Plan>,
    unaligned: Option<Vec<Plan>>,
    measured: bool,
}

/// A handle of cuDNN's on a stream.
pub(crate) struct Convolutions {
    cudnn: &'static Cudnn,
    handle: *mut c_void,
    stream: *mut c_void,
    known: Mutex<HashMap<Problem, Known>>,
}

// SAFETY: the handle and what was made with it may be used from any thread, one at a time: what uses them holds the
// mutex.
unsafe impl Send for Convolutions {}
// SAFETY: as above.
unsafe impl Sync for Convolutions {}

/// MIOpen says what went wrong on stderr, too.
fn failed(function: &str, message: &str) -> Failure {
    eprintln!("hip-on-cuda: {function}: cuDNN: {message}");
    Failure::InternalError
}

impl Convolutions {
    /// cuDNN on a stream of the thread's device.
    pub fn new(stream: *mut c_void) -> Outcome<Convolutions> {
        let cudnn = cudnn().ok_or(Failure::NotImplemented)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` receives the handle.
        let created =
            within(|| unsafe { cudnn.check("cudnnCreate", (cudnn.cudnnCreate)(&mut handle)) });
        created.map_err(|message| failed("miopenCreate", &message))?;
        let convolutions = Convolutions {
            cudnn,
            handle,
            stream,
            known: Mutex::default(),
        };
        // SAFETY: the handle is alive; the stream is the caller's.
        let set = within(|| unsafe {
            cudnn.check("cudnnSetStream", (cudnn.cudnnSetStream)(handle, stream))
        });
        set.map_err(|message| failed("miopenCreate", &message))?;
        Ok(convolutions)
    }

    /// Calls `f` with what is known of a problem, in the thread's context.
    fn with<T>(
        &self,
        function: &str,
        problem: &Problem,
        f: impl FnOnce(&mut Known) -> Result<T, String>,
    ) -> Outcome<T> {
        let mut problems = lock(&self.known);
        let done = within(|| {
            if let Some(known) = problems.get_mut(problem) {
                return f(known);
            }
            let known = Known {
                aligned: self.plans(problem, ALIGNMENT, OFFERED)?,
                unaligned: None,
                measured: false,
            };
            f(problems.entry(problem.clone()).or_insert(known))
        });
        done.map_err(|message| failed(function, &message))
    }

    fn execute(&self, plan: &Plan, memory: Addresses) -> Result<(), String> {
        let Addresses {
            x, w, y, workspace, ..
        } = memory;
        let pack = self
            .descriptor(Kind::VariantPack)?
            .with(&PACK_UNIQUE_IDS, &TENSORS)?
            .with(
                &PACK_POINTERS,
                &[x, w, y].map(|tensor| tensor as *mut c_void),
            )?
            .with(&PACK_WORKSPACE, &[workspace as *mut c_void])?
            .finalized()?;
        // SAFETY: the handle is alive; the memory is as large as the caller's descriptors and the solution say.
        unsafe { plan.plan.execute(self.handle, &pack) }
    }

    /// The same as a solution for tensors that are not aligned.
    fn execute_unaligned(
        &self,
        problem: &Problem,
        known: &mut Known,
        memory: Addresses,
    ) -> Result<(), String> {
        if known.unaligned.is_none() {
            let bytes = problem.element().map_or(ALIGNMENT, Type::bytes);
            known.unaligned = Some(self.plans(problem, bytes, OFFERED)?);
        }
        let mut plans = known.unaligned.iter().flatten();
        let plan = plans.find(|plan| plan.solution.workspace_size <= memory.workspace_bytes);
        let plan = plan.ok_or_else(|| {
            let bytes = memory.workspace_bytes;
            format!(
                "none of its solutions takes unaligned tensors and a workspace of {bytes} bytes"
            )
        })?;
        self.execute(plan, memory)
    }

    /// Milliseconds of a run.
    fn measure(&self, plan: &Plan, memory: Addresses) -> Result<f32, String> {
        let Some(cuda) = cuda() else {
            return Err("there is no driver to measure with".to_string());
        };
        let driver = &cuda.driver;
        self.execute(plan, memory)?;
        let mut events = [std::ptr::null_mut(); 2];
        let mut milliseconds = 0.0;
        // SAFETY: the events are made and destroyed here; the stream is that of the handle.
        unsafe {
            for event in &mut events {
                check("cuEventCreate", (driver.cuEventCreate)(event, 0))?;
            }
            let [start, stop] = events;
            let timed = (|| {
                check("cuEventRecord", (driver.cuEventRecord)(start, self.stream))?;
                (0..MEASURED_RUNS).try_for_each(|_| self.execute(plan, memory))?;
                check("cuEventRecord", (driver.cuEventRecord)(stop, self.stream))?;
                check("cuEventSynchronize", (driver.cuEventSynchronize)(stop))?;
                let elapsed = (driver.cuEventElapsedTime)(&mut milliseconds, start, stop);
                check("cuEventElapsedTime", elapsed)
            })();
            for event in events {
                (driver.cuEventDestroy)(event);
            }
            timed?;
        }
        Ok(milliseconds / MEASURED_RUNS as f32)
    }
}

impl Backend for Convolutions {
    fn ready(&self, _function: &str) -> Outcome {
        Ok(())
    }

    fn solutions(
        &self,
        function: &str,
        problem: &Problem,
        _measuring: bool,
    ) -> Outcome<Vec<miopenConvSolution_t>> {
        self.with(function, problem, |known| {
            Ok(known.aligned.iter().map(|plan| plan.solution).collect())
        })
    }

    fn solution(
        &self,
        function: &str,
        problem: &Problem,
        id: u64,
    ) -> Outcome<miopenConvSolution_t> {
        let found = self.with(function, problem, |known| {
            let mut plans = known.aligned.iter();
            Ok((plans.find(|plan| plan.solution.solution_id == id)).map(|plan| plan.solution))
        })?;
        found.ok_or_else(|| misused(function, format!("{id} is not one of the solutions")))
    }

    fn compile(&self, _function: &str, _problem: &Problem, _id: u64) -> Outcome {
        // A solution has its plan already.
        Ok(())
    }

    fn run(
        &self,
        function: &str,
        problem: &Problem,
        solution: &miopenConvSolution_t,
        memory: Addresses,
    ) -> Outcome {
        self.with(function, problem, |known| {
            if !is_aligned(memory) {
                return self.execute_unaligned(problem, known, memory);
            }
            let mut plans = known.aligned.iter();
            match plans.find(|plan| plan.solution.solution_id == solution.solution_id) {
                Some(plan) => self.execute(plan, memory),
                None => Err(format!("there is no solution {}", solution.solution_id)),
            }
        })
    }

    fn find(
        &self,
        function: &str,
        problem: &Problem,
        memory: Addresses,
    ) -> Outcome<Vec<miopenConvSolution_t>> {
        if !is_aligned(memory) {
            // Nothing can be said of solutions for others.
            return Ok(Vec::new());
        }
        self.with(function, problem, |known| {
            if !known.measured {
                // Without them, those offered are measured.
                let others = self.plans(problem, ALIGNMENT, MEASURED).unwrap_or_default();
                known.aligned.extend(others);
                known.measured = true;
            }
            let plans = &mut known.aligned;
            let mut reasons = Vec::new();
            for plan in plans.iter_mut() {
                plan.solution.time = f32::INFINITY;
                if plan.solution.workspace_size <= memory.workspace_bytes {
                    match self.measure(plan, memory) {
                        Ok(time) => plan.solution.time = time,
                        Err(reason) => reasons.push(reason),
                    }
                }
            }
            // In cuDNN's order behind them: what failed and what was not measured.
            plans.sort_by(|a, b| a.solution.time.total_cmp(&b.solution.time));
            let measured = |plan: &&Plan| plan.solution.time.is_finite();
            let found: Vec<_> = (plans.iter().filter(measured))
                .map(|plan| plan.solution)
                .collect();
            match reasons.first() {
                Some(reason) if found.is_empty() => Err(reason.clone()),
                _ => Ok(found),
            }
        })
    }
}

impl Drop for Convolutions {
    fn drop(&mut self) {
        let problems = self.known.get_mut().unwrap_or_else(|e| e.into_inner());
        let cudnn = self.cudnn;
        // A failure could only leak.
        let _ = within(|| {
            problems.clear();
            // SAFETY: the handle is ours and not used after this.
            cudnn.check("cudnnDestroy", unsafe { (cudnn.cudnnDestroy)(self.handle) })
        });
    }
}
