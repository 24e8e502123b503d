//! Types of elements and scalars, between bytes and numbers.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// The type of a buffer's elements or of a scalar argument. CUDA's `bool` is [`DType::U8`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// `unsigned char`, `bool`, and bytes of which the type does not matter.
    U8,
    /// `unsigned short`.
    U16,
    /// `unsigned`.
    U32,
    /// `unsigned long`, `size_t`.
    U64,
    /// `signed char`.
    I8,
    /// `short`.
    I16,
    /// `int`.
    I32,
    /// `long`.
    I64,
    /// IEEE half.
    F16,
    /// The upper half of a float.
    Bf16,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// 8 bits, 4 of exponent, no infinities: `__nv_fp8_e4m3`.
    F8e4m3,
    /// 8 bits, 5 of exponent: `__nv_fp8_e5m2`.
    F8e5m2,
}

/// How a float is made: bits of its fraction, and the exponent of its smallest normal number.
struct Format {
    fraction: i32,
    smallest: i32,
}

impl DType {
    /// All of them.
    pub const ALL: [DType; 14] = [
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
        DType::F8e4m3,
        DType::F8e5m2,
    ];

    /// Its name in case files: `u8` … `i64`, `f16`, `bf16`, `f32`, `f64`, `f8e4m3`, `f8e5m2`.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8e4m3 => "f8e4m3",
            DType::F8e5m2 => "f8e5m2",
        }
    }

    /// The type of that name, or of the name that [`crate::model::ArgumentKind::Scalar`] has for it; `bool` is
    /// [`DType::U8`]. None if there is none.
    pub fn named(name: &str) -> Option<DType> {
        match name {
            "bool" => Some(DType::U8),
            "f8_e4m3" => Some(DType::F8e4m3),
            "f8_e5m2" => Some(DType::F8e5m2),
            _ => Self::ALL.into_iter().find(|dtype| dtype.name() == name),
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            DType::U8 | DType::I8 | DType::F8e4m3 | DType::F8e5m2 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether it is a float.
    pub fn is_float(self) -> bool {
        self.format().is_some()
    }

    /// The smallest and the largest integer; none for floats.
    pub fn integers(self) -> Option<(i128, i128)> {
        Some(match self {
            DType::U8 => (0, u8::MAX.into()),
            DType::U16 => (0, u16::MAX.into()),
            DType::U32 => (0, u32::MAX.into()),
            DType::U64 => (0, u64::MAX.into()),
            DType::I8 => (i8::MIN.into(), i8::MAX.into()),
            DType::I16 => (i16::MIN.into(), i16::MAX.into()),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I64 => (i64::MIN.into(), i64::MAX.into()),
            _ => return None,
        })
    }

    fn format(self) -> Option<Format> {
        let (fraction, smallest) = match self {
            DType::F16 => (10, -14),
            DType::Bf16 => (7, -126),
            DType::F32 => (23, -126),
            DType::F64 => (52, -1022),
            DType::F8e4m3 => (3, -6),
            DType::F8e5m2 => (2, -14),
            _ => return None,
        };
        Some(Format { fraction, smallest })
    }

    /// The distance between floats of this type near a value; 0 for integers.
    pub fn ulp(self, value: f64) -> f64 {
        let Some(Format { fraction, smallest }) = self.format() else {
            return 0.0;
        };
        let bits = (value.abs().to_bits() >> 52) as i32;
        let exponent = if bits == 0 { -1022 } else { bits - 1023 };
        2f64.powi(exponent.max(smallest) - fraction)
    }

    /// Appends a number, rounded to the nearest (ties to even). Integers saturate, and drop a fraction; 8-bit floats
    /// saturate, too.
    pub fn encode(self, value: f64, bytes: &mut Vec<u8>) {
        match self {
            DType::U8 => bytes.push(value as u8),
            DType::I8 => bytes.push(value as i8 as u8),
            DType::U16 => bytes.extend((value as u16).to_le_bytes()),
            DType::I16 => bytes.extend((value as i16).to_le_bytes()),
            DType::U32 => bytes.extend((value as u32).to_le_bytes()),
            DType::I32 => bytes.extend((value as i32).to_le_bytes()),
            DType::U64 => bytes.extend((value as u64).to_le_bytes()),
            DType::I64 => bytes.extend((value as i64).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
            DType::Bf16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
            DType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DType::F64 => bytes.extend(value.to_le_bytes()),
            DType::F8e4m3 => bytes.push(narrow(value, e4m3(), 0x7f, 0x7e)),
            DType::F8e5m2 => bytes.push(narrow(value, e5m2(), 0x7e, 0x7b)),
        }
    }

    /// Appends an integer, exactly where it fits; floats are rounded, what does not fit saturates.
    pub fn encode_integer(self, value: i128, bytes: &mut Vec<u8>) {
        match self.integers() {
            Some((low, high)) => {
                bytes.extend(&value.clamp(low, high).to_le_bytes()[..self.size()]);
            }
            None => self.encode(value as f64, bytes),
        }
    }

    /// Numbers as bytes.
    pub fn encode_all(self, values: impl IntoIterator<Item = f64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        values
            .into_iter()
            .for_each(|value| self.encode(value, &mut bytes));
        bytes
    }

    /// Integers as bytes.
    pub fn encode_integers(self, values: impl IntoIterator<Item = i128>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let each = |value| self.encode_integer(value, &mut bytes);
        values.into_iter().for_each(each);
        bytes
    }

    /// The number in an element's bytes; 64-bit integers are rounded.
    ///
    /// # Panics
    /// If there are fewer bytes than [`DType::size`].
    pub fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            DType::F16 => f16::from_le_bytes(first(bytes)).to_f64(),
            DType::Bf16 => bf16::from_le_bytes(first(bytes)).to_f64(),
            DType::F32 => f32::from_le_bytes(first(bytes)).into(),
            DType::F64 => f64::from_le_bytes(first(bytes)),
            DType::F8e4m3 => e4m3()[bytes[0] as usize],
            DType::F8e5m2 => e5m2()[bytes[0] as usize],
            _ => self.decode_integer(bytes) as f64,
        }
    }

    /// The integer in an element's bytes; of a float what is before the point.
    ///
    /// # Panics
    /// If there are fewer bytes than [`DType::size`].
    pub fn decode_integer(self, bytes: &[u8]) -> i128 {
        match self {
            DType::U8 => bytes[0].into(),
            DType::I8 => (bytes[0] as i8).into(),
            DType::U16 => u16::from_le_bytes(first(bytes)).into(),
            DType::I16 => i16::from_le_bytes(first(bytes)).into(),
            DType::U32 => u32::from_le_bytes(first(bytes)).into(),
            DType::I32 => i32::from_le_bytes(first(bytes)).into(),
            DType::U64 => u64::from_le_bytes(first(bytes)).into(),
            DType::I64 => i64::from_le_bytes(first(bytes)).into(),
            _ => self.decode(bytes) as i128,
        }
    }

    /// All numbers of a buffer; bytes of an unfinished element at the end do not count.
    pub fn decode_all(self, bytes: &[u8]) -> Vec<f64> {
        let elements = bytes.chunks_exact(self.size());
        elements.map(|element| self.decode(element)).collect()
    }

    /// The same as integers.
    pub fn decode_integers(self, bytes: &[u8]) -> Vec<i128> {
        let elements = bytes.chunks_exact(self.size());
        elements
            .map(|element| self.decode_integer(element))
            .collect()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes[at])
}

type Table = [f64; 256];

fn e4m3() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        std::array::from_fn(|bits| {
            let (exponent, fraction) = (bits >> 3 & 15, (bits & 7) as f64);
            let size = match (exponent, bits & 7) {
                (15, 7) => f64::NAN,
                (0, _) => fraction / 8.0 * 2f64.powi(-6),
                _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent as i32 - 7),
            };
            if bits > 127 {
                -size
            } else {
                size
            }
        })
    })
}

fn e5m2() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    // It is the upper byte of a half.
    TABLE.get_or_init(|| std::array::from_fn(|bits| f16::from_bits((bits as u16) << 8).to_f64()))
}

/// The nearest value of an 8-bit float, ties to even; beyond the largest it is that one.
fn narrow(value: f64, table: &Table, nan: u8, largest: u8) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return nan | sign;
    }
    let size = value.abs();
    // Positive values ascend with their bits.
    let above = table[..=largest as usize].partition_point(|&each| each < size);
    let bits = match above {
        0 => 0,
        above if above > largest as usize => largest as usize,
        above => {
            let (down, up) = (size - table[above - 1], table[above] - size);
            let takes_upper = up < down || (up == down && above % 2 == 0);
            above - usize::from(!takes_upper)
        }
    };
    bits as u8 | sign
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_come_back() {
        for dtype in [DType::F8e4m3, DType::F8e5m2] {
            for bits in 0..=255u8 {
                let value = dtype.decode(&[bits]);
                if value.is_finite() {
                    assert_eq!(dtype.encode_all([value]), [bits], "{dtype} {bits:#x}");
                }
            }
        }
        assert_eq!(DType::F8e4m3.decode(&[0x7e]), 448.0);
        assert_eq!(DType::F8e4m3.encode_all([1e9, -1e9]), [0x7e, 0xfe]);
        assert_eq!(DType::F8e5m2.decode(&[0x7b]), 57344.0);
        // 1.0625 lies between 1 and 1.125 of e4m3, and goes to the even one.
        assert_eq!(DType::F8e4m3.encode_all([1.0625]), [0x38]);
        assert_eq!(DType::F8e4m3.encode_all([1.1875]), [0x3a]);
    }

    #[test]
    fn integers_are_exact_and_saturate() {
        let large = i128::from(u64::MAX) - 1;
        let bytes = DType::U64.encode_integers([large, -5, 1 << 70]);
        assert_eq!(
            DType::U64.decode_integers(&bytes),
            [large, 0, u64::MAX.into()]
        );
        assert_eq!(DType::I8.decode_all(&DType::I8.encode_all([-3.9])), [-3.0]);
    }

    #[test]
    fn distances_between_floats() {
        assert_eq!(DType::F32.ulp(1.0), f64::from(f32::EPSILON));
        assert_eq!(DType::F16.ulp(0.0), 2f64.powi(-24));
        assert_eq!(DType::Bf16.ulp(-3.0), 2f64.powi(-6));
        assert_eq!(DType::I32.ulp(3.0), 0.0);
    }

    #[test]
    fn names() {
        for dtype in DType::ALL {
            assert_eq!(DType::named(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::named("bool"), Some(DType::U8));
        assert_eq!(DType::named("float"), None);
    }
}
