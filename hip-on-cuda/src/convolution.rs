//! MIOpen's convolutions over cuDNN: configurations of its engines are the solutions, and execution plans are what is compiled. The
//! transposed convolution is the gradient of one by its input.

use crate::cuda::{check, cuda, within};
use crate::cudnn::*;
use hip_abi::miopen::{
    lock, miopenConvSolution_t, misused, Addresses, Backend, Failure, Outcome, Problem, Tensor,
    Type,
};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::Mutex;

/// `miopenConvolutionAlgoFFT`, `-Winograd` and `-ImplicitGEMM`.
const FFT: c_int = 2;
const WINOGRAD: c_int = 3;
const IMPLICIT_GEMM: c_int = 5;

/// What is offered without measuring: the first of `CUDNN_HEUR_MODE_A` and of `_FALLBACK`, engines that take almost everything.
const OFFERED: &[c_int] = &[3, 2];
/// What is measured besides: the first of `CUDNN_HEUR_MODE_B`, which takes longer to answer. On an H200 it has the faster engines in f32
/// here and there (486 us instead of 730 for 1x512x64x64, 3x3), and in 16 bits the slower ones.
const MEASURED: &[c_int] = &[1];
/// Configurations that are asked for.
const CONFIGURATIONS: usize = 64;
/// Solutions of these that are offered or measured: neighbours among the configurations differ little.
const SOLUTIONS: usize = 8;
/// A solution's number: its engine's and the place in cuDNN's order, in decimal digits.
const ENGINE_DIGITS: u64 = 1000;
const MODE_DIGITS: u64 = 100;
/// Runs of a measurement, after one that warms up.
const MEASURED_RUNS: u32 = 3;
/// Bytes that tensors are aligned to, unless they are not.
const ALIGNMENT: usize = 16;

/// Numbers of the tensors in a graph.
const TENSORS: [i64; 3] = [1, 2, 3];
/// `CUDNN_DATA_FLOAT`, in which everything is summed.
const FLOAT: c_int = 0;
/// `CUDNN_CROSS_CORRELATION`.
const CROSS_CORRELATION: c_int = 1;

/// `cudnnBackendNumericalNote_t`, as far as it matters.
mod note {
    pub const TENSOR_CORE: i32 = 0;
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    pub const REDUCED_PRECISION_REDUCTION: i32 = 2;
    pub const FFT: i32 = 3;
    pub const NONDETERMINISTIC: i32 = 4;
    pub const WINOGRAD: i32 = 5;
    /// How many there are.
    pub const COUNT: usize = 16;
}

/// `cudnnDataType_t`.
fn data_type(element: Type) -> c_int {
    match element {
        Type::F32 => FLOAT,
        Type::F16 => 2,
        Type::Bf16 => 9,
    }
}

/// Whether an engine computes as MIOpen would: sums in f32, and f32 as such, which tensor cores do not.
fn admits(notes: &[c_int], element: Type, deterministic: bool) -> bool {
    let has = |note| notes.contains(&note);
    !(has(note::DOWN_CONVERT_INPUTS)
        || has(note::REDUCED_PRECISION_REDUCTION)
        || element == Type::F32 && has(note::TENSOR_CORE)
        || deterministic && has(note::NONDETERMINISTIC))
}

/// `miopenConvAlgorithm_t` of an engine.
fn algorithm(notes: &[c_int]) -> c_int {
    if notes.contains(&note::WINOGRAD) {
        WINOGRAD
    } else if notes.contains(&note::FFT) {
        FFT
    } else {
        IMPLICIT_GEMM
    }
}

fn is_aligned(memory: Addresses) -> bool {
    (memory.x | memory.w | memory.y).is_multiple_of(ALIGNMENT)
}

/// A solution, ready to run.
struct Plan {
    solution: miopenConvSolution_t,
    plan: Descriptor,
    _configuration: Descriptor,
    _graph: Rc<Graph>,
}

/// A convolution as cuDNN knows it.
struct Graph {
    graph: Descriptor,
    _parts: [Descriptor; 5],
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

// SAFETY: the handle and what was made with it may be used from any thread, one at a time: what uses them holds the mutex.
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

    fn descriptor(&self, kind: Kind) -> Result<Descriptor, String> {
        Descriptor::new(self.cudnn, kind)
    }

    fn tensor(
        &self,
        id: i64,
        tensor: &Tensor,
        element: Type,
        alignment: usize,
    ) -> Result<Descriptor, String> {
        let int64 = |values: &[usize]| values.iter().map(|&v| v as i64).collect::<Vec<_>>();
        self.descriptor(Kind::Tensor)?
            .with(&TENSOR_UNIQUE_ID, &[id])?
            .with(&TENSOR_DATA_TYPE, &[data_type(element)])?
            .with(&TENSOR_ALIGNMENT, &[alignment as i64])?
            .with(&TENSOR_DIMENSIONS, &int64(&tensor.dims))?
            .with(&TENSOR_STRIDES, &int64(&tensor.strides))?
            .finalized()
    }

    fn graph(&self, problem: &Problem, element: Type, alignment: usize) -> Result<Graph, String> {
        let Problem { x, w, y, options } = problem;
        let [x, w, y] = [(x, 0), (w, 1), (y, 2)].map(|(tensor, i): (&Tensor, usize)| {
            self.tensor(TENSORS[i], tensor, element, alignment)
        });
        let (x, w, y) = (x?, w?, y?);
        let pair = |pair: [usize; 2]| pair.map(|v| v as i64);
        let convolution = self
            .descriptor(Kind::Convolution)?
            .with(&CONVOLUTION_SPATIAL_DIMS, &[2])?
            .with(&CONVOLUTION_COMPUTE_TYPE, &[FLOAT])?
            .with(&CONVOLUTION_CONVOLUTION_MODE, &[CROSS_CORRELATION])?
            .with(&CONVOLUTION_DILATIONS, &pair(options.dilation))?
            .with(&CONVOLUTION_STRIDES, &pair(options.stride))?
            .with(&CONVOLUTION_PRE_PADDINGS, &pair(options.padding))?
            .with(&CONVOLUTION_POST_PADDINGS, &pair(options.padding))?
            .finalized()?;
        let names = match options.transposed {
            false => FORWARD,
            true => BACKWARD_DATA,
        };
        let operation = self
            .descriptor(names.kind)?
            .with(&names.alpha, &[1.0])?
            .with(&names.beta, &[0.0])?
            .of(&names.convolution, &[&convolution])?
            .of(&names.w, &[&w])?
            .of(&names.input, &[&x])?
            .of(&names.output, &[&y])?
            .finalized()?;
        let graph = self
            .descriptor(Kind::OperationGraph)?
            .with(&GRAPH_HANDLE, &[self.handle])?
            .of(&GRAPH_OPERATIONS, &[&operation])?
            .finalized()?;
        Ok(Graph {
            graph,
            _parts: [operation, convolution, x, w, y],
        })
    }

    /// Plans for the first of the configurations that compute what is asked for and can be had here; none of a dtype that is not convolved.
    fn plans(
        &self,
        problem: &Problem,
        alignment: usize,
        modes: &[c_int],
    ) -> Result<Vec<Plan>, String> {
        let mut plans = Vec::new();
        let Some(element) = problem.element() else {
            return Ok(plans);
        };
        let graph = Rc::new(self.graph(problem, element, alignment)?);
        let mut refusal = None;
        for &mode in modes {
            let configurations = self.configurations(&graph, mode).unwrap_or_else(|reason| {
                refusal = Some(reason);
                Vec::new()
            });
            for (place, configuration) in configurations.into_iter().enumerate() {
                if plans.len() == SOLUTIONS {
                    break;
                }
                let place = mode as u64 * MODE_DIGITS + place as u64;
                match self.plan(&graph, configuration, problem, element, place) {
                    Ok(plan) => plans.extend(plan),
                    // What an estimate does not know of.
                    Err(reason) => refusal = Some(reason),
                }
            }
        }
        match refusal {
            Some(reason) if plans.is_empty() => Err(reason),
            _ => Ok(plans),
        }
    }

    /// Configurations of engines by cuDNN's estimate, the fastest first.
    fn configurations(&self, graph: &Graph, mode: c_int) -> Result<Vec<Descriptor>, String> {
        self.descriptor(Kind::EngineHeuristics)?
            .of(&HEURISTICS_GRAPH, &[&graph.graph])?
            .with(&HEURISTICS_MODE_ASKED, &[mode])?
            .finalized()?
            .get_descriptors(
                &HEURISTICS_RESULTS,
                Kind::EngineConfiguration,
                CONFIGURATIONS,
            )
    }

    /// A plan for a configuration, if it computes what is asked for.
    fn plan(
        &self,
        graph: &Rc<Graph>,
        configuration: Descriptor,
        problem: &Problem,
        element: Type,
        place: u64,
    ) -> Result<Option<Plan>, String> {
        let engines = configuration.get_descriptors(&CONFIGURATION_ENGINE, Kind::Engine, 1)?;
        let Some(engine) = engines.first() else {
            return Ok(None);
        };
        let notes = engine.get(&ENGINE_NUMERICAL_NOTES, note::COUNT)?;
        if !admits(&notes, element, problem.options.deterministic) {
            return Ok(None);
        }
        let plan = self
            .descriptor(Kind::ExecutionPlan)?
            .with(&PLAN_HANDLE, &[self.handle])?
            .of(&PLAN_CONFIGURATION, &[&configuration])?
            .finalized()?;
        let first = |values: Vec<i64>| values.first().map_or(0, |&v| v.max(0) as u64);
        let index = first(engine.get(&ENGINE_GLOBAL_INDEX, 1)?);
        let workspace = first(plan.get(&PLAN_WORKSPACE_SIZE, 1)?);
        Ok(Some(Plan {
            solution: miopenConvSolution_t {
                // Only the order means something.
                time: -1.0,
                workspace_size: workspace as usize,
                solution_id: index * ENGINE_DIGITS + place,
                algorithm: algorithm(&notes),
            },
            plan,
            _configuration: configuration,
            _graph: graph.clone(),
        }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_is_not_computed_in_less() {
        let tensor_cores = [note::TENSOR_CORE];
        assert!(admits(&tensor_cores, Type::F16, true));
        assert!(admits(&tensor_cores, Type::Bf16, true));
        assert!(!admits(&tensor_cores, Type::F32, true));
        assert!(admits(&[note::WINOGRAD], Type::F32, true));
        for element in [Type::F16, Type::Bf16, Type::F32] {
            assert!(!admits(&[note::DOWN_CONVERT_INPUTS], element, false));
            assert!(!admits(
                &[note::REDUCED_PRECISION_REDUCTION],
                element,
                false
            ));
        }
    }

    #[test]
    fn sums_in_any_order_only_if_that_was_not_forbidden() {
        assert!(!admits(&[note::NONDETERMINISTIC], Type::F16, true));
        assert!(admits(&[note::NONDETERMINISTIC], Type::F16, false));
    }
}
