//! Convolutions over time that only look back.
//!
//! A video goes through in chunks of frames, `(frames, channels, height, width)`; what a convolution has to see of the
//! frames before is kept in its [`Past`]. Frames before the first are zeros.

use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig};

/// The last frames that a convolution has seen; none before the first chunk.
pub type Past = Option<Tensor>;

/// A convolution with a kernel of several frames, as a sum of convolutions of pictures.
#[derive(Debug, Clone)]
pub struct CausalConv {
    /// Those of the earliest frame first, the last with the bias.
    taps: Vec<Conv2d>,
}

impl CausalConv {
    /// Reads `weight`, `(outputs, inputs, frames, size, size)`, and `bias`.
    ///
    /// # Errors
    /// If they are missing or of other shapes.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        frames: usize,
        size: usize,
    ) -> Result<Self> {
        let weight = vb.get((outputs, inputs, frames, size, size), "weight")?;
        let bias = vb.get(outputs, "bias")?;
        let config = Conv2dConfig {
            padding: size / 2,
            ..Conv2dConfig::default()
        };
        let taps = (0..frames).map(|frame| {
            let weight = weight.narrow(2, frame, 1)?.squeeze(2)?.contiguous()?;
            let bias = (frame + 1 == frames).then(|| bias.clone());
            Ok(Conv2d::new(weight, bias, config))
        });
        Ok(Self {
            taps: taps.collect::<Result<_>>()?,
        })
    }

    /// The convolution of `x`, with as many frames as it has, after those of `past`, which is brought up to date.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward(&self, x: &Tensor, past: &mut Past) -> Result<Tensor> {
        let frames = x.dim(0)?;
        let reach = self.taps.len() - 1;
        let whole = match past.take() {
            Some(past) => Tensor::cat(&[&past, x], 0)?,
            None => x.clone(),
        };
        let before = whole.dim(0)? - frames;
        let mut sum: Option<Tensor> = None;
        for (tap, conv) in self.taps.iter().enumerate().rev() {
            // Output `i` sees the frame so far back; the first outputs may not have any.
            let back = reach - tap;
            let from = back.saturating_sub(before);
            if from >= frames {
                break;
            }
            let seen = whole.narrow(0, from + before - back, frames - from)?;
            let part = conv.forward(&seen.contiguous()?)?;
            sum = Some(match sum {
                None => part,
                Some(sum) if from == 0 => (sum + part)?,
                Some(sum) => {
                    let rest = (sum.narrow(0, from, frames - from)? + part)?;
                    Tensor::cat(&[&sum.narrow(0, 0, from)?, &rest], 0)?
                }
            });
        }
        if reach > 0 {
            let keep = whole.dim(0)?.min(reach);
            *past = Some(whole.narrow(0, whole.dim(0)? - keep, keep)?.contiguous()?);
        }
        match sum {
            Some(sum) => Ok(sum),
            None => candle_core::bail!("a chunk without frames"),
        }
    }

    /// The convolution of every second frame, without filling up: of 3 frames the last, of 5 the third and fifth.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn halve(&self, x: &Tensor) -> Result<Tensor> {
        let frames = x.dim(0)?;
        let count = (frames.saturating_sub(self.taps.len())) / 2 + 1;
        let mut sum: Option<Tensor> = None;
        for (tap, conv) in self.taps.iter().enumerate() {
            let seen: Vec<u32> = (0..count).map(|i| (2 * i + tap) as u32).collect();
            let seen = Tensor::from_vec(seen, count, x.device())?;
            let part = conv.forward(&x.index_select(&seen, 0)?)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => (sum + part)?,
            });
        }
        match sum {
            Some(sum) => Ok(sum),
            None => candle_core::bail!("a convolution without taps"),
        }
    }
}
