#!/usr/bin/env python3
"""States of small language models of every kind, computed with transformers in f32 on the CPU.

    python3 make_language.py OUT

As make_networks.py: OUT/language.safetensors has outputs, OUT/language.json configurations as transformers writes them and the shapes of all tensors.
"""
import json
import sys
import torch
from safetensors.torch import save_file
from transformers import (Gemma2Config, Gemma2Model, Gemma3TextConfig, Gemma3TextModel, LlamaConfig, LlamaModel, MistralConfig, MistralModel, Qwen2Config, Qwen2Model,
                          Qwen3Config, Qwen3Model, Qwen3VLTextConfig, Qwen3VLTextModel)
from make_networks import about, fill, keep, outputs

IDS = [5, 17, 120, 3, 88, 42, 199, 61, 9, 130, 77, 150]
SIZES = dict(vocab_size=200, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)


def states(name, kind, config, wanted, attention='eager', **more):
    net = kind._from_config(config, attn_implementation=attention)
    fill(name, net, json.loads(config.to_json_string(use_diff=False)))
    out = net(torch.tensor([IDS]), output_hidden_states=True, **more)
    for state in wanted:
        keep(f'{name}.{state}', out.hidden_states[state])


def seen(*numbers):
    return dict(attention_mask=torch.tensor([numbers]))


if __name__ == '__main__':
    states('qwen2', Qwen2Model, Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=2), (0, 1, 3, 4))
    states('qwen3', Qwen3Model, Qwen3Config(**SIZES, head_dim=16, rope_theta=1e6), (1, 3, 4))
    # A token that sees nothing takes nothing from attention: so does torch's own, not transformers' eager form.
    states('qwen3_left', Qwen3Model, Qwen3Config(**SIZES, head_dim=16, attention_bias=True), (3, 4), 'sdpa', **seen(0, 0, 0, *[1] * 9))
    states('qwen3_right', Qwen3Model, Qwen3Config(**SIZES, head_dim=16), (3, 4), 'sdpa', **seen(*[1] * 8, 0, 0, 0, 0))
    long = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=500.0)
    states('llama', LlamaModel, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=long), (1, 2, 4))
    states('mistral', MistralModel, MistralConfig(**SIZES, head_dim=16, sliding_window=5), (2, 4))
    states('mistral_whole', MistralModel, MistralConfig(**SIZES, head_dim=16, sliding_window=None, rope_theta=1e9), (2, 4))
    gemma = dict(SIZES, head_dim=16, query_pre_attn_scalar=24, sliding_window=5)
    states('gemma2', Gemma2Model, Gemma2Config(**gemma, attn_logit_softcapping=2.0), (0, 3, 4))
    linear = {'full_attention': dict(rope_type='linear', factor=8.0, rope_theta=1e6), 'sliding_attention': dict(rope_type='default', rope_theta=1e4)}
    states('gemma3', Gemma3TextModel, Gemma3TextConfig(**gemma, sliding_window_pattern=3, rope_parameters=linear), (0, 3, 4), 'sdpa', **seen(0, 0, *[1] * 10))
    # Two tokens of text, a picture of two rows of three, text again.
    times = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8]
    rows = [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8]
    columns = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8]
    turned = dict(rope_type='default', rope_theta=1e4, mrope_section=[4, 2, 2], mrope_interleaved=True)
    states('qwen3_vl', Qwen3VLTextModel, Qwen3VLTextConfig(**SIZES, head_dim=16, rope_parameters=turned), (2, 4),
           position_ids=torch.tensor([[times], [rows], [columns]]))
    save_file(outputs, f'{sys.argv[1]}/language.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/language.json', 'w'), separators=(',', ':'))
