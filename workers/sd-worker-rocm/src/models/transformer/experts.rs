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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use std::collections::HashMap;

    const WIDTH: usize = 4;
    const COUNT: usize = 4;
    /// What two thirds of 24 channels become.
    const INNER: usize = 256;

    /// Experts whose gate scores a token's own channels.
    fn experts(active: usize) -> Experts {
        let device = Device::Cpu;
        let mut seed = 0u32;
        let mut tensor = |rows: usize, columns: usize| {
            let values: Vec<f32> = (0..rows * columns)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
                })
                .collect();
            Tensor::from_vec(values, (rows, columns), &device).unwrap()
        };
        let mut tensors = HashMap::new();
        let names = (0..COUNT).map(|i| format!("experts.{i}"));
        for name in names.chain(["shared_experts".to_string()]) {
            for (layer, rows, columns) in [
                ("w1", INNER, WIDTH),
                ("w2", WIDTH, INNER),
                ("w3", INNER, WIDTH),
            ] {
                tensors.insert(format!("{name}.{layer}.weight"), tensor(rows, columns));
            }
        }
        let gate = Tensor::eye(WIDTH, DType::F32, &device).unwrap();
        tensors.insert("gate.weight".to_string(), gate);
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &device);
        Experts::new(vb, WIDTH, 24, COUNT, active).unwrap()
    }

    /// Each token goes through its own two of four, the first of those that are as good, each as much as its score of all
    /// four says.
    #[test]
    fn tokens_go_through_their_own() {
        let layer = experts(2);
        let tokens: [([f32; WIDTH], [usize; 2]); 5] = [
            ([2.0, -1.0, 0.5, 0.0], [0, 2]),
            ([0.0, 0.3, -0.2, 1.0], [1, 3]),
            ([-1.0, 0.2, 0.9, 0.4], [2, 3]),
            ([0.5, 0.5, 0.5, 0.5], [0, 1]),
            ([0.1, 0.7, 0.1, 0.1], [0, 1]),
        ];
        let values: Vec<f32> = tokens.iter().flat_map(|(values, _)| *values).collect();
        let x = Tensor::from_vec(values, (1, tokens.len(), WIDTH), &Device::Cpu).unwrap();
        let shares = layer.shares(&x).unwrap().to_vec3::<f32>().unwrap();
        let output = layer.forward(&x).unwrap();
        for (i, (scores, chosen)) in tokens.iter().enumerate() {
            let sum: f32 = scores.iter().map(|score| score.exp()).sum();
            let token = x.narrow(1, i, 1).unwrap();
            let mut wanted = layer.shared.forward(&token).unwrap();
            for (expert, share) in shares[0][i].iter().enumerate() {
                let share_wanted = match chosen.contains(&expert) {
                    true => scores[expert].exp() / sum,
                    false => 0.0,
                };
                assert!((share - share_wanted).abs() < 1e-6, "{i}: {share}");
                let said = layer.experts[expert].forward(&token).unwrap();
                wanted = (wanted + (said * f64::from(share_wanted)).unwrap()).unwrap();
            }
            let apart = (output.narrow(1, i, 1).unwrap() - wanted).unwrap();
            let apart = apart.abs().unwrap().max_all().unwrap();
            assert!(apart.to_scalar::<f32>().unwrap() < 1e-4, "{i}: {apart}");
        }
    }

    #[test]
    fn all_of_them_where_as_many_are_active() {
        let layer = experts(COUNT);
        let x = Tensor::new(&[[[0.3f32, -0.2, 0.9, 0.1]]], &Device::Cpu).unwrap();
        let shares = layer.shares(&x).unwrap().to_vec3::<f32>().unwrap();
        let sum: f32 = shares[0][0].iter().sum();
        assert!(shares[0][0].iter().all(|share| *share > 0.1) && (sum - 1.0).abs() < 1e-6);
    }
}
