//! The codebooks of ggml's IQ formats.
//!
//! An IQ block stores indices; the entries are part of the file format, so these are numbers that everyone has to agree
//! on (they equal those of the PyPI package `gguf`, as `candle-core`'s tests verify). They are packed: an entry is one
//! u16, an eighth of what bytes would take, so that the largest table is 4 KiB and stays in a GPU's vector cache. Signs
//! are not stored: those formats that keep 7 of 8 sign bits choose the last so that the number of negative elements is
//! even.

mod iq1;
mod iq2;
mod iq3;

pub use iq1::IQ1;
pub use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub use iq3::{IQ3_S, IQ3_XXS};

/// What the 2-bit codes of the IQ2 codebooks stand for.
pub const IQ2_VALUES: [i8; 3] = [8, 25, 43];

/// What the 3-bit codes of [`IQ3_XXS`] stand for.
pub const IQ3_XXS_VALUES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// The levels of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Twice the levels of e2m1, the 4-bit floats of MXFP4 and NVFP4.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
