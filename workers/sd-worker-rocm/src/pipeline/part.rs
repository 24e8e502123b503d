//! A network with its weights: built where it runs, changed and restored tensor by tensor.

use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Tensor};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use worker::{Error, Result};

type Build<M> = Box<dyn Fn(VarBuilder) -> candle_core::Result<M> + Send + Sync>;

/// A network `M` with its weights.
pub struct Part<M> {
    what: &'static str,
    weights: Weights,
    dtype: DType,
    device: Device,
    /// Where weights rest: the device, or host memory if they are brought there only while in use.
    home: Device,
    tensors: HashMap<String, Tensor>,
    /// Matrices that stay quantized, where the network runs; empty while weights rest elsewhere.
    quantized: HashMap<String, Arc<QTensor>>,
    /// Tensors that are not as in the file.
    changed: BTreeSet<String>,
    build: Build<M>,
    network: Option<Arc<M>>,
}

impl<M> Part<M> {
    /// Loads weights and builds the network once, so that what does not fit together is found now.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes, or the device has no room.
    pub fn new(
        what: &'static str,
        weights: Weights,
        dtype: DType,
        device: &Device,
        offload: bool,
        build: impl Fn(VarBuilder) -> candle_core::Result<M> + Send + Sync + 'static,
    ) -> Result<Self> {
        let home = if offload { &Device::Cpu } else { device };
        let mut part = Self {
            what,
            tensors: weights.load_all(dtype, home)?,
            quantized: HashMap::new(),
            weights,
            dtype,
            device: device.clone(),
            home: home.clone(),
            changed: BTreeSet::new(),
            build: Box::new(build),
            network: None,
        };
        part.network()?;
        part.rest();
        Ok(part)
    }

    /// The network, on its device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn network(&mut self) -> Result<Arc<M>> {
        if let Some(network) = &self.network {
            return Ok(network.clone());
        }
        for name in self.weights.quantized() {
            if !self.quantized.contains_key(name) && !self.tensors.contains_key(name) {
                let matrix = self.weights.load_quantized(name, &self.device)?;
                self.quantized.insert(name.to_string(), Arc::new(matrix));
            }
        }
        let vb = VarBuilder::from_tensors(self.tensors.clone(), self.dtype, &self.device)
            .with_quantized(self.quantized.clone());
        let network = Arc::new((self.build)(vb).map_err(Error::candle(self.what))?);
        self.network = Some(network.clone());
        Ok(network)
    }

    /// The network is not needed for now: gives its memory on the device back if weights rest elsewhere.
    pub fn rest(&mut self) {
        if !self.home.same_device(&self.device) {
            self.network = None;
            self.quantized.clear();
        }
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Loads the weights again for other arithmetic.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn set_dtype(&mut self, dtype: DType) -> Result<()> {
        self.network = None;
        self.tensors.clear();
        self.changed.clear();
        self.tensors = self.weights.load_all(dtype, &self.home)?;
        self.dtype = dtype;
        Ok(())
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        // A changed matrix is in both.
        let quantized = self.weights.quantized();
        self.tensors
            .keys()
            .map(String::as_str)
            .chain(quantized.filter(|name| !self.tensors.contains_key(*name)))
    }

    /// A tensor as it is now.
    #[cfg(test)]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Adds `delta`, f32 and of as many elements, to a tensor. The sum is rounded once; a quantized matrix is quantized no more until it is restored.
    ///
    /// # Errors
    /// If there is no such tensor, or the sizes differ.
    pub fn add(&mut self, name: &str, delta: &Tensor) -> candle_core::Result<()> {
        if !self.tensors.contains_key(name) && self.weights.is_quantized(name) {
            let plain = self.weights.load(name, DType::F32, &self.home);
            let plain = plain.map_err(candle_core::Error::wrap)?;
            self.tensors.insert(name.to_string(), plain);
            self.quantized.remove(name);
        }
        let Some(tensor) = self.tensors.get_mut(name) else {
            candle_core::bail!("there is no tensor {name}")
        };
        let delta = delta.to_device(&self.home)?.reshape(tensor.shape())?;
        *tensor = (tensor.to_dtype(DType::F32)? + delta)?.to_dtype(self.dtype)?;
        self.changed.insert(name.to_string());
        self.network = None;
        Ok(())
    }

    /// Makes every changed tensor what it is in the file.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn restore(&mut self) -> Result<()> {
        while let Some(name) = self.changed.pop_first() {
            self.network = None;
            if self.weights.is_quantized(&name) {
                self.tensors.remove(&name);
                continue;
            }
            let tensor = self.weights.load(&name, self.dtype, &self.home)?;
            self.tensors.insert(name, tensor);
        }
        Ok(())
    }
}
