//! A rank's model, and how it does what the ranks are told.

use super::command::{Command, Obey, Told};
use super::link::{At, Inlet, Outlet};
use super::pieces::cut;
use super::plan::Rank;
use super::watch::{State, Watch};
use crate::engine::api::AdapterUse;
use crate::engine::decoder::{Decoder, Left, LeftOfDecode, OnBlock};
use crate::engine::forward::{CachePart, Forward, SampleParams, Step};
use crate::engine::media::{Features, MediaItem, StepMedia};
use crate::engine::snapshots::Snapshots;
use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Blocks of a prompt that a GPU is given ahead of those that it has computed.
const AHEAD: usize = 8;
/// Looks at a GPU that are made without a rest.
const EAGER_LOOKS: usize = 500;
/// The rest between later ones.
const REST: Duration = Duration::from_micros(50);

/// One device's part of a model, and its links to those before and behind it.
pub struct RankModel {
    pub(super) rank: Rank,
    pub(super) decoder: Decoder,
    pub(super) before: Option<Box<dyn Inlet>>,
    pub(super) behind: Vec<Box<dyn Outlet>>,
    /// What part of the room for a cache on its device it has, of so many parts.
    pub(super) sharers: usize,
    watch: Arc<Watch>,
}

impl RankModel {
    pub(super) fn new(rank: Rank, mut decoder: Decoder, watch: &Arc<Watch>) -> Self {
        decoder.tell_blocks(on_block(&rank, watch));
        Self {
            rank,
            decoder,
            before: None,
            behind: Vec::new(),
            sharers: 1,
            watch: watch.clone(),
        }
    }

    /// The rows that stand in for the embeddings of an item's tokens.
    pub(super) fn encode(&mut self, item: &MediaItem) -> Result<Features> {
        let features = self.decoder.encode(item)?;
        self.settle()?;
        Ok(features)
    }

    /// Why launches are not enqueued as graphs although that was asked for.
    pub(super) fn without_graphs(&self) -> Option<&str> {
        self.decoder.without_graphs()
    }

    /// What the stage before has left of some rows.
    fn arrive(&mut self, at: At, rows: usize) -> Result<Option<Vec<Tensor>>> {
        let Some(before) = &mut self.before else {
            return Ok(None);
        };
        let expected = self.decoder.arriving(rows);
        before.take(at, &expected).map(Some)
    }

    fn hand(&mut self, at: At, tensors: &[Tensor]) -> Result<()> {
        let mut behind = self.behind.iter_mut();
        behind.try_for_each(|outlet| outlet.hand(at, tensors))
    }

    fn wish(&mut self, step: &Step, uses: &[Arc<[AdapterUse]>], of: Range<usize>) -> Result<()> {
        match uses.get(of) {
            Some(uses) if !uses.is_empty() => self.decoder.use_adapters(step, uses),
            _ => Ok(()),
        }
    }

    fn pass(
        &mut self,
        number: u64,
        (step, media, rows): (&Step, &StepMedia, usize),
        uses: &[Arc<[AdapterUse]>],
    ) -> Result<Told> {
        let (mut logits, mut hidden) = (Vec::new(), Vec::new());
        let pieces = cut(step, rows);
        for (place, piece) in pieces.iter().enumerate() {
            let (at, step) = ((number, place), &piece.step);
            self.wish(step, uses, piece.sequences.clone())?;
            let arrived = self.arrive(at, step.tokens.len())?;
            match self.decoder.pass(step, media, arrived.as_deref())? {
                Left::Crossing(crossing) => self.hand(at, &crossing)?,
                Left::Logits(of_piece) => {
                    logits.push(of_piece);
                    hidden.extend(self.decoder.kept_hidden());
                }
            }
            self.watch.mark(self.rank.number).go_on();
        }
        if pieces.len() > 1 {
            self.decoder.keep_hidden(&hidden)?;
        }
        self.settle()?;
        if !self.rank.answers() {
            // What the device has found wrong meanwhile: of the one that answers, the logits bring it.
            self.rank.device.synchronize()?;
            return Ok(Told::Done);
        }
        Ok(Told::Logits(match logits.len() {
            1 => logits.remove(0),
            _ => Tensor::cat(&logits, 0)?,
        }))
    }

    fn decode(
        &mut self,
        number: u64,
        step: &Step,
        samples: Option<&[SampleParams]>,
        uses: &[Arc<[AdapterUse]>],
    ) -> Result<Told> {
        let at = (number, 0);
        self.wish(step, uses, 0..step.sequences.len())?;
        let arrived = self.arrive(at, step.tokens.len())?;
        let left = self
            .decoder
            .pass_decode(step, samples, arrived.as_deref())?;
        let decoded = match left {
            LeftOfDecode::Decoded(decoded) => Told::Decoded(decoded),
            LeftOfDecode::Crossing(crossing, answer) => {
                self.hand(at, &crossing)?;
                self.settle()?;
                match answer {
                    Some(answer) => answer.wait().map(drop)?,
                    None => self.rank.device.synchronize()?,
                }
                return Ok(Told::Done);
            }
        };
        self.settle()?;
        Ok(match self.rank.answers() {
            true => decoded,
            false => Told::Done,
        })
    }

    /// Waits until the device has done what is enqueued, or the group ends.
    fn settle(&self) -> Result<()> {
        settle(&self.rank, &self.watch)
    }
}

impl Obey for RankModel {
    fn obey(
        &mut self,
        number: u64,
        command: &Command,
        samples: Option<&[SampleParams]>,
    ) -> Result<Told> {
        let none = StepMedia::default();
        match command {
            Command::Pass {
                step,
                media,
                uses,
                rows,
            } => {
                let media = media.as_deref().unwrap_or(&none);
                self.pass(number, (step, media, *rows), uses)
            }
            Command::Decode { step, uses } => self.decode(number, step, samples, uses),
            Command::Predict(step) => {
                let predicted = self.decoder.predict(step, samples)?;
                self.settle()?;
                Ok(match self.rank.answers() {
                    true => Told::Predicted(predicted),
                    false => Told::Done,
                })
            }
            Command::Reserve(cache) => {
                self.decoder.reserve(cache)?;
                Ok(Told::Reserved(self.decoder.layout()))
            }
            Command::SetGraphs(graphs) => {
                self.decoder.set_graphs(*graphs);
                Ok(Told::Done)
            }
            Command::Measure(dtype) => {
                let part = self.decoder.cache_parts(*dtype).pop();
                let part = part.map(|part| CachePart {
                    room: part.room.map(|room| room / self.sharers),
                    ..part
                });
                Ok(match part {
                    Some(part) => Told::Measured(part, self.decoder.window()),
                    None => Told::Done,
                })
            }
            Command::Read(place) => {
                let mut bytes = Vec::new();
                self.decoder.read(*place, &mut bytes)?;
                Ok(Told::Bytes(bytes))
            }
            Command::Write(place, bytes) => {
                self.decoder.write(*place, bytes)?;
                Ok(Told::Done)
            }
            Command::Stop => Ok(Told::Done),
        }
    }

    fn fail(&mut self, number: u64, reason: &str) {
        for outlet in &mut self.behind {
            outlet.fail((number, usize::MAX), reason);
        }
    }
}

/// Leaves a mark at each block of a prompt, and keeps the host from running too far ahead: a GPU that stands still shows
/// by the block that it does not come to.
fn on_block(rank: &Rank, watch: &Arc<Watch>) -> OnBlock {
    let (rank, watch) = (rank.clone(), watch.clone());
    Arc::new(move |block| {
        watch.mark(rank.number).go_on();
        match (block + 1).is_multiple_of(AHEAD) {
            true => settle(&rank, &watch),
            false => watch.check(),
        }
    })
}

/// Waits until a rank's device has done what is enqueued, or the group ends.
fn settle(rank: &Rank, watch: &Watch) -> Result<()> {
    let Device::Rocm(device) = &rank.device else {
        return watch.check();
    };
    let _waits = watch.mark(rank.number).enter(State::Device);
    let mut looks = 0;
    while !device.device().stream().is_idle()? {
        watch.check()?;
        looks += 1;
        match looks < EAGER_LOOKS {
            true => std::thread::yield_now(),
            false => std::thread::sleep(REST),
        }
    }
    Ok(())
}
