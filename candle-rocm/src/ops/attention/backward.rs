//! Training: attention with dropout, and the gradients of attention.

use super::problem::{Problem, ProblemArguments};
use super::{select, Attempt, Attention, Lengths, Order, OP};
use crate::kernels::{kernels, Ptr};
use crate::ops::operand::Operand;
use crate::ops::rand;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::attention::{TILED_CHUNK, TILED_ROWS, TILED_THREADS};
use candle_rocm_kernels::shared::backward::GradientStrides;

kernels! {
    /// As `attention_tiled`, with dropout.
    attend = "attention_dropout_{chunks}" [chunks: u32 = [1, 2, 4, 8]] in Family::AttentionBackward
        => (problem: ProblemArguments, tiles: u32, heads_first: u32, seed: u64, threshold: u32, kept: f32);

    /// The product of each row's result and its gradient.
    dots = "attention_dots" in Family::AttentionBackward => (problem: ProblemArguments, grad: Ptr, dots: Ptr);

    /// The gradient of queries, a block for each tile of rows.
    of_rows = "attention_backward_rows_{chunks}" [chunks: u32 = [1, 2]] in Family::AttentionBackward
        => (problem: ProblemArguments, grad: Ptr, dots: Ptr, dq: Ptr, to: GradientStrides, tiles: u32, seed: u64,
            threshold: u32, kept: f32);

    /// Those of keys and values, a block for each tile of keys.
    of_keys = "attention_backward_keys_{chunks}" [chunks: u32 = [1, 2]] in Family::AttentionBackward
        => (problem: ProblemArguments, grad: Ptr, dots: Ptr, dk: Ptr, dv: Ptr, to: GradientStrides, tiles: u32,
            seed: u64, threshold: u32, kept: f32);
}

/// Dropout of attention: each weight of the softmax is zero with a probability, and the others are divided by what is
/// left of it.
///
/// Which ones, the seed alone says: the weight of row `r` of head `h` in sequence `b` for key `j` is dropped if word
/// `j % 4` of Philox 4x32-10 with the seed as key and `[j / 4, r, b * heads + h, 0]` as counter (its low word first) is
/// below [`threshold`](Self::threshold). So it is on every device, and in the backward pass as in the forward one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// That a weight is dropped: at least 0 and less than 1.
    pub probability: f32,
    /// A number of its own for each call.
    pub seed: u64,
}

impl Dropout {
    /// Words below it drop their weight: the probability in units of 2^-32.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 2f64.powi(32)).round() as u32
    }

    /// The factor of the weights that are kept.
    pub fn scale(&self) -> f32 {
        (1.0 / (1.0 - f64::from(self.probability))) as f32
    }

    /// Whether the weight of a row for a key is kept; `line` is `b * heads + h`.
    pub fn keeps(&self, line: u32, row: u32, key: u32) -> bool {
        let words = rand::words(self.seed, [key / 4, row, line, 0]);
        words[key as usize % 4] >= self.threshold()
    }

    fn check(&self) -> Result<()> {
        if (0.0..1.0).contains(&self.probability) {
            return Ok(());
        }
        Err(OP.invalid(format!(
            "the probability of dropout must be at least 0 and less than 1, not {}",
            self.probability
        )))
    }
}

/// Seed, threshold and factor as kernels take them; without dropout the threshold is 0.
fn numbers(dropout: Option<Dropout>) -> Result<(u64, u32, f32)> {
    match dropout {
        Some(dropout) => {
            dropout.check()?;
            Ok((dropout.seed, dropout.threshold(), dropout.scale()))
        }
        None => Ok((0, 0, 1.0)),
    }
}

/// The dropout that changes anything.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for what is no probability.
pub(super) fn effective(dropout: Option<Dropout>) -> Result<Option<Dropout>> {
    let (_, threshold, _) = numbers(dropout)?;
    Ok(dropout.filter(|_| threshold != 0))
}

/// Enqueues attention with dropout.
pub(super) fn run(device: &Device, problem: &Problem, dropout: Dropout) -> Result<Attempt> {
    if let Some(reason) = problem.refusal() {
        return Ok(Attempt::Refused(reason));
    }
    let shape = &problem.shape;
    let tiles = row_tiles(problem);
    let (seed, threshold, kept) = numbers(Some(dropout))?;
    let chunks = shape.v_width.div_ceil(TILED_CHUNK).next_power_of_two();
    let config = config(tiles * u64::from(shape.batch) * u64::from(shape.kv_heads))?;
    let heads_first = select::heads_first(device, problem).into();
    let (problem, tiles) = (problem.arguments(), tiles as u32);
    // SAFETY: the problem was checked, and the kernels take it.
    unsafe {
        attend::of(chunks)?.launch(
            device,
            config,
            problem,
            tiles,
            heads_first,
            seed,
            threshold,
            kept,
        )?
    };
    Ok(Attempt::Done)
}

/// Tiles of a sequence's packed rows.
fn row_tiles(problem: &Problem) -> u64 {
    let shape = &problem.shape;
    (u64::from(shape.rows) * u64::from(shape.group)).div_ceil(TILED_ROWS.into())
}

fn config(blocks: u64) -> Result<LaunchConfig> {
    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
    Ok(LaunchConfig {
        grid: OP.narrow("number of blocks", blocks, i32::MAX as u32)?,
        block: TILED_THREADS,
        shared_bytes: 0,
    })
}

/// Gradients of attention, each contiguous and of its tensor's dtype. Their dimensions are those of queries, keys and
/// values with [`Order::RowsHeads`], and have the heads before the rows and keys with [`Order::HeadsRows`].
#[derive(Debug)]
pub struct Gradients {
    /// Of the queries.
    pub q: Buffer,
    /// Of the keys.
    pub k: Buffer,
    /// Of the values.
    pub v: Buffer,
}

/// The gradients of [`attention()`](super::attention()) with respect to queries, keys and values. `out` is its result and
/// `log_sum_exp` what it gave besides, for the same problem; `grad` is the gradient of the result, with its dtype and
/// dimensions, the heads before the rows with [`Order::HeadsRows`].
///
/// Results are the same each time. Sums are f32; the memory that it takes grows with rows, not with scores.
///
/// # Errors
/// Those of [`attention()`](super::attention()); [`Error::InvalidArgument`](crate::Error::InvalidArgument) for f64, head
/// sizes that are no multiple of 8 or exceed 512, caches of keys, and sinks.
pub fn attention_backward(
    device: &Device,
    attention: &Attention,
    out: &View,
    log_sum_exp: &Buffer,
    grad: &View,
) -> Result<Gradients> {
    let refused = |reason: &str| Err(OP.invalid(format!("no gradient: {reason}")));
    if matches!(attention.lengths, Lengths::Paged { .. }) || attention.scales.is_some() {
        return refused("keys and values are in a cache");
    }
    if attention.sinks.is_some() {
        return refused("sinks have none");
    }
    let problem = Problem::without_result(device, attention)?;
    if let Some(reason) = problem.refusal() {
        return refused(&reason);
    }
    let shape = problem.shape;
    let rows = problem.rows_of_all() * shape.heads as usize;
    let size = rows * shape.v_width as usize;
    for view in [out, grad] {
        OP.same_dtype(view, &attention.q)?;
        if view.elem_count() != size {
            return Err(OP.mismatch(&attention.q, view));
        }
    }
    if log_sum_exp.len() != rows * DType::F32.size_in_bytes() {
        return refused("the log-sum-exp is not that of the problem");
    }
    let alloc = |of: &View| {
        let bytes = of.elem_count() * of.dtype.size_in_bytes();
        // Rows and keys outside of all sequences have no gradient.
        match problem.is_packed() {
            true => device.alloc_zeroed(bytes),
            false => device.alloc(bytes),
        }
    };
    let gradients = Gradients {
        q: alloc(&attention.q)?,
        k: alloc(&attention.k)?,
        v: alloc(&attention.v)?,
    };
    let (out, grad) = (packed(device, out)?, packed(device, grad)?);
    let sums = device.alloc(rows * DType::F32.size_in_bytes())?;
    let to = strides(attention, &problem);
    let (seed, threshold, kept) = numbers(effective(attention.dropout)?)?;
    let arguments = problem.arguments_with(out.ptr(), Ptr::to(log_sum_exp));
    let (grad, between) = (grad.ptr(), Ptr::to(&sums));
    let pairs = u64::from(shape.batch) * u64::from(shape.kv_heads);
    let slices = |width: u32, chunks: u32| u64::from(width.div_ceil(chunks * TILED_CHUNK));
    let chunks = |width: u32| if width <= TILED_CHUNK { 1 } else { 2 };
    let lines = u64::from(shape.batch) * u64::from(shape.heads) * u64::from(shape.rows);
    let waves = u64::from(TILED_THREADS / device.properties().wave_size);
    let of_lines = config(lines.div_ceil(waves).min(u64::from(LaunchConfig::MAX_GRID)))?;
    let row_tiles = row_tiles(&problem);
    let row_chunks = chunks(shape.width);
    let of_row_tiles = config(row_tiles * pairs * slices(shape.width, row_chunks))?;
    let key_tiles = u64::from(shape.keys.div_ceil(TILED_ROWS));
    let most = shape.width.max(shape.v_width);
    let key_chunks = chunks(most);
    let of_key_tiles = config(key_tiles * pairs * slices(most, key_chunks))?;
    let (dq, dk, dv) = (
        Ptr::to(&gradients.q),
        Ptr::to(&gradients.k),
        Ptr::to(&gradients.v),
    );
    let (row_tiles, key_tiles) = (row_tiles as u32, key_tiles as u32);
    // SAFETY: the problem was checked, result and gradient lie as it says, and there is room for a sum of each row and
    // for the gradients with the strides given.
    unsafe {
        dots::of()?.launch(device, of_lines, arguments, grad, between)?;
        of_rows::of(row_chunks)?.launch(
            device,
            of_row_tiles,
            arguments,
            grad,
            between,
            dq,
            to,
            row_tiles,
            seed,
            threshold,
            kept,
        )?;
        of_keys::of(key_chunks)?.launch(
            device,
            of_key_tiles,
            arguments,
            grad,
            between,
            dk,
            dv,
            to,
            key_tiles,
            seed,
            threshold,
            kept,
        )?;
    }
    Ok(gradients)
}

/// A contiguous operand whose elements can be loaded eight at a time.
fn packed<'a>(device: &Device, view: &View<'a>) -> Result<Operand<'a>> {
    match view.is_contiguous() && !view.dims.is_empty() {
        true => Operand::with_dense_rows(OP, device, view, Some(8)),
        false => Operand::contiguous(device, view),
    }
}

/// Where gradients lie.
fn strides(attention: &Attention, problem: &Problem) -> GradientStrides {
    let shape = &problem.shape;
    // Elements between batches, lines and heads.
    let of = |view: &View, lines: u32, heads: u32, width: u32| -> (u64, u32, u32) {
        let lines = match problem.is_packed() {
            true => view.dims[0] as u32,
            false => lines,
        };
        let batch = u64::from(lines) * u64::from(heads) * u64::from(width);
        match attention.order {
            Order::RowsHeads => (batch, heads * width, width),
            Order::HeadsRows => (batch, width, lines * width),
        }
    };
    let q = of(&attention.q, shape.rows, shape.heads, shape.width);
    let k = of(&attention.k, shape.keys, shape.kv_heads, shape.width);
    let v = of(&attention.v, shape.keys, shape.kv_heads, shape.v_width);
    GradientStrides {
        q_batch: q.0,
        k_batch: k.0,
        v_batch: v.0,
        q_row: q.1,
        q_head: q.2,
        k_row: k.1,
        k_head: k.2,
        v_row: v.1,
        v_head: v.2,
    }
}
