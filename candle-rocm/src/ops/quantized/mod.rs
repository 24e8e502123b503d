//! Weights in ggml's block-quantized formats, and products with them.
//!
//! [`linear`] multiplies vectors of floats with a [`QuantizedMatrix`] by the path that the table in `select.rs` names,
//! or that [`tune`] found to be the fastest on this GPU. Most formats are multiplied as integers: the vectors become
//! [`QuantizedActivations`] first, which several matrices can share. 8-bit floats meet vectors as they are
//! ([`matvec_floats`], [`few_floats`], [`matmul_floats`]).

mod activations;
mod crossovers;
mod dequantize;
mod embedding;
mod few;
pub(crate) mod float8;
mod float_activations;
pub(super) mod floats;
pub(super) mod format;
pub(crate) mod halves;
mod linear;
pub(super) mod matmul;
pub(super) mod matrix;
pub(super) mod matvec;
pub(super) mod select;
mod tune;
mod tune_float8;

use crate::kernels::Axis;
use crate::DeclaredKernel;
pub use activations::QuantizedActivations;
pub use dequantize::dequantize;
pub use embedding::embedding;
pub use few::few;
pub use float8::{float8, multiplies_float8};
pub use float_activations::{FloatActivations, Scaling};
pub use floats::{few_floats, gated_matvec_floats, matmul_floats, matvec_floats};
pub use ggml_formats::Format;
pub use halves::{gated_halves, halves};
pub use linear::{
    gated, gated_float8, gated_quantized, linear, linear_float8, linear_quantized,
    multiplies_floats, takes_float8,
};
pub use matmul::matmul;
pub use matrix::{Activation, Epilogue, QuantizedMatrix};
pub use matvec::{gated_matvec, matvec};
pub use select::{Path, FEW_MAX_COLUMNS, MATVEC_MAX_COLUMNS};
pub use tune::{forget, tune, Crossover, Timing};
pub use tune_float8::{tune_float8, Float8Crossover, Float8Timing};

impl Axis for Format {}

/// The formats of blocks, or those of them with integers.
const fn formats<const N: usize>(only_integers: bool) -> [Format; N] {
    let mut formats = [Format::Q4_0; N];
    let (mut from, mut to) = (0, 0);
    while from < Format::ALL.len() {
        let format = Format::ALL[from];
        if format.has_integers() || !only_integers && format.block_size() > 1 {
            formats[to] = format;
            to += 1;
        }
        from += 1;
    }
    assert!(to == N);
    formats
}

/// The formats that have kernels: all but the plain ones.
pub(super) const QUANTIZED: [Format; 26] = formats(false);
/// Those of them that are multiplied with 8-bit activations.
pub(super) const INTEGERS: [Format; 25] = formats(true);

/// Every kernel that is declared here.
pub(in crate::ops) fn declared() -> Vec<DeclaredKernel> {
    [
        activations::declared(),
        dequantize::declared(),
        embedding::declared(),
        few::declared(),
        float8::declared(),
        floats::declared(),
        float_activations::declared(),
        halves::declared(),
        matmul::declared(),
        matvec::declared(),
    ]
    .concat()
}
