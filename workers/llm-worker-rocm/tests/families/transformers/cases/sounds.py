"""Families that hear: a tiny model each, how its features are made, and how long the sound is."""

from .common import COMMON
from .pictures import QWEN_SIZES, QWEN_VISION, TEXT, sections
from .windows import CASES as WINDOWS, FULL, GEMMA4, SLIDING

# Samples that the encoder takes at once: 80 frames.
PIECE = 12800
EXTRACTOR = {"feature_size": 16, "hop_length": 160, "n_fft": 400, "sampling_rate": 16000}
WHISPER = {
    "num_mel_bins": 16,
    "max_source_positions": 40,
    "activation_function": "gelu",
    "scale_embedding": False,
}
PART = None
GEMMA3N = {key: value for key, value in WINDOWS["gemma3n"][0].items() if key != "architectures"}

# The configuration, the norms' weight, the extractor's settings and class, samples of the sound, what stands for it in
# the prompt (PART for its rows), and the spellings of these tokens.
SOUNDS = {
    # Two pieces, the second of them mostly silence.
    "voxtral": (
        {
            "architectures": ["VoxtralForConditionalGeneration"],
            "model_type": "voxtral",
            "audio_token_id": 31,
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 16},
            "audio_config": {
                **WHISPER,
                "model_type": "voxtral_encoder",
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
            },
        },
        1.0,
        (EXTRACTOR, "WhisperFeatureExtractor"),
        15007,
        ([33, PART], {31: "[AUDIO]", 33: "[BEGIN_AUDIO]"}),
    ),
    # Less than a piece: what comes behind it is not seen.
    "qwen2-audio": (
        {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "model_type": "qwen2_audio",
            "audio_token_index": 31,
            "tie_word_embeddings": False,
            "text_config": {**COMMON, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
            "audio_config": {
                **WHISPER,
                "model_type": "qwen2_audio_encoder",
                "d_model": 32,
                "encoder_ffn_dim": 48,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
            },
        },
        1.0,
        (EXTRACTOR, "WhisperFeatureExtractor"),
        10007,
        ([33, PART, 34], {31: "<|AUDIO|>", 33: "<|audio_bos|>", 34: "<|audio_eos|>"}),
    ),
    # Windows of 16 frames, the last of them shorter.
    "qwen2.5-omni": (
        {
            "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
            "model_type": "qwen2_5_omni_thinker",
            "audio_token_index": 31,
            "image_token_index": 35,
            "video_token_index": 36,
            "audio_start_token_id": 33,
            "audio_end_token_id": 34,
            "vision_start_token_id": 37,
            "vision_end_token_id": 38,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
            "tie_word_embeddings": False,
            "text_config": {
                **TEXT,
                "model_type": "qwen2_5_omni_text",
                "use_sliding_window": False,
                "rope_parameters": sections([2, 3, 3]),
            },
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen2_5_omni_vision_encoder",
                "hidden_size": 32,
                "out_hidden_size": 64,
                "intermediate_size": 48,
                "num_heads": 2,
                "window_size": 16,
                "fullatt_block_indexes": [1, 3],
                "hidden_act": "silu",
            },
            "audio_config": {
                **WHISPER,
                "model_type": "qwen2_5_omni_audio_encoder",
                "d_model": 32,
                "encoder_ffn_dim": 48,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "n_window": 8,
                "output_dim": 64,
            },
        },
        1.0,
        ({**QWEN_SIZES, **EXTRACTOR}, "WhisperFeatureExtractor"),
        10007,
        (
            [33, PART, 34],
            {
                31: "<|AUDIO|>",
                33: "<|audio_bos|>",
                34: "<|audio_eos|>",
                35: "<|IMAGE|>",
                37: "<|vision_bos|>",
                38: "<|vision_eos|>",
            },
        ),
    ),
    # Two chunks of rows, and layers with inputs of their own.
    "gemma4-audio": (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "audio_token_id": 31,
            "boa_token_id": 33,
            "eoa_token_index": 34,
            "image_token_id": 35,
            "video_token_id": 36,
            "vision_config": None,
            "text_config": {
                **{key: value for key, value in COMMON.items() if key not in ("rope_theta", "hidden_act")},
                **GEMMA4,
                "model_type": "gemma4_text",
                "num_hidden_layers": 5,
                "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
                "hidden_size_per_layer_input": 8,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
            },
            "audio_config": {
                "model_type": "gemma4_audio",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "subsampling_conv_channels": [16, 8],
                "output_proj_dims": 24,
            },
        },
        0.5,
        (
            {
                "feature_size": 16,
                "sampling_rate": 16000,
                "frame_length_ms": 20.0,
                "hop_length_ms": 10.0,
                "mel_floor": 0.001,
            },
            "Gemma4AudioFeatureExtractor",
        ),
        10007,
        ([33, PART, 34], {31: "<|audio|>", 33: "<|audio>", 34: "<audio|>"}),
    ),
    # Rows of four times as many behind the convolutions, filled up; the last row is the end's own.
    "gemma3n-audio": (
        {
            "architectures": ["Gemma3nForConditionalGeneration"],
            "model_type": "gemma3n",
            "audio_soft_tokens_per_image": 12,
            "audio_token_id": 35,
            "boa_token_id": 30,
            "eoa_token_id": 34,
            "boi_token_id": 29,
            "eoi_token_id": 32,
            "image_token_id": 33,
            "text_config": {**GEMMA3N, "vocab_size_per_layer_input": 30},
            "vision_config": {
                "model_type": "gemma3n_vision",
                "hidden_size": 16,
                "vocab_offset": 32,
                "vocab_size": 2,
                "rms_norm_eps": 1e-6,
            },
            "audio_config": {
                "model_type": "gemma3n_audio",
                "vocab_offset": 34,
                "vocab_size": 6,
                "input_feat_size": 16,
                "hidden_size": 32,
                "conf_num_hidden_layers": 2,
                "conf_num_attention_heads": 2,
                "sscp_conv_channel_size": [16, 8],
            },
        },
        0.5,
        (
            {
                "feature_size": 16,
                "sampling_rate": 16000,
                "frame_length_ms": 32.0,
                "hop_length_ms": 10.0,
                "min_frequency": 125.0,
                "max_frequency": 7600.0,
                "preemphasis": 0.97,
                "mel_floor": 1e-5,
            },
            "Gemma3nAudioFeatureExtractor",
        ),
        22007,
        ([30, PART], {30: "<start_of_audio>", 35: "<audio_soft_token>"}),
    ),
}
