#!/usr/bin/env python3
"""Pictures of a small model of Stable Diffusion XL for inpainting, computed with diffusers' parts in f32 on the CPU.

    python3 make_inpainting.py PLACE
"""
import sys
import numpy as np
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
from transformers import CLIPTextModelWithProjection
from small import EOS, LENGTH, asked, clip, keep, model, picture, pictures, save, seeded, tokenizer, unet, vae


def xl():
    """A loop of our own: what is kept is put back in every step, as web UIs do, and the autoencoder's mean is taken."""
    net = unet(in_channels=9, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), attention_head_dim=(2, 4),
               transformer_layers_per_block=(1, 2), cross_attention_dim=56, use_linear_projection=True, addition_embed_type='text_time', addition_time_embed_dim=8,
               projection_class_embeddings_input_dim=6 * 8 + 20)
    euler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', timestep_spacing='leading', steps_offset=1)
    pipe = model('xl_inpaint', StableDiffusionXLPipeline, unet=net, scheduler=euler, vae=vae(scaling_factor=0.13025), text_encoder=clip(),
                 tokenizer=tokenizer('clip', EOS, LENGTH), text_encoder_2=clip(CLIPTextModelWithProjection, hidden_size=24, projection_dim=20, hidden_act='gelu', num_hidden_layers=3),
                 tokenizer_2=tokenizer('clip', '!', LENGTH))
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
    text, negative, pooled, negative_pooled = pipe.encode_prompt('a red door', do_classifier_free_guidance=True, negative_prompt='blue')
    sizes = torch.tensor([[32, 48, 0, 0, 32, 48]] * 2)
    added = {'text_embeds': torch.cat([negative_pooled, pooled]), 'time_ids': sizes}
    euler.set_timesteps(3)
    sigmas = euler.sigmas
    x = kept + sigmas[0] * torch.randn(1, 4, 16, 24, generator=seeded(7))
    for i, t in enumerate(euler.timesteps):
        seen = x / (sigmas[i] ** 2 + 1).sqrt()
        both = torch.cat([torch.cat([seen, small, masked], 1)] * 2)
        uncond, cond = pipe.unet(both, t, torch.cat([negative, text]), added_cond_kwargs=added).sample.chunk(2)
        clean = x - sigmas[i] * (uncond + 4.0 * (cond - uncond))
        clean = clean * small + kept * (1 - small)
        x = x + (x - clean) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
    image = ((pipe.vae.decode(x / factor).sample + 1) * 127.5).clamp(0, 255).round()[0].permute(1, 2, 0).to(torch.uint8).numpy().copy()
    image[:, :24] = np.asarray(start)[:, :24]
    keep('xl_inpaint', 'xl_inpaint', image, **asked(negative_prompt='blue'))


if __name__ == '__main__':
    xl()
    save(sys.argv[1], 'inpainting')
