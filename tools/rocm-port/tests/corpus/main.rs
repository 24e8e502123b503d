//! Acceptance: kernels of crates of the registry, ported, compiled, and run on the simulator in waves of 32 and 64, with
//! results equal to references that are written here.

mod candle_kernels;
mod data;
mod ggml;
mod layer_norm;
mod layouts;
mod random;
mod rotary;
mod rows;
