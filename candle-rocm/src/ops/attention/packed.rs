//! Paged caches whose keys and values have formats of their own, most of them of four, five or eight bits with factors.
//!
//! Memory is as [`strides`] has it, with rows that end with whole blocks of 32 elements. Elements and factors
//! lie apart; `attention/packed.h` says how. Neighbours may be turned together before they are stored, by a
//! Walsh-Hadamard transform ("QuaRot", 2024): products do not change if queries turn as keys did, and results turn back
//! as values did. Kernels for few rows do that on the way, for many rows queries and results are passes of their own.

use super::layout::strides;
use super::OP;
use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::attention as shared;
use candle_rocm_kernels::shared::attention::{Shape, Turn, Write};

kernels! {
    /// Turns vectors, or turns them back.
    rotate_vectors = "kv_cache_rotate" in Family::KvCache => (from: Ptr, to: Ptr, vectors: Turn);
}

/// Elements of a factor, and of what a row is padded to.
const BLOCK: usize = shared::SCALED as usize;
/// Neighbours that turn together, and elements of an F8 factor, at most: in a wave of 32 lanes they share 16.
const MOST: usize = 128;
/// Elements of a lane.
const LANE: usize = 8;

/// How keys or values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    F16,
    /// As they are.
    Bf16,
    /// Eight bits and a factor for 32.
    Q8_0,
    /// Four bits and a factor for 32.
    Q4_0,
    /// Four bits, a factor and a least value for 32.
    Q4_1,
    /// Five bits and a factor for 32.
    Q5_0,
    /// Five bits, a factor and a least value for 32.
    Q5_1,
    /// Four bits for one of 16 levels, and a factor for 32.
    Iq4Nl,
    /// f8e4m3, and a factor for as many as the largest power of two up to 128 that divides a row.
    F8,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 9] = [
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::F8,
    ];

    fn number(self) -> u32 {
        match self {
            Self::F16 => shared::F16,
            Self::Bf16 => shared::BF16,
            Self::Q8_0 => shared::I8,
            Self::Q4_0 => shared::Q4_0,
            Self::Q4_1 => shared::Q4_1,
            Self::Q5_0 => shared::Q5_0,
            Self::Q5_1 => shared::Q5_1,
            Self::Iq4Nl => shared::IQ4_NL,
            Self::F8 => shared::F8,
        }
    }

    /// Bytes of a row's elements and of its factors.
    fn row_bytes(self, width: usize) -> [usize; 2] {
        let row = row(width);
        let blocks = row / BLOCK;
        match self {
            Self::F16 | Self::Bf16 => [2 * row, 0],
            Self::Q8_0 => [row, 2 * blocks],
            Self::Q4_0 | Self::Iq4Nl => [row / 2, 2 * blocks],
            Self::Q4_1 => [row / 2, 4 * blocks],
            Self::Q5_0 => [row / 2, 6 * blocks],
            Self::Q5_1 => [row / 2, 8 * blocks],
            Self::F8 => [row, 2 * (row >> shift(width))],
        }
    }
}

/// Elements of a row in memory.
fn row(width: usize) -> usize {
    width.next_multiple_of(BLOCK)
}

/// The binary logarithm of the elements that an F8 factor is for.
fn shift(width: usize) -> u32 {
    row(width).trailing_zeros().min(MOST.ilog2())
}

/// How many neighbours of a vector turn together: the largest power of two up to 128 that divides it.
pub fn rotation(width: usize) -> usize {
    match width {
        0 => 0,
        _ => 1 << width.trailing_zeros().min(MOST.ilog2()),
    }
}

/// Keys or values.
#[derive(Debug)]
pub struct Half {
    format: Format,
    elements: Buffer,
    factors: Buffer,
    /// `[blocks, block_size, kv_heads, width]`, and strides in elements.
    dims: [usize; 4],
    strides: [usize; 4],
    rotation: usize,
}

impl Half {
    /// Reserves memory for `[blocks, block_size, kv_heads, width]`; neighbours turn before they are stored if `turns`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a width that is no multiple of 8; and those of
    /// [`Device::alloc`].
    pub fn new(device: &Device, format: Format, dims: [usize; 4], turns: bool) -> Result<Self> {
        let [blocks, block_size, kv_heads, width] = dims;
        if !width.is_multiple_of(LANE) || width == 0 {
            return Err(OP.invalid(format!(
                "a cache takes heads of a multiple of {LANE} elements, not {width}"
            )));
        }
        let rows = blocks * block_size * kv_heads;
        let [elements, factors] = format.row_bytes(width);
        Ok(Half {
            format,
            elements: device.alloc(rows * elements)?,
            factors: device.alloc(rows * factors)?,
            dims,
            strides: strides(block_size, kv_heads, row(width)),
            rotation: if turns { rotation(width) } else { 0 },
        })
    }

    /// Its buffers, and the bytes of a block in each: blocks lie behind each other.
    pub fn blocks(&self) -> [(&Buffer, usize); 2] {
        let [_, block_size, kv_heads, width] = self.dims;
        let rows = block_size * kv_heads;
        let [elements, factors] = self.format.row_bytes(width);
        [
            (&self.elements, rows * elements),
            (&self.factors, rows * factors),
        ]
    }

    /// What stands for it in an [`Attention`](super::Attention): where elements would be if each had a byte.
    pub fn view(&self) -> View<'_> {
        View {
            buffer: &self.elements,
            dtype: DType::U8,
            offset: 0,
            dims: &self.dims,
            strides: &self.strides,
        }
    }

    fn shift(&self) -> u32 {
        shift(self.dims[3])
    }
}

/// A paged cache in packed formats.
#[derive(Clone, Copy, Debug)]
pub struct PackedCache<'a> {
    /// Keys.
    pub k: &'a Half,
    /// Values.
    pub v: &'a Half,
    /// Whether queries and results turn elsewhere.
    turned: bool,
}

impl<'a> PackedCache<'a> {
    /// The cache of keys and values for the same tokens.
    pub fn new(k: &'a Half, v: &'a Half) -> Self {
        PackedCache {
            k,
            v,
            turned: false,
        }
    }

    /// The same for queries that have turned.
    pub(super) fn turned(self) -> Self {
        PackedCache {
            turned: true,
            ..self
        }
    }

    /// Whether queries and results have to turn.
    pub(super) fn turns(&self) -> bool {
        !self.turned && (self.k.rotation != 0 || self.v.rotation != 0)
    }

    /// Addresses of the factors.
    pub(super) fn factors(&self) -> [Ptr<'a>; 2] {
        [Ptr::to(&self.k.factors), Ptr::to(&self.v.factors)]
    }

    /// Fills in what kernels need to know.
    pub(super) fn describe(&self, shape: &mut Shape) {
        [shape.k_format, shape.v_format] = [self.k, self.v].map(|half| half.format.number());
        [shape.k_shift, shape.v_shift] = [self.k, self.v].map(Half::shift);
        if !self.turned {
            [shape.k_rotation, shape.v_rotation] =
                [self.k, self.v].map(|half| half.rotation as u32);
        }
    }

    /// The same for who writes.
    pub(super) fn describe_write(&self, layout: &mut Write) {
        [layout.k_format, layout.v_format] = [self.k, self.v].map(|half| half.format.number());
        [layout.k_shift, layout.v_shift] = [self.k, self.v].map(Half::shift);
        [layout.k_rotation, layout.v_rotation] = [self.k, self.v].map(|half| half.rotation as u32);
    }

    /// Turns queries as the keys were, f16, bf16 or f32 `[tokens, heads, width]`, to the same without gaps.
    pub(super) fn turn_queries(&self, device: &Device, q: &View) -> Result<Buffer> {
        let out = device.alloc(q.elem_count() * q.dtype.size_in_bytes())?;
        rotate(OP, device, q, &out, self.k.rotation)?;
        Ok(out)
    }

    /// Turns results back, whose heads lie behind each other, in place.
    pub(super) fn turn_results(&self, device: &Device, out: &Buffer, dtype: DType) -> Result<()> {
        let width = self.v.dims[3];
        let lines = out.len() / (width * dtype.size_in_bytes());
        let (dims, strides) = ([1, lines, width], [lines * width, width, 1]);
        let view = View::contiguous(out, dtype, &dims, &strides);
        rotate(OP, device, &view, out, self.v.rotation)
    }
}

/// Turns `size` neighbours each of `[tokens, heads, width]` into memory without gaps; with 0, copies.
fn rotate(op: Op, device: &Device, from: &View, to: &Buffer, size: usize) -> Result<()> {
    from.check(op.0)?;
    let &[tokens, heads, width] = from.dims else {
        return Err(op.invalid("vectors that turn have three dimensions"));
    };
    let aligned = from.strides[..2].iter().all(|s| s.is_multiple_of(LANE))
        && from.offset.is_multiple_of(LANE)
        && (from.strides[2] == 1 || width <= 1);
    if !aligned || !width.is_multiple_of(LANE) {
        return Err(op.invalid(format!(
            "vectors of {:?} with strides {:?} cannot be read {LANE} elements at a time",
            from.dims, from.strides
        )));
    }
    let narrow = |what, value: usize| op.narrow(what, value, u32::MAX);
    let vectors = Turn {
        tokens: narrow("number of tokens", tokens)?,
        heads: narrow("number of heads", heads)?,
        width: narrow("head size", width)?,
        format: match from.dtype {
            DType::F16 => shared::F16,
            DType::BF16 => shared::BF16,
            DType::F32 => shared::F32,
            dtype => return Err(op.unsupported(dtype)),
        },
        row: narrow("stride", from.strides[0])?,
        head: narrow("stride", from.strides[1])?,
        size: size as u32,
    };
    let config = LaunchConfig::for_elements(tokens * heads * width / LANE);
    // SAFETY: the view was checked, and there is room for as many elements.
    unsafe { rotate_vectors::of()?.launch(device, config, Ptr::of(from), Ptr::to(to), vectors) }
}

/// Lanes of a token when it is written; as `kv_cache_write_packed` has them.
pub(super) fn lanes_of_token(layout: &Write) -> usize {
    let waves = |lanes: usize| lanes.next_multiple_of(32);
    let (heads, kv_heads) = (layout.heads as usize, layout.kv_heads as usize);
    let stored = |width: u32| kv_heads * (row(width as usize) / LANE);
    waves(heads * layout.width as usize / LANE)
        + waves(stored(layout.width))
        + waves(stored(layout.v_width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_end_with_whole_blocks() {
        assert_eq!(Format::Q4_0.row_bytes(64), [32, 4]);
        assert_eq!(Format::Q5_1.row_bytes(80), [48, 24]);
        assert_eq!(Format::F8.row_bytes(128), [128, 2]);
        assert_eq!(Format::F8.row_bytes(96), [96, 6]);
        assert_eq!(Format::F8.row_bytes(256), [256, 4]);
        assert_eq!(Format::F16.row_bytes(40), [128, 0]);
    }

    #[test]
    fn neighbours_that_turn_are_a_power_of_two() {
        let sizes = [40, 64, 80, 96, 128, 192, 256].map(rotation);
        assert_eq!(sizes, [8, 64, 16, 32, 128, 64, 128]);
    }
}
