//! AMD GPU kernels for candle: header-free device code, compiled once and cached.
//!
//! | You want | Use |
//! |---|---|
//! | the source of a kernel family, as one translation unit | [`Family::source`] |
//! | a kernel of your own on top of `device.h` | [`translation_unit`] |
//! | the code object built into this binary | [`embedded`] |
//! | a code object for an arch, compiled at most once per machine | [`Cache::get_or_compile`] |
//! | to compile without ROCm installed | [`Clang`] |
//!
//! A code object for a device is looked for in that order: embedded, cache, compiler. The compiler on a
//! user's machine is hiprtc, which `candle-rocm` loads at run time and hands in as a [`Compiler`].
//!
//! Code objects are embedded by building with the environment variable `CANDLE_ROCM_ARCHS` set to a
//! comma-separated list of archs, such as `gfx942,gfx1100`; that needs clang (see [`Clang::find`]).

mod cache;
mod clang;
mod compiler;
mod embedded;
mod family;
mod splice;

pub use cache::{Cache, CacheStats, Storage};
pub use clang::Clang;
pub use compiler::{CompileError, CompileRequest, Compiler, OPTIONS};
pub use embedded::{embedded, embedded_archs, translation_unit};
pub use family::Family;
pub use splice::SpliceError;
