//! T2I-Adapter (Mou et al. 2023): features of a picture, added to a UNet's blocks on its way down.

use super::config::{within, Others};
use super::wrap::WrappedConv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use serde::Deserialize;

/// The kinds of adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Halves the picture before each block but the first.
    FullAdapter,
    /// For Stable Diffusion XL: halves it before the third only.
    FullAdapterXl,
    /// Narrower within its blocks.
    LightAdapter,
}

/// `config.json` of a `T2IAdapter`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct AdapterConfig {
    /// Channels of the picture: 3, or 1 for grey.
    pub in_channels: usize,
    /// Channels of the features.
    pub channels: Vec<usize>,
    /// Residual layers a block.
    pub num_res_blocks: usize,
    /// Pixels that become channels, each way.
    pub downscale_factor: usize,
    /// The kind.
    pub adapter_type: Kind,
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            in_channels: 3,
            channels: vec![320, 640, 1280, 1280],
            num_res_blocks: 2,
            downscale_factor: 8,
            adapter_type: Kind::FullAdapter,
            others: Others::default(),
        }
    }
}

impl AdapterConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse(&[])?;
        within(
            &[
                ("num_res_blocks", self.num_res_blocks),
                ("downscale_factor", self.downscale_factor),
                ("the number of channels", self.channels.len()),
            ],
            64,
        )?;
        for channels in &self.channels {
            within(&[("channels", *channels)], 1 << 16)?;
        }
        match self.in_channels {
            1 | 3 => Ok(()),
            other => Err(format!("in_channels is {other}; 1 and 3 are possible")),
        }
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct T2iAdapter {
    conv_in: Option<WrappedConv>,
    blocks: Vec<Block>,
    factor: usize,
    grey: bool,
}

impl T2iAdapter {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &AdapterConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let vb = vb.pp("adapter");
        let inputs = config.in_channels * config.downscale_factor.pow(2);
        let channels = &config.channels;
        let light = config.adapter_type == Kind::LightAdapter;
        // Inputs, outputs and whether the picture is halved, block by block.
        let mut plan = vec![(if light { inputs } else { channels[0] }, channels[0], false)];
        for (i, pair) in channels.windows(2).enumerate() {
            plan.push(match (config.adapter_type, i + 1) {
                (Kind::FullAdapterXl, 1) => (pair[0], pair[1], false),
                (Kind::FullAdapterXl, 2) => (pair[0], pair[1], true),
                (Kind::FullAdapterXl, _) => (pair[1], pair[1], false),
                _ => (pair[0], pair[1], true),
            });
        }
        if let (true, Some(last)) = (light, channels.last()) {
            plan.push((*last, *last, true));
        }
        let blocks = plan.into_iter().enumerate().map(|(i, block)| {
            let vb = vb.pp("body").pp(i);
            match light {
                true => Block::light(vb, block, config.num_res_blocks),
                false => Block::full(vb, block, config.num_res_blocks),
            }
        });
        Ok(Self {
            conv_in: match light {
                true => None,
                false => Some(WrappedConv::new(
                    vb.pp("conv_in"),
                    inputs,
                    channels[0],
                    3,
                    1,
                    1,
                )?),
            },
            blocks: blocks.collect::<Result<_>>()?,
            factor: config.downscale_factor,
            grey: config.in_channels == 1,
        })
    }

    /// Features of a picture, `(1, 3, height, width)` in 0..1, for the blocks of a UNet.
    ///
    /// # Errors
    /// If height or width are no multiples of the downscale factor, or the device fails.
    pub fn features(&self, picture: &Tensor) -> Result<Vec<Tensor>> {
        let picture = match self.grey {
            true => grey(picture)?,
            false => picture.clone(),
        };
        let (_, _, height, width) = picture.dims4()?;
        if !height.is_multiple_of(self.factor) || !width.is_multiple_of(self.factor) {
            candle_core::bail!(
                "this adapter takes pictures of multiples of {} pixels, not {width}x{height}",
                self.factor
            )
        }
        let mut x = unshuffled(&picture, self.factor)?;
        if let Some(conv_in) = &self.conv_in {
            x = conv_in.forward(&x)?;
        }
        let features = self.blocks.iter().map(|block| {
            x = block.forward(&x)?;
            Ok(x.clone())
        });
        features.collect()
    }
}

/// The one channel of grey that weights of Rec. 601 make, in whole steps of 255.
fn grey(picture: &Tensor) -> Result<Tensor> {
    let weighted = |channel: usize, weight: f64| picture.narrow(1, channel, 1)? * weight;
    let sum = ((weighted(0, 0.299)? + weighted(1, 0.587)?)? + weighted(2, 0.114)?)?;
    (sum * 255.0)?.round()? / 255.0
}

/// Squares of `factor` pixels as channels.
fn unshuffled(x: &Tensor, factor: usize) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (rows, columns) = (height / factor, width / factor);
    x.reshape(&[batch, channels, rows, factor, columns, factor][..])?
        .permute([0, 1, 3, 5, 2, 4])?
        .contiguous()?
        .reshape((batch, channels * factor * factor, rows, columns))
}

#[derive(Debug, Clone)]
struct Block {
    halves: bool,
    conv_in: Option<WrappedConv>,
    layers: Vec<(WrappedConv, WrappedConv)>,
    conv_out: Option<WrappedConv>,
}

impl Block {
    fn full(
        vb: VarBuilder,
        (inputs, outputs, halves): (usize, usize, bool),
        layers: usize,
    ) -> Result<Self> {
        let layers = (0..layers).map(|i| {
            let vb = vb.pp("resnets").pp(i);
            let first = WrappedConv::new(vb.pp("block1"), outputs, outputs, 3, 1, 1)?;
            Ok((
                first,
                WrappedConv::new(vb.pp("block2"), outputs, outputs, 1, 1, 0)?,
            ))
        });
        Ok(Self {
            halves,
            conv_in: match inputs == outputs {
                true => None,
                false => Some(WrappedConv::new(
                    vb.pp("in_conv"),
                    inputs,
                    outputs,
                    1,
                    1,
                    0,
                )?),
            },
            layers: layers.collect::<Result<_>>()?,
            conv_out: None,
        })
    }

    fn light(
        vb: VarBuilder,
        (inputs, outputs, halves): (usize, usize, bool),
        layers: usize,
    ) -> Result<Self> {
        let within = outputs / 4;
        let layers = (0..layers).map(|i| {
            let vb = vb.pp("resnets").pp(i);
            let first = WrappedConv::new(vb.pp("block1"), within, within, 3, 1, 1)?;
            Ok((
                first,
                WrappedConv::new(vb.pp("block2"), within, within, 3, 1, 1)?,
            ))
        });
        Ok(Self {
            halves,
            conv_in: Some(WrappedConv::new(vb.pp("in_conv"), inputs, within, 1, 1, 0)?),
            layers: layers.collect::<Result<_>>()?,
            conv_out: Some(WrappedConv::new(
                vb.pp("out_conv"),
                within,
                outputs,
                1,
                1,
                0,
            )?),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = match self.halves {
            true => halved(x)?,
            false => x.clone(),
        };
        if let Some(conv_in) = &self.conv_in {
            x = conv_in.forward(&x)?;
        }
        for (first, second) in &self.layers {
            x = (&x + second.forward(&first.forward(&x)?.relu()?)?)?;
        }
        match &self.conv_out {
            Some(conv_out) => conv_out.forward(&x),
            None => Ok(x),
        }
    }
}

/// Means of squares of two pixels; of what is left at an uneven edge, means of that.
fn halved(x: &Tensor) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    // A repeated edge has the mean of what is there.
    let x = match height.is_multiple_of(2) {
        true => x.clone(),
        false => x.pad_with_same(2, 0, 1)?,
    };
    let x = match width.is_multiple_of(2) {
        true => x,
        false => x.pad_with_same(3, 0, 1)?,
    };
    x.avg_pool2d(2)
}
