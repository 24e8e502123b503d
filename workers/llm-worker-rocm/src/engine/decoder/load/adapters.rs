//! What adapters have for experts.

use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::lora::{ExpertRows, MatrixAdapters, StackAdapters};
use std::sync::Arc;
use worker::{Error, Result};

const LOADING: &str = "loading adapters";

impl Loader<'_> {
    /// For the matrices of all experts of a block on a GPU: gates, what they multiply, and what comes behind, of so many
    /// experts of this width for a stream of that one.
    pub(super) fn stack_adapters(
        &self,
        block: usize,
        [count, hidden, width]: [usize; 3],
    ) -> Result<[Option<Arc<StackAdapters>>; 3]> {
        let of = |part: &str, outputs: usize, inputs: usize| {
            let name = self.adapted_name(block, part);
            let rows = expert_rows(&name, part, outputs);
            let place = (self.device, self.activations);
            let found = self.attached.of_stack(&rows, count, inputs, place);
            found.map_err(Error::candle(LOADING))
        };
        Ok([
            of("ffn_gate_exps", hidden, width)?,
            of("ffn_up_exps", hidden, width)?,
            of("ffn_down_exps", width, hidden)?,
        ])
    }

    /// For one of the three matrices of each expert on the CPU.
    pub(super) fn expert_adapters(
        &self,
        block: usize,
        part: &str,
        [count, outputs, inputs]: [usize; 3],
    ) -> Result<Vec<Option<Arc<MatrixAdapters>>>> {
        let name = self.adapted_name(block, part);
        let rows = expert_rows(&name, part, outputs);
        let found = self.attached.of_experts(&rows, count, inputs);
        found.map_err(Error::candle(LOADING))
    }

    /// The tensor that has a part: its own, or that of gates and what they multiply.
    fn adapted_name(&self, block: usize, part: &str) -> String {
        let both = format!("blk.{block}.ffn_gate_up_exps");
        match part != "ffn_down_exps" && self.has(&format!("{both}.weight")) {
            true => both,
            false => format!("blk.{block}.{part}"),
        }
    }
}

/// A part's rows of a tensor: the second half of what has both is what gates multiply.
fn expert_rows<'a>(name: &'a str, part: &str, outputs: usize) -> ExpertRows<'a> {
    let start = match name.ends_with("ffn_gate_up_exps") && part == "ffn_up_exps" {
        true => outputs,
        false => 0,
    };
    ExpertRows {
        tensor: name,
        range: start..start + outputs,
    }
}
