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
                          Qwen2_5_VLConfig, Qwen2_5_VLModel, Qwen3Config, Qwen3Model, Qwen3VLTextConfig, Qwen3VLTextModel)
from make_networks import about, fill, keep, outputs, uniform

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


def seeing():
    """A text with two pictures of other sizes, whose windows are cut off at the edges."""
    vision = dict(depth=3, hidden_size=32, intermediate_size=40, num_heads=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, window_size=16,
                  fullatt_block_indexes=[1], out_hidden_size=32)
    text = dict(SIZES, rope_parameters=dict(rope_type='default', rope_theta=1e4, mrope_section=[2, 1, 1]), rms_norm_eps=1e-6)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=190, vision_start_token_id=191, vision_end_token_id=192)
    net = Qwen2_5_VLModel._from_config(config, attn_implementation='eager')
    fill('qwen2_5_vl', net, json.loads(config.to_json_string(use_diff=False)))
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    cut = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, do_resize=False)
    bytes_of = lambda name, h, w: ((uniform(name, (h, w, 3)).numpy() + 1) * 127.5).astype('uint8')
    made = cut(images=[bytes_of('p0', 24, 40), bytes_of('p1', 16, 8)], return_tensors='pt')
    ids = [5, 191] + [190] * 15 + [192, 7, 191] + [190] * 2 + [192, 9, 11]
    types = torch.tensor([[int(i == 190) for i in ids]])
    out = net(torch.tensor([ids]), pixel_values=made.pixel_values, image_grid_thw=made.image_grid_thw, mm_token_type_ids=types, output_hidden_states=True)
    for state in (0, 2, 4):
        keep(f'qwen2_5_vl.{state}', out.hidden_states[state])


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
    seeing()
    save_file(outputs, f'{sys.argv[1]}/language.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/language.json', 'w'), separators=(',', ':'))
