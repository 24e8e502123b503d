//! Metadata values.

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// IEEE single.
    F32(f32),
    /// IEEE double.
    F64(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8; invalid sequences were replaced while reading.
    String(String),
    /// Elements of one type.
    Array(Array),
}

/// An array of metadata, in the element type of the file so that it takes no more memory than it must.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned, 8 bits.
    U8(Vec<u8>),
    /// Signed, 8 bits.
    I8(Vec<i8>),
    /// Unsigned, 16 bits.
    U16(Vec<u16>),
    /// Signed, 16 bits.
    I16(Vec<i16>),
    /// Unsigned, 32 bits.
    U32(Vec<u32>),
    /// Signed, 32 bits.
    I32(Vec<i32>),
    /// Unsigned, 64 bits.
    U64(Vec<u64>),
    /// Signed, 64 bits.
    I64(Vec<i64>),
    /// IEEE single.
    F32(Vec<f32>),
    /// IEEE double.
    F64(Vec<f64>),
    /// One byte each, 0 or 1.
    Bool(Vec<bool>),
    /// UTF-8.
    String(Vec<String>),
    /// Arrays of arrays.
    Array(Vec<Array>),
}

/// The type of a [`Value`], as coded in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const IN_CODE_ORDER: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    pub(super) fn from_code(code: u32) -> Option<Self> {
        Self::IN_CODE_ORDER.get(code as usize).copied()
    }

    fn code(self) -> u32 {
        // The enum declares its variants in the order of the codes, as the list does.
        self as u32
    }

    /// Fewest bytes that one value of this type takes in the file.
    pub(super) fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// The [`ValueType`] of an enum with a variant for each.
macro_rules! value_type {
    ($value:expr, $type:ident) => {
        match $value {
            $type::U8(_) => ValueType::U8,
            $type::I8(_) => ValueType::I8,
            $type::U16(_) => ValueType::U16,
            $type::I16(_) => ValueType::I16,
            $type::U32(_) => ValueType::U32,
            $type::I32(_) => ValueType::I32,
            $type::U64(_) => ValueType::U64,
            $type::I64(_) => ValueType::I64,
            $type::F32(_) => ValueType::F32,
            $type::F64(_) => ValueType::F64,
            $type::Bool(_) => ValueType::Bool,
            $type::String(_) => ValueType::String,
            $type::Array(_) => ValueType::Array,
        }
    };
}

impl Value {
    /// The type's code in a file.
    pub(super) fn code(&self) -> u32 {
        value_type!(self, Value).code()
    }

    /// The type's name, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F32(_) => "f32",
            Self::F64(_) => "f64",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(_) => "array",
        }
    }
}

impl Array {
    /// The elements' code in a file.
    pub(super) fn element_code(&self) -> u32 {
        value_type!(self, Array).code()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
