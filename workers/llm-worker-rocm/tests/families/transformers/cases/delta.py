"""Families with a gated delta rule or short convolutions beside attention."""

from .common import case

LINEAR, FULL, CONV = "linear_attention", "full_attention", "conv"

DELTA = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
EXPERTS = {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
# What the family has in place of the usual keys.
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [3, 3, 2]}}

CASES = {
    "qwen3-next": case(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        norm=0.0,
        **DELTA,
        **EXPERTS,
        layer_types=[LINEAR, FULL, LINEAR, FULL],
        norm_topk_prob=True,
    ),
    "qwen3_5": case(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        norm=0.0,
        drop=("rope_theta", "partial_rotary_factor"),
        **DELTA,
        **ROPE,
        layer_types=[LINEAR, LINEAR, FULL, LINEAR],
    ),
    "qwen3_5-moe": case(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        norm=0.0,
        drop=("rope_theta", "partial_rotary_factor", "intermediate_size"),
        **DELTA,
        **ROPE,
        **EXPERTS,
    ),
    "lfm2": case(
        "Lfm2ForCausalLM",
        "lfm2",
        hidden_size=64,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        norm_eps=1e-5,
        conv_L_cache=3,
        conv_bias=False,
        block_auto_adjust_ff_dim=True,
        block_ff_dim=48,
        intermediate_size=48,
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.0,
        tie_embedding=True,
        tie_word_embeddings=True,
        drop=["rms_norm_eps"],
    ),
    "lfm2-moe": case(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        drop=("rms_norm_eps", "hidden_act", "rope_theta"),
        hidden_size=64,
        num_hidden_layers=4,
        norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=[CONV, FULL, CONV, FULL],
        conv_L_cache=3,
        moe_intermediate_size=24,
        num_experts=8,
        num_experts_per_tok=4,
        num_dense_layers=1,
        use_expert_bias=True,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        tie_word_embeddings=True,
    ),
}
