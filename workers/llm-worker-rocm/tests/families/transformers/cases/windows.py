"""Windows, sinks, and caches that layers share."""

from .common import case

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
}
