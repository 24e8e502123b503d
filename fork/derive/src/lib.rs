//! Derives candle's ROCm fork from the published crates at build time.
//!
//! The repository holds none of candle's source. Each package under `fork/` describes with a [`Recipe`] how its
//! source follows from the published crate, and its `build.rs` calls [`Recipe::build`]:
//!
//! 1. [`upstream`] finds the published crate in the cargo registry.
//! 2. [`recipe`] mends upstream's faults that the recipe lists.
//! 3. [`mirror`] applies the one rule, *Rocm stands wherever Metal stands*: variants, match arms, trait methods and
//!    imports that name Metal get a twin gated by `cfg(feature = "rocm")`, found by syntax, original text kept.
//! 4. [`recipe`] applies the named exceptions, copies our overlay files and writes the result.
//!
//! A rule that matches nothing and a mention of Metal that no rule covers are errors that name file and line, so a
//! new candle release says by itself what is new in it.

pub mod checks;
pub mod edit;
pub mod error;
pub mod macros;
pub mod manifest;
pub mod mirror;
pub mod recipe;
pub mod strip;
pub mod upstream;

pub use error::{Error, Result};
pub use recipe::{Edit, Exception, Fix, Recipe};
