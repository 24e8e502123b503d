//! Names of tensors in safetensors files, and what GGUF calls them.

use crate::architectures::FolderTraits;
use crate::engine::decoder::DecoderTraits;

/// A router's biases, which choose experts and do not weigh them: GGUF's `exp_probs_b`.
const ROUTER_BIASES: [&str; 4] = [
    "mlp.gate.e_score_correction_bias",
    "mlp.gate.expert_bias",
    "block_sparse_moe.e_score_correction_bias",
    "mlp.moe_statics.e_score_correction_bias",
];

/// How an architecture's tensors become GGUF's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorNames {
    /// GGUF rotates neighbours where transformers rotates halves, so that rows of queries and keys change places.
    interleaves: bool,
    /// See [`FolderTraits::post_attention_is_ffn_norm`].
    post_attention_is_ffn_norm: bool,
}

/// A tensor's place in GGUF.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TensorName {
    /// GGUF's name.
    pub name: String,
    /// Whose heads' rows are reordered.
    pub heads: Option<RotatedHeads>,
    /// The expert or head, where GGUF stacks those of all in one tensor.
    pub expert: Option<u32>,
}

/// The heads that a matrix belongs to, where their rows change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotatedHeads {
    Query,
    Key,
}

/// A name without the prefix of the part that answers in text, of a model that also speaks.
fn of_thinker(name: &str) -> &str {
    name.strip_prefix("thinker.").unwrap_or(name)
}

/// A name without the prefix of the language part of a model that also sees.
fn of_text(name: &str) -> &str {
    let name = of_thinker(name);
    name.strip_prefix("language_model.")
        .or_else(|| name.strip_prefix("model.text_model."))
        .or_else(|| name.strip_prefix("model.language_model."))
        .unwrap_or(name)
}

/// The block that a name behind `model.` belongs to, and the rest of it.
fn of_block(name: &str) -> Option<(u32, &str)> {
    let (block, part) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((block.parse().ok()?, part))
}

/// The block that a tensor belongs to, and its name there.
pub(super) fn part_of_block(name: &str) -> Option<(u32, &str)> {
    let inner = of_text(name);
    of_block(inner.strip_prefix("model.").unwrap_or(inner))
}

/// Whether a tensor is of the part of a model that sees.
pub(super) fn is_of_vision(name: &str) -> bool {
    const PARTS: [&str; 7] = [
        "vision_tower.",
        "multi_modal_projector.",
        "visual.",
        "vision_model.",
        "connector.",
        "image_newline",
        "embed_vision.",
    ];
    is_of(&PARTS, name)
}

/// Whether a tensor is of the part of a model that hears. Only what makes rows of the text's width is named alike in
/// models that see.
pub(super) fn is_of_sound(name: &str) -> bool {
    is_of(
        &["audio_tower.", "embed_audio.", "multi_modal_projector."],
        name,
    )
}

/// Whether a tensor is of the part of a model that speaks.
fn is_of_speech(name: &str) -> bool {
    ["talker.", "token2wav."]
        .iter()
        .any(|part| name.starts_with(part))
}

fn is_of(parts: &[&str], name: &str) -> bool {
    let name = of_thinker(name);
    let name = name.strip_prefix("model.").unwrap_or(name);
    parts.iter().any(|part| name.starts_with(part))
}

impl TensorName {
    /// A tensor as it is.
    pub(super) fn whole(name: &str) -> Self {
        Self {
            name: name.to_string(),
            heads: None,
            expert: None,
        }
    }
}

impl TensorNames {
    /// Those of an architecture.
    pub(crate) fn of(traits: &DecoderTraits, folder: &FolderTraits) -> Self {
        Self {
            interleaves: traits.interleaved && !folder.interleaved,
            post_attention_is_ffn_norm: folder.post_attention_is_ffn_norm,
        }
    }

    /// Where a tensor goes: `Ok(None)` for what GGUF leaves out, `Err` for a name that the architecture does not have.
    pub(crate) fn place(&self, name: &str, tied: bool) -> Result<Option<TensorName>, ()> {
        let whole = |name: &str| Ok(Some(TensorName::whole(name)));
        // Models that also see or hear keep their language part below a prefix.
        if is_of_vision(name) || is_of_sound(name) || is_of_speech(name) {
            return Ok(None);
        }
        let inner = of_text(name);
        match inner {
            "lm_head.weight" if tied => return Ok(None),
            "lm_head.weight" => return whole("output.weight"),
            "lm_head.bias" => return whole("output.bias"),
            _ => {}
        }
        let inner = inner.strip_prefix("model.").unwrap_or(inner);
        match inner {
            "embed_tokens.weight" | "word_embeddings.weight" => return whole("token_embd.weight"),
            "embed_tokens_per_layer.weight" => return whole("per_layer_token_embd.weight"),
            "per_layer_model_projection.weight" => return whole("per_layer_model_proj.weight"),
            "per_layer_projection_norm.weight" => return whole("per_layer_proj_norm.weight"),
            "norm.weight" | "final_layernorm.weight" => return whole("output_norm.weight"),
            "norm.bias" | "final_layernorm.bias" => return whole("output_norm.bias"),
            _ => {}
        }
        // GGUF stacks the matrices of all streams but the first.
        for (prefix, name) in [
            ("altup_projections.", "altup_proj.weight"),
            ("altup_unembed_projections.", "altup_unembd_proj.weight"),
        ] {
            let stream = inner.strip_prefix(prefix);
            if let Some(stream) = stream.and_then(|rest| rest.strip_suffix(".weight")) {
                return Ok(Some(TensorName {
                    name: name.to_string(),
                    heads: None,
                    expert: Some(stream.parse().map_err(|_| ())?),
                }));
            }
        }
        let (block, part) = of_block(inner).ok_or(())?;
        // Older files carry what is computed from the base.
        if part == "self_attn.rotary_emb.inv_freq" {
            return Ok(None);
        }
        if ROUTER_BIASES.contains(&part) {
            return whole(&format!("blk.{block}.exp_probs_b.bias"));
        }
        // What has no `weight` in its name, or another ending in GGUF.
        let named = match part {
            "layer_scalar" => Some("layer_output_scale.weight"),
            "altup.correct_output_scale" => Some("altup_correct_scale.weight"),
            "router.proj.weight" => Some("ffn_gate_inp.weight"),
            "router.scale" => Some("ffn_gate_inp.scale"),
            "router.per_expert_scale" => Some("ffn_down_exps.scale"),
            "experts.gate_up_proj" => Some("ffn_gate_up_exps.weight"),
            "experts.down_proj" => Some("ffn_down_exps.weight"),
            _ => None,
        };
        if let Some(named) = named {
            return whole(&format!("blk.{block}.{named}"));
        }
        if part == "self_attn.sinks" {
            return whole(&format!("blk.{block}.attn_sinks.weight"));
        }
        let (part, kind) = part.rsplit_once('.').ok_or(())?;
        if kind != "weight" && kind != "bias" {
            return Err(());
        }
        let (part, heads, expert) = self.part(part).ok_or(())?;
        Ok(Some(TensorName {
            name: format!("blk.{block}.{part}.{kind}"),
            heads: heads.filter(|_| self.interleaves),
            expert,
        }))
    }

    fn part(&self, part: &str) -> Option<(&'static str, Option<RotatedHeads>, Option<u32>)> {
        let experts = part
            .strip_prefix("mlp.experts.")
            .or_else(|| part.strip_prefix("feed_forward.experts."))
            .or_else(|| part.strip_prefix("block_sparse_moe.experts."));
        if let Some((expert, matrix)) = experts.and_then(|rest| rest.split_once('.')) {
            let matrix = match matrix {
                "gate_proj" | "w1" => "ffn_gate_exps",
                "up_proj" | "w3" => "ffn_up_exps",
                "down_proj" | "w2" => "ffn_down_exps",
                _ => return None,
            };
            return Some((matrix, None, Some(expert.parse().ok()?)));
        }
        // Norms of each head.
        for (prefix, name) in [
            ("self_attn.q_layernorm.norms.", "attn_q_norm"),
            ("self_attn.k_layernorm.norms.", "attn_k_norm"),
        ] {
            if let Some(head) = part.strip_prefix(prefix) {
                return Some((name, None, Some(head.parse().ok()?)));
            }
        }
        let heads = match part {
            "self_attn.q_proj" => Some(RotatedHeads::Query),
            "self_attn.k_proj" => Some(RotatedHeads::Key),
            _ => None,
        };
        let name = match part {
            "input_layernorm" | "attention_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" | "attention.query_key_value" => "attn_qkv",
            "self_attn.q_a_proj" => "attn_q_a",
            "self_attn.q_a_layernorm" => "attn_q_a_norm",
            "self_attn.q_b_proj" => "attn_q_b",
            "self_attn.kv_a_proj_with_mqa" => "attn_kv_a_mqa",
            "self_attn.kv_a_layernorm" => "attn_kv_a_norm",
            "self_attn.kv_b_proj" => "attn_kv_b",
            "self_attn.indexer.wq_b" => "indexer.attn_q_b",
            "self_attn.indexer.wk" => "indexer.attn_k",
            "self_attn.indexer.k_norm" => "indexer.k_norm",
            "self_attn.indexer.weights_proj" => "indexer.proj",
            "self_attn.o_proj" | "self_attn.dense" | "attention.dense" => "attn_output",
            "self_attn.q_norm" | "self_attn.query_layernorm" | "attention.query_layernorm" => {
                "attn_q_norm"
            }
            "self_attn.k_norm" | "self_attn.key_layernorm" | "attention.key_layernorm" => {
                "attn_k_norm"
            }
            "post_attention_layernorm" if self.post_attention_is_ffn_norm => "ffn_norm",
            "post_attention_layernorm" | "post_self_attn_layernorm" => "post_attention_norm",
            "pre_feedforward_layernorm_2" => "pre_ffw_norm_2",
            "post_feedforward_layernorm_1" => "post_ffw_norm_1",
            "post_feedforward_layernorm_2" => "post_ffw_norm_2",
            "altup.correction_coefs" => "altup_correct_coef",
            "altup.prediction_coefs" => "altup_predict_coef",
            "altup.modality_router" => "altup_router",
            "altup.router_norm" => "altup_router_norm",
            "laurel.linear_left" => "laurel_l",
            "laurel.linear_right" => "laurel_r",
            "laurel.post_laurel_norm" => "laurel_post_norm",
            "per_layer_input_gate" => "inp_gate",
            "per_layer_projection" => "proj",
            "post_per_layer_input_norm" => "post_norm",
            "pre_feedforward_layernorm" | "feedforward_layernorm" => "ffn_norm",
            "post_feedforward_layernorm" | "post_mlp_layernorm" => "post_ffw_norm",
            "mlp.gate_proj" | "feed_forward.gate_proj" => "ffn_gate",
            "mlp.up_proj"
            | "feed_forward.up_proj"
            | "mlp.gate_up_proj"
            | "mlp.c_fc"
            | "mlp.fc1" => "ffn_up",
            "mlp.down_proj" | "feed_forward.down_proj" | "mlp.c_proj" | "mlp.fc2" => "ffn_down",
            "mlp.gate"
            | "mlp.gate.wg"
            | "block_sparse_moe.gate"
            | "mlp.router"
            | "feed_forward.router" => "ffn_gate_inp",
            "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj"
            | "feed_forward.shared_expert.gate_proj"
            | "mlp.shared_experts.gate_proj"
            | "mlp.shared_mlp.gate_proj" => "ffn_gate_shexp",
            "mlp.shared_expert.up_proj"
            | "feed_forward.shared_expert.up_proj"
            | "mlp.shared_experts.up_proj"
            | "mlp.shared_mlp.up_proj" => "ffn_up_shexp",
            "mlp.shared_expert.down_proj"
            | "feed_forward.shared_expert.down_proj"
            | "mlp.shared_experts.down_proj"
            | "mlp.shared_mlp.down_proj" => "ffn_down_shexp",
            // What a head that predicts further tokens has besides a block.
            "eh_proj" => "nextn.eh_proj",
            "enorm" => "nextn.enorm",
            "hnorm" => "nextn.hnorm",
            "shared_head.norm" => "nextn.shared_head_norm",
            "shared_head.head" => "nextn.shared_head_head",
            "embed_tokens" => "nextn.embed_tokens",
            "final_layernorm" => "layer_output_norm",
            _ => return None,
        };
        Some((name, heads, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architectures::by_folder_name;

    fn place(architecture: &str, name: &str) -> Result<Option<(String, bool, Option<u32>)>, ()> {
        let row = by_folder_name(architecture).unwrap();
        let (traits, folder) = row.decoder_parts().unwrap();
        let found = TensorNames::of(traits, folder).place(name, true)?;
        Ok(found.map(|t| (t.name, t.heads.is_some(), t.expert)))
    }

    #[test]
    fn each_architecture_has_its_names() {
        let found = |name: &str, swap: bool, expert| Ok(Some((name.to_string(), swap, expert)));
        assert_eq!(
            place("LlamaForCausalLM", "model.layers.3.self_attn.q_proj.weight"),
            found("blk.3.attn_q.weight", true, None)
        );
        assert_eq!(
            place("Qwen2ForCausalLM", "model.layers.3.self_attn.k_proj.bias"),
            found("blk.3.attn_k.bias", false, None)
        );
        assert_eq!(
            place(
                "MixtralForCausalLM",
                "model.layers.0.block_sparse_moe.experts.7.w2.weight"
            ),
            found("blk.0.ffn_down_exps.weight", false, Some(7))
        );
        assert_eq!(
            place(
                "Gemma2ForCausalLM",
                "model.layers.1.post_attention_layernorm.weight"
            ),
            found("blk.1.post_attention_norm.weight", false, None)
        );
        assert_eq!(
            place(
                "Glm4ForCausalLM",
                "model.layers.1.post_attention_layernorm.weight"
            ),
            found("blk.1.ffn_norm.weight", false, None)
        );
        assert_eq!(
            place(
                "Gemma3ForConditionalGeneration",
                "language_model.model.embed_tokens.weight"
            ),
            found("token_embd.weight", false, None)
        );
        assert_eq!(
            place("Gemma3ForConditionalGeneration", "vision_tower.x.weight"),
            Ok(None)
        );
        assert_eq!(place("LlamaForCausalLM", "lm_head.weight"), Ok(None));
        for unknown in [
            "model.layers.x.mlp.up_proj.weight",
            "model.layers.0.mlp.up_proj.scale",
            "other.weight",
        ] {
            assert_eq!(place("LlamaForCausalLM", unknown), Err(()), "{unknown}");
        }
    }
}
