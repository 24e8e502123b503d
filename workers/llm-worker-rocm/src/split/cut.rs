//! Where a model is cut into stages, one for each card.

use super::Demand;
use std::ops::Range;

/// Bandwidths that differ by less make no card the faster one.
const ALIKE: f64 = 1.1;

/// What stages may take and how fast they are.
pub(super) struct Stages<'a> {
    pub demand: &'a Demand,
    /// Tokens whose keys and values are stored.
    pub tokens: u64,
    /// Bytes that each card has room for; of shares, numbers in their proportion.
    pub rooms: &'a [f64],
    /// Bytes a second that each card reads.
    pub speeds: &'a [f64],
}

/// A cut.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cut {
    /// The blocks of each stage.
    pub blocks: Vec<Range<usize>>,
    /// How much of the fullest card's room is taken; above 1 it does not fit.
    pub fill: f64,
}

impl Stages<'_> {
    /// Part of a card's room that a stage takes.
    fn fill(&self, stage: usize, blocks: Range<usize>) -> f64 {
        self.demand.bytes(blocks, self.tokens) as f64 / self.rooms[stage].max(1.0)
    }

    /// Seconds that a stage reads weights for a token.
    fn seconds(&self, stage: usize, blocks: Range<usize>) -> f64 {
        self.demand.active(blocks) / self.speeds[stage]
    }

    /// The cut in which the fullest card is the least full. Where cards are of different speeds, half of the room that it
    /// leaves goes to the faster ones: every stage waits for the others, so that a token takes as long as all together.
    ///
    /// `None` if the model cannot be cut into so many stages.
    pub fn cut(&self) -> Option<Cut> {
        let most = f64::max;
        let fill = |stage, blocks| Some(self.fill(stage, blocks));
        let (least, _) = self.best(&fill, most)?;
        let fastest = self.speeds.iter().copied().fold(0.0, f64::max);
        let slowest = self.speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let differ = fastest > slowest * ALIKE;
        let limit = match differ && least < 1.0 {
            true => least + (1.0 - least) / 2.0,
            false => least * (1.0 + 1e-9),
        };
        // Of cuts that are as good, the most even one.
        let cost = |stage: usize, blocks: Range<usize>| {
            let fill = self.fill(stage, blocks.clone());
            let time = if differ {
                self.seconds(stage, blocks)
            } else {
                0.0
            };
            (fill <= limit).then_some(time + 1e-9 * fill * fill)
        };
        let (_, blocks) = self.best(&cost, |a, b| a + b)?;
        let full = |(stage, blocks): (usize, &Range<usize>)| self.fill(stage, blocks.clone());
        let fill = blocks.iter().enumerate().map(full).fold(0.0, f64::max);
        Some(Cut { blocks, fill })
    }

    /// The stages whose costs together are the least, and how much that is.
    fn best(
        &self,
        cost: &dyn Fn(usize, Range<usize>) -> Option<f64>,
        together: fn(f64, f64) -> f64,
    ) -> Option<(f64, Vec<Range<usize>>)> {
        let all = self.demand.blocks.len();
        let stages = self.rooms.len();
        // By the number of stages, of the blocks before each place: the least cost, and where the last stage begins.
        let mut best = vec![vec![None::<(f64, usize)>; all + 1]; stages + 1];
        best[0][0] = Some((0.0, 0));
        for stage in 0..stages {
            for end in 1..=all {
                let may_end = end == all || self.demand.cuts.contains(&end);
                if !may_end || (end == all) != (stage + 1 == stages) {
                    continue;
                }
                let ways = (0..end).filter_map(|start| {
                    let (before, _) = best[stage][start]?;
                    Some((together(before, cost(stage, start..end)?), start))
                });
                best[stage + 1][end] = ways.min_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        let (total, _) = best[stages][all]?;
        let mut blocks = Vec::with_capacity(stages);
        let mut end = all;
        for stage in (0..stages).rev() {
            let (_, start) = best[stage + 1][end]?;
            blocks.push(start..end);
            end = start;
        }
        blocks.reverse();
        Some((total, blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many blocks of 10 bytes and 1 byte for a token, ends of 5 and 15 bytes, cuts everywhere.
    fn demand(blocks: usize) -> Demand {
        Demand {
            blocks: vec![10; blocks],
            active: vec![10.0; blocks],
            kv: vec![1.0; blocks],
            first: 5,
            last: 15,
            each: 1,
            cuts: (1..blocks).collect(),
            experts: 0,
        }
    }

    fn cut(demand: &Demand, tokens: u64, rooms: &[f64], speeds: &[f64]) -> Option<Cut> {
        let stages = Stages {
            demand,
            tokens,
            rooms,
            speeds,
        };
        stages.cut()
    }

    fn starts(cut: &Cut) -> Vec<usize> {
        cut.blocks.iter().map(|blocks| blocks.start).collect()
    }

    #[test]
    fn cuts_follow_room_ends_and_where_they_may_be() {
        struct Case {
            blocks: usize,
            tokens: u64,
            rooms: &'static [f64],
            cuts: Option<&'static [usize]>,
            starts: &'static [usize],
        }
        let case = |blocks, tokens, rooms, starts| Case {
            blocks,
            tokens,
            rooms,
            cuts: None,
            starts,
        };
        let cases = [
            case(8, 0, &[100.0], &[0][..]),
            // The last stage has more beside its blocks.
            case(8, 0, &[100.0, 100.0], &[0, 4]),
            case(9, 0, &[100.0, 100.0], &[0, 5]),
            case(12, 0, &[300.0, 100.0], &[0, 10]),
            case(12, 0, &[100.0, 100.0, 100.0], &[0, 4, 9]),
            // Keys and values weigh as much as the weights: the ends weigh less.
            case(12, 100, &[1000.0, 1000.0], &[0, 6]),
            Case {
                cuts: Some(&[3, 6, 9]),
                ..case(12, 0, &[100.0, 100.0, 100.0], &[0, 3, 9])
            },
            Case {
                cuts: Some(&[1]),
                ..case(12, 0, &[100.0, 100.0], &[0, 1])
            },
        ];
        for case in cases {
            let mut demand = demand(case.blocks);
            if let Some(cuts) = case.cuts {
                demand.cuts = cuts.to_vec();
            }
            let speeds = vec![1.0; case.rooms.len()];
            let found = cut(&demand, case.tokens, case.rooms, &speeds).unwrap();
            assert_eq!(
                starts(&found),
                case.starts,
                "{} blocks, {:?}",
                case.blocks,
                case.rooms
            );
        }
        // More stages than cuts.
        let mut few = demand(12);
        few.cuts = vec![6];
        assert_eq!(cut(&few, 0, &[1.0; 3], &[1.0; 3]), None);
        assert_eq!(cut(&demand(2), 0, &[1.0; 3], &[1.0; 3]), None);
    }

    #[test]
    fn the_faster_card_gets_half_of_the_room_that_is_left() {
        let demand = demand(9);
        let even = cut(&demand, 0, &[200.0, 200.0], &[1.0, 1.0]).unwrap();
        assert_eq!((starts(&even), even.fill), (vec![0, 5], 0.28));
        // Up to 0.64 of a card's room; a stage has one block at least.
        let fast = cut(&demand, 0, &[200.0, 200.0], &[3.0, 1.0]).unwrap();
        assert_eq!(starts(&fast), [0, 8]);
        let behind = cut(&demand, 0, &[200.0, 200.0], &[1.0, 3.0]).unwrap();
        assert_eq!(starts(&behind), [0, 1]);
        // Up to 0.85.
        let narrow = cut(&demand, 0, &[80.0, 80.0], &[3.0, 1.0]).unwrap();
        assert_eq!(starts(&narrow), [0, 6]);
        // Hardly anything is left: by room alone.
        let full = cut(&demand, 0, &[58.0, 58.0], &[3.0, 1.0]).unwrap();
        assert_eq!(starts(&full), [0, 5]);
    }

    #[test]
    fn the_best_cut_is_the_least_full_of_all() {
        // Blocks of many sizes, against every cut.
        let sizes: Vec<u64> = (0..9).map(|b: u64| b * 2_654_435_761 % 97 + 3).collect();
        let demand = Demand {
            active: sizes.iter().map(|&size| size as f64).collect(),
            blocks: sizes,
            kv: vec![0.5; 9],
            first: 40,
            last: 25,
            each: 2,
            cuts: (1..9).collect(),
            experts: 0,
        };
        let rooms = [90.0, 200.0, 130.0];
        let found = cut(&demand, 10, &rooms, &[1.0; 3]).unwrap();
        let fill = |a: usize, b: usize| {
            let parts = [0..a, a..b, b..9];
            let bytes = parts.into_iter().map(|part| demand.bytes(part, 10) as f64);
            bytes
                .zip(rooms)
                .map(|(bytes, room)| bytes / room)
                .fold(0.0, f64::max)
        };
        let all = (1..8).flat_map(|a| (a + 1..9).map(move |b| (a, b)));
        let least = all.map(|(a, b)| fill(a, b)).fold(f64::INFINITY, f64::min);
        assert_eq!(found.fill, least);
    }
}
