//! The model families whose folders are read: how each names its numbers and tensors, and what GGUF calls them.

/// What a family does in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    /// The name in `config.json`.
    pub name: &'static str,
    /// GGUF's name of the architecture.
    pub architecture: &'static str,
    /// Whether GGUF rotates neighbours where transformers rotates halves, so that rows of queries and keys change places.
    pub interleaved: bool,
    /// Whether norms store their weight less one.
    pub norm_plus_one: bool,
    /// What the norm after attention is: GGUF's `ffn_norm` where it comes before the feed-forward part, else `post_attention_norm`.
    pub post_attention_is_ffn_norm: bool,
    /// Names of the activation in `config.json`; any other is refused.
    pub activations: &'static [&'static str],
    /// Whether norms subtract the mean (and the epsilon goes by another name).
    pub layer_norm: bool,
    /// Whether files leave the output matrix out unless they say otherwise.
    pub tied_by_default: bool,
}

const LLAMA: Family = Family {
    name: "LlamaForCausalLM",
    architecture: "llama",
    interleaved: true,
    norm_plus_one: false,
    post_attention_is_ffn_norm: true,
    activations: &["silu", "swish"],
    layer_norm: false,
    tied_by_default: false,
};

const GEMMA: Family = Family {
    name: "GemmaForCausalLM",
    architecture: "gemma",
    interleaved: false,
    norm_plus_one: true,
    // Gemma's "gelu" has always been the approximation.
    activations: &["gelu_pytorch_tanh", "gelu"],
    tied_by_default: true,
    ..LLAMA
};

const COHERE: Family = Family {
    name: "CohereForCausalLM",
    architecture: "command-r",
    interleaved: false,
    layer_norm: true,
    tied_by_default: true,
    ..LLAMA
};

pub(super) const FAMILIES: [Family; 23] = [
    LLAMA,
    Family {
        name: "MistralForCausalLM",
        ..LLAMA
    },
    Family {
        name: "MixtralForCausalLM",
        ..LLAMA
    },
    Family {
        name: "GraniteForCausalLM",
        architecture: "granite",
        ..LLAMA
    },
    Family {
        name: "SmolLM3ForCausalLM",
        architecture: "smollm3",
        ..LLAMA
    },
    Family {
        name: "Qwen2ForCausalLM",
        architecture: "qwen2",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Qwen2MoeForCausalLM",
        architecture: "qwen2moe",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Qwen3ForCausalLM",
        architecture: "qwen3",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Qwen3MoeForCausalLM",
        architecture: "qwen3moe",
        interleaved: false,
        ..LLAMA
    },
    GEMMA,
    Family {
        name: "Gemma2ForCausalLM",
        architecture: "gemma2",
        post_attention_is_ffn_norm: false,
        ..GEMMA
    },
    Family {
        name: "Gemma3ForCausalLM",
        architecture: "gemma3",
        post_attention_is_ffn_norm: false,
        ..GEMMA
    },
    Family {
        name: "Gemma3ForConditionalGeneration",
        architecture: "gemma3",
        post_attention_is_ffn_norm: false,
        ..GEMMA
    },
    Family {
        name: "Phi3ForCausalLM",
        architecture: "phi3",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Olmo2ForCausalLM",
        architecture: "olmo2",
        interleaved: false,
        post_attention_is_ffn_norm: false,
        ..LLAMA
    },
    Family {
        name: "Starcoder2ForCausalLM",
        architecture: "starcoder2",
        interleaved: false,
        activations: &["gelu_pytorch_tanh"],
        layer_norm: true,
        ..LLAMA
    },
    Family {
        name: "GlmForCausalLM",
        architecture: "chatglm",
        // Its own code rotates neighbours, too.
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Glm4ForCausalLM",
        architecture: "glm4",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "Ernie4_5ForCausalLM",
        architecture: "ernie4_5",
        interleaved: false,
        ..LLAMA
    },
    COHERE,
    Family {
        name: "Cohere2ForCausalLM",
        architecture: "cohere2",
        ..COHERE
    },
    Family {
        name: "OlmoeForCausalLM",
        architecture: "olmoe",
        interleaved: false,
        ..LLAMA
    },
    Family {
        name: "PhiForCausalLM",
        architecture: "phi2",
        interleaved: false,
        activations: &["gelu_new", "gelu_pytorch_tanh"],
        layer_norm: true,
        ..LLAMA
    },
];

/// A tensor's place in GGUF.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorName {
    /// GGUF's name.
    pub name: String,
    /// Whose heads' rows are reordered.
    pub heads: Option<Heads>,
    /// The expert, where GGUF stacks them in one tensor.
    pub expert: Option<u32>,
}

/// Which heads a matrix belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    Query,
    Key,
}

impl Family {
    /// The family of `architectures` in `config.json`.
    pub(super) fn of(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// The family of a model without output matrix, as embedding models are stored.
    pub(super) fn of_base(name: &str) -> Option<Self> {
        let base = name.strip_suffix("Model")?;
        let mut families = FAMILIES.into_iter();
        families.find(|family| family.name.strip_suffix("ForCausalLM") == Some(base))
    }

    /// Where a tensor goes: `Ok(None)` for what GGUF leaves out, `Err` for a name that the family does not have.
    pub(super) fn tensor(&self, name: &str, tied: bool) -> Result<Option<TensorName>, ()> {
        let whole = |name: &str| {
            Ok(Some(TensorName {
                name: name.to_string(),
                heads: None,
                expert: None,
            }))
        };
        // Models that also see keep their language part below a prefix.
        if [
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        {
            return Ok(None);
        }
        let inner = name
            .strip_prefix("language_model.")
            .or_else(|| name.strip_prefix("model.language_model."))
            .unwrap_or(name);
        match inner {
            "lm_head.weight" if tied => return Ok(None),
            "lm_head.weight" => return whole("output.weight"),
            "lm_head.bias" => return whole("output.bias"),
            _ => {}
        }
        let inner = inner.strip_prefix("model.").unwrap_or(inner);
        match inner {
            "embed_tokens.weight" => return whole("token_embd.weight"),
            "norm.weight" | "final_layernorm.weight" => return whole("output_norm.weight"),
            "norm.bias" | "final_layernorm.bias" => return whole("output_norm.bias"),
            _ => {}
        }
        let (block, part) = inner
            .strip_prefix("layers.")
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(block, part)| Some((block.parse::<u32>().ok()?, part)))
            .ok_or(())?;
        // Older files carry what is computed from the base.
        if part == "self_attn.rotary_emb.inv_freq" {
            return Ok(None);
        }
        let (part, kind) = part.rsplit_once('.').ok_or(())?;
        if kind != "weight" && kind != "bias" {
            return Err(());
        }
        let (part, heads, expert) = self.part(part).ok_or(())?;
        Ok(Some(TensorName {
            name: format!("blk.{block}.{part}.{kind}"),
            heads: heads.filter(|_| self.interleaved),
            expert,
        }))
    }

    fn part(&self, part: &str) -> Option<(&'static str, Option<Heads>, Option<u32>)> {
        let experts = part
            .strip_prefix("mlp.experts.")
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
        let heads = match part {
            "self_attn.q_proj" => Some(Heads::Query),
            "self_attn.k_proj" => Some(Heads::Key),
            _ => None,
        };
        let name = match part {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.o_proj" | "self_attn.dense" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "post_attention_layernorm" if self.post_attention_is_ffn_norm => "ffn_norm",
            "post_attention_layernorm" | "post_self_attn_layernorm" => "post_attention_norm",
            "pre_feedforward_layernorm" => "ffn_norm",
            "post_feedforward_layernorm" | "post_mlp_layernorm" => "post_ffw_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" | "mlp.gate_up_proj" | "mlp.c_fc" | "mlp.fc1" => "ffn_up",
            "mlp.down_proj" | "mlp.c_proj" | "mlp.fc2" => "ffn_down",
            "mlp.gate" | "block_sparse_moe.gate" => "ffn_gate_inp",
            "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj" => "ffn_gate_shexp",
            "mlp.shared_expert.up_proj" => "ffn_up_shexp",
            "mlp.shared_expert.down_proj" => "ffn_down_shexp",
            _ => return None,
        };
        Some((name, heads, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(family: &str, name: &str) -> Result<Option<(String, bool, Option<u32>)>, ()> {
        let family = Family::of(family).unwrap();
        let found = family.tensor(name, true)?;
        Ok(found.map(|t| (t.name, t.heads.is_some(), t.expert)))
    }

    #[test]
    fn each_family_has_its_names() {
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
