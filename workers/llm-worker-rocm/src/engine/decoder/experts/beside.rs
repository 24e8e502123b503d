//! A mixture of experts beside the feed-forward part, as Gemma 4 has it.

use super::Mixture;
use crate::engine::decoder::norm::Norm;
use candle_core::{Result, Tensor};

/// Experts that work on the stream beside the feed-forward part, with norms of their own.
pub(in crate::engine::decoder) struct Beside {
    pub mixture: Mixture,
    /// Of what the feed-forward part gives.
    pub dense_norm: Norm,
    /// Of what the router sees, with what it multiplies that by.
    pub router_norm: Norm,
    /// Before and behind the experts.
    pub pre_norm: Norm,
    pub post_norm: Norm,
    /// A factor of each expert, f32 `(experts)`.
    pub scales: Tensor,
}

impl Beside {
    /// Both together, `(rows, width)`; `dense` is what the feed-forward part gives, `stream` what it and the experts work
    /// on, before any norm; `whole` makes what the experts give of what this GPU has of it.
    pub(in crate::engine::decoder) fn forward(
        &self,
        dense: &Tensor,
        stream: &Tensor,
        whole: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let seen = self.router_norm.forward(stream)?.into();
        let (ids, weights) = self.mixture.router.route(&seen)?;
        let factors = self.scales.index_select(&ids.flatten_all()?, 0)?;
        let weights = (weights * factors.reshape(ids.shape())?)?;
        let input = self.pre_norm.forward(stream)?.into();
        let experts = whole(self.mixture.forward_routed(&input, (ids, weights))?)?;
        self.dense_norm.forward(dense)? + self.post_norm.forward(&experts)?
    }
}
