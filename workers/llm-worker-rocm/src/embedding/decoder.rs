//! Decoders as embedding models: the vectors behind the last norm, several texts in a step.

use crate::engine::api::WeightOptions;
use crate::engine::decoder::{Decoder, DecoderConfig};
use crate::engine::forward::{CacheOptions, Forward, Step, StepSequence, StepState};
use candle_core::{Device, Result as CandleResult, Tensor};
use std::sync::{Mutex, PoisonError};
use worker::gguf::Weights;
use worker::Result;

/// Tokens of a step.
const STEP: usize = 512;
/// Tokens of a block of the cache.
const BLOCK: usize = 16;
/// Longest text, whatever the model says: its keys and values lie in memory at once.
const MAX_TOKENS: usize = 8192;

/// A decoder with what its inputs need.
pub(super) struct DecoderEmbedder {
    state: Mutex<State>,
    width: usize,
    vocab_size: usize,
    max_tokens: usize,
}

struct State {
    decoder: Decoder,
    /// Blocks of the cache.
    blocks: usize,
}

impl DecoderEmbedder {
    /// Loads a checked file.
    pub(super) fn load(config: DecoderConfig, file: &dyn Weights, device: &Device) -> Result<Self> {
        let max_tokens = config.context_length.min(MAX_TOKENS);
        let weights = WeightOptions::default();
        let decoder = Decoder::load(config, file, device, max_tokens, &[], weights, &|_| {})?;
        Ok(Self {
            width: decoder.width(),
            vocab_size: decoder.vocab_size(),
            max_tokens,
            state: Mutex::new(State { decoder, blocks: 0 }),
        })
    }

    /// Vectors of all tokens of all texts behind each other, `(tokens, width)`.
    pub(super) fn forward(&self, texts: &[&[u32]]) -> CandleResult<Tensor> {
        // A panic leaves a cache behind that every text writes before it reads.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { decoder, blocks } = &mut *state;
        let needed: usize = texts.iter().map(|text| text.len().div_ceil(BLOCK)).sum();
        if needed > *blocks {
            // What was reserved is given up first.
            *blocks = 0;
            decoder.reserve(&CacheOptions {
                blocks: needed,
                block_size: BLOCK,
                dtype: decoder.kv_dtype().into(),
                context: self.max_tokens,
                states: needed,
                window_blocks: 0,
            })?;
            *blocks = needed;
        }
        let steps = steps(texts);
        let parts = steps
            .iter()
            .map(|step| decoder.hidden(step))
            .collect::<CandleResult<Vec<_>>>()?;
        Tensor::cat(&parts, 0)
    }

    /// Logits of such vectors, `(rows, vocabulary)`.
    pub(super) fn logits(&self, hidden: &Tensor) -> CandleResult<Tensor> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.decoder.logits(hidden)
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }
}

/// The texts in steps of at most [`STEP`] tokens, in their order; each text has blocks of its own.
fn steps(texts: &[&[u32]]) -> Vec<Step> {
    let mut steps = vec![Step::default()];
    let mut first_block = 0;
    for (id, text) in texts.iter().enumerate() {
        let count = text.len().div_ceil(BLOCK) as u32;
        let blocks: Vec<u32> = (first_block..first_block + count).collect();
        first_block += count;
        let mut done = 0;
        while done < text.len() {
            if steps.last().is_none_or(|step| step.tokens.len() == STEP) {
                steps.push(Step::default());
            }
            let step = steps.last_mut().expect("there is one");
            let rows = (text.len() - done).min(STEP - step.tokens.len());
            let start = step.tokens.len() as u32;
            step.tokens.extend_from_slice(&text[done..done + rows]);
            step.outputs.extend(start..start + rows as u32);
            done += rows;
            step.sequences.push(StepSequence {
                id: id as u64,
                blocks: blocks.clone(),
                keys: done,
                rows,
                state: Some(StepState {
                    from: (done > rows).then_some(id as u32),
                    after: vec![id as u32],
                }),
                ..StepSequence::default()
            });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_steps_and_never_blocks() {
        let (long, short) = (vec![1; 700], vec![2; 20]);
        let steps = steps(&[&short, &long, &short]);
        let shape: Vec<Vec<(u64, usize, usize)>> = steps
            .iter()
            .map(|step| {
                let sequences = step.sequences.iter();
                sequences.map(|s| (s.id, s.keys, s.rows)).collect()
            })
            .collect();
        assert_eq!(
            shape,
            [
                vec![(0, 20, 20), (1, 492, 492)],
                vec![(1, 700, 208), (2, 20, 20)]
            ]
        );
        assert_eq!(steps[0].sequences[0].blocks, [0, 1]);
        assert_eq!(steps[1].sequences[1].blocks, [46, 47]);
    }
}
