"""Heads that predict further tokens: the case whose model they are of, the model's settings, and how many there are."""

# transformers has such heads of its own for some of the families (`MtpModel`), and makes them of any that has layers
# with attention. `mtp` are the names of Qwen's checkpoints, the others count on behind the last layer.
HEADS = {
    "glm4-moe-head": ("glm4-moe", {"num_nextn_predict_layers": 1}, 1, "layers"),
    "ling2-head": ("ling2", {"num_nextn_predict_layers": 1}, 1, "layers"),
    "glm4-moe-lite-head": ("glm4-moe-lite", {"num_nextn_predict_layers": 1}, 1, "layers"),
    "deepseek3-heads": ("deepseek3", {"num_nextn_predict_layers": 2}, 2, "layers"),
    "deepseek32-head": ("deepseek32", {"num_nextn_predict_layers": 1}, 1, "layers"),
    "glm-dsa-head": ("glm-dsa", {"num_nextn_predict_layers": 1}, 1, "layers"),
    "qwen3-next-head": ("qwen3-next", {}, 1, "mtp"),
    "qwen3_5-head": ("qwen3_5", {"mtp_num_hidden_layers": 1}, 1, "mtp"),
    "qwen3_5-moe-head": ("qwen3_5-moe", {"mtp_num_hidden_layers": 1}, 1, "mtp"),
}
