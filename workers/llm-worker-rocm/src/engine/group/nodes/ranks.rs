//! The ranks of one node: its part of a model.

use super::command::WireCommand;
use super::follower::Joining;
use super::leader::{FarRank, Leader};
use super::link::{Far, FarInlet, FarOutlet};
use super::meeting::lost;
use super::message::{Loaded, Loading};
use super::plan::NodePlan;
use crate::engine::api::WeightBytes;
use crate::engine::decoder::{Decoder, Source, Unused};
use crate::engine::forward::Forward;
use crate::engine::group::command::Told;
use crate::engine::group::forward::{Facts, Group};
use crate::engine::group::link::local;
use crate::engine::group::load::{load_all, own_stream, shards, shares_memory};
use crate::engine::group::plan::Rank;
use crate::engine::group::rank::RankModel;
use crate::engine::group::thread::{Member, RankThread};
use crate::engine::group::watch::{Watch, LIMIT};
use candle_core::Device;
use candle_rocm_collective::rendezvous::Meeting;
use candle_rocm_collective::{rccl, tcp, Communicator};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use worker::device::release_unused;
use worker::{Error, Result};

/// How long a rank waits for one of another node, whose own watch sees sooner whether it stands still.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A follower's part of a model.
pub struct Part {
    ranks: Vec<RankThread>,
    watch: Arc<Watch>,
    watcher: Option<JoinHandle<()>>,
    pub(super) loaded: Loaded,
}

/// The ranks of this node, loaded and connected, but not yet at work.
struct Prepared {
    /// All ranks of the plan, with their nodes.
    all: Vec<(usize, Rank)>,
    /// Those of this node.
    models: Vec<RankModel>,
    watch: Arc<Watch>,
    loaded: Loaded,
}

impl Part {
    /// Loads what a follower has of a model, onto its devices in the order in which the plan names them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a plan that does not suit the model, and those of loading.
    pub(crate) fn load(
        source: &Source,
        plan: &NodePlan,
        joining: Joining,
        devices: &[Device],
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let prepared = prepare(source, plan, joining, devices, progress, |_| Ok(()))?;
        let Prepared {
            models,
            watch,
            loaded,
            ..
        } = prepared;
        let ranks = models
            .into_iter()
            .map(|model| RankThread::spawn(model.rank.clone(), &watch, model).map_err(of_system));
        Ok(Self {
            ranks: ranks.collect::<Result<_>>()?,
            watcher: Some(watch.start().map_err(of_system)?),
            watch,
            loaded,
        })
    }

    /// Has all ranks, or one, carry a command out that have to do with it. Gives what each says.
    ///
    /// # Errors
    /// If a rank is gone.
    pub(super) fn carry_out(
        &self,
        number: u64,
        only: Option<usize>,
        command: WireCommand,
    ) -> Result<Vec<(usize, candle_core::Result<Told>)>> {
        let failed = || Error::candle("a step");
        // Ranks take what is not theirs to their own devices.
        let command = Arc::new(command.command(&Device::Cpu).map_err(failed())?);
        let _under_way = self.watch.begin();
        let is_asked = |rank: &&RankThread| {
            only.is_none_or(|only| only == rank.rank().number) && command.concerns(rank.rank())
        };
        let asked: Vec<&RankThread> = self.ranks.iter().filter(is_asked).collect();
        for rank in &asked {
            rank.tell(number, &command).map_err(failed())?;
        }
        Ok(asked
            .iter()
            .map(|rank| (rank.rank().number, rank.told()))
            .collect())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.ranks.clear();
        self.watch.end();
        if let Some(watcher) = self.watcher.take() {
            // Of what it panicked was told.
            let _ = watcher.join();
        }
    }
}

/// Loads a model of which this node has the last part and the leader's followers have the others. `finish` has what
/// answers before it works, for encoders.
///
/// # Errors
/// [`Error::Usage`] for a plan that does not suit the model; [`Error::DeviceLost`] if another node fails; those of
/// loading.
pub(crate) fn lead(
    source: &Source,
    loading: &Loading,
    leader: &Arc<Leader>,
    devices: &[Device],
    progress: &dyn Fn(u64),
    finish: impl FnOnce(&mut Decoder) -> Result<()>,
) -> Result<Group> {
    let own = |meeting: &mut Meeting| {
        let joining = Joining {
            meeting,
            fate: leader.fate(),
        };
        prepare(source, &loading.plan, joining, devices, progress, finish)
    };
    let (prepared, others) = leader.load(loading, own)?;
    let Prepared {
        all,
        models,
        watch,
        loaded,
    } = prepared;
    let mut unused = loaded.unused;
    let mut notes = loaded.notes;
    let mut weights = loaded.weights;
    for other in others {
        unused = unused.intersection(&other.unused).cloned().collect();
        notes.merge(&other.notes, 0);
        for (sum, more) in weights.iter_mut().zip(other.weights) {
            *sum += more;
        }
    }
    source.refuse_unused(&unused)?;
    let mut own = None;
    let mut members: Vec<Box<dyn Member>> = Vec::new();
    for model in models {
        if model.rank.answers() {
            own = Some(model);
            continue;
        }
        let thread = RankThread::spawn(model.rank.clone(), &watch, model).map_err(of_system)?;
        members.push(Box::new(thread));
    }
    let far = all.into_iter().filter(|(node, _)| *node > 0);
    members.extend(far.map(|(node, rank)| -> Box<dyn Member> {
        Box::new(FarRank {
            rank,
            node,
            leader: leader.clone(),
        })
    }));
    members.sort_by_key(|member| member.rank().number);
    let Some(own) = own else {
        return Err(Error::Usage("node 0 has the last layers".to_string()));
    };
    let decoder = &own.decoder;
    let [device, host, mapped] = weights;
    let facts = Facts {
        vocab_size: decoder.vocab_size(),
        context_length: decoder.context_length(),
        device: decoder.device().clone(),
        kv_dtype: decoder.kv_dtype(),
        heads: decoder.heads(),
        adapters: source.adapters.len(),
        weights: WeightBytes {
            device,
            host,
            mapped,
        },
        fingerprint: notes.fingerprint(source.config),
    };
    Group::new(facts, own, members, watch).map_err(of_system)
}

fn of_system(error: std::io::Error) -> Error {
    Error::Runtime(format!("a rank's thread does not start: {error}"))
}

/// All ranks of a plan, in the order of their numbers, with their nodes; those of `node` compute on `devices`, in the
/// order in which the plan names them.
fn ranks_of(plan: &NodePlan, node: usize, devices: &[Device]) -> Vec<(usize, Rank)> {
    let all = plan.stages.iter().map(|stage| stage.devices.len()).sum();
    let mut own = devices.iter();
    let mut ranks = Vec::with_capacity(all);
    for (number, stage) in plan.stages.iter().enumerate() {
        for (shard, name) in stage.devices.iter().enumerate() {
            let is_own = stage.node == node;
            let device = is_own.then(|| own.next().cloned()).flatten();
            let rank = Rank {
                number: ranks.len(),
                ranks: all,
                stage: number,
                stages: plan.stages.len(),
                shard,
                shards: stage.devices.len(),
                blocks: stage.blocks.clone(),
                device: device.unwrap_or(Device::Cpu),
                elsewhere: (!is_own).then(|| format!("{name} of node {}", stage.node)),
            };
            ranks.push((stage.node, rank));
        }
    }
    ranks
}

fn prepare(
    source: &Source,
    plan: &NodePlan,
    joining: Joining,
    devices: &[Device],
    progress: &dyn Fn(u64),
    finish: impl FnOnce(&mut Decoder) -> Result<()>,
) -> Result<Prepared> {
    let Joining { meeting, fate } = joining;
    let config = source.config;
    plan.check(config.blocks(), &config.stage_starts())
        .map_err(|reason| {
            Error::Usage(format!("the model cannot be divided like that: {reason}"))
        })?;
    let node = meeting.node();
    let mut all = ranks_of(plan, node, devices);
    for (of, rank) in &mut all {
        if *of == node {
            rank.device = own_stream(&rank.device).map_err(Error::candle("opening a stream"))?;
        }
    }
    let own: Vec<Rank> = all
        .iter()
        .filter(|(of, _)| *of == node)
        .map(|(_, r)| r.clone())
        .collect();
    // Before anything that may fail on one node alone.
    let far = connect(meeting, &own)?;
    let shards = shards(source, None, &own)?;
    let mut decoders = load_all(source, &own, &shards, progress)?;
    let mut loaded = Loaded::default();
    let mut unused: Option<Unused> = None;
    for (rank, decoder) in own.iter().zip(&mut decoders) {
        if rank.answers() {
            finish(decoder)?;
            break;
        }
    }
    for (rank, decoder) in own.iter().zip(&decoders) {
        loaded.notes.merge(decoder.notes(), rank.shard);
        let weights = decoder.weight_bytes();
        let weights = [weights.device, weights.host, weights.mapped];
        for (sum, more) in loaded.weights.iter_mut().zip(weights) {
            *sum += more;
        }
        let of_rank = decoder.unused_adapters();
        unused = Some(match unused {
            Some(all) => all.intersection(of_rank).cloned().collect(),
            None => of_rank.clone(),
        });
        release_unused(&rank.device)?;
    }
    loaded.unused = unused.unwrap_or_default();
    let names = all
        .iter()
        .map(|(_, rank)| (rank.name(), rank.device.is_cpu()));
    let watch = Watch::new(names, LIMIT);
    let models = own.iter().zip(decoders);
    let mut models: Vec<RankModel> = models
        .map(|(rank, decoder)| RankModel::new(rank.clone(), decoder, &watch))
        .collect();
    for model in &mut models {
        model.sharers = own
            .iter()
            .filter(|other| shares_memory(other, &model.rank))
            .count();
    }
    // A failure of a rank here is one of this node, and one of another node is that of its first rank.
    let (told, aborted) = (fate.clone(), far.clone());
    watch.on_failure(move |reason| {
        told.fail(reason);
        for Far { headers, tensors } in &aborted {
            headers.abort(reason);
            tensors.abort(reason);
        }
        shards
            .iter()
            .flatten()
            .for_each(|shard| shard.communicator.abort(reason));
    });
    let nodes: Vec<usize> = all.iter().map(|(node, _)| *node).collect();
    let watching: Weak<Watch> = Arc::downgrade(&watch);
    let node_failed = Arc::new(move |node: usize, reason: &str| {
        if let Some(watch) = watching.upgrade() {
            let first = nodes.iter().position(|of| *of == node);
            watch.fail(first.unwrap_or(0), reason);
        }
    });
    let settled = node_failed.clone();
    fate.on_node_failure(move |node, reason| node_failed(node, reason));
    let cause = fate.clone();
    // A link that breaks tells the watch of the node that is the cause before it tells of itself: the first counts.
    let settle: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        if let Some((node, reason)) = cause.failing_node() {
            settled(node, &reason);
        }
    });
    // Connections are numbered by node, then by rank.
    let mut numbers: Vec<usize> = (0..all.len()).collect();
    numbers.sort_by_key(|rank| (all[*rank].0, *rank));
    let of_connections = |rank: usize| numbers.iter().position(|other| *other == rank).unwrap_or(0);
    for (to_node, to) in &all {
        // All shards of a stage have the same stream: each takes it of one of those before.
        let is_before = |r: &Rank| r.stage + 1 == to.stage && r.shard == to.shard % r.shards;
        let Some((from_node, from)) = all.iter().find(|(_, rank)| is_before(rank)) else {
            continue;
        };
        let place = |rank: &Rank| own.iter().position(|other| other.number == rank.number);
        match (place(from), place(to)) {
            (Some(from), Some(at)) if from_node == to_node => {
                let link = local(to.number, &to.device, &watch);
                let (outlet, inlet) = link.map_err(Error::candle("opening a stream"))?;
                models[from].behind.push(Box::new(outlet));
                models[at].before = Some(Box::new(inlet));
            }
            (Some(at), None) => models[at].behind.push(Box::new(FarOutlet {
                far: far[at].clone(),
                to: of_connections(to.number),
                rank: from.number,
                watch: watch.clone(),
                settle: settle.clone(),
            })),
            (None, Some(at)) => {
                models[at].before = Some(Box::new(FarInlet {
                    far: far[at].clone(),
                    from: of_connections(from.number),
                    rank: to.number,
                    watch: watch.clone(),
                    settle: settle.clone(),
                }));
            }
            _ => {}
        }
    }
    Ok(Prepared {
        all,
        models,
        watch,
        loaded,
    })
}

/// The connections of this node's ranks to those of all others: by RCCL if all are GPUs and all nodes have it, else over
/// TCP through the hosts' memory.
fn connect(meeting: &mut Meeting, own: &[Rank]) -> Result<Vec<Far>> {
    let broken = Error::candle;
    let on_host = vec![Device::Cpu; own.len()];
    let headers = tcp::connect_within(meeting, &on_host, PATIENCE);
    let headers = headers.map_err(broken("connecting hosts"))?;
    let devices: Vec<Device> = own.iter().map(|rank| rank.device.clone()).collect();
    let tensors = match by_rccl(meeting, &devices)? {
        Some(tensors) => tensors,
        None => {
            let tensors = tcp::connect_within(meeting, &devices, PATIENCE);
            tensors.map_err(broken("connecting devices of several hosts"))?
        }
    };
    if let Some(first) = tensors.first() {
        tracing::info!("hosts are connected by {}", first.backend());
    }
    let both = headers.into_iter().zip(tensors);
    Ok(both
        .map(|(headers, tensors)| Far { headers, tensors })
        .collect())
}

/// The connections by RCCL; nothing unless it works on all nodes.
fn by_rccl(meeting: &mut Meeting, devices: &[Device]) -> Result<Option<Vec<Communicator>>> {
    let has_it = devices.iter().all(Device::is_rocm) && rccl::version().is_ok();
    if !all_say_so(meeting, has_it)? {
        return Ok(None);
    }
    let connected = rccl::connect(meeting, devices);
    if let Err(error) = &connected {
        tracing::warn!("hosts are not connected by RCCL: {error}");
    }
    match all_say_so(meeting, connected.is_ok())? {
        true => Ok(connected.ok()),
        false => Ok(None),
    }
}

/// Whether all nodes say yes.
fn all_say_so(meeting: &mut Meeting, own: bool) -> Result<bool> {
    let all = meeting.all_gather(&[u8::from(own)]).map_err(lost)?;
    Ok(all.iter().all(|said| said == &[1]))
}
