//! An encoder's matrices, vectors and norms on a device.

use super::block::quarters;
use super::config::VisionConfig;
use candle_core::{DType, Device, Module, Result as CandleResult, Tensor};
use candle_nn::ops;
use std::cell::RefCell;
use std::collections::BTreeSet;
use worker::gguf::{load, Weights};
use worker::{Error, Result};

/// Takes a file's tensors one after another.
pub(crate) struct Loader<'a> {
    pub file: &'a dyn Weights,
    pub device: &'a Device,
    pub dtype: DType,
    /// Called with the bytes of every tensor that has arrived.
    pub progress: &'a dyn Fn(u64),
    /// Names of those that were asked for.
    pub seen: RefCell<BTreeSet<String>>,
}

/// A matrix with an optional bias.
pub(crate) struct Linear {
    /// `(inputs, outputs)`.
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

/// A matrix that keeps what it multiplies, and what comes of that, within limits: Gemma 4's.
pub(super) struct Clipped {
    pub linear: Linear,
    /// Least and largest inputs, and outputs.
    limits: Option<[(f32, f32); 2]>,
}

/// A norm along the last dimension.
pub(crate) struct Norm {
    weight: Tensor,
    /// None for those that divide by the root mean square only.
    bias: Option<Tensor>,
    epsilon: f32,
}

impl Linear {
    /// `(rows, inputs)` to `(rows, outputs)`.
    pub(crate) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        let product = x.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => product.broadcast_add(bias),
            None => Ok(product),
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.weight.dims()[1]
    }
}

impl Norm {
    /// One of the root mean square that has no weights.
    pub(crate) fn plain(
        width: usize,
        epsilon: f32,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Self> {
        Ok(Self {
            weight: Tensor::ones(width, dtype, device)?,
            bias: None,
            epsilon,
        })
    }
}

impl Clipped {
    /// `(rows, inputs)` to `(rows, outputs)`.
    pub(super) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        match self.limits {
            Some([inputs, outputs]) => {
                let x = x.clamp(inputs.0, inputs.1)?;
                self.linear.forward(&x)?.clamp(outputs.0, outputs.1)
            }
            None => self.linear.forward(x),
        }
    }
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        match &self.bias {
            Some(bias) => ops::layer_norm(x, &self.weight, bias, self.epsilon),
            None => ops::rms_norm(x, &self.weight, self.epsilon),
        }
    }
}

impl Loader<'_> {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.header().tensor(name).is_some()
    }

    pub(crate) fn bad(&self, reason: String) -> Error {
        Error::BadModel {
            path: self.file.path().to_path_buf(),
            reason,
        }
    }

    /// A tensor of the file, of any shape.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        let loaded = load(self.file, name, self.device)?;
        self.seen.borrow_mut().insert(name.to_string());
        if let Some(info) = self.file.header().tensor(name) {
            (self.progress)(info.bytes);
        }
        loaded
            .dequantize(self.device)
            .and_then(|tensor| tensor.to_dtype(self.dtype))
            .map_err(Error::candle("loading an encoder"))
    }

    /// The same, of a shape.
    pub(crate) fn shaped(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        match tensor.dims() == shape {
            true => Ok(tensor),
            false => Err(self.bad(format!(
                "tensor {name} has shape {:?}, {shape:?} is expected",
                tensor.dims()
            ))),
        }
    }

    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<Tensor> {
        self.shaped(name, &[length])
    }

    fn bias(&self, name: &str, length: usize) -> Result<Option<Tensor>> {
        let name = format!("{name}.bias");
        match self.has(&name) {
            true => self.vector(&name, length).map(Some),
            false => Ok(None),
        }
    }

    /// A matrix and its bias, if there is one.
    pub(crate) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let weight = self.shaped(&format!("{name}.weight"), &[outputs, inputs])?;
        self.turned(weight, self.bias(name, outputs)?)
    }

    /// The same with the limits that the file has of it, if it has some.
    pub(super) fn clipped(&self, name: &str, inputs: usize, outputs: usize) -> Result<Clipped> {
        let limit = |part: &str| -> Result<Option<f32>> {
            let name = format!("{name}.{part}");
            if !self.has(&name) {
                return Ok(None);
            }
            let one = self.shaped(&name, &[1])?.to_dtype(DType::F32);
            let one = one.and_then(|one| one.squeeze(0)?.to_scalar::<f32>());
            one.map(Some)
                .map_err(Error::candle("loading the encoder of pictures"))
        };
        let pair = |least: &str, largest: &str| -> Result<Option<(f32, f32)>> {
            Ok(match (limit(least)?, limit(largest)?) {
                (None, None) => None,
                (least, largest) => Some((least.unwrap_or(f32::MIN), largest.unwrap_or(f32::MAX))),
            })
        };
        let whole = (f32::MIN, f32::MAX);
        let limits = match (
            pair("input_min", "input_max")?,
            pair("output_min", "output_max")?,
        ) {
            (None, None) => None,
            (inputs, outputs) => Some([inputs.unwrap_or(whole), outputs.unwrap_or(whole)]),
        };
        Ok(Clipped {
            linear: self.linear(name, inputs, outputs)?,
            limits,
        })
    }

    /// The same of any number of outputs.
    pub(crate) fn linear_from(&self, name: &str, inputs: usize) -> Result<Linear> {
        let weight = self.tensor(&format!("{name}.weight"))?;
        match *weight.dims() {
            [outputs, columns] if columns == inputs => {
                self.turned(weight, self.bias(name, outputs)?)
            }
            _ => Err(self.bad(format!(
                "tensor {name}.weight has shape {:?}, {inputs} inputs are expected",
                weight.dims()
            ))),
        }
    }

    /// Of a weight `(outputs, inputs)`.
    pub(crate) fn turned(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        let weight = weight.t().and_then(|weight| weight.contiguous());
        Ok(Linear {
            weight: weight.map_err(Error::candle("loading an encoder"))?,
            bias,
        })
    }

    pub(crate) fn norm(&self, name: &str, width: usize, rms: bool, epsilon: f32) -> Result<Norm> {
        let weight = self.vector(&format!("{name}.weight"), width)?;
        let bias = match rms {
            true => None,
            false => Some(self.vector(&format!("{name}.bias"), width)?),
        };
        Ok(Norm {
            weight,
            bias,
            epsilon,
        })
    }

    /// A norm without a bias that takes the mean away.
    pub(crate) fn norm_of_mean(&self, name: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let weight = self.vector(&format!("{name}.weight"), width)?;
        let bias = weight.zeros_like();
        Ok(Norm {
            bias: Some(bias.map_err(Error::candle("loading an encoder"))?),
            weight,
            epsilon,
        })
    }

    /// A tensor's numbers.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        let loaded = load(self.file, name, &Device::Cpu)?;
        self.seen.borrow_mut().insert(name.to_string());
        loaded
            .dequantize(&Device::Cpu)
            .and_then(|tensor| tensor.flatten_all()?.to_vec1())
            .map_err(Error::candle("loading an encoder"))
    }

    /// A norm without mean and bias whose elements are a head's, in the order of [`quarters`].
    pub(super) fn norm_in_quarters(&self, name: &str, size: usize, epsilon: f32) -> Result<Norm> {
        let norm = self.norm(name, size, true, epsilon)?;
        let weight = quarters(&norm.weight, 1);
        Ok(Norm {
            weight: weight.map_err(Error::candle("loading the encoder of pictures"))?,
            ..norm
        })
    }

    pub(crate) fn norm_if_there(
        &self,
        name: &str,
        width: usize,
        rms: bool,
        epsilon: f32,
    ) -> Result<Option<Norm>> {
        self.has(&format!("{name}.weight"))
            .then(|| self.norm(name, width, rms, epsilon))
            .transpose()
    }

    /// Refuses a file with tensors that nobody asked for: it does more than this program. Those of blocks that do not
    /// count, and of a norm behind them, are left.
    pub(crate) fn check_all_seen(&self, c: &VisionConfig) -> Result<()> {
        self.check_seen(&|name: &str| {
            let block = name.strip_prefix("v.blk.").and_then(|n| n.split_once('.'));
            let block = block.and_then(|(block, _)| block.parse::<usize>().ok());
            // A break between lines is a token of the vocabulary.
            let is_break = name == "v.token_embd.img_break";
            let is_of_sound = name.starts_with("a.") || name.starts_with("mm.a.");
            block.is_some_and(|block| block >= c.blocks) || is_of_sound || is_break
        })
    }

    /// The same, but for tensors that `left` leaves.
    pub(crate) fn check_seen(&self, left: &dyn Fn(&str) -> bool) -> Result<()> {
        let seen = self.seen.borrow();
        let mut names = self.file.header().tensors().map(|(name, _)| name);
        match names.find(|name| !seen.contains(*name) && !left(name)) {
            Some(name) => Err(self.bad(format!("tensor {name} is not implemented here"))),
            None => Ok(()),
        }
    }
}
