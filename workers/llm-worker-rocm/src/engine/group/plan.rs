//! How a model is divided between devices.

use candle_core::{Device, DeviceLocation};
use std::ops::Range;

/// A model divided between devices: stages that follow one another, each with some of the blocks on its devices.
#[derive(Debug, Clone)]
pub struct SplitPlan {
    /// In the order of their blocks.
    pub stages: Vec<StagePlan>,
}

/// One stage of a [`SplitPlan`].
#[derive(Debug, Clone)]
pub struct StagePlan {
    /// Its blocks.
    pub blocks: Range<usize>,
    /// The devices that divide its matrices between them; one has them all.
    pub devices: Vec<Device>,
    /// The part of each of them, in any unit; equal ones if empty.
    pub shares: Vec<f32>,
}

/// One device's part of a [`SplitPlan`].
#[derive(Debug, Clone)]
pub struct Rank {
    /// Its place among all ranks: stage by stage, and within one by shards.
    pub number: usize,
    /// Ranks in all.
    pub ranks: usize,
    /// Its stage.
    pub stage: usize,
    /// Stages in all.
    pub stages: usize,
    /// Its place among the devices of its stage.
    pub shard: usize,
    /// Devices of its stage.
    pub shards: usize,
    /// The stage's blocks.
    pub blocks: Range<usize>,
    /// Where it computes.
    pub device: Device,
    /// Of a rank of another process, what it computes on, in words; its `device` then stands for nothing.
    pub elsewhere: Option<String>,
}

impl SplitPlan {
    /// All on one device.
    pub fn single(device: &Device, blocks: usize) -> Self {
        Self {
            stages: vec![StagePlan {
                blocks: 0..blocks,
                devices: vec![device.clone()],
                shares: Vec::new(),
            }],
        }
    }

    /// Whether one device has all.
    pub fn is_single(&self) -> bool {
        matches!(&self.stages[..], [stage] if stage.devices.len() == 1)
    }

    /// All ranks, in the order of their numbers.
    pub fn ranks(&self) -> Vec<Rank> {
        let all = self.stages.iter().map(|stage| stage.devices.len()).sum();
        let mut ranks = Vec::with_capacity(all);
        for (stage, plan) in self.stages.iter().enumerate() {
            for (shard, device) in plan.devices.iter().enumerate() {
                ranks.push(Rank {
                    number: ranks.len(),
                    ranks: all,
                    stage,
                    stages: self.stages.len(),
                    shard,
                    shards: plan.devices.len(),
                    blocks: plan.blocks.clone(),
                    device: device.clone(),
                    elsewhere: None,
                });
            }
        }
        ranks
    }

    /// Checks that the stages have all of `blocks` blocks between them, begin where `cuts` allow it, and have devices of
    /// one kind.
    ///
    /// # Errors
    /// What is wrong with the plan, and where stages may begin.
    pub fn check(&self, blocks: usize, cuts: &[usize]) -> Result<(), String> {
        let mut next = 0;
        for (stage, plan) in self.stages.iter().enumerate() {
            let Range { start, end } = plan.blocks;
            if start != next || end <= start {
                return Err(format!(
                    "stage {stage} has layers {start} to {end} where layer {next} is the next one"
                ));
            }
            if start > 0 && !cuts.contains(&start) {
                return Err(format!(
                    "stage {stage} cannot begin with layer {start}, which needs what layers before it leave behind; stages of this model can begin with {}",
                    in_words(cuts)
                ));
            }
            if plan.devices.is_empty() {
                return Err(format!("stage {stage} has no device"));
            }
            if !plan.shares.is_empty() && plan.shares.len() != plan.devices.len() {
                return Err(format!(
                    "stage {stage} has {} shares for {} devices",
                    plan.shares.len(),
                    plan.devices.len()
                ));
            }
            next = end;
        }
        if next != blocks {
            return Err(format!(
                "the stages have {next} layers, the model has {blocks}"
            ));
        }
        let mut devices = self.stages.iter().flat_map(|stage| &stage.devices);
        let on_cpu = self.stages[0].devices[0].is_cpu();
        match devices.all(|device| device.is_cpu() == on_cpu) {
            true => Ok(()),
            false => Err("a model is divided between GPUs, or on the CPU, not both".to_string()),
        }
    }
}

/// Numbers, as ranges where they follow one another.
fn in_words(numbers: &[usize]) -> String {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match ranges.last_mut().filter(|range| range.end == *number) {
            Some(range) => range.end += 1,
            None => ranges.push(*number..number + 1),
        }
    }
    let range = |range: &Range<usize>| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    };
    match ranges.is_empty() {
        true => "no layer but the first".to_string(),
        false => ranges.iter().map(range).collect::<Vec<_>>().join(", "),
    }
}

impl Rank {
    /// Whether it embeds tokens.
    pub fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether it has logits.
    pub fn is_last(&self) -> bool {
        self.stage + 1 == self.stages
    }

    /// Whether it is the one that answers: logits and chosen tokens are on its device.
    pub fn answers(&self) -> bool {
        self.is_last() && self.shard == 0
    }

    /// Its number and its device, as people know them.
    pub fn name(&self) -> String {
        if let Some(device) = &self.elsewhere {
            return format!("rank {} of {} ({device})", self.number, self.ranks);
        }
        let device = match (&self.device, self.device.location()) {
            (Device::Rocm(device), _) => {
                let properties = device.device().properties();
                let ordinal = device.device().ordinal();
                format!("rocm:{ordinal}, {} ({})", properties.name, properties.arch)
            }
            (_, DeviceLocation::Cpu) => "cpu".to_string(),
            (_, other) => format!("{other:?}"),
        };
        format!("rank {} of {} ({device})", self.number, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(stages: &[(Range<usize>, usize)]) -> SplitPlan {
        let stage = |(blocks, devices): &(Range<usize>, usize)| StagePlan {
            blocks: blocks.clone(),
            devices: vec![Device::Cpu; *devices],
            shares: Vec::new(),
        };
        SplitPlan {
            stages: stages.iter().map(stage).collect(),
        }
    }

    #[test]
    fn ranks_are_counted_stage_by_stage() {
        let plan = plan(&[(0..3, 2), (3..4, 1)]);
        let ranks = plan.ranks();
        let places: Vec<_> = ranks.iter().map(|r| (r.number, r.stage, r.shard)).collect();
        assert_eq!(places, [(0, 0, 0), (1, 0, 1), (2, 1, 0)]);
        assert!(ranks[0].is_first() && !ranks[0].is_last());
        assert!(ranks[2].answers() && !ranks[1].answers());
        assert_eq!(ranks[1].name(), "rank 1 of 3 (cpu)");
        assert!(!plan.is_single() && SplitPlan::single(&Device::Cpu, 4).is_single());
    }

    #[test]
    fn stages_have_all_blocks_and_begin_where_they_may() {
        let check = |stages: &[(Range<usize>, usize)]| plan(stages).check(6, &[1, 2, 3, 5]);
        assert_eq!(check(&[(0..6, 1)]), Ok(()));
        assert_eq!(check(&[(0..2, 1), (2..5, 2), (5..6, 1)]), Ok(()));
        for (stages, why) in [
            (vec![(0..4, 1), (4..6, 1)], "begin with 1 to 3, 5"),
            (vec![(0..2, 1), (3..6, 1)], "layer 2 is the next one"),
            (vec![(0..2, 1), (2..2, 1)], "layers 2 to 2"),
            (vec![(0..5, 1)], "the model has 6"),
            (vec![(0..5, 1), (5..6, 0)], "no device"),
        ] {
            let error = check(&stages).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(plan(&[(0..1, 1), (1..2, 1)])
            .check(2, &[])
            .unwrap_err()
            .contains("no layer but the first"));
    }
}
