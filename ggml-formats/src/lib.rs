//! The formats that quantized weights come in, kept once for host and device code: a table of them ([`Format`]), the [`codebooks`] of
//! those that have one, and both as headers for device code ([`headers`]).

pub mod codebooks;
mod header;
mod table;

pub use header::headers;
pub use table::{Encoding, Format};
