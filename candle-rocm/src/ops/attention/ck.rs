//! Attention by Composable Kernel's instances, where the build has made them (feature `ck`).

use super::problem::{Problem, UNLIMITED};
use super::Attempt;
use crate::{Args, DType, Device, Result};
use candle_rocm_kernels::shared::ck::Sizes;
use candle_rocm_kernels::{embedded_ck, embedded_ck_archs, CkInstance};

/// Waves of a block.
const WAVES: u32 = 4;

/// Enqueues the computation.
pub(super) fn run(device: &Device, problem: &Problem) -> Result<Attempt> {
    let refused = |reason: &str| Ok(Attempt::Refused(reason.to_string()));
    let arch = &device.properties().full_arch;
    let instance = match instance(problem) {
        Ok(instance) => instance,
        Err(reason) => return refused(reason),
    };
    if embedded_ck(instance, arch).is_none() {
        let built = match embedded_ck_archs()[..] {
            [] => "this program was built without the feature `ck`".to_string(),
            ref archs => format!(
                "this program has it for {}, not for {arch}",
                archs.join(", ")
            ),
        };
        return Ok(Attempt::Refused(built));
    }
    let Some(sizes) = sizes(problem) else {
        return refused("its strides and lengths in bytes are limited to 31 bits");
    };
    let kernel = match device.ck_kernel(instance) {
        Ok(kernel) => kernel,
        Err(error) => return Ok(Attempt::Refused(error.to_string())),
    };
    let shape = &problem.shape;
    let tiles = shape.rows.div_ceil(CkInstance::rows_per_block(arch));
    // Sizes of a grid beyond the first have 16 bits.
    if tiles.max(shape.batch) > u16::MAX.into() {
        return refused("there are more than 65535 tiles or sequences");
    }
    let grid = [shape.heads, tiles, shape.batch];
    let block = [WAVES * device.properties().wave_size, 1, 1];
    let args = problem
        .push_starts(problem.push_tensors(Args::new()))
        .value(&sizes);
    // SAFETY: the arguments are those of `ck/fmha.hip`, the problem was checked, and its sizes are the instance's.
    unsafe { kernel.launch_dims(grid, block, 0, &args)? };
    Ok(Attempt::Done)
}

/// The instance that computes the problem, or what no instance has.
fn instance(problem: &Problem) -> std::result::Result<CkInstance, &'static str> {
    let shape = &problem.shape;
    let bf16 = match (problem.dtype, problem.kv_dtype) {
        (DType::F16, DType::F16) => false,
        (DType::BF16, DType::BF16) => true,
        _ => return Err("it is for f16 and bf16"),
    };
    if shape.width != shape.v_width || !CkInstance::HEADS.contains(&shape.width) {
        return Err("its head sizes are 64 and 128");
    }
    let causal = match (shape.left, shape.right, shape.chunk) {
        (UNLIMITED, UNLIMITED, 0) => false,
        (UNLIMITED, 0, 0) => true,
        _ => return Err("it has no windows and chunks"),
    };
    if shape.keys == 0 {
        return Err("it needs keys");
    }
    if problem.has_extras() {
        return Err("it has no softcap, ALiBi, sinks, mask, prefix, block table and log-sum-exp");
    }
    Ok(CkInstance {
        head: shape.width,
        bf16,
        causal,
        varlen: problem.is_packed(),
    })
}

/// The kernel's sizes; none if one is too large for it. Addresses within a sequence have 31 bits of bytes.
fn sizes(problem: &Problem) -> Option<Sizes> {
    let s = &problem.shape;
    let int = |value: u64| i32::try_from(value).ok();
    let within = |rows: u32, stride: u32| {
        let bytes = u64::from(rows)
            .checked_mul(u64::from(stride))?
            .checked_mul(2)?;
        int(bytes).map(|_| ())
    };
    within(s.rows, s.q_row)?;
    within(s.rows, s.o_row)?;
    within(s.keys, s.k_row)?;
    within(s.keys, s.v_row)?;
    let narrow = |value: u32| int(value.into());
    Some(Sizes {
        rows: narrow(s.rows)?,
        keys: narrow(s.keys)?,
        heads: narrow(s.heads)?,
        heads_per_kv_head: narrow(s.group)?,
        scale: s.scale,
        q_row: narrow(s.q_row)?,
        k_row: narrow(s.k_row)?,
        v_row: narrow(s.v_row)?,
        out_row: narrow(s.o_row)?,
        q_head: narrow(s.q_head)?,
        k_head: narrow(s.k_head)?,
        v_head: narrow(s.v_head)?,
        out_head: narrow(s.o_head)?,
        q_sequence: int(s.q_batch)?,
        k_sequence: int(s.k_batch)?,
        v_sequence: int(s.v_batch)?,
        out_sequence: int(s.o_batch)?,
    })
}
