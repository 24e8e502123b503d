//! Attention by matrix instructions, of f16 and bf16.

use super::problem::{Problem, ProblemArguments};
use super::{select, Attempt};
use crate::kernels::kernels;
use crate::{
    DType, Device, DeviceProperties, Family, Generation, LaunchConfig, Matrix, Only, Result,
};

kernels! {
    /// Attention of f16.
    attend_f16 = "attention_matrix_f16_{width}" [width: u32 = WIDTHS] in Family::AttentionMatrixF16, only Only::Matrix
        => (problem: ProblemArguments, tiles: u32, heads_first: u32);

    /// Attention of bf16.
    attend_bf16 = "attention_matrix_bf16_{width}" [width: u32 = WIDTHS] in Family::AttentionMatrixBf16, only Only::Matrix
        => (problem: ProblemArguments, tiles: u32, heads_first: u32);
}

/// Head sizes that have a kernel, which takes smaller ones padded with zeros.
const WIDTHS: [u32; 4] = [64, 96, 128, 256];
/// Waves of a block.
const WAVES: u32 = 4;
/// Rows that one instruction multiplies.
const TILE: u32 = 16;
/// Of a row in LDS, `Waiting` of `attention/matrix_attend.h`.
const WAITING_BYTES: u32 = 48;
const ELEMENT_BYTES: u32 = 2;

/// Dynamic LDS of a block of `rows` rows: what `ATTENTION_LDS` of `attention/matrix_attend.h` divides up; elsewhere LDS
/// is static.
fn shared_bytes(properties: &DeviceProperties, width: u32, rows: u32) -> u32 {
    if properties.arch.generation() != Generation::Nvptx {
        return 0;
    }
    // Two places for tiles of keys and values, whose rows end in padding, and the rows' queries, unless they stay in
    // registers.
    let keys = if width <= 128 { 32 } else { 16 };
    let tiles = 2 * keys * ((width + 16) + (width + 8));
    let queries = if width <= 64 { 8 } else { rows * width };
    rows * WAITING_BYTES + (tiles + queries) * ELEMENT_BYTES
}

/// Packed rows of a block; as `Plan::ROWS` of `attention/matrix_attend.h`.
fn block_rows(properties: &DeviceProperties, width: u32) -> u32 {
    let is_double = matches!(
        properties.arch.generation().matrix(),
        Some(Matrix::Mfma | Matrix::MmaSync)
    ) && width <= 128;
    WAVES * if is_double { 2 * TILE } else { TILE }
}

/// Enqueues the computation.
pub(super) fn run(device: &Device, problem: &Problem) -> Result<Attempt> {
    let shape = &problem.shape;
    let properties = device.properties();
    let width = WIDTHS
        .into_iter()
        .find(|w| *w >= shape.width.max(shape.v_width));
    let (bf16, width) = match (refusal(problem), width, problem.dtype) {
        _ if device.matrix()?.is_none() => {
            return Ok(Attempt::Refused(format!(
                "{} has no matrix instructions, or they are switched off",
                properties.arch
            )))
        }
        (Some(reason), _, _) => return Ok(Attempt::Refused(reason)),
        (None, Some(width), DType::F16) => (false, width),
        (None, Some(width), DType::BF16) => (true, width),
        (None, None, _) => {
            return Ok(Attempt::Refused(format!(
                "head sizes end at {}, before {}",
                WIDTHS[WIDTHS.len() - 1],
                shape.width.max(shape.v_width)
            )))
        }
        (None, _, dtype) => return Ok(Attempt::Refused(format!("it has no {dtype}"))),
    };
    let rows = block_rows(properties, width);
    let tiles = (u64::from(shape.rows) * u64::from(shape.group)).div_ceil(u64::from(rows));
    let pairs = shape.batch * shape.kv_heads;
    let blocks = tiles * u64::from(pairs);
    let Ok(grid) = i32::try_from(blocks) else {
        return Ok(Attempt::Refused(format!("{blocks} blocks are too many")));
    };
    // Neighbouring blocks share keys in the cache, unless each die can have heads of its own; under a causal window the
    // long tiles of all heads go first.
    let heads_first = shape.right != u32::MAX || select::heads_first(device, problem);
    let config = LaunchConfig {
        grid: grid as u32,
        block: WAVES * properties.wave_size,
        shared_bytes: shared_bytes(properties, width, rows),
    };
    let (arguments, tiles) = (problem.arguments(), tiles as u32);
    // SAFETY: the problem was checked, and the kernels take it.
    unsafe {
        match bf16 {
            false => attend_f16::of(width)?.launch(
                device,
                config,
                arguments,
                tiles,
                heads_first.into(),
            )?,
            true => attend_bf16::of(width)?.launch(
                device,
                config,
                arguments,
                tiles,
                heads_first.into(),
            )?,
        }
    }
    Ok(Attempt::Done)
}

/// Why the kernels cannot take the problem, whatever the arch.
fn refusal(problem: &Problem) -> Option<String> {
    if problem.kv_dtype != problem.dtype {
        return Some(format!(
            "keys of dtype {} do not suit queries of {}",
            problem.kv_dtype, problem.dtype
        ));
    }
    if problem.shape.ranges != 0 {
        return Some("it has no prefix ranges".into());
    }
    if let Some(mask) = &problem.mask {
        let dtype = mask.view().dtype;
        if dtype != DType::F32 && dtype != problem.dtype {
            return Some(format!(
                "a mask must be of f32 or of the queries' dtype, not {dtype}"
            ));
        }
    }
    problem.refusal()
}
