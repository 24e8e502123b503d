//! A loaded model as the engine runs it.

use super::model::{Loaded, Pieces};
use crate::engine::api::KvDType;
use crate::engine::forward::{CacheOptions, Forward, Step};
use candle_core::{bail, DType, Device, Result, Tensor};

/// A model that runs one sequence at a time.
pub struct Sequential {
    loaded: Loaded,
    dtype: DType,
    device: Device,
    /// The sequence that the state is of, and its tokens.
    held: Option<(u64, usize)>,
}

impl Sequential {
    pub(super) fn new(loaded: Loaded, dtype: DType, device: Device) -> Self {
        Self {
            loaded,
            dtype,
            device,
            held: None,
        }
    }

    /// The logits behind the last of `tokens`, f32 `(1, vocabulary)`.
    fn run(&mut self, tokens: &[u32], position: usize) -> Result<Tensor> {
        let at_once = match self.loaded.pieces {
            Pieces::Any => tokens.len(),
            Pieces::First if position == 0 => tokens.len(),
            _ => 1,
        };
        let mut logits = None;
        for (i, piece) in tokens.chunks(at_once).enumerate() {
            let ids = Tensor::new(piece, &self.device)?.unsqueeze(0)?;
            logits = Some((self.loaded.forward)(&ids, position + i * at_once)?);
        }
        let Some(logits) = logits else {
            bail!("no tokens to compute")
        };
        logits
            .to_dtype(DType::F32)?
            .reshape((1, self.loaded.vocab_size))
    }
}

impl Forward for Sequential {
    fn vocab_size(&self) -> usize {
        self.loaded.vocab_size
    }

    fn context_length(&self) -> usize {
        self.loaded.context
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn max_sequences(&self) -> usize {
        1
    }

    fn shares_prefixes(&self) -> bool {
        false
    }

    fn kv_dtype(&self) -> KvDType {
        match self.dtype {
            DType::F16 => KvDType::F16,
            DType::BF16 => KvDType::Bf16,
            _ => KvDType::F32,
        }
    }

    fn kv_token_bytes(&self, _: KvDType) -> usize {
        self.loaded.token_elements * self.dtype.size_in_bytes()
    }

    fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        let own = self.kv_dtype();
        if cache.dtype != own {
            bail!(
                "this family runs through candle-transformers, which stores keys and values as {own}; {} is not implemented for it",
                cache.dtype
            );
        }
        self.held = None;
        Ok(())
    }

    fn forward(&mut self, step: &Step) -> Result<Tensor> {
        let [sequence] = &step.sequences[..] else {
            bail!("{} sequences at once; 1 is possible", step.sequences.len())
        };
        let start = sequence.keys - sequence.rows;
        // Taken: after an error nobody goes on from half a state.
        let held = self.held.take();
        if start > 0 && held != Some((sequence.id, start)) {
            bail!(
                "the state is not that of sequence {} behind {start} tokens",
                sequence.id
            );
        }
        let mut rows = Vec::with_capacity(step.outputs.len());
        let mut done = 0;
        for output in &step.outputs {
            let end = *output as usize + 1;
            rows.push(self.run(&step.tokens[done..end], start + done)?);
            done = end;
        }
        if done < step.tokens.len() {
            self.run(&step.tokens[done..], start + done)?;
        }
        self.held = Some((sequence.id, sequence.keys));
        match rows.is_empty() {
            true => Tensor::zeros((0, self.loaded.vocab_size), DType::F32, &self.device),
            false => Tensor::cat(&rows, 0),
        }
    }
}
