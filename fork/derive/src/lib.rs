//! Derives candle's ROCm fork from the published crates at build time.
//!
//! The repository holds none of candle's source. Each package under `fork/` describes with a [`Recipe`] how its
//! source follows from the published crate, and its `build.rs` calls [`Recipe::build`]:
//!
//! 1. [`upstream`] finds the published crate in the cargo registry.
//! 2. [`patch`] applies the package's `patches/`, which mend upstream's faults.
//! 3. [`mirror`] applies the one rule, *Rocm stands wherever Metal stands*: variants, match arms, trait methods and
//!    imports that name Metal get a twin gated by `cfg(feature = "rocm")`, found by syntax, original text kept.
//! 4. [`patch`] applies `departures/`, what only this fork needs; then [`recipe`] applies the exceptions that are made
//!    from tables, copies our overlay files and writes the result.
//!
//! The program `candle-derive` of this package shows the outcome and makes patches: `cargo run -p candle-derive --
//! help`.
//!
//! A rule that matches nothing and a mention of Metal that no rule covers are errors that name file and line, so a
//! new candle release says by itself what is new in it.

pub mod checks;
pub mod edit;
pub mod error;
mod files;
mod fixes;
pub mod macros;
pub mod manifest;
pub mod mirror;
pub mod patch;
pub mod recipe;
pub mod strip;
pub mod upstream;

pub use error::{Error, Result};
pub use files::texts_below;
pub use fixes::fixes_page;
pub use recipe::{Exception, Recipe, Stage};
