//! Griffin's recurrent block.

use super::state_space::LOADING;
use crate::engine::decoder::config::StateSpace;
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Blocks, Diagonal, Griffin};
use candle_core::quantized::{QStorage, QTensor};
use candle_core::DType;
use std::borrow::Cow;
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn griffin(&self, name: &dyn Fn(&str) -> String, s: StateSpace) -> Result<Griffin> {
        let width = self.config.width;
        // ln(1 + e^x); its values lie near 0.
        let rates = self.vector(&name("ssm_a"), DType::F32)?;
        let rates = rates
            .exp()
            .and_then(|power| (power + 1.0)?.log())
            .map_err(Error::candle(LOADING))?;
        Ok(Griffin {
            gate: self.linear(&name("ssm_gate"), s.inner, width)?,
            input: self.linear(&name("ssm_in"), s.inner, width)?,
            convolution: self.convolution(name, s.kernel, s.inner, false)?,
            input_gate: self.diagonal(&name("ssm_input_gate"), s)?,
            recurrent_gate: self.diagonal(&name("ssm_recurrent_gate"), s)?,
            rates,
            output: self.linear(&name("ssm_out"), width, s.inner)?,
            activation: self.config.activation(),
        })
    }

    fn diagonal(&self, name: &str, s: StateSpace) -> Result<Diagonal> {
        let (count, size) = (s.rank, s.inner / s.rank);
        let blocks = self.take(&format!("{name}.weight"), |bytes, dtype| {
            if self.device.is_cpu() {
                let block = |bytes: &[u8]| {
                    let shape = (size, size);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    Ok(Linear::new(weight, None))
                };
                let blocks = bytes.chunks_exact(bytes.len() / count).map(block);
                return Ok(Blocks::Apart(blocks.collect::<candle_core::Result<_>>()?));
            }
            let storage = QStorage::from_data(Cow::Borrowed(bytes), self.device, dtype)?;
            let tensor = QTensor::new(storage, (count, size, size))?;
            let tensor = tensor.dequantize(self.device)?.to_dtype(self.activations)?;
            Ok(Blocks::Together(tensor))
        })?;
        Ok(Diagonal {
            blocks,
            bias: self.vector(&format!("{name}.bias"), self.activations)?,
        })
    }
}
