//! The layouts that are written: what a matrix becomes, and how the configuration says so.

use float8::F8E4M3;
use safetensors::Dtype;
use serde_json::{json, Value as Json};
use std::str::FromStr;
use worker::{Error, Result};

/// Rows and columns of a block that has one scale.
const FP8_BLOCK: usize = 128;
/// The largest 8-bit float (`F8E4M3::MAX` is the one below).
const E4M3_MAX: f32 = 448.0;
/// Elements that have one scale.
const MX_GROUP: usize = 32;
/// Rows that are quantized at a time where each has scales of its own.
const MX_ROWS: usize = 64;
/// The largest 4-bit float, and the exponent of its octave.
const E2M1_MAX: f32 = 6.0;
const E2M1_EXPONENT: i32 = 2;
/// What a scale's bits are with an exponent of 0.
const E8M0_BIAS: i32 = 127;

/// What the weight matrices of a folder become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// 8-bit floats (e4m3) with a float32 scale for blocks of 128 x 128: DeepSeek's layout, `quant_method` `fp8`.
    Fp8,
    /// 4-bit floats (e2m1) with a power of two for 32 neighbours: the layout `mxfp4-pack-quantized` of
    /// compressed-tensors.
    Mxfp4,
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_uppercase().as_str() {
            "FP8" => Ok(Self::Fp8),
            "MXFP4" => Ok(Self::Mxfp4),
            _ => Err(Error::Usage(format!(
                "{text:?} is not written as safetensors; FP8 and MXFP4 are"
            ))),
        }
    }
}

/// A tensor that a matrix becomes, or a part of one that some rows become.
pub(super) struct Part {
    /// Within the module.
    pub name: &'static str,
    pub dtype: Dtype,
    pub shape: [usize; 2],
}

impl Part {
    pub fn bytes(&self) -> usize {
        self.shape[0] * self.shape[1] * if self.dtype == Dtype::F32 { 4 } else { 1 }
    }
}

impl Scheme {
    /// Its name as a type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp8 => "FP8",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Whether a matrix of this shape can be written so.
    pub(super) fn takes(self, shape: &[usize]) -> bool {
        match (self, shape) {
            (_, [] | [_] | [0, ..] | [_, 0, ..]) => false,
            (Self::Fp8, _) => true,
            (Self::Mxfp4, _) => shape[1].is_multiple_of(MX_GROUP),
        }
    }

    /// Rows that are quantized together, all but the last ones.
    pub fn rows(self) -> usize {
        match self {
            Self::Fp8 => FP8_BLOCK,
            Self::Mxfp4 => MX_ROWS,
        }
    }

    /// What a matrix becomes.
    pub(super) fn parts(self, rows: usize, columns: usize) -> [Part; 2] {
        let part = |name, dtype, shape| Part { name, dtype, shape };
        match self {
            Self::Fp8 => {
                let blocks = [rows.div_ceil(FP8_BLOCK), columns.div_ceil(FP8_BLOCK)];
                [
                    part("weight", Dtype::F8_E4M3, [rows, columns]),
                    part("weight_scale_inv", Dtype::F32, blocks),
                ]
            }
            Self::Mxfp4 => [
                part("weight_packed", Dtype::U8, [rows, columns / 2]),
                part("weight_scale", Dtype::U8, [rows, columns / MX_GROUP]),
            ],
        }
    }

    /// What up to [`Scheme::rows`] rows of `columns` finite values become: the bytes of their elements, and of their
    /// scales.
    pub fn encode(self, values: &[f32], columns: usize) -> [Vec<u8>; 2] {
        match self {
            Self::Fp8 => encode_fp8(values, columns),
            Self::Mxfp4 => encode_mxfp4(values),
        }
    }

    /// What `quantization_config` says, with the modules that stay as they are.
    pub(super) fn config(self, left: &[&str]) -> Json {
        match self {
            Self::Fp8 => json!({
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "modules_to_not_convert": left,
                "quant_method": "fp8",
                "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
            }),
            Self::Mxfp4 => json!({
                "config_groups": {
                    "group_0": {
                        "format": "mxfp4-pack-quantized",
                        "input_activations": null,
                        "output_activations": null,
                        "targets": ["Linear"],
                        "weights": {
                            "dynamic": false,
                            "group_size": MX_GROUP,
                            "num_bits": 4,
                            "scale_dtype": "torch.uint8",
                            "strategy": "group",
                            "symmetric": true,
                            "type": "float",
                        },
                    },
                },
                "format": "mxfp4-pack-quantized",
                "global_compression_ratio": null,
                "ignore": left,
                "kv_cache_scheme": null,
                "quant_method": "compressed-tensors",
                "quantization_status": "compressed",
            }),
        }
    }
}

/// One row of blocks: the largest magnitude of each becomes the largest float.
fn encode_fp8(values: &[f32], columns: usize) -> [Vec<u8>; 2] {
    let mut scales = vec![0f32; columns.div_ceil(FP8_BLOCK)];
    for row in values.chunks_exact(columns) {
        for (scale, block) in scales.iter_mut().zip(row.chunks(FP8_BLOCK)) {
            *scale = block.iter().fold(*scale, |max, value| max.max(value.abs()));
        }
    }
    for scale in &mut scales {
        // A scale of zero would be taken for a damaged one.
        *scale = match *scale {
            0.0 => 1.0,
            max => (max / E4M3_MAX).max(f32::MIN_POSITIVE),
        };
    }
    let mut bits = Vec::with_capacity(values.len());
    for row in values.chunks_exact(columns) {
        for (scale, block) in scales.iter().zip(row.chunks(FP8_BLOCK)) {
            bits.extend(block.iter().map(|value| {
                let scaled = (value / scale).clamp(-E4M3_MAX, E4M3_MAX);
                match F8E4M3::from_f32(scaled).to_bits() {
                    // There is no need for a negative zero, and hardware that has another format has none.
                    0x80 => 0,
                    bits => bits,
                }
            }));
        }
    }
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes());
    [bits, scales.collect()]
}

/// Scales as compressed-tensors chooses them: the largest magnitude of a group falls into the octave of 4 to 6, or, where
/// it is nearer to the next power of two, below.
fn encode_mxfp4(values: &[f32]) -> [Vec<u8>; 2] {
    let mut packed = Vec::with_capacity(values.len() / 2);
    let mut scales = Vec::with_capacity(values.len() / MX_GROUP);
    for group in values.chunks_exact(MX_GROUP) {
        let max = group.iter().fold(0f32, |max, value| max.max(value.abs()));
        let exponent = group_exponent(max).clamp(-E8M0_BIAS, E8M0_BIAS);
        scales.push((exponent + E8M0_BIAS) as u8);
        let inverse = 2f64.powi(-exponent);
        let code = |value: f32| nearest_e2m1((f64::from(value) * inverse) as f32);
        let pairs = group.chunks_exact(2);
        packed.extend(pairs.map(|pair| code(pair[0]) | code(pair[1]) << 4));
    }
    [packed, scales]
}

/// The power of two that a group's elements are divided by.
fn group_exponent(max: f32) -> i32 {
    // A quarter of an octave more, so that what rounds to the next power of two counts as such.
    const QUARTER: u32 = 1 << 21;
    if max == 0.0 {
        return 0;
    }
    let rounded = max.to_bits().saturating_add(QUARTER) >> 23;
    rounded as i32 - E8M0_BIAS - E2M1_EXPONENT
}

/// The code of the nearest 4-bit float; of two, that with an even mantissa.
fn nearest_e2m1(value: f32) -> u8 {
    let magnitude = value.abs().min(E2M1_MAX);
    let code = match magnitude {
        m if m > 5.0 => 7,
        m if m >= 3.5 => 6,
        m if m > 2.5 => 5,
        m if m >= 1.75 => 4,
        m if m > 1.25 => 3,
        m if m >= 0.75 => 2,
        m if m > 0.25 => 1,
        _ => return 0,
    };
    code | u8::from(value < 0.0) << 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_fp8_have_scales_of_their_own() {
        // 130 columns: a block of 128 and one of 2; the largest of each is exact.
        let mut values = vec![0f32; 2 * 130];
        (values[0], values[130 + 5], values[128]) = (-44.8, 0.1, 2.0);
        values[130 + 129] = -1e-9;
        let [bits, scales] = encode_fp8(&values, 130);
        let scales: Vec<f32> = scales
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(scales, [44.8 / 448.0, 2.0 / 448.0]);
        assert_eq!((bits[0], bits[128]), (0xfe, 0x7e));
        assert_eq!(bits[135], F8E4M3::from_f32(1.0).to_bits());
        assert_eq!(bits[130 + 129], 0, "no negative zero");
        let [bits, scales] = encode_fp8(&[0.0; 4], 4);
        assert_eq!((bits, scales), (vec![0; 4], 1f32.to_le_bytes().to_vec()));
        // Below the smallest normal scale.
        let [bits, scales] = encode_fp8(&[1e-40], 1);
        assert_eq!(scales, f32::MIN_POSITIVE.to_le_bytes());
        assert_eq!(F8E4M3::from_bits(bits[0]).to_f32(), 4.0 / 512.0);
    }

    #[test]
    fn groups_of_mxfp4_have_powers_of_two() {
        let group = |first: f32, second: f32| {
            let mut values = [0f32; MX_GROUP];
            (values[0], values[1]) = (first, second);
            let [packed, scales] = encode_mxfp4(&values);
            (scales[0], packed[0])
        };
        // 6 and 0.5 as they are; 7 is nearer to 8 than to 6, so it is 4 times 2.
        assert_eq!(group(6.0, 0.5), (127, 0x17));
        assert_eq!(group(7.0, -1.0), (128, 0x96));
        assert_eq!(group(-0.75, 0.0), (127 - 3, 0x0f));
        assert_eq!(group(0.0, 0.0), (127, 0));
        assert_eq!(group(f32::MAX, 0.0), (127 + 126, 0x06));
        assert_eq!(group(1e-45, 0.0).0, 0);
    }

    #[test]
    fn ties_go_to_even_codes() {
        let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
        assert_eq!(ties.map(nearest_e2m1), [0, 2, 2, 4, 4, 6, 6]);
        assert_eq!(
            ties.map(|tie| nearest_e2m1(tie * 1.01)),
            [1, 2, 3, 4, 5, 6, 7]
        );
        assert_eq!(nearest_e2m1(-0.2), 0);
        assert_eq!(nearest_e2m1(-9.0), 15);
    }

    #[test]
    fn shapes() {
        let [weight, scales] = Scheme::Fp8.parts(300, 129);
        assert_eq!((weight.shape, scales.shape), ([300, 129], [3, 2]));
        assert_eq!((weight.bytes(), scales.bytes()), (38700, 24));
        let [packed, scales] = Scheme::Mxfp4.parts(3, 64);
        assert_eq!((packed.shape, scales.shape), ([3, 32], [3, 2]));
        assert!(Scheme::Fp8.takes(&[1, 1]) && !Scheme::Fp8.takes(&[0, 1]));
        assert!(Scheme::Mxfp4.takes(&[1, 32]) && !Scheme::Mxfp4.takes(&[1, 48]));
    }
}
