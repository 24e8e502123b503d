"""Newer families with the usual attention, with and without experts."""

from .common import case

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LONG = {
    "rope_type": "longrope",
    "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "short_factor": [1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.2, 1.2],
}
FOUR = {"hidden_size": 32, "num_hidden_layers": 4, "head_dim": 16}
SLIDING, FULL = "sliding_attention", "full_attention"
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
ROUTED = {
    "hidden_size": 32,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
GRANITE = {
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
}
MULTIPLIERS = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
# GPUs turn multiples of 16 elements.
PARTIAL = {**ROUTED, "head_dim": 32}

CASES = {
    # The default interval is 4; lists say which layers turn.
    "smollm3-list": case("SmolLM3ForCausalLM", "smollm3", **FOUR, no_rope_layers=[1, 0, 0, 1]),
    "smollm3-interval": case("SmolLM3ForCausalLM", "smollm3", **FOUR, no_rope_layer_interval=2),
    "exaone4": case(
        "Exaone4ForCausalLM",
        "exaone4",
        **FOUR,
        sliding_window=7,
        sliding_window_pattern="LLLG",
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        rope_scaling=LLAMA3,
    ),
    # The small model has no windows, and positions everywhere.
    "exaone4-small": case(
        "Exaone4ForCausalLM",
        "exaone4",
        hidden_size=32,
        head_dim=16,
        sliding_window=None,
        layer_types=[FULL, FULL],
        tie_word_embeddings=True,
    ),
    "seed-oss": case(
        "SeedOssForCausalLM", "seed_oss", hidden_size=32, head_dim=16, attention_bias=True, attention_out_bias=False, mlp_bias=False
    ),
    "hunyuan-dense": case(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        hidden_size=32,
        head_dim=16,
        rope_scaling=ALPHA,
        tie_word_embeddings=True,
    ),
    "olmo3": case(
        "Olmo3ForCausalLM",
        "olmo3",
        hidden_size=64,
        num_hidden_layers=4,
        sliding_window=7,
        rope_theta=500000.0,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        rope_scaling={**YARN, "attention_factor": 1.1386294361119891, "beta_fast": 32.0, "beta_slow": 1.0},
    ),
    "apertus": case("ApertusForCausalLM", "apertus", hidden_act="xielu", rope_scaling=LLAMA3),
    "arcee": case("ArceeForCausalLM", "arcee", hidden_size=32, head_dim=16, hidden_act="relu2", rope_scaling=YARN),
    # With experts.
    "glm4-moe": case(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **PARTIAL,
        attention_bias=True,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
        num_nextn_predict_layers=0,
    ),
    "glm4-moe-air": case(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **{**PARTIAL, "n_shared_experts": 1, "n_group": 4, "topk_group": 2},
        attention_bias=True,
        use_qk_norm=False,
        partial_rotary_factor=0.5,
        num_nextn_predict_layers=1,
    ),
    # What Ling 2 is, under other names.
    "ling2": case(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **{**PARTIAL, "n_group": 4, "topk_group": 2, "n_shared_experts": 1},
        attention_bias=False,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
        num_nextn_predict_layers=0,
    ),
    "dots1": case("Dots1ForCausalLM", "dots1", **ROUTED, sliding_window=None, attention_bias=False, scoring_func="sigmoid"),
    "minimax-m2": case(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        hidden_size=32,
        head_dim=32,
        rotary_dim=16,
        num_local_experts=8,
        num_experts_per_tok=3,
        use_qk_norm=True,
        qk_norm_type="per_layer",
        scoring_func="sigmoid",
        use_routing_bias=True,
        shared_intermediate_size=0,
    ),
    "ernie4_5-moe": case(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        hidden_size=32,
        head_dim=16,
        num_hidden_layers=3,
        use_bias=False,
        moe_intermediate_size=24,
        moe_k=3,
        moe_num_experts=8,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_end_index=2,
        moe_layer_interval=1,
        tie_word_embeddings=True,
    ),
    "hunyuan-moe": case(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        hidden_size=32,
        head_dim=16,
        rope_scaling=ALPHA,
        num_experts=4,
        moe_topk=2,
        tie_word_embeddings=True,
    ),
    "granite-moe": case("GraniteMoeForCausalLM", "granitemoe", **GRANITE, **MULTIPLIERS),
    "granite-moe-shared": case(
        "GraniteMoeSharedForCausalLM", "granitemoeshared", **GRANITE, **MULTIPLIERS, shared_intermediate_size=40
    ),
    # What Ling 1 is, under other names.
    "ling": case(
        "GraniteMoeSharedForCausalLM",
        "granitemoeshared",
        **GRANITE,
        shared_intermediate_size=48,
        attention_multiplier=0.25,
        embedding_multiplier=1.0,
        residual_multiplier=1.0,
        logits_scaling=1.0,
    ),
    # A token's second expert is often far behind the first, and the others far behind the second.
    "phimoe": case(
        "PhimoeForCausalLM",
        "phimoe",
        hidden_size=64,
        intermediate_size=24,
        num_local_experts=8,
        num_experts_per_tok=2,
        router_jitter_noise=0.01,
        input_jitter_noise=0.01,
        attention_bias=True,
        lm_head_bias=True,
        sliding_window=None,
        original_max_position_embeddings=128,
        rope_scaling={**LONG, "short_mscale": 1.2, "long_mscale": 1.2, "original_max_position_embeddings": 128},
    ),
    "ministral3": case(
        "Ministral3ForCausalLM",
        "ministral3",
        hidden_size=32,
        head_dim=16,
        sliding_window=None,
        drop=["rope_theta"],
        rope_parameters={
            "type": "yarn",
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 8,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3,
        },
    ),
}
