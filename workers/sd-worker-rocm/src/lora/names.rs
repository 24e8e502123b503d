//! Key names of LoRA files, and which of a model's tensors they mean.

use crate::weights::{ldm, transformer};
use std::collections::HashMap;
use std::fmt;

/// The networks that a LoRA can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// UNet or transformer.
    Denoiser,
    /// A text tower, counted from 0.
    Text(usize),
}

/// A layer as a file names it: dots and underscores are not told apart, as kohya's names do not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub(super) network: Network,
    layer: String,
}

impl Target {
    /// Whether the layer's name is this, or ends in it as its last parts; with underscores for dots.
    pub(super) fn ends_with(&self, end: &str) -> bool {
        let before = self.layer.strip_suffix(end);
        before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} of {:?}", self.layer, self.network)
    }
}

/// Which of a layer's tensors a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factor {
    /// From the layer's inputs to the rank.
    Down,
    /// From the rank to the layer's outputs.
    Up,
    /// The core between, of convolutions taken apart.
    Mid,
    /// The scale.
    Alpha,
}

/// Takes a key apart.
///
/// # Errors
/// Names the kind of adaptation that is not implemented, or the key that is not one of a LoRA.
pub fn parse(key: &str) -> Result<(Target, Factor), String> {
    for (mark, kind) in [
        ("hada_", "LoHa"),
        ("lokr_", "LoKr"),
        ("dora_scale", "DoRA"),
        ("lora_magnitude_vector", "DoRA"),
        (".oft_", "OFT"),
        ("ia3", "IA3"),
        (".diff", "full differences"),
    ] {
        if key.contains(mark) {
            return Err(format!(
                "adaptations of kind {kind} are not implemented (tensor {key}); LoRA and LoCon are"
            ));
        }
    }
    if ["lora_te3_", "text_encoder_3."]
        .iter()
        .any(|t5| key.starts_with(t5))
    {
        return Err(format!(
            "changes of T5 are not implemented (tensor {key}); those of the denoiser and of CLIP are"
        ));
    }
    let suffixes = [
        (".lora_down.weight", Factor::Down),
        (".lora_up.weight", Factor::Up),
        (".lora_mid.weight", Factor::Mid),
        (".lora_A.weight", Factor::Down),
        (".lora_B.weight", Factor::Up),
        (".lora_A.default.weight", Factor::Down),
        (".lora_B.default.weight", Factor::Up),
        (".lora.down.weight", Factor::Down),
        (".lora.up.weight", Factor::Up),
        (".lora_linear_layer.down.weight", Factor::Down),
        (".lora_linear_layer.up.weight", Factor::Up),
        // Early diffusers: ….processor.to_q_lora.down.weight.
        ("_lora.down.weight", Factor::Down),
        ("_lora.up.weight", Factor::Up),
        (".alpha", Factor::Alpha),
    ];
    let taken = suffixes
        .iter()
        .find_map(|(suffix, factor)| Some((key.strip_suffix(suffix)?, *factor)));
    let (layer, factor) = taken.ok_or_else(|| format!("{key} is not a key of a LoRA"))?;
    // PEFT's own files.
    let layer = layer.strip_prefix("base_model.model.").unwrap_or(layer);
    let prefixes = [
        ("lora_unet_", Network::Denoiser),
        ("lora_te1_", Network::Text(0)),
        ("lora_te2_", Network::Text(1)),
        ("lora_te_", Network::Text(0)),
        ("unet.", Network::Denoiser),
        ("transformer.", Network::Denoiser),
        ("diffusion_model.", Network::Denoiser),
        ("text_encoder_2.", Network::Text(1)),
        ("text_encoder.", Network::Text(0)),
    ];
    let known = prefixes
        .iter()
        .find_map(|(prefix, network)| Some((layer.strip_prefix(prefix)?, *network)));
    // Early diffusers has no prefix for the UNet.
    let (layer, network) = known.unwrap_or((layer, Network::Denoiser));
    let layer = layer.replace(".processor.", ".").replace('.', "_");
    let layer = match network {
        Network::Denoiser => from_original(&layer).unwrap_or(layer),
        Network::Text(_) => layer,
    };
    // diffusers' list of one has its index left out in early files.
    let layer = match layer.strip_suffix("_to_out") {
        Some(rest) => format!("{rest}_to_out_0"),
        None => layer,
    };
    Ok((Target { network, layer }, factor))
}

/// diffusers' name, with underscores, of a layer that goes by the original's name.
fn from_original(layer: &str) -> Option<String> {
    for (prefix, dotted) in [
        ("input_blocks_", "input_blocks."),
        ("output_blocks_", "output_blocks."),
        ("middle_block_", "middle_block."),
    ] {
        let Some(rest) = layer.strip_prefix(prefix) else {
            continue;
        };
        // The one or two numbers behind it are separate again.
        let numbers = if prefix == "middle_block_" { 1 } else { 2 };
        let dots = rest.replacen('_', ".", numbers);
        let dots = ["in_layers_", "out_layers_", "emb_layers_"]
            .iter()
            .fold(dots, |name, part| {
                name.replace(part, &part.replace("s_", "s."))
            });
        // Residual layers of two a block, as in all models that have such files.
        let name = ldm::unet_name(&format!("{dotted}{dots}."), 2, usize::MAX)?;
        return Some(name.trim_end_matches('.').replace('.', "_"));
    }
    let fixed = [
        ("time_embed_0", "time_embedding_linear_1"),
        ("time_embed_2", "time_embedding_linear_2"),
        ("out_2", "conv_out"),
    ];
    let found = fixed.iter().find(|(original, _)| *original == layer);
    found.map(|(_, name)| name.to_string())
}

/// A model's layers by name.
pub struct Index {
    layers: HashMap<(Network, String), String>,
}

impl Index {
    /// An index of networks with these tensors.
    pub fn new(networks: &[(Network, Vec<String>)]) -> Self {
        let mut layers = HashMap::new();
        for (network, names) in networks {
            for name in names {
                if let Some(layer) = name.strip_suffix(".weight") {
                    layers.insert((*network, layer.replace('.', "_")), name.clone());
                }
            }
        }
        Self { layers }
    }

    /// The tensors that a layer of a file changes, and their shares of its outputs: several where the layer goes by the
    /// name of an original that has them stacked.
    pub fn find(&self, target: &Target) -> Option<Vec<(String, usize)>> {
        let tensor = |layer: String| self.layers.get(&(target.network, layer)).cloned();
        if let Some(tensor) = tensor(target.layer.clone()) {
            return Some(vec![(tensor, 1)]);
        }
        transformer::from_original(&target.layer)?
            .into_iter()
            .map(|(layer, share)| Some((tensor(layer)?, share)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_layer() {
        let unet = "down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q";
        for key in [
            "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
            "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q.lora_down.weight",
            "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight",
            "base_model.model.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight",
            "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight",
            "down_blocks.1.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight",
        ] {
            let (target, part) = parse(key).unwrap();
            assert_eq!(
                (target.network, target.layer.as_str()),
                (Network::Denoiser, unet),
                "{key}"
            );
            assert_eq!(part, Factor::Down);
        }
        for (original, ours) in [
            (
                "input_blocks_1_0_in_layers_2",
                "down_blocks_0_resnets_0_conv1",
            ),
            ("input_blocks_3_0_op", "down_blocks_0_downsamplers_0_conv"),
            ("output_blocks_2_1_conv", "up_blocks_0_upsamplers_0_conv"),
            ("middle_block_1_proj_in", "mid_block_attentions_0_proj_in"),
            (
                "output_blocks_5_0_skip_connection",
                "up_blocks_1_resnets_2_conv_shortcut",
            ),
        ] {
            assert_eq!(from_original(original).as_deref(), Some(ours));
        }
        let (target, _) = parse("lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha").unwrap();
        assert_eq!(target.network, Network::Text(1));
    }

    #[test]
    fn stacked_layers_of_originals() {
        let names = [
            "transformer_blocks.3.attn.to_q.weight",
            "transformer_blocks.3.attn.to_k.weight",
            "transformer_blocks.3.attn.to_v.weight",
            "transformer_blocks.3.attn.add_k_proj.weight",
            "transformer_blocks.3.attn.add_q_proj.weight",
            "transformer_blocks.3.attn.add_v_proj.weight",
            "transformer_blocks.3.ff_context.net.0.proj.weight",
            "single_transformer_blocks.12.attn.to_q.weight",
            "single_transformer_blocks.12.attn.to_k.weight",
            "single_transformer_blocks.12.attn.to_v.weight",
            "single_transformer_blocks.12.proj_mlp.weight",
            "context_embedder.weight",
        ];
        let index = Index::new(&[(Network::Denoiser, names.map(String::from).to_vec())]);
        let find = |key: &str| {
            let (target, _) = parse(key).unwrap();
            let found = index.find(&target)?;
            let joined: Vec<_> = found
                .iter()
                .map(|(n, share)| format!("{n}*{share}"))
                .collect();
            Some(joined.join(" ").replace(".weight", ""))
        };
        let single = "single_transformer_blocks.12";
        for (key, expected) in [
            (
                "lora_unet_double_blocks_3_img_attn_qkv.lora_down.weight",
                Some("transformer_blocks.3.attn.to_q*1 transformer_blocks.3.attn.to_k*1 transformer_blocks.3.attn.to_v*1".to_string()),
            ),
            (
                "diffusion_model.joint_blocks.3.context_block.attn.qkv.lora_B.weight",
                Some("transformer_blocks.3.attn.add_q_proj*1 transformer_blocks.3.attn.add_k_proj*1 transformer_blocks.3.attn.add_v_proj*1".to_string()),
            ),
            (
                "lora_unet_single_blocks_12_linear1.alpha",
                Some(format!("{single}.attn.to_q*1 {single}.attn.to_k*1 {single}.attn.to_v*1 {single}.proj_mlp*4")),
            ),
            (
                "lora_unet_double_blocks_3_txt_mlp_0.lora_up.weight",
                Some("transformer_blocks.3.ff_context.net.0.proj*1".to_string()),
            ),
            ("lora_unet_txt_in.lora_up.weight", Some("context_embedder*1".to_string())),
            // There is no such block, and halves in another order.
            ("lora_unet_double_blocks_4_img_attn_qkv.lora_up.weight", None),
            ("lora_unet_final_layer_adaLN_modulation_1.lora_up.weight", None),
            ("lora_unet_joint_blocks_3_context_block_adaLN_modulation_1.lora_up.weight", None),
        ] {
            assert_eq!(find(key), expected, "{key}");
        }
    }

    #[test]
    fn other_kinds_are_named() {
        for (key, kind) in [
            ("lora_unet_x.hada_w1_a", "LoHa"),
            ("lora_unet_x.lokr_w1", "LoKr"),
            ("lora_unet_x.dora_scale", "DoRA"),
            (
                "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight",
                "T5",
            ),
            ("model.weight", "not a key"),
        ] {
            assert!(parse(key).unwrap_err().contains(kind));
        }
    }
}
