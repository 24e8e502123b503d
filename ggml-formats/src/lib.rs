//! The formats that quantized weights come in, kept once for host and device code: a table of them ([`Format`]), the
//! [`codebooks`] of those that have one, and both as headers for device code ([`headers`]).
//!
//! A format that the device computes with is a row of the table, readers in `candle-rocm-kernels/hip/quantized/`
//! (`blocks.h` or `iq.h`, and `quants.h` for products) that take its sizes from the header, and a line in each family's
//! file that has one for each format. It need not be one of GGUF's.

pub mod codebooks;
mod header;
mod table;

pub use header::headers;
pub use table::{Encoding, Format};
