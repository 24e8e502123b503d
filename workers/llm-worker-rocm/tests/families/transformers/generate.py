"""Writes the reference numbers beside this file: logits of tiny models by Hugging Face transformers.

    pip install torch transformers safetensors numpy
    python generate.py [CASE ...]

A weight is a hash of its name and place (`numbers`), which the test computes, too: a file holds the configuration, the names and shapes
of the checkpoint's tensors, and the logits behind some of the tokens.
"""

import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
VOCAB = 40
TOKENS = [3 + i * 7 % 29 for i in range(24)]
ROWS = [0, 6, 13, 23]


def numbers(name, count):
    """Numbers from -1 to 1 that look random."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    x = (np.arange(count, dtype=np.uint64) * 2654435761 + seed) % 2**32
    x ^= x >> np.uint64(16)
    x = x * 0x7FEB352D % 2**32
    x ^= x >> np.uint64(15)
    x = x * 0x846CA68B % 2**32
    x ^= x >> np.uint64(16)
    return x.astype(np.float64) / 2**31 - 1.0


def weight(name, shape, norm):
    """Matrices keep the size of what they multiply, norms are near `norm`, other vectors near 0."""
    if len(shape) > 1:
        scale, center = 1.7 / math.sqrt(shape[-1]), 0.0
    elif "norm" in name and name.endswith("weight"):
        scale, center = 0.3, norm
    else:
        scale, center = 0.2, 0.0
    values = center + scale * numbers(name, math.prod(shape))
    return values.astype(np.float32).reshape(shape)


COMMON = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

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


def case(architecture, model_type, norm=1.0, drop=(), **settings):
    config = {"architectures": [architecture], "model_type": model_type, **COMMON, **settings}
    return {k: v for k, v in config.items() if k not in drop}, norm


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
    "llama4": case(
        "Llama4ForCausalLM",
        "llama4_text",
        hidden_size=32,
        head_dim=8,
        num_hidden_layers=4,
        intermediate_size=24,
        intermediate_size_mlp=40,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        moe_layers=[1, 3],
        no_rope_layer_interval=4,
        attention_chunk_size=32,
        attn_temperature_tuning=True,
        floor_scale=32,
        attn_scale=0.1,
        use_qk_norm=True,
    ),
    # Through candle-transformers.
    "deepseek2": case("DeepseekV2ForCausalLM", "deepseek_v2", **DEEPSEEK),
    "deepseek2-groups": case(
        "DeepseekV2ForCausalLM", "deepseek_v2", **{**DEEPSEEK, "topk_method": "group_limited_greedy", "q_lora_rank": 12}
    ),
    "lfm2": case(
        "Lfm2ForCausalLM",
        "lfm2",
        hidden_size=32,
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
    "falcon": case(
        "FalconForCausalLM",
        "falcon",
        hidden_size=32,
        layer_norm_epsilon=1e-5,
        initializer_range=0.02,
        use_cache=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        alibi=False,
        new_decoder_architecture=False,
        multi_query=True,
        parallel_attn=True,
        bias=False,
        tie_word_embeddings=True,
        drop=["rms_norm_eps", "num_key_value_heads", "hidden_act", "intermediate_size"],
    ),
    "stablelm": case(
        "StableLmForCausalLM",
        "stablelm",
        hidden_size=32,
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        use_qkv_bias=True,
        use_cache=True,
        qk_layernorm=False,
        use_parallel_residual=False,
        drop=["rms_norm_eps"],
    ),
    "olmo": case("OlmoForCausalLM", "olmo", hidden_size=32, attention_bias=False, clip_qkv=0.8, drop=["rms_norm_eps"]),
    "bigcode": case(
        "GPTBigCodeForCausalLM",
        "gpt_bigcode",
        n_embd=32,
        n_head=4,
        n_layer=2,
        n_inner=48,
        n_positions=128,
        layer_norm_epsilon=1e-5,
        activation_function="gelu_pytorch_tanh",
        multi_query=True,
        scale_attn_weights=True,
        tie_word_embeddings=True,
        drop=[
            "hidden_size",
            "num_attention_heads",
            "num_hidden_layers",
            "intermediate_size",
            "max_position_embeddings",
            "num_key_value_heads",
            "rms_norm_eps",
            "hidden_act",
            "rope_theta",
        ],
    ),
    "helium": case(
        "HeliumForCausalLM", "helium", hidden_size=32, head_dim=8, attention_bias=False, mlp_bias=False
    ),
    "recurrent-gemma": case(
        "RecurrentGemmaForCausalLM",
        "recurrent_gemma",
        hidden_size=32,
        norm=0.0,
        num_hidden_layers=3,
        head_dim=8,
        lru_width=32,
        attention_window_size=128,
        conv1d_width=4,
        logits_soft_cap=30.0,
        hidden_activation="gelu_pytorch_tanh",
        partial_rotary_factor=0.5,
        block_types=["recurrent", "recurrent", "attention"],
        attention_bias=False,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        drop=["hidden_act", "max_position_embeddings"],
    ),
    "granite-hybrid": case(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        hidden_size=32,
        layer_types=["attention", "attention"],
        mamba_n_heads=8,
        shared_intermediate_size=48,
        num_local_experts=0,
        num_experts_per_tok=0,
        position_embedding_type="rope",
        attention_multiplier=0.3,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        tie_word_embeddings=True,
        attention_bias=False,
    ),
    "mamba": case(
        "MambaForCausalLM",
        "mamba",
        hidden_size=32,
        num_hidden_layers=2,
        state_size=16,
        expand=2,
        conv_kernel=4,
        time_step_rank=2,
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-5,
        residual_in_fp32=True,
        tie_word_embeddings=True,
        drop=[
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
        ],
    ),
    "mamba2": case(
        "Mamba2ForCausalLM",
        "mamba2",
        hidden_size=32,
        num_hidden_layers=2,
        state_size=16,
        expand=2,
        head_dim=8,
        num_heads=8,
        n_groups=1,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        layer_norm_epsilon=1e-5,
        rms_norm=True,
        chunk_size=8,
        norm_before_gate=False,
        residual_in_fp32=True,
        tie_word_embeddings=True,
        drop=[
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
        ],
    ),
}

# Models of texts: vectors of length 1, from the last token or the mean of all.
EMBEDDINGS = {
    "qwen3-embedding": (case("Qwen3Model", "qwen3", hidden_size=32, head_dim=16), "last"),
    "bert": (
        case(
            "BertModel",
            "bert",
            hidden_size=32,
            hidden_act="gelu",
            layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.02,
            type_vocab_size=2,
            drop=["rms_norm_eps", "rope_theta", "num_key_value_heads"],
        ),
        "mean",
    ),
    "nomic-bert": (
        case(
            "NomicBertModel",
            "nomic_bert",
            hidden_size=32,
            hidden_act="silu",
            layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            type_vocab_size=2,
            rope_theta=1000.0,
            drop=["rms_norm_eps", "num_key_value_heads"],
        ),
        "mean",
    ),
}


def checkpoint(config, norm, folder, kind):
    """Writes a folder of the model, with weights of `numbers`; gives names and shapes."""
    (folder / "config.json").write_text(json.dumps(config))
    made = kind.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as other:
        made.save_pretrained(other)
        with safe_open(pathlib.Path(other) / "model.safetensors", "np") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    weights = {name: weight(name, shape, norm) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return shapes


def rounded(values):
    return [float(f"{v:.6g}") for v in values.tolist()]


def generate(name):
    config, norm = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModelForCausalLM)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
    write(name, config, norm, shapes, [[row, rounded(logits[row])] for row in ROWS])


def generate_embedding(name):
    (config, norm), pooling = EMBEDDINGS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes = checkpoint(config, norm, folder, AutoModel)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        rows = []
        for count in (24, 1, 9):
            with torch.no_grad():
                hidden = model(torch.tensor([TOKENS[:count]])).last_hidden_state[0]
            vector = hidden[-1] if pooling == "last" else hidden.mean(0)
            rows.append([count, rounded(vector / vector.norm())])
    write(name, config, norm, shapes, rows)


def write(name, config, norm, shapes, rows):
    text = json.dumps({"config": config, "norm": norm, "tensors": shapes, "rows": rows})
    # A line for each tensor and row.
    text = text.replace('], "', '],\n"').replace("]], [", "]],\n[").replace(', "tensors"', ',\n"tensors"')
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*CASES, *EMBEDDINGS]:
        (generate if name in CASES else generate_embedding)(name)
        print(name, flush=True)
