//! The gated delta rule and short convolutions.

use super::state_space::LOADING;
use crate::engine::decoder::config::DeltaSizes;
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Convolution, GatedDelta, ShortConvolution};
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::traits::NormKind;
use candle_core::DType;
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn delta(
        &self,
        name: &dyn Fn(&str) -> String,
        sizes: DeltaSizes,
    ) -> Result<GatedDelta> {
        let c = self.config;
        let (width, heads, values) = (c.width, sizes.value_heads, sizes.values());
        let [mixed, gates] = match self.has(&name("ssm_in.weight")) {
            true => self.picked(&name("ssm_in"), &of_groups(sizes), width)?,
            false => [
                self.linear(&name("attn_qkv"), sizes.channels(), width)?,
                self.linear(&name("attn_gate"), values, width)?,
            ],
        };
        let [learning, decay] = match c.traits.tiled_heads {
            true => [
                self.linear(&name("ssm_beta"), heads, width)?,
                self.linear(&name("ssm_alpha"), heads, width)?,
            ],
            false => {
                // Both of a head of keys behind each other.
                let group = heads / sizes.key_heads;
                let rows = |first: usize| -> Vec<usize> {
                    let groups = 0..sizes.key_heads;
                    let starts = groups.map(move |g| 2 * g * group + first);
                    starts.flat_map(|start| start..start + group).collect()
                };
                self.picked(&name("ssm_ba"), &[rows(0), rows(group)], width)?
            }
        };
        Ok(GatedDelta {
            mixed,
            gates,
            learning,
            decay,
            convolution: self.convolution(name, sizes.kernel, sizes.channels(), true)?,
            rate: self.vector(&name("ssm_a"), DType::F32)?,
            bias: self.vector(&name("ssm_dt.bias"), DType::F32)?,
            norm: Norm {
                kind: NormKind::Rms,
                weight: self.vector(&name("ssm_norm.weight"), self.activations)?,
                bias: None,
                epsilon: c.epsilon,
            },
            output: self.linear(&name("ssm_out"), width, values)?,
            sizes,
            tiled: c.traits.tiled_heads,
        })
    }

    pub(super) fn short_convolution(
        &self,
        name: &dyn Fn(&str) -> String,
    ) -> Result<ShortConvolution> {
        let (width, kernel) = (self.config.width, self.config.short_convolution);
        let weight = self.vector(&name("shortconv.conv.weight"), DType::F32)?;
        let convolution = weight
            .reshape((width, kernel))
            .and_then(|weight| Convolution::new(&weight, None, false));
        Ok(ShortConvolution {
            input: self.linear(&name("shortconv.in_proj"), 3 * width, width)?,
            convolution: convolution.map_err(Error::candle(LOADING))?,
            output: self.linear(&name("shortconv.out_proj"), width, width)?,
        })
    }

    /// Matrices of some of a matrix's outputs each.
    pub(super) fn picked<const N: usize>(
        &self,
        name: &str,
        outputs: &[Vec<usize>; N],
        inputs: usize,
    ) -> Result<[Linear; N]> {
        let weight = format!("{name}.weight");
        let all = self.info(&weight)?.0.dims[1] as usize;
        let (bias, extras) = (self.bias(name)?, self.extras(name, inputs)?);
        self.take(&weight, |bytes, dtype| {
            let row = bytes.len() / all;
            let one = |rows: &Vec<usize>| {
                let picked = rows.iter().flat_map(|r| &bytes[r * row..(r + 1) * row]);
                let picked: Vec<u8> = picked.copied().collect();
                let shape = (rows.len(), inputs);
                let weight = Weight::new(&picked, dtype, shape, self.device, self.activations)?;
                let bias = match &bias {
                    Some(bias) => {
                        let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
                        let rows = candle_core::Tensor::new(rows, self.device)?;
                        Some(bias.index_select(&rows, 0)?)
                    }
                    None => None,
                };
                Ok(Linear::new(weight, bias).with_extras(extras.clone()))
            };
            let parts = outputs.iter().map(one);
            let parts = parts.collect::<candle_core::Result<Vec<_>>>()?;
            Ok(parts.try_into().ok().expect("one for each"))
        })
    }
}

/// Rows of queries, keys and values, and of gates, where a file has all of a key head behind each other.
fn of_groups(sizes: DeltaSizes) -> [Vec<usize>; 2] {
    let (key, values) = (sizes.key_size, sizes.values() / sizes.key_heads);
    let part = |start: usize, count: usize| {
        let groups = 0..sizes.key_heads;
        groups.flat_map(move |g| {
            let first = 2 * g * (key + values) + start;
            first..first + count
        })
    };
    let mixed = part(0, key)
        .chain(part(key, key))
        .chain(part(2 * key, values));
    [mixed.collect(), part(2 * key + values, values).collect()]
}
