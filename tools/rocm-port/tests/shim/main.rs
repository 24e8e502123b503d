//! The shim headers: what CUDA's names do on the simulator, in waves of 32 and of 64, against references in Rust, and
//! whether they compile for AMD.

mod atomics;
mod bits;
mod clashes;
mod exact;
mod float8;
mod halves;
mod instructions;
mod mathematics;
mod units;
mod warps;
