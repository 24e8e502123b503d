//! Norms, and the residual stream between them.

use super::input::{Input, Wanted};
use super::rocm;
use super::traits::NormKind;
use candle_core::{Result, Tensor};
use candle_nn::{fused, ops};

/// A norm along the last dimension.
pub(super) struct Norm {
    pub kind: NormKind,
    pub weight: Tensor,
    /// Of layer norms always there: with and without one, kernels round differently, and so do those of a norm alone and
    /// of one behind a sum. A block has to give the same wherever a stage begins.
    pub bias: Option<Tensor>,
    pub epsilon: f32,
}

impl Norm {
    pub(super) fn new(
        kind: NormKind,
        weight: Tensor,
        bias: Option<Tensor>,
        epsilon: f32,
    ) -> Result<Self> {
        let bias = match (kind, bias) {
            (NormKind::Layer, None) => Some(weight.zeros_like()?),
            (_, bias) => bias,
        };
        Ok(Self {
            kind,
            weight,
            bias,
            epsilon,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match (self.kind, &self.bias) {
            (NormKind::Rms, None) => ops::rms_norm(x, &self.weight, self.epsilon),
            (NormKind::Rms, Some(bias)) => {
                ops::rms_norm(x, &self.weight, self.epsilon)?.broadcast_add(bias)
            }
            (NormKind::Layer, Some(bias)) => ops::layer_norm(x, &self.weight, bias, self.epsilon),
            (NormKind::Layer, None) => candle_core::bail!("a layer norm without its bias"),
        }
    }

    /// `x + residual` and its norm.
    fn add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        match (self.kind, &self.bias) {
            (NormKind::Rms, None) => fused::add_rms_norm(x, residual, &self.weight, self.epsilon),
            (NormKind::Layer, bias) => {
                fused::add_layer_norm(x, residual, &self.weight, bias.as_ref(), self.epsilon)
            }
            (NormKind::Rms, Some(_)) => {
                let sum = (x + residual)?;
                let normed = self.forward(&sum)?;
                Ok((sum, normed))
            }
        }
    }
}

/// The residual stream, and what is still to be added to it: adding and the next norm are one operation.
pub(super) struct Residual {
    sum: Tensor,
    addend: Option<Tensor>,
}

impl Residual {
    pub(super) fn new(x: Tensor) -> Self {
        Self {
            sum: x,
            addend: None,
        }
    }

    pub(super) fn add(&mut self, x: Tensor) -> Result<()> {
        if let Some(before) = self.addend.replace(x) {
            self.sum = (&self.sum + before)?;
        }
        Ok(())
    }

    /// Multiplies all of it.
    pub(super) fn scale(&mut self, by: &Tensor) -> Result<()> {
        self.sum = self.sum()?.broadcast_mul(by)?;
        Ok(())
    }

    /// The stream.
    pub(super) fn sum(&mut self) -> Result<Tensor> {
        if let Some(addend) = self.addend.take() {
            self.sum = (addend + &self.sum)?;
        }
        Ok(self.sum.clone())
    }

    /// Rows of the stream.
    pub(super) fn rows(&self) -> Result<usize> {
        self.sum.dim(0)
    }

    /// The stream behind a norm; in 8 bits as well, where those are wanted for what comes next and the device has it in
    /// one.
    pub(super) fn normed(&mut self, norm: &Norm, wanted: Wanted) -> Result<Input> {
        let addend = self.addend.take();
        if norm.kind == NormKind::Rms && norm.bias.is_none() {
            let (weight, addend) = ((&norm.weight, norm.epsilon), addend.as_ref());
            if let Some((sum, input)) = rocm::norm_quantize(wanted, weight, &self.sum, addend)? {
                if let Some(sum) = sum {
                    self.sum = sum;
                }
                return Ok(input);
            }
        }
        match addend {
            Some(addend) => {
                let (sum, normed) = norm.add(&addend, &self.sum)?;
                self.sum = sum;
                Ok(normed.into())
            }
            None => Ok(norm.forward(&self.sum)?.into()),
        }
    }
}
