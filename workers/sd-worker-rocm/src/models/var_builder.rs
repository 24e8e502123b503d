//! Weights as networks read them: by name, below a prefix.

use super::low_rank::Adapter;
use super::wrap::Wrap;
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Result, Shape, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// candle's builder with matrices that stay quantized beside it.
#[derive(Clone)]
pub struct VarBuilder {
    plain: candle_nn::VarBuilder<'static>,
    quantized: Arc<HashMap<String, Arc<QTensor>>>,
    factors: Arc<HashMap<String, f64>>,
    adapters: Arc<HashMap<String, Adapter>>,
    wrap: Wrap,
}

impl From<candle_nn::VarBuilder<'static>> for VarBuilder {
    fn from(plain: candle_nn::VarBuilder<'static>) -> Self {
        Self {
            plain,
            quantized: Arc::default(),
            factors: Arc::default(),
            adapters: Arc::default(),
            wrap: Wrap::default(),
        }
    }
}

impl VarBuilder {
    /// A builder over these tensors.
    pub fn from_tensors(tensors: HashMap<String, Tensor>, dtype: DType, device: &Device) -> Self {
        candle_nn::VarBuilder::from_tensors(tensors, dtype, device).into()
    }

    /// The same with quantized matrices under their full names.
    #[must_use]
    pub fn with_quantized(self, quantized: HashMap<String, Arc<QTensor>>) -> Self {
        Self {
            quantized: Arc::new(quantized),
            ..self
        }
    }

    /// The same with that by which quantized matrices are multiplied, under the matrices' full names.
    #[must_use]
    pub fn with_factors(self, factors: HashMap<String, f64>) -> Self {
        Self {
            factors: Arc::new(factors),
            ..self
        }
    }

    /// The same with what is added to quantized matrices' products, under the matrices' full names.
    #[must_use]
    pub fn with_adapters(self, adapters: HashMap<String, Adapter>) -> Self {
        Self {
            adapters: Arc::new(adapters),
            ..self
        }
    }

    /// The same for a network of pictures whose edges meet so.
    #[must_use]
    pub fn wrapped(self, wrap: Wrap) -> Self {
        Self { wrap, ..self }
    }

    /// Which edges of the network's pictures meet.
    pub fn wrap(&self) -> Wrap {
        self.wrap
    }

    /// Below `part`.
    #[must_use]
    pub fn pp<S: ToString>(&self, part: S) -> Self {
        Self {
            plain: self.plain.pp(part),
            quantized: self.quantized.clone(),
            factors: self.factors.clone(),
            adapters: self.adapters.clone(),
            wrap: self.wrap,
        }
    }

    /// A tensor of this shape; of a quantized matrix the numbers that it stands for.
    ///
    /// # Errors
    /// If there is none, or it has another shape.
    pub fn get<S: Into<Shape>>(&self, shape: S, name: &str) -> Result<Tensor> {
        let shape = shape.into();
        match self.dequantized(name)? {
            None => self.plain.get(shape, name),
            Some(tensor) if *tensor.shape() == shape => Ok(tensor),
            Some(tensor) => candle_core::bail!(
                "{} has shape {:?}; the configuration wants {shape:?}",
                self.full(name),
                tensor.shape()
            ),
        }
    }

    /// A tensor of whatever shape; of a quantized matrix the numbers that it stands for.
    ///
    /// # Errors
    /// If there is none.
    pub fn get_unchecked(&self, name: &str) -> Result<Tensor> {
        match self.dequantized(name)? {
            None => self.plain.get_unchecked(name),
            Some(tensor) => Ok(tensor),
        }
    }

    fn dequantized(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(matrix) = self.quantized(name) else {
            return Ok(None);
        };
        let mut tensor = matrix.dequantize(self.device())?;
        if let Some(factor) = self.factor(name) {
            tensor = (tensor * factor)?;
        }
        tensor.to_dtype(self.dtype()).map(Some)
    }

    /// A matrix that is quantized.
    pub fn quantized(&self, name: &str) -> Option<Arc<QTensor>> {
        self.quantized.get(&self.full(name)).cloned()
    }

    /// By what a quantized matrix is multiplied.
    pub fn factor(&self, name: &str) -> Option<f64> {
        self.factors.get(&self.full(name)).copied()
    }

    /// What is added to a quantized matrix.
    pub fn adapter(&self, name: &str) -> Option<Adapter> {
        self.adapters.get(&self.full(name)).cloned()
    }

    fn full(&self, name: &str) -> String {
        match self.prefix() {
            prefix if prefix.is_empty() => name.to_string(),
            prefix => format!("{prefix}.{name}"),
        }
    }

    /// Whether there is such a tensor.
    pub fn contains_tensor(&self, name: &str) -> bool {
        self.plain.contains_tensor(name) || self.quantized(name).is_some()
    }

    /// What names are below of.
    pub fn prefix(&self) -> String {
        self.plain.prefix()
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.plain.dtype()
    }

    /// Where the network runs.
    pub fn device(&self) -> &Device {
        self.plain.device()
    }
}
