//! The solvers that the simulator has: a few of MIOpen's, by their numbers and what they are applicable to, all
//! computing the definition. What is offered without measuring is what MIOpen 3.5 was seen to offer on (emulated) GPUs
//! that its database does not know: on RDNA columns and the reference kernel only. What was measured is in a database
//! for the rest of the process.

use crate::sim::sim;
use hip_abi::miopen::{lock, miopenConvSolution_t, Problem, Type};
use std::collections::HashSet;
use std::ffi::c_int;
use std::sync::{Mutex, OnceLock};

const GEMM: c_int = 0;
const DIRECT: c_int = 1;
const WINOGRAD: c_int = 3;
const IMPLICIT_GEMM: c_int = 5;

/// A solver of MIOpen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Solver {
    /// ConvBinWinogradRxSf2x3g1: no dilation, no bf16.
    Winograd,
    /// ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC and its transposed twin, on CDNA: any options, with a workspace.
    ImplicitGemm,
    /// GemmFwdRest and its transposed twin: columns in a workspace.
    Gemm,
    /// ConvDirectNaiveConvFwd and its transposed twin: any strides.
    Naive,
}

impl Solver {
    const ALL: [Solver; 4] = [
        Solver::Winograd,
        Solver::ImplicitGemm,
        Solver::Gemm,
        Solver::Naive,
    ];

    fn id(self, transposed: bool) -> u64 {
        match (self, transposed) {
            (Solver::Winograd, _) => 84,
            (Solver::ImplicitGemm, false) => 107,
            (Solver::ImplicitGemm, true) => 108,
            (Solver::Gemm, false) => 91,
            (Solver::Gemm, true) => 97,
            (Solver::Naive, false) => 85,
            (Solver::Naive, true) => 86,
        }
    }

    fn algorithm(self) -> c_int {
        match self {
            Solver::Winograd => WINOGRAD,
            Solver::ImplicitGemm => IMPLICIT_GEMM,
            Solver::Gemm => GEMM,
            Solver::Naive => DIRECT,
        }
    }

    fn is_applicable(self, problem: &Problem, device: usize) -> bool {
        let Some(element) = problem.element() else {
            return false;
        };
        let options = &problem.options;
        match self {
            Solver::Naive => true,
            Solver::Gemm => problem.is_packed(),
            Solver::Winograd => {
                problem.is_packed()
                    && element != Type::Bf16
                    && options.dilation == [1; 2]
                    && options.groups == 1
                    && problem.kernel() != [1; 2]
            }
            Solver::ImplicitGemm => {
                let cdna = sim().devices[device].arch.wave() == 64;
                problem.is_packed() && cdna && problem.kernel() != [1; 2]
            }
        }
    }

    fn workspace_bytes(self, problem: &Problem) -> usize {
        let taps: usize = problem.kernel().iter().product();
        match self {
            Solver::Winograd | Solver::Naive => 0,
            // Sums before they are rounded.
            Solver::ImplicitGemm => problem.outputs() * size_of::<f32>(),
            Solver::Gemm if taps == 1 => 0,
            Solver::Gemm => {
                let image = if problem.options.transposed {
                    &problem.x
                } else {
                    &problem.y
                };
                let pixels = image.dims[2] * image.dims[3];
                problem.c_in() * taps * pixels * problem.element().map_or(0, Type::bytes)
            }
        }
    }

    /// Whether MIOpen has an estimate for it, without which it offers only what was measured.
    fn is_estimated(self, device: usize) -> bool {
        self != Solver::Winograd || sim().devices[device].arch.wave() == 64
    }

    /// Milliseconds: an estimate that puts the solvers in order.
    fn time(self, problem: &Problem) -> f32 {
        let taps: usize = problem.kernel().iter().product();
        let products = (problem.outputs() * problem.c_in() * taps) as f32;
        let slowness = match self {
            Solver::Winograd => 1.0,
            Solver::ImplicitGemm => 1.5,
            Solver::Gemm => 3.0,
            Solver::Naive => 40.0,
        };
        slowness * products * 1e-9
    }
}

/// Problems and devices whose solutions were measured.
fn database() -> &'static Mutex<HashSet<(Problem, usize)>> {
    static DATABASE: OnceLock<Mutex<HashSet<(Problem, usize)>>> = OnceLock::new();
    DATABASE.get_or_init(Mutex::default)
}

/// Puts a problem into the database.
pub(super) fn remember(problem: &Problem, device: usize) {
    lock(database()).insert((problem.clone(), device));
}

/// The solutions of a problem on a device, fastest first: those in the database or, without measuring, those with an
/// estimate.
pub(super) fn solutions(
    problem: &Problem,
    device: usize,
    measuring: bool,
) -> Vec<miopenConvSolution_t> {
    let all = measuring || lock(database()).contains(&(problem.clone(), device));
    let applicable = (Solver::ALL.into_iter())
        .filter(|s| s.is_applicable(problem, device) && (all || s.is_estimated(device)));
    let mut solutions: Vec<_> = applicable
        .map(|solver| miopenConvSolution_t {
            time: solver.time(problem),
            workspace_size: solver.workspace_bytes(problem),
            solution_id: solver.id(problem.options.transposed),
            algorithm: solver.algorithm(),
        })
        .collect();
    solutions.sort_by(|a, b| a.time.total_cmp(&b.time));
    solutions
}

/// Whether any solver has this number.
pub(super) fn exists(id: u64) -> bool {
    (Solver::ALL.iter()).any(|s| s.id(false) == id || s.id(true) == id)
}
