//! AMD GPU kernels for candle: header-free device code, compiled once and cached.
//!
//! | You want | Use |
//! |---|---|
//! | the source of a kernel family, as one translation unit | [`Family::source`] |
//! | of a large family only a part | [`Family::part`] |
//! | a structure that a kernel takes, or a number that it shares with the host | [`shared`] |
//! | a kernel of your own on top of `device.h` | [`translation_unit`] |
//! | the code object built into this binary | [`embedded`] |
//! | a code object for an arch, compiled at most once per machine | [`Cache::get_or_compile`] |
//! | a file beside the cache that only its owner may write | [`private`] |
//! | to compile without ROCm installed | [`Clang`] |
//!
//! A code object for a device is looked for in that order: embedded, cache, compiler. The compiler on a
//! user's machine is hiprtc, which `candle-rocm` loads at run time and hands in as a [`Compiler`].
//!
//! Code objects are embedded, compressed, by building with the environment variable `CANDLE_ROCM_ARCHS` set to a
//! comma-separated list of archs, such as `gfx942,gfx11-generic`, or to `common`; that needs clang (see
//! [`Clang::find`]). An object of a generic processor serves all of its members.
//!
//! With the feature `ck` the build also compiles Composable Kernel's attention ([`CkInstance`]), from headers that
//! `CK_DIR` names, for the archs in `CANDLE_ROCM_CK_ARCHS` (or those of `CANDLE_ROCM_ARCHS` that have it). That needs a
//! clang that finds HIP's headers: `ROCM_PATH` says where ROCm is, `CANDLE_ROCM_CK_FLAGS` is passed on to clang.

mod cache;
mod ck;
mod clang;
mod compiler;
mod embedded;
mod family;
mod parts;
pub mod private;
pub mod shared;
mod splice;
mod target;
mod variables;

pub use cache::{Cache, CacheStats, Storage};
pub use ck::CkInstance;
pub use clang::Clang;
pub use compiler::{options_for, CompileError, CompileRequest, Compiler};
pub use embedded::{
    embedded, embedded_archs, embedded_ck, embedded_ck_archs, sources_digest, translation_unit,
};
pub use family::Family;
pub use splice::SpliceError;
pub use variables::{Values, Variable, VARIABLES};
