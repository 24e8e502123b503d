//! GFPGAN (arXiv:2101.04061) in its later form: a U-Net whose features steer a StyleGAN2 (arXiv:1912.04958).

use super::Pair;
use crate::editing::resample::Resample;
use crate::models::layers::{conv, leaky_relu, linear, Linear};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Conv2d;

/// What a file's names and shapes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Halvings from the picture to 4 x 4.
    levels: usize,
    /// Channels of the U-Net from the picture's size down to 4 x 4.
    widths: Vec<usize>,
    /// Channels of the StyleGAN from 4 x 4 up to the picture's size.
    style_widths: Vec<usize>,
    /// Numbers of a style.
    style: usize,
    /// Half of the channels are steered, not all.
    half: bool,
    /// A style for each layer, not one for all.
    each: bool,
}

/// Most halvings: pictures of 1024 pixels.
const MOST_LEVELS: usize = 8;

impl Layout {
    /// What a file's names and shapes say.
    ///
    /// # Errors
    /// If they are those of no GFPGAN.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let shape = |name: &str| {
            let found = weights.shape(name);
            found.ok_or_else(|| format!("{name} is missing"))
        };
        let at = |name: &str, dim: usize| {
            let shape = shape(name)?;
            let size = shape.get(dim).copied().filter(|size| *size > 0);
            size.ok_or_else(|| format!("{name} has shape {shape:?}"))
        };
        let levels = crate::models::upscale::count(weights, "conv_body_down");
        if !(1..=MOST_LEVELS).contains(&levels) {
            return Err(format!("a U-Net of {levels} levels is not a known one"));
        }
        let mut widths = vec![at("conv_body_first.weight", 0)?];
        let mut style_widths = vec![at("stylegan_decoder.constant_input.weight", 1)?];
        for i in 0..levels {
            widths.push(at(&format!("conv_body_down.{i}.conv2.weight"), 0)?);
            let name = format!(
                "stylegan_decoder.style_convs.{}.modulated_conv.weight",
                2 * i
            );
            style_widths.push(at(&name, 1)?);
        }
        let style = at(
            "stylegan_decoder.style_conv1.modulated_conv.modulation.weight",
            1,
        )?;
        let steered = at("condition_scale.0.2.weight", 0)?;
        let styles = at("final_linear.weight", 0)?;
        let layers = 2 * levels + 2;
        Ok(Self {
            levels,
            half: match steered {
                all if all == style_widths[1] => false,
                half if 2 * half == style_widths[1] => true,
                other => return Err(format!("{other} channels cannot steer {}", style_widths[1])),
            },
            each: match styles {
                all if all == layers * style => true,
                one if one == style => false,
                other => return Err(format!("{other} numbers are no styles of {style}")),
            },
            widths,
            style_widths,
            style,
        })
    }

    /// Pixels of the pictures that it takes, each way.
    pub fn size(&self) -> usize {
        4 << self.levels
    }
}

/// Half as large or twice as large, along straight lines.
fn resized(x: &Tensor, double: bool) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let (height, width) = match double {
        true => (2 * height, 2 * width),
        false => (height / 2, width / 2),
    };
    let wide = x.to_dtype(DType::F32)?;
    let resized = Resample::Bilinear { antialias: false }.apply(&wide, height, width)?;
    resized.to_dtype(x.dtype())
}

#[derive(Debug, Clone)]
struct Residual {
    conv1: Conv2d,
    conv2: Conv2d,
    skip: Conv2d,
    up: bool,
}

impl Residual {
    fn new(vb: VarBuilder, inputs: usize, outputs: usize, up: bool) -> Result<Self> {
        Ok(Self {
            conv1: conv(vb.pp("conv1"), inputs, inputs, 3, 1, 1)?,
            conv2: conv(vb.pp("conv2"), inputs, outputs, 3, 1, 1)?,
            skip: conv(vb.pp("skip"), inputs, outputs, 1, 1, 0)?,
            up,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = resized(&leaky_relu(&self.conv1.forward(x)?, 0.2)?, self.up)?;
        let y = leaky_relu(&self.conv2.forward(&y)?, 0.2)?;
        y + self.skip.forward(&resized(x, self.up)?)?
    }
}

/// A convolution whose weights a style scales.
#[derive(Debug, Clone)]
struct Modulated {
    /// `(1, outputs, inputs, kernel, kernel)`.
    weight: Tensor,
    modulation: Linear,
    /// Whether each output's weights are brought to length 1.
    demodulate: bool,
}

impl Modulated {
    fn new(
        vb: VarBuilder,
        (inputs, outputs): (usize, usize),
        kernel: usize,
        style: usize,
    ) -> Result<Self> {
        Ok(Self {
            weight: vb.get((1, outputs, inputs, kernel, kernel), "weight")?,
            modulation: linear(vb.pp("modulation"), style, inputs)?,
            demodulate: kernel > 1,
        })
    }

    /// `style` is `(1, numbers)`, `x` one picture.
    fn forward(&self, x: &Tensor, style: &Tensor) -> Result<Tensor> {
        let (_, outputs, inputs, kernel, _) = self.weight.dims5()?;
        let style = self.modulation.forward(style)?;
        let style = style.reshape((1, inputs, 1, 1))?.to_dtype(DType::F32)?;
        let weight = self.weight.squeeze(0)?.to_dtype(DType::F32)?;
        let mut weight = weight.broadcast_mul(&style)?;
        if self.demodulate {
            let length = weight.sqr()?.flatten_from(1)?.sum_keepdim(1)?;
            let length = (length + 1e-8)?.sqrt()?.reshape((outputs, 1, 1, 1))?;
            weight = weight.broadcast_div(&length)?;
        }
        x.conv2d(&weight.to_dtype(x.dtype())?, kernel / 2, 1, 1, 1)
    }
}

#[derive(Debug, Clone)]
struct StyleConv {
    conv: Modulated,
    up: bool,
    /// The stored noise times its strength, `(1, 1, size, size)`: the same for every face.
    noise: Tensor,
    /// `(1, channels, 1, 1)`.
    bias: Tensor,
}

impl StyleConv {
    fn new(
        vb: VarBuilder,
        noise: Tensor,
        sizes: (usize, usize),
        style: usize,
        up: bool,
    ) -> Result<Self> {
        let strength = vb.get(1, "weight")?.reshape((1, 1, 1, 1))?;
        Ok(Self {
            conv: Modulated::new(vb.pp("modulated_conv"), sizes, 3, style)?,
            up,
            noise: noise.broadcast_mul(&strength)?,
            bias: vb.get((1, sizes.1, 1, 1), "bias")?,
        })
    }

    fn forward(&self, x: &Tensor, style: &Tensor) -> Result<Tensor> {
        let x = match self.up {
            true => resized(x, true)?,
            false => x.clone(),
        };
        let x = (self.conv.forward(&x, style)? * 2f64.sqrt())?;
        let x = x.broadcast_add(&self.noise)?.broadcast_add(&self.bias)?;
        leaky_relu(&x, 0.2)
    }
}

#[derive(Debug, Clone)]
struct ToRgb(Modulated, Tensor);

impl ToRgb {
    fn new(vb: VarBuilder, inputs: usize, style: usize) -> Result<Self> {
        Ok(Self(
            Modulated::new(vb.pp("modulated_conv"), (inputs, 3), 1, style)?,
            vb.get((1, 3, 1, 1), "bias")?,
        ))
    }

    fn forward(&self, x: &Tensor, style: &Tensor) -> Result<Tensor> {
        self.0.forward(x, style)?.broadcast_add(&self.1)
    }
}

/// One size of the StyleGAN.
#[derive(Debug, Clone)]
struct Stage {
    first: StyleConv,
    second: StyleConv,
    rgb: ToRgb,
}

/// The network.
#[derive(Debug, Clone)]
pub struct Gfpgan {
    layout: Layout,
    first: Conv2d,
    down: Vec<Residual>,
    middle: Conv2d,
    styles: Linear,
    up: Vec<(Residual, Pair, Pair)>,
    constant: Tensor,
    start: (StyleConv, ToRgb),
    stages: Vec<Stage>,
}

impl Gfpgan {
    /// Builds the network.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, layout: &Layout) -> Result<Self> {
        let Layout {
            levels,
            widths,
            style_widths,
            style,
            half,
            each,
        } = layout;
        let last = widths[*levels];
        let styles = if *each { 2 * levels + 2 } else { 1 };
        let down = |i: usize| {
            let vb = vb.pp("conv_body_down").pp(i);
            Residual::new(vb, widths[i], widths[i + 1], false)
        };
        let up = |i: usize| {
            let (inputs, outputs) = (widths[levels - i], widths[levels - i - 1]);
            let steered = style_widths[i + 1] / if *half { 2 } else { 1 };
            let pair = |name: &str| Pair::new(vb.pp(name).pp(i), outputs, steered);
            let vb = vb.pp("conv_body_up").pp(i);
            Ok((
                Residual::new(vb, inputs, outputs, true)?,
                pair("condition_scale")?,
                pair("condition_shift")?,
            ))
        };
        let decoder = vb.pp("stylegan_decoder");
        let noise = |layer: usize| {
            let size = 4 << layer.div_ceil(2);
            let vb = decoder.pp("noises");
            vb.get((1, 1, size, size), &format!("noise{layer}"))
        };
        let stage = |i: usize| {
            let (inputs, outputs) = (style_widths[i], style_widths[i + 1]);
            let layer = |j: usize, inputs, up| {
                let vb = decoder.pp("style_convs").pp(2 * i + j);
                StyleConv::new(vb, noise(2 * i + j + 1)?, (inputs, outputs), *style, up)
            };
            Ok(Stage {
                first: layer(0, inputs, true)?,
                second: layer(1, outputs, false)?,
                rgb: ToRgb::new(decoder.pp("to_rgbs").pp(i), outputs, *style)?,
            })
        };
        let narrow = style_widths[0];
        Ok(Self {
            first: conv(vb.pp("conv_body_first"), 3, widths[0], 1, 1, 0)?,
            down: (0..*levels).map(down).collect::<Result<_>>()?,
            middle: conv(vb.pp("final_conv"), last, last, 3, 1, 1)?,
            styles: linear(vb.pp("final_linear"), last * 16, styles * style)?,
            up: (0..*levels).map(up).collect::<Result<_>>()?,
            constant: decoder.get((1, narrow, 4, 4), "constant_input.weight")?,
            start: (
                StyleConv::new(
                    decoder.pp("style_conv1"),
                    noise(0)?,
                    (narrow, narrow),
                    *style,
                    false,
                )?,
                ToRgb::new(decoder.pp("to_rgb1"), narrow, *style)?,
            ),
            stages: (0..*levels).map(stage).collect::<Result<_>>()?,
            layout: layout.clone(),
        })
    }

    /// A face restored: one picture `(1, 3, size, size)` in -1..1, about so again.
    ///
    /// # Errors
    /// If it has another size, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let size = self.layout.size();
        if x.dims4()? != (1, 3, size, size) {
            candle_core::bail!("a face of shape {:?}; {size} x {size} is wanted", x.shape())
        }
        let mut x = leaky_relu(&self.first.forward(x)?, 0.2)?;
        let mut skips = Vec::with_capacity(self.down.len());
        for layer in &self.down {
            x = layer.forward(&x)?;
            skips.push(x.clone());
        }
        x = leaky_relu(&self.middle.forward(&x)?, 0.2)?;
        let styles = self.styles.forward(&x.flatten_from(1)?)?;
        let numbers = self.layout.style;
        let style = |i: usize| match self.layout.each {
            true => styles.narrow(1, i * numbers, numbers),
            false => Ok(styles.clone()),
        };
        let mut out = self.start.0.forward(&self.constant, &style(0)?)?;
        let mut rgb = self.start.1.forward(&out, &style(1)?)?;
        for (i, ((layer, scale, shift), stage)) in self.up.iter().zip(&self.stages).enumerate() {
            if let Some(skip) = skips.pop() {
                x = (x + skip)?;
            }
            x = layer.forward(&x)?;
            out = stage.first.forward(&out, &style(2 * i + 1)?)?;
            let channels = out.dim(1)?;
            let same = if self.layout.half { channels / 2 } else { 0 };
            let steered = out.narrow(1, same, channels - same)?;
            let steered = ((steered * scale.forward(&x)?)? + shift.forward(&x)?)?;
            out = match same {
                0 => steered,
                same => Tensor::cat(&[&out.narrow(1, 0, same)?, &steered], 1)?,
            };
            out = stage.second.forward(&out, &style(2 * i + 2)?)?;
            rgb = (resized(&rgb, true)? + stage.rgb.forward(&out, &style(2 * i + 3)?)?)?;
        }
        Ok(rgb)
    }
}
