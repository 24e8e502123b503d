//! Who has which part of the model.

use super::about::About;
use crate::engine::decoder::PartSizes;
use crate::engine::group::{SplitPlan, StagePlan};
use candle_core::Device;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Which node has which blocks of the model: stages that follow one another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    /// In the order of blocks; the last one is node 0's.
    pub stages: Vec<NodeStage>,
}

/// Blocks that follow one another on devices of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStage {
    /// Which blocks.
    pub blocks: Range<usize>,
    /// The node that has them.
    pub node: usize,
    /// Its devices that divide them between them: `cpu`, `rocm:N`.
    pub devices: Vec<String>,
}

/// A device of a node that is to have a stage.
struct Bin<'a> {
    node: usize,
    name: &'a str,
    /// What it is able to hold, in proportion to others.
    room: f64,
}

impl NodePlan {
    /// Divides a model's blocks between the devices of all nodes, a stage for each, so that the fullest one is as empty as
    /// can be: by free memory where all tell it, else evenly. Nodes follow one another as 1, 2, …, 0.
    ///
    /// # Errors
    /// If there are too few places where the model may be cut.
    pub(super) fn choose(sizes: &PartSizes, nodes: &[About]) -> Result<Self, String> {
        let order = (1..nodes.len()).chain(0..nodes.len().min(1));
        let cards = order.flat_map(|node| nodes[node].cards.iter().map(move |card| (node, card)));
        let cards: Vec<_> = cards.collect();
        let knows_all = cards
            .iter()
            .all(|(_, card)| card.free.is_some_and(|free| free > 0));
        let bins = cards.iter().map(|(node, card)| Bin {
            node: *node,
            name: &card.name,
            room: match card.free {
                Some(free) if knows_all => free as f64,
                _ => 1.0,
            },
        });
        let bins: Vec<Bin> = bins.collect();
        let ends = Self::ends(sizes, &bins).ok_or_else(|| {
            format!(
                "the model has {} layers and can be cut in {} places, which is too little for {} devices on {} hosts",
                sizes.blocks.len(),
                sizes.cuts.len(),
                bins.len(),
                nodes.len()
            )
        })?;
        let mut start = 0;
        let stages = bins.iter().zip(ends).map(|(bin, end)| NodeStage {
            blocks: std::mem::replace(&mut start, end)..end,
            node: bin.node,
            devices: vec![bin.name.to_string()],
        });
        Ok(Self {
            stages: stages.collect(),
        })
    }

    /// Where each bin's blocks end, if there are enough places to cut.
    fn ends(sizes: &PartSizes, bins: &[Bin]) -> Option<Vec<usize>> {
        let all = sizes.blocks.len();
        let places: Vec<usize> = (sizes.cuts.iter().copied()).chain([all]).collect();
        let mut sums = vec![0u64];
        for bytes in &sizes.blocks {
            sums.push(sums[sums.len() - 1] + bytes);
        }
        // Of the bins so far, for each place where they may end: how full the fullest one is, and where the last begins.
        type Ending = Option<(f64, Option<usize>)>;
        let mut best: Vec<Ending> = Vec::new();
        let mut choices: Vec<Vec<Ending>> = Vec::new();
        for (number, bin) in bins.iter().enumerate() {
            let ends = places.iter().enumerate().map(|(at, &end)| {
                let fullness = |start: usize| {
                    let mut bytes = sums[end] - sums[start] + sizes.each;
                    bytes += if start == 0 { sizes.first } else { 0 };
                    bytes += if end == all { sizes.last } else { 0 };
                    bytes as f64 / bin.room
                };
                if number == 0 {
                    return Some((fullness(0), None));
                }
                let starts = (0..at).filter_map(|before| {
                    let (so_far, _) = best[before]?;
                    Some((fullness(places[before]).max(so_far), Some(before)))
                });
                starts.min_by(|a, b| a.0.total_cmp(&b.0))
            });
            best = ends.collect();
            choices.push(best.clone());
        }
        let mut at = places.len() - 1;
        let mut ends = Vec::with_capacity(bins.len());
        for choice in choices.iter().rev() {
            ends.push(places[at]);
            match choice[at]? {
                (_, Some(before)) => at = before,
                (_, None) => break,
            }
        }
        ends.reverse();
        (ends.len() == bins.len()).then_some(ends)
    }

    /// Checks that the stages have all of `blocks` blocks between them, begin where `cuts` allow it, and that node 0 has
    /// the last one.
    ///
    /// # Errors
    /// What is wrong with the plan.
    pub(super) fn check(&self, blocks: usize, cuts: &[usize]) -> Result<(), String> {
        if self.stages.last().is_none_or(|stage| stage.node != 0) {
            return Err(
                "node 0 has not the last layers, behind which tokens are chosen".to_string(),
            );
        }
        let stages = self.stages.iter().map(|stage| StagePlan {
            blocks: stage.blocks.clone(),
            devices: vec![Device::Cpu; stage.devices.len()],
            shares: Vec::new(),
        });
        let plan = SplitPlan {
            stages: stages.collect(),
        };
        plan.check(blocks, cuts)
    }

    /// What a node has, in words.
    pub fn of_node(&self, node: usize) -> String {
        let own = self.stages.iter().filter(|stage| stage.node == node);
        let own: Vec<String> = own.map(NodeStage::to_string).collect();
        own.join(" and ")
    }
}

impl fmt::Display for NodeStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.blocks;
        let last = end.saturating_sub(1);
        write!(
            f,
            "layers {start} to {last} on {}",
            self.devices.join(" and ")
        )
    }
}

impl fmt::Display for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, stage) in self.stages.iter().enumerate() {
            let separator = if number > 0 { "; " } else { "" };
            write!(f, "{separator}{stage} of node {}", stage.node)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::Card;
    use super::*;

    fn node(free: &[Option<u64>]) -> About {
        let card = |(number, free): (usize, &Option<u64>)| Card {
            name: format!("rocm:{number}"),
            free: *free,
            ..Card::default()
        };
        About {
            cards: free.iter().enumerate().map(card).collect(),
            ..About::default()
        }
    }

    fn sizes(blocks: usize) -> PartSizes {
        PartSizes {
            blocks: vec![10; blocks],
            experts: vec![0; blocks],
            kv_elements: vec![1; blocks],
            first: 0,
            last: 0,
            each: 0,
            cuts: (1..blocks).collect(),
        }
    }

    fn chosen(sizes: &PartSizes, nodes: &[About]) -> String {
        let plan = NodePlan::choose(sizes, nodes).unwrap();
        plan.check(sizes.blocks.len(), &sizes.cuts).unwrap();
        plan.to_string()
    }

    #[test]
    fn layers_go_by_free_memory_and_node_0_has_the_last_ones() {
        let plain = node(&[None]);
        let even = chosen(&sizes(6), &[plain.clone(), plain.clone(), plain.clone()]);
        assert_eq!(
            even,
            "layers 0 to 1 on rocm:0 of node 1; layers 2 to 3 on rocm:0 of node 2; layers 4 to 5 on rocm:0 of node 0"
        );
        let uneven = [node(&[Some(100), Some(100)]), node(&[Some(200)])];
        assert_eq!(
            chosen(&sizes(8), &uneven),
            "layers 0 to 3 on rocm:0 of node 1; layers 4 to 5 on rocm:0 of node 0; layers 6 to 7 on rocm:1 of node 0"
        );
        // The output matrix is as large as three layers.
        let with_output = PartSizes {
            last: 30,
            ..sizes(7)
        };
        assert_eq!(
            chosen(&with_output, &[plain.clone(), plain.clone()]),
            "layers 0 to 4 on rocm:0 of node 1; layers 5 to 6 on rocm:0 of node 0"
        );
    }

    #[test]
    fn layers_are_cut_where_they_may_be() {
        let plain = node(&[None]);
        let few = PartSizes {
            cuts: vec![1],
            ..sizes(6)
        };
        assert_eq!(
            chosen(&few, &[plain.clone(), plain.clone()]),
            "layers 0 to 0 on rocm:0 of node 1; layers 1 to 5 on rocm:0 of node 0"
        );
        let error = NodePlan::choose(&few, &[plain.clone(), plain.clone(), plain.clone()]);
        assert!(error
            .unwrap_err()
            .contains("1 places, which is too little for 3 devices on 3 hosts"));
        let mut plan = NodePlan::choose(&sizes(6), &[plain.clone(), plain]).unwrap();
        assert_eq!(plan.of_node(1), "layers 0 to 2 on rocm:0");
        plan.stages.reverse();
        assert!(plan.check(6, &[3]).is_err());
    }
}
