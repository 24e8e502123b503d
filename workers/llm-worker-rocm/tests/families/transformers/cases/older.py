"""Older families, most of whose configurations and tensors have names of their own."""

from .common import case

# What they call by other names.
OTHER_NAMES = [
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "num_key_value_heads",
    "rms_norm_eps",
    "hidden_act",
    "rope_theta",
]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

FALCON = {
    "hidden_size": 64,
    "layer_norm_epsilon": 1e-5,
    "alibi": False,
    "parallel_attn": True,
    "bias": False,
    "tie_word_embeddings": True,
    "drop": ["rms_norm_eps", "num_key_value_heads", "hidden_act", "intermediate_size"],
}
STABLELM = {
    "hidden_size": 32,
    "layer_norm_eps": 1e-5,
    "drop": ["rms_norm_eps"],
}
GPT = {
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 128,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "drop": OTHER_NAMES,
}
NEOX = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "drop": ["rms_norm_eps", "num_key_value_heads"],
}

CASES = {
    "falcon": case("FalconForCausalLM", "falcon", **FALCON, new_decoder_architecture=False, multi_query=True),
    # Two norms, and heads of queries that share keys and values.
    "falcon-40b": case("FalconForCausalLM", "falcon", **FALCON, new_decoder_architecture=True, num_kv_heads=2),
    # Falcon 2: one norm.
    "falcon-11b": case(
        "FalconForCausalLM", "falcon", **FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "stablelm": case(
        "StableLmForCausalLM",
        "stablelm",
        **STABLELM,
        num_attention_heads=2,
        num_key_value_heads=1,
        partial_rotary_factor=0.5,
        use_qkv_bias=True,
        qk_layernorm=False,
        use_parallel_residual=False,
    ),
    # StableLM 2 12B: norms of each head, both parts beside each other, and fewer elements turn than GPUs take at once.
    "stablelm-12b": case(
        "StableLmForCausalLM",
        "stablelm",
        **STABLELM,
        num_attention_heads=2,
        num_key_value_heads=1,
        partial_rotary_factor=0.25,
        use_qkv_bias=False,
        qk_layernorm=True,
        use_parallel_residual=True,
    ),
    "olmo": case("OlmoForCausalLM", "olmo", hidden_size=64, attention_bias=False, clip_qkv=0.8, drop=["rms_norm_eps"]),
    "bigcode": case(
        "GPTBigCodeForCausalLM",
        "gpt_bigcode",
        **GPT,
        n_inner=48,
        activation_function="gelu_pytorch_tanh",
        multi_query=True,
        scale_attn_weights=True,
    ),
    "gpt2": case("GPT2LMHeadModel", "gpt2", **GPT, n_inner=None, activation_function="gelu_new"),
    "neox": case("GPTNeoXForCausalLM", "gpt_neox", **NEOX, rotary_pct=0.5, use_parallel_residual=True, attention_bias=True),
    "neox-serial": case(
        "GPTNeoXForCausalLM", "gpt_neox", **NEOX, rotary_pct=0.25, use_parallel_residual=False, attention_bias=False
    ),
    "helium": case(
        "HeliumForCausalLM", "helium", hidden_size=32, head_dim=8, attention_bias=False, mlp_bias=False
    ),
    "exaone": case("ExaoneForCausalLM", "exaone", hidden_size=64, rope_scaling=LLAMA3),
    "internlm3": case(
        "InternLM3ForCausalLM",
        "internlm3",
        hidden_size=32,
        head_dim=16,
        qkv_bias=True,
        bias=True,
        rope_scaling={"rope_type": "dynamic", "factor": 6.0},
    ),
}
