//! Fused operations: a residual connection with the norm behind it, a norm that conditions scale and shift, what follows
//! a product, and gated activations, of transformer blocks; a group norm with SiLU, of residual layers for images.
//!
//! On the CPU group norms, gates and convolutions of doubled pictures are loops over memory of their own for f32, and so
//! are convolutions and linear layers with their bias. On AMD GPUs each fused operation is one kernel that reads and
//! writes memory once (f16, bf16 and f32; two for group norms of few and large groups), and so are the gradients, but
//! those of [`modulated_norm`] and [`Epilogue`]. These, other devices and other dtypes take candle's plain operations,
//! so that a model is written once:
//!
//! ```no_run
//! # use candle::{Result, Tensor};
//! # fn block(x: Tensor, attended: Tensor, norm: Tensor, gate: Tensor, up: Tensor) -> Result<Tensor> {
//! let (x, normed) = candle_nn::fused::add_rms_norm(&attended, &x, &norm, 1e-6)?;
//! let hidden = candle_nn::fused::silu_mul(&normed.matmul(&gate)?, &normed.matmul(&up)?)?;
//! # let _ = x; Ok(hidden) }
//! ```

use candle::{Module, Result, Tensor, D};

use crate::{ops, Activation, Conv2d, GroupNorm, LayerNorm};

pub(crate) mod cpu;
#[cfg(feature = "rocm")]
mod rocm;

/// `xs + residual` and its RMS norm, `sum / sqrt(mean(sum²) + eps) * weight` along the last dimension. `xs` and
/// `residual` have one shape, `weight` is one-dimensional; the norm is that of the sum as rounded to the dtype. Gives
/// (sum, norm).
pub fn add_rms_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "rocm")]
    if let Some(pair) = rocm::add_rms_norm(xs, residual, weight, eps)? {
        return Ok(pair);
    }
    let sum = (xs + residual)?;
    let normed = ops::rms_norm(&sum, weight, eps)?;
    Ok((sum, normed))
}

/// `xs + residual` and its layer norm, `(sum - mean) / sqrt(variance + eps) * weight + bias` along the last dimension.
/// `xs` and `residual` have one shape, `weight` and `bias` are one-dimensional; the norm is that of the sum as rounded
/// to the dtype. Gives (sum, norm).
pub fn add_layer_norm(
    xs: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "rocm")]
    if let Some(pair) = rocm::add_layer_norm(xs, residual, weight, bias, eps)? {
        return Ok(pair);
    }
    let sum = (xs + residual)?;
    let normed = match bias {
        None => LayerNorm::new_no_bias(weight.clone(), eps.into()).forward(&sum)?,
        Some(bias) => ops::layer_norm(&sum, weight, bias, eps)?,
    };
    Ok((sum, normed))
}

/// `(x - mean) / sqrt(variance + eps) * (1 + scale) + shift` along the last dimension: the adaptive norm of diffusion
/// transformers. `scale` and `shift` are broadcast to `xs`, `(batch, 1, width)` for `(batch, tokens, width)`, say. The
/// kernel rounds once.
pub fn modulated_norm(
    xs: &Tensor,
    scale: &Tensor,
    shift: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(result) = rocm::modulated_norm(xs, scale, shift, eps)? {
        return Ok(result);
    }
    let ones = Tensor::ones(xs.dim(D::Minus1)?, xs.dtype(), xs.device())?;
    let norm = LayerNorm::new(ones.clone(), ones.zeros_like()?, eps.into());
    let scaled = norm.forward(xs)?.broadcast_mul(&(scale + 1.0)?)?;
    match shift {
        Some(shift) => scaled.broadcast_add(shift),
        None => Ok(scaled),
    }
}

/// [`rope_i`](crate::rotary_emb::rope_i) of `xs` as `(batch, time, heads, size)`, as projections give it: neighbouring
/// pairs turn by the angles whose cosines and sines are `(time, size / 2)`. Other devices turn a transposed copy.
pub fn rope_i_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(result) = rocm::rope_i_thd(xs, cos, sin)? {
        return Ok(result);
    }
    let turned = xs.transpose(1, 2)?.contiguous()?;
    crate::rotary_emb::rope_i(&turned, cos, sin)?
        .transpose(1, 2)?
        .contiguous()
}

/// What follows a product: `residual + gate * act(product + bias)`, of which each part may be absent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// Broadcast to the product.
    pub bias: Option<&'a Tensor>,
    /// Applied to the sum of product and bias.
    pub activation: Option<Activation>,
    /// Multiplies that; broadcast to the product.
    pub gate: Option<&'a Tensor>,
    /// Is added to that; of the product's shape.
    pub residual: Option<&'a Tensor>,
}

impl Epilogue<'_> {
    /// All that of a product. Fused for the activations of [`gate_mul`]; the kernel rounds once.
    pub fn of(&self, product: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(result) = rocm::epilogue(product, self)? {
            return Ok(result);
        }
        let mut result = product.clone();
        if let Some(bias) = self.bias {
            result = result.broadcast_add(bias)?;
        }
        if let Some(activation) = self.activation {
            result = activation.forward(&result)?;
        }
        if let Some(gate) = self.gate {
            result = result.broadcast_mul(gate)?;
        }
        match self.residual {
            Some(residual) => residual + result,
            None => Ok(result),
        }
    }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of `xs`, `(batch, channels, ..)`, with mean and variance of each
/// of `groups` groups of channels over all their elements; `weight` and `bias` have an element for each channel.
pub fn group_norm(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
) -> Result<Tensor> {
    group_norm_with(xs, weight, bias, groups, eps, false)
}

/// SiLU of [`group_norm`], as in front of the convolutions of residual layers.
pub fn group_norm_silu(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
) -> Result<Tensor> {
    group_norm_with(xs, weight, bias, groups, eps, true)
}

fn group_norm_with(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
    silu: bool,
) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(result) = rocm::group_norm(xs, weight, bias, groups, eps, silu)? {
        return Ok(result);
    }
    if let Some(result) = cpu::group_norm(xs, weight, bias, groups, eps, silu)? {
        return Ok(result);
    }
    let norm = GroupNorm::new(weight.clone(), bias.clone(), xs.dim(1)?, groups, eps)?;
    let normed = norm.forward(xs)?;
    match silu {
        true => normed.silu(),
        false => Ok(normed),
    }
}

/// The last two dimensions of `xs` in turn, contiguous. On the CPU in blocks for f32, where a plain copy goes element by
/// element.
pub fn transposed(xs: &Tensor) -> Result<Tensor> {
    if let Some(result) = cpu::transposed(xs)? {
        return Ok(result);
    }
    xs.t()?.contiguous()
}

/// `conv` of `xs`, `(batch, channels, height, width)`, doubled in height and width by nearest neighbour. On the CPU, for
/// kernels of 3 with one zero around and f32, without ever making the doubled picture.
pub fn conv2d_of_doubled(xs: &Tensor, conv: &Conv2d) -> Result<Tensor> {
    if let Some(result) = cpu::conv2d_of_doubled(xs, conv)? {
        return Ok(result);
    }
    let (_, _, height, width) = xs.dims4()?;
    conv.forward(&xs.upsample_nearest2d(2 * height, 2 * width)?)
}

/// `act(gate) * up` of two tensors of one shape. Fused for SiLU, both forms of GELU, and ReLU; the result is rounded
/// once there. Views whose rows are dense, such as the halves of a packed product, are read in place.
pub fn gate_mul(act: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(result) = rocm::gate_mul(act, gate, up)? {
        return Ok(result);
    }
    if let Some(result) = cpu::gate_mul(act, gate, up)? {
        return Ok(result);
    }
    act.forward(gate)? * up
}

/// [`gate_mul`] of the halves of `[.., 2 n]` along the last dimension, the gate first: what one product with both
/// matrices stacked gives.
pub fn gate_mul_packed(act: Activation, gate_up: &Tensor) -> Result<Tensor> {
    let both = gate_up.dim(D::Minus1)?;
    if both % 2 != 0 {
        candle::bail!(
            "gate_mul_packed: the last dimension of {:?} has no halves",
            gate_up.dims()
        )
    }
    let half = |start| gate_up.narrow(D::Minus1, start, both / 2);
    gate_mul(act, &half(0)?, &half(both / 2)?)
}

/// `silu(gate) * up`, as in Llama, Mistral and Qwen.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate_mul(Activation::Silu, gate, up)
}

/// `gelu(gate) * up` with GELU by tanh, as in Gemma.
pub fn gelu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate_mul(Activation::GeluPytorchTanh, gate, up)
}

/// `gelu(gate) * up` with GELU by erf, as in the feed-forward layers of diffusion models.
pub fn gelu_erf_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate_mul(Activation::Gelu, gate, up)
}
