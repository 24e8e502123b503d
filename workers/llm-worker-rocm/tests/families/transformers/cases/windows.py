"""Windows, sinks, and caches that layers share."""

from .common import case

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
}
