//! Element types and single values of them.

use float8::F8E4M3;
use half::{bf16, f16};

/// Element type of a tensor. The names are those that kernel names end in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 8-bit unsigned integer.
    U8,
    /// 32-bit unsigned integer.
    U32,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// OCP 8-bit float with 4 exponent and 3 mantissa bits: no infinities, largest value 448.
    F8E4M3,
}

/// What attention, norms and products compute with.
pub(crate) const FLOATS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];
/// The same and f64.
pub(crate) const FLOATS_WITH_F64: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
/// Every floating-point dtype.
pub(crate) const ALL_FLOATS: [DType; 5] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];
/// The signed integers.
pub(crate) const SIGNED: [DType; 3] = [DType::I16, DType::I32, DType::I64];
/// The unsigned integers.
pub(crate) const UNSIGNED: [DType; 2] = [DType::U8, DType::U32];
/// Every integer dtype.
pub(crate) const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

impl DType {
    /// Every element type.
    pub const ALL: [DType; 10] = [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
    ];

    /// Bytes of one element.
    pub const fn size_in_bytes(self) -> usize {
        match self {
            DType::U8 | DType::F8E4M3 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The name as kernel names spell it, for example `bf16`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3 => "f8e4m3",
        }
    }

    /// Whether values are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::F8E4M3
        )
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One value of any element type.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is the type that it names
pub enum Scalar {
    U8(u8),
    U32(u32),
    I16(i16),
    I32(i32),
    I64(i64),
    F16(f16),
    BF16(bf16),
    F32(f32),
    F64(f64),
    F8E4M3(F8E4M3),
}

impl Scalar {
    /// Type of the value.
    pub const fn dtype(self) -> DType {
        match self {
            Scalar::U8(_) => DType::U8,
            Scalar::U32(_) => DType::U32,
            Scalar::I16(_) => DType::I16,
            Scalar::I32(_) => DType::I32,
            Scalar::I64(_) => DType::I64,
            Scalar::F16(_) => DType::F16,
            Scalar::BF16(_) => DType::BF16,
            Scalar::F32(_) => DType::F32,
            Scalar::F64(_) => DType::F64,
            Scalar::F8E4M3(_) => DType::F8E4M3,
        }
    }

    /// The value's bits, zero-extended: what is written to device memory, little-endian, in
    /// `dtype().size_in_bytes()` bytes.
    pub fn to_bits(self) -> u64 {
        match self {
            Scalar::U8(v) => v.into(),
            Scalar::U32(v) => v.into(),
            Scalar::I16(v) => (v as u16).into(),
            Scalar::I32(v) => (v as u32).into(),
            Scalar::I64(v) => v as u64,
            Scalar::F16(v) => v.to_bits().into(),
            Scalar::BF16(v) => v.to_bits().into(),
            Scalar::F32(v) => v.to_bits().into(),
            Scalar::F64(v) => v.to_bits(),
            Scalar::F8E4M3(v) => v.to_bits().into(),
        }
    }
}

macro_rules! scalar_from {
    ($($variant:ident($ty:ty)),* $(,)?) => {$(
        impl From<$ty> for Scalar {
            fn from(value: $ty) -> Self {
                Scalar::$variant(value)
            }
        }
    )*};
}

scalar_from!(
    U8(u8),
    U32(u32),
    I16(i16),
    I32(i32),
    I64(i64),
    F16(f16),
    BF16(bf16),
    F32(f32),
    F64(f64),
    F8E4M3(F8E4M3),
);
