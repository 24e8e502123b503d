//! Tensors of a file as matrices, vectors and norms on a device.

use super::config::DecoderConfig;
use super::experts::Streamer;
use super::extras::Extras;
use super::fingerprint::Notes;
use super::linear::{dequantize_all, Linear, Weight};
use super::lora::{Attached, Rows};
use super::mixers::FirstValues;
use super::norm::Norm;
use super::part::Part;
use super::traits::NormKind;
use crate::engine::api::{WeightBytes, WeightOptions};
use crate::engine::shard::Shard;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use worker::gguf::{SharedBytes, TensorInfo, Weights};
use worker::{Error, Result};

/// Takes a file's tensors one after another.
pub(super) struct Loader<'a> {
    pub config: &'a DecoderConfig,
    pub file: &'a dyn Weights,
    pub device: &'a Device,
    pub activations: DType,
    /// The model's adapters.
    pub attached: &'a Attached<'a>,
    /// Called with the bytes of every tensor that has arrived.
    pub progress: &'a dyn Fn(u64),
    /// What RWKV's blocks share.
    pub first_values: FirstValues,
    /// Which blocks are loaded.
    pub part: &'a Part,
    /// What tells the tensors that were taken from others.
    pub notes: RefCell<Notes>,
    pub options: WeightOptions,
    /// Blocks, from the first on, whose experts stay in the host's memory.
    pub host_blocks: usize,
    /// What brings those to the device.
    pub streamer: &'a Arc<Streamer>,
    /// The orders of columns that there are.
    pub orders: RefCell<HashMap<Vec<u32>, Tensor>>,
    /// What others have of the model, where several GPUs share it.
    pub shard: Option<&'a Shard>,
    /// What has been taken so far.
    pub taken: Cell<WeightBytes>,
}

impl Loader<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.header().tensor(name).is_some()
    }

    pub(super) fn bad(&self, reason: String) -> Error {
        Error::BadModel {
            path: self.file.path().to_path_buf(),
            reason,
        }
    }

    pub(super) fn info(&self, name: &str) -> Result<(&TensorInfo, GgmlDType)> {
        let info = self.file.header().tensor(name);
        let info = info.ok_or_else(|| self.bad(format!("tensor {name} is missing")))?;
        let dtype = info
            .dtype()
            .map_err(|unsupported| self.bad(format!("tensor {name}: {unsupported}")))?;
        Ok((info, dtype))
    }

    /// Takes the bytes of a tensor.
    pub(super) fn take<T>(
        &self,
        name: &str,
        f: impl FnOnce(&[u8], GgmlDType) -> candle_core::Result<T>,
    ) -> Result<T> {
        let (info, dtype) = self.info(name)?;
        let bytes = self.file.bytes(name, info);
        self.file.intact()?;
        self.notes.borrow_mut().note(name, &bytes);
        let taken = f(&bytes, dtype);
        self.file.give_back(name, info);
        self.count(info.bytes, self.device.is_cpu(), false);
        taken.map_err(Error::candle("loading the model"))
    }

    /// Takes the bytes of a tensor that is in no format of candle's.
    pub(super) fn take_raw(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        let bytes = self.file.bytes(name, info);
        self.notes.borrow_mut().note(name, &bytes);
        self.count(info.bytes, true, false);
        bytes
    }

    /// Takes note that a tensor has arrived.
    fn count(&self, bytes: u64, on_host: bool, mapped: bool) {
        let mut taken = self.taken.get();
        match on_host {
            true => taken.host += bytes,
            false => taken.device += bytes,
        }
        taken.mapped += if mapped { bytes } else { 0 };
        self.taken.set(taken);
        (self.progress)(bytes);
    }

    /// Whether a tensor's bytes can be used where the file has them.
    pub(super) fn is_in_place(&self, name: &str) -> bool {
        let mapped = || {
            let info = self.file.header().tensor(name)?;
            self.file.shared(name, info)
        };
        self.device.is_cpu() && !self.options.copy && !dequantize_all() && mapped().is_some()
    }

    /// The bytes of a tensor for the host: where the file has them, if that can be, else copied.
    pub(super) fn for_host(&self, name: &str) -> Result<(SharedBytes, GgmlDType)> {
        let (info, dtype) = self.info(name)?;
        let shared = (!self.options.copy)
            .then(|| self.file.shared(name, info))
            .flatten();
        let bytes = match shared {
            Some(bytes) => bytes,
            None => {
                let bytes = self.file.bytes(name, info).into_owned();
                self.file.give_back(name, info);
                self.file.intact()?;
                bytes.into()
            }
        };
        if self.options.lock {
            bytes.lock().map_err(|error| {
                Error::Runtime(format!(
                    "--mlock: {} bytes of {name} cannot be kept in memory: {error}; allow more by ulimit -l, or leave --mlock out",
                    bytes.len()
                ))
            })?;
        }
        self.notes.borrow_mut().note(name, &bytes);
        self.count(info.bytes, true, bytes.is_mapped());
        Ok((bytes, dtype))
    }

    pub(super) fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Weight> {
        if self.is_in_place(name) {
            let (bytes, dtype) = self.for_host(name)?;
            let weight = Weight::shared(&bytes, dtype, (outputs, inputs));
            return weight.map_err(Error::candle("loading the model"));
        }
        self.take(name, |bytes, dtype| {
            let shape = (outputs, inputs);
            Weight::new(bytes, dtype, shape, self.device, self.activations)
        })
    }

    /// A tensor of plain numbers.
    pub(super) fn vector(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let elements = self.info(name)?.0.elem_count() as usize;
        self.take(name, |bytes, format| {
            let storage = QStorage::from_data(Cow::Borrowed(bytes), self.device, format)?;
            QTensor::new(storage, elements)?
                .dequantize(self.device)?
                .to_dtype(dtype)
        })
    }

    pub(super) fn bias(&self, name: &str) -> Result<Option<Tensor>> {
        let name = format!("{name}.bias");
        self.has(&name)
            .then(|| self.vector(&name, self.activations))
            .transpose()
    }

    pub(super) fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear> {
        let linear = self.plain_linear(name, outputs, inputs)?;
        Ok(linear.with_extras(self.extras(name, inputs)?))
    }

    /// The same where what is beside the matrix is not its own.
    pub(super) fn plain_linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{name}.weight"), outputs, inputs)?;
        let rows = Rows {
            tensor: name,
            range: 0..outputs,
        };
        self.adapted(Linear::new(weight, self.bias(name)?), &[rows], inputs)
    }

    /// A matrix of these rows behind each other, with what adapters have for them.
    fn adapted(&self, linear: Linear, rows: &[Rows], inputs: usize) -> Result<Linear> {
        let adapters = self
            .attached
            .of(rows, inputs, self.device, self.activations);
        Ok(linear.with_adapters(adapters.map_err(Error::candle("loading adapters"))?))
    }

    /// Some of a stacked matrix's outputs each: their rows lie behind each other.
    pub(super) fn split<const N: usize>(
        &self,
        name: &str,
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Linear; N]> {
        let (bias, extras) = (self.bias(name)?, self.extras(name, inputs)?);
        let total: usize = outputs.iter().sum();
        let split = |of_rows: &dyn Fn(Range<usize>) -> candle_core::Result<Weight>| {
            let mut start = 0;
            let parts = outputs
                .map(|count| {
                    start += count;
                    (start - count, count)
                })
                .map(|(start, count)| {
                    let weight = of_rows(start..start + count)?;
                    let bias = match &bias {
                        Some(bias) => Some(bias.narrow(0, start, count)?.contiguous()?),
                        None => None,
                    };
                    let rows = Rows {
                        tensor: name,
                        range: start..start + count,
                    };
                    let adapters =
                        self.attached
                            .of(&[rows], inputs, self.device, self.activations)?;
                    let linear = Linear::new(weight, bias).with_extras(extras.clone());
                    Ok(linear.with_adapters(adapters))
                });
            let parts = parts.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
            Ok(parts.try_into().ok().expect("one for each"))
        };
        let tensor = format!("{name}.weight");
        if self.is_in_place(&tensor) {
            let (bytes, dtype) = self.for_host(&tensor)?;
            let row = bytes.len() / total;
            let parts = split(&|rows| {
                let bytes = bytes.slice(rows.start * row..rows.end * row);
                Weight::shared(&bytes, dtype, (rows.len(), inputs))
            });
            return parts.map_err(Error::candle("loading the model"));
        }
        self.take(&tensor, |bytes, dtype| {
            let row = bytes.len() / total;
            split(&|rows| {
                let bytes = &bytes[rows.start * row..rows.end * row];
                let shape = (rows.len(), inputs);
                Weight::new(bytes, dtype, shape, self.device, self.activations)
            })
        })
    }

    pub(super) fn norm(&self, name: &str) -> Result<Norm> {
        self.norm_of(self.config.traits.norm, name, self.config.epsilon)
    }

    /// A norm of a kind of its own.
    pub(super) fn norm_of(&self, kind: NormKind, name: &str, epsilon: f32) -> Result<Norm> {
        let weight = self.vector(&format!("{name}.weight"), self.activations)?;
        let norm = Norm::new(kind, weight, self.bias(name)?, epsilon);
        norm.map_err(Error::candle("loading the model"))
    }

    /// A norm whose weights are all 1.
    pub(super) fn plain_norm(&self, kind: NormKind, size: usize, epsilon: f32) -> Result<Norm> {
        let weight = Tensor::ones(size, self.activations, self.device);
        let norm = weight.and_then(|weight| Norm::new(kind, weight, None, epsilon));
        norm.map_err(Error::candle("loading the model"))
    }

    pub(super) fn norm_if_there(&self, name: &str) -> Result<Option<Norm>> {
        self.has(&format!("{name}.weight"))
            .then(|| self.norm(name))
            .transpose()
    }

    /// Whether all have one format and the same factor and order of columns, and all or none a bias.
    pub(super) fn are_alike(&self, names: &[String]) -> Result<bool> {
        let format = |name: &String| Ok(self.info(&format!("{name}.weight"))?.1);
        let formats = names.iter().map(format).collect::<Result<Vec<_>>>()?;
        let biased = |name: &&String| self.has(&format!("{name}.bias"));
        let biases = names.iter().filter(biased).count();
        Ok(formats.windows(2).all(|two| two[0] == two[1])
            && [0, names.len()].contains(&biases)
            && self.have_same_extras(names))
    }

    /// The rows of several matrices of one format behind each other.
    pub(super) fn joined(
        &self,
        names: &[String],
        outputs: [usize; 3],
        inputs: usize,
    ) -> Result<Linear> {
        const LOADING: &str = "loading the model";
        let mut rows = Vec::new();
        let mut format = None;
        for name in names {
            self.take(&format!("{name}.weight"), |bytes, dtype| {
                rows.extend_from_slice(bytes);
                format = Some(dtype);
                Ok(())
            })?;
        }
        let biases = names.iter().map(|name| self.bias(name));
        let biases = biases.collect::<Result<Option<Vec<_>>>>()?;
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose();
        let format = format.expect("there are names");
        let shape = (outputs.iter().sum(), inputs);
        let weight = Weight::new(&rows, format, shape, self.device, self.activations);
        let rows: Vec<Rows> = (names.iter().zip(outputs))
            .map(|(name, outputs)| Rows {
                tensor: name,
                range: 0..outputs,
            })
            .collect();
        let linear = Linear::new(
            weight.map_err(Error::candle(LOADING))?,
            bias.map_err(Error::candle(LOADING))?,
        );
        let mut extras = Extras::default();
        for name in names {
            // They are the same.
            extras = self.extras(name, inputs)?;
        }
        self.adapted(linear.with_extras(extras), &rows, inputs)
    }
}
