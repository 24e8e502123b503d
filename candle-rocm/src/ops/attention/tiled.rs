//! Attention by tiles of keys and values in LDS, on any GPU.

use super::problem::Problem;
use super::{select, Attempt};
use crate::{Device, Family, LaunchConfig, Result};

/// Packed rows of a block, `TILE` of `attention/tiled.hip`.
const TILE: u64 = 64;
/// Columns that a chunk holds; kernels differ in the number of chunks.
const CHUNK: u32 = 64;
const THREADS: u32 = 256;

/// Enqueues the computation.
pub(super) fn run(device: &Device, problem: &Problem) -> Result<Attempt> {
    if let Some(reason) = problem.refusal() {
        return Ok(Attempt::Refused(reason));
    }
    let shape = &problem.shape;
    let tiles = (u64::from(shape.rows) * u64::from(shape.group)).div_ceil(TILE);
    let blocks = tiles * u64::from(shape.batch) * u64::from(shape.kv_heads);
    let Ok(grid) = i32::try_from(blocks) else {
        return Ok(Attempt::Refused(format!("{blocks} blocks are too many")));
    };
    let chunks = shape.v_width.div_ceil(CHUNK).next_power_of_two();
    let args = (problem.args())
        .u32(tiles as u32)
        .u32(select::heads_first(device, problem).into());
    let config = LaunchConfig {
        grid: grid as u32,
        block: THREADS,
        shared_bytes: 0,
    };
    device
        .kernel(Family::AttentionTiled, &format!("attention_tiled_{chunks}"))?
        .launch(config, &args)?;
    Ok(Attempt::Done)
}
