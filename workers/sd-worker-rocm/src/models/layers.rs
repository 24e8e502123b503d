//! Layers that several networks use.

use super::low_rank::Adapter;
use super::wrap::WrappedConv;
use crate::editing::blur::mirrored;
use crate::models::VarBuilder;
use candle_core::quantized::{GgmlDType, QMatMul};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::fused::Epilogue;
use candle_nn::{Activation, Conv2d, Conv2dConfig, LayerNorm};

/// A weight of `shape`, for which a file may also have one of the shape `same`.
fn weight(vb: &VarBuilder, shape: &[usize], same: &[usize]) -> Result<Tensor> {
    if let Ok(weight) = vb.get(shape, "weight") {
        return Ok(weight);
    }
    let weight = vb.get_unchecked("weight")?;
    if weight.dims() != same {
        candle_core::bail!(
            "{}.weight has shape {:?}; the configuration wants {shape:?}",
            vb.prefix(),
            weight.dims()
        )
    }
    weight.reshape(shape)
}

/// A linear layer.
#[derive(Debug, Clone)]
pub enum Linear {
    /// With a matrix of floating-point numbers.
    Plain(candle_nn::Linear),
    /// With a quantized matrix.
    Quantized {
        /// `(outputs, inputs)`.
        matrix: QMatMul,
        /// By what the product is multiplied.
        factor: Option<f64>,
        /// In the network's arithmetic.
        bias: Option<Tensor>,
        /// Added to the product.
        adapter: Option<Adapter>,
    },
}

impl Linear {
    /// The layer and what follows it; `after` has no bias.
    fn forward_to(&self, x: &Tensor, after: Epilogue) -> Result<Tensor> {
        // Elsewhere products take the bias along.
        if !x.device().is_rocm() {
            return after.of(&self.forward(x)?);
        }
        let bias = match self {
            Self::Plain(linear) => linear.bias(),
            Self::Quantized { bias, .. } => bias.as_ref(),
        };
        Epilogue { bias, ..after }.of(&self.product(x)?)
    }

    /// `x + gate * layer(h)`, the end of a residual connection.
    pub fn forward_onto(&self, x: &Tensor, h: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let after = Epilogue {
            gate: Some(gate),
            residual: Some(x),
            ..Default::default()
        };
        self.forward_to(h, after)
    }

    /// `x + layer(h)`.
    pub fn forward_added(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        let after = Epilogue {
            residual: Some(x),
            ..Default::default()
        };
        self.forward_to(h, after)
    }

    /// GELU by tanh of the layer.
    pub fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        let after = Epilogue {
            activation: Some(Activation::GeluPytorchTanh),
            ..Default::default()
        };
        self.forward_to(x, after)
    }

    /// The layer without its bias.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(linear) => candle_nn::Linear::new(linear.weight().clone(), None).forward(x),
            Self::Quantized {
                matrix,
                factor,
                adapter,
                ..
            } => {
                let product = match factor {
                    None => quantized_product(matrix, x)?,
                    Some(factor) => {
                        // Before it is multiplied it may exceed f16.
                        let product = quantized_product(matrix, &x.to_dtype(DType::F32)?)?;
                        (product * *factor)?.to_dtype(x.dtype())?
                    }
                };
                match adapter {
                    Some(adapter) => product + adapter.forward(x)?,
                    None => Ok(product),
                }
            }
        }
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(linear) => linear.forward(x),
            Self::Quantized { bias, .. } => match bias {
                Some(bias) => self.product(x)?.broadcast_add(bias),
                None => self.product(x),
            },
        }
    }
}

/// Rows from which on the CPU multiplies with a matrix of 8-bit or 4-bit floats as f32: unpacked once, products of f32 are
/// faster than those that unpack it as they go.
const UNPACK_ROWS: usize = 16;

/// `x` times a quantized matrix, in the dtype of `x`.
fn quantized_product(matrix: &QMatMul, x: &Tensor) -> Result<Tensor> {
    if let (QMatMul::QTensor(_), true) = (matrix, x.device().is_rocm()) {
        return matrix.forward(&x.contiguous()?);
    }
    // Elsewhere quantized products take and give f32.
    let wide = x.to_dtype(DType::F32)?.contiguous()?;
    let product = match matrix {
        QMatMul::QTensor(matrix)
            if matches!(matrix.dtype(), GgmlDType::F8E4M3 | GgmlDType::NVFP4)
                && wide.elem_count() >= UNPACK_ROWS * wide.dim(D::Minus1)? =>
        {
            let matrix = matrix.dequantize(x.device())?;
            candle_nn::Linear::new(matrix, None).forward(&wide)?
        }
        matrix => matrix.forward(&wide)?,
    };
    product.to_dtype(x.dtype())
}

/// A linear layer. A 1x1 convolution in the file is the same and accepted; a bias is used where there is one.
pub fn linear(vb: VarBuilder, inputs: usize, outputs: usize) -> Result<Linear> {
    let bias = match vb.contains_tensor("bias") {
        true => Some(vb.get(outputs, "bias")?),
        false => None,
    };
    if let Some(matrix) = vb.quantized("weight") {
        if matrix.shape().dims() != [outputs, inputs] {
            candle_core::bail!(
                "{}.weight has shape {:?}; the configuration wants [{outputs}, {inputs}]",
                vb.prefix(),
                matrix.shape()
            )
        }
        return Ok(Linear::Quantized {
            matrix: QMatMul::from_arc(matrix)?,
            factor: vb.factor("weight"),
            bias,
            adapter: vb.adapter("weight"),
        });
    }
    let weight = weight(&vb, &[outputs, inputs], &[outputs, inputs, 1, 1])?;
    Ok(Linear::Plain(candle_nn::Linear::new(weight, bias)))
}

/// A square convolution. A linear layer in the file is accepted for a 1x1 one; a bias is used where there is one.
pub fn conv(
    vb: VarBuilder,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Result<Conv2d> {
    let shape = [outputs, inputs, kernel, kernel];
    let same = match kernel {
        1 => &shape[..2],
        _ => &shape[..],
    };
    let weight = weight(&vb, &shape, same)?;
    let bias = match vb.contains_tensor("bias") {
        true => Some(vb.get(outputs, "bias")?),
        false => None,
    };
    let config = Conv2dConfig {
        stride,
        padding,
        ..Default::default()
    };
    Ok(Conv2d::new(weight, bias, config))
}

/// A convolution of each channel by itself, which keeps height and width: `x` is `(batch, channels, height, width)`,
/// `weight` `(channels, 1, size, size)`, of odd size. As a sum of moved pictures: of thousands of groups a convolution in
/// groups would be as many.
pub fn depthwise(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (_, channels, height, width) = x.dims4()?;
    let size = weight.dim(3)?;
    let around = size / 2;
    let padded = x
        .pad_with_zeros(2, around, around)?
        .pad_with_zeros(3, around, around)?;
    let taps = weight.reshape((channels, size * size))?;
    let mut sum = match bias {
        Some(bias) => Some(bias.reshape((1, channels, 1, 1))?),
        None => None,
    };
    for tap in 0..size * size {
        let seen = padded.narrow(2, tap / size, height)?;
        let seen = seen.narrow(3, tap % size, width)?;
        let weight = taps.narrow(1, tap, 1)?.reshape((1, channels, 1, 1))?;
        let part = seen.broadcast_mul(&weight)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => part.broadcast_add(&sum)?,
        });
    }
    sum.ok_or_else(|| candle_core::Error::msg("a convolution without taps"))
}

/// A layer norm with weight and bias.
pub fn layer_norm(vb: VarBuilder, size: usize, eps: f64) -> Result<LayerNorm> {
    Ok(LayerNorm::new(
        vb.get(size, "weight")?,
        vb.get(size, "bias")?,
        eps,
    ))
}

/// `(batch, channels, height, width)` with pixels as rows: `(batch, height * width, channels)`.
pub fn pixels_as_rows(x: &Tensor) -> Result<Tensor> {
    candle_nn::fused::transposed(&x.flatten_from(2)?)
}

/// Undoes [`pixels_as_rows`].
pub fn rows_as_pixels(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (batch, _, channels) = x.dims3()?;
    candle_nn::fused::transposed(x)?.reshape((batch, channels, height, width))
}

/// The sinusoidal embedding of numbers: `(values, size)` in f32, cosines first if `cosines_first`, frequencies
/// `10000^(-i / (size / 2 - shift))`.
pub fn sinusoidal(
    values: &[f64],
    size: usize,
    cosines_first: bool,
    shift: f64,
    device: &Device,
) -> Result<Tensor> {
    let half = size / 2;
    let mut rows = Vec::with_capacity(values.len() * size);
    for value in values {
        let angle = |i: usize| {
            // In f32 step by step, as the originals do: the last bits of a large angle matter.
            let exponent = -(10000f64.ln()) as f32 * i as f32 / (half as f64 - shift) as f32;
            *value as f32 * exponent.exp()
        };
        let sines = (0..half).map(|i| angle(i).sin());
        let cosines = (0..half).map(|i| angle(i).cos());
        if cosines_first {
            rows.extend(cosines.chain(sines));
        } else {
            rows.extend(sines.chain(cosines));
        }
        rows.resize(rows.len().next_multiple_of(size), 0.0);
    }
    Tensor::from_vec(rows, (values.len(), size), device)
}

/// Two linear layers with SiLU between them.
#[derive(Debug, Clone)]
pub struct TimestepEmbedding {
    first: Linear,
    second: Linear,
    condition: Option<Linear>,
}

impl TimestepEmbedding {
    /// `linear_1` from `inputs` and `linear_2` to `outputs`; `cond_proj` from `condition` numbers if asked for.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        condition: Option<usize>,
    ) -> Result<Self> {
        Ok(Self {
            condition: match condition {
                Some(size) => Some(linear(vb.pp("cond_proj"), size, inputs)?),
                None => None,
            },
            first: linear(vb.pp("linear_1"), inputs, outputs)?,
            second: linear(vb.pp("linear_2"), outputs, outputs)?,
        })
    }

    /// The embedding of `x`, `(batch, inputs)`, conditioned on `(batch, condition)` where the network has such an
    /// input.
    pub fn forward(&self, x: &Tensor, condition: Option<&Tensor>) -> Result<Tensor> {
        let x = match (&self.condition, condition) {
            (Some(layer), Some(condition)) => (x + layer.forward(condition)?)?,
            _ => x.clone(),
        };
        self.second.forward(&self.first.forward(&x)?.silu()?)
    }
}

/// Doubles height and width by nearest neighbour, then convolves.
#[derive(Debug, Clone)]
pub struct Upsample {
    conv: WrappedConv,
}

impl Upsample {
    /// Reads `conv`.
    pub fn new(vb: VarBuilder, channels: usize) -> Result<Self> {
        Ok(Self {
            conv: WrappedConv::new(vb.pp("conv"), channels, channels, 3, 1, 1)?,
        })
    }

    /// To `size` (height, width), or to twice the size without one.
    pub fn forward(&self, x: &Tensor, size: Option<(usize, usize)>) -> Result<Tensor> {
        let (_, _, h, w) = x.dims4()?;
        let (height, width) = size.unwrap_or((2 * h, 2 * w));
        if (height, width) == (2 * h, 2 * w) {
            return self.conv.forward_doubled(x);
        }
        self.conv.forward(&x.upsample_nearest2d(height, width)?)
    }
}

/// Softmax along the last dimension, computed in f32.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    candle_nn::ops::softmax_last_dim(&x.to_dtype(DType::F32)?)?.to_dtype(dtype)
}

/// Rows of the last dimension at length 1, computed in f32.
pub fn normalised(x: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let length = wide.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    wide.broadcast_div(&length.maximum(1e-12)?)?
        .to_dtype(x.dtype())
}

/// A factor and a sum for each channel that are the same as a batch norm with the statistics of training, `(width,)`
/// each.
pub fn trained_norm(vb: &VarBuilder, width: usize) -> Result<(Tensor, Tensor)> {
    let get = |name| vb.get(width, name);
    let factor = (get("weight")? / (get("running_var")? + 1e-5)?.sqrt()?)?;
    let sum = (get("bias")? - (get("running_mean")? * &factor)?)?;
    Ok((factor, sum))
}

/// What is positive, and `slope` times what is negative.
pub fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    candle_nn::ops::leaky_relu(x, slope)
}

/// `(batch, channels, height, width)` made this high and wide by pixels mirrored at its right and lower edge, which are
/// not repeated.
pub fn extended(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let along = |x: Tensor, dim: usize, from: usize, to: usize| -> Result<Tensor> {
        if from >= to {
            return Ok(x);
        }
        let ids = (0..to).map(|i| mirrored(i as isize, from) as u32).collect();
        x.index_select(&Tensor::from_vec(ids, to, x.device())?, dim)
    };
    along(along(x.clone(), 2, h, height)?, 3, w, width)
}

/// `(batch, channels, height, width)` with so many pixels around, mirrored at the edges, which are not repeated.
pub fn mirrored_around(x: &Tensor, pixels: usize) -> Result<Tensor> {
    let mut x = x.clone();
    for dim in [2, 3] {
        let size = x.dim(dim)?;
        let ids = (0..size + 2 * pixels).map(|i| mirrored(i as isize - pixels as isize, size));
        let ids: Vec<u32> = ids.map(|i| i as u32).collect();
        x = x.index_select(&Tensor::new(ids, x.device())?, dim)?;
    }
    Ok(x)
}
