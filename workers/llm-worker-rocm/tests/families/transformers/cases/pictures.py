"""Families that see: a tiny model each, how its processor is set up, and the size of a picture."""

from .common import COMMON
from .delta import DELTA, EXPERTS, FULL, LINEAR
from .windows import GEMMA4, SLIDING

TEXT = {key: value for key, value in COMMON.items() if key != "rope_theta"}
QWEN_VISION = {
    "depth": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}
QWEN_SIZES = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 512,
    "max_pixels": 2304,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
QWEN3_VISION = {
    **QWEN_VISION,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_position_embeddings": 36,
    "hidden_act": "gelu_pytorch_tanh",
}
QWEN35 = {key: value for key, value in DELTA.items() if key != "partial_rotary_factor"}
QWEN35["rope_parameters"] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [3, 3, 2],
    "mrope_interleaved": True,
}
SPECIAL = {
    "image_token_id": 31,
    "video_token_id": 32,
    "vision_start_token_id": 33,
    "vision_end_token_id": 34,
}
SIGLIP = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP = {key: QWEN_SIZES[key] for key in ("image_mean", "image_std")}

PIXTRAL_VISION = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 32,
    "patch_size": 4,
    "hidden_act": "gelu",
}


GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "image_token_index": 31,
    "boi_token_index": 33,
    "eoi_token_index": 34,
    "mm_tokens_per_image": 16,
    "text_config": {
        **COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24,
        "tie_word_embeddings": True,
        "sliding_window": 12,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "vision_use_head": False,
    },
}


def sections(sizes, **more):
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sizes, **more}


def spell(text):
    """Tokens of a text's letters and spaces; all else is in no vocabulary here."""
    return [3 if c == " " else ord(c) - 93 for c in text if c == " " or "a" <= c <= "z"]


# The configuration, the norms' weight, the processor's configuration and class, width and height of the picture, what
# stands for it in the prompt (PART for the tokens of a tile, or of all), and the spellings of these tokens.
PART = None
QWEN_PLACE = [33, PART, 34], {31: "<|image_pad|>", 33: "<|vision_start|>", 34: "<|vision_end|>"}
GEMMA_PLACE = [33, PART, 34], {31: "<image_soft_token>", 33: "<start_of_image>", 34: "<end_of_image>"}
GEMMA4_PLACE = [33, PART, 34], {31: "<|image|>", 33: "<|image>", 34: "<image|>"}
GEMMA_PART = [33, PART, 34]
GEMMA_PANNED = (
    spell("Here is the original image ")
    + GEMMA_PART
    + spell(" and here are some crops to help you see better ")
    + GEMMA_PART
    + spell(" ")
    + GEMMA_PART
)
LLAVA_PLACE = [PART], {31: "<image>"}
IDEFICS_PLACE = (
    [32, 36, PART, 32, 37, PART, 32, 38, PART, 32, 39, PART, 32, 35, PART, 32],
    {
        31: "<image>",
        32: "<fake_token_around_image>",
        35: "<global-img>",
        36: "<row_1_col_1>",
        37: "<row_1_col_2>",
        38: "<row_2_col_1>",
        39: "<row_2_col_2>",
    },
)
PIXTRAL_SPELLED = {31: "[IMG]", 33: "[IMG_BREAK]", 34: "[IMG_END]"}
# Heights and widths.
PINPOINTS = [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]
INTERN_PLACE = [33, PART, 34], {31: "<IMG_CONTEXT>", 33: "<img>", 34: "</img>"}

PICTURES = {
    "qwen2-vl": (
        {
            "architectures": ["Qwen2VLForConditionalGeneration"],
            "model_type": "qwen2_vl",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "model_type": "qwen2_vl_text",
                "use_sliding_window": False,
                "rope_parameters": sections([2, 3, 3]),
            },
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen2_vl_vision",
                "embed_dim": 32,
                "hidden_size": 64,
                "num_heads": 2,
                "mlp_ratio": 2,
                "hidden_act": "quick_gelu",
            },
        },
        1.0,
        (QWEN_SIZES, "Qwen2VLImageProcessorPil"),
        (61, 37),
        QWEN_PLACE,
    ),
    "qwen2.5-vl": (
        {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "model_type": "qwen2_5_vl_text",
                "use_sliding_window": False,
                "rope_parameters": sections([2, 3, 3]),
            },
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen2_5_vl_vision",
                "hidden_size": 32,
                "out_hidden_size": 64,
                "intermediate_size": 48,
                "num_heads": 2,
                "window_size": 16,
                "fullatt_block_indexes": [1, 3],
                "tokens_per_second": 2,
                "hidden_act": "silu",
            },
        },
        1.0,
        (QWEN_SIZES, "Qwen2VLImageProcessorPil"),
        (61, 37),
        QWEN_PLACE,
    ),
    "qwen3-vl": (
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "model_type": "qwen3_vl_text",
                "num_hidden_layers": 3,
                "head_dim": 16,
                "rope_parameters": sections([4, 2, 2], mrope_interleaved=True),
            },
            "vision_config": {
                **QWEN3_VISION,
                "model_type": "qwen3_vl_vision",
                "deepstack_visual_indexes": [0, 2],
            },
        },
        1.0,
        ({**QWEN_SIZES, **SIGLIP}, "Qwen2VLImageProcessorPil"),
        (45, 53),
        QWEN_PLACE,
    ),
    "qwen3-vl-moe": (
        {
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "model_type": "qwen3_vl_moe_text",
                "num_hidden_layers": 2,
                "head_dim": 16,
                "moe_intermediate_size": 24,
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "decoder_sparse_step": 1,
                "norm_topk_prob": True,
                "rope_parameters": sections([4, 2, 2], mrope_interleaved=True),
            },
            "vision_config": {
                **QWEN3_VISION,
                "depth": 2,
                "model_type": "qwen3_vl_moe_vision",
                "deepstack_visual_indexes": [1],
            },
        },
        1.0,
        ({**QWEN_SIZES, **SIGLIP}, "Qwen2VLImageProcessorPil"),
        (45, 53),
        QWEN_PLACE,
    ),
    "qwen3_5-vision": (
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                **QWEN35,
                "model_type": "qwen3_5_text",
                "num_hidden_layers": 3,
                "layer_types": [LINEAR, FULL, LINEAR],
            },
            "vision_config": {**QWEN3_VISION, "model_type": "qwen3_5"},
        },
        0.0,
        ({**QWEN_SIZES, **SIGLIP}, "Qwen2VLImageProcessorPil"),
        (45, 53),
        QWEN_PLACE,
    ),
    "qwen3_5-moe-vision": (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            **SPECIAL,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                **QWEN35,
                **EXPERTS,
                "model_type": "qwen3_5_moe_text",
                "num_hidden_layers": 2,
                "layer_types": [LINEAR, FULL],
            },
            "vision_config": {**QWEN3_VISION, "depth": 2, "model_type": "qwen3_5_moe"},
        },
        0.0,
        ({**QWEN_SIZES, **SIGLIP}, "Qwen2VLImageProcessorPil"),
        (61, 37),
        QWEN_PLACE,
    ),
    "gemma3-vision": (
        GEMMA3,
        0.0,
        ({**SIGLIP, "size": {"height": 32, "width": 32}, "image_seq_length": 16}, "Gemma3ImageProcessorPil"),
        (61, 37),
        GEMMA_PLACE,
    ),
    "gemma3-panned": (
        {**GEMMA3, "text_config": {**GEMMA3["text_config"], "max_position_embeddings": 512}},
        0.0,
        (
            {
                **SIGLIP,
                "size": {"height": 32, "width": 32},
                "image_seq_length": 16,
                "do_pan_and_scan": True,
                "pan_and_scan_min_crop_size": 16,
                "pan_and_scan_max_num_crops": 4,
                "pan_and_scan_min_ratio_to_activate": 1.2,
            },
            "Gemma3ImageProcessorPil",
        ),
        (61, 29),
        (GEMMA_PANNED, GEMMA_PLACE[1]),
    ),
    # Rows see each other in layers with a window, which is smaller than a picture; inputs of each layer.
    "gemma4-vision": (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "image_token_id": 31,
            "video_token_id": 35,
            "audio_token_id": 36,
            "boi_token_id": 33,
            "eoi_token_id": 34,
            "audio_config": None,
            "text_config": {
                **{key: value for key, value in COMMON.items() if key not in ("rope_theta", "hidden_act")},
                **GEMMA4,
                "model_type": "gemma4_text",
                "num_hidden_layers": 4,
                "layer_types": [SLIDING, FULL, SLIDING, FULL],
                "max_position_embeddings": 512,
                "hidden_size_per_layer_input": 8,
                "num_kv_shared_layers": 2,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "patch_size": 4,
                "pooling_kernel_size": 3,
                "position_embedding_size": 128,
                "hidden_activation": "gelu_pytorch_tanh",
                "use_clipped_linears": True,
                "standardize": True,
            },
        },
        0.5,
        ({"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}, "Gemma4ImageProcessorPil"),
        (90, 5),
        GEMMA4_PLACE,
    ),
    "llava-next": (
        {
            "architectures": ["LlavaNextForConditionalGeneration"],
            "model_type": "llava_next",
            "image_token_index": 31,
            "image_grid_pinpoints": PINPOINTS,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "text_config": {
                **COMMON,
                "max_position_embeddings": 512,
                "model_type": "mistral",
                "architectures": ["MistralForCausalLM"],
            },
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "hidden_act": "quick_gelu",
                "projection_dim": 32,
            },
        },
        1.0,
        (
            {
                **CLIP,
                "size": {"shortest_edge": 16},
                "crop_size": {"height": 16, "width": 16},
                "image_grid_pinpoints": PINPOINTS,
            },
            "LlavaNextImageProcessorPil",
        ),
        (61, 37),
        LLAVA_PLACE,
    ),
    "llava": (
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": 31,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "hidden_act": "quick_gelu",
                "projection_dim": 32,
            },
        },
        1.0,
        (
            {**CLIP, "size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}},
            "CLIPImageProcessorPil",
        ),
        (61, 37),
        LLAVA_PLACE,
    ),
    "smolvlm": (
        {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "image_token_id": 31,
            "scale_factor": 2,
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "vision_config": {
                "model_type": "idefics3_vision",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "hidden_act": "gelu_pytorch_tanh",
            },
        },
        1.0,
        (
            {**SIGLIP, "size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}},
            "Idefics3ImageProcessorPil",
        ),
        (61, 37),
        IDEFICS_PLACE,
    ),
    "internvl": (
        {
            "architectures": ["InternVLForConditionalGeneration"],
            "model_type": "internvl",
            "image_token_id": 31,
            "downsample_ratio": 0.5,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
            "vision_config": {
                "model_type": "internvl_vision",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": [16, 16],
                "patch_size": [4, 4],
                "hidden_act": "gelu",
                "norm_type": "layer_norm",
                "use_mean_pooling": True,
                "use_absolute_position_embeddings": True,
                "use_qk_norm": False,
                "attention_bias": True,
            },
        },
        1.0,
        (
            {
                "image_mean": [0.485, 0.456, 0.406],
                "image_std": [0.229, 0.224, 0.225],
                "size": {"height": 16, "width": 16},
                "crop_to_patches": True,
                "min_patches": 1,
                "max_patches": 6,
            },
            "GotOcr2ImageProcessorPil",
        ),
        (61, 37),
        INTERN_PLACE,
    ),
    "pixtral": (
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": 31,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
            "vision_config": PIXTRAL_VISION,
        },
        1.0,
        ({**CLIP, "size": {"longest_edge": 32}, "patch_size": {"height": 4, "width": 4}}, "PixtralImageProcessorPil"),
        (61, 37),
        (([PART, 33] * 5)[:-1] + [34], PIXTRAL_SPELLED),
    ),
    "mistral3-vision": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "image_token_index": 31,
            "spatial_merge_size": 2,
            "vision_feature_layer": -1,
            "projector_hidden_act": "gelu",
            "multimodal_projector_bias": False,
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "mistral", "architectures": ["MistralForCausalLM"]},
            "vision_config": {**PIXTRAL_VISION, "hidden_act": "silu"},
        },
        1.0,
        ({**CLIP, "size": {"longest_edge": 32}, "patch_size": {"height": 4, "width": 4}}, "PixtralImageProcessorPil"),
        (61, 37),
        (([PART, 33] * 3)[:-1] + [34], PIXTRAL_SPELLED),
    ),
}

# Videos of models above: the model, how its processor of videos is set up, its class, frames in all and of a second,
# width and height of a frame as it comes, and as it is taken: all that is done here by Pillow.
QWEN_VIDEO = {key: value for key, value in QWEN_SIZES.items() if key not in ("min_pixels", "max_pixels")}
QWEN_VIDEO = {**QWEN_VIDEO, "size": {"shortest_edge": 256, "longest_edge": 512}}
SQUARE = {"size": {"height": 16, "width": 16}}

VIDEOS = {
    "qwen2-vl-video": ("qwen2-vl", QWEN_VIDEO, "Qwen2VLVideoProcessor", (9, 4.0), (61, 37), [(24, 16)]),
    "qwen2.5-vl-video": ("qwen2.5-vl", QWEN_VIDEO, "Qwen2VLVideoProcessor", (9, 4.0), (61, 37), [(24, 16)]),
    "qwen3-vl-video": (
        "qwen3-vl",
        {**QWEN_VIDEO, **SIGLIP, "size": {"shortest_edge": 256, "longest_edge": 2048}},
        "Qwen3VLVideoProcessor",
        (9, 4.0),
        (61, 37),
        [(24, 16)],
    ),
    "qwen3_5-video": (
        "qwen3_5-vision",
        {**QWEN_VIDEO, **SIGLIP, "size": {"shortest_edge": 256, "longest_edge": 2048}},
        "Qwen3VLVideoProcessor",
        (8, 4.0),
        (61, 37),
        [(24, 16)],
    ),
    "smolvlm-video": ("smolvlm", SIGLIP, "SmolVLMVideoProcessor", (9, 4.0), (61, 37), [(32, 20), (16, 16)]),
    "internvl-video": (
        "internvl",
        {key: PICTURES["internvl"][2][0][key] for key in ("image_mean", "image_std")},
        "InternVLVideoProcessor",
        (9, 4.0),
        (61, 37),
        [(16, 16)],
    ),
}
