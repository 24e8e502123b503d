"""Speech to text: a tiny Whisper whose windows last two seconds."""

LETTERS = 26
END, START, TRANSLATE, TRANSCRIBE, OF_LM, PREVIOUS, SILENCE, TIMELESS = 27, 28, 31, 32, 33, 34, 35, 36
POSITIONS = 100
SPEECH = {
    "whisper": (
        {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "vocab_size": TIMELESS + 1 + POSITIONS + 1,
            "num_mel_bins": 80,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 128,
            "max_source_positions": POSITIONS,
            "max_target_positions": 64,
            "activation_function": "gelu",
            "scale_embedding": False,
            "pad_token_id": END,
            "bos_token_id": END,
            "eos_token_id": END,
            "decoder_start_token_id": START,
        },
        1.0,
        # generation_config.json
        {
            "is_multilingual": True,
            "lang_to_id": {"<|en|>": 29, "<|de|>": 30},
            "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
            "no_timestamps_token_id": TIMELESS,
            "prev_sot_token_id": PREVIOUS,
            "suppress_tokens": [3, START, TRANSLATE, TRANSCRIBE, OF_LM, PREVIOUS, SILENCE],
            "begin_suppress_tokens": [LETTERS, END],
            "max_initial_timestamp_index": 20,
            "pad_token_id": END,
            "bos_token_id": END,
            "eos_token_id": END,
            "decoder_start_token_id": START,
        },
    ),
}
