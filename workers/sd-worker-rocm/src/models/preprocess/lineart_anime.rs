//! Line drawings of anime: a U-Net of pix2pix (arXiv:1611.07004) whose sizes are those of its file.

use crate::models::layers::{conv, leaky_relu};
use crate::models::preprocess::lineart::normal;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, ConvTranspose2d, ConvTranspose2dConfig};

/// Levels at most: each halves the picture.
const MOST_LEVELS: usize = 12;

/// The name by which a file is known: the outermost convolution's.
pub const MARK: &str = "model.model.0.weight";

/// The network.
#[derive(Debug, Clone)]
pub struct LineartAnime {
    /// From the outermost level inwards.
    levels: Vec<(Conv2d, ConvTranspose2d)>,
}

/// A convolution of four by four that halves the picture, with the file's channels; these follow.
fn down(vb: VarBuilder, inputs: usize) -> Result<(Conv2d, usize)> {
    let outputs = vb.get_unchecked("weight")?;
    let outputs = outputs.dims().first().copied().unwrap_or(0);
    Ok((conv(vb, inputs, outputs, 4, 2, 1)?, outputs))
}

fn up(vb: VarBuilder, inputs: usize, outputs: usize) -> Result<ConvTranspose2d> {
    let config = ConvTranspose2dConfig {
        padding: 1,
        stride: 2,
        ..Default::default()
    };
    let weight = vb.get((inputs, outputs, 4, 4), "weight")?;
    let bias = vb.get(outputs, "bias")?;
    Ok(ConvTranspose2d::new(weight, Some(bias), config))
}

impl LineartAnime {
    /// Reads `model.model` and what is nested in it.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let mut level = vb.pp("model.model");
        let mut levels = Vec::new();
        let mut inputs = 3;
        loop {
            let outermost = levels.is_empty();
            let (at_down, at_next) = if outermost { (0, 1) } else { (1, 3) };
            let (conv, width) = down(level.pp(at_down), inputs)?;
            let next = level.pp(at_next).pp("model");
            let innermost = !next.contains_tensor("1.weight");
            let at_up = match (outermost, innermost) {
                (true, _) => 3,
                (false, true) => 3,
                (false, false) => 5,
            };
            let outputs = if outermost { 1 } else { inputs };
            let joined = if innermost { width } else { 2 * width };
            levels.push((conv, up(level.pp(at_up), joined, outputs)?));
            if innermost {
                break;
            }
            if levels.len() >= MOST_LEVELS {
                candle_core::bail!("there are more than {MOST_LEVELS} levels")
            }
            (level, inputs) = (next, width);
        }
        Ok(Self { levels })
    }

    /// Of what the sides of pictures are multiples.
    pub fn multiple(&self) -> usize {
        1 << self.levels.len()
    }

    /// Black lines on white, `(1, 1, height, width)` in -1..1, of `(1, 3, height, width)` in -1..1, whose sides are
    /// multiples of [`Self::multiple`].
    ///
    /// # Errors
    /// If they are not, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let multiple = self.multiple();
        if height % multiple != 0 || width % multiple != 0 || height * width == 0 {
            candle_core::bail!("{width} x {height} pixels: multiples of {multiple} are wanted")
        }
        let count = self.levels.len();
        let mut x = x.clone();
        let mut skips = Vec::with_capacity(count);
        for (i, (down, _)) in self.levels.iter().enumerate() {
            if i > 0 {
                // What goes past the inner levels has been through the activation, too, as the original works in place.
                x = leaky_relu(&x, 0.2)?;
                skips.push(x.clone());
            }
            x = down.forward(&x)?;
            if i > 0 && i + 1 < count {
                x = normal(&x)?;
            }
        }
        for (i, (_, up)) in self.levels.iter().enumerate().rev() {
            x = up.forward(&x.relu()?)?;
            if i > 0 {
                x = normal(&x)?;
                if let Some(skip) = skips.pop() {
                    x = Tensor::cat(&[&skip, &x], 1)?;
                }
            }
        }
        x.tanh()
    }
}
