"""Windows, sinks, and caches that layers share."""

from .common import VOCAB, case

LLAMA4 = {
    "hidden_size": 32,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "intermediate_size_mlp": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "moe_layers": [1, 3],
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 32,
    "attn_temperature_tuning": True,
    "floor_scale": 32,
    "attn_scale": 0.1,
    "use_qk_norm": True,
}

SLIDING, FULL = "sliding_attention", "full_attention"
# Scores are not scaled: norms of queries and keys near 1 would make the softmax of so small heads too sharp for keys of f16.
GEMMA4 = {
    "hidden_size": 32,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 3,
    "layer_types": [SLIDING, SLIDING, FULL],
    "sliding_window": 7,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
}

CASES = {
    "gpt-oss": case(
        "GptOssForCausalLM",
        "gpt_oss",
        hidden_size=64,
        head_dim=16,
        num_hidden_layers=4,
        intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=7,
        attention_bias=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama4": case("Llama4ForCausalLM", "llama4_text", **LLAMA4),
    # Longer than a chunk and than a step of the temperature.
    "llama4-chunks": case("Llama4ForCausalLM", "llama4_text", **{**LLAMA4, "attention_chunk_size": 9, "floor_scale": 5}),
    "gemma3n": case(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        norm=0.5,
        drop=("rope_theta", "hidden_act"),
        hidden_size=32,
        head_dim=16,
        num_hidden_layers=5,
        layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
        sliding_window=7,
        intermediate_size=[48] * 5,
        activation_sparsity_pattern=[0.75, 0.75, 0.0, 0.0, 0.0],
        hidden_activation="gelu_pytorch_tanh",
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        final_logit_softcapping=30.0,
        hidden_size_per_layer_input=8,
        # Later tokens have the first one's.
        vocab_size_per_layer_input=28,
        num_kv_shared_layers=2,
        laurel_rank=8,
        altup_num_inputs=4,
        altup_active_idx=0,
        altup_correct_scale=True,
        rope_parameters={
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
    # Values are what keys are made of in layers that see everything, which have fewer and wider heads of them.
    "gemma4": case(
        "Gemma4ForCausalLM", "gemma4_text", norm=0.5, drop=("rope_theta", "hidden_act"), **GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1
    ),
    # Inputs of each layer, and keys of earlier layers in the last two.
    "gemma4-shared": case(
        "Gemma4ForCausalLM",
        "gemma4_text",
        norm=0.5,
        drop=("rope_theta", "hidden_act"),
        **{
            **GEMMA4,
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-experts": case(
        "Gemma4ForCausalLM",
        "gemma4_text",
        norm=0.5,
        drop=("rope_theta", "hidden_act"),
        **GEMMA4,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=24,
    ),
}
