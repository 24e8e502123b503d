//! Attention of a few rows: the keys are split among blocks, and their parts joined.

use super::problem::{Problem, ProblemArguments};
use super::{Attempt, OP};
use crate::kernels::{kernels, Ptr};
use crate::ops::quantized::QuantizedActivations;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result};
use candle_rocm_kernels::shared::attention::{
    COMBINE_THREADS, LEAST_LANES, MAX_PARTS, PART_EXTRA, SPLIT_THREADS as THREADS,
};

/// What keys and values may be.
const FORMATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::U8];

kernels! {
    /// Blocks with so many rows and parts of the keys, 8 elements of a key a lane.
    split_keys = "attention_split_{format}_8_{rows}" [format: DType = FORMATS, rows: u32 = [1, 4, 8]]
        in Family::AttentionDecode, part format => (problem: ProblemArguments, partial: Ptr, splits: u32, tiles: u32,
            lanes: u32);

    /// The same with 16 elements: for heads that are too wide for a wave of 32.
    split_wide_keys = "attention_split_{format}_16_4" [format: DType = FORMATS]
        in Family::AttentionDecode, part format, only crate::Only::Wave32
        => (problem: ProblemArguments, partial: Ptr, splits: u32, tiles: u32, lanes: u32);

    /// As `split_keys` for packed caches.
    split_packed_keys = "attention_split_packed_8_{rows}" [rows: u32 = [1, 4, 8]]
        in Family::AttentionDecode, part "packed" => (problem: ProblemArguments, partial: Ptr, splits: u32, tiles: u32,
            lanes: u32);

    /// As `split_wide_keys` for packed caches.
    split_packed_wide_keys = "attention_split_packed_16_4" in Family::AttentionDecode, part "packed",
        only crate::Only::Wave32
        => (problem: ProblemArguments, partial: Ptr, splits: u32, tiles: u32, lanes: u32);

    /// Joins the parts of a row, in 8 bits as well unless `quants` is null.
    combine_parts = "attention_combine" in Family::AttentionDecode
        => (problem: ProblemArguments, partial: Ptr, splits: u32, quants: Ptr, scales: Ptr, stride: u32);
}

/// Blocks for each compute unit: as many as have registers at the same time, so that none waits for another's end.
const BLOCKS_PER_UNIT: u64 = 2;
/// Keys that a group of lanes has under way at once.
const AHEAD: u32 = 4;

/// Enqueues the computation; with `quantized`, where parts are joined and whole blocks of 8 bits make a head, f32
/// results come in 8 bits as well.
pub(super) fn run(device: &Device, problem: &Problem, quantized: bool) -> Result<Attempt> {
    if let Some(reason) = problem.refusal() {
        return Ok(Attempt::Refused(reason));
    }
    let shape = &problem.shape;
    let properties = device.properties();
    let width = shape.width.max(shape.v_width);
    let elements = if width > 8 * properties.wave_size {
        16
    } else {
        8
    };
    let packed = shape.rows.saturating_mul(shape.group);
    let rows = match (elements, packed) {
        (16, _) | (_, 2..=4) => 4,
        (_, 0..=1) => 1,
        _ => 8,
    };
    let lanes = width
        .div_ceil(elements)
        .next_power_of_two()
        .max(LEAST_LANES);
    let tiles = packed.div_ceil(rows);
    let base = u64::from(shape.batch) * u64::from(shape.kv_heads) * u64::from(tiles);
    let wanted = (properties.units() as u64 * BLOCKS_PER_UNIT).div_ceil(base);
    // A part is at least what a block has under way at once; joining costs as much as one more of these.
    let turn = THREADS / lanes * AHEAD;
    let parts = match shape.keys {
        keys if keys <= 2 * turn => 1,
        keys => wanted
            .min(u64::from(keys.div_ceil(turn)))
            .min(MAX_PARTS.into()),
    };
    let lines = u64::from(shape.batch) * u64::from(shape.heads) * u64::from(shape.rows);
    let (Ok(grid), Ok(_)) = (i32::try_from(base * parts), i32::try_from(lines)) else {
        return Ok(Attempt::Refused(format!("{lines} rows are too many")));
    };
    let quantized = match quantized
        && parts > 1
        && problem.dtype == DType::F32
        && (shape.v_width as usize).is_multiple_of(QuantizedActivations::BLOCK)
    {
        true => {
            let len = shape.heads as usize * shape.v_width as usize;
            let vectors = problem.rows_of_all();
            Some(QuantizedActivations::alloc(OP.0, device, vectors, len)?)
        }
        false => None,
    };
    let partial = match parts {
        1 => None,
        _ => Some(partials(device, problem, lines * parts)?),
    };
    let config = LaunchConfig {
        grid: grid as u32,
        block: THREADS,
        shared_bytes: 0,
    };
    let (arguments, splits) = (problem.arguments(), parts as u32);
    let to = partial.as_ref().map_or(Ptr::NULL, Ptr::to);
    // SAFETY: the problem was checked, the kernels take it, and there is room for all parts if there are several.
    unsafe {
        match (elements, &problem.packed) {
            (16, Some(_)) => split_packed_wide_keys::of()?
                .launch(device, config, arguments, to, splits, tiles, lanes)?,
            (_, Some(_)) => split_packed_keys::of(rows)?
                .launch(device, config, arguments, to, splits, tiles, lanes)?,
            (16, None) => split_wide_keys::of(problem.kv_dtype)?
                .launch(device, config, arguments, to, splits, tiles, lanes)?,
            (_, None) => split_keys::of(problem.kv_dtype, rows)?
                .launch(device, config, arguments, to, splits, tiles, lanes)?,
        }
    }
    if let Some(partial) = &partial {
        combine(device, problem, partial, parts as u32, quantized.as_ref())?;
    }
    Ok(quantized.map_or(Attempt::Done, Attempt::Quantized))
}

/// Memory for `count` parts of rows.
fn partials(device: &Device, problem: &Problem, count: u64) -> Result<Buffer> {
    let part = (problem.shape.v_width as usize + PART_EXTRA as usize) * size_of::<f32>();
    device.alloc((count as usize).saturating_mul(part))
}

/// Joins the parts of all rows into the result.
fn combine(
    device: &Device,
    problem: &Problem,
    partial: &Buffer,
    parts: u32,
    quantized: Option<&QuantizedActivations>,
) -> Result<()> {
    let shape = &problem.shape;
    let config = LaunchConfig {
        grid: shape.batch * shape.heads * shape.rows,
        block: COMBINE_THREADS,
        shared_bytes: 0,
    };
    let (quants, scales, stride) = match quantized {
        Some(q) => (
            Ptr::to(q.buffer()),
            Ptr::at(q.buffer(), q.quants()),
            q.stride() as u32,
        ),
        None => (Ptr::NULL, Ptr::NULL, 0),
    };
    // SAFETY: all parts were computed, and there is room for the result, in 8 bits, too, if that is wanted.
    unsafe {
        combine_parts::of()?.launch(
            device,
            config,
            problem.arguments(),
            Ptr::to(partial),
            parts,
            quants,
            scales,
            stride,
        )
    }
}
