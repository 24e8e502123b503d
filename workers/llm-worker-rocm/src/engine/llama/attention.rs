//! Grouped-query attention over a cache.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Result, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::{ops, rotary_emb};

/// Positions that the cache has room for at first; it grows by as many.
const CACHE_STEP: usize = 512;

/// One block's attention with its keys and values so far.
pub(super) struct Attention {
    pub query: QMatMul,
    pub key: QMatMul,
    pub value: QMatMul,
    pub output: QMatMul,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub cache: KvCache,
}

/// A cache of `(1, heads, positions, head_dim)` that grows along the positions.
pub(super) fn empty_cache(context_length: usize) -> KvCache {
    KvCache::new(2, CACHE_STEP.min(context_length))
}

impl Attention {
    /// `x` is `(tokens, width)`, at positions from `position` on; so is the result.
    pub(super) fn forward(
        &mut self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        position: usize,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        if position == 0 {
            self.cache.reset();
        }
        let heads = |x: Tensor, heads: usize| {
            x.reshape((1, tokens, heads, self.head_dim))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = heads(self.query.forward(x)?, self.heads)?;
        let key = heads(self.key.forward(x)?, self.kv_heads)?;
        let value = heads(self.value.forward(x)?, self.kv_heads)?;
        // The architecture `llama` rotates neighbouring elements.
        let query = rotary_emb::rope_i(&query, cos, sin)?;
        let key = rotary_emb::rope_i(&key, cos, sin)?;
        let (keys, values) = self.cache.append(&key, &value)?;
        let attended = self.attend(&query, &keys, &values)?;
        let width = self.heads * self.head_dim;
        let attended = attended.transpose(1, 2)?.reshape((tokens, width))?;
        self.output.forward(&attended)
    }

    fn attend(&self, query: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let (_, _, tokens, _) = query.dims4()?;
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        if query.device().is_rocm() {
            let causal = tokens > 1;
            return ops::sdpa(query, keys, values, None, causal, scale as f32, 1.0);
        }
        // The heads that share keys are rows of one product, so keys and values are never repeated.
        let group = self.heads / self.kv_heads;
        let rows = (1, self.kv_heads, group * tokens, self.head_dim);
        let scores = (query.reshape(rows)? * scale)?.matmul(&keys.t()?)?;
        let scores = if tokens > 1 {
            let mask = causal_mask(tokens, keys.dim(2)?, query)?;
            let by_head = (1, self.heads, tokens, keys.dim(2)?);
            let masked = scores.reshape(by_head)?.broadcast_add(&mask)?;
            masked.reshape(scores.shape())?
        } else {
            scores
        };
        let attended = ops::softmax_last_dim(&scores)?.matmul(&values.contiguous()?)?;
        attended.reshape((1, self.heads, tokens, self.head_dim))
    }
}

/// 0 where a token may look and minus infinity elsewhere; the last token sees all positions.
fn causal_mask(tokens: usize, positions: usize, like: &Tensor) -> Result<Tensor> {
    let before = positions - tokens;
    let mask: Vec<f32> = (0..tokens)
        .flat_map(|token| {
            (0..positions).map(move |position| {
                if position <= before + token {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
        })
        .collect();
    Tensor::from_vec(mask, (tokens, positions), like.device())
}
