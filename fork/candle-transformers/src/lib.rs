//! candle-transformers with a ROCm device.
//!
//! The source is derived at build time from the published crate: see `fork/README.md` of the repository for how, and
//! upstream's documentation for the API.
#![allow(missing_docs, clippy::all, rustdoc::all)]

#[cfg(feature = "rocm-flash-attn")]
extern crate candle_rocm_flash_attn as candle_flash_attn;

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));

// The macro's definition lies in an included file; this import is what makes `crate::serde_default_fn!` a path of its
// own.
pub use models::deepseek2::serde_default_fn;
