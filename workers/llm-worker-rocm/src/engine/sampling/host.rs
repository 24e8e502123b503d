//! The choice from a row of logits in memory.

use super::chosen::{not_a_number, nothing_left};
use super::filters::{descending, keep_largest, keep_likely, keep_top, keep_typical, Candidate};
use super::random::{gumbel, MAX_GUMBEL};
use super::request::{penalties, SamplingRequest};
use crate::engine::api::{Failure, GeneratedToken, SamplingOptions};

/// Chooses the next token.
pub(super) fn choose(logits: &[f32], request: &SamplingRequest) -> Result<GeneratedToken, Failure> {
    if logits.iter().any(|x| x.is_nan()) {
        return Err(not_a_number());
    }
    let adjusted = adjust(logits, request);
    let adjusted = adjusted.as_deref().unwrap_or(logits);
    let best = largest(adjusted).ok_or_else(nothing_left)?;
    let token = if request.options.temperature == 0.0 {
        best.0
    } else {
        sample(adjusted, best, request.options, request.generated as u32)
    };
    let Some(count) = request.top_logprobs else {
        return Ok(GeneratedToken {
            token,
            logprob: None,
            top: Vec::new(),
        });
    };
    let normaliser = log_sum_exp(logits);
    let mut all: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
    keep_largest(&mut all, count);
    all.sort_unstable_by(descending);
    Ok(GeneratedToken {
        token,
        logprob: Some(logits[token as usize] - normaliser),
        top: all
            .into_iter()
            .map(|(token, logit)| (token, logit - normaliser))
            .collect(),
    })
}

/// Bias, penalties and constraint; `None` if there are none.
fn adjust(logits: &[f32], request: &SamplingRequest) -> Option<Vec<f32>> {
    let bias = &request.options.logit_bias;
    let penalties = penalties(request);
    if bias.is_empty() && penalties.is_empty() && request.mask.is_none() {
        return None;
    }
    let mut adjusted = logits.to_vec();
    for (token, bias) in bias {
        adjusted[*token as usize] += bias;
    }
    for (token, (factor, less)) in penalties {
        let logit = &mut adjusted[token as usize];
        *logit = if *logit > 0.0 {
            *logit / factor
        } else {
            *logit * factor
        } - less;
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

/// Samples a token; `best` is the one with the largest logit.
fn sample(logits: &[f32], best: Candidate, options: &SamplingOptions, position: u32) -> u32 {
    let scaled = |logit: f32| (logit - best.1) / options.temperature;
    let noisy = |(token, score): &Candidate| score + gumbel(options.seed, position, *token);
    let filtered = options.top_k.is_some()
        || options.typical_p.is_some()
        || options.top_p.is_some()
        || options.min_p.is_some();
    let mut chosen = (best.0, f32::NEG_INFINITY);
    let mut consider = |candidate: &Candidate| {
        // What cannot win any more needs no random number.
        if candidate.1 + MAX_GUMBEL >= chosen.1 {
            let score = noisy(candidate);
            if score > chosen.1 || score == chosen.1 && candidate.0 < chosen.0 {
                chosen = (candidate.0, score);
            }
        }
    };
    if !filtered {
        consider(&(best.0, 0.0));
        for (token, logit) in (0..).zip(logits) {
            consider(&(token, scaled(*logit)));
        }
        return chosen.0;
    }
    let mut candidates: Vec<Candidate> = (0..)
        .zip(logits.iter().map(|logit| scaled(*logit)))
        .filter(|(_, score)| *score > f32::NEG_INFINITY)
        .collect();
    if let Some(k) = options.top_k {
        keep_largest(&mut candidates, k);
    }
    if let Some(p) = options.typical_p.filter(|p| *p < 1.0) {
        keep_typical(&mut candidates, p);
    }
    if let Some(p) = options.top_p.filter(|p| *p < 1.0) {
        keep_top(&mut candidates, p);
    }
    if let Some(p) = options.min_p.filter(|p| *p > 0.0) {
        keep_likely(&mut candidates, p);
    }
    candidates.iter().for_each(&mut consider);
    chosen.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(options: &'a SamplingOptions, history: &'a [u32]) -> SamplingRequest<'a> {
        SamplingRequest {
            options,
            history,
            drafts: &[],
            generated: history.len(),
            mask: None,
            top_logprobs: None,
        }
    }

    fn token(logits: &[f32], options: &SamplingOptions, history: &[u32]) -> u32 {
        choose(logits, &request(options, history)).unwrap().token
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
