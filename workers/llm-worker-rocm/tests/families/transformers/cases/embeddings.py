"""Models of texts."""

from .common import case

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
