//! `config.json` of a UNet, and of a ControlNet, which is its first half.

use crate::models::config::{within, Others, PerBlock};
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
    /// Transformer layers in an attention, or in each of a block's.
    pub transformer_layers_per_block: PerBlock<PerBlock<usize>>,
    /// The same going up, in the order in which the blocks come; without it they are those going down.
    pub reverse_transformer_layers_per_block: Option<Vec<PerBlock<usize>>>,
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
    pub(crate) attention_type: Option<String>,
    pub(crate) class_embeddings_concat: bool,
    pub(crate) mid_block_only_cross_attention: Option<bool>,
    pub(crate) encoder_hid_dim: Option<usize>,
    pub(crate) time_embedding_dim: Option<usize>,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
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
            transformer_layers_per_block: PerBlock::One(PerBlock::One(1)),
            reverse_transformer_layers_per_block: None,
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
            attention_type: None,
            class_embeddings_concat: false,
            mid_block_only_cross_attention: None,
            encoder_hid_dim: None,
            time_embedding_dim: None,
            others: Others::default(),
            timestep_post_act: None,
            time_embedding_act_fn: None,
        }
    }
}

/// What a block consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPlan {
    /// Channels.
    pub channels: usize,
    /// Residual layers going down; one more going up.
    pub layers: usize,
    /// Transformer layers of each attention, one behind each residual layer; none for a block without.
    pub transformers: Vec<usize>,
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
    /// The block between, if there is one.
    pub mid: Option<BlockPlan>,
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
        let depth_up = match &self.reverse_transformer_layers_per_block {
            None => depth.clone(),
            Some(depths) if depths.len() == blocks => depths.iter().rev().cloned().collect(),
            Some(depths) => {
                return Err(format!(
                    "reverse_transformer_layers_per_block has {} values for {blocks} blocks",
                    depths.len()
                ))
            }
        };
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
            mid: None,
            up: Vec::new(),
        };
        for i in 0..blocks {
            let block = BlockPlan {
                channels: self.block_out_channels[i],
                layers: layers[i],
                transformers: Vec::new(),
                heads: heads[i],
                text: text[i],
            };
            within(
                &[
                    ("block_out_channels", block.channels),
                    ("layers_per_block", block.layers),
                    ("attention_head_dim", block.heads),
                    ("cross_attention_dim", block.text),
                ],
                1 << 16,
            )?;
            within(&[("layers_per_block", block.layers)], 64)?;
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
            let layers = block.layers;
            plan.down
                .push(with_attention(&block, down.then_some((&depth[i], layers)))?);
            if let Some(kind) = self.up_block_types.iter().rev().nth(i) {
                let up = attends(kind, "CrossAttnUpBlock2D", "UpBlock2D")?;
                let up = up.then_some((&depth_up[i], layers + 1));
                plan.up.push(with_attention(&block, up)?);
            }
            plan.mid = match self.mid_block_type.as_deref() {
                Some("UNetMidBlock2DCrossAttn") => {
                    Some(with_attention(&block, Some((&depth[i], 1)))?)
                }
                Some("UNetMidBlock2D") => Some(block),
                None => None,
                Some(other) => {
                    return Err(format!("a mid block of kind {other} is not implemented"))
                }
            };
        }
        Ok(plan)
    }

    /// Checks the settings that have one possible value here, and that there are no others.
    fn check_fixed(&self) -> Result<(), String> {
        let same = |setting: &Option<String>| setting.is_none();
        let fixed = [
            ("act_fn", self.act_fn == "silu" || self.act_fn == "swish"),
            ("downsample_padding", self.downsample_padding == 1),
            ("mid_block_scale_factor", self.mid_block_scale_factor == 1.0),
            ("center_input_sample", !self.center_input_sample),
            ("conv_in_kernel", self.conv_in_kernel == 3),
            ("conv_out_kernel", self.conv_out_kernel == 3),
            ("class_embed_type", same(&self.class_embed_type)),
            ("class_embeddings_concat", !self.class_embeddings_concat),
            ("num_class_embeds", self.num_class_embeds.is_none()),
            ("encoder_hid_dim_type", same(&self.encoder_hid_dim_type)),
            ("encoder_hid_dim", self.encoder_hid_dim.is_none()),
            ("dual_cross_attention", !self.dual_cross_attention),
            (
                "time_embedding_type",
                self.time_embedding_type == "positional",
            ),
            (
                "time_embedding_dim",
                self.time_embedding_dim
                    .is_none_or(|dim| dim == self.time_width()),
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
            ("cross_attention_norm", same(&self.cross_attention_norm)),
            (
                "only_cross_attention",
                match &self.only_cross_attention {
                    PerBlock::One(only) => !only,
                    PerBlock::Each(only) => !only.contains(&true),
                },
            ),
            (
                "mid_block_only_cross_attention",
                self.mid_block_only_cross_attention != Some(true),
            ),
            (
                "attention_type",
                matches!(self.attention_type.as_deref(), None | Some("default")),
            ),
            ("timestep_post_act", same(&self.timestep_post_act)),
            ("time_embedding_act_fn", same(&self.time_embedding_act_fn)),
            (
                "addition_embed_type",
                matches!(
                    self.addition_embed_type.as_deref(),
                    None | Some("text_time")
                ),
            ),
        ];
        if let Some((name, _)) = fixed.iter().find(|(_, implemented)| !implemented) {
            return Err(format!(
                "the value of {name} in config.json is not implemented"
            ));
        }
        self.others.refuse(&HARMLESS)
    }
}

/// Settings that do not change what a network computes, or that others are read by.
const HARMLESS: [&str; 5] = [
    // Of training.
    "dropout",
    // Attention's scores are f32 always.
    "upcast_attention",
    // Of an addition_embed_type that is not implemented.
    "addition_embed_type_num_heads",
    // Read with the weights.
    "quantization_config",
    "torch_dtype",
];

/// The block with attentions of these depths, so many.
fn with_attention(
    block: &BlockPlan,
    attentions: Option<(&PerBlock<usize>, usize)>,
) -> Result<BlockPlan, String> {
    let Some((depth, attentions)) = attentions else {
        return Ok(block.clone());
    };
    let transformers = depth.values(attentions, "transformer_layers_per_block")?;
    for depth in &transformers {
        within(&[("transformer_layers_per_block", *depth)], 1 << 10)?;
    }
    if !block.channels.is_multiple_of(block.heads) {
        return Err(format!(
            "{} heads do not divide {} channels",
            block.heads, block.channels
        ));
    }
    Ok(BlockPlan {
        transformers,
        ..block.clone()
    })
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
        let transformers = |blocks: &[BlockPlan]| {
            blocks
                .iter()
                .map(|b| b.transformers.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(transformers(&plan.down), [vec![], vec![2; 2], vec![10; 2]]);
        assert_eq!(transformers(&plan.up), [vec![], vec![2; 3], vec![10; 3]]);
        let mid = plan.mid.unwrap();
        assert_eq!((mid.transformers, mid.heads), (vec![10], 20));
    }

    /// Distilled kinds: depths of each attention, no attention or nothing between.
    #[test]
    fn ssd_and_small_sd() {
        let plan = parse(
            r#"{"block_out_channels": [320, 640, 1280], "attention_head_dim": [5, 10, 20], "cross_attention_dim": 2048,
                "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "mid_block_type": "UNetMidBlock2D",
                "transformer_layers_per_block": [0, [1, 2], 4], "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1]}"#,
        )
        .plan()
        .unwrap();
        assert_eq!(plan.down[1].transformers, [1, 2]);
        assert_eq!(plan.up[1].transformers, [2, 1, 1]);
        assert_eq!(plan.up[2].transformers, [4, 4, 10]);
        assert_eq!(plan.mid.unwrap().transformers, [0usize; 0]);
        assert_eq!(
            parse(r#"{"mid_block_type": null}"#).plan().unwrap().mid,
            None
        );
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
            (r#"{"attention_type": "gated"}"#, "attention_type"),
            (r#"{"encoder_hid_dim": 4096}"#, "encoder_hid_dim"),
            (
                r#"{"class_embeddings_concat": true}"#,
                "class_embeddings_concat",
            ),
            (r#"{"time_embedding_dim": 7}"#, "time_embedding_dim"),
            (
                r#"{"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}"#,
                "Simple",
            ),
            (
                r#"{"transformer_layers_per_block": [1, 2, 0, 1]}"#,
                "transformer_layers_per_block",
            ),
            (
                r#"{"reverse_transformer_layers_per_block": [1]}"#,
                "reverse_transformer",
            ),
            (r#"{"a_new_setting": 3}"#, "a_new_setting"),
        ] {
            let error = parse(json).plan().unwrap_err();
            assert!(error.contains(name), "{json}: {error}");
        }
        // What is switched off, or of no consequence, may be there.
        let harmless = r#"{"a_new_setting": null, "another": false, "_class_name": "UNet2DConditionModel",
            "_diffusers_version": "0.42.1", "dropout": 0.1, "upcast_attention": true, "sample_size": 64}"#;
        parse(harmless).plan().unwrap();
    }
}
