"""Adapters of a base model's case, by PEFT."""

ADAPTERS = {
    "llama-lora": (
        "llama",
        {
            "first": {
                "r": 4,
                "lora_alpha": 8,
                "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            },
            "second": {"r": 2, "lora_alpha": 3, "use_rslora": True, "target_modules": ["k_proj", "q_proj", "down_proj"]},
        },
    ),
    "llama-lora-ends": (
        "llama",
        {
            "ends": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head"]},
            "table": {"r": 2, "lora_alpha": 4, "target_modules": ["embed_tokens", "v_proj"]},
        },
    ),
}
