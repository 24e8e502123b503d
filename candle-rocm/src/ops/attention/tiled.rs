//! Attention by tiles of keys and values in LDS, on any GPU.

use super::problem::{Problem, ProblemArguments};
use super::{select, Attempt};
use crate::kernels::kernels;
use crate::{Device, Family, LaunchConfig, Result};
use candle_rocm_kernels::shared::attention::{TILED_CHUNK, TILED_ROWS, TILED_THREADS};

kernels! {
    /// A block for each tile of rows.
    attend = "attention_tiled_{chunks}" [chunks: u32 = [1, 2, 4, 8]] in Family::AttentionTiled
        => (problem: ProblemArguments, tiles: u32, heads_first: u32);
}

/// Enqueues the computation.
pub(super) fn run(device: &Device, problem: &Problem) -> Result<Attempt> {
    if let Some(reason) = problem.refusal() {
        return Ok(Attempt::Refused(reason));
    }
    let shape = &problem.shape;
    let tiles = (u64::from(shape.rows) * u64::from(shape.group)).div_ceil(TILED_ROWS.into());
    let blocks = tiles * u64::from(shape.batch) * u64::from(shape.kv_heads);
    let Ok(grid) = i32::try_from(blocks) else {
        return Ok(Attempt::Refused(format!("{blocks} blocks are too many")));
    };
    let chunks = shape.v_width.div_ceil(TILED_CHUNK).next_power_of_two();
    let config = LaunchConfig {
        grid: grid as u32,
        block: TILED_THREADS,
        shared_bytes: 0,
    };
    let heads_first = select::heads_first(device, problem).into();
    let (kernel, arguments) = (attend::of(chunks)?, problem.arguments());
    // SAFETY: the problem was checked, and the kernels take it.
    unsafe { kernel.launch(device, config, arguments, tiles as u32, heads_first)? };
    Ok(Attempt::Done)
}
