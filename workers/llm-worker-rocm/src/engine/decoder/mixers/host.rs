//! What recurrences have in common on the CPU.

use crate::engine::decoder::memory::{StateBatch, NO_STATE};
use candle_core::{bail, CpuStorage, InplaceOp1, Layout, Result, Tensor};
use std::cell::Cell;
use std::ops::Range;

/// Rows that are worth handing to another thread where each takes little.
pub(super) const ROWS_OF_A_TASK: usize = 8;

/// A sequence of a [`StateBatch`].
pub(super) struct Sequence {
    pub rows: Range<usize>,
    /// The slot that it goes on from.
    pub from: Option<usize>,
    to: Vec<u32>,
}

impl Sequence {
    /// Its rows whose states are kept, and their slots.
    pub(super) fn kept(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let rows = self.rows.clone().zip(&self.to);
        rows.filter(|(_, slot)| **slot != NO_STATE)
            .map(|(row, slot)| (row, *slot as usize))
    }
}

/// The sequences of a batch in their order.
pub(super) fn sequences(states: &StateBatch) -> Result<Vec<Sequence>> {
    let starts = states.starts.to_vec1::<u32>()?;
    let from = states.from.to_vec1::<u32>()?;
    let to = states.to.to_vec1::<u32>()?;
    let each = starts.windows(2).zip(from).map(|(ends, from)| {
        let rows = ends[0] as usize..ends[1] as usize;
        Sequence {
            to: to[rows.clone()].to_vec(),
            rows,
            from: (from != NO_STATE).then_some(from as usize),
        }
    });
    Ok(each.collect())
}

/// A tensor's numbers without gaps.
pub(super) fn floats(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_vec1()
}

/// Reads and writes the slots of a state, `(slots, ...)` in f32 without gaps, in place.
pub(super) fn with_states(
    states: &Tensor,
    act: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    states.inplace_op1(&InPlace(Cell::new(Some(act))))
}

/// Something to be done once with the memory of a tensor.
struct InPlace<F>(Cell<Option<F>>);

impl<F: FnOnce(&mut [f32]) -> Result<()>> InplaceOp1 for InPlace<F> {
    fn name(&self) -> &'static str {
        "states"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match (storage, layout.contiguous_offsets(), self.0.take()) {
            (CpuStorage::F32(all), Some((start, end)), Some(act)) => act(&mut all[start..end]),
            _ => bail!("states must be f32 without gaps"),
        }
    }
}
