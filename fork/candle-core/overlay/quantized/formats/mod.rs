//! The formats of GGUF files that upstream lacks: the IQ formats with their codebooks, ternary ones, and the 4-bit
//! floats; and the 8-bit floats of checkpoints in FP8.
//!
//! A [`Codec`] reads and writes one block, whose layout the table in the crate `ggml-formats` has; [`Blocks`] is a
//! tensor's worth of them on the CPU. Products are of the dequantized values with f32 activations, so a
//! result has no rounding but that of f32 sums.
//!
//! Layouts and the quantization of TQ1_0, TQ2_0 and MXFP4 are those of the PyPI package `gguf`, to the bit. The other
//! formats have many encodings of the same values; [`search`] looks for a good one.

mod blocks;
mod codebook;
mod f8;
mod grid;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod mx;
mod product;
mod search;
mod ternary;

use super::in_place::Data;
use super::{GgmlDType, QuantizedType};
use crate::{Error, Result};
use ggml_formats::Format;

use blocks::Blocks;

/// How blocks of a type are read and written.
pub struct Codec {
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

macro_rules! codecs {
    ($($name:ident = $module:ident::$read:ident, $module_too:ident::$write:ident;)*) => {
        $(
            pub static $name: Codec = Codec {
                dtype: GgmlDType::$name,
                number: match Format::$name.number() {
                    Some(number) => number,
                    None => panic!("types of GGUF files have a number"),
                },
                elements: Format::$name.block_size(),
                bytes: Format::$name.type_size(),
                read: $module::$read,
                write: $module_too::$write,
            };
        )*

        /// Every type of this module.
        pub static ALL: &[&Codec] = &[$(&$name),*];
    };
}

codecs! {
    IQ2XXS = iq2::read_xxs, iq2::write_xxs;
    IQ2XS = iq2::read_xs, iq2::write_xs;
    IQ3XXS = iq3::read_xxs, iq3::write_xxs;
    IQ1S = iq1::read_s, iq1::write_s;
    IQ4NL = iq4::read_nl, iq4::write_nl;
    IQ3S = iq3::read_s, iq3::write_s;
    IQ2S = iq2::read_s, iq2::write_s;
    IQ4XS = iq4::read_xs, iq4::write_xs;
    IQ1M = iq1::read_m, iq1::write_m;
    TQ1_0 = ternary::read_tq1, ternary::write_tq1;
    TQ2_0 = ternary::read_tq2, ternary::write_tq2;
    MXFP4 = mx::read_mxfp4, mx::write_mxfp4;
    NVFP4 = mx::read_nvfp4, mx::write_nvfp4;
    F8E4M3 = f8::read, f8::write;
}

/// candle's type of a format of the table; an error if candle does not compute with it.
impl TryFrom<Format> for GgmlDType {
    type Error = Error;

    fn try_from(format: Format) -> Result<Self> {
        match format.number() {
            Some(number) => Self::from_u32(number),
            None => crate::bail!("there are no quantized tensors in {}", format.name()),
        }
    }
}

/// The format of one of candle's types; an error if the table lacks it.
impl TryFrom<GgmlDType> for Format {
    type Error = Error;

    fn try_from(dtype: GgmlDType) -> Result<Self> {
        match Self::from_number(dtype.to_u32()) {
            Some(format) => Ok(format),
            None => crate::bail!("{dtype:?} is missing in the table of ggml-formats"),
        }
    }
}

impl Codec {
    /// `elem_count` zeros: blocks of zero bytes, whose scales are zero.
    pub fn zeros(&'static self, elem_count: usize) -> Box<dyn QuantizedType> {
        let bytes = elem_count / self.elements * self.bytes;
        self.over(Data::Own(vec![0; bytes]))
    }

    /// The blocks that a file holds.
    pub fn from_data(&'static self, data: &[u8]) -> Box<dyn QuantizedType> {
        self.over(Data::Own(data.to_vec()))
    }

    /// Blocks of these bytes.
    pub(super) fn over(&'static self, data: Data) -> Box<dyn QuantizedType> {
        Box::new(Blocks::new(self, data))
    }
}

/// The type with the given number in GGUF files, among those of this module.
pub(crate) fn with_number(number: u32) -> Result<GgmlDType> {
    match ALL.iter().find(|codec| codec.number == number) {
        Some(codec) => Ok(codec.dtype),
        None => crate::bail!("unknown dtype for tensor {number}"),
    }
}

/// Whether the type is one of this module's.
pub(crate) fn has(dtype: GgmlDType) -> bool {
    ALL.iter().any(|codec| codec.dtype == dtype)
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
