//! Experts one after another, each weighted among those that are not far behind it.

use candle_core::{Result, Tensor};

/// What puts an expert that was chosen behind all others.
const FAR: f64 = 1e30;

/// The experts of each token, the one chosen first at the beginning, and their weights: u32 and f32 `(tokens, used)`,
/// of f32 `(tokens, experts)`. See [`Routing::near`](super::Routing::near).
///
/// # Errors
/// If the device fails.
pub(super) fn choose(logits: &Tensor, used: usize, share: f64) -> Result<(Tensor, Tensor)> {
    let sizes = logits.abs()?;
    let mut left = logits.clone();
    let (mut ids, mut weights) = (Vec::with_capacity(used), Vec::with_capacity(used));
    for _ in 0..used {
        let best = left.max_keepdim(1)?;
        let behind = best.broadcast_sub(logits)?;
        let behind = (behind / sizes.broadcast_maximum(&best)?)?;
        // 1 above the limit, else 0.
        let is_far = behind.affine(1.0, -2.0 * share)?.relu()?.sign()?;
        let powers = left.broadcast_sub(&best)?.exp()?;
        let counted = (&powers - (&powers * is_far)?)?;
        weights.push(counted.sum_keepdim(1)?.recip()?);
        ids.push(left.argmax_keepdim(1)?);
        // 0 of the best one, else 1.
        let is_other = best.broadcast_sub(&left)?.sign()?;
        left = (left + is_other.affine(FAR, -FAR)?)?;
    }
    Ok((Tensor::cat(&ids, 1)?, Tensor::cat(&weights, 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn only_experts_nearby_share_the_weight() {
        // The second is 1 % behind the first, the third 3 %; the fourth 1.5 % behind that.
        let logits = [[10f32, 9.9, 9.7, 9.5545], [-1.0, -5.0, -9.0, -2.0]];
        let logits = Tensor::new(&logits, &Device::Cpu).unwrap();
        let (ids, weights) = choose(&logits, 3, 0.01).unwrap();
        let ids: Vec<Vec<u32>> = ids.to_vec2().unwrap();
        assert_eq!(ids, [[0, 1, 2], [0, 3, 1]]);
        let weights: Vec<Vec<f32>> = weights.to_vec2().unwrap();
        let share = |behind: f32| 1.0 / (1.0 + (-behind).exp());
        // 9.7 is 2.02 % behind 9.9.
        let want = [[share(0.1), 1.0, share(0.1455)], [1.0, 1.0, 1.0]];
        for (got, want) in weights.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() < 1e-5, "{weights:?}");
        }
    }
}
