"""Latent vectors in place of keys and values."""

from .common import case

DEEPSEEK = {
    "hidden_size": 32,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.5,
    "scoring_func": "softmax",
    "topk_method": "greedy",
}

V3 = {
    **{key: value for key, value in DEEPSEEK.items() if key not in ("scoring_func", "topk_method")},
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "q_lora_rank": 12,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 16,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}

# Few keys are chosen, so that of 24 tokens most see some only; by many heads, because transformers does not say which
# of several keys it takes that none of the heads wants.
INDEXED = {
    **V3,
    "n_group": 1,
    "topk_group": 1,
    # What turns halves on a GPU turns 16 elements.
    "qk_rope_head_dim": 16,
    "index_topk": 6,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "drop": ["num_nextn_predict_layers", "rope_theta"],
}

CASES = {
    "deepseek2": case("DeepseekV2ForCausalLM", "deepseek_v2", **DEEPSEEK),
    "deepseek2-groups": case(
        "DeepseekV2ForCausalLM", "deepseek_v2", **{**DEEPSEEK, "topk_method": "group_limited_greedy", "q_lora_rank": 12}
    ),
    "deepseek2-yarn": case(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **{**DEEPSEEK, "rms_norm_eps": 1e-6, "rope_parameters": YARN},
        drop=["rope_theta"],
    ),
    "deepseek3": case("DeepseekV3ForCausalLM", "deepseek_v3", **V3),
    "deepseek3-yarn": case(
        "DeepseekV3ForCausalLM", "deepseek_v3", **{**V3, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    ),
    # Kimi K2 and Moonlight: one group, and no latent vector of queries in the latter.
    "moonlight": case(
        "DeepseekV3ForCausalLM", "deepseek_v3", **{**V3, "n_group": 1, "topk_group": 1, "q_lora_rank": None}
    ),
    "glm4-moe-lite": case(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", **{**V3, "n_group": 1, "topk_group": 1}, drop=["num_nextn_predict_layers"]
    ),
    "deepseek32": case(
        "DeepseekV32ForCausalLM", "deepseek_v32", **{**INDEXED, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}
    ),
    "glm-dsa": case(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        **{
            **INDEXED,
            "indexer_types": ["full", "shared", "full"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
