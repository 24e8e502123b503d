//! Whisper's encoder: two convolutions over time, and a transformer.
//!
//! "Robust Speech Recognition via Large-Scale Weak Supervision", Radford et al., 2022. Voxtral, Qwen2-Audio and
//! Qwen2.5-Omni have it with their own ends, which is why its parts are apart: [`Tower::embed`] takes a stretch of
//! sound, [`Tower::mix`] rows of one or several stretches, [`Tower::norm`] comes last.

use crate::vision::attention::{attend, Segments};
use crate::vision::weights::{Linear, Loader, Norm};
use candle_core::{Module, Result, Tensor};
use worker::{Error, Result as WorkerResult};

const LOADING: &str = "loading the encoder of sound";
/// Rows of a convolution's input that one of its output sees.
const KERNEL: usize = 3;
/// The longest wavelength of positions that are made of sines.
const LONGEST_WAVE: f64 = 10_000.0;

/// The sizes of an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TowerShape {
    /// Mel bands of a frame.
    pub bands: usize,
    /// Elements of a row.
    pub width: usize,
    /// Heads, which share the width.
    pub heads: usize,
    /// Elements between the two matrices of feed-forward parts.
    pub hidden: usize,
    /// Blocks.
    pub blocks: usize,
    /// Most rows of a stretch: half its frames.
    pub positions: usize,
    /// Added to variances.
    pub epsilon: f32,
}

/// An encoder's weights on a device.
pub struct Tower {
    shape: TowerShape,
    convolutions: [Linear; 2],
    /// `(positions, width)`
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
}

struct Block {
    norms: [Norm; 2],
    /// Queries, keys and values behind each other.
    all: Linear,
    output: Linear,
    up: Linear,
    down: Linear,
}

impl Tower {
    /// Takes an encoder's tensors, by the names that `mmproj` files have for them (`a.conv1d.1`, `a.blk.0.attn_q`,
    /// `a.post_ln`). Positions are made of sines if the file has none.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a tensor that is missing or of another shape, [`Error::Candle`] if the device has no
    /// room.
    pub(crate) fn load(loader: &Loader, shape: TowerShape) -> WorkerResult<Self> {
        let TowerShape {
            bands,
            width,
            positions,
            epsilon,
            ..
        } = shape;
        let name = "a.position_embd.weight";
        let positions = match loader.has(name) {
            true => loader.shaped(name, &[positions, width])?,
            false => sines(positions, width)
                .and_then(|rows| Tensor::from_vec(rows, (positions, width), loader.device))
                .and_then(|rows| rows.to_dtype(loader.dtype))
                .map_err(Error::candle(LOADING))?,
        };
        Ok(Self {
            convolutions: [
                convolution(loader, "a.conv1d.1", bands, width)?,
                convolution(loader, "a.conv1d.2", width, width)?,
            ],
            positions,
            blocks: (0..shape.blocks)
                .map(|block| Block::load(loader, &shape, block))
                .collect::<WorkerResult<_>>()?,
            norm: loader.norm("a.post_ln", width, false, epsilon)?,
            shape,
        })
    }

    /// Its sizes.
    pub fn shape(&self) -> &TowerShape {
        &self.shape
    }

    /// A stretch of sound, `(frames, bands)` with at most twice as many frames as positions, as rows of the width, one
    /// for two frames, each with its position from the stretch's beginning.
    ///
    /// # Errors
    /// If the stretch is too long or the device fails.
    pub fn embed(&self, frames: &Tensor) -> Result<Tensor> {
        let x = convolve(frames, &self.convolutions[0], 1)?.gelu_erf()?;
        let x = convolve(&x, &self.convolutions[1], 2)?.gelu_erf()?;
        let rows = x.dim(0)?;
        x + self.positions.narrow(0, 0, rows)?
    }

    /// Rows of one or several stretches behind each other, of these lengths, through all blocks: rows see all rows of
    /// their stretch.
    ///
    /// # Errors
    /// If the device fails.
    pub fn mix(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let segments = Segments::new(lengths.iter().copied(), x.device())?;
        let mut x = x.clone();
        for block in &self.blocks {
            x = block.forward(&x, &segments, self.shape.heads)?;
        }
        Ok(x)
    }

    /// The norm behind the blocks.
    ///
    /// # Errors
    /// If the device fails.
    pub fn norm(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(x)
    }

    /// A whole stretch: `(frames, bands)` to `(rows, width)`.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn forward(&self, frames: &Tensor) -> Result<Tensor> {
        let x = self.embed(frames)?;
        let rows = x.dim(0)?;
        self.norm(&self.mix(&x, &[rows])?)
    }
}

impl Block {
    fn load(loader: &Loader, shape: &TowerShape, block: usize) -> WorkerResult<Self> {
        let TowerShape {
            width,
            hidden,
            epsilon,
            ..
        } = *shape;
        let name = |part: &str| format!("a.blk.{block}.{part}");
        let norm = |part: &str| loader.norm(&name(part), width, false, epsilon);
        let parts =
            ["attn_q", "attn_k", "attn_v"].map(|part| loader.linear(&name(part), width, width));
        let parts = parts.into_iter().collect::<WorkerResult<Vec<_>>>()?;
        Ok(Self {
            norms: [norm("ln1")?, norm("ln2")?],
            all: beside(&parts).map_err(Error::candle(LOADING))?,
            output: loader.linear(&name("attn_out"), width, width)?,
            up: loader.linear(&name("ffn_up"), width, hidden)?,
            down: loader.linear(&name("ffn_down"), hidden, width)?,
        })
    }

    fn forward(&self, x: &Tensor, segments: &Segments, heads: usize) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let all = self.all.forward(&self.norms[0].forward(x)?)?;
        let all = all.reshape((rows, 3, heads, width / heads))?;
        let part = |index: usize| all.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        let mixed = attend(&part(0)?, &part(1)?, &part(2)?, segments)?;
        let x = (x + self.output.forward(&mixed.reshape((rows, width))?)?)?;
        let up = self.up.forward(&self.norms[1].forward(&x)?)?.gelu_erf()?;
        x + self.down.forward(&up)?
    }
}

/// Matrices of the same inputs as one; those without a bias have one of zeros if others have one.
pub(crate) fn beside(parts: &[Linear]) -> Result<Linear> {
    let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
    let bias = match parts.iter().any(|part| part.bias.is_some()) {
        true => {
            let biases = parts.iter().map(|part| match &part.bias {
                Some(bias) => Ok(bias.clone()),
                None => Tensor::zeros(part.outputs(), part.weight.dtype(), part.weight.device()),
            });
            Some(Tensor::cat(&biases.collect::<Result<Vec<_>>>()?, 0)?)
        }
        false => None,
    };
    Ok(Linear {
        weight: Tensor::cat(&weights, 1)?,
        bias,
    })
}

/// A convolution's kernel as a matrix whose inputs are the rows that it sees behind each other.
fn convolution(loader: &Loader, name: &str, inputs: usize, outputs: usize) -> WorkerResult<Linear> {
    let kernel = loader.shaped(&format!("{name}.weight"), &[outputs, inputs, KERNEL])?;
    let kernel = kernel
        .transpose(1, 2)
        .and_then(|kernel| kernel.contiguous()?.reshape((outputs, KERNEL * inputs)));
    // Some files have the bias as a matrix of one column.
    let bias = loader.tensor(&format!("{name}.bias"))?;
    if bias.elem_count() != outputs {
        return Err(loader.bad(format!("tensor {name}.bias has shape {:?}", bias.dims())));
    }
    let bias = bias.flatten_all().map_err(Error::candle(LOADING))?;
    loader.turned(kernel.map_err(Error::candle(LOADING))?, Some(bias))
}

/// Rows `(n, inputs)` to `(n / stride rounded up, outputs)`; a row of zeros stands at each end. By a product of
/// matrices, which every device is fastest at.
fn convolve(x: &Tensor, kernel: &Linear, stride: usize) -> Result<Tensor> {
    let (rows, inputs) = x.dims2()?;
    let out = rows.div_ceil(stride);
    // As many as the last of the output sees, in whole strides.
    let padded = (out + KERNEL.div_ceil(stride) - 1) * stride;
    let x = x.pad_with_zeros(0, 1, padded - rows - 1)?;
    let x = x
        .contiguous()?
        .reshape((padded / stride, stride * inputs))?;
    let seen = (0..KERNEL.div_ceil(stride)).map(|step| {
        let columns = (KERNEL - step * stride).min(stride) * inputs;
        x.narrow(0, step, out)?.narrow(1, 0, columns)
    });
    let seen = Tensor::cat(&seen.collect::<Result<Vec<_>>>()?, 1)?;
    kernel.forward(&seen)
}

/// Positions as sines, and behind them cosines, of wavelengths from one turn to [`LONGEST_WAVE`].
fn sines(positions: usize, width: usize) -> Result<Vec<f32>> {
    let half = width / 2;
    if half < 2 || !width.is_multiple_of(2) {
        candle_core::bail!("a width of {width} has no positions of sines");
    }
    let step = LONGEST_WAVE.ln() / (half - 1) as f64;
    let angle = |place: usize, i: usize| place as f64 * (-step * i as f64).exp();
    let row = |place: usize| {
        let sines = (0..half).map(move |i| angle(place, i).sin() as f32);
        sines.chain((0..half).map(move |i| angle(place, i).cos() as f32))
    };
    Ok((0..positions).flat_map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// The convolution as it is defined.
    fn textbook(x: &[Vec<f32>], kernel: &[Vec<Vec<f32>>], stride: usize) -> Vec<Vec<f32>> {
        let at = |row: i64, column: usize| match usize::try_from(row) {
            Ok(row) if row < x.len() => x[row][column],
            _ => 0.0,
        };
        let output = |start: usize| {
            let sum = |weights: &Vec<Vec<f32>>| {
                let mut sum = 0.0;
                for (column, taps) in weights.iter().enumerate() {
                    for (tap, weight) in taps.iter().enumerate() {
                        sum += weight * at((start + tap) as i64 - 1, column);
                    }
                }
                sum
            };
            kernel.iter().map(sum).collect()
        };
        (0..x.len()).step_by(stride).map(output).collect()
    }

    #[test]
    fn convolutions_by_products() {
        let number = |i: usize| ((i * 7 + 3) % 11) as f32 - 5.0;
        for (rows, stride) in [(6, 1), (6, 2), (7, 2), (1, 2), (1, 1)] {
            let x: Vec<Vec<f32>> = (0..rows)
                .map(|r| (0..2).map(|c| number(r * 2 + c)).collect())
                .collect();
            let taps = |o: usize, c: usize| (0..3).map(|t| number(o * 6 + c * 3 + t)).collect();
            let kernel: Vec<Vec<Vec<f32>>> = (0..3)
                .map(|o| (0..2).map(|c| taps(o, c)).collect())
                .collect();
            let matrix = Tensor::new(kernel.clone(), &Device::Cpu).unwrap();
            let matrix = matrix.transpose(1, 2).unwrap().contiguous().unwrap();
            let weight = matrix.reshape((3, 6)).unwrap().t().unwrap().contiguous();
            let linear = Linear {
                weight: weight.unwrap(),
                bias: None,
            };
            let input = Tensor::new(x.clone(), &Device::Cpu).unwrap();
            let got = convolve(&input, &linear, stride).unwrap();
            let expected = textbook(&x, &kernel, stride);
            assert_eq!(got.to_vec2::<f32>().unwrap(), expected, "{rows} {stride}");
        }
    }
}
