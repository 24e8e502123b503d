//! Writing new keys and values into a paged cache.
//!
//! A cache is a tensor of blocks, `[blocks, block_size, kv_heads, head_size]`, for keys and one for values; which block holds which part of a sequence is the
//! business of the block table in [`Lengths::Paged`](super::Lengths::Paged). Any strides will do whose last is 1 and whose others are multiples of 8. The
//! layout to choose for a new cache keeps the entries of a head together: memory as `[blocks, kv_heads, block_size, head_size]`, seen through a view with the two middle
//! dimensions swapped ([`strides`]). One head's part of a block then is one run of memory (16 entries of 128 f16: 4 KiB), which the group of lanes that
//! reads it walks from end to end; with heads inside of entries each reads 256-byte pieces a row apart, full cache lines too, but
//! spread over more DRAM pages.
//!
//! 8-bit caches hold what ggml calls Q8_0, an f16 factor for 32 elements, with elements and factors in tensors of their own: 34-byte blocks
//! would never be aligned for 16-byte loads.

use super::problem::SCALED;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};

const OP: &str = "kv-cache-write";

/// Strides of `[blocks, block_size, kv_heads, head_size]` in memory ordered `[blocks, kv_heads, block_size, head_size]`, in elements.
pub fn strides(block_size: usize, kv_heads: usize, head_size: usize) -> [usize; 4] {
    let head = block_size * head_size;
    [kv_heads * head, head_size, head, 1]
}

/// A paged cache of f16, bf16, f32, or u8 (two's complement) with scales.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    /// Keys, `[blocks, block_size, kv_heads, head_size]`.
    pub k: View<'a>,
    /// Values, as `k` but for the head size.
    pub v: View<'a>,
    /// Factors of u8 keys and values: f16, last dimension and strides a 32nd.
    pub scales: Option<(View<'a>, View<'a>)>,
}

/// A rotary embedding: f32 tables `[positions, rotary / 2]` without gaps; the first `rotary` dimensions of a head turn.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// Cosines.
    pub cos: View<'a>,
    /// Sines.
    pub sin: View<'a>,
    /// Pairs are `(2i, 2i + 1)` instead of `(i, i + rotary / 2)`.
    pub interleaved: bool,
    /// u32, `[tokens]`: row of the tables for each token.
    pub positions: View<'a>,
}

/// What one call writes: new tokens, all of one dtype, f16, bf16 or f32.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Queries, `[tokens, heads, head_size]`, if they are to turn as well.
    pub q: Option<View<'a>>,
    /// Keys, `[tokens, kv_heads, head_size]`.
    pub k: View<'a>,
    /// Values, `[tokens, kv_heads, v_head_size]`.
    pub v: View<'a>,
    /// u32, `[tokens]`: `block * block_size + entry` for each token; `u32::MAX` writes nothing.
    pub slots: View<'a>,
}

/// The fields are those of `Write` in `attention/kv_cache.hip`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Write {
    tokens: u32,
    heads: u32,
    kv_heads: u32,
    width: u32,
    v_width: u32,
    rotary: u32,
    interleaved: u32,
    format: u32,
    cache_format: u32,
    block_size: u32,
    q_token: u32,
    q_head: u32,
    k_token: u32,
    k_head: u32,
    v_token: u32,
    v_head: u32,
    k_block: u64,
    v_block: u64,
    k_entry: u32,
    k_cache_head: u32,
    v_entry: u32,
    v_cache_head: u32,
}

/// Turns keys (and queries) by their rotary embedding and writes keys and values into the cache, in one launch. Gives the turned queries,
/// `[tokens, heads, head_size]`, if there are queries. Slots must lie in the cache; no two tokens may have the same.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`]; [`Error::InvalidArgument`] for head sizes
/// that are no multiple of 8 (32 with scales), strides or addresses that are not aligned for 8 elements, and rotary sizes that are no multiple of 16 (8 if interleaved) up
/// to the head size; [`Error::TooLarge`] for strides of 2^32 elements or more.
pub fn write(
    device: &Device,
    cache: &KvCache,
    tokens: &Tokens,
    rotary: Option<&Rotary>,
) -> Result<Option<Buffer>> {
    let mut layout = Write::default();
    layout.tokens_of(tokens)?;
    layout.cache_of(cache, tokens)?;
    if let Some(rotary) = rotary {
        layout.rotary_of(rotary, tokens)?;
    }
    vector(&tokens.slots, &tokens.k)?;
    let q_out = match &tokens.q {
        Some(q) => Some(device.alloc(q.elem_count() * q.dtype.size_in_bytes())?),
        None => None,
    };
    let share = if layout.cache_format == U8 { SCALED } else { 8 };
    let elements =
        tokens.q.map_or(0, |q| q.elem_count()) + tokens.k.elem_count() + tokens.v.elem_count();
    let config = LaunchConfig::for_elements(elements / share);
    let pointer = |args: crate::Args, view: Option<&View>| match view {
        Some(view) => args.ptr(view.buffer, view.offset * view.dtype.size_in_bytes()),
        None => args.u64(0),
    };
    let mut args = crate::Args::new();
    let (k_scales, v_scales) = cache.scales.as_ref().map(|(k, v)| (k, v)).unzip();
    let inputs = [
        tokens.q.as_ref(),
        Some(&tokens.k),
        Some(&tokens.v),
        rotary.map(|r| &r.cos),
        rotary.map(|r| &r.sin),
        rotary.map(|r| &r.positions),
        Some(&tokens.slots),
    ];
    for input in inputs {
        args = pointer(args, input);
    }
    args = match &q_out {
        Some(q_out) => args.ptr(q_out, 0),
        None => args.u64(0),
    };
    for output in [Some(&cache.k), Some(&cache.v), k_scales, v_scales] {
        args = pointer(args, output);
    }
    device
        .kernel(Family::KvCache, "kv_cache_write")?
        .launch(config, &args.value(&layout))?;
    Ok(q_out)
}

/// `enum Format` of `attention/common.h`.
const U8: u32 = 3;

impl Write {
    fn tokens_of(&mut self, tokens: &Tokens) -> Result<()> {
        let (k, v) = (&tokens.k, &tokens.v);
        self.format = match k.dtype {
            DType::F16 => 0,
            DType::BF16 => 1,
            DType::F32 => 2,
            dtype => return Err(Error::UnsupportedDType { op: OP, dtype }),
        };
        let (&[n, kv_heads, width], &[v_n, v_heads, v_width]) = (k.dims, v.dims) else {
            return Err(mismatch(k, v));
        };
        if (n, kv_heads) != (v_n, v_heads) {
            return Err(mismatch(k, v));
        }
        self.tokens = narrow("number of tokens", n)?;
        self.kv_heads = narrow("number of heads", kv_heads)?;
        self.width = narrow("head size", width)?;
        self.v_width = narrow("head size", v_width)?;
        [self.k_token, self.k_head] = pair(k, 0, 1)?;
        [self.v_token, self.v_head] = pair(v, 0, 1)?;
        same_dtype(v, k.dtype)?;
        if let Some(q) = &tokens.q {
            same_dtype(q, k.dtype)?;
            match *q.dims {
                [q_n, heads, q_width] if q_n == n && q_width == width => {
                    self.heads = narrow("number of heads", heads)?;
                }
                _ => return Err(mismatch(q, k)),
            }
            [self.q_token, self.q_head] = pair(q, 0, 1)?;
            aligned(q)?;
        }
        aligned(k)?;
        aligned(v)
    }

    fn cache_of(&mut self, cache: &KvCache, tokens: &Tokens) -> Result<()> {
        let (k, v) = (&cache.k, &cache.v);
        self.cache_format = match k.dtype {
            DType::F16 => 0,
            DType::BF16 => 1,
            DType::F32 => 2,
            DType::U8 => U8,
            dtype => return Err(Error::UnsupportedDType { op: OP, dtype }),
        };
        same_dtype(v, k.dtype)?;
        let (&[blocks, size, heads, width], &[v_blocks, v_size, v_heads, v_width]) =
            (k.dims, v.dims)
        else {
            return Err(mismatch(k, v));
        };
        if (blocks, size, heads) != (v_blocks, v_size, v_heads) || size == 0 {
            return Err(mismatch(k, v));
        }
        if tokens.k.dims[1..] != [heads, width] {
            return Err(mismatch(&tokens.k, k));
        }
        if tokens.v.dims[1..] != [heads, v_width] {
            return Err(mismatch(&tokens.v, v));
        }
        aligned(k)?;
        aligned(v)?;
        self.block_size = narrow("block size", size)?;
        (self.k_block, self.v_block) = (k.strides[0] as u64, v.strides[0] as u64);
        [self.k_entry, self.k_cache_head] = pair(k, 1, 2)?;
        [self.v_entry, self.v_cache_head] = pair(v, 1, 2)?;
        match (&cache.scales, k.dtype) {
            (None, DType::U8) => Err(invalid("an 8-bit cache needs scales")),
            (Some((k_scales, v_scales)), DType::U8) => {
                super::problem::check_scales(OP, k_scales, k, k.strides)?;
                super::problem::check_scales(OP, v_scales, v, v.strides)
            }
            (Some(_), dtype) => Err(invalid(format!("a cache of {dtype} has no scales"))),
            (None, _) => Ok(()),
        }
    }

    fn rotary_of(&mut self, rotary: &Rotary, tokens: &Tokens) -> Result<()> {
        for table in [&rotary.cos, &rotary.sin] {
            same_dtype(table, DType::F32)?;
            table.check(OP)?;
            if table.dims != rotary.cos.dims || table.dims.len() != 2 || !table.is_contiguous() {
                return Err(mismatch(table, &rotary.cos));
            }
        }
        vector(&rotary.positions, &tokens.k)?;
        let size = 2 * rotary.cos.dims[1];
        let step = if rotary.interleaved { 8 } else { 16 };
        if !size.is_multiple_of(step) || size > self.width as usize {
            return Err(invalid(format!(
                "{size} rotary dimensions are not a multiple of {step} up to the head size, {}",
                self.width
            )));
        }
        self.rotary = size as u32;
        self.interleaved = rotary.interleaved.into();
        Ok(())
    }
}

/// Strides of two dimensions.
fn pair(view: &View, first: usize, second: usize) -> Result<[u32; 2]> {
    Ok([
        narrow("stride", view.strides[first])?,
        narrow("stride", view.strides[second])?,
    ])
}

/// Checks that the view lies in its buffer and allows loads of 8 elements.
fn aligned(view: &View) -> Result<()> {
    view.check(OP)?;
    let size = view.dtype.size_in_bytes();
    let address = view.buffer.as_ptr() as usize + view.offset * size;
    let last = view.dims.len() - 1;
    let fits = address.is_multiple_of(16.min(8 * size))
        && view.dims[last].is_multiple_of(8)
        && view.strides[last] == 1
        && view.strides[..last].iter().all(|s| s.is_multiple_of(8));
    if fits {
        return Ok(());
    }
    Err(invalid(format!(
        "dims {:?} with strides {:?} at element {} cannot be read 8 elements at a time; head sizes, strides and offsets must be multiples of 8, the last stride 1",
        view.dims, view.strides, view.offset
    )))
}

/// Checks a u32 vector with an element for each token.
fn vector(view: &View, tokens: &View) -> Result<()> {
    same_dtype(view, DType::U32)?;
    view.check(OP)?;
    if view.dims != &tokens.dims[..1] || !view.is_contiguous() {
        return Err(mismatch(view, tokens));
    }
    Ok(())
}

fn same_dtype(view: &View, dtype: DType) -> Result<()> {
    if view.dtype == dtype {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op: OP,
        lhs: view.dtype,
        rhs: dtype,
    })
}

fn narrow(what: &'static str, value: usize) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::TooLarge {
        op: OP,
        what,
        value,
        limit: u32::MAX as usize,
    })
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::InvalidArgument {
        op: OP,
        reason: reason.into(),
    }
}

fn mismatch(lhs: &View, rhs: &View) -> Error {
    Error::ShapeMismatch {
        op: OP,
        lhs: lhs.dims.to_vec(),
        rhs: rhs.dims.to_vec(),
    }
}
