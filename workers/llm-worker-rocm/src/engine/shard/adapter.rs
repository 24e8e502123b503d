//! A shard's part of an adapter.

use super::cut::{Cut, Part};
use super::ShardPlan;
use crate::adapters::{self, Adapter};
use std::ops::Range;

impl ShardPlan {
    /// What a shard has of an adapter: of each matrix what it has of the matrix that it belongs to.
    pub(crate) fn adapter(&self, shard: usize, whole: &Adapter) -> Adapter {
        let parts = whole.parts.iter().filter_map(|(name, part)| {
            let part = match self.cut(shard, &format!("{name}.weight")) {
                Some(Cut::Nothing) => return None,
                Some(Cut::Part(cut)) => cut_out(part, cut),
                Some(Cut::Zeros) | None => part.clone(),
            };
            Some((name.clone(), part))
        });
        Adapter {
            source: whole.source.clone(),
            parts: parts.collect(),
        }
    }
}

/// Of the first matrix columns, or of the second rows.
fn cut_out(part: &adapters::Part, cut: &Part) -> adapters::Part {
    let mut own = part.clone();
    match cut.dim {
        0 => {
            own.inputs = cut.len();
            own.a = picked(&part.a, part.inputs, 1, &cut.ranges);
        }
        _ => {
            own.outputs = cut.len();
            own.b = picked(&part.b, part.outputs, part.rank, &cut.ranges);
        }
    }
    own
}

/// Of each `count` items of so many numbers the ones in the ranges.
fn picked(values: &[f32], count: usize, size: usize, ranges: &[Range<usize>]) -> Vec<f32> {
    let mut picked = Vec::new();
    for all in values.chunks_exact(count * size) {
        for range in ranges {
            picked.extend_from_slice(&all[range.start * size..range.end * size]);
        }
    }
    picked
}

#[cfg(test)]
// Ranges are what is compared.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn both_matrices_follow_the_one_they_belong_to() {
        let numbers = |count: usize| (0..count).map(|i| i as f32).collect::<Vec<_>>();
        // Two experts, from 3 inputs by a rank of 2 to 4 outputs.
        let part = adapters::Part {
            rank: 2,
            inputs: 3,
            outputs: 4,
            experts: 2,
            a: numbers(12),
            b: numbers(16),
        };
        let cut = |dim: usize, ranges: &[Range<usize>]| {
            let ranges = ranges.to_vec();
            let of = "x".to_string();
            cut_out(&part, &Part { of, dim, ranges })
        };
        let columns = cut(0, &[1..3]);
        assert_eq!((columns.inputs, &columns.b), (2, &part.b));
        assert_eq!(columns.a, [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
        let rows = cut(1, &[0..1, 3..4]);
        assert_eq!((rows.outputs, &rows.a), (2, &part.a));
        assert_eq!(rows.b, [0.0, 1.0, 6.0, 7.0, 8.0, 9.0, 14.0, 15.0]);
    }
}
