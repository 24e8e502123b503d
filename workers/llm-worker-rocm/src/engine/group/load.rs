//! From a file to the ranks of a group, which load at the same time.

use super::forward::{Facts, Group};
use super::link::local;
use super::plan::{Rank, SplitPlan};
use super::rank::RankModel;
use super::thread::{Member, RankThread};
use super::watch::{Watch, LIMIT};
use crate::engine::api::WeightBytes;
use crate::engine::decoder::{Decoder, Notes, Part, Source, Unused};
use crate::engine::forward::Forward;
use crate::engine::shard::Shard;
use candle_core::Device;
use candle_rocm_collective::{host, Communicator, Options};
use std::sync::{mpsc, Arc};
use worker::device::release_unused;
use worker::{Error, Result};

/// Loads a model onto the devices of a plan, each of which gets a stream of its own. `finish` has the part that answers
/// before it works, for encoders.
///
/// # Errors
/// [`Error::Usage`] for a plan that does not suit the model, and those of [`Decoder::load_part`].
pub(crate) fn load(
    source: &Source,
    plan: &SplitPlan,
    progress: &dyn Fn(u64),
    finish: impl FnOnce(&mut Decoder) -> Result<()>,
) -> Result<Group> {
    let config = source.config;
    plan.check(config.blocks(), &config.stage_starts())
        .map_err(|reason| {
            Error::Usage(format!("the model cannot be divided like that: {reason}"))
        })?;
    let mut ranks = plan.ranks();
    for rank in &mut ranks {
        rank.device = own_stream(&rank.device).map_err(Error::candle("opening a stream"))?;
    }
    let shards = shards(source, Some(plan), &ranks)?;
    let mut decoders = load_all(source, &ranks, &shards, progress)?;
    let parts = || ranks.iter().zip(&decoders);
    // What belongs to no rank's matrices belongs to none of the model.
    let unused = decoders
        .iter()
        .map(|decoder| decoder.unused_adapters().clone());
    let unused = unused.reduce(|all, own| all.intersection(&own).cloned().collect::<Unused>());
    source.refuse_unused(&unused.unwrap_or_default())?;
    let mut notes = Notes::default();
    let mut weights = WeightBytes::default();
    for (rank, decoder) in parts() {
        notes.merge(decoder.notes(), rank.shard);
        let own = decoder.weight_bytes();
        weights.device += own.device;
        weights.host += own.host;
        weights.mapped += own.mapped;
        tracing::info!(
            "{}: layers {} to {}, {:.1} MiB",
            rank.name(),
            rank.blocks.start,
            rank.blocks.end - 1,
            (own.device + own.host) as f64 / f64::from(1 << 20)
        );
    }
    let answering = ranks.iter().position(Rank::answers).unwrap_or(0);
    let own = &mut decoders[answering];
    finish(own)?;
    let facts = Facts {
        vocab_size: own.vocab_size(),
        context_length: own.context_length(),
        device: own.device().clone(),
        kv_dtype: own.kv_dtype(),
        heads: own.heads(),
        adapters: source.adapters.len(),
        weights,
        fingerprint: notes.fingerprint(config),
    };
    for rank in &ranks {
        release_unused(&rank.device)?;
    }
    let group = connect(ranks, decoders, facts)?;
    for shard in shards.into_iter().flatten() {
        group.abort_on_failure(shard.communicator);
    }
    Ok(group)
}

/// What each rank shares its stage with, in the order of ranks; nothing where a stage has one device. Without a plan all
/// of a stage have equal shares.
pub(super) fn shards(
    source: &Source,
    plan: Option<&SplitPlan>,
    ranks: &[Rank],
) -> Result<Vec<Option<Shard>>> {
    let mut shards = vec![None; ranks.len()];
    let firsts = ranks.iter().enumerate();
    for (at, first) in firsts.filter(|(_, rank)| rank.shard == 0 && rank.shards > 1) {
        let own = &ranks[at..at + first.shards];
        let equal = vec![1.0; own.len()];
        let shares = match plan.map(|plan| &plan.stages[first.stage].shares) {
            Some(shares) if !shares.is_empty() => shares,
            _ => &equal,
        };
        let plan = source.config.divide(source.file.header(), shares);
        let plan = Arc::new(plan.map_err(Error::Usage)?);
        let devices: Vec<Device> = own.iter().map(|rank| rank.device.clone()).collect();
        let communicators = join(&devices).map_err(Error::candle("joining the GPUs"))?;
        for (shard, communicator) in shards[at..].iter_mut().zip(communicators) {
            *shard = Some(Shard {
                plan: plan.clone(),
                communicator,
            });
        }
    }
    Ok(shards)
}

/// Ranks of devices that exchange what each has computed: on GPUs by what the check and the measurement at the start
/// choose, see [`candle_rocm_collective::choice`].
fn join(devices: &[Device]) -> candle_core::Result<Vec<Communicator>> {
    match devices.iter().all(Device::is_cpu) {
        true => host::group(devices),
        false => candle_rocm_collective::group(devices, &Options::from_env()?),
    }
}

/// The parts of all ranks, in their order.
pub(super) fn load_all(
    source: &Source,
    ranks: &[Rank],
    shards: &[Option<Shard>],
    progress: &dyn Fn(u64),
) -> Result<Vec<Decoder>> {
    let (told, bytes) = mpsc::channel();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (ranks.iter().zip(shards))
            .map(|(rank, shard)| {
                let told = told.clone();
                scope.spawn(move || {
                    let tell = |bytes| {
                        // Whoever shows progress may have stopped to.
                        let _ = told.send(bytes);
                    };
                    let source = Source {
                        shard: shard.as_ref(),
                        ..*source
                    };
                    load_rank(&source, rank, &tell)
                })
            })
            .collect();
        drop(told);
        bytes.iter().for_each(progress);
        let loaded = threads.into_iter().zip(ranks).map(|(thread, rank)| {
            let outcome = thread
                .join()
                .unwrap_or_else(|_| Err(Error::Runtime("loading the model panicked".to_string())));
            outcome.inspect_err(|_| tracing::error!("loading failed on {}", rank.name()))
        });
        loaded.collect()
    })
}

/// One rank's part.
fn load_rank(source: &Source, rank: &Rank, progress: &dyn Fn(u64)) -> Result<Decoder> {
    let part = Part {
        blocks: rank.blocks.clone(),
        all: source.config.blocks(),
    };
    let loaded = Decoder::load_part(source, &part, &rank.device, progress);
    if let (Err(error), Some(shard)) = (&loaded, source.shard) {
        // The others wait for it.
        shard.communicator.abort(&error.to_string());
    }
    loaded
}

/// Links ranks that have loaded, and starts the threads of those that do not answer.
fn connect(ranks: Vec<Rank>, decoders: Vec<Decoder>, facts: Facts) -> Result<Group> {
    let system = |error| Error::Runtime(format!("a rank's thread does not start: {error}"));
    let names = ranks.iter().map(|rank| (rank.name(), rank.device.is_cpu()));
    let watch = Watch::new(names, LIMIT);
    let models = ranks.iter().zip(decoders);
    let mut models: Vec<RankModel> = models
        .map(|(rank, decoder)| RankModel::new(rank.clone(), decoder, &watch))
        .collect();
    for (to, rank) in ranks.iter().enumerate() {
        models[to].sharers = ranks.iter().filter(|r| shares_memory(r, rank)).count();
        // All shards of a stage have the same stream: each takes it of one of those before.
        let before = |r: &&Rank| r.stage + 1 == rank.stage && r.shard == rank.shard % r.shards;
        if let Some(before) = ranks.iter().find(before) {
            let link = local(to, &rank.device, &watch);
            let (outlet, inlet) = link.map_err(Error::candle("opening a stream"))?;
            models[before.number].behind.push(Box::new(outlet));
            models[to].before = Some(Box::new(inlet));
        }
    }
    let mut own = None;
    let mut others: Vec<Box<dyn Member>> = Vec::new();
    for model in models {
        if model.rank.answers() {
            own = Some(model);
            continue;
        }
        let thread = RankThread::spawn(model.rank.clone(), &watch, model).map_err(system)?;
        others.push(Box::new(thread));
    }
    let Some(own) = own else {
        return Err(Error::Usage("a plan has a last stage".to_string()));
    };
    Group::new(facts, own, others, watch).map_err(system)
}

/// Whether caches of both ranks come from the same memory.
pub(super) fn shares_memory(one: &Rank, other: &Rank) -> bool {
    match (&one.device, &other.device) {
        (Device::Rocm(one), Device::Rocm(other)) => {
            one.device().ordinal() == other.device().ordinal()
        }
        (one, other) => one.is_cpu() && other.is_cpu(),
    }
}

/// The device with a stream that nobody else has: what others enqueue while a graph is recorded must not end up in it.
pub(crate) fn own_stream(device: &Device) -> candle_core::Result<Device> {
    match device {
        Device::Rocm(device) => Device::new_rocm_with_stream(device.device().ordinal()),
        device => Ok(device.clone()),
    }
}
