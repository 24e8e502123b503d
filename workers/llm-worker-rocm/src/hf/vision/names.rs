//! Names of an encoder's tensors.

use super::family;
use crate::vision::Kind;

/// What stands before names, in this order, as far as it does.
const PREFIXES: [&str; 10] = [
    "thinker.",
    "model.",
    "visual.",
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "connector.",
    "embeddings.",
    "encoder.",
    "transformer.",
];

/// What stands before a block's number.
const BLOCKS: [&str; 3] = ["blocks.", "layers.", "layer."];

/// Parts of blocks, and llama.cpp's names of them.
const PARTS: &[(&str, &[&str])] = &[
    (
        "ln1",
        &[
            "norm1",
            "layer_norm1",
            "layernorm_before",
            "attention_norm",
            "input_layernorm",
        ],
    ),
    (
        "ln2",
        &[
            "norm2",
            "layer_norm2",
            "layernorm_after",
            "ffn_norm",
            "pre_feedforward_layernorm",
        ],
    ),
    ("attn_post_norm", &["post_attention_layernorm"]),
    ("ffn_post_norm", &["post_feedforward_layernorm"]),
    ("attn_q_norm", &["self_attn.q_norm"]),
    ("attn_k_norm", &["self_attn.k_norm"]),
    ("attn_qkv", &["attn.qkv"]),
    (
        "attn_out",
        &[
            "attn.proj",
            "self_attn.out_proj",
            "self_attn.o_proj",
            "attention.projection_layer",
            "attention.o_proj",
        ],
    ),
    (
        "attn_q",
        &["self_attn.q_proj", "attention.q_proj", "attn.q"],
    ),
    (
        "attn_k",
        &["self_attn.k_proj", "attention.k_proj", "attn.k"],
    ),
    (
        "attn_v",
        &["self_attn.v_proj", "attention.v_proj", "attn.v"],
    ),
    ("ffn_gate", &["mlp.gate_proj", "feed_forward.gate_proj"]),
    (
        "ffn_up",
        &[
            "mlp.up_proj",
            "mlp.fc1",
            "mlp.linear_fc1",
            "feed_forward.up_proj",
        ],
    ),
    (
        "ffn_down",
        &[
            "mlp.down_proj",
            "mlp.fc2",
            "mlp.linear_fc2",
            "feed_forward.down_proj",
        ],
    ),
];

/// llama.cpp's name of a tensor: `Some(None)` for what counts for nothing, `None` for a name that is unknown.
pub(super) fn gguf_name(kind: Kind, name: &str, deep: &[u64]) -> Option<Option<String>> {
    let mut inner = name;
    for prefix in PREFIXES {
        inner = inner.strip_prefix(prefix).unwrap_or(inner);
    }
    // Pooling that no language model takes, and what hears.
    let beside = ["head.", "audio_tower.", "embed_audio."];
    if beside.iter().any(|part| inner.starts_with(part)) || inner.ends_with("position_ids") {
        return Some(None);
    }
    let own = |name: &str| {
        let mut names = family(kind).names.iter();
        names.find(|(from, _)| *from == name).map(|(_, to)| *to)
    };
    if let Some(whole) = own(inner) {
        return Some((!whole.is_empty()).then(|| whole.to_string()));
    }
    let (part, end) = inner.rsplit_once('.')?;
    if let Some((block, part)) = BLOCKS.iter().find_map(|prefix| numbered(inner, prefix)) {
        return Some(Some(format!("v.blk.{block}.{}", of_block(part)?)));
    }
    if !matches!(end, "weight" | "bias") {
        return None;
    }
    if let Some((index, part)) = numbered(part, "deepstack_merger_list.") {
        let part = match part {
            "norm" => "norm",
            "linear_fc1" => "fc1",
            "linear_fc2" => "fc2",
            _ => return None,
        };
        let block = deep.get(index)?;
        return Some(Some(format!("v.deepstack.{block}.{part}.{end}")));
    }
    let to = own(part)?;
    Some((!to.is_empty()).then(|| format!("{to}.{end}")))
}

/// A part of a block, with its ending.
fn of_block(name: &str) -> Option<String> {
    match name {
        "lambda_1" => return Some("ls1.weight".to_string()),
        "lambda_2" => return Some("ls2.weight".to_string()),
        _ => {}
    }
    const ENDS: [&str; 6] = [
        "weight",
        "bias",
        "input_min",
        "input_max",
        "output_min",
        "output_max",
    ];
    let (part, end) = name.rsplit_once('.')?;
    if !ENDS.contains(&end) {
        return None;
    }
    // A matrix with limits is a part of what has them.
    let part = part.strip_suffix(".linear").unwrap_or(part);
    let mut parts = PARTS.iter();
    let (to, _) = parts.find(|(_, from)| from.contains(&part))?;
    Some(format!("{to}.{end}"))
}

/// The number behind a prefix and what follows its point.
fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_cpps() {
        let name = |kind: Kind, name: &str| gguf_name(kind, name, &[3, 7]);
        let some = |text: &str| Some(Some(text.to_string()));
        assert_eq!(
            name(
                Kind::Qwen3Vl,
                "model.visual.deepstack_merger_list.1.linear_fc1.bias"
            ),
            some("v.deepstack.7.fc1.bias")
        );
        assert_eq!(
            name(
                Kind::InternVl,
                "model.vision_tower.encoder.layer.4.lambda_2"
            ),
            some("v.blk.4.ls2.weight")
        );
        assert_eq!(
            name(
                Kind::Llava,
                "vision_tower.vision_model.embeddings.class_embedding"
            ),
            some("v.class_embd")
        );
        let post = "model.vision_tower.vision_model.post_layernorm.weight";
        assert_eq!(name(Kind::Llava, post), Some(None));
        assert_eq!(name(Kind::Idefics3, post), some("v.post_ln.weight"));
        let limit = "model.vision_tower.encoder.layers.2.self_attn.o_proj";
        assert_eq!(
            name(Kind::Gemma4, &format!("{limit}.linear.weight")),
            some("v.blk.2.attn_out.weight")
        );
        assert_eq!(
            name(Kind::Gemma4, &format!("{limit}.input_max")),
            some("v.blk.2.attn_out.input_max")
        );
        assert_eq!(
            name(Kind::Qwen2Vl, "visual.blocks.0.attn.lora.weight"),
            None
        );
        assert_eq!(name(Kind::Qwen2Vl, "visual.linear_1.weight"), None);
    }
}
