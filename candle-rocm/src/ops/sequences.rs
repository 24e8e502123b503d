//! Sequences that lie behind each other, whose recurrent states lie in slots.

use super::check::Op;
use crate::{DType, Result, View};

/// Rows of sequences behind each other, and the slots that their recurrent states are read from and written to. All
/// views are u32, without gaps. What is no slot (`u32::MAX`, by convention) stands for a state of zeros, and for one
/// that is not kept.
///
/// No slot may be written twice, nor read by one sequence and written by another; a sequence may write the slot that it
/// read.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a> {
    /// First row of each sequence, ascending, and the number of rows: `[sequences + 1]`.
    pub starts: View<'a>,
    /// The slot of the state before each sequence's first row: `[sequences]`.
    pub from: View<'a>,
    /// The slot for the state behind each row: `[rows]`.
    pub to: View<'a>,
    /// Most rows of a sequence; rows beyond are not computed.
    pub longest: usize,
}

impl Sequences<'_> {
    /// The number of sequences, of views that fit together and to so many rows.
    pub(super) fn check(&self, op: Op, rows: usize) -> Result<u32> {
        for view in [&self.starts, &self.from, &self.to] {
            op.has_dtype(view, DType::U32)?;
            view.check(op.0)?;
            if !view.is_contiguous() || view.dims.len() != 1 {
                return Err(op.invalid("numbers of sequences must lie without gaps"));
            }
        }
        let sequences = self.from.dims[0];
        if self.starts.dims[0] != sequences + 1 {
            return Err(op.mismatch(&self.starts, &self.from));
        }
        if self.to.dims[0] != rows {
            return Err(op.invalid(format!(
                "slots for {} states of {rows} rows",
                self.to.dims[0]
            )));
        }
        op.narrow("number of sequences", sequences, u32::MAX)
    }
}

/// Slots of states that each have this shape, f32 and without gaps.
pub(super) fn slots(op: Op, states: &View, shape: &[usize]) -> Result<u32> {
    op.has_dtype(states, DType::F32)?;
    states.check(op.0)?;
    match states.dims.split_first() {
        Some((&slots, own)) if own == shape && states.is_contiguous() => {
            // The largest number is no slot.
            op.narrow("number of slots", slots, u32::MAX - 1)
        }
        _ => Err(op.invalid(format!(
            "states of shape {:?} with strides {:?}; slots of {shape:?} without gaps are needed",
            states.dims, states.strides
        ))),
    }
}

/// The distance of rows whose elements lie without gaps, `[rows, ..]`.
pub(super) fn row_stride(op: Op, view: &View) -> Result<u64> {
    view.check(op.0)?;
    let inner = View {
        dims: &view.dims[1..],
        strides: &view.strides[1..],
        ..*view
    };
    match inner.is_contiguous() {
        true => Ok(view.strides[0] as u64),
        false => Err(op.invalid(format!(
            "rows of {:?} with strides {:?} have gaps",
            view.dims, view.strides
        ))),
    }
}
