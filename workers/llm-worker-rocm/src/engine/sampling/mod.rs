//! The choice of next tokens, for all sequences of a step at once.
//!
//! A token is sampled by adding to each logit, divided by the temperature, a number of the Gumbel distribution that
//! depends on seed, position and token only, and taking the largest sum: this needs no sum over the vocabulary, no
//! order of tokens, and comes out the same alone and in a batch, on the host and on the device.

mod aim;
mod chain;
mod chosen;
mod device;
mod dry;
mod filters;
mod host;
mod random;
mod report;
mod request;

pub(super) use aim::AimState;
pub(crate) use chosen::is_not_a_number;
pub(super) use chosen::not_a_number;
pub(super) use device::choice;
pub(super) use dry::Breakers;
pub(crate) use random::gumbel;
pub(super) use report::{report, Given};
pub(super) use request::SamplingRequest;

use crate::engine::forward::Answer;
use candle_core::{DType, Device, Result, Tensor};
use chosen::Chosen;
use rayon::prelude::*;

/// Chooses a token for each row of `(requests, vocabulary)` f32 logits.
pub(super) fn choose(logits: &Tensor, requests: &[SamplingRequest]) -> Result<Vec<Chosen>> {
    if logits.device().is_rocm() {
        return device::choose(logits, requests);
    }
    let vocab = logits.dim(1)?;
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let logits = logits.flatten_all()?.to_vec1::<f32>()?;
    let rows = logits.par_chunks_exact(vocab).zip(requests);
    Ok(rows
        .map(|(row, request)| host::choose(row, request))
        .collect())
}

/// The tokens that a forward pass has chosen itself, once the device is done.
pub(super) fn read(answer: &Answer) -> Result<Vec<Chosen>> {
    Ok(answer.wait()?.into_iter().map(device::chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::api::{
        Aim, Dry, DynamicTemperature, Failure, MirostatVersion, SamplingOptions, Xtc,
    };
    use worker::device::DeviceRequest;

    const VOCAB: usize = 777;

    /// The device's choices are the host's; `CANDLE_ROCM_TEST_DEVICE` names the device.
    #[test]
    fn a_device_chooses_what_the_host_does() {
        let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
        let device = device.parse::<DeviceRequest>().unwrap().select().unwrap();
        let greedy = SamplingOptions::greedy;
        let warm = || SamplingOptions {
            temperature: 0.8,
            ..greedy()
        };
        let kinds = [
            greedy(),
            SamplingOptions {
                repeat_penalty: 1.3,
                frequency_penalty: 0.4,
                presence_penalty: 0.2,
                logit_bias: [(5, 4.0), (700, f32::NEG_INFINITY)].into(),
                ..greedy()
            },
            warm(),
            SamplingOptions {
                top_k: Some(7),
                ..warm()
            },
            SamplingOptions {
                top_p: Some(0.7),
                ..warm()
            },
            SamplingOptions {
                min_p: Some(0.1),
                ..warm()
            },
            SamplingOptions {
                typical_p: Some(0.6),
                ..warm()
            },
            SamplingOptions {
                top_n_sigma: Some(1.5),
                ..warm()
            },
            SamplingOptions {
                xtc: Some(Xtc {
                    probability: 0.5,
                    threshold: 0.02,
                }),
                ..warm()
            },
            SamplingOptions {
                dynamic_temperature: Some(DynamicTemperature {
                    range: 0.5,
                    exponent: 2.0,
                }),
                ..warm()
            },
            SamplingOptions {
                dry: Some(Dry::new(2.0)),
                top_n_sigma: Some(2.0),
                dynamic_temperature: Some(DynamicTemperature {
                    range: 0.9,
                    exponent: 1.0,
                }),
                top_p: Some(0.9),
                xtc: Some(Xtc {
                    probability: 0.9,
                    threshold: 0.05,
                }),
                ..warm()
            },
            // The host's rows beside the device's.
            SamplingOptions {
                aim: Some(Aim::Mirostat {
                    version: MirostatVersion::V2,
                    tau: 3.0,
                    eta: 0.1,
                }),
                ..warm()
            },
            SamplingOptions {
                top_p: Some(0.7),
                ..warm()
            }
            .in_order("top_p;temperature".parse().unwrap()),
            SamplingOptions {
                top_k: Some(40),
                typical_p: Some(0.95),
                top_p: Some(0.9),
                min_p: Some(0.02),
                repeat_penalty: 1.1,
                ..warm()
            },
        ];
        let history: Vec<u32> = (0..40).map(|i| i * i % 23).collect();
        let options: Vec<SamplingOptions> = (0..4)
            .flat_map(|seed| kinds.clone().map(|kind| SamplingOptions { seed, ..kind }))
            .collect();
        let requests: Vec<SamplingRequest> = options
            .iter()
            .enumerate()
            .map(|(i, options)| SamplingRequest {
                options,
                breakers: None,
                aim: options.aim.map(AimState::new),
                history: &history,
                drafts: &[],
                generated: 25,
                position: 25,
                mask: (i % 3 == 1).then(|| vec![0x5555_5555; VOCAB.div_ceil(32)]),
                top_logprobs: [None, Some(0), Some(5)][i % 3],
                after_sampling: false,
            })
            .collect();
        // Coarse numbers, so that equal ones occur.
        let mut state = 1u64;
        let logits: Vec<f32> = (0..requests.len() * VOCAB)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                ((state >> 33) as f32 / (1u64 << 31) as f32 * 12.0).powi(2) / 24.0
            })
            .map(|x| (x * 64.0).round() / 64.0)
            .collect();
        let on_device =
            Tensor::from_vec(logits.clone(), (requests.len(), VOCAB), &device.device).unwrap();
        let found = choose(&on_device, &requests).unwrap();
        for ((row, request), found) in logits.chunks(VOCAB).zip(&requests).zip(found) {
            let (expected, found) = (host::choose(row, request).unwrap(), found.unwrap());
            assert_eq!(found.token, expected.token, "{:?}", request.options);
            let near = |a: f32, b: f32| (a - b).abs() < 1e-4;
            match (found.logprob, expected.logprob) {
                (None, None) => {}
                (Some(a), Some(b)) => assert!(near(a, b), "{a} and {b}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(found.top.len(), expected.top.len());
            for (a, b) in found.top.iter().zip(&expected.top) {
                assert!(a.0 == b.0 && near(a.1, b.1), "{a:?} and {b:?}");
            }
        }
        let wrong = Tensor::new(&[[0f32, f32::NAN], [1.0, 0.0], [0.0, 0.0]], &device.device);
        let request = |mask| SamplingRequest {
            options: &kinds[2],
            breakers: None,
            aim: None,
            history: &[],
            drafts: &[],
            generated: 0,
            position: 0,
            mask,
            top_logprobs: Some(1),
            after_sampling: false,
        };
        let requests = [request(None), request(Some(vec![0])), request(None)];
        let found = choose(&wrong.unwrap(), &requests).unwrap();
        assert!(matches!(found[0], Err(Failure::Internal(_))));
        assert!(matches!(found[1], Err(Failure::Invalid(_))));
        assert!(found[2].is_ok());
    }
}
