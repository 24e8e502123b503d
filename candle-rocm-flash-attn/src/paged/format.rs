//! How keys and values are stored.

use super::CacheShape;

/// How keys, or values, are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDType {
    /// 4 bytes an element.
    F32,
    /// 2 bytes.
    F16,
    /// 2 bytes.
    BF16,
    /// 8 bits, and an f16 factor for 32 elements.
    Q8_0,
    /// 4 bits, and an f16 factor for 32 elements; as the following ones, what ggml's format of this name has.
    Q4_0,
    /// 4 bits, and for 32 elements a factor and what 0 stands for.
    Q4_1,
    /// 5 bits, and a factor for 32 elements.
    Q5_0,
    /// 5 bits, and for 32 elements a factor and what 0 stands for.
    Q5_1,
    /// 4 bits for one of 16 levels, which are closer to each other around 0, and a factor for 32 elements.
    Iq4Nl,
    /// f8e4m3, and an f16 factor for as many elements as the largest power of two up to 128 that divides a row: one
    /// for each token and head, if heads are that.
    F8,
}

/// Elements that share a factor, and of which formats with factors store whole numbers.
pub(super) const SCALED: usize = 32;
/// Elements that turn together, or share a factor of [`CacheDType::F8`], at most.
const MOST: usize = 128;

impl CacheDType {
    /// Every type.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::F8,
    ];

    /// Whether elements have factors.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether elements have four or five bits.
    pub fn is_small(self) -> bool {
        self.is_quantized() && !matches!(self, Self::Q8_0 | Self::F8)
    }

    /// Bytes of a vector of so many elements: with factors, of as many as whole blocks of 32 have.
    pub fn vector_bytes(self, elements: usize) -> usize {
        let row = row(elements);
        let blocks = row / SCALED;
        match self {
            Self::F32 => 4 * elements,
            Self::F16 | Self::BF16 => 2 * elements,
            Self::Q8_0 => row + 2 * blocks,
            Self::Q4_0 | Self::Iq4Nl => row / 2 + 2 * blocks,
            Self::Q4_1 => row / 2 + 4 * blocks,
            Self::Q5_0 => row / 2 + 6 * blocks,
            Self::Q5_1 => row / 2 + 8 * blocks,
            Self::F8 => row + 2 * (row / shared_by(elements)),
        }
    }
}

/// Elements of a vector in formats with factors.
pub(super) fn row(elements: usize) -> usize {
    elements.next_multiple_of(SCALED)
}

/// Elements of a vector that share a factor of [`CacheDType::F8`].
pub(super) fn shared_by(elements: usize) -> usize {
    1 << row(elements).max(1).trailing_zeros().min(MOST.ilog2())
}

/// Elements of a vector that turn together: the largest power of two up to 128 that divides their number.
pub(super) fn rotation(elements: usize) -> usize {
    1 << elements.max(1).trailing_zeros().min(MOST.ilog2())
}

/// How a cache is stored: keys and values each in a type of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFormat {
    /// Keys.
    pub keys: CacheDType,
    /// Values.
    pub values: CacheDType,
    /// Whether keys turn before they are stored, by a Walsh-Hadamard transform of as many neighbours as the largest
    /// power of two up to 128 that divides a head: what is large in one element is spread over all of them, so that
    /// factors are smaller (Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024). The same
    /// is done to queries, so that products are what they were.
    pub turn_keys: bool,
    /// The same for values; results turn back.
    pub turn_values: bool,
}

impl From<CacheDType> for CacheFormat {
    /// Keys and values alike, as they are.
    fn from(dtype: CacheDType) -> Self {
        Self {
            keys: dtype,
            values: dtype,
            turn_keys: false,
            turn_values: false,
        }
    }
}

impl CacheShape {
    /// Bytes of keys and values in all.
    pub fn bytes(&self, format: impl Into<CacheFormat>) -> usize {
        let format = format.into();
        let vector =
            format.keys.vector_bytes(self.head_size) + format.values.vector_bytes(self.v_head_size);
        self.blocks * self.block_size * self.kv_heads * vector
    }

    /// Bytes of the keys alone, which are all that a [`PagedCache::latent`](super::PagedCache::latent) stores.
    pub fn latent_bytes(&self, dtype: CacheDType) -> usize {
        self.blocks * self.block_size * self.kv_heads * dtype.vector_bytes(self.head_size)
    }
}
