//! Mixtures of experts: rows times the matrices that they are routed to, which are [floats](moe_gemm) or [any format](indexed_moe).

mod quantized;
mod rows;

pub use quantized::indexed_moe;
pub use rows::{moe_gemm, moe_gemm_with, MoeKernel, Routing};
