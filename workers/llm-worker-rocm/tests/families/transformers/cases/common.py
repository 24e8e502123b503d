"""What the cases share."""

VOCAB = 40

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


def case(architecture, model_type, norm=1.0, drop=(), **settings):
    config = {"architectures": [architecture], "model_type": model_type, **COMMON, **settings}
    return {k: v for k, v in config.items() if k not in drop}, norm
