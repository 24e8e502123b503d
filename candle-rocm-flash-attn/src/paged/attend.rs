//! How a cache is attended to.

use candle::{bail, DType, Result, Tensor};

/// How scores are made of products of queries and keys, and which there are. [`Attend::new`] gives the plain form; set
/// what differs.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Factor of the products.
    pub scale: f32,
    /// Keys before its own that a row sees; all without it.
    pub left: Option<usize>,
    /// Positions of a chunk: a row sees no key before its own chunk. Positions count from the sequence's first.
    pub chunk: Option<usize>,
    /// Bound of the scores: `cap tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// f32 `(heads)` without gaps: a score of each head that counts in the sum of the softmax, and has no value
    /// ("Efficient Streaming Language Models with Attention Sinks", Xiao et al., 2023, learned as gpt-oss does).
    pub sinks: Option<&'a Tensor>,
}

impl Attend<'_> {
    /// Scores that are products times `scale`, of all keys.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            left: None,
            chunk: None,
            softcap: None,
            sinks: None,
        }
    }

    /// The first key that a row at a position sees.
    pub(super) fn first(&self, position: usize) -> usize {
        let window = self.left.map_or(0, |left| position.saturating_sub(left));
        let chunk = self.chunk.map_or(0, |chunk| position / chunk * chunk);
        window.max(chunk)
    }

    /// Whether it makes sense for so many heads.
    pub(super) fn check(&self, heads: usize) -> Result<()> {
        if self.chunk == Some(0) {
            bail!("a chunk has at least one position")
        }
        match self.sinks {
            Some(s) if s.dims() != [heads] || s.dtype() != DType::F32 || !s.is_contiguous() => {
                bail!(
                    "sinks of {heads} heads are as many f32 without gaps, not {:?} of {:?}",
                    s.dtype(),
                    s.shape()
                )
            }
            _ => Ok(()),
        }
    }
}
