#!/usr/bin/env python3
"""Pictures of a small Stable Diffusion 3 that ControlNets steer, by diffusers' pipelines in f32 on the CPU. The autoencoder's mean is taken of their pictures.

    python3 make_sd3_controls.py PLACE
"""
import sys
import numpy as np
import torch
from PIL import Image
from transformers import CLIPTextModelWithProjection
from diffusers import (FlowMatchEulerDiscreteScheduler, SD3ControlNetModel, SD3Transformer2DModel, StableDiffusion3ControlNetInpaintingPipeline,
                       StableDiffusion3ControlNetPipeline, StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from make_controls import network, shown
from small import EOS, LENGTH, asked, clip, keep, model, save, seeded, tokenizer, vae

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mode()
SIZES = dict(patch_size=2, in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, caption_projection_dim=32, pooled_projection_dim=36)
ASKED = dict(height=32, width=48, num_inference_steps=4, guidance_scale=4.0, negative_prompt='blue')


def parts(pipe):
    return {k: v for k, v in pipe.components.items() if k not in ('image_encoder', 'feature_extractor')}


def made(kind, pipe, net):
    pipe = kind(**parts(pipe), controlnet=net)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def from_a_picture(pipe, net, hint, start):
    """diffusers has no pipeline for this: the network's residuals come in where its others' do."""
    second = StableDiffusion3Img2ImgPipeline(**parts(pipe))
    second.set_progress_bar_config(disable=True)
    transformer, plain = pipe.transformer, pipe.transformer.forward
    pixels = second.image_processor.preprocess(hint, height=32, width=48)
    latents = second.vae.encode(pixels).latent_dist.sample() * second.vae.config.scaling_factor

    def forward(hidden_states, timestep, encoder_hidden_states, pooled_projections, **more):
        residuals = net(hidden_states=hidden_states, controlnet_cond=torch.cat([latents] * len(hidden_states)), conditioning_scale=0.8,
                        encoder_hidden_states=encoder_hidden_states, pooled_projections=torch.zeros_like(pooled_projections), timestep=timestep, return_dict=False)[0]
        return plain(hidden_states=hidden_states, timestep=timestep, encoder_hidden_states=encoder_hidden_states, pooled_projections=pooled_projections,
                     block_controlnet_hidden_states=residuals, **more)

    transformer.forward = forward
    image = second('a red door', image=start, strength=0.75, generator=seeded(7), **ASKED).images[0]
    del transformer.forward
    return image


def all_of_them():
    towers = dict(text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu'), tokenizer=tokenizer('clip', EOS, LENGTH),
                  text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu'), tokenizer_2=tokenizer('clip', '!', LENGTH))
    net = SD3Transformer2DModel(sample_size=24, num_layers=4, joint_attention_dim=72, pos_embed_max_size=16, **SIZES)
    pipe = model('sd3', StableDiffusion3Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder_3=None, tokenizer_3=None,
                 vae=vae(scaling_factor=1.5305, shift_factor=0.3609, use_quant_conv=False, use_post_quant_conv=False), **towers)
    hint, other = shown('hint'), shown('other')
    # InstantX': a table of positions of its own, zeros for the pooled text, latents that are not shifted. Three residuals for four blocks.
    plain = network('plain', SD3ControlNetModel(sample_size=24, num_layers=3, joint_attention_dim=72, pos_embed_max_size=20, **SIZES))
    second = network('second', SD3ControlNetModel(sample_size=24, num_layers=3, joint_attention_dim=72, pos_embed_max_size=20, dual_attention_layers=(0,),
                                                  qk_norm='rms_norm', **SIZES))
    # Stability's for 3.5 large: neither text nor an entry of its own.
    large = network('large', SD3ControlNetModel(sample_size=24, num_layers=2, joint_attention_dim=None, pos_embed_max_size=None, pos_embed_type=None, use_pos_embed=False,
                                                force_zeros_for_pooled_projection=False, **SIZES))
    # Alimama's for inpainting.
    painting = network('painting', SD3ControlNetModel(sample_size=24, num_layers=2, joint_attention_dim=72, pos_embed_max_size=20, extra_conditioning_channels=1, **SIZES))
    control = StableDiffusion3ControlNetPipeline
    asked_for = asked(negative_prompt='blue', steps=4)
    for case, nets, image, more in (
            ('plain_case', plain, hint, dict(controlnet_conditioning_scale=0.8)),
            ('large_case', large, hint, dict(controlnet_conditioning_scale=0.7)),
            ('two', [plain, second], [hint, other], dict(controlnet_conditioning_scale=[0.8, 0.5], control_guidance_start=[0.0, 0.25], control_guidance_end=[0.5, 1.0]))):
        image = made(control, pipe, nets)('a red door', control_image=image, generator=seeded(7), **ASKED, **more).images[0]
        keep(case, 'sd3', image, **asked_for)
    canny = made(control, pipe, large)
    # As the makers' example has it.
    usual = canny.image_processor.preprocess
    canny.image_processor.preprocess = lambda image, **size: usual(image, **size) * 255 * 0.5 + 0.5
    image = canny('a red door', control_image=hint, generator=seeded(7), controlnet_conditioning_scale=0.7, **ASKED).images[0]
    keep('canny', 'sd3', image, **asked_for)
    mask = np.zeros((32, 48), np.uint8)
    mask[8:28, 20:40] = 255
    image = made(StableDiffusion3ControlNetInpaintingPipeline, pipe, painting)('a red door', control_image=hint, control_mask=Image.fromarray(mask), generator=seeded(7),
                                                                              controlnet_conditioning_scale=0.8, **ASKED).images[0]
    keep('painted', 'sd3', image, **asked_for)
    keep('from_a_picture', 'sd3', from_a_picture(pipe, plain, hint, other), **asked_for)


if __name__ == '__main__':
    all_of_them()
    save(sys.argv[1], 'sd3_controls')
