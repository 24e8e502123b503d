//! candle-nn with a ROCm device.
//!
//! The source is derived at build time from the published crate: see `fork/README.md` of the repository for how, and
//! upstream's documentation for the API.
#![allow(missing_docs, clippy::all, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
