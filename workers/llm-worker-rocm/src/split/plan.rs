//! The split of a model file between devices, and what is told of it.

use super::choose::{choose, Choice, ShardSize, ShardSizes, Wish};
use super::Placement;
use super::{Card, Demand, Joints};
use crate::engine::api::KvTypes;
use crate::engine::decoder::DecoderConfig;
use crate::engine::group::{SplitPlan, StagePlan};
use candle_core::rocm_backend::candle_rocm::topology::Topology;
use candle_core::Device;
use candle_rocm_flash_attn::paged::CacheDType;
use serde::Serialize;
use std::fmt;
use worker::gguf::Gguf;
use worker::{Error, Result};

/// What a model is to be loaded for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Tokens for whose keys and values there should be room.
    pub tokens: u64,
    /// How keys and values are stored.
    pub kv: KvTypes,
    /// Layers, from the first on, whose experts stay in the host's memory; `None` is as few as it takes.
    pub host_experts: Option<usize>,
    /// Bytes of encoders of pictures and sounds.
    pub encoders: u64,
}

/// Where a model goes.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The device of what is not divided; of a model that is not, the one that has it.
    pub device: Device,
    /// How it is divided; `None` if one device has all.
    pub plan: Option<SplitPlan>,
    /// The same for people and programs, where several devices were named.
    pub report: Option<SplitReport>,
}

/// How a model is split, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitReport {
    /// `layers`, `tensor`, or `none`.
    pub split: &'static str,
    /// Why.
    pub why: String,
    /// In the order of their layers.
    pub stages: Vec<StageReport>,
    /// What every device of a tensor split has whole, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub whole: Vec<String>,
}

/// Some layers, and who computes them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageReport {
    /// Number of the first layer.
    pub first_layer: usize,
    /// Number of the last one.
    pub last_layer: usize,
    /// Its devices; several divide its matrices.
    pub devices: Vec<DevicePart>,
}

/// A device and its part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DevicePart {
    /// `rocm:N`.
    pub name: String,
    /// The hardware.
    pub description: String,
    /// Bytes of the weights that it has, as the file has them.
    pub weight_bytes: u64,
}

impl Placed {
    /// All on a device.
    pub fn whole(device: Device) -> Self {
        Self {
            device,
            plan: None,
            report: None,
        }
    }
}

/// Splits a checked file between the devices of a placement, and logs how.
///
/// # Errors
/// [`Error::Usage`] with why it cannot be as asked for, or not at all; [`Error::Device`] if a device fails.
pub(crate) fn plan(
    config: &DecoderConfig,
    header: &Gguf,
    placement: &Placement,
    needs: Needs,
) -> Result<Placed> {
    if !placement.is_shared() {
        return Ok(Placed::whole(placement.selected[0].device.clone()));
    }
    let kernel = Topology::read();
    let cards: Vec<Card> = (placement.selected.iter())
        .map(|one| Card::of(&one.device, &one.name, &one.description, &kernel))
        .collect();
    let devices: Vec<Device> = placement
        .selected
        .iter()
        .map(|one| one.device.clone())
        .collect();
    let names: Vec<String> = cards.iter().map(|card| card.name.clone()).collect();
    let joints = Joints::of(&devices, &names)?;
    let demand = demand(config, header, needs);
    let wish = Wish {
        split: placement.split,
        shares: &placement.shares,
        tokens: needs.tokens,
        host_experts: needs.host_experts.is_some_and(|layers| layers > 0),
        experts_may_stay: needs.host_experts.is_none(),
    };
    let shards = |shares: &[f32]| shard_sizes(config, header, &demand, shares);
    let choice = choose(&demand, &cards, &joints, &wish, &shards).map_err(Error::Usage)?;
    tracing::info!("{} ({})", choice.describe(&cards), choice.why);
    let stage = |stage: &super::choose::Stage| StagePlan {
        blocks: stage.blocks.clone(),
        devices: stage
            .cards
            .iter()
            .map(|card| devices[*card].clone())
            .collect(),
        shares: stage.shares.clone(),
    };
    let plan = SplitPlan {
        stages: choice.stages.iter().map(stage).collect(),
    };
    let cuts = &demand.cuts;
    (plan.check(config.blocks(), cuts))
        .map_err(|reason| Error::Usage(format!("--devices: {reason}")))?;
    Ok(Placed {
        device: plan.stages[0].devices[0].clone(),
        plan: Some(plan).filter(|plan| !plan.is_single()),
        report: Some(report(&choice, &cards)),
    })
}

fn report(choice: &Choice, cards: &[Card]) -> SplitReport {
    let stages = choice.stages.iter().map(|stage| {
        let parts = stage.cards.iter().zip(&stage.weights);
        StageReport {
            first_layer: stage.blocks.start,
            last_layer: stage.blocks.end.saturating_sub(1),
            devices: parts
                .map(|(card, weight_bytes)| DevicePart {
                    name: cards[*card].name.clone(),
                    description: cards[*card].description.clone(),
                    weight_bytes: *weight_bytes,
                })
                .collect(),
        }
    });
    SplitReport {
        split: choice.split().name(),
        why: choice.why.clone(),
        stages: stages.collect(),
        whole: choice.whole.clone(),
    }
}

impl fmt::Display for SplitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "split {} ({})", self.split, self.why)?;
        for stage in &self.stages {
            for part in &stage.devices {
                write!(
                    f,
                    "; {}: layers {}-{}, {:.2} GiB of weights",
                    part.name,
                    stage.first_layer,
                    stage.last_layer,
                    part.weight_bytes as f64 / f64::from(1 << 30)
                )?;
            }
        }
        Ok(())
    }
}

/// Elements by which the size of a stored one is found out.
const SAMPLE: usize = 4096;

fn demand(config: &DecoderConfig, header: &Gguf, needs: Needs) -> Demand {
    let sizes = config.part_sizes(header);
    let bytes = |dtype: CacheDType| dtype.vector_bytes(SAMPLE) as f64 / SAMPLE as f64;
    let element = (bytes(needs.kv.keys.into()) + bytes(needs.kv.values.into())) / 2.0;
    // Those of experts that stay in the host's memory take nothing here.
    let host_blocks = needs.host_experts.unwrap_or(0);
    let on_host = |block: usize| {
        if block < host_blocks {
            sizes.experts[block]
        } else {
            0
        }
    };
    let blocks: Vec<u64> = (sizes.blocks.iter().enumerate())
        .map(|(block, bytes)| bytes - on_host(block))
        .collect();
    let active = |(block, bytes): (usize, &u64)| {
        let experts = (sizes.experts[block] - on_host(block)) as f64;
        *bytes as f64 - experts * (1.0 - config.part_of_experts(block))
    };
    Demand {
        active: blocks.iter().enumerate().map(active).collect(),
        kv: sizes
            .kv_elements
            .iter()
            .map(|&elements| elements as f64 * element)
            .collect(),
        first: sizes.first,
        // Encoders work where answers come from.
        last: sizes.last + needs.encoders,
        each: sizes.each,
        cuts: sizes.cuts.clone(),
        experts: (0..blocks.len())
            .map(|block| sizes.experts[block] - on_host(block))
            .sum(),
        blocks,
    }
}

/// What each device has in a tensor split.
fn shard_sizes(
    config: &DecoderConfig,
    header: &Gguf,
    demand: &Demand,
    shares: &[f32],
) -> std::result::Result<ShardSizes, String> {
    let plan = config.divide(header, shares)?;
    let kv: f64 = demand.kv.iter().sum();
    let shard = |shard: usize| ShardSize {
        weights: plan.bytes(shard, header),
        kv: kv * config.part_of_keys(&plan, shard),
    };
    Ok(ShardSizes {
        shards: (0..plan.shards()).map(shard).collect(),
        whole: plan.whole().to_vec(),
    })
}
