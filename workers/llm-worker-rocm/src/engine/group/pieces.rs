//! A step cut into pieces that follow one another through the stages.

use crate::engine::forward::{Step, StepSequence, StepState};
use std::ops::Range;

/// A part of a step that is a step itself.
#[derive(Debug)]
pub(super) struct Piece {
    pub step: Step,
    /// Which of the step's sequences it has rows of.
    pub sequences: Range<usize>,
}

/// Pieces of at most so many rows each: behind one another they leave in the cache, and give as logits, what steps of
/// these rows do. A sequence's last rows stay together where states are kept behind several.
pub(super) fn cut(step: &Step, most: usize) -> Vec<Piece> {
    if step.tokens.len() <= most {
        return vec![Piece {
            step: step.clone(),
            sequences: 0..step.sequences.len(),
        }];
    }
    let mut pieces = Vec::new();
    let mut piece = Open::new(0, 0);
    let mut row = 0;
    for (number, sequence) in step.sequences.iter().enumerate() {
        let together = sequence.state.as_ref().map_or(1, |s| s.after.len()).max(1);
        let mut done = 0;
        while done < sequence.rows {
            let left = sequence.rows - done;
            let room = most.saturating_sub(piece.rows(row));
            let rows = match left <= room {
                true => left,
                false => room.min(left.saturating_sub(together)),
            };
            if rows == 0 && piece.rows(row) > 0 {
                pieces.push(piece.close(step, row));
                piece = Open::new(number, row);
                continue;
            }
            // What stays together may be more than there is room for.
            let rows = if rows == 0 { left } else { rows };
            piece.sequences.push(part(sequence, done, rows));
            (done, row) = (done + rows, row + rows);
        }
    }
    pieces.push(piece.close(step, row));
    pieces
}

/// A piece that grows.
struct Open {
    /// Its first sequence and its first row in the step.
    first: usize,
    start: usize,
    sequences: Vec<StepSequence>,
}

impl Open {
    fn new(first: usize, start: usize) -> Self {
        Self {
            first,
            start,
            sequences: Vec::new(),
        }
    }

    fn rows(&self, end: usize) -> usize {
        end - self.start
    }

    fn close(self, step: &Step, end: usize) -> Piece {
        let rows = self.start as u32..end as u32;
        let outputs = step.outputs.iter().filter(|row| rows.contains(row));
        Piece {
            sequences: self.first..self.first + self.sequences.len(),
            step: Step {
                tokens: step.tokens[self.start..end].to_vec(),
                outputs: outputs.map(|row| row - rows.start).collect(),
                sequences: self.sequences,
            },
        }
    }
}

/// So many rows of a sequence behind those that are done.
fn part(sequence: &StepSequence, done: usize, rows: usize) -> StepSequence {
    let end = done + rows;
    let state = sequence.state.as_ref().map(|state| {
        // Where the last state goes is free for those before.
        let between = state.after.last().copied();
        StepState {
            from: if done == 0 { state.from } else { between },
            after: match end == sequence.rows {
                true => state.after.clone(),
                false => between.into_iter().collect(),
            },
        }
    });
    StepSequence {
        keys: sequence.keys - sequence.rows + end,
        rows,
        told: sequence.told.saturating_sub(done).min(rows),
        state,
        turned: sequence.turned.map(|turned| turned + done as u32),
        ..sequence.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_steps_one_behind_the_other() {
        let sequence = |id, keys, rows, state| StepSequence {
            id,
            keys,
            rows,
            state,
            turned: Some(100 * id as u32),
            ..StepSequence::default()
        };
        let state = |from, after: &[u32]| {
            Some(StepState {
                from,
                after: after.to_vec(),
            })
        };
        let step = Step {
            tokens: (0..12).collect(),
            sequences: vec![
                sequence(1, 9, 1, state(Some(5), &[5])),
                sequence(2, 8, 8, state(None, &[3])),
                sequence(3, 20, 3, state(Some(1), &[1, 2])),
            ],
            outputs: vec![0, 8, 10, 11],
        };
        let pieces = cut(&step, 4);
        let found: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let sequences = piece.step.sequences.iter();
                let sequences = sequences.map(|s| (s.id, s.keys, s.rows, s.turned.unwrap()));
                (
                    piece.sequences.clone(),
                    sequences.collect::<Vec<_>>(),
                    piece.step.tokens.clone(),
                    piece.step.outputs.clone(),
                )
            })
            .collect();
        let expected = [
            (
                0..2,
                vec![(1, 9, 1, 100), (2, 3, 3, 200)],
                vec![0, 1, 2, 3],
                vec![0],
            ),
            (1..2, vec![(2, 7, 4, 203)], vec![4, 5, 6, 7], vec![]),
            (
                1..3,
                vec![(2, 8, 1, 207), (3, 20, 3, 300)],
                vec![8, 9, 10, 11],
                vec![0, 2, 3],
            ),
        ];
        assert_eq!(found, expected);
        let states: Vec<_> = (pieces.iter().flat_map(|piece| &piece.step.sequences))
            .filter(|s| s.id == 2)
            .map(|s| s.state.clone())
            .collect();
        assert_eq!(
            states,
            [
                state(None, &[3]),
                state(Some(3), &[3]),
                state(Some(3), &[3])
            ]
        );
        // A last row alone would be without the state behind the row before it.
        let pieces = cut(&step, 11);
        assert_eq!(pieces[0].step.tokens.len(), 10);
        assert_eq!(pieces[1].step.sequences[0].state, state(Some(2), &[1, 2]));
        let whole = cut(&step, 12);
        assert_eq!((whole.len(), whole[0].sequences.clone()), (1, 0..3));
    }
}
