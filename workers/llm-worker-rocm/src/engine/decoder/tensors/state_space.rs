//! Tensors of state spaces.

use super::{Check, Result};
use crate::engine::decoder::config::{ConfigError, DecoderConfig, StateSpace};
use crate::engine::decoder::traits::{BlockParts, Recurrence};

impl Check<'_> {
    pub(super) fn recurrent(
        &mut self,
        c: &DecoderConfig,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let recurrence = c.traits.recurrence;
        match recurrence {
            Recurrence::Delta => return self.delta(c, name),
            Recurrence::ShortConvolution => return self.short_convolution(c, name),
            _ => {}
        }
        let Some(s) = &c.state_space else {
            return Err(ConfigError::Unsupported(format!(
                "a recurrence of architecture {}",
                c.architecture
            )));
        };
        match recurrence {
            Recurrence::Rwkv7 => return self.rwkv7(c, name),
            Recurrence::Griffin => return self.griffin(c, s, name),
            Recurrence::Lightning => return self.lightning(c, s, name),
            _ => {}
        }
        let convolved = s.convolved(recurrence);
        self.norm(&name("attn_norm"), &[c.width])?;
        self.require(&name("ssm_conv1d.weight"), &[s.kernel, convolved])?;
        self.allow(&name("ssm_conv1d.bias"), &[convolved])?;
        self.linear(&name("ssm_out"), s.inner, c.width)?;
        if recurrence == Recurrence::Mamba2 {
            self.linear(&name("ssm_in"), c.width, s.inner + convolved + s.rank)?;
            self.require(&name("ssm_dt.bias"), &[s.rank])?;
            self.require(&name("ssm_a"), &[1, s.rank])?;
            self.require(&name("ssm_d"), &[1, s.rank])?;
            let dims = [s.inner / s.groups, s.groups];
            let norm = name("ssm_norm.weight");
            // Falcon-H1 has models without it.
            return match c.traits.parts {
                BlockParts::Beside => self.allow(&norm, &dims).map(drop),
                _ => self.require(&norm, &dims),
            };
        }
        self.linear(&name("ssm_in"), c.width, 2 * s.inner)?;
        if self.allow(&name("ssm_dt_norm.weight"), &[s.rank])? {
            for part in ["ssm_b_norm.weight", "ssm_c_norm.weight"] {
                self.require(&name(part), &[s.states])?;
            }
        }
        let steps_and_states = s.rank + 2 * s.states;
        self.matrix(&name("ssm_x"), &[s.inner, steps_and_states])?;
        self.require(&name("ssm_dt.weight"), &[s.rank, s.inner])?;
        self.require(&name("ssm_dt.bias"), &[s.inner])?;
        self.require(&name("ssm_a"), &[s.states, s.inner])?;
        self.require(&name("ssm_d"), &[s.inner])
    }

    fn griffin(
        &mut self,
        c: &DecoderConfig,
        s: &StateSpace,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        self.norm(&name("attn_norm"), &[c.width])?;
        self.linear(&name("ssm_in"), c.width, s.inner)?;
        self.linear(&name("ssm_gate"), c.width, s.inner)?;
        self.require(&name("ssm_conv1d.weight"), &[s.kernel, s.inner])?;
        self.allow(&name("ssm_conv1d.bias"), &[s.inner])?;
        let size = s.inner / s.rank;
        for gate in ["ssm_input_gate", "ssm_recurrent_gate"] {
            let gate = name(gate);
            self.require(&format!("{gate}.weight"), &[size, size, s.rank])?;
            self.require(&format!("{gate}.bias"), &[s.inner])?;
        }
        self.require(&name("ssm_a"), &[s.inner])?;
        self.linear(&name("ssm_out"), s.inner, c.width)
    }

    fn lightning(
        &mut self,
        c: &DecoderConfig,
        s: &StateSpace,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        self.norm(&name("attn_norm"), &[c.width])?;
        self.require(&name("attn_norm_2.weight"), &[s.inner])?;
        self.linear(&name("attn_qkv"), c.width, 3 * s.inner)?;
        self.linear(&name("attn_gate"), c.width, s.inner)?;
        self.linear(&name("attn_output"), s.inner, c.width)
    }

    fn rwkv7(&mut self, c: &DecoderConfig, name: &dyn Fn(&str) -> String) -> Result<()> {
        let width = c.width;
        for norm in ["attn_norm", "attn_norm_2", "time_mix_ln"] {
            self.norm(&name(norm), &[width])?;
        }
        self.elements(&name("time_mix_lerp_fused.weight"), 6 * width)?;
        for vector in ["w0", "a0", "k_k", "k_a", "r_k"] {
            self.require(&name(&format!("time_mix_{vector}.weight")), &[width])?;
        }
        for matrix in ["key", "value", "receptance", "output"] {
            self.linear(&name(&format!("time_mix_{matrix}")), width, width)?;
        }
        for letter in ["w", "a", "g", "v"] {
            let down = name(&format!("time_mix_{letter}1.weight"));
            // The first block's for values are not used, and some files leave them out.
            let dims = self.gguf.tensor(&down).map(|t| t.dims.clone());
            if letter == "v" && !self.allow(&name("time_mix_v0.weight"), &[width])? {
                continue;
            }
            let rank = match dims.as_deref() {
                Some([_, rank]) => *rank as usize,
                _ => 0,
            };
            self.require(&down, &[width, rank])?;
            self.require(&name(&format!("time_mix_{letter}2.weight")), &[rank, width])?;
        }
        self.elements(&name("channel_mix_lerp_k.weight"), width)?;
        self.linear(&name("channel_mix_key"), width, c.hidden)?;
        self.linear(&name("channel_mix_value"), c.hidden, width)
    }

    /// A tensor of so many numbers, in whatever dimensions: converters keep some of 1 or not.
    fn elements(&mut self, name: &str, count: usize) -> Result<()> {
        let dims = self.gguf.tensor(name).map(|tensor| tensor.dims.clone());
        let dims = dims.filter(|dims| dims.iter().product::<u64>() == count as u64);
        let dims: Vec<usize> = match dims {
            Some(dims) => dims.into_iter().map(|d| d as usize).collect(),
            None => vec![count],
        };
        self.require(name, &dims)
    }
}
