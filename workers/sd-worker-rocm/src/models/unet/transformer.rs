//! Attention of pixels to each other and to the text.

use crate::models::attention::attention;
use crate::models::layers::Linear;
use crate::models::layers::{layer_norm, linear, pixels_as_rows, rows_as_pixels};
use crate::models::norm::GroupNorm;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor, D};
use candle_nn::LayerNorm;

/// Keys and values, `(batch, tokens, channels)` each, of what pixels attend to: the same in every step.
#[derive(Debug, Clone)]
pub struct TextKeys {
    k: Tensor,
    v: Tensor,
    /// Pictures beside the text.
    pub(super) pictures: Vec<PictureKeys>,
}

/// Keys and values of a picture, attended to beside the text.
#[derive(Debug, Clone)]
pub struct PictureKeys {
    /// Keys, `(batch, tokens, channels)`.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// How strongly it steers.
    pub strength: f64,
    /// Where: a number for each pixel, `(1, pixels, 1)`.
    pub mask: Option<Tensor>,
    /// Whose it is among those of a request.
    pub number: usize,
}

#[derive(Debug, Clone)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
    /// Each row attends to itself only.
    itself: bool,
}

impl Attention {
    fn new(vb: VarBuilder, channels: usize, context: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            q: linear(vb.pp("to_q"), channels, channels)?,
            k: linear(vb.pp("to_k"), context, channels)?,
            v: linear(vb.pp("to_v"), context, channels)?,
            out: linear(vb.pp("to_out.0"), channels, channels)?,
            heads,
            itself: false,
        })
    }

    fn keys(&self, context: &Tensor) -> Result<TextKeys> {
        Ok(TextKeys {
            k: self.k.forward(context)?,
            v: self.v.forward(context)?,
            pictures: Vec::new(),
        })
    }

    /// `onto` with what `x` sees in itself.
    fn to_each_other(&self, onto: &Tensor, x: &Tensor) -> Result<Tensor> {
        match self.itself {
            true => self.out.forward_added(onto, &self.v.forward(x)?),
            false => self.forward_added(onto, x, &self.keys(x)?),
        }
    }

    /// `onto` with what `x` sees.
    fn forward_added(&self, onto: &Tensor, x: &Tensor, keys: &TextKeys) -> Result<Tensor> {
        let q = self.q.forward(x)?;
        let mut seen = attention(&q, &keys.k, &keys.v, self.heads, false)?;
        for picture in &keys.pictures {
            let more = attention(&q, &picture.k, &picture.v, self.heads, false)?;
            let more = (more * picture.strength)?;
            seen = match &picture.mask {
                Some(mask) => (seen + more.broadcast_mul(mask)?)?,
                None => (seen + more)?,
            };
        }
        self.out.forward_added(onto, &seen)
    }
}

#[derive(Debug, Clone)]
struct Layer {
    norm1: LayerNorm,
    pixels: Attention,
    norm2: LayerNorm,
    text: Attention,
    norm3: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(vb: VarBuilder, channels: usize, text: usize, heads: usize) -> Result<Self> {
        let norm = |name: &str| layer_norm(vb.pp(name), channels, 1e-5);
        Ok(Self {
            norm1: norm("norm1")?,
            pixels: Attention::new(vb.pp("attn1"), channels, channels, heads)?,
            norm2: norm("norm2")?,
            text: Attention::new(vb.pp("attn2"), channels, text, heads)?,
            norm3: norm("norm3")?,
            up: linear(vb.pp("ff.net.0.proj"), channels, 8 * channels)?,
            down: linear(vb.pp("ff.net.2"), 4 * channels, channels)?,
        })
    }

    fn forward(&self, x: &Tensor, text: &TextKeys) -> Result<Tensor> {
        let h = self.norm1.forward(x)?;
        let x = self.pixels.to_each_other(x, &h)?;
        let h = self.norm2.forward(&x)?;
        let x = self.text.forward_added(&x, &h, text)?;
        // GEGLU: the second half of the product is the gate, through GELU by erf.
        let h = self.up.forward(&self.norm3.forward(&x)?)?;
        let half = h.dim(D::Minus1)? / 2;
        let value = h.narrow(D::Minus1, 0, half)?;
        let gate = h.narrow(D::Minus1, half, half)?;
        let hidden = candle_nn::fused::gelu_erf_mul(&gate, &value)?;
        self.down.forward_added(&x, &hidden)
    }
}

/// A stack of transformer layers between projections, around a residual connection.
#[derive(Debug, Clone)]
pub struct Transformer {
    norm: GroupNorm,
    proj_in: Linear,
    layers: Vec<Layer>,
    proj_out: Linear,
}

impl Transformer {
    /// Reads `norm`, `proj_in`, `transformer_blocks.*` and `proj_out`.
    pub fn new(
        vb: VarBuilder,
        channels: usize,
        depth: usize,
        heads: usize,
        text: usize,
        groups: usize,
    ) -> Result<Self> {
        let layers = vb.pp("transformer_blocks");
        Ok(Self {
            norm: GroupNorm::new(vb.pp("norm"), groups, channels, 1e-6)?,
            proj_in: linear(vb.pp("proj_in"), channels, channels)?,
            layers: (0..depth)
                .map(|i| Layer::new(layers.pp(i), channels, text, heads))
                .collect::<Result<_>>()?,
            proj_out: linear(vb.pp("proj_out"), channels, channels)?,
        })
    }

    /// Lets pixels attend to themselves only.
    pub(super) fn without_attention(&mut self) {
        for layer in &mut self.layers {
            layer.pixels.itself = true;
        }
    }

    /// Number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Keys and values of a text, one pair per layer, in order.
    pub fn text_keys(&self, text: &Tensor, keys: &mut Vec<TextKeys>) -> Result<()> {
        for layer in &self.layers {
            keys.push(layer.text.keys(text)?);
        }
        Ok(())
    }

    /// `x`, `(batch, channels, height, width)`, with what it attends to added. Takes its layers' keys off the front of
    /// `text`.
    pub fn forward(&self, x: &Tensor, text: &mut std::slice::Iter<TextKeys>) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let mut h = self
            .proj_in
            .forward(&pixels_as_rows(&self.norm.forward(x)?)?)?;
        for layer in &self.layers {
            let Some(keys) = text.next() else {
                candle_core::bail!("the text was prepared for another network")
            };
            h = layer.forward(&h, keys)?;
        }
        rows_as_pixels(&self.proj_out.forward(&h)?, height, width)? + x
    }
}
