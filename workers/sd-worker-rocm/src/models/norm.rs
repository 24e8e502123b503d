//! Normalisation of groups and of rows.

use crate::models::VarBuilder;
use candle_core::{DType, Result, Tensor};
use candle_nn::fused;

/// Divides rows by the root of their mean square, then scales each channel. The mean is that of f32.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Reads `weight`.
    ///
    /// # Errors
    /// If it is missing or of another size.
    pub fn new(vb: VarBuilder, width: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: vb.get(width, "weight")?,
            eps: eps as f32,
        })
    }

    /// `x`, `(.., width)`, normalised.
    ///
    /// # Errors
    /// If `x` has another width, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.eps)
    }
}

/// Normalises groups of channels over all pixels, then scales and shifts each channel. Statistics are those of f32.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    eps: f64,
}

/// Mean and variance, `(batch, groups)` each.
#[derive(Debug, Clone)]
pub struct Moments {
    mean: Tensor,
    variance: Tensor,
}

impl GroupNorm {
    /// Reads `weight` and `bias`.
    ///
    /// # Errors
    /// If they are missing or of another size, or `groups` do not divide `channels`.
    pub fn new(vb: VarBuilder, groups: usize, channels: usize, eps: f64) -> Result<Self> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            candle_core::bail!(
                "{}: {groups} groups do not divide {channels} channels",
                vb.prefix()
            )
        }
        Ok(Self {
            weight: vb.get(channels, "weight")?,
            bias: vb.get(channels, "bias")?,
            groups,
            eps,
        })
    }

    /// `x`, `(batch, channels, height, width)`, normalised.
    ///
    /// # Errors
    /// If `x` has another number of channels, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        fused::group_norm(x, &self.weight, &self.bias, self.groups, self.eps)
    }

    /// SiLU of [`GroupNorm::forward`].
    ///
    /// # Errors
    /// If `x` has another number of channels, or the device fails.
    pub fn forward_silu(&self, x: &Tensor) -> Result<Tensor> {
        fused::group_norm_silu(x, &self.weight, &self.bias, self.groups, self.eps)
    }

    /// Mean and variance over all of `parts`, the pieces of a picture.
    ///
    /// # Errors
    /// If the device fails.
    pub fn moments(&self, parts: &[Tensor]) -> Result<Moments> {
        let rows = parts.iter().map(|x| self.rows(x));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let count = rows.iter().map(|x| x.dims()[2]).sum::<usize>() as f64;
        let sum = |of: &dyn Fn(&Tensor) -> Result<Tensor>| {
            let sums = rows.iter().map(|x| of(x)?.sum_keepdim(2));
            sums.reduce(|a, b| a? + b?)
                .unwrap_or_else(|| candle_core::bail!("a picture without parts"))
        };
        let mean = (sum(&|x| Ok(x.clone()))? / count)?;
        // Squares of what is left after the mean: the difference of large squares would lose what matters.
        let variance = (sum(&|x| x.broadcast_sub(&mean)?.sqr())? / count)?;
        Ok(Moments {
            mean: mean.squeeze(2)?,
            variance: variance.squeeze(2)?,
        })
    }

    /// `x` normalised with these moments.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn apply(&self, x: &Tensor, moments: &Moments) -> Result<Tensor> {
        let (batch, channels, _, _) = x.dims4()?;
        let each = |x: &Tensor| {
            let size = channels / self.groups;
            x.unsqueeze(2)?
                .broadcast_as((batch, self.groups, size))?
                .reshape((batch, channels))
        };
        let deviation = (&moments.variance + self.eps)?.sqrt()?;
        let scale = each(&deviation)?
            .recip()?
            .broadcast_mul(&self.weight.to_dtype(DType::F32)?.unsqueeze(0)?)?;
        let shift = self
            .bias
            .to_dtype(DType::F32)?
            .unsqueeze(0)?
            .broadcast_sub(&(each(&moments.mean)? * &scale)?)?;
        let shape = (batch, channels, 1, 1);
        x.to_dtype(DType::F32)?
            .broadcast_mul(&scale.reshape(shape)?)?
            .broadcast_add(&shift.reshape(shape)?)?
            .to_dtype(x.dtype())
    }

    /// `(batch, groups, elements)`, f32.
    fn rows(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, channels, _, _) = x.dims4()?;
        if channels != self.weight.dim(0)? {
            candle_core::bail!("a norm of {} channels got {channels}", self.weight.dim(0)?)
        }
        x.contiguous()?
            .reshape((batch, self.groups, ()))?
            .to_dtype(DType::F32)
    }
}
