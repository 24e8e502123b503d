//! Key names of LoRA files, and which of a model's tensors they mean.

use super::layer::Of;
use crate::weights::{ldm, ltx, transformer, wan};
use std::collections::HashMap;
use std::fmt;

/// The networks that a LoRA can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// UNet or transformer.
    Denoiser,
    /// A text tower, counted from 0; behind the last one come a model's language models.
    Text(usize),
    /// A language model that reads prompts, counted from 0.
    Long(usize),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// From the layer's inputs to the rank.
    Down,
    /// From the rank to the layer's outputs.
    Up,
    /// Of PEFT's `lora_bias`.
    UpBias,
    /// The core between, of convolutions taken apart.
    Mid,
    /// The scale; of OFT the most that it turns.
    Alpha,
    /// DoRA's lengths in LyCORIS' and kohya's files.
    DoraScale,
    /// DoRA's lengths in PEFT's files.
    Magnitude,
    /// LoHa's first pair and its core.
    Hada1A,
    /// As [`Self::Hada1A`].
    Hada1B,
    /// As [`Self::Hada1A`].
    Hada1T,
    /// LoHa's second pair and its core.
    Hada2A,
    /// As [`Self::Hada2A`].
    Hada2B,
    /// As [`Self::Hada2A`].
    Hada2T,
    /// LoKr's small matrix, or the pair that it is a product of.
    Lokr1,
    /// As [`Self::Lokr1`].
    Lokr1A,
    /// As [`Self::Lokr1`].
    Lokr1B,
    /// LoKr's large matrix, or the pair that it is a product of, with its core.
    Lokr2,
    /// As [`Self::Lokr2`].
    Lokr2A,
    /// As [`Self::Lokr2`].
    Lokr2B,
    /// As [`Self::Lokr2`].
    Lokr2T,
    /// OFT's and BOFT's blocks.
    OftBlocks,
    /// The rotations themselves, as LyCORIS first wrote them.
    OftDiag,
    /// What is above the diagonals of PEFT's OFT, a row a block.
    OftPeft,
    /// PEFT's BOFT.
    BoftPeft,
    /// Its factors of the outputs.
    BoftScale,
    /// OFT's factors of the outputs.
    Rescale,
    /// (IA)3's vector in LyCORIS' files.
    Ia3,
    /// Whether that vector is for the inputs.
    OnInput,
    /// (IA)3's vector in PEFT's files.
    Ia3Peft,
    /// GLoRA's pair for the weight.
    GeneralA1,
    /// As [`Self::GeneralA1`].
    GeneralA2,
    /// GLoRA's own pair and its core.
    GeneralB1,
    /// As [`Self::GeneralB1`].
    GeneralB2,
    /// As [`Self::GeneralB1`].
    GeneralBMid,
    /// A difference of the weight.
    Diff,
    /// A difference of the bias.
    DiffBias,
    /// Another weight.
    SetWeight,
}

/// Ends of keys, each with what it means. Where one end is another's end, the longer stands first.
const ENDS: &[(&str, Part)] = &[
    (".lora_down.weight", Part::Down),
    (".lora_up.weight", Part::Up),
    (".lora_mid.weight", Part::Mid),
    (".lora_A.weight", Part::Down),
    (".lora_B.weight", Part::Up),
    (".lora_B.bias", Part::UpBias),
    (".lora_up.bias", Part::UpBias),
    (".lora.down.weight", Part::Down),
    (".lora.up.weight", Part::Up),
    (".lora_linear_layer.down.weight", Part::Down),
    (".lora_linear_layer.up.weight", Part::Up),
    // Early diffusers: ….processor.to_q_lora.down.weight.
    ("_lora.down.weight", Part::Down),
    ("_lora.up.weight", Part::Up),
    (".alpha", Part::Alpha),
    (".dora_scale", Part::DoraScale),
    (".lora_magnitude_vector.weight", Part::Magnitude),
    (".lora_magnitude_vector", Part::Magnitude),
    (".hada_w1_a", Part::Hada1A),
    (".hada_w1_b", Part::Hada1B),
    (".hada_t1", Part::Hada1T),
    (".hada_w2_a", Part::Hada2A),
    (".hada_w2_b", Part::Hada2B),
    (".hada_t2", Part::Hada2T),
    (".lokr_w1", Part::Lokr1),
    (".lokr_w1_a", Part::Lokr1A),
    (".lokr_w1_b", Part::Lokr1B),
    (".lokr_w2", Part::Lokr2),
    (".lokr_w2_a", Part::Lokr2A),
    (".lokr_w2_b", Part::Lokr2B),
    (".lokr_t2", Part::Lokr2T),
    (".oft_blocks", Part::OftBlocks),
    (".oft_diag", Part::OftDiag),
    (".oft_R.weight", Part::OftPeft),
    (".boft_R", Part::BoftPeft),
    (".boft_s", Part::BoftScale),
    (".rescale", Part::Rescale),
    (".on_input", Part::OnInput),
    (".ia3_l", Part::Ia3Peft),
    (".a1.weight", Part::GeneralA1),
    (".a2.weight", Part::GeneralA2),
    (".b1.weight", Part::GeneralB1),
    (".b2.weight", Part::GeneralB2),
    (".bm.weight", Part::GeneralBMid),
    (".diff", Part::Diff),
    (".diff_b", Part::DiffBias),
    (".w_norm", Part::Diff),
    (".b_norm", Part::DiffBias),
    (".set_weight", Part::SetWeight),
];

/// Kinds that are not implemented, by what is in their keys.
const OTHERS: &[(&str, &str)] = &[
    (".oft_r", "OFT of PEFT before 0.16"),
    ("oft_embedding_R", "OFT of embeddings"),
    ("lora_embedding_", "LoRA of embeddings"),
    (".reshape_weight", "layers of other sizes"),
    (".scalar", "LyCORIS with a trained scalar"),
    ("bundle_emb.", "textual inversion within a LoRA"),
    ("vera_", "VeRA"),
];

/// Takes a key apart. `is_there` says whether the file has another key.
///
/// # Errors
/// Names the kind of adaptation that is not implemented, or the key that is not one of a LoRA.
pub fn parse(key: &str, is_there: impl Fn(&str) -> bool) -> Result<(Target, Part), String> {
    if let Some((_, kind)) = OTHERS.iter().find(|(mark, _)| key.contains(mark)) {
        return Err(format!(
            "adaptations of kind {kind} are not implemented (tensor {key}); docs/images/lora.md lists those that are"
        ));
    }
    // PEFT's name of an adapter.
    let plain = key.replace(".default.", ".");
    let plain = plain.strip_suffix(".default").unwrap_or(&plain);
    let taken = ENDS
        .iter()
        .find_map(|(end, part)| Some((plain.strip_suffix(end)?, *part)));
    let vector = || {
        let layer = plain.strip_suffix(".weight")?;
        is_there(&format!("{layer}.on_input")).then_some((layer, Part::Ia3))
    };
    let (layer, factor) = taken
        .or_else(vector)
        .ok_or_else(|| format!("{key} is not a key of a LoRA"))?;
    // PEFT's own files.
    let layer = layer.strip_prefix("base_model.model.").unwrap_or(layer);
    let prefixes = [
        ("lora_unet_", Network::Denoiser),
        ("lora_te1_", Network::Text(0)),
        ("lora_te2_", Network::Text(1)),
        ("lora_te3_", Network::Long(0)),
        ("lora_te_", Network::Text(0)),
        ("lycoris_unet_", Network::Denoiser),
        ("lycoris_te1_", Network::Text(0)),
        ("lycoris_te2_", Network::Text(1)),
        ("lycoris_te_", Network::Text(0)),
        ("lycoris_", Network::Denoiser),
        ("lora_transformer_", Network::Denoiser),
        ("unet.", Network::Denoiser),
        ("transformer.", Network::Denoiser),
        ("diffusion_model.", Network::Denoiser),
        ("text_encoder_4.", Network::Long(1)),
        ("text_encoder_3.", Network::Long(0)),
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
        Network::Text(_) | Network::Long(_) => layer,
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
pub struct Index<'a> {
    layers: HashMap<(Network, String), String>,
    networks: &'a [(Network, Vec<String>)],
}

impl<'a> Index<'a> {
    /// An index of networks with these tensors.
    pub fn new(networks: &'a [(Network, Vec<String>)]) -> Self {
        let mut layers = HashMap::new();
        for (network, names) in networks {
            for name in names {
                if let Some(layer) = name.strip_suffix(".weight") {
                    layers.insert((*network, layer.replace('.', "_")), name.clone());
                }
            }
        }
        Self { layers, networks }
    }

    /// The network that a file means: language models go by the numbers behind the towers'.
    pub fn network(&self, network: Network) -> Network {
        let is_tower = |(network, _): &&(Network, _)| matches!(network, Network::Text(_));
        let towers = self.networks.iter().filter(is_tower).count();
        match network {
            Network::Text(i) if i >= towers => Network::Long(i - towers),
            network => network,
        }
    }

    /// The weight of a layer, or the bias beside it.
    ///
    /// # Errors
    /// If the layer has no bias.
    pub(super) fn tensor(&self, network: Network, weight: &str, of: Of) -> Result<String, String> {
        if of == Of::Weight {
            return Ok(weight.to_string());
        }
        let layer = weight.strip_suffix(".weight").unwrap_or(weight);
        let bias = format!("{layer}.bias");
        let own = self.networks.iter().find(|(n, _)| *n == network);
        match own.is_some_and(|(_, names)| names.contains(&bias)) {
            true => Ok(bias),
            false => Err(format!("it changes the bias of {layer}, which has none")),
        }
    }

    /// The tensors that a layer of a file changes, and their shares of its outputs: several where the layer goes by the
    /// name of an original that has them stacked.
    pub fn find(&self, target: &Target) -> Option<Vec<(String, usize)>> {
        let network = self.network(target.network);
        let tensor = |layer: String| self.layers.get(&(network, layer)).cloned();
        if let Some(tensor) = tensor(target.layer.clone()) {
            return Some(vec![(tensor, 1)]);
        }
        // Some models have no list there.
        let single = target.layer.strip_suffix("_to_out_0");
        if let Some(tensor) = single.and_then(|layer| tensor(format!("{layer}_to_out"))) {
            return Some(vec![(tensor, 1)]);
        }
        if let Some(tensor) = wan::from_original(&target.layer).and_then(tensor) {
            return Some(vec![(tensor, 1)]);
        }
        if let Some(tensor) = tensor(ltx::modern(&target.layer)) {
            return Some(vec![(tensor, 1)]);
        }
        let candidates = transformer::from_original(&target.layer).into_iter();
        let mut candidates = candidates
            .chain(transformer::from_flux2(&target.layer))
            .chain(transformer::from_sandwich(&target.layer));
        candidates.find_map(|layers| {
            let found = layers
                .into_iter()
                .map(|(layer, share)| Some((tensor(layer)?, share)));
            found.collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> bool {
        false
    }

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
            let (target, part) = parse(key, nothing).unwrap();
            assert_eq!(
                (target.network, target.layer.as_str()),
                (Network::Denoiser, unet),
                "{key}"
            );
            assert_eq!(part, Part::Down);
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
        let (target, _) = parse(
            "lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha",
            nothing,
        )
        .unwrap();
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
        let networks = [(Network::Denoiser, names.map(String::from).to_vec())];
        let index = Index::new(&networks);
        let find = |key: &str| {
            let (target, _) = parse(key, nothing).unwrap();
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
    fn parts_of_all_kinds() {
        for (end, expected) in [
            ("hada_w1_a", Part::Hada1A),
            ("lokr_w1", Part::Lokr1),
            ("lokr_w1_b", Part::Lokr1B),
            ("dora_scale", Part::DoraScale),
            ("lora_magnitude_vector.default.weight", Part::Magnitude),
            ("lora_A.default.weight", Part::Down),
            ("diff", Part::Diff),
            ("diff_b", Part::DiffBias),
            ("b1.weight", Part::GeneralB1),
            ("ia3_l.default", Part::Ia3Peft),
        ] {
            let (target, part) = parse(&format!("unet.mid.conv.{end}"), nothing).unwrap();
            assert_eq!((target.layer.as_str(), part), ("mid_conv", expected));
        }
        let (_, part) = parse("lora_unet_x.weight", |key| key == "lora_unet_x.on_input").unwrap();
        assert_eq!(part, Part::Ia3);
        let t5 = "lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight";
        assert_eq!(parse(t5, nothing).unwrap().0.network, Network::Long(0));
    }

    #[test]
    fn other_kinds_are_named() {
        for (key, kind) in [
            ("base_model.model.x.oft_r", "OFT of PEFT before 0.16"),
            ("lora_unet_x.scalar", "trained scalar"),
            ("model.weight", "not a key"),
        ] {
            assert!(parse(key, nothing).unwrap_err().contains(kind));
        }
    }
}
