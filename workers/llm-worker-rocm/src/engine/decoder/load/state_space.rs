//! State spaces.

use crate::engine::decoder::config::StateSpace;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Convolution, Mamba, Mamba2, Recurrent, Selective};
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::traits::{NormKind, Recurrence};
use candle_core::DType;
use worker::{Error, Result};

pub(super) const LOADING: &str = "loading the model";

impl Loader<'_> {
    /// The recurrence of a block.
    pub(super) fn recurrent(&self, block: usize) -> Result<Box<dyn Recurrent>> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        match (c.traits.recurrence, c.delta) {
            (Recurrence::Delta, Some(sizes)) => return Ok(Box::new(self.delta(&name, sizes)?)),
            (Recurrence::ShortConvolution, _) => {
                return Ok(Box::new(self.short_convolution(&name)?))
            }
            _ => {}
        }
        let sizes = c.state_space;
        let sizes = sizes.ok_or_else(|| self.bad("there are no sizes of a state space".into()))?;
        match c.traits.recurrence {
            Recurrence::Mamba2 => Ok(Box::new(self.mamba2(&name, sizes)?)),
            Recurrence::Griffin => Ok(Box::new(self.griffin(&name, sizes)?)),
            Recurrence::Rwkv7 => Ok(Box::new(self.rwkv7(&name, block, sizes)?)),
            Recurrence::Lightning => Ok(Box::new(self.lightning(&name, block, sizes)?)),
            _ => Ok(Box::new(self.mamba(&name, sizes)?)),
        }
    }

    fn mamba2(&self, name: &dyn Fn(&str) -> String, s: StateSpace) -> Result<Mamba2> {
        let width = self.config.width;
        let convolved = s.convolved(Recurrence::Mamba2);
        let norm = name("ssm_norm.weight");
        let norm = match self.has(&norm) {
            false => None,
            true => Some(self.vector(&norm, self.activations)?),
        };
        Ok(Mamba2 {
            input: self.linear(&name("ssm_in"), s.inner + convolved + s.rank, width)?,
            convolution: self.convolution(name, s.kernel, convolved, true)?,
            scan: self.selective(name, s, s.rank)?,
            group_norm: self.plain_norm(NormKind::Rms, s.inner / s.groups, self.config.epsilon)?,
            norm,
            output: self.linear(&name("ssm_out"), width, s.inner)?,
            sizes: s,
        })
    }

    fn mamba(&self, name: &dyn Fn(&str) -> String, s: StateSpace) -> Result<Mamba> {
        let width = self.config.width;
        let outputs = s.rank + 2 * s.states;
        let sizes = [("dt", s.rank), ("b", s.states), ("c", s.states)];
        let norm = |(part, size): (&str, usize)| -> Result<Option<Norm>> {
            let own = self.norm_if_there(&name(&format!("ssm_{part}_norm")))?;
            let plain = || {
                let epsilon = s.norms;
                epsilon.map(|epsilon| self.plain_norm(NormKind::Rms, size, epsilon))
            };
            own.map_or_else(|| plain().transpose(), |own| Ok(Some(own)))
        };
        let [of_steps, of_inputs, of_outputs] = sizes.map(norm);
        let norms = match (of_steps?, of_inputs?, of_outputs?) {
            (Some(steps), Some(inputs), Some(outputs)) => Some([steps, inputs, outputs]),
            _ => None,
        };
        let steps = self.matrix(&name("ssm_dt.weight"), s.inner, s.rank)?;
        Ok(Mamba {
            input: self.linear(&name("ssm_in"), 2 * s.inner, width)?,
            convolution: self.convolution(name, s.kernel, s.inner, true)?,
            selection: self.linear(&name("ssm_x"), outputs, s.inner)?,
            // The scan adds the bias.
            steps: Linear::new(steps, None),
            norms,
            scan: self.selective(name, s, s.inner)?,
            output: self.linear(&name("ssm_out"), width, s.inner)?,
            sizes: s,
        })
    }

    pub(super) fn convolution(
        &self,
        name: &dyn Fn(&str) -> String,
        kernel: usize,
        channels: usize,
        silu: bool,
    ) -> Result<Convolution> {
        let weight = self.vector(&name("ssm_conv1d.weight"), DType::F32)?;
        let bias = name("ssm_conv1d.bias");
        let bias = self.has(&bias).then(|| self.vector(&bias, DType::F32));
        let weight = weight.reshape((channels, kernel));
        Convolution::new(
            &weight.map_err(Error::candle(LOADING))?,
            bias.transpose()?,
            silu,
        )
        .map_err(Error::candle(LOADING))
    }

    fn selective(
        &self,
        name: &dyn Fn(&str) -> String,
        s: StateSpace,
        heads: usize,
    ) -> Result<Selective> {
        let rates = self.vector(&name("ssm_a"), DType::F32)?;
        let rates = match rates.elem_count() == heads {
            true => Ok(rates),
            false => rates.reshape((heads, s.states)),
        };
        Ok(Selective {
            rates: rates.map_err(Error::candle(LOADING))?,
            direct: self.vector(&name("ssm_d"), DType::F32)?,
            step_bias: self.vector(&name("ssm_dt.bias"), DType::F32)?,
            limits: s.limits,
            heads,
            head_size: s.inner / heads,
            groups: s.groups,
            states: s.states,
        })
    }
}
