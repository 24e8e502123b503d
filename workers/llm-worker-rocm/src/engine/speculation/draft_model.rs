//! A smaller model guesses: it reads what the large one reads, in a cache of its own.
//!
//! It chooses tokens by the requests' temperatures, filters and seeds, so that it guesses the very tokens that the
//! large model chooses where both think alike. What it has computed of wrong guesses is taken back with them.

use super::drafter::{Ask, Drafter, Memory};
use super::text::Text;
use crate::engine::api::{GraphUse, SamplingOptions};
use crate::engine::blocks::BlockPool;
use crate::engine::forward::{
    CacheOptions, DecodeOutput, Forward, SampleParams, Step, StepSequence, StepState,
};
use crate::engine::sampling::{self, SamplingRequest};
use candle_core::{bail, Result};
use std::collections::HashMap;

/// A smaller model, and what it has read.
pub(in crate::engine) struct DraftModel {
    /// None while it sleeps.
    forward: Option<Box<dyn Forward>>,
    cache: CacheOptions,
    graphs: GraphUse,
    pool: BlockPool,
    texts: HashMap<u64, Text>,
    limits: Limits,
}

/// What bounds its work.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Limits {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Most tokens of a step.
    pub step_tokens: usize,
    /// A guess less likely than this is not made, nor any behind it.
    pub least_probability: f32,
    /// Tokens that the large model knows.
    pub vocab_size: usize,
    /// Tokens between checkpoints of recurrent state.
    pub state_distance: usize,
}

/// What a sequence has in a step.
struct Part {
    id: u64,
    tokens: Vec<u32>,
    state: Option<StepState>,
    /// Whether its state takes the place of the one before.
    in_place: bool,
}

/// A sequence that is guessed for.
struct Turn<'a> {
    ask: &'a Ask<'a>,
    options: SamplingOptions,
    guesses: Vec<u32>,
    is_open: bool,
}

impl Turn<'_> {
    /// The tokens from a place on, and the guesses behind them.
    fn tokens_from(&self, start: usize) -> Vec<u32> {
        let tokens = self.ask.tokens.iter().chain(&self.guesses);
        tokens.skip(start).copied().collect()
    }
}

impl DraftModel {
    /// A model whose cache is reserved as `cache` says.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(in crate::engine) fn new(
        forward: Box<dyn Forward>,
        cache: CacheOptions,
        graphs: GraphUse,
        limits: Limits,
    ) -> Result<Self> {
        let context = limits.context.min(forward.context_length());
        let pool = BlockPool::new(cache.blocks, cache.block_size, true);
        let mut new = Self {
            pool: pool.with_states(cache.states, limits.state_distance),
            texts: HashMap::new(),
            limits: Limits { context, ..limits },
            forward: None,
            cache,
            graphs,
        };
        new.wake_up(Some(forward))?;
        Ok(new)
    }

    fn forward(&mut self) -> Result<&mut dyn Forward> {
        match &mut self.forward {
            Some(forward) => Ok(&mut **forward),
            None => bail!("the draft model sleeps"),
        }
    }

    /// What is known of a sequence, without what was taken back: all but its last token at most.
    fn text(&mut self, ask: &Ask) -> &mut Text {
        let before = &ask.tokens[..ask.tokens.len() - 1];
        let pool = &mut self.pool;
        let known = self.texts.get_mut(&ask.id);
        if known.is_some_and(|text| !text.go_back(pool, before)) {
            // Not guesses that were taken back, but another text: a context that was shifted; or its state is gone.
            self.forget(ask.id);
        }
        let pool = &mut self.pool;
        let new = || Text::known(pool, ask.root, before);
        self.texts.entry(ask.id).or_insert_with(new)
    }

    /// Gives up what it has of sequences that nobody asks for: they wait for blocks themselves.
    fn forget_others(&mut self, asks: &[Ask]) {
        let asked = |id: &u64| asks.iter().any(|ask| ask.id == *id);
        let others: Vec<u64> = self.texts.keys().copied().filter(|id| !asked(id)).collect();
        others.into_iter().for_each(|id| self.forget(id));
    }

    /// Adds a sequence's part to a step that reads `tokens` behind what was read. Gives whether there was room for its
    /// state, which takes the place of the one before, or has one of its own.
    fn push(
        &mut self,
        step: &mut Step,
        parts: &mut Vec<Part>,
        id: u64,
        tokens: Vec<u32>,
        in_place: bool,
    ) -> bool {
        let text = &self.texts[&id];
        let Some(state) = text.take_state(&mut self.pool, in_place) else {
            return false;
        };
        step.tokens.extend_from_slice(&tokens);
        step.sequences.push(StepSequence {
            id,
            blocks: text.blocks.clone(),
            keys: text.tokens.len() + tokens.len(),
            rows: tokens.len(),
            state: state.clone(),
            ..StepSequence::default()
        });
        parts.push(Part {
            id,
            tokens,
            state,
            in_place,
        });
        true
    }

    /// Takes a step into account that was computed.
    fn computed(&mut self, parts: Vec<Part>) {
        for part in parts {
            if let Some(text) = self.texts.get_mut(&part.id) {
                let state = part.state.as_ref();
                text.read(&mut self.pool, &part.tokens, state, part.in_place);
            }
        }
    }

    /// Reads what it has not read of the sequences, but for their last few tokens, as far as a step of it goes. Gives
    /// whether each is read.
    fn catch_up(&mut self, asks: &[Ask]) -> Result<Vec<bool>> {
        let mut room = self.limits.step_tokens;
        loop {
            let (read, stopped) = self.read_on(asks, &mut room)?;
            if !stopped || room == 0 {
                return Ok(read);
            }
        }
    }

    /// The same up to the next checkpoints. Gives also whether there is more to read behind one.
    fn read_on(&mut self, asks: &[Ask], room: &mut usize) -> Result<(Vec<bool>, bool)> {
        /// Tokens that are read with the first guess.
        const FEW: usize = 2;
        let vocabulary = self.forward()?.vocab_size();
        let (mut step, mut parts) = (Step::default(), Vec::new());
        let (mut read, mut stopped) = (Vec::with_capacity(asks.len()), false);
        for ask in asks {
            let known = |token: &u32| (*token as usize) < vocabulary;
            let fits = ask.tokens.len() + ask.most <= self.limits.context;
            if ask.most == 0 || !ask.is_plain || !fits || !ask.tokens.iter().all(known) {
                read.push(false);
                continue;
            }
            let done = self.text(ask).tokens.len();
            let needed = ask.tokens.len() + ask.most;
            if !self.take_blocks(ask.id, needed) {
                self.forget_others(asks);
                if !self.take_blocks(ask.id, needed) {
                    read.push(false);
                    continue;
                }
            }
            let missing = ask.tokens.len() - done;
            let stop = self.texts[&ask.id].next_stop(&self.pool, ask.tokens.len());
            let count = match missing <= FEW {
                true => 0,
                false => (missing - 1).min(stop - done).min(*room),
            };
            if count > 0 {
                let tokens = ask.tokens[done..done + count].to_vec();
                if !self.push(&mut step, &mut parts, ask.id, tokens, true) {
                    // Next time there are slots again.
                    self.forget_others(asks);
                    read.push(false);
                    continue;
                }
                *room -= count;
            }
            read.push(missing - count <= FEW);
            stopped |= count > 0 && missing - count > FEW;
        }
        if !parts.is_empty() {
            self.forward()?.forward(&step)?;
        }
        self.computed(parts);
        for ask in asks {
            if let Some(text) = self.texts.get_mut(&ask.id) {
                text.remember(&mut self.pool, ask);
            }
        }
        Ok((read, stopped))
    }

    fn take_blocks(&mut self, id: u64, tokens: usize) -> bool {
        let text = self.texts.get_mut(&id);
        text.is_some_and(|text| text.take_blocks(&mut self.pool, tokens))
    }

    /// Guesses one more token of each open turn.
    fn go_on(&mut self, turns: &mut [Turn]) -> Result<()> {
        let (mut step, mut parts) = (Step::default(), Vec::new());
        let mut last_rows = Vec::new();
        for turn in turns.iter_mut().filter(|turn| turn.is_open) {
            let id = turn.ask.id;
            let part = turn.tokens_from(self.texts[&id].tokens.len());
            // What was chosen stays; guesses may be taken back.
            let in_place = turn.guesses.is_empty();
            turn.is_open = self.push(&mut step, &mut parts, id, part, in_place);
            if turn.is_open {
                last_rows.push(step.tokens.len() - 1);
            }
        }
        let mut open: Vec<&mut Turn> = turns.iter_mut().filter(|turn| turn.is_open).collect();
        if open.is_empty() {
            return Ok(());
        }
        // All logits: a step of a few rows for each sequence is one of a shape.
        step.outputs = (0..step.tokens.len() as u32).collect();
        let position = |turn: &Turn| turn.ask.generated + turn.guesses.len();
        let mut samples = Vec::new();
        for (turn, part) in open.iter().zip(&parts) {
            let params = SampleParams {
                options: &turn.options,
                position: position(turn) as u32,
            };
            samples.extend(part.tokens.iter().map(|_| params));
        }
        let least = self.limits.least_probability;
        let samples = (least <= 0.0).then_some(&samples[..]);
        let chosen = match self.forward()?.decode(&step, samples)?.output {
            DecodeOutput::Tokens(answer) => {
                let all = sampling::read(&answer)?;
                let of_row = |row: &usize| all[*row].clone();
                last_rows.iter().map(of_row).collect::<Vec<_>>()
            }
            DecodeOutput::Logits(logits, answer) => {
                let rows: Vec<u32> = last_rows.iter().map(|row| *row as u32).collect();
                let rows = candle_core::Tensor::new(rows.as_slice(), logits.device())?;
                let requests: Vec<SamplingRequest> = open
                    .iter()
                    .map(|turn| SamplingRequest {
                        options: &turn.options,
                        breakers: None,
                        aim: None,
                        history: &[],
                        drafts: &[],
                        generated: position(turn),
                        position: position(turn) as u32,
                        mask: None,
                        top_logprobs: (least > 0.0).then_some(0),
                        after_sampling: false,
                    })
                    .collect();
                let chosen = sampling::choose(&logits.index_select(&rows, 0)?, &requests)?;
                answer.map_or(Ok(()), |answer| answer.wait().map(drop))?;
                chosen
            }
        };
        self.computed(parts);
        for (turn, chosen) in open.iter_mut().zip(chosen) {
            let sure = |logprob: Option<f32>| logprob.is_none_or(|p| p.exp() >= least);
            match chosen {
                Ok(token)
                    if sure(token.logprob) && (token.token as usize) < self.limits.vocab_size =>
                {
                    turn.guesses.push(token.token);
                    turn.is_open = turn.guesses.len() < turn.ask.most;
                }
                // What is wrong with it does not concern the answer.
                _ => turn.is_open = false,
            }
        }
        Ok(())
    }
}

/// The options that count for a guess: a smaller model may have no logit for what others name.
fn guessing(options: &SamplingOptions) -> SamplingOptions {
    SamplingOptions {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        typical_p: options.typical_p,
        top_n_sigma: options.top_n_sigma,
        xtc: options.xtc,
        dynamic_temperature: options.dynamic_temperature,
        order: options.order.clone(),
        seed: options.seed,
        ..SamplingOptions::greedy()
    }
}

impl Drafter for DraftModel {
    fn is_free(&self) -> bool {
        false
    }

    fn guess(&mut self, _: &mut dyn Forward, asks: &[Ask]) -> Result<Vec<Vec<u32>>> {
        let read = self.catch_up(asks)?;
        let mut turns: Vec<Turn> = asks
            .iter()
            .zip(read)
            .map(|(ask, read)| Turn {
                ask,
                options: guessing(ask.sampling),
                guesses: Vec::new(),
                is_open: read && ask.most > 0,
            })
            .collect();
        while turns.iter().any(|turn| turn.is_open) {
            self.go_on(&mut turns)?;
        }
        Ok(turns.into_iter().map(|turn| turn.guesses).collect())
    }

    fn forget(&mut self, id: u64) {
        if let Some(text) = self.texts.remove(&id) {
            text.give_back(&mut self.pool);
        }
    }

    fn memory(&mut self) -> Option<Memory<'_>> {
        let forward = self.forward.as_mut()?;
        Some(Memory {
            forward: &mut **forward,
            pool: &mut self.pool,
        })
    }

    fn sleep(&mut self) {
        self.texts.clear();
        self.pool.clear();
        self.forward = None;
    }

    fn wake_up(&mut self, model: Option<Box<dyn Forward>>) -> Result<()> {
        let Some(mut forward) = model else {
            bail!("it was loaded again without its draft model")
        };
        forward.reserve(&self.cache)?;
        forward.set_graphs(self.graphs);
        self.forward = Some(forward);
        Ok(())
    }
}
