//! `config.json` of the transformer of Wan.

use crate::models::config::{within, Others};
use serde::Deserialize;

/// Places along an axis that the network was trained with.
const LONGEST: usize = 1024;

/// `config.json` of a `WanTransformer3DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct WanConfig {
    /// Frames, rows and columns of latents in a patch.
    pub patch_size: Vec<usize>,
    /// Heads.
    pub num_attention_heads: usize,
    /// Size of a head.
    pub attention_head_dim: usize,
    /// Channels of the input: latents, and for models that start from a picture a mask and the picture's latents.
    pub in_channels: usize,
    /// Channels of a latent.
    pub out_channels: usize,
    /// Width of the text.
    pub text_dim: usize,
    /// Width of the sinusoidal embedding of time.
    pub freq_dim: usize,
    /// Width of the feed-forward layers.
    pub ffn_dim: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Whether there is a norm before the text is looked at.
    pub cross_attn_norm: bool,
    /// Of the norms.
    pub eps: f64,
    /// Width of CLIP's view of the picture to start from, for models that look at it.
    pub image_dim: Option<usize>,
    /// Width in which blocks take that view.
    pub added_kv_proj_dim: Option<usize>,
    /// Rows of that view in all, where they have places of their own: models that know the last picture, too.
    pub pos_embed_seq_len: Option<usize>,
    pub(crate) qk_norm: Option<String>,
    pub(crate) rope_max_seq_len: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for WanConfig {
    fn default() -> Self {
        Self {
            patch_size: vec![1, 2, 2],
            num_attention_heads: 40,
            attention_head_dim: 128,
            in_channels: 16,
            out_channels: 16,
            text_dim: 4096,
            freq_dim: 256,
            ffn_dim: 13824,
            num_layers: 40,
            cross_attn_norm: true,
            eps: 1e-6,
            image_dim: None,
            added_kv_proj_dim: None,
            pos_embed_seq_len: None,
            qk_norm: Some("rms_norm_across_heads".to_string()),
            rope_max_seq_len: LONGEST,
            others: Others::default(),
        }
    }
}

impl WanConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse(&[])?;
        within(
            &[
                ("num_attention_heads", self.num_attention_heads),
                ("attention_head_dim", self.attention_head_dim),
                ("in_channels", self.in_channels),
                ("out_channels", self.out_channels),
                ("text_dim", self.text_dim),
                ("freq_dim", self.freq_dim),
                ("ffn_dim", self.ffn_dim),
                ("num_layers", self.num_layers),
                ("image_dim", self.image_dim.unwrap_or(1)),
                ("pos_embed_seq_len", self.pos_embed_seq_len.unwrap_or(1)),
                ("rope_max_seq_len", self.rope_max_seq_len),
            ],
            1 << 16,
        )?;
        if self.patch_size != [1, 2, 2] {
            return Err(format!(
                "patch_size {:?} is not implemented; there is [1, 2, 2]",
                self.patch_size
            ));
        }
        if !self.attention_head_dim.is_multiple_of(2) || self.attention_head_dim < 6 {
            return Err(format!(
                "heads of {} have no room for the places of three axes",
                self.attention_head_dim
            ));
        }
        if self.qk_norm.as_deref() != Some("rms_norm_across_heads") {
            return Err(format!("qk_norm {:?} is not implemented", self.qk_norm));
        }
        if self.image_dim.is_some() != self.added_kv_proj_dim.is_some()
            || self.added_kv_proj_dim.is_some_and(|w| w != self.width())
        {
            return Err(
                "added_kv_proj_dim must be the network's width if there is image_dim, else nothing"
                    .to_string(),
            );
        }
        Ok(())
    }

    /// Channels inside.
    pub fn width(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
}
