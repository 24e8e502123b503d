//! A smaller model guesses: it reads what the large one reads, in a cache of its own.
//!
//! It chooses tokens by the requests' temperatures, filters and seeds, so that it guesses the very tokens that the
//! large model chooses where both think alike. What it has computed of wrong guesses is taken back with them.

use super::drafter::{Ask, Drafter};
use crate::engine::api::SamplingOptions;
use crate::engine::blocks::{BlockPool, Prefix};
use crate::engine::forward::{
    CacheOptions, DecodeOutput, Forward, SampleParams, Step, StepSequence,
};
use crate::engine::sampling::{self, SamplingRequest};
use candle_core::Result;
use std::collections::HashMap;

/// A smaller model, and what it has read.
pub(in crate::engine) struct DraftModel {
    forward: Box<dyn Forward>,
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
}

/// What the model has read of a sequence.
struct Text {
    /// Tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    /// The name of the prefix that the first `remembered` blocks make.
    prefix: Prefix,
    remembered: usize,
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
    pub(in crate::engine) fn new(
        forward: Box<dyn Forward>,
        cache: &CacheOptions,
        limits: Limits,
    ) -> Self {
        Self {
            pool: BlockPool::new(cache.blocks, cache.block_size, true),
            texts: HashMap::new(),
            limits: Limits {
                context: limits.context.min(forward.context_length()),
                ..limits
            },
            forward,
        }
    }

    /// What is known of a sequence, without what was taken back: all but its last token at most.
    fn text(&mut self, ask: &Ask) -> &mut Text {
        let before = &ask.tokens[..ask.tokens.len() - 1];
        let common = |text: &Text| {
            let pairs = text.tokens.iter().zip(before);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let size = self.pool.block_size();
        let changed = |text: &Text| common(text) < text.remembered * size;
        if self.texts.get(&ask.id).is_some_and(changed) {
            // Not guesses that were taken back, but another text: a context that was shifted.
            self.forget(ask.id);
        }
        let pool = &mut self.pool;
        let text = self.texts.entry(ask.id).or_insert_with(|| {
            let known = pool.take_known(ask.root, before);
            Text {
                tokens: before[..known.blocks.len() * pool.block_size()].to_vec(),
                remembered: known.blocks.len(),
                blocks: known.blocks,
                prefix: known.prefix,
            }
        });
        text.tokens.truncate(common(text));
        text
    }

    /// Takes the blocks for so many tokens; gives whether there were so many.
    fn take_blocks(&mut self, id: u64, tokens: usize) -> bool {
        let needed = tokens.div_ceil(self.pool.block_size());
        let Some(text) = self.texts.get_mut(&id) else {
            return false;
        };
        while text.blocks.len() < needed {
            match self.pool.take() {
                Some(block) => text.blocks.push(block),
                None => return false,
            }
        }
        true
    }

    /// Takes full blocks of what will not be taken back into the pool's memory.
    fn remember(&mut self, ask: &Ask) {
        let size = self.pool.block_size();
        let Some(text) = self.texts.get_mut(&ask.id) else {
            return;
        };
        let sure = text.tokens.len().min(ask.tokens.len() - 1);
        while (text.remembered + 1) * size <= sure {
            let start = text.remembered * size;
            let tokens = &text.tokens[start..start + size];
            let block = text.blocks[text.remembered];
            text.prefix = self.pool.remember(text.prefix, block, tokens).0;
            text.remembered += 1;
        }
    }

    /// A sequence's part of a step that reads `tokens` behind what was read.
    fn push(&self, step: &mut Step, id: u64, tokens: &[u32]) {
        let text = &self.texts[&id];
        step.tokens.extend_from_slice(tokens);
        step.sequences.push(StepSequence {
            id,
            blocks: text.blocks.clone(),
            keys: text.tokens.len() + tokens.len(),
            rows: tokens.len(),
            ..StepSequence::default()
        });
    }

    /// Reads what it has not read of the sequences, but for their last few tokens, as far as a step of it goes. Gives
    /// whether each is read.
    fn catch_up(&mut self, asks: &[Ask]) -> Result<Vec<bool>> {
        /// Tokens that are read with the first guess.
        const FEW: usize = 2;
        let mut step = Step::default();
        let mut parts: Vec<(u64, Vec<u32>)> = Vec::new();
        let mut room = self.limits.step_tokens;
        let mut read = Vec::with_capacity(asks.len());
        for ask in asks {
            let known = |token: &u32| (*token as usize) < self.forward.vocab_size();
            let fits = ask.tokens.len() + ask.most <= self.limits.context;
            if ask.most == 0 || !ask.is_plain || !fits || !ask.tokens.iter().all(known) {
                read.push(false);
                continue;
            }
            let done = self.text(ask).tokens.len();
            let missing = ask.tokens.len() - done;
            let count = match missing <= FEW {
                true => 0,
                false => (missing - 1).min(room),
            };
            if !self.take_blocks(ask.id, ask.tokens.len() + ask.most) {
                read.push(false);
                continue;
            }
            room -= count;
            if count > 0 {
                let part = ask.tokens[done..done + count].to_vec();
                self.push(&mut step, ask.id, &part);
                parts.push((ask.id, part));
            }
            read.push(missing - count <= FEW);
        }
        if !parts.is_empty() {
            self.forward.forward(&step)?;
        }
        for (id, part) in parts {
            if let Some(text) = self.texts.get_mut(&id) {
                text.tokens.extend(part);
            }
        }
        asks.iter().for_each(|ask| self.remember(ask));
        Ok(read)
    }

    /// Guesses one more token of each open turn.
    fn go_on(&mut self, turns: &mut [Turn]) -> Result<()> {
        let mut step = Step::default();
        let mut last_rows = Vec::new();
        let mut open: Vec<&mut Turn> = turns.iter_mut().filter(|turn| turn.is_open).collect();
        let mut parts = Vec::new();
        for turn in &open {
            let id = turn.ask.id;
            let part = turn.tokens_from(self.texts[&id].tokens.len());
            self.push(&mut step, id, &part);
            last_rows.push(step.tokens.len() - 1);
            parts.push(part);
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
            samples.extend(part.iter().map(|_| params));
        }
        let least = self.limits.least_probability;
        let samples = (least <= 0.0).then_some(&samples[..]);
        let chosen = match self.forward.decode(&step, samples)?.output {
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
                    })
                    .collect();
                let chosen = sampling::choose(&logits.index_select(&rows, 0)?, &requests)?;
                answer.map_or(Ok(()), |answer| answer.wait().map(drop))?;
                chosen
            }
        };
        for ((turn, part), chosen) in open.iter_mut().zip(parts).zip(chosen) {
            if let Some(text) = self.texts.get_mut(&turn.ask.id) {
                text.tokens.extend(part);
            }
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
            self.pool.give_back(text.blocks);
        }
    }
}
