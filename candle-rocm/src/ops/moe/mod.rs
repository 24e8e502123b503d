//! Mixtures of experts: rows times the matrices that they are routed to, which are [floats](moe_gemm) or [any
//! format](indexed_moe), and what experts with biases do [between](gate_experts) them and [in the end](sum_experts).

mod f8;
mod gate;
mod quantized;
mod router;
mod rows;
mod sorted;

use crate::DeclaredKernel;
pub use gate::{gate_experts, sum_experts, ClampedGate};
pub use quantized::indexed_moe;
pub use router::{route, Route, Scores};
pub use rows::{moe_gemm, moe_gemm_with, MoeKernel, Routing};

/// Every kernel that is declared here.
pub(super) fn declared() -> Vec<DeclaredKernel> {
    [
        f8::declared(),
        gate::declared(),
        quantized::declared(),
        router::declared(),
        rows::declared(),
        sorted::declared(),
    ]
    .concat()
}
