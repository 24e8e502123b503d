#!/usr/bin/env python3
"""Perturbed-attention guidance of transformers: pictures of a small Stable Diffusion 3 (not 3.5: diffusers leaves norms of queries and keys out of the blocks in question).

    python3 make_perturbed.py PLACE        (diffusers 0.42.1)
"""
import sys
from transformers import CLIPTextModelWithProjection
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3PAGPipeline
from diffusers.models.attention_processor import PAGCFGJointAttnProcessor2_0, PAGJointAttnProcessor2_0
from small import EOS, LENGTH, asked, clip, draw, model, save, tokenizer, vae


def sd3():
    towers = dict(text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu'), tokenizer=tokenizer('clip', EOS, LENGTH),
                  text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu', num_hidden_layers=3), tokenizer_2=tokenizer('clip', '!', LENGTH),
                  text_encoder_3=None, tokenizer_3=None)
    net = SD3Transformer2DModel(sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=3, num_attention_heads=2, attention_head_dim=16,
                                joint_attention_dim=72, caption_projection_dim=32, pooled_projection_dim=36, pos_embed_max_size=16)
    pipe = model('sd3', StableDiffusion3PAGPipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
                 vae=vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False), **towers)
    request = asked(negative_prompt='blue', steps=4)
    for name, layers, scale in (('middle', ['blocks.1'], 3.0), ('two', ['blocks.0', 'blocks.2'], 3.0), ('strong', ['blocks.1'], 9.0)):
        pipe.set_pag_applied_layers(layers, (PAGCFGJointAttnProcessor2_0(), PAGJointAttnProcessor2_0()))
        draw(name, 'sd3', pipe, request, negative_prompt='blue', guidance_scale=4.0, pag_scale=scale)


if __name__ == '__main__':
    sd3()
    save(sys.argv[1], 'perturbed')
