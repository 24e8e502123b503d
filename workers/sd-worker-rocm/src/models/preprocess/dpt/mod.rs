//! Depths of pictures: DPT (arXiv:2103.13413), also known as MiDaS 3, and Depth Anything (arXiv:2401.10891), which has the
//! same layers behind another transformer.

mod config;

use super::bit::Bit;
use super::layers::{spread, BatchNorm};
use super::vit::Vit;
use crate::editing::resample::Resample;
use crate::models::layers::{conv, linear, rows_as_pixels, Linear};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, ConvTranspose2d};
pub use config::{DepthConfig, Dinov2Config, Readout};
use config::{Head as HeadKind, Neck, OF_CONVOLUTIONS};

/// Channels before DPT's last layer.
const DPT_INNER: usize = 32;

#[derive(Debug, Clone)]
enum Resize {
    Larger(ConvTranspose2d),
    Same,
    Smaller(Conv2d),
}

/// Tokens of a layer as a picture of its own size.
#[derive(Debug, Clone)]
struct Reassemble {
    readout: Option<Linear>,
    projection: Conv2d,
    resize: Resize,
}

impl Reassemble {
    fn new(vb: &VarBuilder, i: usize, width: usize, config: &DepthConfig) -> Result<Self> {
        let neck = &config.neck;
        let (channels, factor) = (neck.sizes[i], neck.factors[i]);
        let layer = vb.pp("layers").pp(i);
        let resize = layer.pp("resize");
        let projects = neck.readout == Readout::Project;
        let whole = |factor: f64| -> Result<usize> {
            let rounded = factor.round();
            if (factor - rounded).abs() > 1e-6 || !(1.0..=64.0).contains(&rounded) {
                candle_core::bail!("reassemble_factors has {factor}, which is not implemented")
            }
            Ok(rounded as usize)
        };
        Ok(Self {
            readout: match projects {
                true => {
                    let vb = vb.pp("readout_projects").pp(i).pp(0);
                    Some(linear(vb, 2 * width, width)?)
                }
                false => None,
            },
            projection: conv(layer.pp("projection"), width, channels, 1, 1, 0)?,
            resize: match factor {
                factor if factor > 1.0 => Resize::Larger(spread(resize, channels, whole(factor)?)?),
                1.0 => Resize::Same,
                factor => {
                    let stride = whole(1.0 / factor)?;
                    Resize::Smaller(conv(resize, channels, channels, 3, stride, 1)?)
                }
            },
        })
    }

    /// Of `(1, 1 + patches, width)`.
    fn forward(
        &self,
        x: &Tensor,
        (high, wide): (usize, usize),
        readout: Readout,
    ) -> Result<Tensor> {
        let (class, patches) = (x.narrow(1, 0, 1)?, x.narrow(1, 1, high * wide)?);
        let patches = match (&self.readout, readout) {
            (Some(layer), _) => {
                let class = class.broadcast_as(patches.shape())?;
                let both = Tensor::cat(&[&patches.contiguous()?, &class.contiguous()?], 2)?;
                layer.forward(&both)?.gelu_erf()?
            }
            (None, Readout::Add) => patches.broadcast_add(&class)?,
            (None, _) => patches,
        };
        let x = self
            .projection
            .forward(&rows_as_pixels(&patches, high, wide)?)?;
        match &self.resize {
            Resize::Larger(layer) => layer.forward(&x),
            Resize::Same => Ok(x),
            Resize::Smaller(layer) => layer.forward(&x),
        }
    }
}

/// Two convolutions around a residual connection.
#[derive(Debug, Clone)]
struct Residual {
    convs: [Conv2d; 2],
    norms: Option<[BatchNorm; 2]>,
}

impl Residual {
    fn new(vb: VarBuilder, neck: &Neck) -> Result<Self> {
        let width = neck.fused;
        if vb.contains_tensor("convolution1.bias") != neck.biases {
            candle_core::bail!("use_bias_in_fusion_residual is not {}", !neck.biases)
        }
        let layer = |i: usize| conv(vb.pp(format!("convolution{i}")), width, width, 3, 1, 1);
        let norm = |i: usize| BatchNorm::new(vb.pp(format!("batch_norm{i}")), width, 1e-5);
        Ok(Self {
            convs: [layer(1)?, layer(2)?],
            norms: match neck.batch_norms {
                true => Some([norm(1)?, norm(2)?]),
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = x.clone();
        for (i, conv) in self.convs.iter().enumerate() {
            h = conv.forward(&h.relu()?)?;
            if let Some(norms) = &self.norms {
                h = norms[i].forward(&h)?;
            }
        }
        x + h
    }
}

#[derive(Debug, Clone)]
struct Fusion {
    projection: Conv2d,
    residuals: [Residual; 2],
}

impl Fusion {
    fn new(vb: VarBuilder, neck: &Neck) -> Result<Self> {
        let width = neck.fused;
        let residual = |i: usize| Residual::new(vb.pp(format!("residual_layer{i}")), neck);
        Ok(Self {
            projection: conv(vb.pp("projection"), width, width, 1, 1, 0)?,
            residuals: [residual(1)?, residual(2)?],
        })
    }

    /// To `size`, or to twice the size without one.
    fn forward(
        &self,
        x: &Tensor,
        beside: Option<&Tensor>,
        size: Option<(usize, usize)>,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let x = match beside {
            Some(beside) => {
                let resample = Resample::Bilinear { antialias: false };
                let beside = resample.apply(beside, height, width)?;
                (x + self.residuals[0].forward(&beside)?)?
            }
            None => x.clone(),
        };
        let x = self.residuals[1].forward(&x)?;
        let (height, width) = size.unwrap_or((2 * height, 2 * width));
        self.projection
            .forward(&Resample::Corners.apply(&x, height, width)?)
    }
}

/// The last convolutions.
#[derive(Debug, Clone)]
struct Head {
    projection: Option<Conv2d>,
    layers: [Conv2d; 3],
}

/// The network.
#[derive(Debug, Clone)]
pub struct Depth {
    before: Option<(Bit, Conv2d)>,
    vit: Vit,
    /// `None` for stages that come from the network before the transformer.
    reassemble: Vec<Option<Reassemble>>,
    convs: Vec<Conv2d>,
    fusion: Vec<Fusion>,
    head: Head,
    config: DepthConfig,
}

impl Depth {
    /// Builds the network that `config` describes, from transformers' names.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &DepthConfig) -> Result<Self> {
        let neck = &config.neck;
        let width = config.shape.width;
        let model = match neck.head {
            HeadKind::Anything { .. } => vb.pp("backbone"),
            HeadKind::Dpt => vb.pp("dpt"),
        };
        let before = match &config.hybrid {
            None => None,
            Some(bit) => {
                let vb = model.pp("embeddings");
                let inputs = bit.channels();
                let network = Bit::new(vb.pp("backbone.bit"), bit)?;
                Some((network, conv(vb.pp("projection"), inputs, width, 1, 1, 0)?))
            }
        };
        let stages = neck.sizes.iter().enumerate();
        let parts = vb.pp("neck");
        let reassemble = parts.pp("reassemble_stage");
        let skipped = if before.is_some() { OF_CONVOLUTIONS } else { 0 };
        let (fused, head) = (neck.fused, vb.pp("head"));
        let fusion = parts.pp("fusion_stage.layers");
        let (names, inner) = match neck.head {
            HeadKind::Anything { inner, .. } => (["conv1", "conv2", "conv3"], inner),
            HeadKind::Dpt => (["head.0", "head.2", "head.4"], DPT_INNER),
        };
        Ok(Self {
            vit: Vit::new(model, &config.shape, before.is_none())?,
            before,
            reassemble: stages
                .clone()
                .map(|(i, _)| match i < skipped {
                    true => Ok(None),
                    false => Reassemble::new(&reassemble, i, width, config).map(Some),
                })
                .collect::<Result<_>>()?,
            convs: stages
                .map(|(i, channels)| conv(parts.pp("convs").pp(i), *channels, fused, 3, 1, 1))
                .collect::<Result<_>>()?,
            fusion: (0..neck.sizes.len())
                .map(|i| Fusion::new(fusion.pp(i), neck))
                .collect::<Result<_>>()?,
            head: Head {
                projection: match neck.projection {
                    true => Some(conv(head.pp("projection"), 256, 256, 3, 1, 1)?),
                    false => None,
                },
                layers: [
                    conv(head.pp(names[0]), fused, fused / 2, 3, 1, 1)?,
                    conv(head.pp(names[1]), fused / 2, inner, 3, 1, 1)?,
                    conv(head.pp(names[2]), inner, 1, 1, 1, 0)?,
                ],
            },
            config: config.clone(),
        })
    }

    /// Depths, `(1, 1, height, width)`: near is more, but for metric ones, which are metres. The size is about that of the
    /// picture, `(1, 3, height, width)`, which has been normalised and whose sides are multiples of [`Self::multiple`].
    ///
    /// # Errors
    /// If the picture has other sides, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let patch = self.multiple();
        if height < patch || width < patch || height % patch != 0 || width % patch != 0 {
            candle_core::bail!(
                "depths of {width} x {height} pixels: multiples of {patch} are wanted"
            )
        }
        let grid = (height / patch, width / patch);
        let layers = &self.config.layers;
        let mut stages = match &self.before {
            None => self.vit.forward(x, layers)?,
            Some((network, projection)) => {
                let mut stages = network.forward(x)?;
                let Some(last) = stages.last() else {
                    candle_core::bail!("a backbone without stages")
                };
                let patches = projection.forward(last)?;
                stages.truncate(OF_CONVOLUTIONS);
                stages.extend(self.vit.forward(&patches, &layers[OF_CONVOLUTIONS..])?);
                stages
            }
        };
        if self.config.normed {
            for stage in &mut stages {
                *stage = self.vit.normed(stage)?;
            }
        }
        let readout = self.config.neck.readout;
        let mut features = Vec::with_capacity(stages.len());
        for ((stage, reassemble), conv) in stages.iter().zip(&self.reassemble).zip(&self.convs) {
            let stage = match reassemble {
                Some(layer) => layer.forward(stage, grid, readout)?,
                None => stage.clone(),
            };
            features.push(conv.forward(&stage)?);
        }
        let size = |i: usize| {
            // Depth Anything meets the next stage's size, DPT doubles.
            let next = features.len().checked_sub(i + 2)?;
            let (height, width) = (features[next].dim(2).ok()?, features[next].dim(3).ok()?);
            self.is_anything().then_some((height, width))
        };
        let mut fused: Option<Tensor> = None;
        for (i, (feature, layer)) in features.iter().rev().zip(&self.fusion).enumerate() {
            fused = Some(match &fused {
                None => layer.forward(feature, None, size(i))?,
                Some(fused) => layer.forward(fused, Some(feature), size(i))?,
            });
        }
        let Some(x) = fused else {
            candle_core::bail!("a network without stages")
        };
        self.depths(&x, (height, width))
    }

    fn depths(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let x = match &self.head.projection {
            Some(projection) => projection.forward(x)?.relu()?,
            None => x.clone(),
        };
        let [first, second, third] = &self.head.layers;
        let x = first.forward(&x)?;
        let (_, _, h, w) = x.dims4()?;
        let (height, width) = match self.is_anything() {
            true => (height, width),
            false => (2 * h, 2 * w),
        };
        let x = Resample::Corners.apply(&x, height, width)?;
        let x = third.forward(&second.forward(&x)?.relu()?)?;
        match self.config.neck.head {
            HeadKind::Dpt => x.relu(),
            HeadKind::Anything { metric, most, .. } => match metric {
                true => candle_nn::ops::sigmoid(&x)? * most,
                false => x.relu()? * most,
            },
        }
    }

    fn is_anything(&self) -> bool {
        self.config.neck.head != HeadKind::Dpt
    }

    /// Whether depths are distances: far is more.
    pub fn is_metric(&self) -> bool {
        matches!(
            self.config.neck.head,
            HeadKind::Anything { metric: true, .. }
        )
    }

    /// Of what the sides of pictures are multiples.
    pub fn multiple(&self) -> usize {
        self.vit.patch()
    }
}
