//! Adapters of experts' matrices: a pair of narrow ones for each expert.

use super::active::Active;
use super::{bytes_of, narrow, together, Attached, MatrixAdapters, Narrow};
use crate::adapters::Part;
use crate::engine::decoder::rocm::Stack;
use candle_core::quantized::GgmlDType;
use candle_core::{bail, DType, Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// What adapters add to the matrices of all experts on a GPU.
pub(in crate::engine::decoder) struct StackAdapters {
    active: Arc<Active>,
    /// One for each adapter: from the inputs to the rank, and on to the outputs.
    parts: Vec<Option<(Stack, Stack)>>,
}

impl StackAdapters {
    /// `y` `(tokens, used, outputs)` with what the adapters of the experts `ids` `(tokens, used)` make of `x`
    /// `(tokens, used or 1, inputs)`.
    pub(in crate::engine::decoder) fn add(
        &self,
        mut y: Tensor,
        x: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor> {
        for group in self.active.groups().iter() {
            let Some((down, up)) = &self.parts[group.adapter] else {
                continue;
            };
            group.check(ids.dim(0)?)?;
            let added = |x: &Tensor, ids: &Tensor| up.forward(&down.forward(x, ids)?, ids);
            y = super::add(y, group, |rows| match rows {
                Some(rows) => {
                    let ids = ids.index_select(rows, 0)?;
                    added(&x.contiguous()?.index_select(rows, 0)?, &ids)
                }
                None => added(x, ids),
            })?;
        }
        Ok(y)
    }
}

/// Rows of a tensor of all experts, by its name without `.weight`: all, or a half of those that two share.
pub(in crate::engine::decoder) struct ExpertRows<'a> {
    pub tensor: &'a str,
    pub range: Range<usize>,
}

impl Part {
    /// An expert's second matrix, of some of its rows.
    fn rows(&self, expert: usize, range: &Range<usize>) -> &[f32] {
        let start = (expert * self.outputs + range.start) * self.rank;
        &self.b[start..start + range.len() * self.rank]
    }

    /// An expert's first matrix.
    fn first(&self, expert: usize) -> &[f32] {
        let each = self.rank * self.inputs;
        &self.a[expert * each..(expert + 1) * each]
    }
}

impl Attached<'_> {
    /// What the experts of a block are to know of passes, if an adapter has something for them.
    pub(in crate::engine::decoder) fn experts_of(&self, block: usize) -> Option<[Arc<Active>; 2]> {
        let start = format!("blk.{block}.ffn_");
        let mut names = self.adapters.iter().flat_map(|a| a.parts.keys());
        let some = names.any(|name| name.starts_with(&start) && name.ends_with("_exps"));
        some.then(|| [self.lora.rows.clone(), self.lora.expert.clone()])
    }

    /// The parts of each adapter for such rows.
    fn parts_of(
        &self,
        rows: &ExpertRows,
        count: usize,
        inputs: usize,
    ) -> Result<Vec<Option<&Part>>> {
        let parts: Vec<Option<&Part>> = (self.adapters.iter())
            .map(|adapter| adapter.parts.get(rows.tensor))
            .collect();
        for part in parts.iter().flatten() {
            if part.experts != count || part.inputs != inputs || rows.range.end > part.outputs {
                bail!("an adapter's {} does not fit the matrices", rows.tensor)
            }
            self.see(rows.tensor);
        }
        Ok(parts)
    }

    /// What belongs to the matrices of all experts on a GPU.
    pub(in crate::engine::decoder) fn of_stack(
        &self,
        rows: &ExpertRows,
        count: usize,
        inputs: usize,
        (device, activations): (&Device, DType),
    ) -> Result<Option<Arc<StackAdapters>>> {
        let stack = |values: &[f32], shape| {
            let bytes = bytes_of(values);
            Stack::new(&bytes, GgmlDType::F32, shape, device, activations)
        };
        let parts = self.parts_of(rows, count, inputs)?.into_iter().map(|part| {
            let Some(part) = part else { return Ok(None) };
            let up: Vec<f32> = (0..count)
                .flat_map(|expert| part.rows(expert, &rows.range))
                .copied()
                .collect();
            Ok(Some((
                stack(&part.a, (count, part.rank, inputs))?,
                stack(&up, (count, rows.range.len(), part.rank))?,
            )))
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok(parts.iter().any(Option::is_some).then(|| {
            Arc::new(StackAdapters {
                active: self.lora.rows.clone(),
                parts,
            })
        }))
    }

    /// What belongs to each expert's matrix on the CPU.
    pub(in crate::engine::decoder) fn of_experts(
        &self,
        rows: &ExpertRows,
        count: usize,
        inputs: usize,
    ) -> Result<Vec<Option<Arc<MatrixAdapters>>>> {
        let parts = self.parts_of(rows, count, inputs)?;
        let of_expert = |expert: usize| {
            let narrow = |part: &Option<&Part>| -> Result<Option<Narrow>> {
                let Some(part) = part else { return Ok(None) };
                let (first, second) = (part.first(expert), part.rows(expert, &rows.range));
                let shape = (rows.range.len(), part.rank);
                Ok(Some(Narrow {
                    down: narrow(first, (part.rank, inputs), &Device::Cpu, DType::F32)?,
                    up: narrow(second, shape, &Device::Cpu, DType::F32)?,
                }))
            };
            let parts = parts.iter().map(narrow).collect::<Result<_>>()?;
            Ok(together(&self.lora.expert, parts))
        };
        (0..count).map(of_expert).collect()
    }
}
