//! A network with its weights: built where it runs, changed and restored tensor by tensor.

use crate::models::change::Change;
use crate::models::low_rank::{Adapter, LowRank};
use crate::models::wrap::Wrap;
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Tensor};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use worker::fault::of_file;
use worker::{Error, Result};

type Build<M> = Box<dyn Fn(VarBuilder) -> candle_core::Result<M> + Send + Sync>;

/// A network `M` with its weights.
pub struct Module<M> {
    what: &'static str,
    weights: Weights,
    dtype: DType,
    device: Device,
    /// Whether the network is brought to the device only while it is in use.
    offload: bool,
    /// Where weights rest: the device, or host memory with `offload`.
    home: Device,
    tensors: HashMap<String, Tensor>,
    /// Matrices that stay quantized, where the network runs; empty while weights rest elsewhere.
    quantized: HashMap<String, Arc<QTensor>>,
    /// What is added to the quantized matrices' products.
    adapters: HashMap<String, Vec<LowRank>>,
    /// Tensors that are not as in the file.
    changed: BTreeSet<String>,
    build: Build<M>,
    /// Which edges of its pictures meet.
    wrap: Wrap,
    network: Option<Arc<M>>,
}

impl<M> Module<M> {
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
        if let Some((stay, expand)) = weights.small() {
            tracing::info!(
                "{what}: {stay} tensors in small floats stay so, {expand} become {}",
                format!("{dtype:?}").to_lowercase()
            );
        }
        let mut module = Self {
            what,
            tensors: weights.load_all(dtype, home)?,
            quantized: HashMap::new(),
            adapters: HashMap::new(),
            weights,
            dtype,
            device: device.clone(),
            offload,
            home: home.clone(),
            changed: BTreeSet::new(),
            build: Box::new(build),
            wrap: Wrap::default(),
            network: None,
        };
        module.network()?;
        module.rest();
        Ok(module)
    }

    /// The network, on its device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn network(&mut self) -> Result<Arc<M>> {
        if let Some(network) = &self.network {
            return Ok(network.clone());
        }
        let built = self.build();
        if built.is_err() {
            // Half of the weights are of no use on the device.
            self.rest();
        }
        built
    }

    fn build(&mut self) -> Result<Arc<M>> {
        for name in self.weights.quantized() {
            // A copy that adaptations have widened stands for it.
            if !self.quantized.contains_key(name) && !self.tensors.contains_key(name) {
                let matrix = self.weights.load_quantized(name, &self.device)?;
                self.quantized.insert(name.to_string(), Arc::new(matrix));
            }
        }
        let factors = self.quantized.keys();
        let factors = factors.filter_map(|name| {
            let factor = self.weights.factor(name)?;
            Some((name.clone(), f64::from(factor)))
        });
        let factors = factors.collect();
        let adapters = self.adapters.iter().map(|(name, changes)| {
            let adapter = Adapter::new(changes, self.dtype, &self.device)?;
            Ok((name.clone(), adapter))
        });
        let adapters = adapters.collect::<candle_core::Result<_>>();
        let vb = VarBuilder::from_tensors(self.tensors.clone(), self.dtype, &self.device)
            .with_quantized(self.quantized.clone())
            .with_factors(factors)
            .wrapped(self.wrap)
            .with_adapters(adapters.map_err(Error::candle(self.what))?);
        let path = self.weights.any_path().unwrap_or(Path::new("(no file)"));
        let network = Arc::new((self.build)(vb).map_err(of_file(self.what, path))?);
        self.network = Some(network.clone());
        Ok(network)
    }

    /// The network is for pictures whose edges meet so, from now on.
    pub fn set_wrap(&mut self, wrap: Wrap) {
        if self.wrap != wrap {
            self.wrap = wrap;
            // Built anew, over the same tensors.
            self.network = None;
        }
    }

    /// The network is not needed for now: with offloading gives its memory on the device back.
    pub fn rest(&mut self) {
        if self.offload {
            self.network = None;
            self.quantized.clear();
        }
    }

    /// Whether the network has given its memory on the device back.
    #[cfg(all(test, feature = "built-in-model"))]
    pub fn is_resting(&self) -> bool {
        self.network.is_none()
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
        self.adapters.clear();
        self.changed.clear();
        self.tensors = self.weights.load_all(dtype, &self.home)?;
        self.dtype = dtype;
        Ok(())
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let plain = self.tensors.keys().map(String::as_str);
        let widened = |name: &&str| !self.tensors.contains_key(*name);
        plain.chain(self.weights.quantized().filter(move |name| widened(name)))
    }

    /// A tensor as it is now.
    #[cfg(all(test, feature = "built-in-model"))]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Adds `change` to a tensor; the sum is rounded once. A quantized matrix stays as it is under a change of low rank,
    /// which is applied beside it when the network runs; for other kinds it becomes one of the network's arithmetic. What
    /// a change makes of the weight itself, it makes of that in the file.
    ///
    /// # Errors
    /// If there is no such tensor, or the sizes differ.
    pub fn add(&mut self, name: &str, change: &Change) -> candle_core::Result<()> {
        let plain = self.tensors.contains_key(name);
        match change {
            Change::LowRank(change) if self.weights.is_quantized(name) && !plain => {
                self.add_beside(name, change)?;
            }
            _ => {
                let now = self.tensors.get(name);
                let now = now.map(|now| now.to_dtype(DType::F32)).transpose()?;
                let sum = match now {
                    Some(now) if !change.is_of_weight() => (&now + change.delta(&now)?)?,
                    now => {
                        let file = self.in_file(name)?;
                        let now = match now {
                            Some(now) => now,
                            None => {
                                let beside = self.adapters.remove(name).unwrap_or_default();
                                let add = |sum: Tensor, change: LowRank| {
                                    &sum + change.product()?.reshape(sum.shape())?
                                };
                                beside.into_iter().try_fold(file.clone(), add)?
                            }
                        };
                        (now + change.delta(&file)?)?
                    }
                };
                let sum = sum.to_dtype(self.dtype)?;
                self.tensors.insert(name.to_string(), sum);
                self.quantized.remove(name);
            }
        }
        self.changed.insert(name.to_string());
        self.network = None;
        Ok(())
    }

    fn add_beside(&mut self, name: &str, change: &LowRank) -> candle_core::Result<()> {
        let shape = self.weights.shape(name).unwrap_or_default();
        if shape != [change.up.dim(0)?, change.down.dim(1)?] || change.core.is_some() {
            candle_core::bail!(
                "{name} is a matrix of shape {shape:?}; the change is {:?} times {:?}",
                change.up.dims(),
                change.down.dims()
            )
        }
        let change = LowRank {
            up: change.up.to_device(&self.home)?,
            down: change.down.to_device(&self.home)?,
            core: None,
        };
        self.adapters
            .entry(name.to_string())
            .or_default()
            .push(change);
        Ok(())
    }

    /// A tensor as the network reads it from its file, in f32; of a quantized matrix the numbers that it stands for.
    fn in_file(&self, name: &str) -> candle_core::Result<Tensor> {
        if !self.weights.is_quantized(name) {
            let tensor = self.weights.load(name, self.dtype, &self.home);
            return tensor
                .map_err(candle_core::Error::wrap)?
                .to_dtype(DType::F32);
        }
        let matrix = self.weights.load_quantized(name, &self.device);
        let matrix = matrix.map_err(candle_core::Error::wrap)?;
        let wide = matrix.dequantize(&self.device)?.to_device(&self.home)?;
        match self.weights.factor(name) {
            Some(factor) => wide * f64::from(factor),
            None => Ok(wide),
        }
    }

    /// Makes every changed tensor what it is in the file.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn restore(&mut self) -> Result<()> {
        while let Some(name) = self.changed.pop_first() {
            self.network = None;
            let beside = self.adapters.remove(&name).is_some();
            if self.weights.is_quantized(&name) {
                self.tensors.remove(&name);
            }
            if beside || self.weights.is_quantized(&name) {
                continue;
            }
            let tensor = self.weights.load(&name, self.dtype, &self.home)?;
            self.tensors.insert(name, tensor);
        }
        Ok(())
    }
}
