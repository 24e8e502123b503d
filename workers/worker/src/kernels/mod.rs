//! Kernels compiled ahead of their use, in processes side by side.
//!
//! On a machine that runs a program for the first time, all kernels are to be compiled; hiprtc compiles one thing at a
//! time in a process, in half a second to five. So a program asks [`CompileArgs::ahead`] for what its model will use;
//! what nobody foresaw is compiled when it is first used.
//!
//! | Module      | Gives                                                            |
//! |-------------|------------------------------------------------------------------|
//! | [`ahead`]   | what is missing for a device, compiled while it is told how far  |
//! | [`command`] | the command `compile-kernels`, for images that bring warm caches |
//! | [`pool`]    | the processes that compile, and what is said to them             |

pub mod ahead;
pub mod command;
pub mod pool;

pub use ahead::CompileArgs;
pub use command::CompileKernelsArgs;
