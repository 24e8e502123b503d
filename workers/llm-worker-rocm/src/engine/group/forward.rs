//! A model divided between devices, behind the engine's border to models.

use super::command::{Command, Told};
use super::failure::Failed;
use super::plan::Rank;
use super::rank::RankModel;
use super::thread::{guarded, Member};
use super::watch::{State, Watch};
use crate::engine::api::{AdapterUse, GraphUse, KvDType, KvTypes, WeightBytes};
use crate::engine::decoder::Layout;
use crate::engine::forward::{
    CacheOptions, CachePart, Decoded, Forward, HeadStep, Predicted, SampleParams, Step,
};
use crate::engine::media::{Features, MediaItem, StepMedia};
use crate::engine::snapshots::{Place, Snapshots};
use candle_core::{bail, Device, Error, Result, Tensor};
use candle_rocm_collective::Communicator;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Ranks that compute one model together. The one that answers works in whatever thread calls; the others have threads of
/// their own. All are told the same, in the same order, and a call returns when all have done it.
pub struct Group {
    facts: Facts,
    /// The rank that answers; none while the group is dropped.
    own: RefCell<Option<RankModel>>,
    rank: Rank,
    /// The others, in the order of their numbers.
    others: Vec<Box<dyn Member>>,
    watch: Arc<Watch>,
    watcher: Option<JoinHandle<()>>,
    /// Commands so far.
    number: Cell<u64>,
    /// What the sequences of the next step want of adapters.
    uses: Vec<Arc<[AdapterUse]>>,
    /// How the memory of each rank is laid out, in the order of their numbers.
    layouts: Vec<Layout>,
    without_graphs: Option<String>,
}

/// What is known of a model since it was loaded.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub vocab_size: usize,
    pub context_length: usize,
    pub device: Device,
    pub kv_dtype: KvDType,
    pub heads: usize,
    pub adapters: usize,
    pub weights: WeightBytes,
    pub fingerprint: [u8; 32],
}

impl Group {
    pub(super) fn new(
        facts: Facts,
        own: RankModel,
        others: Vec<Box<dyn Member>>,
        watch: Arc<Watch>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            facts,
            rank: own.rank.clone(),
            own: RefCell::new(Some(own)),
            others,
            watcher: Some(watch.start()?),
            watch,
            number: Cell::new(0),
            uses: Vec::new(),
            layouts: Vec::new(),
            without_graphs: None,
        })
    }

    /// Wakes ranks that wait in a collective once the group has failed.
    pub(super) fn abort_on_failure(&self, communicator: Communicator) {
        self.watch
            .on_failure(move |reason| communicator.abort(reason));
    }

    /// Has all ranks carry a command out that have to do with it. Gives what each says, in the order of their numbers.
    fn run(&self, command: Command, samples: Option<&[SampleParams]>) -> Result<Vec<Told>> {
        let command = Arc::new(command);
        let of_all = |rank: &Rank| command.concerns(rank).then(|| command.clone());
        self.run_each(of_all, samples)
    }

    /// The same of a command for each.
    fn run_each(
        &self,
        command: impl Fn(&Rank) -> Option<Arc<Command>>,
        samples: Option<&[SampleParams]>,
    ) -> Result<Vec<Told>> {
        self.watch.check()?;
        let number = self.number.get() + 1;
        self.number.set(number);
        let _under_way = self.watch.begin();
        let mut asked = Vec::new();
        for other in &self.others {
            if let Some(command) = command(other.rank()) {
                if let Err(error) = other.tell(number, &command) {
                    self.watch.fail(other.rank().number, &error.to_string());
                    self.watch.check()?;
                }
                asked.push(other);
            }
        }
        let own = match command(&self.rank) {
            None => Ok(Told::Done),
            Some(command) => {
                let mark = self.watch.mark(self.rank.number);
                mark.is_here();
                match &mut *self.own.borrow_mut() {
                    Some(own) => guarded(&self.rank, &self.watch, own, (number, &command), samples),
                    None => Err(Error::msg("the model is gone")),
                }
            }
        };
        let mut told: Vec<(&Rank, Result<Told>)> = Vec::new();
        let is_far = asked.iter().any(|other| other.rank().elsewhere.is_some());
        let state = if is_far {
            State::Elsewhere
        } else {
            State::Other
        };
        let _waits = self.watch.mark(self.rank.number).enter(state);
        for other in asked {
            told.push((other.rank(), other.told()));
        }
        self.watch.check()?;
        told.push((&self.rank, own));
        told.sort_by_key(|(rank, _)| rank.number);
        // An error that led to others tells more than these.
        let follows = |told: &Result<Told>| match told {
            Err(error) => Failed::of(error).is_some(),
            Ok(_) => true,
        };
        let first = told.iter().position(|(_, told)| !follows(told));
        if let Some(first) = first {
            let (rank, told) = told.swap_remove(first);
            let name = rank.name();
            return told.map(|_| Vec::new()).map_err(|e| e.context(name));
        }
        told.into_iter().map(|(_, told)| told).collect()
    }

    /// The same, of which only what the answering rank says counts.
    fn ask(&self, command: Command, samples: Option<&[SampleParams]>) -> Result<Told> {
        let mut told = self.run(command, samples)?;
        // Ranks of the last stage behind the first of it have nothing to say.
        let said = told.iter().rposition(|told| !matches!(told, Told::Done));
        Ok(said.map_or(Told::Done, |said| told.swap_remove(said)))
    }

    fn pass(&mut self, step: &Step, media: Option<Arc<StepMedia>>, rows: usize) -> Result<Tensor> {
        let command = Command::Pass {
            step: step.clone(),
            media,
            uses: std::mem::take(&mut self.uses),
            rows,
        };
        match self.ask(command, None)? {
            Told::Logits(logits) => Ok(logits),
            other => bail!("{other:?} in place of logits"),
        }
    }

    /// What each rank has of a cache, and the widest sliding window.
    fn measure(&self, dtype: KvTypes) -> (Vec<CachePart>, Option<usize>) {
        // Ranks that do not answer have no part; the next step says why.
        let told = self.run(Command::Measure(dtype), None).unwrap_or_default();
        let measured = told.into_iter().filter_map(|told| match told {
            Told::Measured(part, window) => Some((part, window)),
            _ => None,
        });
        let (parts, windows): (Vec<_>, Vec<_>) = measured.unzip();
        (parts, windows.into_iter().max().flatten())
    }

    fn sum(&self, dtype: KvTypes, of: fn(&CachePart) -> usize) -> usize {
        self.measure(dtype).0.iter().map(of).sum()
    }

    /// All ranks' memory.
    fn layout(&self) -> Option<Layout> {
        Layout::of_all(&self.layouts)
    }
}

impl Forward for Group {
    fn vocab_size(&self) -> usize {
        self.facts.vocab_size
    }

    fn context_length(&self) -> usize {
        self.facts.context_length
    }

    fn device(&self) -> &Device {
        &self.facts.device
    }

    fn devices(&self) -> Vec<Device> {
        let ranks = self.others.iter().map(|other| other.rank());
        let mut ranks: Vec<&Rank> = ranks.chain([&self.rank]).collect();
        ranks.sort_by_key(|rank| rank.number);
        ranks.iter().map(|rank| rank.device.clone()).collect()
    }

    fn weight_bytes(&self) -> WeightBytes {
        self.facts.weights
    }

    fn can_take_back(&self) -> bool {
        true
    }

    fn kv_dtype(&self) -> KvDType {
        self.facts.kv_dtype
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.sum(dtype, |part| part.token_bytes)
    }

    fn window(&self) -> Option<usize> {
        self.measure(self.facts.kv_dtype.into()).1
    }

    fn kv_window_bytes(&self, dtype: KvTypes) -> usize {
        self.sum(dtype, |part| part.window_bytes)
    }

    fn state_bytes(&self) -> usize {
        self.sum(self.facts.kv_dtype.into(), |part| part.state_bytes)
    }

    fn cache_parts(&self, dtype: KvTypes) -> Vec<CachePart> {
        let mut parts = self.measure(dtype).0;
        // The answering rank comes last.
        if let Some(last) = parts.get(self.rank.number).copied() {
            parts.remove(self.rank.number);
            parts.push(last);
        }
        parts
    }

    fn snapshots(&mut self) -> Option<&mut dyn Snapshots> {
        Some(self)
    }

    fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        let told = self.run(Command::Reserve(*cache), None)?;
        let layouts = told.into_iter().filter_map(|told| match told {
            Told::Reserved(layout) => Some(layout),
            _ => None,
        });
        self.layouts = layouts.collect();
        Ok(())
    }

    fn forward(&mut self, step: &Step) -> Result<Tensor> {
        self.pass(step, None, usize::MAX)
    }

    fn forward_media(&mut self, step: &Step, media: &StepMedia) -> Result<Tensor> {
        self.pass(step, Some(Arc::new(media.clone())), usize::MAX)
    }

    fn stages(&self) -> usize {
        self.rank.stages
    }

    fn forward_in_parts(&mut self, step: &Step, rows: usize) -> Result<Tensor> {
        self.pass(step, None, rows)
    }

    fn encode(&mut self, item: &MediaItem) -> Result<Features> {
        self.watch.check()?;
        let _under_way = self.watch.begin();
        let mark = self.watch.mark(self.rank.number);
        mark.is_here();
        let _works = mark.enter(State::Host);
        match &mut *self.own.borrow_mut() {
            Some(own) => own.encode(item),
            None => bail!("the model is gone"),
        }
    }

    fn decode(&mut self, step: &Step, samples: Option<&[SampleParams]>) -> Result<Decoded> {
        let command = Command::Decode {
            step: step.clone(),
            uses: std::mem::take(&mut self.uses),
        };
        let decoded = match self.ask(command, samples)? {
            Told::Decoded(decoded) => decoded,
            other => bail!("{other:?} in place of tokens"),
        };
        if !decoded.graph && self.without_graphs.is_none() {
            let own = self.own.borrow();
            let reason = own.as_ref().and_then(RankModel::without_graphs);
            self.without_graphs = reason.map(str::to_string);
        }
        Ok(decoded)
    }

    fn heads(&self) -> usize {
        self.facts.heads
    }

    fn predict(&mut self, step: &HeadStep, samples: Option<&[SampleParams]>) -> Result<Predicted> {
        match self.ask(Command::Predict(step.clone()), samples)? {
            Told::Predicted(predicted) => Ok(predicted),
            other => bail!("{other:?} in place of what a head predicts"),
        }
    }

    fn adapters(&self) -> usize {
        self.facts.adapters
    }

    fn use_adapters(&mut self, step: &Step, uses: &[Arc<[AdapterUse]>]) -> Result<()> {
        let count = self.facts.adapters;
        let mut all = uses.iter().flat_map(|uses| uses.iter());
        if let Some(wish) = all.find(|wish| wish.adapter >= count && wish.scale != 0.0) {
            bail!("adapter {} of {count}", wish.adapter)
        }
        if step.sequences.len() != uses.len() {
            bail!(
                "adapters for {} sequences of {}",
                uses.len(),
                step.sequences.len()
            )
        }
        self.uses = uses.to_vec();
        Ok(())
    }

    fn set_graphs(&mut self, graphs: GraphUse) {
        self.without_graphs = None;
        // One that cannot be told fails at the next step.
        let _ = self.run(Command::SetGraphs(graphs), None);
    }

    fn without_graphs(&self) -> Option<&str> {
        self.without_graphs.as_deref()
    }

    fn lost(&self) -> Option<String> {
        self.watch.failure().map(|failed| failed.to_string())
    }
}

impl Snapshots for Group {
    fn model(&self) -> [u8; 32] {
        self.facts.fingerprint
    }

    fn format(&self) -> String {
        self.layout().map_or(String::new(), |all| all.describe())
    }

    fn bytes(&self, place: Place) -> usize {
        self.layouts.iter().map(|layout| layout.bytes(place)).sum()
    }

    fn read(&self, place: Place, out: &mut Vec<u8>) -> Result<()> {
        for told in self.run(Command::Read(place), None)? {
            match told {
                Told::Bytes(bytes) => out.extend(bytes),
                other => bail!("{other:?} in place of the bytes of {place:?}"),
            }
        }
        Ok(())
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes(place) {
            let own = self.bytes(place);
            bail!("{} bytes for {place:?}, which has {own}", bytes.len())
        }
        let mut rest = bytes;
        let parts = self.layouts.iter().map(|layout| {
            let (own, behind) = rest.split_at(layout.bytes(place));
            rest = behind;
            Arc::<[u8]>::from(own)
        });
        let parts: Vec<Arc<[u8]>> = parts.collect();
        let of_rank = |rank: &Rank| {
            let own = parts.get(rank.number)?.clone();
            Some(Arc::new(Command::Write(place, own)))
        };
        self.run_each(of_rank, None).map(drop)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Threads end side by side: all are told before one is waited for.
        let stop = Arc::new(Command::Stop);
        for other in &self.others {
            let _ = other.tell(u64::MAX, &stop);
        }
        let own = self.own.get_mut().take();
        match self.watch.failure() {
            None => drop(own),
            // What its device does not give back would be waited for, in vain perhaps. The process is about to end.
            Some(_) => std::mem::forget(own),
        }
        self.others.clear();
        self.watch.end();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
