//! Writing new keys and values into a paged cache.
//!
//! A cache is a tensor of blocks, `[blocks, block_size, kv_heads, head_size]`, for keys and one for values; which block
//! holds which part of a sequence is the business of the block table in [`Lengths::Paged`](super::Lengths::Paged). Any
//! strides will do whose last is 1 and whose others are multiples of 8. The layout to choose for a new cache keeps the
//! entries of a head together: memory as `[blocks, kv_heads, block_size, head_size]`, seen through a view with the two
//! middle dimensions swapped ([`strides`]). One head's part of a block then is one run of memory (16 entries of 128
//! f16: 4 KiB), which the group of lanes that reads it walks from end to end; with heads inside of entries each reads
//! 256-byte pieces a row apart, full cache lines too, but spread over more DRAM pages.
//!
//! Caches of other formats, and of two, are [packed](super::packed) ones.
//!
//! 8-bit caches hold what ggml calls Q8_0, an f16 factor for 32 elements, with elements and factors in tensors of their
//! own: 34-byte blocks would never be aligned for 16-byte loads.

pub use super::layout::strides;
use super::packed::{lanes_of_token, PackedCache};
use super::problem::{check_scales, SCALED};
use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::attention::{Write, BF16, F16, F32, I8};

kernels! {
    /// Turns and writes; addresses are null where there is no such operand.
    write_tokens = "kv_cache_write" in Family::KvCache
        => (q: Ptr, k: Ptr, v: Ptr, cos: Ptr, sin: Ptr, positions: Ptr, slots: Ptr, q_out: Ptr, k_cache: Ptr,
            v_cache: Ptr, k_scales: Ptr, v_scales: Ptr, layout: Write);

    /// The same into a packed cache.
    write_packed_tokens = "kv_cache_write_packed" in Family::KvCache
        => (q: Ptr, k: Ptr, v: Ptr, cos: Ptr, sin: Ptr, positions: Ptr, slots: Ptr, q_out: Ptr, k_cache: Ptr,
            v_cache: Ptr, k_scales: Ptr, v_scales: Ptr, layout: Write);
}

const OP: Op = Op("kv-cache-write");

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

/// Turns keys (and queries) by their rotary embedding and writes keys and values into the cache, in one launch. Gives
/// the turned queries, `[tokens, heads, head_size]`, if there are queries. Slots must lie in the cache; no two tokens
/// may have the same.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView);
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for head sizes that are no multiple of 8 (32 with scales),
/// strides or addresses that are not aligned for 8 elements, and rotary sizes that are no multiple of 16 (8 if
/// interleaved) up to the head size; [`Error::TooLarge`](crate::Error::TooLarge) for strides of 2^32 elements or more.
pub fn write(
    device: &Device,
    cache: &KvCache,
    tokens: &Tokens,
    rotary: Option<&Rotary>,
) -> Result<Option<Buffer>> {
    let mut layout = Write::default();
    tokens_of(&mut layout, tokens)?;
    cache_of(&mut layout, cache, tokens)?;
    if let Some(rotary) = rotary {
        rotary_of(&mut layout, rotary, tokens)?;
    }
    vector(&tokens.slots, &tokens.k)?;
    let q_out = match &tokens.q {
        Some(q) => Some(device.alloc(q.elem_count() * q.dtype.size_in_bytes())?),
        None => None,
    };
    let share = if layout.k_format == I8 { SCALED } else { 8 };
    let elements =
        tokens.q.map_or(0, |q| q.elem_count()) + tokens.k.elem_count() + tokens.v.elem_count();
    let config = LaunchConfig::for_elements(elements / share);
    let (k_scales, v_scales) = cache.scales.as_ref().map(|(k, v)| (k, v)).unzip();
    // SAFETY: the views were checked to lie in their buffers and to fit together; slots are the caller's promise.
    unsafe {
        write_tokens::of()?.launch(
            device,
            config,
            Ptr::of_optional(tokens.q.as_ref()),
            Ptr::of(&tokens.k),
            Ptr::of(&tokens.v),
            Ptr::of_optional(rotary.map(|r| &r.cos)),
            Ptr::of_optional(rotary.map(|r| &r.sin)),
            Ptr::of_optional(rotary.map(|r| &r.positions)),
            Ptr::of(&tokens.slots),
            q_out.as_ref().map_or(Ptr::NULL, Ptr::to),
            Ptr::of(&cache.k),
            Ptr::of(&cache.v),
            Ptr::of_optional(k_scales),
            Ptr::of_optional(v_scales),
            layout,
        )?;
    }
    Ok(q_out)
}

/// [`write()`] into a packed cache, whose keys and values turn on the way as it says; queries turn by their rotary
/// embedding only.
///
/// # Errors
/// Those of [`write()`].
pub fn write_packed(
    device: &Device,
    cache: &PackedCache,
    tokens: &Tokens,
    rotary: Option<&Rotary>,
) -> Result<Option<Buffer>> {
    let mut layout = Write::default();
    tokens_of(&mut layout, tokens)?;
    let (k, v) = (cache.k.view(), cache.v.view());
    places_of(&mut layout, &k, &v, tokens)?;
    cache.describe_write(&mut layout);
    if let Some(rotary) = rotary {
        rotary_of(&mut layout, rotary, tokens)?;
    }
    vector(&tokens.slots, &tokens.k)?;
    let q_out = match &tokens.q {
        Some(q) => Some(device.alloc(q.elem_count() * q.dtype.size_in_bytes())?),
        None => None,
    };
    let config = LaunchConfig::for_elements(layout.tokens as usize * lanes_of_token(&layout));
    let [k_factors, v_factors] = cache.factors();
    // SAFETY: the views were checked to lie in their buffers and to fit together, the cache has memory for its
    // formats; slots are the caller's promise.
    unsafe {
        write_packed_tokens::of()?.launch(
            device,
            config,
            Ptr::of_optional(tokens.q.as_ref()),
            Ptr::of(&tokens.k),
            Ptr::of(&tokens.v),
            Ptr::of_optional(rotary.map(|r| &r.cos)),
            Ptr::of_optional(rotary.map(|r| &r.sin)),
            Ptr::of_optional(rotary.map(|r| &r.positions)),
            Ptr::of(&tokens.slots),
            q_out.as_ref().map_or(Ptr::NULL, Ptr::to),
            Ptr::of(&k),
            Ptr::of(&v),
            k_factors,
            v_factors,
            layout,
        )?;
    }
    Ok(q_out)
}

fn tokens_of(layout: &mut Write, tokens: &Tokens) -> Result<()> {
    let (k, v) = (&tokens.k, &tokens.v);
    layout.format = match k.dtype {
        DType::F16 => F16,
        DType::BF16 => BF16,
        DType::F32 => F32,
        dtype => return Err(OP.unsupported(dtype)),
    };
    let (&[n, kv_heads, width], &[v_n, v_heads, v_width]) = (k.dims, v.dims) else {
        return Err(OP.mismatch(k, v));
    };
    if (n, kv_heads) != (v_n, v_heads) {
        return Err(OP.mismatch(k, v));
    }
    layout.tokens = OP.narrow("number of tokens", n, u32::MAX)?;
    layout.kv_heads = OP.narrow("number of heads", kv_heads, u32::MAX)?;
    layout.width = OP.narrow("head size", width, u32::MAX)?;
    layout.v_width = OP.narrow("head size", v_width, u32::MAX)?;
    [layout.k_token, layout.k_head] = pair(k, 0, 1)?;
    [layout.v_token, layout.v_head] = pair(v, 0, 1)?;
    OP.has_dtype(v, k.dtype)?;
    if let Some(q) = &tokens.q {
        OP.has_dtype(q, k.dtype)?;
        match *q.dims {
            [q_n, heads, q_width] if q_n == n && q_width == width => {
                layout.heads = OP.narrow("number of heads", heads, u32::MAX)?;
            }
            _ => return Err(OP.mismatch(q, k)),
        }
        [layout.q_token, layout.q_head] = pair(q, 0, 1)?;
        aligned(q)?;
    }
    aligned(k)?;
    aligned(v)
}

fn cache_of(layout: &mut Write, cache: &KvCache, tokens: &Tokens) -> Result<()> {
    let (k, v) = (&cache.k, &cache.v);
    layout.k_format = match k.dtype {
        DType::F16 => F16,
        DType::BF16 => BF16,
        DType::F32 => F32,
        DType::U8 => I8,
        dtype => return Err(OP.unsupported(dtype)),
    };
    OP.has_dtype(v, k.dtype)?;
    aligned(k)?;
    aligned(v)?;
    places_of(layout, k, v, tokens)?;
    match (&cache.scales, k.dtype) {
        (None, DType::U8) => Err(OP.invalid("an 8-bit cache needs scales")),
        (Some((k_scales, v_scales)), DType::U8) => {
            check_scales(OP, k_scales, k, k.strides)?;
            check_scales(OP, v_scales, v, v.strides)
        }
        (Some(_), dtype) => Err(OP.invalid(format!("a cache of {dtype} has no scales"))),
        (None, _) => Ok(()),
    }
}

/// Where entries are, of keys and values that suit the tokens.
fn places_of(layout: &mut Write, k: &View, v: &View, tokens: &Tokens) -> Result<()> {
    let (&[blocks, size, heads, width], &[v_blocks, v_size, v_heads, v_width]) = (k.dims, v.dims)
    else {
        return Err(OP.mismatch(k, v));
    };
    if (blocks, size, heads) != (v_blocks, v_size, v_heads) || size == 0 {
        return Err(OP.mismatch(k, v));
    }
    if tokens.k.dims[1..] != [heads, width] {
        return Err(OP.mismatch(&tokens.k, k));
    }
    if tokens.v.dims[1..] != [heads, v_width] {
        return Err(OP.mismatch(&tokens.v, v));
    }
    layout.block_size = OP.narrow("block size", size, u32::MAX)?;
    (layout.k_block, layout.v_block) = (k.strides[0] as u64, v.strides[0] as u64);
    [layout.k_entry, layout.k_cache_head] = pair(k, 1, 2)?;
    [layout.v_entry, layout.v_cache_head] = pair(v, 1, 2)?;
    Ok(())
}

fn rotary_of(layout: &mut Write, rotary: &Rotary, tokens: &Tokens) -> Result<()> {
    for table in [&rotary.cos, &rotary.sin] {
        OP.has_dtype(table, DType::F32)?;
        table.check(OP.0)?;
        if table.dims != rotary.cos.dims || table.dims.len() != 2 || !table.is_contiguous() {
            return Err(OP.mismatch(table, &rotary.cos));
        }
    }
    vector(&rotary.positions, &tokens.k)?;
    let size = 2 * rotary.cos.dims[1];
    let step = if rotary.interleaved { 8 } else { 16 };
    if !size.is_multiple_of(step) || size > layout.width as usize {
        return Err(OP.invalid(format!(
            "{size} rotary dimensions are not a multiple of {step} up to the head size, {}",
            layout.width
        )));
    }
    layout.rotary = size as u32;
    layout.interleaved = rotary.interleaved.into();
    Ok(())
}

/// Strides of two dimensions.
fn pair(view: &View, first: usize, second: usize) -> Result<[u32; 2]> {
    Ok([
        OP.narrow("stride", view.strides[first], u32::MAX)?,
        OP.narrow("stride", view.strides[second], u32::MAX)?,
    ])
}

/// Checks that the view lies in its buffer and allows loads of 8 elements.
fn aligned(view: &View) -> Result<()> {
    view.check(OP.0)?;
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
    Err(OP.invalid(format!(
        "dims {:?} with strides {:?} at element {} cannot be read 8 elements at a time; head sizes, strides and offsets must be multiples of 8, the last stride 1",
        view.dims, view.strides, view.offset
    )))
}

/// Checks a u32 vector with an element for each token.
fn vector(view: &View, tokens: &View) -> Result<()> {
    OP.has_dtype(view, DType::U32)?;
    view.check(OP.0)?;
    if view.dims != &tokens.dims[..1] || !view.is_contiguous() {
        return Err(OP.mismatch(view, tokens));
    }
    Ok(())
}
