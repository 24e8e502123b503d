//! The probabilities of tokens that are given, as those of a prompt.

use super::{device, host};
use crate::engine::api::PromptToken;
use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

/// A token that stands behind a row of logits.
pub(in crate::engine) struct Given {
    /// The row.
    pub row: usize,
    /// The token.
    pub token: u32,
    /// How many of the most likely tokens are reported with it.
    pub top: usize,
}

/// The probabilities of given tokens behind rows of `(rows, vocabulary)` f32 logits; not numbers where logits are none.
/// Each row is given at most once.
pub(in crate::engine) fn report(logits: &Tensor, given: &[Given]) -> Result<Vec<PromptToken>> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    if logits.device().is_rocm() {
        return device::report_given(logits, given);
    }
    let vocab = logits.dim(1)?;
    let logits = logits.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    let logits = logits.flatten_all()?.to_vec1::<f32>()?;
    let told = given.par_iter().map(|given| {
        let row = &logits[given.row * vocab..][..vocab];
        let (logprob, top) = host::probabilities(row, given.token, given.top);
        PromptToken {
            token: given.token,
            logprob,
            top,
        }
    });
    Ok(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::device::DeviceRequest;

    /// What a device reports is what softmax says; `CANDLE_ROCM_TEST_DEVICE` names the device.
    #[test]
    fn given_tokens_have_their_softmax() {
        let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
        let device = device.parse::<DeviceRequest>().unwrap().select().unwrap();
        let (rows, vocab) = (5, 300);
        let logits: Vec<f32> = (0..rows * vocab)
            .map(|i| ((i * 7919 + i / vocab) % 1000) as f32 / 90.0)
            .collect();
        let on_device = Tensor::from_vec(logits.clone(), (rows, vocab), &device.device).unwrap();
        let given = [(0, 7, 3), (3, 299, 0), (4, 0, 300)];
        let given = given.map(|(row, token, top)| Given { row, token, top });
        let told = report(&on_device, &given).unwrap();
        assert_eq!(told.len(), given.len());
        for (told, given) in told.iter().zip(&given) {
            let row = &logits[given.row * vocab..][..vocab];
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let logprob = |token: u32| f64::from(row[token as usize]) - sum.ln();
            assert_eq!(told.token, given.token);
            assert!((f64::from(told.logprob) - logprob(given.token)).abs() < 1e-4);
            let mut order: Vec<u32> = (0..vocab as u32).collect();
            order.sort_by(|a, b| logprob(*b).total_cmp(&logprob(*a)).then(a.cmp(b)));
            let tokens: Vec<u32> = told.top.iter().map(|(token, _)| *token).collect();
            assert_eq!(tokens, order[..given.top]);
            for (token, found) in &told.top {
                assert!((f64::from(*found) - logprob(*token)).abs() < 1e-4);
            }
        }
        let nan = Tensor::new(&[[0f32, f32::NAN]], &device.device).unwrap();
        let one = Given {
            row: 0,
            token: 0,
            top: 1,
        };
        assert!(report(&nan, &[one]).unwrap()[0].logprob.is_nan());
        assert!(report(&on_device, &[]).unwrap().is_empty());
    }
}
