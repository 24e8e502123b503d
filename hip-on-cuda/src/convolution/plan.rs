//! Plans: a convolution as a graph of cuDNN's, and what its engines make of it.

use super::engine::{admits, algorithm, note};
use super::{Convolutions, TENSORS};
use crate::cudnn::*;
use hip_abi::miopen::{miopenConvSolution_t, Problem, Tensor, Type};
use std::ffi::c_int;
use std::rc::Rc;

/// Configurations that are asked for.
const CONFIGURATIONS: usize = 64;
/// Solutions of these that are offered or measured: neighbours among the configurations differ little.
const SOLUTIONS: usize = 8;
/// A solution's number: its engine's and the place in cuDNN's order, in decimal digits.
const ENGINE_DIGITS: u64 = 1000;
const MODE_DIGITS: u64 = 100;

/// `CUDNN_DATA_FLOAT`, in which everything is summed.
const FLOAT: c_int = 0;
/// `CUDNN_CROSS_CORRELATION`.
const CROSS_CORRELATION: c_int = 1;

/// `cudnnDataType_t`.
fn data_type(element: Type) -> c_int {
    match element {
        Type::F32 => FLOAT,
        Type::F16 => 2,
        Type::Bf16 => 9,
    }
}

/// A solution, ready to run.
pub(super) struct Plan {
    pub solution: miopenConvSolution_t,
    pub plan: Descriptor,
    _configuration: Descriptor,
    _graph: Rc<Graph>,
}

/// A convolution as cuDNN knows it.
struct Graph {
    graph: Descriptor,
    _parts: [Descriptor; 5],
}

impl Convolutions {
    pub(super) fn descriptor(&self, kind: Kind) -> Result<Descriptor, String> {
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

    /// Plans for the first of the configurations that compute what is asked for and can be had here; none of a dtype
    /// that is not convolved.
    pub(super) fn plans(
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
}
