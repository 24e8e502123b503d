//! Which split suits a model and its cards.
//!
//! What decides is that generating reads all weights for each token: one card reads them at its bandwidth, stages that
//! follow one another ("layers") are no faster than that together, and cards that divide the matrices ("tensor") read at
//! once, but have to exchange two vectors in every layer.

use super::cut::{Cut, Stages};
use super::{Card, Demand, Joints, Split};
use std::fmt::Write;
use std::ops::Range;

/// Tokens for whose keys and values there has to be room.
const LEAST_TOKENS: u64 = 512;
/// Exchanges of a layer in a tensor split: behind the mixer, and behind the feed-forward part.
const EXCHANGES: f64 = 2.0;
/// Seconds of an exchange by kernels that read the others' memory, and by RCCL: orders of magnitude, as measured where
/// docs/multi-gpu.md says.
const DIRECT_SECONDS: f64 = 12e-6;
const RCCL_SECONDS: f64 = 25e-6;
/// A tensor split has to be so much faster.
const GAIN: f64 = 1.1;

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub struct Wish<'a> {
    /// How to split.
    pub split: Split,
    /// The part of each card, in any unit; empty if the cards decide.
    pub shares: &'a [f64],
    /// Tokens for whose keys and values there should be room.
    pub tokens: u64,
    /// Whether it was asked that experts stay in the host's memory.
    pub host_experts: bool,
    /// Whether they may as far as it takes for the rest to fit.
    pub experts_may_stay: bool,
}

/// What a card has of a model in a tensor split.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSize {
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of keys and values of a token.
    pub kv: f64,
}

/// A tensor split, if it is possible.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSizes {
    /// In the order of the cards.
    pub shards: Vec<ShardSize>,
    /// What every card has whole, and why.
    pub whole: Vec<String>,
}

/// How a model is split.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// In the order of their blocks.
    pub stages: Vec<Stage>,
    /// Why, in words.
    pub why: String,
    /// What every card of a tensor split has whole, and why.
    pub whole: Vec<String>,
}

/// Some of a model's blocks, and who computes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Its blocks.
    pub blocks: Range<usize>,
    /// Its cards, by their places among all. Several divide its matrices between them.
    pub cards: Vec<usize>,
    /// The part of each of them.
    pub shares: Vec<f32>,
    /// Bytes of weights of each of them.
    pub weights: Vec<u64>,
}

impl Choice {
    /// What it is, in a word.
    pub fn split(&self) -> Split {
        match &self.stages[..] {
            [only] if only.cards.len() == 1 => Split::None,
            [_] => Split::Tensor,
            _ => Split::Layers,
        }
    }

    /// Who has what, for people: `layers 0-31 on rocm:0 (…), 32-63 on rocm:1 (…)`.
    pub fn describe(&self, cards: &[Card]) -> String {
        let name = |card: &usize| format!("{} ({})", cards[*card].name, cards[*card].description);
        let mut text = String::new();
        match self.split() {
            Split::Layers => {
                for (at, stage) in self.stages.iter().enumerate() {
                    let start = if at == 0 { "layers " } else { ", " };
                    let (first, last) = (stage.blocks.start, stage.blocks.end - 1);
                    let blocks = if first == last {
                        format!("{first}")
                    } else {
                        format!("{first}-{last}")
                    };
                    let names: Vec<String> = stage.cards.iter().map(name).collect();
                    // Writing to a string does not fail.
                    let _ = write!(text, "{start}{blocks} on {}", names.join(" and "));
                }
            }
            Split::Tensor => {
                let names: Vec<String> = self.stages[0].cards.iter().map(name).collect();
                let _ = write!(text, "every layer divided between {}", names.join(", "));
                if !self.whole.is_empty() {
                    let _ = write!(text, "; whole on each of them: {}", self.whole.join("; "));
                }
            }
            Split::None | Split::Auto => {
                let _ = write!(text, "all on {}", name(&self.stages[0].cards[0]));
            }
        }
        text
    }
}

/// Chooses.
///
/// # Errors
/// Why it cannot be as asked for, or not at all, in words.
pub fn choose(
    demand: &Demand,
    cards: &[Card],
    joints: &Joints,
    wish: &Wish,
    shards: &dyn Fn(&[f32]) -> Result<ShardSizes, String>,
) -> Result<Choice, String> {
    let chooser = Chooser {
        demand,
        cards,
        joints,
        wish,
        shards,
    };
    chooser.check_shares()?;
    match wish.split {
        _ if cards.len() == 1 => Ok(chooser.one(0, "one GPU is all there is".to_string())),
        Split::None => {
            let roomiest = |a: &usize, b: &usize| cards[*a].room.cmp(&cards[*b].room);
            // Of equal ones the first.
            let card = (0..cards.len()).rev().max_by(roomiest).unwrap_or(0);
            Ok(chooser.one(card, "--split none: the one with the most room".to_string()))
        }
        Split::Layers => chooser.layers("--split layers".to_string()),
        Split::Tensor => chooser
            .tensor()
            .map_err(|reason| format!("--split tensor: {reason}")),
        Split::Auto => match chooser.tensor_pays() {
            Ok(choice) => Ok(choice),
            Err(reason) => chooser.layers(format!("no tensor split, for {reason}")),
        },
    }
}

struct Chooser<'a> {
    demand: &'a Demand,
    cards: &'a [Card],
    joints: &'a Joints,
    wish: &'a Wish<'a>,
    shards: &'a dyn Fn(&[f32]) -> Result<ShardSizes, String>,
}

impl Chooser<'_> {
    fn check_shares(&self) -> Result<(), String> {
        let (shares, cards) = (self.wish.shares, self.cards.len());
        if shares.is_empty() {
            return Ok(());
        }
        if shares.len() != cards {
            return Err(format!(
                "--shares has {} numbers for {cards} GPUs",
                shares.len()
            ));
        }
        match shares.iter().all(|share| share.is_finite() && *share > 0.0) {
            true => Ok(()),
            false => Err("--shares: each GPU's share must be a number above 0; leave out of --devices what is to have none".to_string()),
        }
    }

    fn one(&self, card: usize, why: String) -> Choice {
        Choice {
            stages: vec![Stage {
                blocks: 0..self.demand.blocks.len(),
                cards: vec![card],
                shares: vec![1.0],
                weights: vec![self.demand.weights()],
            }],
            why,
            whole: Vec::new(),
        }
    }

    fn layers(&self, why: String) -> Result<Choice, String> {
        let cut = self.cut()?;
        let stage = |(card, blocks): (usize, &Range<usize>)| Stage {
            blocks: blocks.clone(),
            cards: vec![card],
            shares: vec![1.0],
            weights: vec![self.demand.bytes(blocks.clone(), 0)],
        };
        Ok(Choice {
            stages: cut.blocks.iter().enumerate().map(stage).collect(),
            why,
            whole: Vec::new(),
        })
    }

    /// The cut by room for as many tokens as fit, or by shares.
    fn cut(&self) -> Result<Cut, String> {
        let demand = self.demand;
        let rooms: Vec<f64> = self.cards.iter().map(|card| card.room as f64).collect();
        let speeds: Vec<f64> = self.cards.iter().map(|card| card.bandwidth).collect();
        let cut = |tokens, rooms: &[f64], speeds: &[f64]| {
            let stages = Stages {
                demand,
                tokens,
                rooms,
                speeds,
            };
            stages.cut().ok_or_else(|| {
                format!(
                    "{} GPUs, and this model cannot be cut into more than {} stages: name fewer of them in --devices",
                    self.cards.len(),
                    demand.cuts.len() + 1
                )
            })
        };
        if !self.wish.shares.is_empty() {
            // Of equal speed, so that shares alone decide; numbers of bytes, for nothing is too full.
            let total: f64 = self.wish.shares.iter().sum();
            let all = 1e3 * demand.weights() as f64 / total;
            let shares: Vec<f64> = self.wish.shares.iter().map(|share| share * all).collect();
            let cut = cut(0, &shares, &vec![1.0; shares.len()])?;
            for (card, blocks) in cut.blocks.iter().enumerate() {
                let (bytes, room) = (
                    demand.bytes(blocks.clone(), LEAST_TOKENS),
                    self.cards[card].room,
                );
                if bytes > room && !self.fits_without_experts() {
                    return Err(format!(
                        "--shares gives {} to {}, which has room for {}; give it less",
                        gib(bytes),
                        self.cards[card].name,
                        gib(room)
                    ));
                }
            }
            return Ok(cut);
        }
        let least = cut(LEAST_TOKENS, &rooms, &speeds)?;
        if least.fill > 1.0 {
            return match self.fits_without_experts() {
                true => Ok(least),
                false => Err(self.does_not_fit()),
            };
        }
        let wanted = self.wish.tokens.max(LEAST_TOKENS);
        // The most tokens for which there is room, to an eighth.
        let (mut fits, mut too_many) = (LEAST_TOKENS, wanted + 1);
        let mut best = least;
        let mut tokens = wanted;
        while too_many - fits > fits / 8 {
            let found = cut(tokens, &rooms, &speeds)?;
            if found.fill <= 1.0 {
                (fits, best) = (tokens, found);
            } else {
                too_many = tokens;
            }
            tokens = fits + (too_many - fits) / 2;
            if tokens == fits {
                break;
            }
        }
        Ok(best)
    }

    /// Whether the cards have room for what is left where experts stay in the host's memory.
    fn fits_without_experts(&self) -> bool {
        let demand = self.demand;
        let may_stay = self.wish.experts_may_stay && demand.experts > 0;
        let needs = demand.weights() - demand.experts + demand.cache(LEAST_TOKENS);
        let room: u64 = self.cards.iter().map(|card| card.room).sum();
        may_stay && needs <= room
    }

    /// What the model takes, what there is, and what would help.
    fn does_not_fit(&self) -> String {
        let demand = self.demand;
        let rooms: Vec<String> = (self.cards.iter())
            .map(|card| format!("{} on {} ({})", gib(card.room), card.name, card.description))
            .collect();
        let all: u64 = self.cards.iter().map(|card| card.room).sum();
        let needs = demand.weights() + demand.cache(LEAST_TOKENS);
        let why = match needs <= all {
            true => "but no cut into whole layers fits",
            false => "which is too little",
        };
        let experts = match demand.experts {
            0 => String::new(),
            bytes => format!(
                "; --cpu-moe, which keeps the experts ({}) in the host's memory",
                gib(bytes)
            ),
        };
        format!(
            "the model does not fit: its weights take {}, keys and values of {LEAST_TOKENS} tokens {}, and there is room for {} ({} in all), {why}. What helps: further GPUs in --devices; a smaller type of weights (quantize){experts}; ending what else uses the GPUs",
            gib(demand.weights()),
            gib(demand.cache(LEAST_TOKENS)),
            rooms.join(", "),
            gib(all)
        )
    }

    /// A tensor split, whether or not it pays.
    fn tensor(&self) -> Result<Choice, String> {
        if self.wish.host_experts {
            return Err(
                "experts in the host's memory (--cpu-moe, --n-cpu-moe) go with --split layers only"
                    .to_string(),
            );
        }
        let arch = &self.cards[0].arch;
        if let Some(other) = self.cards.iter().find(|card| card.arch != *arch) {
            return Err(format!(
                "{} is a {arch} and {} a {}, whose kernels round differently, so that their results would drift apart; --split layers takes them together",
                self.cards[0].name, other.name, other.arch
            ));
        }
        let shares: Vec<f32> = match self.wish.shares {
            [] => vec![1.0; self.cards.len()],
            shares => shares.iter().map(|share| *share as f32).collect(),
        };
        let sizes = (self.shards)(&shares)?;
        for (card, shard) in self.cards.iter().zip(&sizes.shards) {
            let bytes = shard.weights + (shard.kv * LEAST_TOKENS as f64) as u64;
            if bytes > card.room {
                return Err(format!(
                    "its part for {} takes {}, and there is room for {}",
                    card.name,
                    gib(bytes),
                    gib(card.room)
                ));
            }
        }
        Ok(Choice {
            stages: vec![Stage {
                blocks: 0..self.demand.blocks.len(),
                cards: (0..self.cards.len()).collect(),
                shares,
                weights: sizes.shards.iter().map(|shard| shard.weights).collect(),
            }],
            why: "--split tensor".to_string(),
            whole: sizes.whole,
        })
    }

    /// A tensor split if nothing speaks against it; else what does.
    fn tensor_pays(&self) -> Result<Choice, String> {
        let seconds = match self.joints {
            Joints { apart: None, .. } => DIRECT_SECONDS,
            Joints { rccl: true, .. } => RCCL_SECONDS,
            Joints {
                apart: Some(why), ..
            } => return Err(format!("{why}, and there is no RCCL")),
        };
        let mut choice = self.tensor()?;
        let (demand, blocks) = (self.demand, self.demand.blocks.len());
        let all = demand.active(0..blocks);
        // As on one card: stages read one after the other.
        let speeds = || self.cards.iter().map(|card| card.bandwidth);
        let together: f64 = speeds().sum();
        let by_layers = all * self.cards.len() as f64 / together;
        let weights = demand.weights().max(1) as f64;
        let parts = choice.stages[0].weights.iter().zip(speeds());
        let slowest = parts.map(|(part, speed)| all * (*part as f64 / weights) / speed);
        let by_tensors = slowest.fold(0.0, f64::max) + EXCHANGES * blocks as f64 * seconds;
        if by_tensors * GAIN > by_layers {
            return Err(format!(
                "it would not be faster: a token takes about {:.1} ms by layers and {:.1} ms with what is exchanged in {blocks} layers",
                by_layers * 1e3,
                by_tensors * 1e3
            ));
        }
        choice.why = format!(
            "a token takes about {:.1} ms in place of {:.1} ms by layers",
            by_tensors * 1e3,
            by_layers * 1e3
        );
        Ok(choice)
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
