//! The choice of next tokens, for all sequences of a step at once.
//!
//! A token is drawn by adding to each logit, divided by the temperature, a number of the Gumbel distribution that depends on seed, position and token only, and taking the
//! largest sum: the draw needs no sum over the vocabulary, no order of tokens, and comes out the same alone and in a batch, on the host and on the device.

mod host;
mod random;

use super::api::{Failure, GeneratedToken, SamplingOptions};
use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

/// What is asked of a row of logits.
pub(super) struct Wish<'a> {
    pub options: &'a SamplingOptions,
    /// The sequence so far.
    pub history: &'a [u32],
    /// How many of its last tokens were generated.
    pub generated: usize,
    /// The tokens that may come, if not all may.
    pub mask: Option<Vec<u32>>,
    pub top_logprobs: Option<usize>,
}

impl Wish<'_> {
    /// Recent tokens, for the repeat penalty.
    fn recent(&self) -> &[u32] {
        let start = self
            .history
            .len()
            .saturating_sub(self.options.repeat_last_n);
        &self.history[start..]
    }

    fn generated(&self) -> &[u32] {
        &self.history[self.history.len() - self.generated..]
    }
}

/// Chooses a token for each row of `(wishes, vocabulary)` f32 logits.
pub(super) fn choose(
    logits: &Tensor,
    wishes: &[Wish],
) -> Result<Vec<std::result::Result<GeneratedToken, Failure>>> {
    let vocab = logits.dim(1)?;
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let logits = logits.flatten_all()?.to_vec1::<f32>()?;
    let rows = logits.par_chunks_exact(vocab).zip(wishes);
    Ok(rows.map(|(row, wish)| host::choose(row, wish)).collect())
}

/// Why there is no token.
fn not_a_number() -> Failure {
    Failure::Internal(
        "the model's output is not a number: its file is damaged, or the device computes wrongly (compare with --device cpu)"
            .to_string(),
    )
}

/// Why there is no token, either.
fn nothing_left() -> Failure {
    Failure::Invalid("the constraint and the logit bias leave no token to choose".to_string())
}
