//! Experts whose matrices lie in one tensor, where GGUF has one tensor for gates, one for what they multiply, and one for
//! what comes behind, each with rows of inputs.

use super::change::{Change, Places};
use super::config::Config;
use super::files::{bytes_of, plain_format, Source};
use super::names::{part_of_block, TensorName};
use super::tensors::floats;
use crate::architectures::ExpertFiles;
use rayon::prelude::*;
use safetensors::Dtype;
use std::collections::HashMap;
use worker::gguf::{Format, TensorInfo};

/// Elements of a block of MXFP4, the bytes of their numbers, and with the exponent.
const BLOCK: usize = 32;
const NUMBERS: usize = BLOCK / 2;
const BLOCK_BYTES: usize = 1 + NUMBERS;

/// Tensors of experts by their names in GGUF.
#[derive(Default)]
pub(super) struct PackedExperts {
    tensors: HashMap<String, Packed>,
}

/// One of GGUF's tensors, and where it comes from.
struct Packed {
    kind: Kind,
    outputs: Outputs,
    /// Experts, outputs of each in the file, and inputs, 0 of a bias.
    experts: usize,
    all_outputs: usize,
    inputs: usize,
}

enum Kind {
    /// `(experts, inputs, outputs)` of plain numbers.
    Turned(Source, Format),
    /// `(experts, outputs)` of plain numbers.
    Bias(Source, Format),
    /// `(experts, outputs, blocks, 16)` of pairs of numbers, and `(experts, outputs, blocks)` of exponents, which come
    /// in any order.
    Mxfp4 {
        numbers: Option<Source>,
        exponents: Option<Source>,
    },
}

/// Some of a matrix's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outputs {
    first: usize,
    step: usize,
    count: usize,
}

/// What a tensor in the file holds of its experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Plain,
    Bias,
    Numbers,
    Exponents,
}

impl Outputs {
    fn all(count: usize) -> Self {
        Self {
            first: 0,
            step: 1,
            count,
        }
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |i| self.first + i * self.step)
    }
}

/// The matrix that a name in a block is of, and what it holds.
fn matrix_of(name: &str) -> Option<(&str, Part)> {
    let name = name
        .strip_prefix("mlp.experts.")
        .or_else(|| name.strip_prefix("feed_forward.experts."))?;
    for (suffix, part) in [
        ("_bias", Part::Bias),
        ("_blocks", Part::Numbers),
        ("_scales", Part::Exponents),
        ("", Part::Plain),
    ] {
        let matrix = name.strip_suffix(suffix);
        if let Some(matrix @ ("gate_up_proj" | "down_proj")) = matrix {
            return Some((matrix, part));
        }
    }
    None
}

/// The places of a quantized matrix of experts in one tensor, where the family has not those of most; none of other
/// matrices.
pub(super) fn places_of_halves(config: &Config, name: &str) -> Result<Option<Places>, String> {
    let found = part_of_block(name).and_then(|(block, part)| Some((block, matrix_of(part)?)));
    let Some((block, (matrix, Part::Plain))) = found else {
        return Ok(None);
    };
    match config.folder.experts {
        ExpertFiles::Apart => return Ok(None),
        ExpertFiles::Halves => {}
        ExpertFiles::Turns => {
            return Err(format!(
                "tensor {name}: experts of this family are not implemented in this layout"
            ))
        }
    }
    let to = |matrix: &str, change: Option<Change>| {
        let name = format!("blk.{block}.{matrix}.weight");
        (TensorName::whole(&name), change)
    };
    Ok(Some(match matrix {
        "gate_up_proj" => vec![
            to("ffn_gate_exps", Some(Change::Half(0))),
            to("ffn_up_exps", Some(Change::Half(1))),
        ],
        _ => vec![to("ffn_down_exps", None)],
    }))
}

/// Whether experts' matrices of this shape have rows of outputs.
pub(super) fn has_turned_rows(config: &Config, matrix: &str, shape: &[usize]) -> bool {
    config.folder.experts == ExpertFiles::Halves && !has_rows(config, matrix, shape)
}

/// Whether experts' matrices of this shape have rows of inputs, as transformers saves those of some families.
fn has_rows(config: &Config, matrix: &str, shape: &[usize]) -> bool {
    let width = config.width as usize;
    match *shape {
        [_, outputs, inputs] if matrix.ends_with("down_proj") => {
            outputs == width && inputs != width
        }
        [_, outputs, inputs] => inputs == width && outputs != width,
        _ => false,
    }
}

impl PackedExperts {
    /// Takes a tensor of the file that holds such experts; gives whether it does.
    pub(super) fn take(
        &mut self,
        config: &Config,
        name: &str,
        source: Source,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<bool, String> {
        let files = config.folder.experts;
        let found = part_of_block(name).and_then(|(block, part)| Some((block, matrix_of(part)?)));
        let Some((block, (matrix, part))) = found.filter(|_| files != ExpertFiles::Apart) else {
            return Ok(false);
        };
        // With rows of inputs, as transformers saves it, it is no other than GGUF's.
        if files == ExpertFiles::Halves && part == Part::Plain && has_rows(config, matrix, shape) {
            return Ok(false);
        }
        let plain = plain_format(dtype);
        let is_float = plain.is_some();
        let (outputs, inputs) = match (part, shape) {
            (Part::Plain, &[_, inputs, outputs]) if is_float => (outputs, inputs),
            (Part::Bias, &[_, outputs]) if is_float => (outputs, 0),
            (Part::Numbers, &[_, outputs, blocks, NUMBERS])
            | (Part::Exponents, &[_, outputs, blocks])
                if dtype == Dtype::U8 && files == ExpertFiles::Turns =>
            {
                (outputs, blocks * BLOCK)
            }
            _ => {
                return Err(format!(
                    "tensor {name} of dtype {dtype:?} and shape {shape:?} holds no experts that are read"
                ))
            }
        };
        if block >= config.blocks || shape.contains(&0) {
            return Err(format!(
                "tensor {name} of shape {shape:?}: the model has {} blocks",
                config.blocks
            ));
        }
        let parts: &[(&str, usize)] = match matrix {
            "down_proj" => &[("ffn_down_exps", 0)],
            _ => &[("ffn_gate_exps", 0), ("ffn_up_exps", 1)],
        };
        if outputs % parts.len() != 0 {
            return Err(format!("tensor {name}: {outputs} outputs have no halves"));
        }
        let half = outputs / parts.len();
        let ending = if part == Part::Bias { "bias" } else { "weight" };
        for &(of, index) in parts {
            let picked = match files {
                _ if parts.len() == 1 => Outputs::all(outputs),
                ExpertFiles::Turns => Outputs {
                    first: index,
                    step: 2,
                    count: half,
                },
                _ => Outputs {
                    first: index * half,
                    step: 1,
                    count: half,
                },
            };
            let new = Packed {
                kind: match part {
                    Part::Plain => Kind::Turned(source, plain.unwrap_or(Format::F32)),
                    Part::Bias => Kind::Bias(source, plain.unwrap_or(Format::F32)),
                    Part::Numbers => Kind::Mxfp4 {
                        numbers: Some(source),
                        exponents: None,
                    },
                    Part::Exponents => Kind::Mxfp4 {
                        numbers: None,
                        exponents: Some(source),
                    },
                },
                outputs: picked,
                experts: shape[0],
                all_outputs: outputs,
                inputs,
            };
            let gguf = format!("blk.{block}.{of}.{ending}");
            match self.tensors.remove(&gguf) {
                None => self.tensors.insert(gguf, new),
                Some(old) => {
                    let both = old.joined(new);
                    let both = both.ok_or_else(|| format!("tensor {name} appears twice"))?;
                    self.tensors.insert(gguf, both)
                }
            };
        }
        Ok(true)
    }

    /// Whether all tensors have all parts, of so many experts.
    pub(super) fn check(&self, experts: u32) -> Result<(), String> {
        for (name, packed) in &self.tensors {
            if packed.experts != experts as usize {
                return Err(format!(
                    "{name} has {} of {experts} experts",
                    packed.experts
                ));
            }
            if let Kind::Mxfp4 { numbers, exponents } = &packed.kind {
                if numbers.is_none() || exponents.is_none() {
                    return Err(format!("{name} needs tensors of _blocks and of _scales"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn table(&self) -> impl Iterator<Item = (String, TensorInfo)> + '_ {
        let tensors = self.tensors.iter();
        tensors.map(|(name, packed)| (name.clone(), packed.info()))
    }

    /// Where a tensor comes from.
    pub(super) fn sources(&self, name: &str) -> impl Iterator<Item = Source> {
        let both = match self.tensors.get(name).map(|packed| &packed.kind) {
            Some(Kind::Turned(source, _) | Kind::Bias(source, _)) => [Some(*source), None],
            Some(Kind::Mxfp4 { numbers, exponents }) => [*numbers, *exponents],
            None => [None, None],
        };
        both.into_iter().flatten()
    }

    /// A tensor as GGUF has it, if it is one of these; `of` gives what lies in the files.
    pub(super) fn bytes<'a>(&self, name: &str, of: impl Fn(Source) -> &'a [u8]) -> Option<Vec<u8>> {
        let packed = self.tensors.get(name)?;
        Some(match packed.kind {
            Kind::Turned(source, Format::F32) => packed.turned::<4>(of(source)),
            Kind::Turned(source, _) => packed.turned::<2>(of(source)),
            Kind::Bias(source, format) => packed.bias(&floats(of(source), format, 0.0)),
            Kind::Mxfp4 { numbers, exponents } => packed.blocks(of(numbers?), of(exponents?)),
        })
    }
}

impl Packed {
    /// Numbers and exponents of one tensor.
    fn joined(self, other: Self) -> Option<Self> {
        let same = |packed: &Self| (packed.experts, packed.all_outputs, packed.inputs);
        if same(&self) != same(&other) {
            return None;
        }
        match (self.kind, other.kind) {
            (
                Kind::Mxfp4 {
                    numbers: a,
                    exponents: b,
                },
                Kind::Mxfp4 {
                    numbers: c,
                    exponents: d,
                },
            ) if a.is_none() != c.is_none() && b.is_none() != d.is_none() => Some(Self {
                kind: Kind::Mxfp4 {
                    numbers: a.or(c),
                    exponents: b.or(d),
                },
                ..other
            }),
            _ => None,
        }
    }

    fn info(&self) -> TensorInfo {
        let rows = self.experts * self.outputs.count;
        let (format, bytes) = match self.kind {
            Kind::Bias(..) => (Format::F32, rows * 4),
            Kind::Turned(_, format) => (format, bytes_of(format, rows * self.inputs)),
            Kind::Mxfp4 { .. } => (Format::MXFP4, rows * self.inputs / BLOCK * BLOCK_BYTES),
        };
        let dims = [self.inputs, self.outputs.count, self.experts];
        let first = usize::from(matches!(self.kind, Kind::Bias(..)));
        TensorInfo {
            format,
            offset: 0,
            dims: dims[first..].iter().map(|d| *d as u64).collect(),
            bytes: bytes as u64,
        }
    }

    /// Matrices with rows of inputs, of elements of `N` bytes.
    fn turned<const N: usize>(&self, data: &[u8]) -> Vec<u8> {
        let (inputs, width) = (self.inputs, self.all_outputs);
        let mut out = vec![0; self.experts * self.outputs.count * inputs * N];
        let rows = out.par_chunks_exact_mut(inputs * N).enumerate();
        rows.for_each(|(row, to)| {
            let expert = row / self.outputs.count;
            let output = self.outputs.first + row % self.outputs.count * self.outputs.step;
            let from = &data[(expert * inputs * width + output) * N..];
            for (to, from) in to.chunks_exact_mut(N).zip(from.chunks(width * N)) {
                to.copy_from_slice(&from[..N]);
            }
        });
        out
    }

    /// The biases of the outputs, of float32.
    fn bias(&self, data: &[u8]) -> Vec<u8> {
        let experts = data.chunks_exact(self.all_outputs * 4);
        let outputs = |expert: &[u8]| -> Vec<u8> {
            let one = |output: usize| expert[output * 4..output * 4 + 4].to_vec();
            self.outputs.iter().flat_map(one).collect()
        };
        experts.flat_map(outputs).collect()
    }

    /// GGUF's blocks: the exponent, then bytes of a number of the first half and one of the second. In the file bytes
    /// have neighbours.
    fn blocks(&self, numbers: &[u8], exponents: &[u8]) -> Vec<u8> {
        let row = self.inputs / BLOCK;
        let mut out = vec![0; self.experts * self.outputs.count * row * BLOCK_BYTES];
        let rows = out.par_chunks_exact_mut(row * BLOCK_BYTES).enumerate();
        rows.for_each(|(index, to)| {
            let expert = index / self.outputs.count;
            let output = self.outputs.first + index % self.outputs.count * self.outputs.step;
            let first = (expert * self.all_outputs + output) * row;
            let blocks = numbers[first * NUMBERS..].chunks_exact(NUMBERS);
            let blocks = blocks.zip(&exponents[first..]);
            for (to, (pairs, exponent)) in to.chunks_exact_mut(BLOCK_BYTES).zip(blocks) {
                let number = |i: usize| pairs[i / 2] >> (i % 2 * 4) & 15;
                to[0] = *exponent;
                for (i, to) in to[1..].iter_mut().enumerate() {
                    *to = number(i) | number(i + NUMBERS) << 4;
                }
            }
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(outputs: Outputs, all_outputs: usize, inputs: usize) -> Packed {
        let source = Source {
            shard: 0,
            start: 0,
            bytes: 0,
        };
        Packed {
            kind: Kind::Bias(source, Format::F32),
            outputs,
            experts: 1,
            all_outputs,
            inputs,
        }
    }

    #[test]
    fn names_tell_what_a_tensor_holds() {
        assert!(matches!(
            matrix_of("mlp.experts.gate_up_proj"),
            Some(("gate_up_proj", Part::Plain))
        ));
        assert!(matches!(
            matrix_of("mlp.experts.down_proj_scales"),
            Some(("down_proj", Part::Exponents))
        ));
        assert!(matches!(
            matrix_of("feed_forward.experts.gate_up_proj_bias"),
            Some(("gate_up_proj", Part::Bias))
        ));
        assert!(matrix_of("mlp.experts.0.down_proj.weight").is_none());
        assert!(matrix_of("mlp.down_proj").is_none());
    }

    #[test]
    fn columns_become_rows() {
        // Two inputs and four outputs of two bytes.
        let data: Vec<u8> = (0..8).flat_map(|i| [i, 100 + i]).collect();
        let second = Outputs {
            first: 1,
            step: 2,
            count: 2,
        };
        let turned = packed(second, 4, 2).turned::<2>(&data);
        assert_eq!(turned, [1, 101, 5, 105, 3, 103, 7, 107]);
    }

    #[test]
    fn neighbours_become_halves() {
        // Number i of a block is i % 16.
        let pairs: Vec<u8> = (0..16)
            .map(|i| (2 * i % 16) | ((2 * i + 1) % 16) << 4)
            .collect();
        let other = [0; 16];
        let numbers = [&pairs[..], &other[..]].concat();
        let first = Outputs {
            first: 0,
            step: 2,
            count: 1,
        };
        let blocks = packed(first, 2, 32).blocks(&numbers, &[120, 1]);
        let expected: Vec<u8> = std::iter::once(120)
            .chain((0..16).map(|i| i | i << 4))
            .collect();
        assert_eq!(blocks, expected);
    }
}
