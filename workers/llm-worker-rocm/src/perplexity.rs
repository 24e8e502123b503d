//! How well a model predicts a text.

use crate::engine::score::Scorer;
use candle_core::{Tensor, D};
use worker::{Error, Result};

/// What [`perplexity`] found.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Perplexity {
    /// The exponential of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Mean negative log-likelihood of a token, in nats.
    pub nats_per_token: f64,
    /// Standard error of that mean.
    pub standard_error: f64,
    /// Tokens that were predicted.
    pub tokens: usize,
    /// Pieces that the text was cut into.
    pub chunks: usize,
}

/// The perplexity of `tokens` in pieces of `context` tokens, each on its own. All but the first token of a piece are
/// predicted, from the tokens before them in the piece; a piece of one token is left out. `progress` is called after
/// every piece with the tokens done and stops the run by giving an error.
///
/// # Errors
/// [`Error::Usage`] if there is nothing to predict or `context` is beyond the model's; [`Error::Candle`] if the device
/// fails.
pub fn perplexity(
    model: &mut Scorer,
    tokens: &[u32],
    context: usize,
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Perplexity> {
    let most = model.context_length();
    if context < 2 || context > most {
        return Err(Error::Usage(format!(
            "a context of {context} tokens; this model takes 2 to {most}"
        )));
    }
    let mut losses = Vec::with_capacity(tokens.len());
    let mut chunks = 0;
    for (i, chunk) in tokens.chunks(context).enumerate() {
        if chunk.len() > 1 {
            losses.extend(chunk_losses(model, chunk)?);
            chunks += 1;
        }
        progress((i * context + chunk.len()).min(tokens.len()))?;
    }
    if losses.is_empty() {
        return Err(Error::Usage(
            "the text is too short: two tokens are the least".to_string(),
        ));
    }
    let count = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / count;
    let variance = losses.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    Ok(Perplexity {
        perplexity: mean.exp(),
        nats_per_token: mean,
        standard_error: (variance / count).sqrt(),
        tokens: losses.len(),
        chunks,
    })
}

/// Negative log-likelihood of each token but the first.
fn chunk_losses(model: &mut Scorer, chunk: &[u32]) -> Result<Vec<f64>> {
    let mut all = Vec::with_capacity(chunk.len());
    model.logits(&chunk[..chunk.len() - 1], |first, logits| {
        let losses = losses(&logits, &chunk[first + 1..]);
        all.extend(losses.map_err(Error::candle("computing the likelihood"))?);
        Ok(())
    })?;
    Ok(all)
}

/// Of the tokens that come behind rows of logits: the log of the sum of exponentials, less the logit of the token.
fn losses(logits: &Tensor, next: &[u32]) -> candle_core::Result<Vec<f64>> {
    let next = &next[..logits.dim(0)?];
    let largest = logits.max_keepdim(D::Minus1)?;
    let sums = logits
        .broadcast_sub(&largest)?
        .exp()?
        .sum_keepdim(D::Minus1)?;
    let normaliser = (sums.log()? + largest)?;
    let next = Tensor::new(next, logits.device())?.unsqueeze(1)?;
    let losses = (normaliser - logits.gather(&next, D::Minus1)?)?;
    let losses = losses.squeeze(1)?.to_vec1::<f32>()?;
    Ok(losses.into_iter().map(f64::from).collect())
}
