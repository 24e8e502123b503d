//! Attention of all heads to one latent vector of each token: key and value in one ("DeepSeek-V2", 2024, 2.1, with the
//! matrices absorbed), and the choice of the keys that it looks at ("DeepSeek-V3.2-Exp", 2025).
//!
//! An entry of the cache, and a query, has the elements that turn before those of the latent vector.

use super::problem::{check_scales, SCALED};
use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::ops::operand::Operand;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::attention::{BF16, F16, F32, MAX_PARTS, PART_EXTRA};
use candle_rocm_kernels::shared::latent::{
    Latent, Ranking, HEADS_OF_32, HEADS_OF_64, LATENT_THREADS, MAX_LATENT, MAX_RANKERS,
    MAX_RANKING, MAX_TURNING, RANKED,
};

pub use candle_rocm_kernels::shared::latent::NO_KEY;

/// What keys may be.
const FORMATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::U8];

kernels! {
    /// A block for some heads of a token and a part of the keys.
    attend_latent = "attention_latent_{format}" [format: DType = FORMATS] in Family::AttentionLatent, part format
        => (q: Ptr, k: Ptr, scales: Ptr, out: Ptr, partial: Ptr, cu_rows: Ptr, cu_keys: Ptr, table: Ptr, chosen: Ptr,
            sizes: Latent, tiles: u32);

    /// Joins the parts of a head of a token.
    combine_parts = "attention_latent_combine" in Family::AttentionLatent
        => (partial: Ptr, out: Ptr, sizes: Latent);

    /// Scores keys for tokens.
    rank_keys = "attention_latent_rank_{format}" [format: DType = FORMATS] in Family::AttentionLatent, part format
        => (q: Ptr, weights: Ptr, k: Ptr, scales: Ptr, scores: Ptr, cu_rows: Ptr, cu_keys: Ptr, table: Ptr,
            sizes: Ranking, tiles: u32);

    /// Chooses the keys of a token by their scores.
    choose_keys = "attention_latent_choose" in Family::AttentionLatent
        => (scores: Ptr, cu_rows: Ptr, cu_keys: Ptr, chosen: Ptr, sizes: Ranking);
}

const OP: Op = Op("latent-attention");
const CHOICE: Op = Op("choice of keys");
/// Elements that a kernel loads at once: strides must be multiples.
const VECTOR: usize = 8;
/// Blocks for each compute unit that keys are split for.
const BLOCKS_PER_UNIT: u64 = 2;
/// Keys of a part at least: joining costs as much as a few turns of a block.
const LEAST_PART: u64 = 64;

/// A paged cache of keys, `[blocks, block_size, 1, size]` of f16, bf16, f32, or u8 (two's complement) with scales.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// Their elements.
    pub keys: View<'a>,
    /// Factors of u8 keys: f16, last dimension and strides a 32nd.
    pub scales: Option<View<'a>>,
    /// u32, `[sequences + 1]`: starts of the sequences' rows among the queries.
    pub cu_rows: View<'a>,
    /// Running sums of the sequences' numbers of keys, from 0, as `cu_rows`. A sequence with fewer keys than rows only
    /// fills the batch up: its rows give zeros.
    pub cu_keys: View<'a>,
    /// u32, `[sequences, blocks of the longest sequence]`.
    pub blocks: View<'a>,
    /// Keys of the longest sequence at most.
    pub most: usize,
}

/// Whether [`attend`] takes keys of so many elements that turn, and latent vectors of so many.
pub fn takes(turning: usize, rank: usize) -> bool {
    let fits = |size: usize, most: u32| size.is_multiple_of(VECTOR) && size <= most as usize;
    fits(turning, MAX_TURNING) && fits(rank, MAX_LATENT) && rank > 0
}

/// Causal attention of `q`, `[tokens, heads, size]`, to the keys of each token's sequence up to its own, or to the
/// `chosen` ones of these, u32 `[tokens, most]` in ascending order and behind them [`NO_KEY`]. The first `turning`
/// elements of a key have no part in its value. Gives `[tokens, heads, size - turning]` in the dtype of `q`.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView);
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for sizes that it does not [take](takes);
/// [`Error::TooLarge`](crate::Error::TooLarge) beyond 32 bits.
pub fn attend(
    device: &Device,
    q: &View,
    keys: &Keys,
    turning: usize,
    scale: f32,
    chosen: Option<&View>,
) -> Result<Buffer> {
    let query = Operand::with_dense_rows(OP, device, q, Some(VECTOR))?;
    let (tokens, heads, size) = sizes_of(OP, &query.view(), keys)?;
    let rank = size.saturating_sub(turning);
    if !takes(turning, rank) {
        return Err(OP.invalid(format!(
            "{turning} elements that turn and {rank} of a latent vector; multiples of {VECTOR} up to {MAX_TURNING} and {MAX_LATENT} are needed"
        )));
    }
    let most = match chosen {
        None => 0,
        Some(chosen) => {
            let rows = dense(OP, chosen, DType::U32)?;
            match *rows.dims {
                [n, most] if n == tokens && most > 0 => most,
                _ => return Err(OP.mismatch(q, chosen)),
            }
        }
    };
    let view = query.view();
    let of_block = match device.properties().wave_size {
        64 => HEADS_OF_64,
        _ => HEADS_OF_32,
    };
    let tiles = (heads as u64).div_ceil(of_block.into());
    let base = (tokens as u64 * tiles).max(1);
    let seen = if most > 0 {
        most.min(keys.most)
    } else {
        keys.most
    } as u64;
    let splits = (device.properties().units() as u64 * BLOCKS_PER_UNIT)
        .div_ceil(base)
        .min(seen.div_ceil(LEAST_PART))
        .clamp(1, MAX_PARTS.into());
    let narrow = |what, value: usize| OP.narrow(what, value, i32::MAX as u32);
    let shape = Latent {
        k_block: keys.keys.strides[0] as u64,
        tokens: narrow("number of tokens", tokens)?,
        sequences: narrow("number of sequences", keys.cu_rows.dims[0] - 1)?,
        heads: narrow("number of heads", heads)?,
        turning: turning as u32,
        rank: rank as u32,
        q_format: format(view.dtype)?,
        q_token: narrow("stride", view.strides[0])?,
        q_head: narrow("stride", view.strides[1])?,
        k_entry: narrow("stride", keys.keys.strides[1])?,
        block_size: narrow("block size", keys.keys.dims[1])?,
        table_row: narrow("block table", keys.blocks.dims[1])?,
        most: narrow("chosen keys", most)?,
        scale,
        splits: splits as u32,
    };
    let lines = tokens * heads;
    let out = device.alloc(lines * rank * q.dtype.size_in_bytes())?;
    if lines == 0 {
        return Ok(out);
    }
    let grid = narrow("number of blocks", (base * splits) as usize)?;
    narrow("number of heads of all tokens", lines)?;
    let partial = match splits {
        1 => None,
        _ => {
            let part = (rank + PART_EXTRA as usize) * size_of::<f32>();
            Some(device.alloc((lines * splits as usize).saturating_mul(part))?)
        }
    };
    let config = |grid| LaunchConfig {
        grid,
        block: LATENT_THREADS,
        shared_bytes: 0,
    };
    let to = partial.as_ref().map_or(Ptr::NULL, Ptr::to);
    // SAFETY: the views were checked to lie in their buffers and to fit together, and there is room for all parts.
    unsafe {
        attend_latent::of(keys.keys.dtype)?.launch(
            device,
            config(grid),
            query.ptr(),
            Ptr::of(&keys.keys),
            Ptr::of_optional(keys.scales.as_ref()),
            Ptr::to(&out),
            to,
            Ptr::of(&keys.cu_rows),
            Ptr::of(&keys.cu_keys),
            Ptr::of(&keys.blocks),
            Ptr::of_optional(chosen),
            shape,
            tiles as u32,
        )?;
        if let Some(partial) = &partial {
            combine_parts::of()?.launch(
                device,
                config(lines as u32),
                Ptr::to(partial),
                Ptr::to(&out),
                shape,
            )?;
        }
    }
    Ok(out)
}

/// The keys of each token's sequence up to its own whose sum over heads of `weight * max(0, query * key)` is largest,
/// the earlier one where two are the same: u32 `[tokens, most]`, in ascending order, behind them [`NO_KEY`]. `q` is
/// `[tokens, heads, size]`, `weights` f32 `[tokens, heads]`.
///
/// # Errors
/// Those of [`attend`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for more than 256 heads, or more than
/// 8192 elements of all of them.
pub fn choose(
    device: &Device,
    q: &View,
    weights: &View,
    keys: &Keys,
    most: usize,
) -> Result<Buffer> {
    let query = Operand::with_dense_rows(CHOICE, device, q, Some(VECTOR))?;
    let (tokens, heads, size) = sizes_of(CHOICE, &query.view(), keys)?;
    let shares = dense(CHOICE, weights, DType::F32)?;
    if *shares.dims != [tokens, heads] {
        return Err(CHOICE.mismatch(q, weights));
    }
    if heads > MAX_RANKERS as usize
        || heads * size > MAX_RANKING as usize
        || !size.is_multiple_of(VECTOR)
        || most == 0
    {
        return Err(CHOICE.invalid(format!(
            "{most} keys by {heads} heads of {size} elements; some keys, up to {MAX_RANKERS} heads of a multiple of {VECTOR} elements and up to {MAX_RANKING} elements in all are needed"
        )));
    }
    let view = query.view();
    let narrow = |what, value: usize| CHOICE.narrow(what, value, i32::MAX as u32);
    let shape = Ranking {
        k_block: keys.keys.strides[0] as u64,
        tokens: narrow("number of tokens", tokens)?,
        sequences: narrow("number of sequences", keys.cu_rows.dims[0] - 1)?,
        heads: heads as u32,
        size: size as u32,
        q_format: format(view.dtype)?,
        q_token: narrow("stride", view.strides[0])?,
        q_head: narrow("stride", view.strides[1])?,
        k_entry: narrow("stride", keys.keys.strides[1])?,
        block_size: narrow("block size", keys.keys.dims[1])?,
        table_row: narrow("block table", keys.blocks.dims[1])?,
        keys: narrow("number of keys", keys.most)?,
        most: narrow("chosen keys", most)?,
    };
    let chosen = device.alloc(tokens * most * size_of::<u32>())?;
    if tokens == 0 {
        return Ok(chosen);
    }
    let tiles = shape.keys.div_ceil(RANKED).max(1);
    let grid = narrow("number of blocks", tokens * tiles as usize)?;
    let bytes = (tokens * keys.most.max(1)).saturating_mul(size_of::<f32>());
    let scores = device.alloc(bytes)?;
    let config = |grid| LaunchConfig {
        grid,
        block: RANKED,
        shared_bytes: 0,
    };
    // SAFETY: the views were checked to lie in their buffers and to fit together, and there is room for a score of each
    // key that a token may see.
    unsafe {
        rank_keys::of(keys.keys.dtype)?.launch(
            device,
            config(grid),
            query.ptr(),
            Ptr::of(weights),
            Ptr::of(&keys.keys),
            Ptr::of_optional(keys.scales.as_ref()),
            Ptr::to(&scores),
            Ptr::of(&keys.cu_rows),
            Ptr::of(&keys.cu_keys),
            Ptr::of(&keys.blocks),
            shape,
            tiles,
        )?;
        choose_keys::of()?.launch(
            device,
            config(shape.tokens),
            Ptr::to(&scores),
            Ptr::of(&keys.cu_rows),
            Ptr::of(&keys.cu_keys),
            Ptr::to(&chosen),
            shape,
        )?;
    }
    Ok(chosen)
}

fn format(dtype: DType) -> Result<u32> {
    match dtype {
        DType::F16 => Ok(F16),
        DType::BF16 => Ok(BF16),
        DType::F32 => Ok(F32),
        dtype => Err(OP.unsupported(dtype)),
    }
}

/// A view without gaps that lies in its buffer.
fn dense<'a>(op: Op, view: &View<'a>, dtype: DType) -> Result<View<'a>> {
    op.has_dtype(view, dtype)?;
    view.check(op.0)?;
    match view.is_contiguous() {
        true => Ok(*view),
        false => Err(op.invalid(format!("{:?} with strides {:?}", view.dims, view.strides))),
    }
}

/// Tokens, heads and elements of queries that fit the keys.
fn sizes_of(op: Op, q: &View, keys: &Keys) -> Result<(usize, usize, usize)> {
    let k = &keys.keys;
    let (&[tokens, heads, size], &[_, block_size, 1, k_size]) = (q.dims, k.dims) else {
        return Err(op.mismatch(q, k));
    };
    if size != k_size || block_size == 0 {
        return Err(op.mismatch(q, k));
    }
    k.check(op.0)?;
    let address = k.buffer.as_ptr() as usize + k.offset * k.dtype.size_in_bytes();
    let aligned = k.strides[3] == 1
        && k.strides[..2].iter().all(|s| s.is_multiple_of(VECTOR))
        && address.is_multiple_of(16.min(VECTOR * k.dtype.size_in_bytes()));
    if !aligned {
        return Err(op.invalid(format!(
            "keys with strides {:?} at element {} cannot be read {VECTOR} at a time",
            k.strides, k.offset
        )));
    }
    match (&keys.scales, k.dtype) {
        (None, DType::U8) => return Err(op.invalid("an 8-bit cache needs scales")),
        (Some(scales), DType::U8) => {
            check_scales(op, scales, k, k.strides)?;
            if !size.is_multiple_of(SCALED) {
                return Err(op.mismatch(scales, k));
            }
        }
        (Some(_), dtype) => {
            return Err(op.invalid(format!("a cache of {dtype} has no scales")));
        }
        (None, DType::F16 | DType::BF16 | DType::F32) => {}
        (None, dtype) => return Err(op.unsupported(dtype)),
    }
    let rows = dense(op, &keys.cu_rows, DType::U32)?;
    let sums = dense(op, &keys.cu_keys, DType::U32)?;
    let table = dense(op, &keys.blocks, DType::U32)?;
    let sequences = rows
        .dims
        .first()
        .map_or(0, |starts| starts.saturating_sub(1));
    let fits = rows.dims.len() == 1
        && sums.dims == rows.dims
        && sequences > 0
        && matches!(*table.dims, [n, _] if n == sequences);
    if !fits {
        return Err(op.mismatch(&keys.cu_rows, &keys.blocks));
    }
    if table.dims[1].saturating_mul(block_size) < keys.most {
        return Err(op.invalid(format!(
            "a row of the block table holds {} keys, fewer than the longest sequence's {}",
            table.dims[1] * block_size,
            keys.most
        )));
    }
    Ok((tokens, heads, size))
}
