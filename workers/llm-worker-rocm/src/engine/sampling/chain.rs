//! The samplers one behind the other, in any order.

use super::filters::{
    keep_dense, keep_largest, keep_likely, keep_top, keep_typical, leave_top, weight, Candidate,
};
use super::random::uniform;
use super::request::SamplingRequest;
use crate::engine::api::{DynamicTemperature, Sampler, SamplingOptions, Xtc};

/// No temperature is lower: below, the most likely token is all that is left.
const LEAST_TEMPERATURE: f32 = 1e-3;

/// Applies samplers to scores, which are logits less the largest one.
pub(super) fn apply(
    samplers: &[Sampler],
    request: &SamplingRequest,
    candidates: &mut Vec<Candidate>,
) {
    let options = request.options;
    for sampler in samplers {
        match sampler {
            Sampler::Penalties | Sampler::Dry => {
                let edits = request.edits(&[*sampler]);
                for (token, score) in &mut *candidates {
                    if let Some(edit) = edits.get(token) {
                        *score = edit.of(*score);
                    }
                }
            }
            Sampler::TopNSigma => {
                if let Some(n) = options.top_n_sigma {
                    keep_dense(candidates, n);
                }
            }
            Sampler::Temperature => warm(candidates, options),
            Sampler::TopK => {
                if let Some(k) = options.top_k {
                    keep_largest(candidates, k);
                }
            }
            Sampler::TypicalP => {
                if let Some(p) = options.typical_p {
                    keep_typical(candidates, p);
                }
            }
            Sampler::TopP => {
                if let Some(p) = options.top_p {
                    keep_top(candidates, p);
                }
            }
            Sampler::MinP => {
                if let Some(p) = options.min_p {
                    keep_likely(candidates, p);
                }
            }
            Sampler::Xtc => {
                if let Some(threshold) = xtc_now(options, request.position) {
                    leave_top(candidates, threshold);
                }
            }
        }
    }
}

/// The threshold of XTC, if it is its turn at a position.
pub(super) fn xtc_now(options: &SamplingOptions, position: u32) -> Option<f32> {
    let Xtc {
        probability,
        threshold,
    } = options.xtc?;
    (uniform(options.seed, position) < probability).then_some(threshold)
}

/// Divides scores by the temperature.
pub(super) fn warm(candidates: &mut [Candidate], options: &SamplingOptions) {
    let temperature = match options.dynamic_temperature {
        Some(dynamic) => dynamic_temperature(candidates, options.temperature, dynamic),
        None => options.temperature,
    };
    for (_, score) in candidates {
        *score /= temperature;
    }
}

/// A temperature by the entropy of the candidates.
fn dynamic_temperature(
    candidates: &[Candidate],
    temperature: f32,
    DynamicTemperature { range, exponent }: DynamicTemperature,
) -> f32 {
    let most = candidates.iter().map(|c| c.1);
    let most = most.fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut mean) = (0.0, 0.0);
    for (token, score) in candidates {
        let score = score - most;
        let weight = weight(&(*token, score));
        sum += weight;
        if weight > 0.0 {
            mean += weight * f64::from(score);
        }
    }
    let entropy = sum.ln() - mean / sum;
    let largest = (candidates.len() as f64).ln();
    let share = match largest > 0.0 {
        true => (entropy / largest).clamp(0.0, 1.0) as f32,
        false => 0.0,
    };
    let least = (temperature - range).max(0.0);
    let warmth = least + (temperature + range - least) * share.powf(exponent);
    warmth.max(LEAST_TEMPERATURE)
}
