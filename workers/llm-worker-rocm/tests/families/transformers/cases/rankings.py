"""Cross-encoders: models that score two texts."""

from .common import case

ENCODER = {
    "hidden_size": 32,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "drop": ["rms_norm_eps", "rope_theta", "num_key_value_heads"],
}

RANKINGS = {
    "bert-ranker": case("BertForSequenceClassification", "bert", **ENCODER, type_vocab_size=2),
    "xlm-roberta-ranker": case(
        "XLMRobertaForSequenceClassification",
        "xlm-roberta",
        **ENCODER,
        type_vocab_size=1,
        position_embedding_type="absolute",
    ),
    "modernbert-ranker": case(
        "ModernBertForSequenceClassification",
        "modernbert",
        **ENCODER,
        hidden_activation="gelu",
        norm_eps=1e-5,
        global_attn_every_n_layers=2,
        local_attention=8,
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
        classifier_pooling="mean",
        classifier_activation="gelu",
        classifier_bias=False,
        norm_bias=False,
        attention_bias=False,
        mlp_bias=False,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        mlp_dropout=0.0,
        classifier_dropout=0.0,
        cls_token_id=1,
        sep_token_id=2,
    ),
}
