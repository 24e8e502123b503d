//! The choice of experts.
//!
//! Scores choose, with a bias that has no part in the weights where the file has one ("Auxiliary-Loss-Free Load
//! Balancing Strategy for Mixture-of-Experts", Wang et al., 2024), among the experts of the best groups where there are
//! groups ("DeepSeek-V2", 2024, 2.2.2; "DeepSeek-V3 Technical Report", 2024, 2.1.2).

use super::near;
use super::routing::{Routing, Scores};
use crate::engine::decoder::config::{Groups, MixtureConfig};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::rocm;
use candle_core::{DType, Device, Result, Tensor};

/// Chooses the experts of each token.
pub(in crate::engine::decoder) struct Router {
    /// From the input to a number for each expert.
    pub matrix: Linear,
    /// Added to the scores that choose, f32 `(experts)`.
    pub bias: Option<Tensor>,
    pub choice: Choice,
}

/// How experts are chosen and weighted.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine::decoder) struct Choice {
    /// Experts of a token.
    pub used: usize,
    pub routing: Routing,
    pub groups: Option<Groups>,
    /// Factor of the weights.
    pub scale: f64,
}

impl From<&MixtureConfig> for Choice {
    fn from(mixture: &MixtureConfig) -> Self {
        Self {
            used: mixture.used,
            routing: mixture.routing,
            groups: mixture.groups,
            scale: mixture.scale,
        }
    }
}

impl Router {
    /// The experts of each token, the one chosen first at the beginning, and their weights: u32 and f32
    /// `(tokens, used)`.
    pub(in crate::engine::decoder) fn route(&self, input: &Input) -> Result<(Tensor, Tensor)> {
        let logits = self.matrix.forward(input)?.to_dtype(DType::F32)?;
        if let Some(share) = self.choice.routing.near {
            return near::choose(&logits, self.choice.used, share);
        }
        match logits.device() {
            Device::Cpu => self.choice.on_host(&logits, self.bias.as_ref()),
            _ => rocm::route(&logits, self.bias.as_ref(), &self.choice),
        }
    }
}

impl Choice {
    fn on_host(&self, logits: &Tensor, bias: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let (tokens, experts) = logits.dims2()?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let bias = bias.map(Tensor::to_vec1::<f32>).transpose()?;
        let mut ids = vec![0; tokens * self.used];
        let mut weights = vec![0.0; tokens * self.used];
        let rows = ids
            .chunks_exact_mut(self.used)
            .zip(weights.chunks_exact_mut(self.used));
        for (logits, (ids, weights)) in logits.chunks_exact(experts).zip(rows) {
            self.of_token(logits, bias.as_deref(), ids, weights);
        }
        let shape = (tokens, self.used);
        Ok((
            Tensor::from_vec(ids, shape, &Device::Cpu)?,
            Tensor::from_vec(weights, shape, &Device::Cpu)?,
        ))
    }

    /// The experts of one token and their weights.
    fn of_token(&self, logits: &[f32], bias: Option<&[f32]>, ids: &mut [u32], weights: &mut [f32]) {
        let mut scores = logits.to_vec();
        match self.routing.scores {
            Scores::Softmax => softmax(&mut scores),
            Scores::Sigmoid => scores
                .iter_mut()
                .for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Scores::Chosen => {}
        }
        let mut ranks = scores.clone();
        for (rank, bias) in ranks.iter_mut().zip(bias.unwrap_or_default()) {
            *rank += bias;
        }
        if let Some(groups) = self.groups {
            self.leave_best_groups(groups, &mut ranks);
        }
        for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
            let best = take_best(&mut ranks);
            *id = best as u32;
            *weight = scores[best];
        }
        if self.routing.scores == Scores::Chosen {
            softmax(weights);
        }
        let mut factor = self.scale as f32;
        if self.routing.normalised {
            factor /= weights.iter().sum::<f32>() + self.routing.epsilon;
        }
        weights.iter_mut().for_each(|weight| *weight *= factor);
    }

    /// Experts of all but the best groups can no longer be chosen.
    fn leave_best_groups(&self, groups: Groups, ranks: &mut [f32]) {
        let size = ranks.len() / groups.count;
        let counted = self.best_of_group().min(size);
        let mut merits: Vec<f32> = ranks
            .chunks_exact(size)
            .map(|group| {
                let mut group = group.to_vec();
                group.sort_by(|a, b| b.total_cmp(a));
                group[..counted].iter().sum()
            })
            .collect();
        let mut left = vec![false; groups.count];
        for _ in 0..groups.used {
            left[take_best(&mut merits)] = true;
        }
        for (group, left) in ranks.chunks_exact_mut(size).zip(left) {
            if !left {
                group.fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Of how many experts the scores make a group's: DeepSeek-V2 takes the best one's probability, DeepSeek-V3 and who
    /// followed it the sum of the best two's sigmoids.
    pub(in crate::engine::decoder) fn best_of_group(&self) -> usize {
        match self.routing.scores {
            Scores::Sigmoid => 2,
            Scores::Softmax | Scores::Chosen => 1,
        }
    }
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// The first of the largest numbers, which is not found again.
fn take_best(ranks: &mut [f32]) -> usize {
    let mut best = 0;
    for (i, rank) in ranks.iter().enumerate() {
        if *rank > ranks[best] {
            best = i;
        }
    }
    ranks[best] = f32::NEG_INFINITY;
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(choice: Choice, logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut weights) = (vec![0; choice.used], vec![0.0; choice.used]);
        choice.of_token(logits, bias, &mut ids, &mut weights);
        (ids, weights)
    }

    fn choice(used: usize, routing: Routing, groups: Option<(usize, usize)>) -> Choice {
        Choice {
            used,
            routing,
            groups: groups.map(|(count, used)| Groups { count, used }),
            scale: 1.0,
        }
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let logits = [0.0, 1.0, -1.0, 0.5];
        let plain = choose(choice(2, Routing::SIGMOID, None), &logits, None);
        assert_eq!(plain.0, [1, 3]);
        let bias = [0.0, 0.0, 1.0, 0.0];
        let (ids, weights) = choose(choice(2, Routing::SIGMOID, None), &logits, Some(&bias));
        assert_eq!(ids, [2, 1]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(-1.0) + sigmoid(1.0);
        assert!(
            (weights[0] - sigmoid(-1.0) / sum).abs() < 1e-6,
            "{weights:?}"
        );
    }

    #[test]
    fn groups_are_ranked_by_their_best_one_or_two() {
        // The first group has the best expert, the second the best pair.
        let logits = [3.0, -9.0, 2.0, 2.5, -9.0, -9.0];
        let best = choice(2, Routing::PLAIN, Some((3, 1)));
        assert_eq!(choose(best, &logits, None).0, [0, 1]);
        let pair = choice(2, Routing::SIGMOID, Some((3, 1)));
        assert_eq!(choose(pair, &logits, None).0, [3, 2]);
        let both = choice(2, Routing::SIGMOID, Some((3, 2)));
        assert_eq!(choose(both, &logits, None).0, [0, 3]);
    }

    #[test]
    fn weights_sum_to_one_or_are_probabilities() {
        let logits = [0.0, 3f32.ln(), 2f32.ln(), 4f32.ln()];
        let weights = |routing| choose(choice(2, routing, None), &logits, None).1;
        let near = |a: &[f32], b: [f32; 2]| {
            assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?}");
        };
        near(&weights(Routing::PLAIN), [0.4, 0.3]);
        near(&weights(Routing::NORMALISED), [4.0 / 7.0, 3.0 / 7.0]);
        near(&weights(Routing::CHOSEN), [4.0 / 7.0, 3.0 / 7.0]);
        let sixth = Routing {
            epsilon: 0.7,
            ..Routing::NORMALISED
        };
        near(&weights(sixth), [0.4 / 1.4, 0.3 / 1.4]);
    }
}
