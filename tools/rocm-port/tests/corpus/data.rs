//! Typed data of cases, and what numbers become in a type.

use crate::random::Random;
use half::{bf16, f16};

/// An element type of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    U8,
    U32,
    U64,
    I16,
    I32,
    I64,
    F8,
    F16,
    BF16,
    F32,
    F64,
}

use Type::*;

impl Type {
    /// The word for it in names of kernels.
    pub fn word(self) -> &'static str {
        match self {
            U8 => "u8",
            U32 => "u32",
            U64 => "u64",
            I16 => "i16",
            I32 => "i32",
            I64 => "i64",
            F8 => "f8_e4m3",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            U8 | F8 => 1,
            I16 | F16 | BF16 => 2,
            U32 | I32 | F32 => 4,
            U64 | I64 | F64 => 8,
        }
    }

    /// Whether it is a float.
    pub fn float(self) -> bool {
        matches!(self, F8 | F16 | BF16 | F32 | F64)
    }

    /// Relative distance between neighbours.
    pub fn step(self) -> f64 {
        match self {
            F8 => 0.125,
            F16 => 0.5f64.powi(10),
            BF16 => 0.5f64.powi(7),
            F32 => 0.5f64.powi(23),
            F64 => 0.5f64.powi(52),
            _ => 0.,
        }
    }

    /// The bytes of a number: rounded to even for floats (8-bit ones saturate), truncated and wrapped for integers.
    pub fn encode(self, value: f64) -> Vec<u8> {
        let bits = value as i128;
        match self {
            U8 => vec![bits as u8],
            I16 => (bits as i16).to_le_bytes().to_vec(),
            U32 | I32 => (bits as i32).to_le_bytes().to_vec(),
            U64 | I64 => (bits as i64).to_le_bytes().to_vec(),
            F8 => vec![to_e4m3(value)],
            F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            F32 => (value as f32).to_le_bytes().to_vec(),
            F64 => value.to_le_bytes().to_vec(),
        }
    }

    /// The number that bytes stand for.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("an element")
        }
        match self {
            U8 => f64::from(bytes[0]),
            I16 => f64::from(i16::from_le_bytes(array(bytes))),
            U32 => f64::from(u32::from_le_bytes(array(bytes))),
            I32 => f64::from(i32::from_le_bytes(array(bytes))),
            U64 => u64::from_le_bytes(array(bytes)) as f64,
            I64 => i64::from_le_bytes(array(bytes)) as f64,
            F8 => from_e4m3(bytes[0]),
            F16 => f16::from_le_bytes(array(bytes)).to_f64(),
            BF16 => bf16::from_le_bytes(array(bytes)).to_f64(),
            F32 => f64::from(f32::from_le_bytes(array(bytes))),
            F64 => f64::from_le_bytes(array(bytes)),
        }
    }

    /// What a number becomes in this type.
    pub fn rounded(self, value: f64) -> f64 {
        self.decode(&self.encode(value))
    }
}

/// The value of an 8-bit float with 4 bits of exponent and no infinity.
fn from_e4m3(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 0.5f64.powi(9),
        _ => (1. + mantissa / 8.) * 2f64.powi(exponent - 7),
    };
    if bits & 128 == 0 {
        size
    } else {
        -size
    }
}

/// Nearest, ties to even, beyond 448 saturated.
fn to_e4m3(value: f64) -> u8 {
    let sign = u8::from(value.is_sign_negative()) << 7;
    if value.is_nan() {
        return 0x7f | sign;
    }
    let size = value.abs().min(448.);
    let nearest = (0..0x7f).min_by(|&a, &b| {
        let distance = |bits| (from_e4m3(bits) - size).abs();
        distance(a)
            .total_cmp(&distance(b))
            .then((a & 1).cmp(&(b & 1)))
    });
    nearest.expect("there are some") | sign
}

/// Elements of a type.
#[derive(Clone, Debug)]
pub struct Data {
    pub kind: Type,
    pub bytes: Vec<u8>,
}

impl Data {
    /// Numbers, as far as the type has them.
    pub fn new(kind: Type, values: impl IntoIterator<Item = f64>) -> Self {
        Self {
            kind,
            bytes: values.into_iter().flat_map(|v| kind.encode(v)).collect(),
        }
    }

    /// Sizes and strides.
    pub fn sizes(sizes: &[u64]) -> Self {
        Self {
            kind: U64,
            bytes: sizes.iter().flat_map(|s| s.to_le_bytes()).collect(),
        }
    }

    /// Whole numbers.
    pub fn whole(kind: Type, values: impl IntoIterator<Item = usize>) -> Self {
        Self::new(kind, values.into_iter().map(|v| v as f64))
    }

    /// Random numbers between two.
    pub fn random(kind: Type, count: usize, from: f64, to: f64, random: &mut Random) -> Self {
        Self::new(kind, (0..count).map(|_| random.between(from, to)))
    }

    /// Numbers with a known value of their own each: `count` different ones in random order, exact in `kind`.
    pub fn shuffled(kind: Type, count: usize, random: &mut Random) -> Self {
        let mut values: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            values.swap(i, random.below(i + 1));
        }
        Self::whole(kind, values)
    }

    /// The numbers.
    pub fn values(&self) -> Vec<f64> {
        self.bytes
            .chunks(self.kind.bytes())
            .map(|b| self.kind.decode(b))
            .collect()
    }
}

#[test]
fn e4m3_is_its_own_inverse_and_rounds_to_even() {
    for bits in (0..=255u8).filter(|b| b & 127 != 127) {
        assert_eq!(to_e4m3(from_e4m3(bits)), bits);
    }
    assert_eq!(to_e4m3(1.0625), to_e4m3(1.));
    assert_eq!(to_e4m3(1.1875), to_e4m3(1.25));
    assert_eq!(to_e4m3(1e9), 0x7e);
    assert_eq!(to_e4m3(0.5f64.powi(10)), 0);
}
