//! What encoder and decoder have in common. All take and give frames, `(frames, channels, height, width)`.

use super::Draw;
use crate::models::layers::{pixels_as_rows, rows_as_pixels, sinusoidal, TimestepEmbedding};
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, LayerNorm};

/// Width of the sinusoidal embedding of time.
const TIME: usize = 256;

/// A convolution over frames, rows and columns, as a sum of convolutions of pictures. The first frame stands for those
/// before it, the last for those after.
#[derive(Debug, Clone)]
pub(super) struct TimeConv {
    /// Those of the earliest frame first, the last with the bias.
    taps: Vec<Conv2d>,
    causal: bool,
    stride: usize,
}

impl TimeConv {
    /// Reads `conv`, with a kernel of `size` in each direction.
    pub(super) fn new(
        vb: &VarBuilder,
        inputs: usize,
        outputs: usize,
        (size, stride): (usize, usize),
        causal: bool,
    ) -> Result<Self> {
        let vb = vb.pp("conv");
        let weight = vb.get((outputs, inputs, size, size, size), "weight")?;
        let bias = vb.get(outputs, "bias")?;
        let config = Conv2dConfig {
            padding: size / 2,
            stride,
            ..Conv2dConfig::default()
        };
        let taps = (0..size).map(|frame| {
            let weight = weight.narrow(2, frame, 1)?.squeeze(2)?.contiguous()?;
            let bias = (frame + 1 == size).then(|| bias.clone());
            Ok(Conv2d::new(weight, bias, config))
        });
        Ok(Self {
            taps: taps.collect::<Result<_>>()?,
            causal,
            stride,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (frames, around) = (x.dim(0)?, self.taps.len() - 1);
        let before = if self.causal { around } else { around / 2 };
        let count = (frames + around - self.taps.len()) / self.stride + 1;
        let mut sum: Option<Tensor> = None;
        for (tap, conv) in self.taps.iter().enumerate() {
            let seen: Vec<u32> = (0..count)
                .map(|i| {
                    (i * self.stride + tap)
                        .saturating_sub(before)
                        .min(frames - 1) as u32
                })
                .collect();
            let seen = match seen.iter().enumerate().all(|(i, at)| i == *at as usize) {
                true if count == frames => x.clone(),
                _ => x.index_select(&Tensor::from_vec(seen, count, x.device())?, 0)?,
            };
            let part = conv.forward(&seen.contiguous()?)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => (sum + part)?,
            });
        }
        sum.ok_or_else(|| candle_core::Error::msg("a convolution without taps"))
    }
}

/// Divides each pixel's channels by the root of their mean square.
pub(super) fn pixel_norm(x: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let root = (wide.sqr()?.mean_keepdim(1)? + 1e-8)?.sqrt()?;
    wide.broadcast_div(&root)?.to_dtype(x.dtype())
}

/// `x * (1 + scale) + shift`, of rows of `by` for each channel.
pub(super) fn modulated(x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let column = |x: &Tensor| x.reshape((1, x.elem_count(), 1, 1));
    x.broadcast_mul(&(column(scale)? + 1.0)?)?
        .broadcast_add(&column(shift)?)
}

/// The time that a decoder is told, and a table of scales and shifts for it.
#[derive(Debug, Clone)]
pub(super) struct TimeTable {
    embedding: TimestepEmbedding,
}

impl TimeTable {
    /// Reads `time_embedder`, for `rows` of so many channels.
    pub(super) fn new(vb: &VarBuilder, rows: usize, channels: usize) -> Result<Self> {
        let vb = vb.pp("time_embedder.timestep_embedder");
        Ok(Self {
            embedding: TimestepEmbedding::new(vb, TIME, rows * channels, None)?,
        })
    }

    /// Of time `t`: `rows * channels` numbers.
    pub(super) fn forward(&self, t: f64, like: &Tensor) -> Result<Tensor> {
        let row = sinusoidal(&[t], TIME, true, 0.0, like.device())?;
        self.embedding.forward(&row.to_dtype(like.dtype())?, None)
    }
}

/// The rows of a table `(rows, channels)` with a time added.
pub(super) fn rows_at(table: &Tensor, time: &Tensor) -> Result<Vec<Tensor>> {
    let rows = (table + time.reshape(table.shape())?)?;
    rows.chunk(rows.dim(0)?, 0)
}

/// What a residual layer is beside its channels.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kind {
    pub causal: bool,
    pub noise: bool,
    pub timed: bool,
    pub eps: f64,
}

/// Two convolutions and what goes around them.
#[derive(Debug, Clone)]
pub(super) struct Residual {
    convs: [TimeConv; 2],
    /// By channel, how much noise each convolution adds.
    noise: Option<[Tensor; 2]>,
    /// `(4, channels)`.
    table: Option<Tensor>,
    skip: Option<(LayerNorm, TimeConv)>,
}

impl Residual {
    pub(super) fn new(vb: &VarBuilder, inputs: usize, outputs: usize, kind: Kind) -> Result<Self> {
        let conv = |name: &str, inputs, size| {
            TimeConv::new(&vb.pp(name), inputs, outputs, (size, 1), kind.causal)
        };
        let noise = |name: &str| vb.get((inputs, 1, 1), name)?.reshape((1, inputs, 1, 1));
        Ok(Self {
            convs: [conv("conv1", inputs, 3)?, conv("conv2", outputs, 3)?],
            noise: match kind.noise {
                true => Some([noise("per_channel_scale1")?, noise("per_channel_scale2")?]),
                false => None,
            },
            table: match kind.timed {
                true => Some(vb.get((4, inputs), "scale_shift_table")?),
                false => None,
            },
            skip: match inputs == outputs {
                true => None,
                false => {
                    let norm = vb.pp("norm3");
                    let (weight, bias) = (norm.get(inputs, "weight")?, norm.get(inputs, "bias")?);
                    let norm = LayerNorm::new(weight, bias, kind.eps);
                    Some((norm, conv("conv_shortcut", inputs, 1)?))
                }
            },
        })
    }

    /// At a time for decoders that are told it, with noise for those that add some.
    pub(super) fn forward(&self, x: &Tensor, time: Option<&Tensor>, draw: Draw) -> Result<Tensor> {
        let rows = match (&self.table, time) {
            (Some(table), Some(time)) => Some(rows_at(table, time)?),
            (Some(_), None) => candle_core::bail!("a decoder that is to be told a time"),
            (None, _) => None,
        };
        let mut h = x.clone();
        for (i, conv) in self.convs.iter().enumerate() {
            h = pixel_norm(&h)?;
            if let Some(rows) = &rows {
                h = modulated(&h, &rows[2 * i], &rows[2 * i + 1])?;
            }
            h = conv.forward(&h.silu()?)?;
            if let Some(scales) = &self.noise {
                let (_, _, height, width) = h.dims4()?;
                let noise = draw(&[height, width])?.to_dtype(h.dtype())?;
                let noise = noise.reshape((1, 1, height, width))?;
                h = h.broadcast_add(&noise.broadcast_mul(&scales[i])?)?;
            }
        }
        match &self.skip {
            None => h + x,
            Some((norm, conv)) => {
                let (_, _, height, width) = x.dims4()?;
                let x = norm.forward(&pixels_as_rows(x)?)?;
                h + conv.forward(&rows_as_pixels(&x, height, width)?)?
            }
        }
    }
}

/// Residual layers, at one time.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    time: Option<TimeTable>,
    layers: Vec<Residual>,
}

impl Layers {
    /// Reads `count` of `resnets`, and their time's embedding.
    pub(super) fn new(vb: &VarBuilder, count: usize, channels: usize, kind: Kind) -> Result<Self> {
        let layer = |i| Residual::new(&vb.pp(format!("resnets.{i}")), channels, channels, kind);
        Ok(Self {
            time: match kind.timed {
                true => Some(TimeTable::new(vb, 4, channels)?),
                false => None,
            },
            layers: (0..count).map(layer).collect::<Result<_>>()?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, time: Option<f64>, draw: Draw) -> Result<Tensor> {
        let time = match (&self.time, time) {
            (Some(embedding), Some(t)) => Some(embedding.forward(t, x)?),
            _ => None,
        };
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x, time.as_ref(), draw)?;
        }
        Ok(x)
    }

    /// Convolutions that follow each other.
    pub(super) fn convolutions(&self) -> usize {
        2 * self.layers.len()
    }
}

/// Folds so many frames, and rows and columns, into channels: frames outermost, then rows, then columns.
pub(super) fn fold_all(x: &Tensor, time: usize, space: usize) -> Result<Tensor> {
    let (f, c, h, w) = x.dims4()?;
    let (f, h, w) = (f / time, h / space, w / space);
    x.reshape((f, time, c, h * space * w * space))?
        .transpose(1, 2)?
        .contiguous()?
        .reshape(vec![f, c * time, h, space, w, space])?
        .permute(vec![0, 1, 3, 5, 2, 4])?
        .contiguous()?
        .reshape((f, c * time * space * space, h, w))
}

/// Undoes [`fold_all`] of two frames, rows and columns, without the first frame.
pub(super) fn unfold_all(x: &Tensor) -> Result<Tensor> {
    let (f, c, h, w) = x.dims4()?;
    let c = c / 8;
    let x = x
        .reshape(vec![f, 2 * c, 2, 2, h, w])?
        .permute(vec![0, 1, 4, 2, 5, 3])?
        .contiguous()?
        .reshape((f, c, 2, 4 * h * w))?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((2 * f, c, 2 * h, 2 * w))?;
    x.narrow(0, 1, 2 * f - 1)?.contiguous()
}

/// The mean of each `size` channels.
pub(super) fn mean_of(x: &Tensor, size: usize) -> Result<Tensor> {
    let (f, c, h, w) = x.dims4()?;
    x.reshape((f, c / size, size, h * w))?
        .mean(2)?
        .reshape((f, c / size, h, w))
}

/// A column of numbers for each channel as `(1, channels, 1, 1)`, f32.
pub(super) fn column(vb: &VarBuilder, name: &str, channels: usize) -> Result<Tensor> {
    vb.get(channels, name)?
        .to_dtype(DType::F32)?
        .reshape((1, channels, 1, 1))
}
