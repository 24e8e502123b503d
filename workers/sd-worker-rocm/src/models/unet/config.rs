//! `config.json` of a UNet, and of a ControlNet, which is its first half.

use crate::models::config::{within, PerBlock};
use serde::Deserialize;

/// The settings as they are in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct UNetConfig {
    /// Channels in: 4, or 9 with mask and masked picture.
    pub in_channels: usize,
    /// Channels out.
    pub out_channels: usize,
    /// Channels of the blocks.
    pub block_out_channels: Vec<usize>,
    /// Kinds of the blocks going down.
    pub down_block_types: Vec<String>,
    /// Kinds of the blocks going up.
    pub up_block_types: Vec<String>,
    /// Kind of the block between.
    pub mid_block_type: Option<String>,
    /// Residual layers a block.
    pub layers_per_block: PerBlock<usize>,
    /// Transformer layers in an attention.
    pub transformer_layers_per_block: PerBlock<usize>,
    /// In fact the number of heads: a misnomer that the format keeps.
    pub attention_head_dim: PerBlock<usize>,
    /// Number of heads, if given under its own name.
    pub num_attention_heads: Option<PerBlock<usize>>,
    /// Width of the text encoding.
    pub cross_attention_dim: PerBlock<usize>,
    /// Groups of the norms.
    pub norm_num_groups: usize,
    /// Of the norms.
    pub norm_eps: f64,
    /// Linear layers around the transformers instead of 1x1 convolutions; the same arithmetic.
    pub use_linear_projection: bool,
    /// Cosines first in the embedding of time.
    pub flip_sin_to_cos: bool,
    /// Shift of its frequencies.
    pub freq_shift: f64,
    /// `text_time` for SDXL.
    pub addition_embed_type: Option<String>,
    /// Width of each embedded size for `text_time`.
    pub addition_time_embed_dim: Option<usize>,
    /// Width of all conditions for `text_time`.
    pub projection_class_embeddings_input_dim: Option<usize>,
    /// Width of the guidance embedding of latent consistency models.
    pub time_cond_proj_dim: Option<usize>,
    /// Latent height and width that the model was trained at.
    pub sample_size: Option<PerBlock<usize>>,
    /// Channels in front of a ControlNet.
    pub conditioning_embedding_out_channels: Vec<usize>,
    /// Channels of a ControlNet's picture.
    pub conditioning_channels: usize,

    // Below: settings with one possible value here.
    pub(crate) act_fn: String,
    pub(crate) downsample_padding: usize,
    pub(crate) mid_block_scale_factor: f64,
    pub(crate) center_input_sample: bool,
    pub(crate) conv_in_kernel: usize,
    pub(crate) conv_out_kernel: usize,
    pub(crate) class_embed_type: Option<String>,
    pub(crate) num_class_embeds: Option<usize>,
    pub(crate) encoder_hid_dim_type: Option<String>,
    pub(crate) dual_cross_attention: bool,
    pub(crate) time_embedding_type: String,
    pub(crate) resnet_time_scale_shift: String,
    pub(crate) resnet_out_scale_factor: f64,
    pub(crate) resnet_skip_time_act: bool,
    pub(crate) cross_attention_norm: Option<String>,
    pub(crate) only_cross_attention: PerBlock<bool>,
    pub(crate) reverse_transformer_layers_per_block: Option<serde_json::Value>,
    pub(crate) timestep_post_act: Option<String>,
    pub(crate) time_embedding_act_fn: Option<String>,
}

impl Default for UNetConfig {
    fn default() -> Self {
        let names = |names: [&str; 4]| names.map(String::from).to_vec();
        Self {
            in_channels: 4,
            out_channels: 4,
            block_out_channels: vec![320, 640, 1280, 1280],
            down_block_types: names([
                "CrossAttnDownBlock2D",
                "CrossAttnDownBlock2D",
                "CrossAttnDownBlock2D",
                "DownBlock2D",
            ]),
            up_block_types: names([
                "UpBlock2D",
                "CrossAttnUpBlock2D",
                "CrossAttnUpBlock2D",
                "CrossAttnUpBlock2D",
            ]),
            mid_block_type: Some("UNetMidBlock2DCrossAttn".to_string()),
            layers_per_block: PerBlock::One(2),
            transformer_layers_per_block: PerBlock::One(1),
            attention_head_dim: PerBlock::One(8),
            num_attention_heads: None,
            cross_attention_dim: PerBlock::One(1280),
            norm_num_groups: 32,
            norm_eps: 1e-5,
            use_linear_projection: false,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            projection_class_embeddings_input_dim: None,
            time_cond_proj_dim: None,
            sample_size: None,
            conditioning_embedding_out_channels: vec![16, 32, 96, 256],
            conditioning_channels: 3,
            act_fn: "silu".to_string(),
            downsample_padding: 1,
            mid_block_scale_factor: 1.0,
            center_input_sample: false,
            conv_in_kernel: 3,
            conv_out_kernel: 3,
            class_embed_type: None,
            num_class_embeds: None,
            encoder_hid_dim_type: None,
            dual_cross_attention: false,
            time_embedding_type: "positional".to_string(),
            resnet_time_scale_shift: "default".to_string(),
            resnet_out_scale_factor: 1.0,
            resnet_skip_time_act: false,
            cross_attention_norm: None,
            only_cross_attention: PerBlock::One(false),
            reverse_transformer_layers_per_block: None,
            timestep_post_act: None,
            time_embedding_act_fn: None,
        }
    }
}

/// What a block consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlan {
    /// Channels.
    pub channels: usize,
    /// Residual layers going down; one more going up.
    pub layers: usize,
    /// Transformer layers of each attention; 0 for a block without.
    pub transformers: usize,
    /// Heads.
    pub heads: usize,
    /// Width of the text encoding.
    pub text: usize,
}

/// The checked structure: blocks from the outermost inwards.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Going down.
    pub down: Vec<BlockPlan>,
    /// The block between.
    pub mid: BlockPlan,
    /// Going up, outermost first.
    pub up: Vec<BlockPlan>,
}

impl UNetConfig {
    /// Width of the time embedding.
    pub fn time_width(&self) -> usize {
        4 * self.block_out_channels[0]
    }

    /// Checks the settings and gives the structure that they describe.
    ///
    /// # Errors
    /// Names the first setting that makes no sense or is not implemented.
    pub fn plan(&self) -> Result<Plan, String> {
        self.check_fixed()?;
        let blocks = self.block_out_channels.len();
        within(
            &[
                ("in_channels", self.in_channels),
                ("out_channels", self.out_channels),
                ("norm_num_groups", self.norm_num_groups),
                ("conditioning_channels", self.conditioning_channels),
            ],
            1 << 16,
        )?;
        within(&[("number of blocks", blocks)], 16)?;
        if self.down_block_types.len() != blocks {
            return Err(format!(
                "down_block_types has {} entries for {blocks} blocks",
                self.down_block_types.len()
            ));
        }
        let layers = self.layers_per_block.values(blocks, "layers_per_block")?;
        let depth = self
            .transformer_layers_per_block
            .values(blocks, "transformer_layers_per_block")?;
        let heads = self
            .num_attention_heads
            .as_ref()
            .unwrap_or(&self.attention_head_dim)
            .values(blocks, "attention_head_dim")?;
        let text = self
            .cross_attention_dim
            .values(blocks, "cross_attention_dim")?;
        let mut plan = Plan {
            down: Vec::new(),
            mid: BlockPlan {
                channels: 0,
                layers: 1,
                transformers: 0,
                heads: 1,
                text: 1,
            },
            up: Vec::new(),
        };
        for i in 0..blocks {
            let block = BlockPlan {
                channels: self.block_out_channels[i],
                layers: layers[i],
                transformers: depth[i],
                heads: heads[i],
                text: text[i],
            };
            within(
                &[
                    ("block_out_channels", block.channels),
                    ("layers_per_block", block.layers),
                    ("transformer_layers_per_block", block.transformers),
                    ("attention_head_dim", block.heads),
                    ("cross_attention_dim", block.text),
                ],
                1 << 16,
            )?;
            if !block.channels.is_multiple_of(self.norm_num_groups) {
                return Err(format!(
                    "{} norm_num_groups do not divide {} channels",
                    self.norm_num_groups, block.channels
                ));
            }
            let attends = |kind: &str, with: &str, without: &str| match kind {
                kind if kind == with => Ok(true),
                kind if kind == without => Ok(false),
                other => Err(format!("blocks of kind {other} are not implemented")),
            };
            let down = attends(
                &self.down_block_types[i],
                "CrossAttnDownBlock2D",
                "DownBlock2D",
            )?;
            plan.down.push(with_attention(block, down)?);
            if let Some(kind) = self.up_block_types.iter().rev().nth(i) {
                let up = attends(kind, "CrossAttnUpBlock2D", "UpBlock2D")?;
                plan.up.push(with_attention(block, up)?);
            }
            plan.mid = with_attention(block, true)?;
        }
        match self.mid_block_type.as_deref() {
            Some("UNetMidBlock2DCrossAttn") => {}
            other => return Err(format!("a mid block of kind {other:?} is not implemented")),
        }
        Ok(plan)
    }

    fn check_fixed(&self) -> Result<(), String> {
        let fixed = [
            ("act_fn", self.act_fn == "silu" || self.act_fn == "swish"),
            ("downsample_padding", self.downsample_padding == 1),
            ("mid_block_scale_factor", self.mid_block_scale_factor == 1.0),
            ("center_input_sample", !self.center_input_sample),
            ("conv_in_kernel", self.conv_in_kernel == 3),
            ("conv_out_kernel", self.conv_out_kernel == 3),
            ("class_embed_type", self.class_embed_type.is_none()),
            ("num_class_embeds", self.num_class_embeds.is_none()),
            ("encoder_hid_dim_type", self.encoder_hid_dim_type.is_none()),
            ("dual_cross_attention", !self.dual_cross_attention),
            (
                "time_embedding_type",
                self.time_embedding_type == "positional",
            ),
            (
                "resnet_time_scale_shift",
                self.resnet_time_scale_shift == "default",
            ),
            (
                "resnet_out_scale_factor",
                self.resnet_out_scale_factor == 1.0,
            ),
            ("resnet_skip_time_act", !self.resnet_skip_time_act),
            ("cross_attention_norm", self.cross_attention_norm.is_none()),
            (
                "only_cross_attention",
                match &self.only_cross_attention {
                    PerBlock::One(only) => !only,
                    PerBlock::Each(only) => !only.contains(&true),
                },
            ),
            (
                "reverse_transformer_layers_per_block",
                self.reverse_transformer_layers_per_block.is_none(),
            ),
            ("timestep_post_act", self.timestep_post_act.is_none()),
            (
                "time_embedding_act_fn",
                self.time_embedding_act_fn.is_none(),
            ),
            (
                "addition_embed_type",
                matches!(
                    self.addition_embed_type.as_deref(),
                    None | Some("text_time")
                ),
            ),
        ];
        match fixed.iter().find(|(_, implemented)| !implemented) {
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "the value of {name} in config.json is not implemented"
            )),
        }
    }
}

fn with_attention(block: BlockPlan, attends: bool) -> Result<BlockPlan, String> {
    if !attends {
        return Ok(BlockPlan {
            transformers: 0,
            ..block
        });
    }
    if !block.channels.is_multiple_of(block.heads) {
        return Err(format!(
            "{} heads do not divide {} channels",
            block.heads, block.channels
        ));
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> UNetConfig {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn sdxl() {
        let plan = parse(
            r#"{"block_out_channels": [320, 640, 1280], "attention_head_dim": [5, 10, 20], "cross_attention_dim": 2048,
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
                "transformer_layers_per_block": [1, 2, 10], "addition_embed_type": "text_time"}"#,
        )
        .plan()
        .unwrap();
        let transformers =
            |blocks: &[BlockPlan]| blocks.iter().map(|b| b.transformers).collect::<Vec<_>>();
        assert_eq!(transformers(&plan.down), [0, 2, 10]);
        assert_eq!(transformers(&plan.up), [0, 2, 10]);
        assert_eq!((plan.mid.transformers, plan.mid.heads), (10, 20));
    }

    #[test]
    fn what_is_not_implemented_is_named() {
        for (json, name) in [
            (r#"{"act_fn": "relu"}"#, "act_fn"),
            (r#"{"class_embed_type": "timestep"}"#, "class_embed_type"),
            (r#"{"norm_num_groups": 0}"#, "norm_num_groups"),
            (r#"{"norm_num_groups": 7}"#, "norm_num_groups"),
            (r#"{"attention_head_dim": 7}"#, "heads"),
            (r#"{"attention_head_dim": [8, 8]}"#, "attention_head_dim"),
            (r#"{"block_out_channels": []}"#, "blocks"),
            (
                r#"{"down_block_types": ["K", "DownBlock2D", "DownBlock2D", "DownBlock2D"]}"#,
                "K",
            ),
            (r#"{"addition_embed_type": "image"}"#, "addition_embed_type"),
        ] {
            let error = parse(json).plan().unwrap_err();
            assert!(error.contains(name), "{json}: {error}");
        }
    }
}
