"""Llama and those that differ from it in a few traits."""

from .common import case

GEMMA = {
    "head_dim": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
    "sliding_window": 7,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 3.0,
}

EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONG = {
    "type": "longrope",
    "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "short_factor": [1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

CASES = {
    "llama": case("LlamaForCausalLM", "llama"),
    "llama-bias": case("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True),
    "llama-3": case("LlamaForCausalLM", "llama", rope_scaling=LLAMA3, rope_theta=500000.0),
    "llama-linear": case("LlamaForCausalLM", "llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "mistral": case("MistralForCausalLM", "mistral", sliding_window=7, head_dim=16),
    "mixtral": case("MixtralForCausalLM", "mixtral", drop=["moe_intermediate_size"], **EXPERTS, sliding_window=None),
    "qwen2": case("Qwen2ForCausalLM", "qwen2", use_sliding_window=False),
    "qwen2-yarn": case("Qwen2ForCausalLM", "qwen2", use_sliding_window=False, rope_scaling=YARN),
    "qwen2-moe": case(
        "Qwen2MoeForCausalLM", "qwen2_moe", **{**EXPERTS, "norm_topk_prob": False}, shared_expert_intermediate_size=40
    ),
    "qwen3": case("Qwen3ForCausalLM", "qwen3", head_dim=16, tie_word_embeddings=True),
    "qwen3-moe": case("Qwen3MoeForCausalLM", "qwen3_moe", head_dim=16, **EXPERTS),
    "phi3": case("Phi3ForCausalLM", "phi3", sliding_window=7),
    "phi3-long": case(
        "Phi3ForCausalLM", "phi3", rope_scaling=LONG, original_max_position_embeddings=16, sliding_window=None
    ),
    "phi4-mini": case(
        "Phi3ForCausalLM",
        "phi3",
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        sliding_window=None,
    ),
    "gemma": case("GemmaForCausalLM", "gemma", norm=0.0, **GEMMA),
    "gemma2": case("Gemma2ForCausalLM", "gemma2", norm=0.0, **{**GEMMA, "num_hidden_layers": 3}),
    "gemma3": case(
        "Gemma3ForCausalLM",
        "gemma3_text",
        norm=0.0,
        drop=["attn_logit_softcapping", "final_logit_softcapping"],
        **{**GEMMA, "num_hidden_layers": 7, "rope_local_base_freq": 10000.0, "rope_theta": 1000000.0},
        sliding_window_pattern=6,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "granite": case(
        "GraniteForCausalLM",
        "granite",
        attention_multiplier=0.3,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        logits_scaling=8.0,
    ),
    "olmo2": case("Olmo2ForCausalLM", "olmo2"),
    "olmoe": case(
        "OlmoeForCausalLM", "olmoe", num_experts=4, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None
    ),
    "glm4": case("Glm4ForCausalLM", "glm4", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm": case("GlmForCausalLM", "glm", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "starcoder2": case(
        "Starcoder2ForCausalLM",
        "starcoder2",
        hidden_act="gelu_pytorch_tanh",
        norm_epsilon=1e-5,
        use_bias=True,
        sliding_window=7,
        drop=["rms_norm_eps"],
    ),
    "smollm3": case("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, no_rope_layer_interval=4),
    "phi": case(
        "PhiForCausalLM",
        "phi",
        num_attention_heads=2,
        num_key_value_heads=2,
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        qk_layernorm=False,
        drop=["rms_norm_eps"],
    ),
    "cohere": case(
        "CohereForCausalLM", "cohere", logit_scale=0.0625, layer_norm_eps=1e-5, use_qk_norm=False, tie_word_embeddings=True
    ),
    # Norms of queries and keys have weights of each head.
    "cohere-plus": case(
        "CohereForCausalLM", "cohere", logit_scale=0.0625, layer_norm_eps=1e-5, use_qk_norm=True, tie_word_embeddings=True
    ),
    "cohere2": case(
        "Cohere2ForCausalLM",
        "cohere2",
        logit_scale=0.25,
        layer_norm_eps=1e-5,
        num_hidden_layers=4,
        sliding_window=7,
        sliding_window_pattern=4,
        tie_word_embeddings=True,
    ),
    "ernie4_5": case("Ernie4_5ForCausalLM", "ernie4_5", head_dim=16, use_bias=False, tie_word_embeddings=True),
}
