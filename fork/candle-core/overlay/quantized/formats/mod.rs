//! The formats of GGUF files that upstream lacks: the IQ formats with their codebooks, ternary ones, and the 4-bit floats.
//!
//! A [`Format`] reads and writes one block; [`Blocks`] is a tensor's worth of them on the CPU. Products are of the dequantized
//! values with f32 activations, each row of weights dequantized once, so a result has no rounding but that of f32 sums.
//!
//! Layouts and the quantization of TQ1_0, TQ2_0 and MXFP4 are those of the PyPI package `gguf`, to the bit. The other formats
//! have many encodings of the same values; [`search`] looks for a good one.

mod blocks;
mod codebook;
mod grid;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod mx;
mod search;
mod ternary;

use super::{GgmlDType, QuantizedType};
use crate::Result;

use blocks::Blocks;

/// How a block of some GGUF type is laid out.
pub struct Format {
    /// The type.
    pub dtype: GgmlDType,
    /// Its number in GGUF files.
    pub number: u32,
    /// Elements of a block.
    pub elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Writes the block's values to a slice of `elements`.
    read: fn(block: &[u8], values: &mut [f32]),
    /// Encodes values into a block. Some formats minimise the squared error weighted by the importance of each element.
    write: fn(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]),
}

macro_rules! formats {
    ($($name:ident = $number:literal, $elements:literal, $bytes:literal, $module:ident::$read:ident, $module_too:ident::$write:ident;)*) => {
        $(
            pub static $name: Format = Format {
                dtype: GgmlDType::$name,
                number: $number,
                elements: $elements,
                bytes: $bytes,
                read: $module::$read,
                write: $module_too::$write,
            };
        )*

        /// Every format of this module.
        pub static ALL: &[&Format] = &[$(&$name),*];
    };
}

formats! {
    IQ2XXS = 16, 256, 66, iq2::read_xxs, iq2::write_xxs;
    IQ2XS = 17, 256, 74, iq2::read_xs, iq2::write_xs;
    IQ3XXS = 18, 256, 98, iq3::read_xxs, iq3::write_xxs;
    IQ1S = 19, 256, 50, iq1::read_s, iq1::write_s;
    IQ4NL = 20, 32, 18, iq4::read_nl, iq4::write_nl;
    IQ3S = 21, 256, 110, iq3::read_s, iq3::write_s;
    IQ2S = 22, 256, 82, iq2::read_s, iq2::write_s;
    IQ4XS = 23, 256, 136, iq4::read_xs, iq4::write_xs;
    IQ1M = 29, 256, 56, iq1::read_m, iq1::write_m;
    TQ1_0 = 34, 256, 54, ternary::read_tq1, ternary::write_tq1;
    TQ2_0 = 35, 256, 66, ternary::read_tq2, ternary::write_tq2;
    MXFP4 = 39, 32, 17, mx::read_mxfp4, mx::write_mxfp4;
    NVFP4 = 40, 64, 36, mx::read_nvfp4, mx::write_nvfp4;
}

impl Format {
    /// `elem_count` zeros: blocks of zero bytes, whose scales are zero.
    pub fn zeros(&'static self, elem_count: usize) -> Box<dyn QuantizedType> {
        let bytes = elem_count / self.elements * self.bytes;
        Box::new(Blocks::new(self, vec![0; bytes]))
    }

    /// The blocks that a file holds.
    pub fn from_data(&'static self, data: &[u8]) -> Box<dyn QuantizedType> {
        Box::new(Blocks::new(self, data.to_vec()))
    }
}

/// The type with the given number in GGUF files, among those of this module.
pub(crate) fn with_number(number: u32) -> Result<GgmlDType> {
    match ALL.iter().find(|format| format.number == number) {
        Some(format) => Ok(format.dtype),
        None => crate::bail!("unknown dtype for tensor {number}"),
    }
}

/// Whether the type is one of this module's.
pub(crate) fn has(dtype: GgmlDType) -> bool {
    ALL.iter().any(|format| format.dtype == dtype)
}

/// A binary16 field.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}
