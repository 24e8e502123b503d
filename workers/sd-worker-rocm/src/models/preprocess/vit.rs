//! Vision transformers whose inner layers are looked at: those of DPT and DINOv2.

use crate::editing::resample::Resample;
use crate::models::attention::attention;
use crate::models::config::within;
use crate::models::layers::{conv, layer_norm, linear, pixels_as_rows, Linear};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};

/// Whose names the tensors have, and what is special.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As transformers' ViT.
    Dpt,
    /// DINOv2: what layers add is scaled.
    Dino,
}

/// Sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct VitShape {
    /// Kind.
    pub kind: Kind,
    /// Width.
    pub width: usize,
    /// Width of the feed-forward layers.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
    /// Heads.
    pub heads: usize,
    /// Pixels of a patch, each way.
    pub patch: usize,
    /// Patches of a training picture, each way.
    pub grid: usize,
    /// Of the layer norms.
    pub eps: f64,
}

impl VitShape {
    /// The same, if the sizes make sense.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub fn checked(self) -> std::result::Result<Self, String> {
        self.check().map(|()| self)
    }

    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("hidden_size", self.width),
                ("intermediate_size", self.inner),
                ("num_hidden_layers", self.layers),
                ("num_attention_heads", self.heads),
                ("patch_size", self.patch),
                ("image_size / patch_size", self.grid),
            ],
            1 << 14,
        )?;
        match self.width.is_multiple_of(self.heads) {
            true => Ok(()),
            false => Err(format!(
                "num_attention_heads {} do not divide hidden_size {}",
                self.heads, self.width
            )),
        }
    }
}

/// The transformer.
#[derive(Debug, Clone)]
pub struct Vit {
    /// Patches of pixels; `None` where a network before makes them.
    patches: Option<Conv2d>,
    class: Tensor,
    /// `(1, 1 + grid * grid, width)`.
    positions: Tensor,
    layers: Vec<Layer>,
    norm: LayerNorm,
    shape: VitShape,
}

impl Vit {
    /// Reads `embeddings`, `encoder.layer` and `layernorm`; `sees_pixels` if it cuts pictures into patches itself.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, shape: &VitShape, sees_pixels: bool) -> Result<Self> {
        shape.check().map_err(candle_core::Error::msg)?;
        let (width, patch) = (shape.width, shape.patch);
        let embeddings = vb.pp("embeddings");
        let patches = embeddings.pp("patch_embeddings.projection");
        let layers = vb.pp("encoder.layer");
        Ok(Self {
            patches: match sees_pixels {
                true => Some(conv(patches, 3, width, patch, patch, 0)?),
                false => None,
            },
            class: embeddings.get((1, 1, width), "cls_token")?,
            positions: embeddings.get(
                (1, 1 + shape.grid * shape.grid, width),
                "position_embeddings",
            )?,
            layers: (0..shape.layers)
                .map(|i| Layer::new(layers.pp(i), shape))
                .collect::<Result<_>>()?,
            norm: layer_norm(vb.pp("layernorm"), width, shape.eps)?,
            shape: shape.clone(),
        })
    }

    /// What is behind each of the layers of `wanted` (counted from 0), `(1, 1 + patches, width)`, in their order; of a
    /// picture `(1, 3, height, width)`, or of its patches where a network before has made them.
    ///
    /// # Errors
    /// If the picture is smaller than a patch, or the device fails.
    pub fn forward(&self, x: &Tensor, wanted: &[usize]) -> Result<Vec<Tensor>> {
        let x = match &self.patches {
            Some(patches) => patches.forward(x)?,
            None => x.clone(),
        };
        let (batch, width, high, wide) = x.dims4()?;
        let class = self.class.broadcast_as((batch, 1, width))?;
        let x = Tensor::cat(&[&class.contiguous()?, &pixels_as_rows(&x)?], 1)?;
        let mut x = x.broadcast_add(&self.positions(high, wide)?)?;
        let mut seen = Vec::with_capacity(wanted.len());
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x)?;
            if wanted.contains(&i) {
                seen.push(x.clone());
            }
        }
        Ok(seen)
    }

    /// The last norm.
    ///
    /// # Errors
    /// If the device fails.
    pub fn normed(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(x)
    }

    /// Pixels of a patch, each way.
    pub fn patch(&self) -> usize {
        self.shape.patch
    }

    /// Positions of patches in a grid that may be another than the training pictures'.
    fn positions(&self, high: usize, wide: usize) -> Result<Tensor> {
        let VitShape { grid, width, .. } = self.shape;
        if (high, wide) == (grid, grid) {
            return Ok(self.positions.clone());
        }
        let (class, rest) = (
            self.positions.narrow(1, 0, 1)?,
            self.positions.narrow(1, 1, grid * grid)?,
        );
        let rest = rest
            .reshape((1, grid, grid, width))?
            .permute((0, 3, 1, 2))?;
        let resample = match self.shape.kind {
            Kind::Dpt => Resample::Bilinear { antialias: false },
            Kind::Dino => Resample::Bicubic { antialias: false },
        };
        let rest = resample.apply(&rest, high, wide)?;
        Tensor::cat(&[&class, &pixels_as_rows(&rest)?], 1)
    }
}

#[derive(Debug, Clone)]
struct Layer {
    norm1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    /// By what attention and feed-forward layers are multiplied.
    scales: Option<(Tensor, Tensor)>,
    heads: usize,
}

impl Layer {
    fn new(vb: VarBuilder, shape: &VitShape) -> Result<Self> {
        let VitShape {
            kind,
            width,
            inner,
            eps,
            ..
        } = *shape;
        // Norms, and the two layers of the feed-forward part.
        let [norm1, norm2, up, down] = match kind {
            Kind::Dpt => [
                "layernorm_before",
                "layernorm_after",
                "intermediate.dense",
                "output.dense",
            ],
            Kind::Dino => ["norm1", "norm2", "mlp.fc1", "mlp.fc2"],
        };
        let attn = vb.pp("attention");
        let project = |name: &str| linear(attn.pp(name), width, width);
        let scale = |name: &str| vb.get(width, name);
        Ok(Self {
            norm1: layer_norm(vb.pp(norm1), width, eps)?,
            q: project("attention.query")?,
            k: project("attention.key")?,
            v: project("attention.value")?,
            out: project("output.dense")?,
            norm2: layer_norm(vb.pp(norm2), width, eps)?,
            up: linear(vb.pp(up), width, inner)?,
            down: linear(vb.pp(down), inner, width)?,
            scales: match kind {
                Kind::Dpt => None,
                Kind::Dino => Some((
                    scale("layer_scale1.lambda1")?,
                    scale("layer_scale2.lambda1")?,
                )),
            },
            heads: shape.heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let h = self.norm1.forward(x)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        let mut h = self
            .out
            .forward(&attention(&q, &k, &v, self.heads, false)?)?;
        if let Some((scale, _)) = &self.scales {
            h = h.broadcast_mul(scale)?;
        }
        let x = (x + h)?;
        let h = self.up.forward(&self.norm2.forward(&x)?)?.gelu_erf()?;
        let mut h = self.down.forward(&h)?;
        if let Some((_, scale)) = &self.scales {
            h = h.broadcast_mul(scale)?;
        }
        x + h
    }
}
