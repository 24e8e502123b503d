//! Where codes, scales and zero points of a matrix lie.

use super::{Parts, Tile};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use std::ops::Range;

/// Codes of 4 bits in a word of AWQ, by the output whose code it is among the word's eight.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Sizes of a matrix, and how it is packed.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::hf::quantized) struct Packing {
    pub outputs: usize,
    pub inputs: usize,
    /// Of a code: 4 or 8.
    pub bits: usize,
    /// Inputs of a group, not 0; at least all of them where rows have one.
    pub group: usize,
    pub codes: Codes,
    pub zeros: Zeros,
    /// F16, BF16 or F32.
    pub scale_type: Dtype,
    pub scales: ScaleShape,
}

/// How codes are packed, 8 bits' into bytes and 4 bits' into halves of them, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hf::quantized) enum Codes {
    /// GPTQ: words of codes of neighbouring inputs, `(inputs / codes of a word, outputs)`.
    Columns,
    /// AWQ: words of codes of eight outputs, the even ones first, `(inputs, outputs / 8)`.
    Awq,
    /// compressed-tensors: words of codes of neighbouring inputs, `(outputs, words of a row)`.
    Rows,
    /// Signed bytes, `(outputs, inputs)`.
    Signed,
}

/// How zero points lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hf::quantized) enum Zeros {
    /// The middle of the codes.
    Middle,
    /// GPTQ: words of codes of neighbouring outputs, `(groups, outputs / codes of a word)`, in most files less by a word
    /// of ones.
    Gptq { less_one: bool },
    /// AWQ: as its codes, `(groups, outputs / 8)`.
    Awq,
    /// compressed-tensors: words of codes of neighbouring outputs, `(words of a column, groups)`.
    Columns,
    /// Signed bytes, `(outputs, groups)`.
    Signed,
    /// A signed byte for all.
    One,
}

/// How scales lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::hf::quantized) enum ScaleShape {
    /// `(groups, outputs)`.
    Groups,
    /// `(outputs, groups)`.
    Outputs,
    /// One for all.
    One,
}

/// What a matrix's scales are.
pub(super) struct Scales {
    /// Whether all are near enough to a binary16.
    pub are_halves: bool,
    /// Whether their products with all zero points are, too.
    pub offsets_are_halves: bool,
    /// Whether all zero points are the middle of the codes.
    pub are_of_middle: bool,
}

impl Scales {
    fn best() -> Self {
        Self {
            are_halves: true,
            offsets_are_halves: true,
            are_of_middle: true,
        }
    }
}

/// Whether a number is no further from a binary16 than the rounding of normal ones.
fn is_half(value: f32) -> bool {
    let half = f16::from_f32(value).to_f32();
    half.is_finite() && (half - value).abs() <= value.abs() / 2048.0
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = &bytes[index * 4..index * 4 + 4];
    u32::from_le_bytes([at[0], at[1], at[2], at[3]])
}

impl Packing {
    /// Groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// Codes of a word.
    fn per_word(&self) -> usize {
        32 / self.bits
    }

    /// Words of so many codes.
    fn words(&self, codes: usize) -> usize {
        codes.div_ceil(self.per_word())
    }

    /// Bytes that codes, scales and zero points have.
    fn sizes(&self) -> [usize; 3] {
        let (outputs, inputs, groups) = (self.outputs, self.inputs, self.groups());
        let codes = match self.codes {
            Codes::Columns => self.words(inputs) * outputs * 4,
            Codes::Awq => inputs * self.words(outputs) * 4,
            Codes::Rows => outputs * self.words(inputs) * 4,
            Codes::Signed => outputs * inputs,
        };
        let scale = if self.scale_type == Dtype::F32 { 4 } else { 2 };
        let scales = match self.scales {
            ScaleShape::One => 1,
            ScaleShape::Groups | ScaleShape::Outputs => outputs * groups,
        };
        let zeros = match self.zeros {
            Zeros::Middle => 0,
            Zeros::Gptq { .. } | Zeros::Awq | Zeros::Columns => self.words(outputs) * groups * 4,
            Zeros::Signed => outputs * groups,
            Zeros::One => 1,
        };
        [codes, scales * scale, zeros]
    }

    /// Checks that all tensors have the sizes that these numbers say.
    pub(super) fn check(&self, parts: Parts) -> Result<(), String> {
        let found = [
            parts.codes.len(),
            parts.scales.len(),
            parts.zeros.map_or(0, <[u8]>::len),
        ];
        let names = ["codes", "scales", "zero points"];
        for ((name, found), wanted) in names.iter().zip(found).zip(self.sizes()) {
            if found != wanted {
                return Err(format!(
                    "{name} of {found} bytes for {wanted} of a matrix of {} outputs and {} inputs in groups of {}",
                    self.outputs, self.inputs, self.group
                ));
            }
        }
        let whole = self.outputs.is_multiple_of(self.per_word());
        if !whole && matches!(self.codes, Codes::Awq | Codes::Columns) {
            return Err(format!(
                "{} outputs are no multiple of {}",
                self.outputs,
                self.per_word()
            ));
        }
        Ok(())
    }

    /// Checks the scales.
    pub(super) fn check_scales(&self, parts: Parts) -> Result<Scales, String> {
        const OUTPUTS: usize = 256;
        let chunks = (0..self.outputs.div_ceil(OUTPUTS)).into_par_iter();
        let of_chunk = |chunk: usize| {
            let first = chunk * OUTPUTS;
            self.scales_of(parts, first..self.outputs.min(first + OUTPUTS))
        };
        chunks.map(of_chunk).try_reduce(Scales::best, |a, b| {
            Ok(Scales {
                are_halves: a.are_halves && b.are_halves,
                offsets_are_halves: a.offsets_are_halves && b.offsets_are_halves,
                are_of_middle: a.are_of_middle && b.are_of_middle,
            })
        })
    }

    /// What the scales of some outputs are.
    fn scales_of(&self, parts: Parts, outputs: Range<usize>) -> Result<Scales, String> {
        let middle = 1 << (self.bits - 1);
        let mut scales = Scales::best();
        for group in 0..self.groups() {
            for output in outputs.clone() {
                let scale = self.scale(parts.scales, group, output);
                if !scale.is_finite() {
                    return Err(format!("the scale of output {output} is {scale}"));
                }
                scales.are_halves &= is_half(scale);
                if self.zeros != Zeros::Middle {
                    let zero = self.zero(parts.zeros, group, output);
                    scales.are_of_middle &= zero == middle;
                    scales.offsets_are_halves &= is_half(f32::from(zero) * scale);
                }
            }
        }
        Ok(scales)
    }

    /// The scale of an output's group.
    pub(super) fn scale(&self, scales: &[u8], group: usize, output: usize) -> f32 {
        let index = match self.scales {
            ScaleShape::Groups => group * self.outputs + output,
            ScaleShape::Outputs => output * self.groups() + group,
            ScaleShape::One => 0,
        };
        let half = || [scales[index * 2], scales[index * 2 + 1]];
        match self.scale_type {
            Dtype::F16 => f16::from_le_bytes(half()).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(half()).to_f32(),
            _ => f32::from_bits(word(scales, index)),
        }
    }

    /// The code that stands for 0 in an output's group; bytes may hold what no code is.
    pub(super) fn zero(&self, zeros: Option<&[u8]>, group: usize, output: usize) -> i16 {
        let middle = 1 << (self.bits - 1);
        let Some(zeros) = zeros else {
            return middle;
        };
        let (per_word, mask) = (self.per_word(), (1u32 << self.bits) - 1);
        let words = self.words(self.outputs);
        let (at, place) = (output / per_word, output % per_word);
        let code = |index: usize, place: usize| word(zeros, index) >> (place * self.bits) & mask;
        let signed = |index: usize| i16::from(zeros[index] as i8) + middle;
        let zero = match self.zeros {
            Zeros::Middle => return middle,
            Zeros::Gptq { less_one } => {
                // Makers take the ones from whole words.
                let ones = if less_one { u32::MAX / mask } else { 0 };
                let word = word(zeros, group * words + at).wrapping_add(ones);
                word >> (place * self.bits) & mask
            }
            Zeros::Awq => code(group * words + at, AWQ_PLACES[place]),
            Zeros::Columns => code(at * self.groups() + group, place),
            Zeros::Signed => return signed(output * self.groups() + group),
            Zeros::One => return signed(0),
        };
        zero as i16
    }

    /// The codes of some inputs, at most a block of them, of some outputs, at most a tile.
    pub(super) fn codes(
        &self,
        codes: &[u8],
        inputs: &[usize],
        outputs: Range<usize>,
        tile: &mut Tile,
    ) {
        let (per_word, mask) = (self.per_word(), (1u32 << self.bits) - 1);
        let count = outputs.len();
        match self.codes {
            Codes::Columns => {
                for (to, input) in tile.iter_mut().zip(inputs) {
                    let first = input / per_word * self.outputs + outputs.start;
                    let shift = input % per_word * self.bits;
                    let words = codes[first * 4..][..count * 4].chunks_exact(4);
                    for (to, at) in to.iter_mut().zip(words) {
                        let word = u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
                        *to = (word >> shift & mask) as u8;
                    }
                }
            }
            Codes::Awq => {
                let row = self.words(self.outputs);
                let words = outputs.start / per_word..outputs.end.div_ceil(per_word);
                for (to, input) in tile.iter_mut().zip(inputs) {
                    for at in words.clone() {
                        let word = word(codes, input * row + at);
                        for (i, place) in AWQ_PLACES.iter().enumerate() {
                            let output = at * per_word + i;
                            if outputs.contains(&output) {
                                let code = word >> (place * self.bits) & mask;
                                to[output - outputs.start] = code as u8;
                            }
                        }
                    }
                }
            }
            Codes::Rows => {
                let row = self.words(self.inputs);
                for (n, output) in outputs.enumerate() {
                    for (to, input) in tile.iter_mut().zip(inputs) {
                        let word = word(codes, output * row + input / per_word);
                        to[n] = (word >> (input % per_word * self.bits) & mask) as u8;
                    }
                }
            }
            Codes::Signed => {
                for (n, output) in outputs.enumerate() {
                    let row = &codes[output * self.inputs..][..self.inputs];
                    for (to, input) in tile.iter_mut().zip(inputs) {
                        to[n] = row[*input] ^ 0x80;
                    }
                }
            }
        }
    }
}
