//! What encoder and decoder have in common.

use super::config::VaeConfig;
use crate::models::attention::attention;
use crate::models::layers::{linear, pixels_as_rows, rows_as_pixels, Linear};
use crate::models::norm::GroupNorm;
use crate::models::unet::blocks::ResnetBlock;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// Of all norms.
pub(super) const EPS: f64 = 1e-6;

impl VaeConfig {
    /// A residual layer.
    pub(super) fn resnet(
        &self,
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
    ) -> Result<ResnetBlock> {
        ResnetBlock::new(vb, inputs, outputs, None, self.norm_num_groups, EPS)
    }
}

/// Residual layer, attention of all pixels to each other, residual layer.
#[derive(Debug, Clone)]
pub(super) struct MidBlock {
    first: ResnetBlock,
    norm: GroupNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    last: ResnetBlock,
}

impl MidBlock {
    pub(super) fn new(vb: VarBuilder, channels: usize, config: &VaeConfig) -> Result<Self> {
        let attn = vb.pp("attentions.0");
        let groups = config.norm_num_groups;
        let project = |name: &str| linear(attn.pp(name), channels, channels);
        Ok(Self {
            first: config.resnet(vb.pp("resnets.0"), channels, channels)?,
            norm: GroupNorm::new(attn.pp("group_norm"), groups, channels, EPS)?,
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            out: project("to_out.0")?,
            last: config.resnet(vb.pp("resnets.1"), channels, channels)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x, None)?;
        let (_, _, height, width) = x.dims4()?;
        let h = pixels_as_rows(&self.norm.forward(&x)?)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        let h = self.out.forward(&attention(&q, &k, &v, 1, false)?)?;
        let x = (x + rows_as_pixels(&h, height, width)?)?;
        self.last.forward(&x, None)
    }
}
