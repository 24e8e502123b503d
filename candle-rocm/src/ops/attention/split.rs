//! Attention of a few rows: the keys are split among blocks, and their parts joined.

use super::problem::Problem;
use super::{Attempt, OP};
use crate::ops::quantized::QuantizedActivations;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result};

/// Threads of a block.
const THREADS: u32 = 256;
/// Threads of a block that joins parts.
const COMBINE_THREADS: u32 = 512;
/// Blocks for each compute unit: as many as have registers at the same time, so that none waits for another's end.
const BLOCKS_PER_UNIT: u64 = 2;
/// Keys that a group of lanes has under way at once.
const AHEAD: u32 = 4;
/// Parts at most, which one block joins.
const MAX_PARTS: u64 = 64;
/// Lanes that read one key together, at least: blocks have LDS for so many groups.
const MIN_LANES: u32 = 8;
/// f32 values that a part has besides its sums, as `partial_at` of `attention/decode.hip`.
const EXTRA: usize = 4;

/// Enqueues the computation; with `quantized`, where parts are joined and whole blocks of 8 bits make a head, f32 results come in 8 bits as well.
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
    let lanes = width.div_ceil(elements).next_power_of_two().max(MIN_LANES);
    let tiles = packed.div_ceil(rows);
    let base = u64::from(shape.batch) * u64::from(shape.kv_heads) * u64::from(tiles);
    let wanted = (u64::from(properties.compute_units) * BLOCKS_PER_UNIT).div_ceil(base);
    // A part is at least what a block has under way at once; joining costs as much as one more of these.
    let turn = THREADS / lanes * AHEAD;
    let parts = match shape.keys {
        keys if keys <= 2 * turn => 1,
        keys => wanted.min(u64::from(keys.div_ceil(turn))).min(MAX_PARTS),
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
            Some(QuantizedActivations::alloc(OP, device, vectors, len)?)
        }
        false => None,
    };
    let partial = match parts {
        1 => None,
        _ => Some(partials(device, problem, lines * parts)?),
    };
    let args = problem.args();
    let args = match &partial {
        Some(partial) => args.ptr(partial, 0),
        None => args.u64(0),
    };
    let name = format!("attention_split_{}_{elements}_{rows}", problem.kv_dtype);
    let config = LaunchConfig {
        grid: grid as u32,
        block: THREADS,
        shared_bytes: 0,
    };
    let args = args.u32(parts as u32).u32(tiles).u32(lanes);
    device
        .kernel(Family::AttentionDecode, &name)?
        .launch(config, &args)?;
    if let Some(partial) = &partial {
        combine(device, problem, partial, parts as u32, quantized.as_ref())?;
    }
    Ok(quantized.map_or(Attempt::Done, Attempt::Quantized))
}

/// Memory for `count` parts of rows.
fn partials(device: &Device, problem: &Problem, count: u64) -> Result<Buffer> {
    let part = (problem.shape.v_width as usize + EXTRA) * size_of::<f32>();
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
    let args = problem.args().ptr(partial, 0).u32(parts);
    let args = match quantized {
        Some(q) => args
            .ptr(q.buffer(), 0)
            .ptr(q.buffer(), q.quants())
            .u32(q.stride() as u32),
        None => args.u64(0).u64(0).u32(0),
    };
    device
        .kernel(Family::AttentionDecode, "attention_combine")?
        .launch(config, &args)
}
