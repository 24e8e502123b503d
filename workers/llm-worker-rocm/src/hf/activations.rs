//! Numbers of activations, which are tensors in safetensors files and lists in GGUF's metadata.

use super::files::plain_format;
use super::names::part_of_block;
use super::tensors::floats;
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use worker::gguf::{Array, Value};

/// Where they are in a block, and GGUF's names for the lists.
const NUMBERS: [(&str, &str); 4] = [
    ("mlp.act_fn.alpha_p", "xielu.alpha_p"),
    ("mlp.act_fn.alpha_n", "xielu.alpha_n"),
    ("mlp.act_fn.beta", "xielu.beta"),
    ("mlp.act_fn.eps", "xielu.eps"),
];

/// Numbers by the names of their lists and by blocks.
#[derive(Default)]
pub(super) struct Activations {
    lists: BTreeMap<&'static str, BTreeMap<u32, f32>>,
}

impl Activations {
    /// Takes a tensor, if it is such a number; gives whether it is.
    pub(super) fn take(&mut self, name: &str, view: &TensorView) -> Result<bool, String> {
        let Some((block, part)) = part_of_block(name) else {
            return Ok(false);
        };
        let Some((_, list)) = NUMBERS.iter().find(|(known, _)| *known == part) else {
            return Ok(false);
        };
        let is_one = view.shape().iter().product::<usize>() == 1;
        let Some(format) = plain_format(view.dtype()).filter(|_| is_one) else {
            return Err(format!(
                "tensor {name} of dtype {:?} and shape {:?} is not one number",
                view.dtype(),
                view.shape()
            ));
        };
        let bytes = floats(view.data(), format, 0.0);
        let value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        match self.lists.entry(list).or_default().insert(block, value) {
            None => Ok(true),
            Some(_) => Err(format!("tensor {name} appears twice")),
        }
    }

    /// The lists, in the order of blocks. The decoder checks how many numbers they have.
    pub(super) fn metadata(&self) -> impl Iterator<Item = (String, Value)> + '_ {
        self.lists.iter().map(|(name, numbers)| {
            let numbers = numbers.values().copied().collect();
            (name.to_string(), Value::Array(Array::F32(numbers)))
        })
    }
}
