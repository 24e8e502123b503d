//! Scaled dot product attention: `softmax(cap tanh(q kᵀ scale / cap) + bias) v`, row by row, without the matrix of
//! scores in memory.
//!
//! One entry, [`attention()`], tries the [`Tier`]s that a table lists for a problem, fastest first; each either
//! computes or says why it cannot. All have the same semantics:
//!
//! * Row `i` of a sequence of `rows` queries and `keys` keys stands at position `p = i + keys - rows`: the last row
//!   sees the last key.
//! * Key `j` is visible if `p - left <= j <= p + right` ([`Window`]) and it is not in a chunk before that of `p`, if
//!   both stand in one of the `prefix` ranges, and unless the additive mask is minus infinity there.
//! * A head's sink is one more score in the softmax, without a value.
//! * A row without visible keys gives zeros. Otherwise NaN and infinities of scores and values behave as in the written
//!   formula, in which a hidden key has weight 0: a NaN or infinity among the values of a sequence may reach rows that
//!   do not see it. Keys and values behind a sequence's end are never used.
//! * Head `h` of the queries reads head `h / (heads / kv_heads)` of keys and values.
//!
//! Scores, softmax and sums are f32 (f64 for f64), and the result is rounded once.

mod backward;
mod ck;
mod layout;
mod matrix;
mod naive;
mod problem;
mod select;
mod sizes;
mod split;
mod tiled;

pub mod kv_cache;
pub mod latent;
pub mod packed;

use super::cast::cast;
use super::check::Op;
use super::quantized::QuantizedActivations;
use crate::verify::or_reason;
use crate::{contiguous_strides, Buffer, DeclaredKernel, Device, Result, View};
pub use backward::{attention_backward, Dropout, Gradients};
use packed::PackedCache;
use problem::Problem;
pub use select::Tier;

const OP: Op = Op("attention");

/// Every kernel that is declared here.
pub(in crate::ops) fn declared() -> Vec<DeclaredKernel> {
    [
        backward::declared(),
        kv_cache::declared(),
        latent::declared(),
        matrix::declared(),
        naive::declared(),
        packed::declared(),
        split::declared(),
        tiled::declared(),
    ]
    .concat()
}

/// Memory that the naive tier takes for scores, unless told otherwise, in bytes.
pub const SCORE_BYTES: usize = 256 << 20;

/// An attention problem. [`Attention::new`] gives the plain one; set what differs.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries, `[batch, rows, heads, head_size]`, or `[rows of all sequences, heads, head_size]` with other than
    /// [`Lengths::Fixed`].
    pub q: View<'a>,
    /// Keys, `[batch, keys, kv_heads, head_size]`, `[keys of all sequences, kv_heads, head_size]` or
    /// `[blocks, block_size, kv_heads, head_size]`, as [`Lengths`] says.
    pub k: View<'a>,
    /// Values, as `k`; their last dimension may have another size.
    pub v: View<'a>,
    /// f16 factors of 8-bit keys and values (dtype u8, read as two's complement), one for 32 elements: views as `k` and
    /// `v` with a last dimension a 32nd of theirs.
    pub scales: Option<(View<'a>, View<'a>)>,
    /// The cache, if it is a packed one: `k` and `v` are its views then, and lengths [`Lengths::Paged`].
    pub packed: Option<PackedCache<'a>>,
    /// How rows and keys belong together.
    pub lengths: Lengths<'a>,
    /// Factor of the scores.
    pub scale: f32,
    /// Which keys a row sees.
    pub window: Window,
    /// Positions of a chunk: a row sees no key before its own chunk.
    pub chunk: Option<usize>,
    /// f32, `[heads]`: a score of each head that counts in the sum of the softmax, and has no value.
    pub sinks: Option<View<'a>>,
    /// Bound of the scores: `cap tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// f32, `[heads]`: `-slope |p - j|` is added to the scores.
    pub alibi: Option<View<'a>>,
    /// Added to the scores, `[batch, heads, rows, keys]` of a floating-point dtype (broadcast with strides of 0); with
    /// [`Lengths::Fixed`] only.
    pub mask: Option<View<'a>>,
    /// i32, `[batch, ranges, 2]`: positions from the first to before the second see each other whatever the window
    /// says.
    pub prefix: Option<View<'a>>,
    /// Weights that are dropped, in training.
    pub dropout: Option<Dropout>,
    /// Order of the result's dimensions.
    pub order: Order,
    /// Whether the logarithm of each row's sum of exponentials is wanted.
    pub log_sum_exp: bool,
    /// Whether queries of f32, and the result with them, may be rounded to keys of 16 bits: matrix instructions take
    /// one dtype.
    pub may_round: bool,
    /// Whether the result is wanted in 8 bits as well, to be multiplied with quantized matrices: a vector has all heads
    /// of a row.
    pub quantized: bool,
}

impl<'a> Attention<'a> {
    /// Attention of every row to every key.
    pub fn new(q: View<'a>, k: View<'a>, v: View<'a>, scale: f32) -> Self {
        Attention {
            q,
            k,
            v,
            scales: None,
            packed: None,
            lengths: Lengths::Fixed,
            scale,
            window: Window::default(),
            chunk: None,
            sinks: None,
            softcap: None,
            alibi: None,
            mask: None,
            prefix: None,
            dropout: None,
            order: Order::RowsHeads,
            log_sum_exp: false,
            may_round: false,
            quantized: false,
        }
    }
}

/// The keys that a row at position `p` sees: from `p - left` to `p + right`; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Keys before the row's position.
    pub left: Option<usize>,
    /// Keys behind it.
    pub right: Option<usize>,
}

impl Window {
    /// No row sees what is behind it.
    pub const CAUSAL: Window = Window {
        left: None,
        right: Some(0),
    };
}

/// How rows and keys belong together.
#[derive(Clone, Copy, Debug)]
pub enum Lengths<'a> {
    /// Sequences of the same length.
    Fixed,
    /// Sequences behind each other. `cu_rows` and `cu_keys` (u32 or i32, `[batch + 1]`, on the device) say where each
    /// starts and the last ends.
    Packed {
        /// Starts of the sequences' rows.
        cu_rows: View<'a>,
        /// Starts of the sequences' keys.
        cu_keys: View<'a>,
        /// Rows of the longest sequence at most.
        max_rows: usize,
        /// Keys of the longest sequence at most.
        max_keys: usize,
    },
    /// As `Packed`, with keys in blocks of a cache: key `j` of sequence `b` is entry `j % block_size` of block
    /// `blocks[b, j / block_size]`.
    Paged {
        /// Starts of the sequences' rows.
        cu_rows: View<'a>,
        /// Running sums of the sequences' numbers of keys, from 0.
        cu_keys: View<'a>,
        /// Rows of the longest sequence at most.
        max_rows: usize,
        /// Keys of the longest sequence at most.
        max_keys: usize,
        /// u32 or i32, `[batch, blocks of the longest sequence]`.
        blocks: View<'a>,
    },
}

/// Order of the result's dimensions; the result is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the queries: `[batch, rows, heads, size]` or `[rows of all, heads, size]`.
    RowsHeads,
    /// `[batch, heads, rows, size]` or `[heads, rows of all, size]`.
    HeadsRows,
}

/// What attention computes.
#[derive(Debug)]
pub struct Attended {
    /// The weighted values, of the queries' dtype.
    pub out: Buffer,
    /// f32, `[batch, heads, rows]` or `[heads, rows of all]`, if asked for; minus infinity for rows without visible
    /// keys.
    pub log_sum_exp: Option<Buffer>,
    /// The result in 8 bits, if asked for.
    pub quantized: Option<QuantizedActivations>,
}

/// What a tier makes of a problem.
enum Attempt {
    /// It is enqueued.
    Done,
    /// So is the result in 8 bits.
    Quantized(QuantizedActivations),
    /// The tier cannot compute it, because…
    Refused(String),
}

/// Attention on the tier that suits best, or on the one that the device's [`Config`](crate::config::Config) names.
///
/// The naive tier waits for the device if lengths are not [`Lengths::Fixed`]; the others only enqueue.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView);
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options that do not go together and for a tier named
/// there that cannot take the problem; [`Error::TooLarge`](crate::Error::TooLarge) beyond 32 bits of rows, keys or
/// strides.
pub fn attention(device: &Device, attention: &Attention) -> Result<Attended> {
    run(device, attention, device.config().attention, SCORE_BYTES)
}

/// [`attention()`] on a given tier, with a limit for the memory that the naive tier takes for scores (at least one
/// row's of one head group).
///
/// # Errors
/// Those of [`attention()`].
#[doc(hidden)] // For tests.
pub fn attention_on(
    device: &Device,
    attention: &Attention,
    tier: Tier,
    score_bytes: usize,
) -> Result<Attended> {
    run(device, attention, Some(tier), score_bytes)
}

fn run(
    device: &Device,
    attention: &Attention,
    forced: Option<Tier>,
    score_bytes: usize,
) -> Result<Attended> {
    let dropout = backward::effective(attention.dropout)?;
    let problem = Problem::new(device, attention)?;
    if let Some(cache) = attention.packed.filter(PackedCache::turns) {
        let by_lanes = select::is_short(&problem) && forced.is_none_or(|tier| tier == Tier::Tiled);
        let split = match by_lanes && !problem.is_empty() {
            true => or_reason(split::run(device, &problem, attention.quantized))?.ok(),
            false => None,
        };
        return match split {
            Some(Attempt::Done) => quantize(device, attention, problem.into_result()),
            Some(Attempt::Quantized(quantized)) => Ok(Attended {
                quantized: Some(quantized),
                ..problem.into_result()
            }),
            _ => run_turned(device, attention, cache, forced, score_bytes),
        };
    }
    if problem.is_empty() {
        return quantize(device, attention, problem.into_result());
    }
    if let Some(dropout) = dropout {
        return match backward::run(device, &problem, dropout)? {
            Attempt::Refused(reason) => Err(OP.invalid(format!("no dropout: {reason}"))),
            _ => quantize(device, attention, problem.into_result()),
        };
    }
    if attention.may_round && forced.is_none() && select::gains_by_rounding(device, &problem)? {
        return run_rounded(device, attention, score_bytes);
    }
    let tiers = match &forced {
        Some(tier) => std::slice::from_ref(tier),
        None => select::order(&problem),
    };
    let mut reasons = Vec::new();
    for tier in tiers {
        let attempt = or_refused(match tier {
            Tier::Ck => ck::run(device, &problem),
            Tier::Matrix => matrix::run(device, &problem),
            Tier::Tiled if select::is_short(&problem) => {
                match or_reason(split::run(device, &problem, attention.quantized))? {
                    Ok(attempt) => Ok(attempt),
                    // Tiles take few rows as well, only more slowly.
                    Err(_) => tiled::run(device, &problem),
                }
            }
            Tier::Tiled => tiled::run(device, &problem),
            Tier::Naive => naive::run(device, attention, &problem, score_bytes),
        })?;
        match attempt {
            Attempt::Done => return quantize(device, attention, problem.into_result()),
            Attempt::Quantized(quantized) => {
                return Ok(Attended {
                    quantized: Some(quantized),
                    ..problem.into_result()
                })
            }
            Attempt::Refused(reason) => reasons.push(format!("{tier} tier: {reason}")),
        }
    }
    Err(OP.invalid(reasons.join("; ")))
}

/// A tier whose kernel is switched off refuses.
fn or_refused(attempt: Result<Attempt>) -> Result<Attempt> {
    Ok(or_reason(attempt)?.unwrap_or_else(Attempt::Refused))
}

/// With queries of the keys' dtype; the result is of the queries' own.
fn run_rounded(device: &Device, attention: &Attention, score_bytes: usize) -> Result<Attended> {
    let (q, dtype) = (&attention.q, attention.k.dtype);
    let rounded = cast(device, q, dtype)?;
    let strides = contiguous_strides(q.dims);
    let problem = Attention {
        q: View::contiguous(&rounded, dtype, q.dims, &strides),
        may_round: false,
        quantized: false,
        ..*attention
    };
    let attended = run(device, &problem, None, score_bytes)?;
    let elements = [attended.out.len() / dtype.size_in_bytes()];
    let out = View::contiguous(&attended.out, dtype, &elements, &[1]);
    let attended = Attended {
        out: cast(device, &out, q.dtype)?,
        ..attended
    };
    quantize(device, attention, attended)
}

/// With queries that turn before, and results that turn behind.
fn run_turned(
    device: &Device,
    attention: &Attention,
    cache: PackedCache,
    forced: Option<Tier>,
    score_bytes: usize,
) -> Result<Attended> {
    let q = &attention.q;
    let turned = cache.turn_queries(device, q)?;
    let strides = contiguous_strides(q.dims);
    let problem = Attention {
        q: View::contiguous(&turned, q.dtype, q.dims, &strides),
        packed: Some(cache.turned()),
        quantized: false,
        ..*attention
    };
    let attended = run(device, &problem, forced, score_bytes)?;
    cache.turn_results(device, &attended.out, q.dtype)?;
    quantize(device, attention, attended)
}

/// The result in 8 bits as well, if that is wanted.
fn quantize(device: &Device, attention: &Attention, attended: Attended) -> Result<Attended> {
    if !attention.quantized {
        return Ok(attended);
    }
    let len = vector_len(attention);
    let dtype = attention.q.dtype;
    let dims = [
        attended.out.len() / (len * dtype.size_in_bytes()).max(1),
        len,
    ];
    let strides = contiguous_strides(&dims);
    let out = View::contiguous(&attended.out, dtype, &dims, &strides);
    let quantized = QuantizedActivations::quantize(device, &out)?;
    Ok(Attended {
        quantized: Some(quantized),
        ..attended
    })
}

/// Elements of all heads of a row of the result.
fn vector_len(attention: &Attention) -> usize {
    let heads = attention.q.dims.iter().rev().nth(1);
    let size = attention.v.dims.last();
    heads.zip(size).map_or(0, |(heads, size)| heads * size)
}
