#!/usr/bin/env python3
"""Pictures of whole pipelines of small models, computed with diffusers and transformers in f32 on the CPU: a model of each of the first families.

    python3 make_pipelines.py PLACE
"""
import pathlib
import sys
import tempfile
import numpy as np
import torch
from transformers import CLIPTextModelWithProjection, Qwen3Config, Qwen3ForCausalLM
from diffusers import (ControlNetModel, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel,
                       SD3Transformer2DModel, StableDiffusion3Pipeline, StableDiffusionControlNetPipeline, StableDiffusionPipeline,
                       StableDiffusionXLPipeline, ZImagePipeline, ZImageTransformer2DModel)
from small import (EOS, LENGTH, asked, clip, ddim, draw, keep, model, models, picture, pictures, save, seeded, t5, tokenizer, unet, vae,
                   with_weights)

def sd3(name, with_t5, **more):
    width = 72
    towers = dict(text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu'), tokenizer=tokenizer('clip', EOS, LENGTH),
                  text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu', num_hidden_layers=3), tokenizer_2=tokenizer('clip', '!', LENGTH),
                  text_encoder_3=t5(width) if with_t5 else None, tokenizer_3=tokenizer('t5', '<pad>', 256) if with_t5 else None)
    net = SD3Transformer2DModel(sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=16,
                                joint_attention_dim=width, caption_projection_dim=32, pooled_projection_dim=36, pos_embed_max_size=16, **more)
    pipe = model(name, StableDiffusion3Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
                 vae=vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False), **towers)
    request = asked(negative_prompt='blue')
    draw(name, name, pipe, request, negative_prompt='blue', guidance_scale=4.0)


def flux(name, guided):
    net = FluxTransformer2DModel(in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24,
                                 pooled_projection_dim=32, guidance_embeds=guided, axes_dims_rope=(4, 6, 6))
    shift = dict(use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15) if guided else dict(shift=1.0)
    pipe = model(name, FluxPipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(**shift), text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH),
                 text_encoder_2=t5(24), tokenizer_2=tokenizer('t5', '<pad>', 512),
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False))
    request = asked(guidance=3.5 if guided else 1.0)
    draw(name, name, pipe, request, guidance_scale=3.5 if guided else 0.0, max_sequence_length=512 if guided else 256)


def z_image():
    net = ZImageTransformer2DModel(in_channels=4, dim=64, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=24,
                                   axes_dims=[8, 12, 12], axes_lens=[128, 32, 32])
    qwen = Qwen3ForCausalLM(Qwen3Config(vocab_size=259, hidden_size=24, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                                        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True))
    pipe = model('z_image', ZImagePipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=qwen,
                 tokenizer=tokenizer('qwen', '<|endoftext|>', 512),
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False))
    # Texts of two lengths.
    negative = 'blue and a rather longer text than the prompt'
    for name, guidance in (('z_image', 0.0), ('z_image_guided', 2.0)):
        image = pipe('a red door', negative_prompt=negative, height=32, width=48, num_inference_steps=3, generator=seeded(7), guidance_scale=guidance).images[0]
        keep(name, 'z_image', image, **asked(guidance=guidance, negative_prompt=negative))


def xl():
    net = unet(down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), attention_head_dim=(2, 4),
               transformer_layers_per_block=(1, 2), cross_attention_dim=56, use_linear_projection=True, addition_embed_type='text_time',
               addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + 20)
    euler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', timestep_spacing='leading', steps_offset=1)
    pipe = model('xl', StableDiffusionXLPipeline, unet=net, scheduler=euler, vae=vae(scaling_factor=0.13025),
                 text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH),
                 text_encoder_2=clip(CLIPTextModelWithProjection, hidden_size=24, projection_dim=20, hidden_act='gelu', num_hidden_layers=3), tokenizer_2=tokenizer('clip', '!', LENGTH))
    draw('xl', 'xl', pipe, asked(negative_prompt='blue'), negative_prompt='blue', guidance_scale=4.0)
    # Zeros stand for no negative prompt.
    draw('xl_no_negative', 'xl', pipe, asked(), guidance_scale=4.0)


def control():
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe = model('sd', StableDiffusionPipeline, unet=unet(), scheduler=ddim(), **made)
    draw('sd', 'sd', pipe, asked(sampler='DDIM'), guidance_scale=4.0)
    net = ControlNetModel(block_out_channels=(32, 64), layers_per_block=1, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), attention_head_dim=4,
                          cross_attention_dim=32, norm_num_groups=16, conditioning_embedding_out_channels=(8, 16))
    with tempfile.TemporaryDirectory() as place:
        net.save_pretrained(place)
        models['controlnet'] = with_weights(pathlib.Path(place), 'controlnet')
        net = ControlNetModel.from_pretrained(place)
    both = StableDiffusionControlNetPipeline(**{**pipe.components, 'controlnet': net}, requires_safety_checker=False)
    both.set_progress_bar_config(disable=True)
    hint = picture('hint')
    pictures['hint'] = torch.from_numpy(np.asarray(hint).copy())
    draw('control', 'sd', both, asked(sampler='DDIM'), guidance_scale=4.0, image=hint, controlnet_conditioning_scale=0.8)


def inpaint():
    """diffusers' parts in a loop of our own: what is kept is put back in every step, as web UIs do, and the autoencoder's mean is taken."""
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe = model('inpaint', StableDiffusionPipeline, unet=unet(in_channels=9), scheduler=ddim(), **made)
    start = picture('start')
    pictures['start'] = torch.from_numpy(np.asarray(start).copy())
    pixels = torch.from_numpy(np.asarray(start).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    # The right half is painted.
    mask = torch.zeros(1, 1, 32, 48)
    mask[..., 24:] = 1
    factor = pipe.vae.config.scaling_factor
    encode = lambda x: pipe.vae.encode(x).latent_dist.mean * factor
    kept, masked = encode(pixels), encode(pixels * (1 - mask))
    small = torch.nn.functional.interpolate(mask, size=(16, 24))
    text, negative = pipe.encode_prompt('a red door', 'cpu', 1, True, '')
    noise = torch.randn(1, 4, 16, 24, generator=seeded(7))
    scheduler = pipe.scheduler
    scheduler.set_timesteps(3)
    x = scheduler.add_noise(kept, noise, scheduler.timesteps[:1])
    for t in scheduler.timesteps:
        both = torch.cat([torch.cat([x, small, masked], 1)] * 2)
        uncond, cond = pipe.unet(both, t, torch.cat([negative, text])).sample.chunk(2)
        a = scheduler.alphas_cumprod[t]
        clean = (x - (1 - a).sqrt() * (uncond + 4.0 * (cond - uncond))) / a.sqrt()
        clean = clean * small + kept * (1 - small)
        epsilon = (x - a.sqrt() * clean) / (1 - a).sqrt()
        x = scheduler.step(epsilon, t, x).prev_sample
    image = ((pipe.vae.decode(x / factor).sample + 1) * 127.5).clamp(0, 255).round()[0].permute(1, 2, 0).to(torch.uint8).numpy().copy()
    image[:, :24] = np.asarray(start)[:, :24]
    keep('inpaint', 'inpaint', image, **asked(sampler='DDIM'))


if __name__ == '__main__':
    sd3('sd3', False)
    sd3('sd35', True, dual_attention_layers=(0,), qk_norm='rms_norm')
    flux('flux', True)
    flux('schnell', False)
    z_image()
    xl()
    control()
    inpaint()
    save(sys.argv[1], 'pipelines')
