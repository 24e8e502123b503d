//! The choice from a row of logits in memory.

use super::chain;
use super::chosen::{not_a_number, nothing_left};
use super::filters::{descending, keep_largest, Candidate};
use super::random::{gumbel, MAX_GUMBEL};
use super::request::SamplingRequest;
use crate::engine::api::{Aim, Failure, GeneratedToken, Sampler};

/// Chooses the next token.
pub(super) fn choose(logits: &[f32], request: &SamplingRequest) -> Result<GeneratedToken, Failure> {
    if logits.iter().any(|x| x.is_nan()) {
        return Err(not_a_number());
    }
    let (leading, samplers) = request.samplers();
    let adjusted = adjust(logits, request, &leading);
    let adjusted = adjusted.as_deref().unwrap_or(logits);
    let best = largest(adjusted).ok_or_else(nothing_left)?;
    let Sampled { token, share, left } = if request.options.temperature == 0.0 {
        Sampled {
            token: best.0,
            share: None,
            left: vec![(best.0, 0.0)],
        }
    } else {
        sample(adjusted, best, request, &samplers)
    };
    let Some(count) = request.top_logprobs else {
        return Ok(GeneratedToken {
            token,
            logprob: None,
            top: Vec::new(),
            share,
        });
    };
    if request.tells_left() {
        return Ok(among(token, share, left, count));
    }
    let (logprob, top) = probabilities(logits, token, count);
    Ok(GeneratedToken {
        token,
        logprob: Some(logprob),
        top,
        share,
    })
}

/// The logarithm of a token's probability, and the `count` most likely tokens with theirs.
pub(super) fn probabilities(logits: &[f32], token: u32, count: usize) -> (f32, Vec<(u32, f32)>) {
    let normaliser = log_sum_exp(logits);
    let mut all: Vec<Candidate> = match count {
        0 => Vec::new(),
        _ => (0..).zip(logits.iter().copied()).collect(),
    };
    keep_largest(&mut all, count);
    all.sort_unstable_by(descending);
    let top = all.into_iter();
    let top = top.map(|(token, logit)| (token, logit - normaliser));
    (logits[token as usize] - normaliser, top.collect())
}

/// Bias, the samplers that come first, and constraint; `None` if there are none.
fn adjust(logits: &[f32], request: &SamplingRequest, leading: &[Sampler]) -> Option<Vec<f32>> {
    let bias = &request.options.logit_bias;
    let edits = request.edits(leading);
    if bias.is_empty() && edits.is_empty() && request.mask.is_none() {
        return None;
    }
    let mut adjusted = logits.to_vec();
    for (token, bias) in bias {
        adjusted[*token as usize] += bias;
    }
    for (token, edit) in edits {
        let logit = &mut adjusted[token as usize];
        *logit = edit.of(*logit);
    }
    if let Some(mask) = &request.mask {
        for (token, logit) in adjusted.iter_mut().enumerate() {
            let allowed = mask
                .get(token / 32)
                .is_some_and(|word| word >> (token % 32) & 1 == 1);
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    Some(adjusted)
}

/// The largest logit, the first of equal ones; `None` if all are minus infinity.
fn largest(logits: &[f32]) -> Option<Candidate> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in logits.iter().enumerate() {
        if *logit > best.1 {
            best = (token as u32, *logit);
        }
    }
    (best.1 > f32::NEG_INFINITY).then_some(best)
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    max + sum.ln() as f32
}

/// The token with probabilities among those that are left.
fn among(token: u32, share: Option<f32>, mut left: Vec<Candidate>, count: usize) -> GeneratedToken {
    let scores: Vec<f32> = left.iter().map(|candidate| candidate.1).collect();
    let normaliser = log_sum_exp(&scores);
    let own = left.iter().find(|candidate| candidate.0 == token);
    let logprob = own.map(|own| own.1 - normaliser);
    keep_largest(&mut left, count);
    left.sort_unstable_by(descending);
    let top = left.into_iter().map(|(id, score)| (id, score - normaliser));
    GeneratedToken {
        token,
        logprob,
        top: top.filter(|(_, logprob)| logprob.is_finite()).collect(),
        share,
    }
}

/// A token that was sampled.
struct Sampled {
    token: u32,
    /// Its probability among those that were left, for an aim to learn from.
    share: Option<f32>,
    /// Those that were left, where anything is to be told of them.
    left: Vec<Candidate>,
}

/// Samples a token; `best` is the one with the largest logit.
fn sample(
    logits: &[f32],
    best: Candidate,
    request: &SamplingRequest,
    samplers: &[Sampler],
) -> Sampled {
    let options = request.options;
    let score = |logit: f32| logit - best.1;
    let mut draw = Draw {
        seed: options.seed,
        position: request.position,
        chosen: (best.0, f32::NEG_INFINITY),
        place: 0,
    };
    let is_plain = samplers.iter().all(|s| *s == Sampler::Temperature) && !request.tells_left();
    if is_plain && options.dynamic_temperature.is_none() && request.aim.is_none() {
        draw.consider(0, &(best.0, 0.0));
        for (token, logit) in (0..).zip(logits) {
            draw.consider(0, &(token, score(*logit) / options.temperature));
        }
        return Sampled {
            token: draw.chosen.0,
            share: None,
            left: Vec::new(),
        };
    }
    let mut candidates: Vec<Candidate> = (0..)
        .zip(logits.iter().map(|logit| score(*logit)))
        .filter(|(_, score)| *score > f32::NEG_INFINITY)
        .collect();
    let shares = match (options.aim, request.aim) {
        (Some(aim), Some(state)) => {
            match aim {
                Aim::Mirostat { .. } => chain::warm(&mut candidates, options),
                Aim::AdaptiveP { .. } => chain::apply(samplers, request, &mut candidates),
            }
            Some(state.apply(aim, &mut candidates))
        }
        _ => {
            chain::apply(samplers, request, &mut candidates);
            None
        }
    };
    for (place, candidate) in candidates.iter().enumerate() {
        draw.consider(place, candidate);
    }
    Sampled {
        token: draw.chosen.0,
        share: shares.map(|shares| shares[draw.place]),
        left: candidates,
    }
}

/// The candidate with the largest sum of score and noise so far.
struct Draw {
    seed: u64,
    position: u32,
    chosen: Candidate,
    place: usize,
}

impl Draw {
    fn consider(&mut self, place: usize, candidate: &Candidate) {
        // What cannot win any more needs no random number.
        if candidate.1 + MAX_GUMBEL >= self.chosen.1 {
            let sum = candidate.1 + gumbel(self.seed, self.position, candidate.0);
            if sum > self.chosen.1 || sum == self.chosen.1 && candidate.0 < self.chosen.0 {
                self.chosen = (candidate.0, sum);
                self.place = place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::api::{Dry, DynamicTemperature, SamplingOptions, Xtc};
    use crate::engine::sampling::AimState;

    fn request<'a>(options: &'a SamplingOptions, history: &'a [u32]) -> SamplingRequest<'a> {
        SamplingRequest {
            options,
            breakers: None,
            aim: options.aim.map(AimState::new),
            history,
            drafts: &[],
            generated: history.len(),
            position: history.len() as u32,
            mask: None,
            top_logprobs: None,
            after_sampling: false,
        }
    }

    fn token(logits: &[f32], options: &SamplingOptions, history: &[u32]) -> u32 {
        choose(logits, &request(options, history)).unwrap().token
    }

    #[test]
    fn probabilities_of_what_samplers_leave() {
        let logits = [1.0, 3.0, 2.0, 0.0];
        let told = |options: &SamplingOptions| {
            let request = SamplingRequest {
                top_logprobs: Some(3),
                after_sampling: true,
                ..request(options, &[])
            };
            let found = choose(&logits, &request).unwrap();
            let own = found.top.iter().find(|top| top.0 == found.token).unwrap();
            assert_eq!(found.logprob, Some(own.1));
            let probabilities = found.top.iter().map(|top| (top.0, top.1.exp()));
            probabilities.collect::<Vec<_>>()
        };
        let two = SamplingOptions {
            top_k: Some(2),
            temperature: 0.5,
            ..warm()
        };
        let found = told(&two);
        let most = 1.0 / (1.0 + (-2f32).exp());
        assert_eq!([found[0].0, found[1].0], [1, 2]);
        assert!((found[0].1 - most).abs() < 1e-6 && (found[1].1 - (1.0 - most)).abs() < 1e-6);
        assert_eq!(told(&warm()).len(), 3);
        assert_eq!(told(&SamplingOptions::greedy()), [(1, 1.0)]);
    }

    /// How often each token is sampled.
    fn frequencies(logits: &[f32], options: SamplingOptions) -> Vec<f64> {
        const SAMPLES: usize = 20_000;
        let mut counts = vec![0.0; logits.len()];
        for seed in 0..SAMPLES as u64 {
            let options = SamplingOptions {
                seed,
                ..options.clone()
            };
            counts[token(logits, &options, &[]) as usize] += 1.0 / SAMPLES as f64;
        }
        counts
    }

    fn warm() -> SamplingOptions {
        SamplingOptions {
            temperature: 1.0,
            ..SamplingOptions::greedy()
        }
    }

    fn close(got: &[f64], want: &[f64]) {
        let near = got.iter().zip(want).all(|(a, b)| (a - b).abs() < 0.015);
        assert!(near && got.len() == want.len(), "{got:?} for {want:?}");
    }

    /// Probabilities 0.1, 0.4, 0.2, 0.3 as logits.
    fn logits() -> Vec<f32> {
        [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).to_vec()
    }

    #[test]
    fn samples_follow_the_probabilities() {
        close(&frequencies(&logits(), warm()), &[0.1, 0.4, 0.2, 0.3]);
        // Temperature 1/2 squares them.
        let cold = SamplingOptions {
            temperature: 0.5,
            ..warm()
        };
        close(
            &frequencies(&logits(), cold),
            &[1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0],
        );
    }

    #[test]
    fn filters_keep_what_they_should() {
        let sevenths = [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0];
        let ninths = [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0];
        let top_k = SamplingOptions {
            top_k: Some(2),
            ..warm()
        };
        close(&frequencies(&logits(), top_k), &sevenths);
        for (p, want) in [
            (0.69, sevenths),
            (0.71, ninths),
            (1.0, [0.1, 0.4, 0.2, 0.3]),
        ] {
            let top_p = SamplingOptions {
                top_p: Some(p),
                ..warm()
            };
            close(&frequencies(&logits(), top_p), &want);
        }
        for (p, want) in [
            (0.74, sevenths),
            (0.49, ninths),
            (0.0, [0.1, 0.4, 0.2, 0.3]),
        ] {
            let min_p = SamplingOptions {
                min_p: Some(p),
                ..warm()
            };
            close(&frequencies(&logits(), min_p), &want);
        }
        // The entropy is 1.28 nats: 0.3 is nearest, with a surprise of 1.20, then 0.2, 0.4, 0.1.
        for (p, want) in [
            (0.25, [0.0, 0.0, 0.0, 1.0]),
            (0.45, [0.0, 0.0, 0.4, 0.6]),
            (0.85, ninths),
        ] {
            let typical = SamplingOptions {
                typical_p: Some(p),
                ..warm()
            };
            close(&frequencies(&logits(), typical), &want);
        }
    }

    #[test]
    fn newer_samplers_keep_what_they_should() {
        let ninths = [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0];
        // The logarithms have a mean of -1.506 and a deviation of 0.517: 0.2 is 1.34 of these below 0.4.
        for (n, want) in [
            (1.0, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
            (1.4, ninths),
            (3.0, [0.1, 0.4, 0.2, 0.3]),
        ] {
            let top_n_sigma = SamplingOptions {
                top_n_sigma: Some(n),
                ..warm()
            };
            close(&frequencies(&logits(), top_n_sigma), &want);
        }
        let xtc = |probability, threshold| SamplingOptions {
            xtc: Some(Xtc {
                probability,
                threshold,
            }),
            ..warm()
        };
        // 0.4, 0.3 and 0.2 reach it: the last of them stays.
        close(
            &frequencies(&logits(), xtc(1.0, 0.19)),
            &[1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0],
        );
        // One alone stays.
        close(
            &frequencies(&logits(), xtc(1.0, 0.35)),
            &[0.1, 0.4, 0.2, 0.3],
        );
        let half = |a: f64, b: f64| (a + b) / 2.0;
        close(
            &frequencies(&logits(), xtc(0.5, 0.19)),
            &[
                half(1.0 / 3.0, 0.1),
                half(0.0, 0.4),
                half(2.0 / 3.0, 0.2),
                half(0.0, 0.3),
            ],
        );
    }

    #[test]
    fn a_dynamic_temperature_follows_the_entropy() {
        let dynamic = |temperature: f32, exponent: f32| SamplingOptions {
            temperature,
            dynamic_temperature: Some(DynamicTemperature {
                range: 0.5,
                exponent,
            }),
            ..warm()
        };
        // 1.280 of 1.386 nats: a temperature of 0.5 + 0.9233.
        let warmth = 0.5 + 1.279_854 / 4f64.ln();
        let weights = [0.1f64, 0.4, 0.2, 0.3].map(|p| p.powf(1.0 / warmth));
        let sum: f64 = weights.iter().sum();
        close(
            &frequencies(&logits(), dynamic(1.0, 1.0)),
            &weights.map(|w| w / sum),
        );
        // An exponent of 0 is the largest temperature.
        let weights = [0.1f64, 0.4, 0.2, 0.3].map(|p| p.powf(1.0 / 1.5));
        let sum: f64 = weights.iter().sum();
        close(
            &frequencies(&logits(), dynamic(1.0, 0.0)),
            &weights.map(|w| w / sum),
        );
        // All alike, or one alone: the warmest and the coldest.
        let sure = [30.0, 0.0, 0.0];
        assert_eq!(token(&sure, &dynamic(0.4, 1.0), &[]), 0);
    }

    #[test]
    fn the_order_of_samplers_counts() {
        let options = |order: &str| {
            SamplingOptions {
                temperature: 3.0,
                top_p: Some(0.69),
                ..warm()
            }
            .in_order(order.parse().unwrap())
        };
        let cube = |ps: [f64; 4]| {
            let weights = ps.map(|p| p.powf(1.0 / 3.0));
            weights.map(|w| w / weights.iter().sum::<f64>())
        };
        // Warm first, four tokens have 0.2 to 0.3: three are needed.
        let warm_first = frequencies(&logits(), options("temperature;top_p"));
        close(&warm_first, &cube([0.0, 0.4, 0.2, 0.3]));
        let warm_last = frequencies(&logits(), options("top_p;temperature"));
        close(&warm_last, &cube([0.0, 0.4, 0.0, 0.3]));
        // What the order lacks is off.
        close(
            &frequencies(&logits(), options("top_k")),
            &[0.1, 0.4, 0.2, 0.3],
        );
        // A penalty behind a filter only concerns what is left.
        let punished = |order: &str| {
            let options = SamplingOptions {
                top_k: Some(1),
                presence_penalty: 5.0,
                ..warm()
            };
            let options = options.in_order(order.parse().unwrap());
            (0..20)
                .map(|seed| {
                    token(
                        &logits(),
                        &SamplingOptions {
                            seed,
                            ..options.clone()
                        },
                        &[1],
                    )
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(punished("top_k;penalties"), [1; 20]);
        assert_eq!(punished("penalties;top_k"), [3; 20]);
    }

    #[test]
    fn repetitions_are_left() {
        let options = SamplingOptions {
            dry: Some(Dry::new(1.0)),
            ..SamplingOptions::greedy()
        };
        let logits = [0.0, 0.5, 0.0, 0.2];
        // 2 3 was followed by 1: one off at the length that is allowed, and 1.75 at the next.
        assert_eq!(token(&logits, &options, &[2, 3, 1, 2, 3]), 3);
        assert_eq!(token(&logits, &options, &[2, 3, 1, 3, 3]), 1);
        let near = [0.0, 1.5, 0.0, 0.2];
        assert_eq!(token(&near, &options, &[2, 3, 1, 2, 3]), 1);
        assert_eq!(token(&near, &options, &[0, 2, 3, 1, 0, 2, 3]), 3);
    }

    #[test]
    fn the_same_seed_and_position_sample_the_same_token() {
        let logits: Vec<f32> = (0..1000).map(|i| (i % 7) as f32).collect();
        let options = |seed| SamplingOptions { seed, ..warm() };
        let sequence = |seed| -> Vec<u32> {
            let mut history = Vec::new();
            for _ in 0..32 {
                let next = token(&logits, &options(seed), &history);
                history.push(next);
            }
            history
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        // A filter that keeps the sampled token does not change the choice.
        let wide = SamplingOptions {
            top_k: Some(999),
            ..options(1)
        };
        assert_eq!(token(&logits, &wide, &[]), sequence(1)[0]);
    }

    #[test]
    fn penalties_bias_and_masks_change_the_choice() {
        let logits = [1.0, 3.0, 2.9, -1.0];
        let greedy = SamplingOptions::greedy();
        assert_eq!(token(&logits, &greedy, &[1]), 1);
        let repeat = SamplingOptions {
            repeat_penalty: 1.2,
            ..greedy.clone()
        };
        assert_eq!(token(&logits, &repeat, &[1]), 2);
        let forgetful = SamplingOptions {
            repeat_last_n: 1,
            ..repeat
        };
        assert_eq!(token(&logits, &forgetful, &[1, 0]), 1);
        let presence = SamplingOptions {
            presence_penalty: 0.2,
            ..greedy.clone()
        };
        assert_eq!(token(&logits, &presence, &[1]), 2);
        let frequency = SamplingOptions {
            frequency_penalty: 0.06,
            ..greedy.clone()
        };
        assert_eq!(token(&logits, &frequency, &[1]), 1);
        assert_eq!(token(&logits, &frequency, &[1, 1]), 2);
        // The prompt counts for the repeat penalty only.
        let prompt = SamplingRequest {
            generated: 0,
            ..request(&presence, &[1])
        };
        assert_eq!(choose(&logits, &prompt).unwrap().token, 1);
        let bias = SamplingOptions {
            logit_bias: [(3, 100.0)].into(),
            ..greedy.clone()
        };
        assert_eq!(token(&logits, &bias, &[]), 3);
        let masked = |mask: u32| {
            choose(
                &logits,
                &SamplingRequest {
                    mask: Some(vec![mask]),
                    ..request(&greedy, &[])
                },
            )
        };
        assert_eq!(masked(0b1001).unwrap().token, 0);
        assert!(matches!(masked(0), Err(Failure::Invalid(_))));
    }

    #[test]
    fn probabilities_are_those_before_temperature() {
        let options = SamplingOptions {
            temperature: 0.1,
            top_k: Some(1),
            ..SamplingOptions::greedy()
        };
        let mut request = request(&options, &[]);
        request.top_logprobs = Some(2);
        let chosen = choose(&logits(), &request).unwrap();
        assert_eq!(chosen.token, 1);
        assert!((chosen.logprob.unwrap() - 0.4f32.ln()).abs() < 1e-6);
        assert_eq!(chosen.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
        assert!((chosen.top[1].1 - 0.3f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        let greedy = SamplingOptions::greedy();
        let failed = choose(&[0.0, f32::NAN], &request(&greedy, &[]));
        assert!(matches!(failed, Err(Failure::Internal(_))));
    }
}
