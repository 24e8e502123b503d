//! What the transformers are made of.

use super::attention::{attend, attend_apart, Names, Projections, Rope, PICTURE, TEXT};
use crate::models::layers::{linear, Linear, TimestepEmbedding};
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::{fused, Activation};

/// A layer norm without weights, scaled and shifted by the conditions.
#[derive(Debug, Clone, Copy)]
pub struct PlainNorm {
    /// Added to the variance.
    pub eps: f64,
}

impl Default for PlainNorm {
    fn default() -> Self {
        Self { eps: 1e-6 }
    }
}

impl PlainNorm {
    /// `norm(x) * (1 + scale) + shift`, with scale and shift `(batch, 1, width)`.
    pub fn modulated(&self, x: &Tensor, scale: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
        fused::modulated_norm(x, scale, shift, self.eps as f32)
    }
}

/// Scales, shifts and gates out of the conditions.
#[derive(Debug, Clone)]
pub struct Modulation {
    layer: Linear,
    parts: usize,
}

impl Modulation {
    /// A linear layer from `inputs` conditions to `parts` times `width`.
    pub fn new(vb: VarBuilder, inputs: usize, width: usize, parts: usize) -> Result<Self> {
        Ok(Self {
            layer: linear(vb, inputs, parts * width)?,
            parts,
        })
    }

    /// The parts, `(batch, 1, width)` each, of conditions that went through SiLU where the model has that.
    pub fn forward(&self, conditions: &Tensor) -> Result<Vec<Tensor>> {
        let all = self.layer.forward(conditions)?.unsqueeze(1)?;
        let parts = all.chunk(self.parts, D::Minus1)?;
        // Kernels read parts where they lie; the CPU is faster with each by itself.
        match all.device().is_rocm() {
            true => Ok(parts),
            false => parts.iter().map(Tensor::contiguous).collect(),
        }
    }
}

/// Two linear layers with GELU by tanh between them.
#[derive(Debug, Clone)]
pub struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Reads `net.0.proj` and `net.2`, four times as wide inside.
    pub fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        Ok(Self {
            up: linear(vb.pp("net.0.proj"), width, 4 * width)?,
            down: linear(vb.pp("net.2"), 4 * width, width)?,
        })
    }

    /// The layers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.hidden(x)?)
    }

    /// `x + gate * layers(h)`.
    pub fn forward_onto(&self, x: &Tensor, h: &Tensor, gate: &Tensor) -> Result<Tensor> {
        self.down.forward_onto(x, &self.hidden(h)?, gate)
    }

    fn hidden(&self, x: &Tensor) -> Result<Tensor> {
        self.up.forward_gelu(x)
    }
}

/// A linear layer whose halves gate each other, and one back.
#[derive(Debug, Clone)]
pub struct GatedForward {
    both: Linear,
    down: Linear,
}

impl GatedForward {
    /// Reads `linear_in` and `linear_out`, `hidden` wide inside.
    pub fn new(vb: VarBuilder, width: usize, hidden: usize) -> Result<Self> {
        Ok(Self {
            both: linear(vb.pp("linear_in"), width, 2 * hidden)?,
            down: linear(vb.pp("linear_out"), hidden, width)?,
        })
    }

    /// `x + gate * layers(h)`.
    pub fn forward_onto(&self, x: &Tensor, h: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let hidden = halves_gated(&self.both.forward(h)?)?;
        self.down.forward_onto(x, &hidden, gate)
    }
}

/// The second half of the last dimension, gated by the first through SiLU.
pub fn halves_gated(x: &Tensor) -> Result<Tensor> {
    fused::gate_mul_packed(Activation::Silu, x)
}

/// What follows attention.
#[derive(Debug, Clone)]
enum Feed {
    Plain(FeedForward),
    Gated(GatedForward),
}

impl Feed {
    fn forward_onto(&self, x: &Tensor, h: &Tensor, gate: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(feed) => feed.forward_onto(x, h, gate),
            Self::Gated(feed) => feed.forward_onto(x, h, gate),
        }
    }
}

/// One stream of tokens in a block of two.
#[derive(Debug, Clone)]
struct Stream {
    /// Absent where scales, shifts and gates come from outside.
    modulation: Option<Modulation>,
    projections: Projections,
    /// Attention of the picture to itself alone (Stable Diffusion 3.5 medium).
    alone: Option<(Projections, Linear)>,
    /// Absent where the stream ends: its tokens are only looked at.
    rest: Option<(Linear, Feed)>,
    norm: PlainNorm,
}

impl Stream {
    fn by(&self, conditions: &Tensor) -> Result<Vec<Tensor>> {
        match &self.modulation {
            Some(modulation) => modulation.forward(conditions),
            None => candle_core::bail!("the block has no modulation of its own"),
        }
    }

    fn after_attention(&self, x: &Tensor, attended: &Tensor, by: &[Tensor]) -> Result<Tensor> {
        match &self.rest {
            Some((out, _)) => out.forward_onto(x, attended, &by[2]),
            None => Ok(x.clone()),
        }
    }

    fn feed(&self, x: &Tensor, by: &[Tensor]) -> Result<Tensor> {
        match &self.rest {
            Some((_, feed)) => {
                let normed = self.norm.modulated(x, &by[4], Some(&by[3]))?;
                feed.forward_onto(x, &normed, &by[5])
            }
            None => Ok(x.clone()),
        }
    }
}

/// Picture and text, each with layers of its own, in one attention.
#[derive(Debug, Clone)]
pub struct JointBlock {
    picture: Stream,
    text: Stream,
    heads: usize,
    /// The picture's tokens do not see one another.
    apart: bool,
}

/// What a [`JointBlock`] has.
#[derive(Debug, Clone, Copy, Default)]
pub struct JointKind {
    /// The text is not needed after it.
    pub ends: bool,
    /// The picture has a second attention, to itself alone.
    pub alone: bool,
    /// Scales, shifts and gates come from outside.
    pub given: bool,
    /// Feed-forward layers are gated, so wide inside.
    pub gated: Option<usize>,
}

impl JointBlock {
    /// Reads a block under diffusers' names.
    pub fn new(vb: VarBuilder, width: usize, heads: usize, kind: JointKind) -> Result<Self> {
        let JointKind {
            ends,
            alone,
            given,
            gated,
        } = kind;
        let modulation = |name: &str, parts| match given {
            true => Ok(None),
            false => Modulation::new(vb.pp(name), width, width, parts).map(Some),
        };
        let feed = |name: &str| match gated {
            Some(hidden) => GatedForward::new(vb.pp(name), width, hidden).map(Feed::Gated),
            None => FeedForward::new(vb.pp(name), width).map(Feed::Plain),
        };
        let attn = vb.pp("attn");
        let size = width / heads;
        let picture = Stream {
            modulation: modulation("norm1.linear", if alone { 9 } else { 6 })?,
            projections: Projections::new(&attn, &PICTURE, width, size, 1e-6)?,
            alone: match alone {
                false => None,
                true => {
                    let attn = vb.pp("attn2");
                    let projections = Projections::new(&attn, &PICTURE, width, size, 1e-6)?;
                    Some((projections, linear(attn.pp("to_out.0"), width, width)?))
                }
            },
            rest: Some((linear(attn.pp("to_out.0"), width, width)?, feed("ff")?)),
            norm: PlainNorm::default(),
        };
        let text = Stream {
            modulation: modulation("norm1_context.linear", if ends { 2 } else { 6 })?,
            projections: Projections::new(&attn, &TEXT, width, size, 1e-6)?,
            alone: None,
            rest: match ends {
                true => None,
                false => Some((
                    linear(attn.pp("to_add_out"), width, width)?,
                    feed("ff_context")?,
                )),
            },
            norm: PlainNorm::default(),
        };
        Ok(Self {
            picture,
            text,
            heads,
            apart: false,
        })
    }

    /// Reads a block of Qwen-Image.
    pub fn of_qwen(vb: VarBuilder, width: usize, heads: usize) -> Result<Self> {
        let attn = vb.pp("attn");
        let size = width / heads;
        let stream = |kind: &str, names: &Names, out: &str| {
            Result::Ok(Stream {
                modulation: Some(Modulation::new(
                    vb.pp(format!("{kind}_mod.1")),
                    width,
                    width,
                    6,
                )?),
                projections: Projections::new(&attn, names, width, size, 1e-6)?,
                alone: None,
                rest: Some((
                    linear(attn.pp(out), width, width)?,
                    Feed::Plain(FeedForward::new(vb.pp(format!("{kind}_mlp")), width)?),
                )),
                norm: PlainNorm::default(),
            })
        };
        Ok(Self {
            picture: stream("img", &PICTURE, "to_out.0")?,
            text: stream("txt", &TEXT, "to_add_out")?,
            heads,
            apart: false,
        })
    }

    /// The same block in which the picture's tokens do not see one another.
    ///
    /// # Errors
    /// If the picture has a second attention, to itself alone.
    pub fn apart(&self) -> Result<Self> {
        if self.picture.alone.is_some() {
            candle_core::bail!("a block with a second attention")
        }
        Ok(Self {
            apart: true,
            ..self.clone()
        })
    }

    /// What the picture's attention is given: normalised, scaled and shifted by the conditions.
    pub fn modulated(&self, picture: &Tensor, conditions: &Tensor) -> Result<Tensor> {
        let by = self.picture.by(conditions)?;
        self.picture.norm.modulated(picture, &by[1], Some(&by[0]))
    }

    /// Picture and text after the block; `conditions` went through SiLU, `rope` has text before picture.
    pub fn forward(
        &self,
        picture: &Tensor,
        text: &Tensor,
        conditions: &Tensor,
        rope: Option<&Rope>,
    ) -> Result<(Tensor, Tensor)> {
        self.forward_with(picture, text, conditions, None, rope)
    }

    /// As [`Self::forward`]; the picture's tokens from a certain one on may have other conditions.
    pub fn forward_with(
        &self,
        picture: &Tensor,
        text: &Tensor,
        conditions: &Tensor,
        others: Option<(&Tensor, usize)>,
        rope: Option<&Rope>,
    ) -> Result<(Tensor, Tensor)> {
        let mut by_picture = self.picture.by(conditions)?;
        if let Some((others, first)) = others {
            let rest = picture.dim(1)? - first;
            for (by, other) in by_picture.iter_mut().zip(self.picture.by(others)?) {
                let (batch, _, width) = by.dims3()?;
                let by_token = [
                    by.broadcast_as((batch, first, width))?,
                    other.broadcast_as((batch, rest, width))?,
                ];
                *by = Tensor::cat(&by_token, 1)?;
            }
        }
        let by_text = self.text.by(conditions)?;
        self.forward_by(picture, text, &by_picture, &by_text, rope)
    }

    /// As [`Self::forward`], with scales, shifts and gates, `(batch or 1, 1 or tokens, width)` each, in the order of the
    /// layers that otherwise give them.
    pub fn forward_by(
        &self,
        picture: &Tensor,
        text: &Tensor,
        by_picture: &[Tensor],
        by_text: &[Tensor],
        rope: Option<&Rope>,
    ) -> Result<(Tensor, Tensor)> {
        let normed_picture =
            self.picture
                .norm
                .modulated(picture, &by_picture[1], Some(&by_picture[0]))?;
        let normed_text = match self.text.rest {
            Some(_) => self
                .text
                .norm
                .modulated(text, &by_text[1], Some(&by_text[0]))?,
            // The last norm has scale before shift.
            None => self
                .text
                .norm
                .modulated(text, &by_text[0], Some(&by_text[1]))?,
        };
        let of_picture = self.picture.projections.forward(&normed_picture)?;
        let of_text = self.text.projections.forward(&normed_text)?;
        let joint = |i: usize| Tensor::cat(&[&of_text[i], &of_picture[i]], 1);
        let attended = match self.apart {
            false => attend(&[joint(0)?, joint(1)?, joint(2)?], self.heads, rope)?,
            true => attend_apart(&of_text, &of_picture, self.heads)?,
        };
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);

        let after_picture = attended.narrow(1, tokens, patches)?.contiguous()?;
        let mut after = self
            .picture
            .after_attention(picture, &after_picture, by_picture)?;
        if let Some((projections, out)) = &self.picture.alone {
            let normed =
                self.picture
                    .norm
                    .modulated(picture, &by_picture[7], Some(&by_picture[6]))?;
            let attended = attend(&projections.forward(&normed)?, self.heads, None)?;
            after = out.forward_onto(&after, &attended, &by_picture[8])?;
        }
        let picture = self.picture.feed(&after, by_picture)?;
        let after_text = attended.narrow(1, 0, tokens)?.contiguous()?;
        let text = self.text.after_attention(text, &after_text, by_text)?;
        let text = self.text.feed(&text, by_text)?;
        Ok((picture, text))
    }
}

/// A picture alone, in a block as its stream is in a [`JointBlock`].
#[derive(Debug, Clone)]
pub struct PictureBlock {
    stream: Stream,
    heads: usize,
}

impl PictureBlock {
    /// Reads a block under diffusers' names.
    pub fn new(vb: VarBuilder, width: usize, heads: usize) -> Result<Self> {
        let attn = vb.pp("attn");
        let feed = Feed::Plain(FeedForward::new(vb.pp("ff"), width)?);
        Ok(Self {
            stream: Stream {
                modulation: Some(Modulation::new(vb.pp("norm1.linear"), width, width, 6)?),
                projections: Projections::new(&attn, &PICTURE, width, width / heads, 1e-6)?,
                alone: None,
                rest: Some((linear(attn.pp("to_out.0"), width, width)?, feed)),
                norm: PlainNorm::default(),
            },
            heads,
        })
    }

    /// The picture after the block; `conditions` went through SiLU.
    pub fn forward(&self, picture: &Tensor, conditions: &Tensor) -> Result<Tensor> {
        let stream = &self.stream;
        let by = stream.by(conditions)?;
        let normed = stream.norm.modulated(picture, &by[1], Some(&by[0]))?;
        let attended = attend(&stream.projections.forward(&normed)?, self.heads, None)?;
        stream.feed(&stream.after_attention(picture, &attended, &by)?, &by)
    }
}

/// The embedding of time, and of what else the conditions are summed from, `(batch, width)`.
#[derive(Debug, Clone)]
pub struct Conditions {
    time: TimestepEmbedding,
    guidance: Option<TimestepEmbedding>,
    pooled: TimestepEmbedding,
    dtype: DType,
}

/// Width of the sinusoidal embedding of time.
pub const TIME: usize = 256;

impl Conditions {
    /// Reads `timestep_embedder`, `guidance_embedder` if `guided`, and `text_embedder` from `pooled` inputs.
    pub fn new(vb: VarBuilder, width: usize, pooled: usize, guided: bool) -> Result<Self> {
        let embed = |name: &str, inputs| TimestepEmbedding::new(vb.pp(name), inputs, width, None);
        Ok(Self {
            time: embed("timestep_embedder", TIME)?,
            guidance: match guided {
                true => Some(embed("guidance_embedder", TIME)?),
                false => None,
            },
            pooled: embed("text_embedder", pooled)?,
            dtype: vb.dtype(),
        })
    }

    /// The sum after SiLU, for time `t` in 0 to 1000 and a pooled text `(batch, inputs)`.
    pub fn forward<'a>(
        &self,
        t: impl Into<Time<'a>>,
        guidance: Option<f64>,
        pooled: &Tensor,
    ) -> Result<Tensor> {
        let embed = |layer: &TimestepEmbedding, value: Time| {
            let row = value.embedding(TIME, true, 0.0, pooled.device())?;
            layer.forward(&row.to_dtype(self.dtype)?, None)
        };
        let t = t.into();
        let mut sum = embed(&self.time, t)?;
        if let (Some(layer), Some(guidance)) = (&self.guidance, guidance) {
            sum = (sum + embed(layer, t.constant(1000.0 * guidance))?)?;
        }
        self.pooled
            .forward(pooled, None)?
            .broadcast_add(&sum)?
            .silu()
    }
}
