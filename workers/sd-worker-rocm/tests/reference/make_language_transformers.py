#!/usr/bin/env python3
"""Outputs of the transformers that read language models, computed with diffusers in f32 on the CPU: Qwen-Image, Lumina 2, HiDream.

    python3 make_language_transformers.py OUT

As make_networks.py.
"""
import json
import sys
import torch
from safetensors.torch import save_file
from diffusers import HiDreamImageTransformer2DModel, Lumina2Transformer2DModel, QwenImageTransformer2DModel
from make_networks import about, keep, make, normal, outputs


def packed(x):
    b, c, h, w = x.shape
    return x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)


def unpacked(x, h, w):
    b, _, c = x.shape
    return x.view(b, h // 2, w // 2, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c // 4, h, w)


def qwen():
    config = dict(patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24, axes_dims_rope=(4, 6, 6))
    x, text = normal('x', 2, 4, 14, 10), normal('text', 2, 9, 24)
    # References of other sizes.
    references = [normal('r0', 1, 4, 6, 18), normal('r1', 1, 4, 10, 14)]
    for name, others, still in (('qwen_image', [], False), ('qwen_image_edit', references, False), ('qwen_image_still', references, True)):
        net = make(name, QwenImageTransformer2DModel, dict(config, zero_cond_t=still))
        tokens = torch.cat([packed(x)] + [packed(r).expand(2, -1, -1) for r in others], 1)
        shapes = [[(1, r.shape[2] // 2, r.shape[3] // 2) for r in [x] + others]] * 2
        out = net(tokens, text, None, torch.tensor([0.6, 0.6]), shapes).sample[:, :35]
        keep(name, unpacked(out, 14, 10))


def lumina():
    config = dict(in_channels=4, hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=20, ffn_dim_multiplier=0.7,
                  axes_dim_rope=(4, 4, 4), axes_lens=(64, 32, 32), cap_feat_dim=24)
    net = make('lumina2', Lumina2Transformer2DModel, config)
    text = normal('text', 2, 9, 24)
    keep('lumina2', net(normal('xl', 2, 4, 8, 12), torch.tensor([0.4, 0.4]), text, torch.ones(2, 9, dtype=torch.long)).sample)


def hidream():
    config = dict(patch_size=2, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, caption_channels=[24, 20], text_emb_dim=18,
                  num_routed_experts=4, num_activated_experts=2, axes_dims_rope=(8, 4, 4), max_resolution=(12, 12), llama_layers=[0, 1, 2, 2])
    t5, states, pooled = normal('t5', 2, 7, 24), normal('states', 3, 2, 5, 20), normal('pooled', 2, 18)
    for name, experts, shape in (('hidream', 4, (12, 8)), ('hidream_square', 4, (8, 8)), ('hidream_one', 0, (8, 8))):
        net = make(name, HiDreamImageTransformer2DModel, dict(config, num_routed_experts=experts))
        x = normal('xh', 2, 4, *shape)
        keep(name, net(hidden_states=x, timesteps=torch.tensor([600., 600.]), encoder_hidden_states_t5=t5, encoder_hidden_states_llama3=states, pooled_embeds=pooled).sample)


if __name__ == '__main__':
    qwen()
    lumina()
    hidream()
    save_file(outputs, f'{sys.argv[1]}/language_transformers.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/language_transformers.json', 'w'), separators=(',', ':'))
