//! What computes convolutions behind a handle.

use super::problem::Problem;
use super::solution::miopenConvSolution_t;
use super::Outcome;

/// Addresses of the tensors and of the workspace.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub x: usize,
    pub w: usize,
    pub y: usize,
    pub workspace: usize,
    pub workspace_bytes: usize,
}

/// The simulator, or a library on a real GPU. `function` is the one that was called, for reports.
pub trait Backend: Send + Sync {
    /// Refuses a call when the device is lost or the handle's stream gone.
    fn ready(&self, function: &str) -> Outcome;

    /// The solutions of a problem, fastest first: those that can be offered without measuring, or all.
    fn solutions(
        &self,
        function: &str,
        problem: &Problem,
        measuring: bool,
    ) -> Outcome<Vec<miopenConvSolution_t>>;

    /// The solution of a number.
    fn solution(&self, function: &str, problem: &Problem, id: u64)
        -> Outcome<miopenConvSolution_t>;

    /// Makes a solution ready to run.
    fn compile(&self, function: &str, problem: &Problem, id: u64) -> Outcome;

    /// Enqueues a solution. The workspace is as large as it says, or larger.
    fn run(
        &self,
        function: &str,
        problem: &Problem,
        solution: &miopenConvSolution_t,
        memory: Addresses,
    ) -> Outcome;

    /// Measures the solutions that the workspace is large enough for, and offers them from now on. Returns them,
    /// fastest first.
    fn find(
        &self,
        function: &str,
        problem: &Problem,
        memory: Addresses,
    ) -> Outcome<Vec<miopenConvSolution_t>>;
}
