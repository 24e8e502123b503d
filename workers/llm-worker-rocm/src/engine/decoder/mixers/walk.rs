//! Recurrences on the CPU: threads have parts of the states, and walk all rows.

use super::host;
use crate::engine::decoder::memory::StateBatch;
use candle_core::{bail, Device, Result, Tensor};
use rayon::prelude::*;

/// Least numbers of states that are worth a thread's turn.
const WORTHWHILE: usize = 4096;

/// A row of a sequence, as a part of its state meets it.
pub(super) struct Row<'a> {
    /// The part of the state.
    pub part: usize,
    /// The row in the batch.
    pub row: usize,
    /// Whether a sequence begins here, whose state is zeros.
    pub begins: bool,
    /// The part's numbers, to be changed.
    pub state: &'a mut [f32],
    /// What the part gives for the row.
    pub out: &'a mut [f32],
}

/// Walks the rows of all sequences: states are f32 `(slots, ...)` whose numbers fall into `parts` equal parts, one
/// behind the other; each part's `outputs` numbers of a row lie together in the result, `(rows, parts * outputs)`. Calls
/// `step` for each part and row, in the order of rows.
///
/// # Errors
/// If the states are not on the CPU, or what the batch names is not there.
pub(super) fn walk(
    states: &Tensor,
    batch: &StateBatch,
    parts: usize,
    outputs: usize,
    step: impl Fn(Row) + Sync,
) -> Result<Tensor> {
    let slots = states.dim(0)?;
    let sequences = host::sequences(batch)?;
    let rows = batch.to.dim(0)?;
    let kept = |sequence: &host::Sequence| sequence.kept().all(|(_, slot)| slot < slots);
    let there = |s: &host::Sequence| s.from.is_none_or(|slot| slot < slots) && kept(s);
    if !sequences.iter().all(there) {
        bail!("a batch names states beyond the {slots} that are there")
    }
    let size = states.elem_count() / (slots * parts).max(1);
    let one = |all: &[f32], part: usize| {
        let mut out = vec![0f32; rows * outputs];
        let mut kept: Vec<(usize, Vec<f32>)> = Vec::new();
        for sequence in &sequences {
            let mut state = match sequence.from {
                Some(from) => all[(from * parts + part) * size..][..size].to_vec(),
                None => vec![0.0; size],
            };
            let mut slots = sequence.kept().peekable();
            for row in sequence.rows.clone() {
                step(Row {
                    part,
                    row,
                    begins: sequence.from.is_none() && row == sequence.rows.start,
                    state: &mut state,
                    out: &mut out[row * outputs..(row + 1) * outputs],
                });
                if let Some((_, slot)) = slots.next_if(|(kept, _)| *kept == row) {
                    kept.push((slot, state.clone()));
                }
            }
        }
        (out, kept)
    };
    let mut result = vec![0f32; rows * parts * outputs];
    host::with_states(states, |all| {
        let shared: &[f32] = all;
        let numbers = (0..parts).into_par_iter();
        let least = (WORTHWHILE / (size * rows).max(1)).max(1);
        let done: Vec<_> = numbers
            .with_min_len(least)
            .map(|part| one(shared, part))
            .collect();
        for (part, (out, kept)) in done.into_iter().enumerate() {
            for (row, out) in out.chunks_exact(outputs).enumerate() {
                result[(row * parts + part) * outputs..][..outputs].copy_from_slice(out);
            }
            for (slot, state) in kept {
                all[(slot * parts + part) * size..][..size].copy_from_slice(&state);
            }
        }
        Ok(())
    })?;
    Tensor::from_vec(result, (rows, parts * outputs), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::decoder::memory::NO_STATE;

    /// Sums of each part's numbers, of two sequences; the first begins.
    #[test]
    fn states_are_read_before_and_kept_where_they_are_named() {
        let states = Tensor::new(&[[1f32, 2.0], [10.0, 20.0], [0.0, 0.0]], &Device::Cpu).unwrap();
        let numbers = |numbers: &[u32]| Tensor::new(numbers, &Device::Cpu).unwrap();
        let batch = |to: &[u32]| StateBatch {
            starts: numbers(&[0, 2, 3]),
            from: numbers(&[NO_STATE, 1]),
            to: numbers(to),
            longest: 2,
        };
        let step = |row: Row| {
            row.state[0] += (row.row + 1) as f32 * (row.part + 1) as f32;
            row.out[0] = row.state[0] + if row.begins { 100.0 } else { 0.0 };
        };
        let out = walk(&states, &batch(&[0, 2, 1]), 2, 1, step).unwrap();
        let out: Vec<Vec<f32>> = out.to_vec2().unwrap();
        assert_eq!(out, [[101.0, 102.0], [3.0, 6.0], [13.0, 26.0]]);
        let kept: Vec<Vec<f32>> = states.to_vec2().unwrap();
        assert_eq!(kept, [[1.0, 2.0], [13.0, 26.0], [3.0, 6.0]]);
        assert!(walk(&states, &batch(&[0, 3, 1]), 2, 1, step).is_err());
    }
}
