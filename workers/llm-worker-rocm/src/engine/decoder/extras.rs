//! What a file may have beside a matrix: `.scale` and `.order`.
//!
//! | Tensor   | Of         | Meaning                                                                     |
//! |----------|------------|-----------------------------------------------------------------------------|
//! | `.scale` | 1 F32      | a factor of the product, before the bias; of stacked experts one for each   |
//! | `.order` | inputs I32 | column `i` of the matrix belongs to this input                              |
//!
//! llama.cpp's files have the former for NVFP4 (and `.input_scale`, the scale of 4-bit activations, which nothing here
//! has use for). The latter is this project's: checkpoints of GPTQ with `desc_act` have groups of columns that do not
//! lie beside each other, and blocks need them so.

use super::input::Input;
use super::loader::Loader;
use candle_core::Tensor;
use std::borrow::Cow;
use worker::gguf::Format;
use worker::{Error, Result};

/// What is beside one matrix.
#[derive(Clone, Default)]
pub(super) struct Extras {
    /// A factor of the product.
    pub scale: Option<f32>,
    /// The input of each column, u32 `(inputs)`; one tensor for all matrices of a model with the same order.
    pub order: Option<Tensor>,
}

impl Extras {
    /// One factor and no order.
    pub(super) fn scaled(scale: Option<f32>) -> Self {
        Self { scale, order: None }
    }

    /// Inputs in the order of the columns, if that is another than theirs.
    pub(super) fn ordered(&self, x: &Input) -> candle_core::Result<Option<Input>> {
        let Some(order) = &self.order else {
            return Ok(None);
        };
        let columns = x.floats.contiguous()?.index_select(order, 1)?;
        Ok(Some(columns.into()))
    }

    /// Whether columns are in the order of another's.
    pub(super) fn has_order_of(&self, other: &Self) -> bool {
        self.order.as_ref().map(Tensor::id) == other.order.as_ref().map(Tensor::id)
    }
}

impl Loader<'_> {
    /// What is beside the matrix `name` of so many inputs.
    pub(super) fn extras(&self, name: &str, inputs: usize) -> Result<Extras> {
        let scales = self.scales(name, 1)?;
        Ok(Extras {
            scale: scales.map(|scales| scales[0]),
            order: self.order(name, inputs)?,
        })
    }

    /// Factors of the products of so many stacked matrices, if there are some.
    pub(super) fn scales(&self, name: &str, count: usize) -> Result<Option<Vec<f32>>> {
        let name = format!("{name}.scale");
        let Some(numbers) = self.words(&name, Format::F32, count)? else {
            return Ok(None);
        };
        let scales: Vec<f32> = numbers.into_iter().map(f32::from_le_bytes).collect();
        match scales.iter().find(|scale| !scale.is_finite()) {
            Some(scale) => Err(self.bad(format!("tensor {name} has {scale} for a factor"))),
            None => Ok(Some(scales)),
        }
    }

    fn order(&self, name: &str, inputs: usize) -> Result<Option<Tensor>> {
        let name = format!("{name}.order");
        let Some(numbers) = self.words(&name, Format::I32, inputs)? else {
            return Ok(None);
        };
        let order: Vec<u32> = numbers.into_iter().map(u32::from_le_bytes).collect();
        let mut seen = vec![false; inputs];
        for input in &order {
            match seen.get_mut(*input as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    let reason = format!("tensor {name}: {input} is no input of its own");
                    return Err(self.bad(reason));
                }
            }
        }
        let mut orders = self.orders.borrow_mut();
        if let Some(known) = orders.get(&order) {
            return Ok(Some(known.clone()));
        }
        let tensor = Tensor::new(order.as_slice(), self.device);
        let tensor = tensor.map_err(Error::candle("loading the model"))?;
        orders.insert(order, tensor.clone());
        Ok(Some(tensor))
    }

    /// The words of a tensor, if the file has it, of which it must have `count` in this format.
    fn words(&self, name: &str, format: Format, count: usize) -> Result<Option<Vec<[u8; 4]>>> {
        let Some(info) = self.file.header().tensor(name) else {
            return Ok(None);
        };
        if info.format != format || info.elem_count() != count as u64 {
            return Err(self.bad(format!(
                "tensor {name} of {} elements of {} must be of {count} of {}",
                info.elem_count(),
                info.format.name(),
                format.name()
            )));
        }
        let bytes = self.take_raw(name, info);
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        Ok(Some(words.collect()))
    }

    /// Whether matrices have the same beside them.
    pub(super) fn have_same_extras(&self, names: &[String]) -> bool {
        let extras = |name: &String| -> [Option<Cow<'_, [u8]>>; 2] {
            ["scale", "order"].map(|extra| {
                let name = format!("{name}.{extra}");
                let info = self.file.header().tensor(&name)?;
                Some(self.file.bytes(&name, info))
            })
        };
        let mut all = names.iter().map(extras);
        let first = all.next();
        all.all(|other| Some(other) == first)
    }
}
