//! The choice of experts.

use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::traits::Routing;
use candle_core::{DType, Result, Tensor};
use candle_nn::ops;

/// Chooses the experts of each token.
pub(in crate::engine::decoder) struct Router {
    /// From the input to a number for each expert.
    pub matrix: Linear,
    /// Experts of a token.
    pub used: usize,
    pub routing: Routing,
    /// Factor of the weights.
    pub scale: f64,
}

impl Router {
    /// The experts of each token, most likely first, and their weights: `(tokens, used)`.
    pub(in crate::engine::decoder) fn route(&self, input: &Input) -> Result<(Tensor, Tensor)> {
        let logits = &self.matrix.forward(input)?.to_dtype(DType::F32)?;
        let probabilities = match self.routing {
            Routing::Input => ops::sigmoid(logits)?,
            _ => ops::softmax_last_dim(logits)?,
        };
        let order = probabilities.arg_sort_last_dim(false)?;
        let ids = order.narrow(1, 0, self.used)?.contiguous()?;
        let mut weights = probabilities.gather(&ids, 1)?;
        if self.routing == Routing::Normalised {
            weights = weights.broadcast_div(&weights.sum_keepdim(1)?)?;
        }
        if self.scale != 1.0 {
            weights = (weights * self.scale)?;
        }
        Ok((ids, weights))
    }
}
