//! Lightning attention.

use super::state_space::LOADING;
use crate::engine::decoder::config::StateSpace;
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::mixers::{Lightning, Selective, BIAS_OF_ONE};
use crate::engine::decoder::norm::Norm;
use candle_core::Tensor;
use worker::{Error, Result};

/// Of the norm of all heads, whatever the others have.
const EPSILON: f32 = 1e-6;

impl Loader<'_> {
    pub(super) fn lightning(
        &self,
        name: &dyn Fn(&str) -> String,
        block: usize,
        s: StateSpace,
    ) -> Result<Lightning> {
        let (width, heads, size) = (self.config.width, s.rank, s.states);
        // A head's queries, keys and values lie behind each other.
        let rows = |part: usize| -> Vec<usize> {
            let heads = 0..heads;
            let starts = heads.map(|head| (3 * head + part) * size);
            starts.flat_map(|start| start..start + size).collect()
        };
        let parts = [rows(0), rows(1), rows(2)];
        let of_heads = |values: Vec<f32>| {
            let values = Tensor::from_vec(values, heads, self.device);
            values.map_err(Error::candle(LOADING))
        };
        Ok(Lightning {
            projections: self.picked(&name("attn_qkv"), &parts, width)?,
            gate: self.linear(&name("attn_gate"), s.inner, width)?,
            scan: Selective {
                rates: of_heads(rates(heads, block, self.config.blocks))?,
                direct: of_heads(vec![0.0; heads])?,
                step_bias: of_heads(vec![BIAS_OF_ONE; heads])?,
                limits: s.limits,
                heads,
                head_size: size,
                groups: s.groups,
                states: s.states,
            },
            norm: Norm {
                epsilon: EPSILON,
                ..self.norm(&name("attn_norm_2"))?
            },
            output: self.linear(&name("attn_output"), width, s.inner)?,
        })
    }
}

/// The logarithm of what a token leaves of a head's state: less for the first heads, and for the first blocks.
fn rates(heads: usize, block: usize, blocks: usize) -> Vec<f32> {
    let of_block = 1.0 - block as f64 / (blocks as f64 - 1.0 + 1e-5) + 1e-5;
    let rate = |head: usize| -(-8.0 * (head as f64 + 1.0) / heads as f64).exp2() * of_block;
    (0..heads).map(|head| rate(head) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_heads_and_blocks_forget_most() {
        let first = rates(8, 0, 4);
        assert!((first[0] + 0.5 * (1.0 + 1e-5)).abs() < 1e-7, "{first:?}");
        assert!((first[7] + 0.00390625 * (1.0 + 1e-5)).abs() < 1e-7);
        let last = rates(8, 3, 4);
        assert!(last[0] < 0.0 && last[0] > -1e-4, "{last:?}");
    }
}
