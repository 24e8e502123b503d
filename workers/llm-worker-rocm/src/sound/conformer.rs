//! Gemma's encoder of sounds: two convolutions that leave a row for four frames, then blocks of attention to near rows and
//! of convolutions over time, between halves of feed-forward parts.
//!
//! "Conformer: Convolution-augmented Transformer for Speech Recognition", Gulati et al., 2020; relative positions:
//! "Transformer-XL", Dai et al., 2019, appendix B; "Google USM", Zhang et al., 2023.

use super::config::SoundConfig;
use super::features::GEMMA3N_STEP;
use super::kinds::Kind;
use crate::vision::weights::{Linear, Loader, Norm};
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::ops;
use worker::{Error, Result as WorkerResult};

const LOADING: &str = "loading the encoder of sounds";

/// Rows whose scores are computed together.
const CHUNK: usize = 12;
/// Rows before the first of a chunk that may be seen.
const PAST: usize = 12;
/// Rows that a chunk sees.
const CONTEXT: usize = PAST + CHUNK;
/// Distances that have a position: to itself and to [`PAST`] rows before.
const DISTANCES: usize = PAST + 1;
/// Scores come no nearer to infinity than this.
const SCORE_CAP: f64 = 50.0;
/// What a score is that does not count.
const UNSEEN: f32 = -1e9;
/// The longest wave of positions, as a multiple of the shortest.
const LONGEST_WAVE: f64 = 10_000.0;
/// Taps of the convolution over time.
const TAPS: usize = 5;
/// What halves of feed-forward parts are weighed by.
const HALF: f64 = 0.5;

/// The encoder's weights.
pub(super) struct Conformer {
    convolutions: [Subsampling; 2],
    input: Linear,
    blocks: Vec<Block>,
    output: Option<Linear>,
    kind: Kind,
}

/// A convolution of every second frame and every second band.
struct Subsampling {
    /// `(outputs, inputs, 3, 3)`.
    kernel: Tensor,
    norm: SubsamplingNorm,
}

enum SubsamplingNorm {
    /// Over the channels of a band: Gemma 4's.
    Channels(Norm),
    /// Over channels and bands of a frame and of all before it: Gemma 3n's. Factors of channels.
    Past(Tensor),
}

struct Block {
    start: FeedForward,
    attention: Attention,
    convolution: Convolution,
    end: FeedForward,
    norm: Norm,
}

struct FeedForward {
    before: Norm,
    up: Clipped,
    down: Clipped,
    behind: Norm,
}

struct Attention {
    before: Norm,
    behind: Norm,
    query: Clipped,
    key: Clipped,
    value: Clipped,
    output: Clipped,
    /// Factors of a query's elements.
    scale: Tensor,
    /// Keys of distances, the farthest first: `(heads, size, distances)`.
    relative: Tensor,
    /// The factor of keys.
    key_scale: f64,
    heads: usize,
}

struct Convolution {
    before: Norm,
    start: Clipped,
    /// Factors of the elements of a row for each tap, the last one that of the row itself.
    taps: Vec<Tensor>,
    norm: Norm,
    end: Clipped,
}

/// A matrix whose inputs and outputs are kept within bounds, where it has some.
struct Clipped {
    matrix: Linear,
    input: Option<(f64, f64)>,
    output: Option<(f64, f64)>,
}

impl Conformer {
    pub(super) fn load(loader: &Loader, c: &SoundConfig) -> WorkerResult<Self> {
        let convolution = |index: usize, inputs: usize| -> WorkerResult<Subsampling> {
            let kernel = loader.tensor(&format!("a.conv1d.{index}.weight"))?;
            let outputs = match *kernel.dims() {
                [outputs, columns, 3, 3] if columns == inputs => outputs,
                _ => {
                    return Err(loader.bad(format!(
                    "tensor a.conv1d.{index}.weight has shape {:?}, 3 x 3 of {inputs} are expected",
                    kernel.dims()
                )))
                }
            };
            let norm = format!("a.conv1d.{index}.norm");
            Ok(Subsampling {
                norm: match c.traits.kind {
                    Kind::Gemma3n => {
                        SubsamplingNorm::Past(loader.vector(&format!("{norm}.weight"), outputs)?)
                    }
                    _ => SubsamplingNorm::Channels(loader.norm_of_mean(&norm, outputs, c.epsilon)?),
                },
                kernel,
            })
        };
        let first = convolution(0, 1)?;
        let second = convolution(1, first.channels())?;
        let columns = c.bands / 4 * second.channels();
        let output = match c.traits.kind {
            Kind::Gemma3n => None,
            _ => Some(loader.linear_from("a.pre_encode.out", c.width)?),
        };
        let blocks = (0..c.blocks).map(|block| Block::load(loader, c, block));
        Ok(Self {
            input: loader.linear("a.input_projection", columns, c.width)?,
            blocks: blocks.collect::<WorkerResult<_>>()?,
            convolutions: [first, second],
            output,
            kind: c.traits.kind,
        })
    }

    /// Elements of the rows that it gives.
    pub(super) fn outputs(&self) -> usize {
        self.output.as_ref().unwrap_or(&self.input).outputs()
    }

    /// Frames `(frames, bands)` to a row for four of them, or for sixteen.
    pub(super) fn forward(&self, frames: &Tensor) -> Result<Tensor> {
        let mut x = frames.unsqueeze(0)?.unsqueeze(0)?;
        for convolution in &self.convolutions {
            x = convolution.forward(&x)?;
        }
        let (_, channels, rows, bands) = x.dims4()?;
        let x = x.squeeze(0)?.permute((1, 2, 0))?.contiguous()?;
        let mut x = self.input.forward(&x.reshape((rows, bands * channels))?)?;
        let seen = unseen(rows, self.kind, &x)?;
        for block in &self.blocks {
            x = block.forward(&x, &seen)?;
        }
        match &self.output {
            Some(output) => output.forward(&x),
            None => {
                let places: Vec<u32> = (0..rows as u32).step_by(GEMMA3N_STEP).collect();
                x.index_select(&Tensor::new(places, x.device())?, 0)
            }
        }
    }
}

impl Subsampling {
    fn channels(&self) -> usize {
        self.kernel.dims()[0]
    }

    /// `(1, inputs, frames, bands)` to `(1, outputs, frames / 2, bands / 2)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match &self.norm {
            SubsamplingNorm::Channels(norm) => {
                let x = x.conv2d(&self.kernel, 1, 2, 1, 1)?;
                norm.forward(&x.permute((0, 2, 3, 1))?.contiguous()?)?
            }
            SubsamplingNorm::Past(factors) => {
                // No frame sees one before it.
                let x = x.pad_with_zeros(2, 0, 2)?.pad_with_zeros(3, 1, 1)?;
                let x = x.contiguous()?.conv2d(&self.kernel, 0, 2, 1, 1)?;
                over_the_past(&x.permute((0, 2, 3, 1))?.contiguous()?, factors)?
            }
        };
        x.relu()?.permute((0, 3, 1, 2))?.contiguous()
    }
}

/// `(1, frames, bands, channels)` less the mean of a frame and of all before it, divided by the deviation of each of these
/// frames from its own such mean.
fn over_the_past(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    const EPSILON: f64 = 1e-3;
    let dtype = x.dtype();
    let (_, frames, bands, channels) = x.dims4()?;
    let flat = x
        .to_dtype(DType::F32)?
        .reshape((frames, bands * channels))?;
    let counts: Vec<f32> = (1..=frames)
        .map(|frame| (frame * bands * channels) as f32)
        .collect();
    let counts = Tensor::new(counts, x.device())?;
    let past = |of_frames: &Tensor| of_frames.sum(1)?.cumsum(0)? / &counts;
    let apart = flat.broadcast_sub(&past(&flat)?.unsqueeze(1)?)?;
    let deviation = (past(&apart.sqr()?)? + EPSILON)?.sqrt()?;
    apart
        .broadcast_div(&deviation.unsqueeze(1)?)?
        .reshape((1, frames, bands, channels))?
        .to_dtype(dtype)?
        .broadcast_mul(factors)
}

impl Block {
    fn load(loader: &Loader, c: &SoundConfig, block: usize) -> WorkerResult<Self> {
        let name = |part: &str| format!("a.blk.{block}.{part}");
        Ok(Self {
            start: FeedForward::load(loader, c, block, "")?,
            attention: Attention::load(loader, c, block)?,
            convolution: Convolution::load(loader, c, block)?,
            end: FeedForward::load(loader, c, block, "_1")?,
            norm: loader.norm(&name("ln2"), c.width, true, c.epsilon)?,
        })
    }

    fn forward(&self, x: &Tensor, seen: &Tensor) -> Result<Tensor> {
        let x = self.start.forward(x)?;
        let x = self.attention.forward(&x, seen)?;
        let x = self.convolution.forward(&x)?;
        let x = self.end.forward(&x)?;
        self.norm.forward(&finite(&x)?)
    }
}

impl FeedForward {
    fn load(loader: &Loader, c: &SoundConfig, block: usize, end: &str) -> WorkerResult<Self> {
        let name = |part: &str| format!("a.blk.{block}.{part}{end}");
        Ok(Self {
            before: loader.norm(&name("ffn_norm"), c.width, true, c.epsilon)?,
            up: Clipped::load(loader, &name("ffn_up"), c.width, c.hidden)?,
            down: Clipped::load(loader, &name("ffn_down"), c.hidden, c.width)?,
            behind: loader.norm(&name("ffn_post_norm"), c.width, true, c.epsilon)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self
            .up
            .forward(&self.before.forward(&finite(x)?)?)?
            .silu()?;
        let fed = self.behind.forward(&finite(&self.down.forward(&inner)?)?)?;
        x + (fed * HALF)?
    }
}

impl Attention {
    fn load(loader: &Loader, c: &SoundConfig, block: usize) -> WorkerResult<Self> {
        let name = |part: &str| format!("a.blk.{block}.{part}");
        let (width, size) = (c.width, c.width / c.heads);
        let matrix = |part: &str| Clipped::load(loader, &name(part), width, width);
        let norm = |part: &str| loader.norm(&name(part), width, true, c.epsilon);
        let relative = loader.linear(&name("attn_k_rel"), width, width)?;
        let relative = waves(width, &relative.weight)
            .and_then(|waves| {
                relative
                    .forward(&waves)?
                    .reshape((DISTANCES, c.heads, size))
            })
            .and_then(|keys| keys.permute((1, 2, 0))?.contiguous());
        // Factors are stored behind the softplus that keeps them above 0; that of 0 is the logarithm of 2.
        let factor = 1.0 / (size as f64).sqrt() / std::f64::consts::LN_2;
        let scale = loader.vector(&name("per_dim_scale.weight"), size)? * factor;
        Ok(Self {
            before: norm("attn_pre_norm")?,
            behind: norm("attn_post_norm")?,
            query: matrix("attn_q")?,
            key: matrix("attn_k")?,
            value: matrix("attn_v")?,
            output: matrix("attn_out")?,
            scale: scale.map_err(Error::candle(LOADING))?,
            relative: relative.map_err(Error::candle(LOADING))?,
            key_scale: match c.traits.kind {
                Kind::Gemma3n => 1.0,
                // The softplus of 1, by that of 0.
                _ => (1.0 + std::f64::consts::E).ln() / std::f64::consts::LN_2,
            },
            heads: c.heads,
        })
    }

    fn forward(&self, x: &Tensor, seen: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (heads, size) = (self.heads, width / self.heads);
        let chunks = rows.div_ceil(CHUNK);
        let input = self.before.forward(&finite(x)?)?;
        let q = self.query.forward(&input)?.reshape((rows, heads, size))?;
        let q = q.broadcast_mul(&self.scale)?;
        let k = (self.key.forward(&input)?.reshape((rows, heads, size))? * self.key_scale)?;
        let v = self.value.forward(&input)?.reshape((rows, heads, size))?;
        // `(chunks * heads, chunk, size)`, and what each chunk sees, `(chunks * heads, context, size)`.
        let q = q.pad_with_zeros(0, 0, chunks * CHUNK - rows)?;
        let q = by_heads(&q.reshape((chunks, CHUNK, heads, size))?)?;
        let (k, v) = (in_context(&k, chunks)?, in_context(&v, chunks)?);
        let near = q.matmul(&k.t()?)?;
        let far = q
            .reshape((chunks, heads, CHUNK, size))?
            .broadcast_matmul(&self.relative.unsqueeze(0)?)?;
        let far = shifted(&far.reshape((chunks * heads, CHUNK, DISTANCES))?)?;
        let scores = (((near + far)? / SCORE_CAP)?.tanh()? * SCORE_CAP)?;
        let scores = scores
            .reshape((chunks, heads, CHUNK, CONTEXT))?
            .broadcast_add(seen)?;
        let weights = ops::softmax_last_dim(&scores)?.reshape((chunks * heads, CHUNK, CONTEXT))?;
        let mixed = weights
            .matmul(&v)?
            .reshape((chunks, heads, CHUNK, size))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((chunks * CHUNK, width))?
            .narrow(0, 0, rows)?;
        let mixed = finite(&self.output.forward(&mixed.contiguous()?)?)?;
        x + self.behind.forward(&mixed)?
    }
}

/// `(chunks, rows, heads, size)` to `(chunks * heads, rows, size)`.
fn by_heads(x: &Tensor) -> Result<Tensor> {
    let (chunks, rows, heads, size) = x.dims4()?;
    x.transpose(1, 2)?
        .contiguous()?
        .reshape((chunks * heads, rows, size))
}

/// What each chunk sees of `(rows, heads, size)`, zeros where there are no rows: `(chunks * heads, context, size)`.
fn in_context(x: &Tensor, chunks: usize) -> Result<Tensor> {
    let (rows, heads, size) = x.dims3()?;
    let padded = x.pad_with_zeros(0, PAST, chunks * CHUNK - rows)?;
    // A chunk's context is the rows of the chunk before it and its own, as both are of one length.
    const { assert!(PAST == CHUNK) };
    let padded = padded.reshape((chunks + 1, CHUNK, heads, size))?;
    let both = [padded.narrow(0, 0, chunks)?, padded.narrow(0, 1, chunks)?];
    by_heads(&Tensor::cat(&both, 1)?)
}

/// Scores by distance, `(n, chunk, distances)` with the farthest first, at the places of what a chunk sees: those of row
/// `i` begin at place `i`.
fn shifted(x: &Tensor) -> Result<Tensor> {
    let n = x.dim(0)?;
    x.pad_with_zeros(2, 0, CONTEXT + 1 - DISTANCES)?
        .reshape((n, CHUNK * (CONTEXT + 1)))?
        .narrow(1, 0, CHUNK * CONTEXT)?
        .contiguous()?
        .reshape((n, CHUNK, CONTEXT))
}

/// What is added to scores, `(chunks, 1, chunk, context)`: nothing where a row sees another one, itself or one of the
/// [`PAST`] before it, for Gemma 4 but the farthest of these.
fn unseen(rows: usize, kind: Kind, like: &Tensor) -> Result<Tensor> {
    let chunks = rows.div_ceil(CHUNK);
    let farthest = match kind {
        Kind::Gemma3n => PAST,
        _ => PAST - 1,
    };
    let places = (0..chunks).flat_map(|chunk| {
        (0..CHUNK).flat_map(move |row| {
            (0..CONTEXT).map(move |place| {
                let (query, key) = (chunk * CHUNK + row + PAST, chunk * CHUNK + place);
                let is_near = key <= query && query - key <= farthest;
                let is_there = (PAST..PAST + rows).contains(&key);
                match is_near && is_there {
                    true => 0.0,
                    false => UNSEEN,
                }
            })
        })
    });
    let places: Vec<f32> = places.collect();
    let least = match like.dtype() {
        DType::F16 => -6e4,
        _ => UNSEEN,
    };
    let places = places.into_iter().map(|x| x.max(least)).collect();
    Tensor::from_vec(places, (chunks, 1, CHUNK, CONTEXT), like.device())?.to_dtype(like.dtype())
}

/// Sines and cosines of distances, the farthest first: `(distances, width)`.
fn waves(width: usize, like: &Tensor) -> Result<Tensor> {
    let half = width / 2;
    let step = LONGEST_WAVE.ln() / (half.max(2) - 1) as f64;
    let angle = |distance: usize, i: usize| distance as f64 * (-step * i as f64).exp();
    let rows = (0..DISTANCES).rev().flat_map(|distance| {
        let sines = (0..half).map(move |i| angle(distance, i).sin() as f32);
        sines.chain((0..half).map(move |i| angle(distance, i).cos() as f32))
    });
    Tensor::from_vec(rows.collect(), (DISTANCES, width), like.device())?.to_dtype(like.dtype())
}

impl Convolution {
    fn load(loader: &Loader, c: &SoundConfig, block: usize) -> WorkerResult<Self> {
        let name = |part: &str| format!("a.blk.{block}.{part}");
        let taps = loader.shaped(&name("conv_dw.weight"), &[c.width, TAPS])?;
        let taps = (0..TAPS).map(|tap| taps.narrow(1, tap, 1)?.flatten_all());
        let taps = taps.collect::<Result<_>>();
        Ok(Self {
            // llama.cpp's files have the names of these two the other way round.
            before: loader.norm(&name("conv_norm"), c.width, true, c.epsilon)?,
            norm: loader.norm(&name("norm_conv"), c.width, true, c.epsilon)?,
            start: Clipped::load(loader, &name("conv_pw1"), c.width, 2 * c.width)?,
            taps: taps.map_err(Error::candle(LOADING))?,
            end: Clipped::load(loader, &name("conv_pw2"), c.width, c.width)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let both = self.start.forward(&self.before.forward(x)?)?;
        let open = ops::sigmoid(&both.narrow(1, width, width)?.contiguous()?)?;
        let inner = (both.narrow(1, 0, width)?.contiguous()? * open)?;
        let padded = inner.pad_with_zeros(0, TAPS - 1, 0)?;
        let mut sum = Tensor::zeros((rows, width), x.dtype(), x.device())?;
        for (tap, factors) in self.taps.iter().enumerate() {
            sum = (sum
                + padded
                    .narrow(0, tap, rows)?
                    .contiguous()?
                    .broadcast_mul(factors)?)?;
        }
        let inner = self.norm.forward(&finite(&sum)?)?.silu()?;
        x + self.end.forward(&inner)?
    }
}

impl Clipped {
    fn load(loader: &Loader, name: &str, inputs: usize, outputs: usize) -> WorkerResult<Self> {
        let bounds = |side: &str| -> WorkerResult<Option<(f64, f64)>> {
            let [low, high] = ["min", "max"].map(|end| format!("{name}.{side}_{end}"));
            if !(loader.has(&low) && loader.has(&high)) {
                return Ok(None);
            }
            let bound = |name: &str| -> WorkerResult<f64> {
                let values = loader.numbers(name)?;
                match *values.as_slice() {
                    [value] if !value.is_nan() => Ok(f64::from(value)),
                    _ => Err(loader.bad(format!("tensor {name} is no number"))),
                }
            };
            let bounds = (bound(&low)?, bound(&high)?);
            Ok(Some(bounds).filter(|(low, high)| low.is_finite() || high.is_finite()))
        };
        Ok(Self {
            matrix: loader.linear(name, inputs, outputs)?,
            input: bounds("input")?,
            output: bounds("output")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let within = |x: Tensor, bounds: Option<(f64, f64)>| match bounds {
            Some((low, high)) => x.clamp(low, high),
            None => Ok(x),
        };
        let x = within(x.clone(), self.input)?;
        within(self.matrix.forward(&x)?, self.output)
    }
}

/// Halves are kept from becoming infinite.
fn finite(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 => x.clamp(-65504f32, 65504f32),
        _ => Ok(x.clone()),
    }
}
