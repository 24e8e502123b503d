//! Cumulative sums along an axis.

use super::copy::contiguous;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::scan::{Scan, SCAN_BLOCK, SCAN_ITEMS};

kernels! {
    /// Sums of the parts of each line, of 4 or 8 bytes.
    sums_of_parts = "cumsum_totals_{dtype}" [dtype: DType = DType::ALL] in Family::Scan, part dtype
        => (src: Ptr, totals: Ptr, plan: Scan);

    /// Cumulative sums; `totals` is null if lines are not cut into parts.
    sums = "cumsum_{dtype}" [dtype: DType = DType::ALL] in Family::Scan, part dtype
        => (src: Ptr, totals: Ptr, dst: Ptr, plan: Scan);
}

const OP: &str = "cumsum";

/// Enough blocks to fill any GPU; a constant, so that the order of additions is the same on all of them.
const WANTED_BLOCKS: u64 = 1024;
/// Rounds that a block should have at least before lines are cut into more parts.
const MIN_ROUNDS: u64 = 4;
/// Neighbouring lines whose elements, adjacent in memory, make a wave's loads dense.
const DENSE_LINES: u64 = 32;

/// The sums of each element of any dtype with all before it along `axis`, or with all behind it if `reversed`, in the
/// shape of `x`. Integers wrap, floats add up in at least f32 and are rounded once; an inf or NaN comes only into what
/// follows it. The result does not depend on the GPU.
///
/// # Errors
/// [`Error::InvalidArgument`] for an axis that `x` lacks; [`Error::InvalidView`], [`Error::OutOfMemory`].
pub fn cumsum(device: &Device, x: &View, axis: usize, reversed: bool) -> Result<Buffer> {
    x.check(OP)?;
    let Some(&reduced) = x.dims.get(axis) else {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("there is no axis {axis} in a tensor of shape {:?}", x.dims),
        });
    };
    let dst = device.alloc(x.elem_count().saturating_mul(x.dtype.size_in_bytes()))?;
    if dst.is_empty() {
        return Ok(dst);
    }
    let copy = match x.is_contiguous() {
        true => None,
        false => Some(contiguous(device, x)?),
    };
    let src = match &copy {
        Some(copy) => Ptr::to(copy),
        None => Ptr::of(x),
    };
    let columns: usize = x.dims[axis + 1..].iter().product();
    let lines = x.elem_count() / reduced;
    let plan = plan(columns as u64, reduced as u64, lines as u64, reversed);
    let config = LaunchConfig {
        grid: plan.tiles.min(LaunchConfig::MAX_GRID.into()) as u32,
        block: SCAN_BLOCK,
        shared_bytes: 0,
    };
    let totals = match plan.parts {
        1 => None,
        parts => {
            let bytes = x.dtype.size_in_bytes().max(size_of::<f32>());
            let totals = device.alloc(lines * parts as usize * bytes)?;
            let kernel = sums_of_parts::of(x.dtype)?;
            // SAFETY: the plan is for the source, and each part of its lines has a total.
            unsafe { kernel.launch(device, config, src, Ptr::to(&totals), plan)? };
            Some(totals)
        }
    };
    let totals = totals.as_ref().map_or(Ptr::NULL, Ptr::to);
    // SAFETY: the plan is for the source, of which the destination has the size.
    unsafe { sums::of(x.dtype)?.launch(device, config, src, totals, Ptr::to(&dst), plan)? };
    Ok(dst)
}

fn plan(columns: u64, reduced: u64, lines: u64, reversed: bool) -> Scan {
    let (block, items) = (u64::from(SCAN_BLOCK), u64::from(SCAN_ITEMS));
    // As many lanes as have something to add, but of neighbouring lines enough for dense loads.
    let dense = columns.next_power_of_two().min(DENSE_LINES);
    let lanes = reduced
        .div_ceil(items)
        .next_power_of_two()
        .min(block / dense);
    let groups = lines.div_ceil(block / lanes);
    let round = lanes * items;
    let parts = (WANTED_BLOCKS / groups).clamp(1, (reduced / (round * MIN_ROUNDS)).max(1));
    let part_size = reduced.div_ceil(parts).next_multiple_of(round);
    let parts = reduced.div_ceil(part_size);
    Scan {
        columns,
        reduced,
        lines,
        part_size,
        tiles: groups * parts,
        parts: parts as u32,
        lanes_log2: lanes.ilog2(),
        reversed: reversed.into(),
    }
}
