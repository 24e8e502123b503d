//! How this crate follows from the published one.

use candle_derive::Recipe;

pub const RECIPE: Recipe = Recipe {
    name: "candle-nn",
    version: "0.11.1",
    untouched: &[],
    without_twin: &[],
    arm_bodies: &[],
    exceptions: &[],
    exported_macros: &[],
};
