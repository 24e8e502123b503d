//! RWKV 7's blocks.

use super::state_space::LOADING;
use crate::engine::decoder::config::StateSpace;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Channel, Convolution, LowRank, Rwkv7};
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::traits::NormKind;
use candle_core::{DType, Tensor};
use worker::{Error, Result};

/// That of the norm along a head (RWKV's own code and llama.cpp have it so).
const HEAD_EPSILON: f32 = 64e-5;

impl Loader<'_> {
    pub(super) fn rwkv7(
        &self,
        name: &dyn Fn(&str) -> String,
        block: usize,
        s: StateSpace,
    ) -> Result<Rwkv7> {
        let c = self.config;
        let width = c.width;
        let part = |part: &str| name(&format!("time_mix_{part}"));
        let floats = |part: &str| self.vector(&name(part), DType::F32);
        let square = |of: &str| self.linear(&part(of), width, width);
        let low_rank = |letter: &str, bias: bool| -> Result<LowRank> {
            let down = part(&format!("{letter}1"));
            let rank = self.info(&format!("{down}.weight"))?.0.dims[1] as usize;
            let bias = bias.then(|| floats(&format!("time_mix_{letter}0.weight")));
            Ok(LowRank {
                down: self.linear(&down, rank, width)?,
                up: self.linear(&part(&format!("{letter}2")), width, rank)?,
                bias: bias.transpose()?,
            })
        };
        let lerp = self.vector(&part("lerp_fused.weight"), self.activations)?;
        let candle = |tensor: candle_core::Result<Tensor>| tensor.map_err(Error::candle(LOADING));
        Ok(Rwkv7 {
            norm: self.norm(&name("attn_norm"))?,
            shift: self.shift(width)?,
            lerp: candle(lerp.reshape((6, width)))?,
            receptance: square("receptance")?,
            key: square("key")?,
            value: square("value")?,
            output: square("output")?,
            decay: low_rank("w", true)?,
            rate: low_rank("a", true)?,
            residual: (block > 0).then(|| low_rank("v", true)).transpose()?,
            gate: low_rank("g", false)?,
            removed: floats("time_mix_k_k.weight")?,
            rates: floats("time_mix_k_a.weight")?,
            direct: floats("time_mix_r_k.weight")?,
            head_norm: Norm {
                kind: NormKind::Layer,
                weight: candle(Tensor::ones(s.states, DType::F32, self.device))?,
                bias: Some(candle(Tensor::zeros(s.states, DType::F32, self.device))?),
                epsilon: HEAD_EPSILON,
            },
            head_weight: floats("time_mix_ln.weight")?,
            head_bias: floats("time_mix_ln.bias")?,
            head_size: s.states,
            channel: Channel {
                norm: self.norm(&name("attn_norm_2"))?,
                shift: self.shift(width)?,
                lerp: self.vector(&name("channel_mix_lerp_k.weight"), self.activations)?,
                key: self.linear(&name("channel_mix_key"), c.hidden, width)?,
                value: self.linear(&name("channel_mix_value"), width, c.hidden)?,
            },
            values: self.first_values.clone(),
        })
    }

    /// What gives each row the one before.
    fn shift(&self, width: usize) -> Result<Convolution> {
        let weights: Vec<f32> = [1.0, 0.0].repeat(width);
        let weights = Tensor::from_vec(weights, (width, 2), self.device);
        weights
            .and_then(|weights| Convolution::new(&weights, None, false))
            .map_err(Error::candle(LOADING))
    }
}
