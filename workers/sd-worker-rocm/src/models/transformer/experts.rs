//! Feed-forward layers with gates, alone or several of which each token has some.

use crate::models::layers::{linear, softmax, Linear};
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};

/// A linear layer whose SiLU multiplies another's output, and one back.
#[derive(Debug, Clone)]
pub struct Gated {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Gated {
    /// Reads `w1` (gate), `w3` (up) and `w2` (down), with two thirds of `hidden` channels inside, in steps of 256.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, width: usize, hidden: usize) -> Result<Self> {
        let hidden = (2 * hidden / 3).next_multiple_of(256);
        Ok(Self {
            gate: linear(vb.pp("w1"), width, hidden)?,
            up: linear(vb.pp("w3"), width, hidden)?,
            down: linear(vb.pp("w2"), hidden, width)?,
        })
    }

    /// The layers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = candle_nn::fused::silu_mul(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        self.down.forward(&h)
    }
}

/// Experts of which each token goes through the few that fit it best, and one that all go through.
///
/// All experts see all tokens, and what they say counts as much as their score, or not at all: nothing has to come back
/// from the device to know who sees what.
#[derive(Debug, Clone)]
pub struct Experts {
    shared: Gated,
    experts: Vec<Gated>,
    scores: Linear,
    active: usize,
    /// Of two experts that are as good the first is better: 1 where a column is before a row.
    first: Tensor,
}

impl Experts {
    /// Reads `shared_experts`, of half as many channels, `count` `experts` and `gate`.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(
        vb: VarBuilder,
        width: usize,
        hidden: usize,
        count: usize,
        active: usize,
    ) -> Result<Self> {
        let experts = vb.pp("experts");
        let first: Vec<f32> = (0..count * count)
            .map(|at| f32::from(u8::from(at % count < at / count)))
            .collect();
        Ok(Self {
            first: Tensor::from_vec(first, (count, count), vb.device())?,
            shared: Gated::new(vb.pp("shared_experts"), width, hidden / 2)?,
            experts: (0..count)
                .map(|i| Gated::new(experts.pp(i), width, hidden))
                .collect::<Result<_>>()?,
            scores: linear(vb.pp("gate"), width, count)?,
            active,
        })
    }

    /// `(batch, tokens, experts)`: the scores of the experts that a token goes through, 0 for the others.
    fn shares(&self, x: &Tensor) -> Result<Tensor> {
        let scores = softmax(&self.scores.forward(x)?)?.to_dtype(DType::F32)?;
        let count = self.experts.len();
        if self.active >= count {
            return Ok(scores);
        }
        let (own, other) = (scores.unsqueeze(D::Minus1)?, scores.unsqueeze(D::Minus2)?);
        let better = other.broadcast_gt(&own)?.to_dtype(DType::F32)?;
        let equal = other.broadcast_eq(&own)?.to_dtype(DType::F32)?;
        let before = (better + equal.broadcast_mul(&self.first)?)?.sum(D::Minus1)?;
        let chosen = before.lt(self.active as f64)?.to_dtype(DType::F32)?;
        scores * chosen
    }

    /// The layers, for `x` `(batch, tokens, width)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let shares = self.shares(x)?.to_dtype(x.dtype())?;
        let mut sum = self.shared.forward(x)?;
        for (i, expert) in self.experts.iter().enumerate() {
            let share = shares.narrow(D::Minus1, i, 1)?;
            sum = (sum + expert.forward(x)?.broadcast_mul(&share)?)?;
        }
        Ok(sum)
    }
}
