//! What blocks keep of the sequences: keys and values in paged blocks, recurrent states in slots.

use crate::engine::forward::Step;
use candle_core::{bail, DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::PagedCache;

/// One part of a block's state, of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatePart {
    pub shape: Vec<usize>,
    pub dtype: DType,
}

impl StatePart {
    pub(super) fn f32(shape: impl Into<Vec<usize>>) -> Self {
        Self {
            shape: shape.into(),
            dtype: DType::F32,
        }
    }

    /// Bytes of it in a slot.
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_in_bytes()
    }
}

/// What one block keeps.
#[derive(Default)]
pub(super) struct LayerMemory {
    /// Keys and values, where it has attention with a cache of its own.
    pub cache: Option<PagedCache>,
    /// Keys of an indexer, where it has one.
    pub index: Option<PagedCache>,
    /// Recurrent states, `(slots, ...)` for each [`StatePart`], written in place.
    pub state: Vec<Tensor>,
}

impl LayerMemory {
    /// Its keys and values.
    pub(super) fn cache(&mut self) -> Result<&mut PagedCache> {
        match &mut self.cache {
            Some(cache) => Ok(cache),
            None => bail!("the cache of keys and values is not reserved"),
        }
    }

    /// Reserves states of so many slots.
    pub(super) fn states(
        parts: &[StatePart],
        slots: usize,
        device: &Device,
    ) -> Result<Vec<Tensor>> {
        let zeros = |part: &StatePart| {
            let shape: Vec<usize> = [&[slots], &part.shape[..]].concat();
            Tensor::zeros(shape, part.dtype, device)
        };
        parts.iter().map(zeros).collect()
    }
}

/// In place of a slot: a sequence begins, or the state behind a row is not kept.
pub(super) const NO_STATE: u32 = u32::MAX;

/// Where the rows of a pass find and leave states; sequences behind each other, as in a
/// [`PagedBatch`](candle_rocm_flash_attn::paged::PagedBatch). All tensors are u32, without gaps.
#[derive(Clone)]
pub(super) struct StateBatch {
    /// First row of each sequence, and the number of rows, `(sequences + 1)`.
    pub starts: Tensor,
    /// The slot that each sequence's state is read from, or [`NO_STATE`], `(sequences)`.
    pub from: Tensor,
    /// The slot that the state behind each row is written to, or [`NO_STATE`], `(rows)`.
    pub to: Tensor,
    /// Most rows of a sequence.
    pub longest: usize,
}

impl StateBatch {
    /// Those of a step, whose slots are below `slots`.
    ///
    /// # Errors
    /// If a sequence has no slot for the state behind its last row, a slot twice or one too many.
    pub(super) fn new(step: &Step, slots: usize, device: &Device) -> Result<Self> {
        let rows = step.tokens.len();
        let words = Self::words(step, slots, step.sequences.len(), rows)?;
        let longest = step.sequences.iter().map(|s| s.rows).max().unwrap_or(0);
        let words = Tensor::new(words.as_slice(), device)?;
        Self::view(&words, step.sequences.len(), rows, longest)
    }

    /// Words that [`StateBatch::words`] gives for so many sequences and rows.
    pub(super) fn len(sequences: usize, rows: usize) -> usize {
        2 * sequences + 1 + rows
    }

    /// A step's numbers, padded by sequences of one row that have no state, and where rows run out, by some of none.
    pub(super) fn words(
        step: &Step,
        slots: usize,
        sequences: usize,
        rows: usize,
    ) -> Result<Vec<u32>> {
        let (mut starts, mut from, mut to) = (vec![0], Vec::new(), Vec::new());
        for sequence in &step.sequences {
            let Some(state) = sequence.state.as_ref().filter(|state| {
                let after = state.after.len();
                let mut all = state.from.iter().chain(&state.after);
                after > 0 && after <= sequence.rows && all.all(|slot| (*slot as usize) < slots)
            }) else {
                bail!(
                    "sequence {} of a recurrent model has no slots of {slots} for the states of {} rows: {:?}",
                    sequence.id,
                    sequence.rows,
                    sequence.state
                )
            };
            from.push(state.from.unwrap_or(NO_STATE));
            to.resize(to.len() + sequence.rows - state.after.len(), NO_STATE);
            to.extend_from_slice(&state.after);
            starts.push(to.len() as u32);
        }
        while from.len() < sequences {
            from.push(NO_STATE);
            if to.len() < rows {
                to.push(NO_STATE);
            }
            starts.push(to.len() as u32);
        }
        if to.len() != rows {
            bail!("{} rows of states in a step of {rows}", to.len())
        }
        Ok([starts, from, to].concat())
    }

    /// The same on the device, of its words there.
    pub(super) fn view(
        words: &Tensor,
        sequences: usize,
        rows: usize,
        longest: usize,
    ) -> Result<Self> {
        Ok(Self {
            starts: words.narrow(0, 0, sequences + 1)?,
            from: words.narrow(0, sequences + 1, sequences)?,
            to: words.narrow(0, 2 * sequences + 1, rows)?,
            longest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::forward::{StepSequence, StepState};

    #[test]
    fn rows_without_a_slot_keep_no_state() {
        let sequence = |rows: usize, from: Option<u32>, after: &[u32]| StepSequence {
            rows,
            state: Some(StepState {
                from,
                after: after.to_vec(),
            }),
            ..StepSequence::default()
        };
        let step = Step {
            sequences: vec![sequence(3, None, &[1]), sequence(2, Some(0), &[2, 0])],
            ..Step::default()
        };
        let none = NO_STATE;
        let expected = [0, 3, 5, 6, none, 0, none, none, none, 1, 2, 0, none];
        assert_eq!(StateBatch::words(&step, 3, 3, 6).unwrap(), expected);
        assert_eq!(StateBatch::len(3, 6), expected.len());
        // More sequences than rows.
        let expected = [
            0, 3, 5, 6, 6, none, 0, none, none, none, none, 1, 2, 0, none,
        ];
        assert_eq!(StateBatch::words(&step, 3, 4, 6).unwrap(), expected);
        assert!(StateBatch::words(&step, 2, 3, 6).is_err());
        assert!(StateBatch::words(&step, 3, 3, 7).is_err());
    }
}
