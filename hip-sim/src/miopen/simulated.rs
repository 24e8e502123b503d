//! Convolutions by the simulator.

use super::convolve::Convolve;
use super::solver;
use crate::hip::graph::NodeKind;
use crate::hip::stream::{hipStream_t, stream, Stream};
use crate::sim::sim;
use hip_abi::miopen::{
    lock, miopenConvSolution_t, misused, Addresses, Backend, Failure, Outcome, Problem,
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A handle's stream, and what was compiled through it.
pub(crate) struct Simulated {
    stream: usize,
    compiled: Mutex<HashSet<(Problem, u64)>>,
}

impl Simulated {
    pub fn new(stream: hipStream_t) -> Outcome<Self> {
        sim().gate().map_err(|_| Failure::UnknownError)?;
        Ok(Simulated {
            stream: stream as usize,
            compiled: Mutex::default(),
        })
    }

    fn stream(&self, function: &str) -> Outcome<Arc<Stream>> {
        stream(sim(), self.stream as hipStream_t)
            .map_err(|_| misused(function, "the handle's stream is gone"))
    }

    fn forbid_while_capturing(&self, function: &str, what: &str) -> Outcome {
        match self.stream(function)?.capture().as_ref() {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                misused(function, format!("{what} while the stream is captured"));
                Err(Failure::UnknownError)
            }
        }
    }

    fn submit(&self, function: &str, problem: &Problem, memory: Addresses) -> Outcome {
        let convolve = Convolve {
            problem: problem.clone(),
            element: problem.element().ok_or(Failure::BadParameter)?,
            memory,
        };
        let stream = self.stream(function)?;
        let device = stream.device;
        (stream.submit(sim(), NodeKind::Kernel, move |sim| {
            convolve.run(sim, device)
        }))
        .map_err(|_| Failure::UnknownError)
    }
}

impl Backend for Simulated {
    fn ready(&self, function: &str) -> Outcome {
        sim().gate().map_err(|_| Failure::UnknownError)?;
        self.stream(function).map(|_| ())
    }

    fn solutions(
        &self,
        function: &str,
        problem: &Problem,
        measuring: bool,
    ) -> Outcome<Vec<miopenConvSolution_t>> {
        let device = self.stream(function)?.device;
        Ok(solver::solutions(problem, device, measuring))
    }

    /// The real library runs those that are not applicable, too, and gives wrong results.
    fn solution(
        &self,
        function: &str,
        problem: &Problem,
        id: u64,
    ) -> Outcome<miopenConvSolution_t> {
        if !solver::exists(id) {
            return Err(Failure::BadParameter);
        }
        (self.solutions(function, problem, true)?.into_iter())
            .find(|s| s.solution_id == id)
            .ok_or_else(|| {
                let packed = problem.is_packed();
                misused(
                    function,
                    format!("solver {id} is not applicable (all tensors packed: {packed})"),
                )
            })
    }

    fn compile(&self, function: &str, problem: &Problem, id: u64) -> Outcome {
        self.forbid_while_capturing(function, "kernels are loaded")?;
        lock(&self.compiled).insert((problem.clone(), id));
        Ok(())
    }

    fn run(
        &self,
        function: &str,
        problem: &Problem,
        solution: &miopenConvSolution_t,
        memory: Addresses,
    ) -> Outcome {
        // What was not compiled before is now.
        if lock(&self.compiled).insert((problem.clone(), solution.solution_id)) {
            self.forbid_while_capturing(function, "kernels are loaded")?;
        }
        let memory = Addresses {
            workspace_bytes: solution.workspace_size,
            ..memory
        };
        self.submit(function, problem, memory)
    }

    fn find(
        &self,
        function: &str,
        problem: &Problem,
        memory: Addresses,
    ) -> Outcome<Vec<miopenConvSolution_t>> {
        self.forbid_while_capturing(function, "solutions are measured")?;
        let mut solutions = self.solutions(function, problem, true)?;
        solutions.retain(|s| s.workspace_size <= memory.workspace_bytes);
        for solution in &solutions {
            let memory = Addresses {
                workspace_bytes: solution.workspace_size,
                ..memory
            };
            self.submit(function, problem, memory)?;
        }
        solver::remember(problem, self.stream(function)?.device);
        Ok(solutions)
    }
}
