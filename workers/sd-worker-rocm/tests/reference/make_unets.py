#!/usr/bin/env python3
"""Pictures of small models of UNets' other kinds, by diffusers' pipelines in f32 on the CPU: refiner, instructions, depths, sizes that XL is told.

The autoencoder's mean is taken of a picture to start from, as this worker does, not a sample around it.

    python3 make_unets.py PLACE
"""
import sys
import numpy as np
import torch
from transformers import CLIPTextModelWithProjection
from diffusers import (DPMSolverMultistepScheduler, EDMDPMSolverMultistepScheduler, EulerDiscreteScheduler, StableDiffusionDepth2ImgPipeline, StableDiffusionInstructPix2PixPipeline,
                       StableDiffusionXLImg2ImgPipeline, StableDiffusionXLInstructPix2PixPipeline, StableDiffusionXLPipeline)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from small import EOS, LENGTH, asked, clip, ddim, keep, model, picture, pictures, save, seeded, tokenizer, unet, vae

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mode()

XL = dict(down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), attention_head_dim=(2, 4),
          transformer_layers_per_block=(1, 2), use_linear_projection=True, addition_embed_type='text_time', addition_time_embed_dim=8)


def shown(name):
    made = picture(name)
    pictures[name] = torch.from_numpy(np.asarray(made).copy())
    return made


def euler(**more):
    return EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', timestep_spacing='leading', steps_offset=1, **more)


def big():
    return clip(CLIPTextModelWithProjection, hidden_size=24, projection_dim=20, hidden_act='gelu', num_hidden_layers=3)


def towers():
    return dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), text_encoder_2=big(), tokenizer_2=tokenizer('clip', '!', LENGTH))


def plain():
    return dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), feature_extractor=None)


def refiners():
    base = model('base', StableDiffusionXLPipeline, unet=unet(cross_attention_dim=56, projection_class_embeddings_input_dim=6 * 8 + 20, **XL), scheduler=euler(),
                 vae=vae(scaling_factor=0.13025), **towers())
    refiner = model('refiner', StableDiffusionXLImg2ImgPipeline, unet=unet(cross_attention_dim=24, projection_class_embeddings_input_dim=5 * 8 + 20, **XL),
                    scheduler=euler(), vae=vae(scaling_factor=0.13025), text_encoder=None, tokenizer=None, text_encoder_2=big(),
                    tokenizer_2=tokenizer('clip', '!', LENGTH), requires_aesthetics_score=True)
    # The latents are the model's: so is the autoencoder.
    refiner_vae, refiner.vae = refiner.vae, base.vae
    size = dict(height=32, width=48)
    said = dict(prompt='a red door', negative_prompt='blue', guidance_scale=4.0)
    request = asked(negative_prompt='blue', steps=5)
    latents = base(**said, **size, num_inference_steps=5, generator=seeded(7), denoising_end=0.3, output_type='latent').images
    for name, more in (('refined', {}), ('refined_scored', dict(aesthetic_score=9.0, negative_aesthetic_score=1.0))):
        image = refiner(**said, image=latents, num_inference_steps=5, denoising_start=0.3, generator=seeded(7), target_size=(32, 48), original_size=(32, 48),
                        **more).images[0]
        keep(name, 'base', image, **request)
    # DPM-Solver++ looks back: in its turn it has nothing to look back at.
    for pipe in (base, refiner):
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
    latents = base(**said, **size, num_inference_steps=6, generator=seeded(7), denoising_end=0.5, output_type='latent').images
    image = refiner(**said, image=latents, num_inference_steps=6, denoising_start=0.5, generator=seeded(7), target_size=(32, 48), original_size=(32, 48)).images[0]
    keep('refined_multistep', 'base', image, **asked(negative_prompt='blue', steps=6, sampler='DPM++ 2M'))
    for pipe in (base, refiner):
        pipe.scheduler = euler()
    refiner.vae = refiner_vae
    image = refiner(**said, image=shown('start'), strength=0.6, num_inference_steps=5, generator=seeded(7), target_size=(32, 48), original_size=(32, 48)).images[0]
    keep('refiner_alone', 'refiner', image, **request)
    image = base(**said, **size, num_inference_steps=3, generator=seeded(7), original_size=(20, 70), crops_coords_top_left=(5, 9), target_size=(64, 40)).images[0]
    keep('told', 'base', image, **asked(negative_prompt='blue'))


def instructions():
    said = dict(num_inference_steps=3, image=shown('start'), negative_prompt='blue')
    pipe = model('instruct', StableDiffusionInstructPix2PixPipeline, unet=unet(in_channels=8), scheduler=ddim(), safety_checker=None,
                 requires_safety_checker=False, **plain())
    request = asked(sampler='DDIM', negative_prompt='blue')
    for name, guidance, keeps in (('instruct', 4.0, 1.5), ('instruct_close', 4.0, 3.0), ('instruct_plain', 1.0, 1.5)):
        image = pipe('a red door', guidance_scale=guidance, image_guidance_scale=keeps, generator=seeded(7), **said).images[0]
        keep(name, 'instruct', image, **{**request, 'guidance': guidance})
    for name, scaled in (('instruct_xl', False), ('instruct_cosxl', True)):
        pipe = model(name, StableDiffusionXLInstructPix2PixPipeline, unet=unet(in_channels=8, cross_attention_dim=56,
                     projection_class_embeddings_input_dim=6 * 8 + 20, **XL), scheduler=euler(), vae=vae(scaling_factor=0.13025), is_cosxl_edit=scaled, **towers())
        image = pipe('a red door', guidance_scale=4.0, image_guidance_scale=1.5, height=32, width=48, generator=seeded(7), **said).images[0]
        keep(name, name, image, **asked(negative_prompt='blue'))


def depths():
    pipe = model('depth', StableDiffusionDepth2ImgPipeline, unet=unet(in_channels=5), scheduler=ddim(), depth_estimator=None, **plain())
    depth = shown('depths')
    grey = torch.from_numpy(np.asarray(depth).astype(np.float32)) @ torch.tensor([0.299, 0.587, 0.114])
    image = pipe('a red door', image=shown('start'), depth_map=grey[None], negative_prompt='blue', strength=0.8, num_inference_steps=5, guidance_scale=4.0,
                 generator=seeded(7)).images[0]
    keep('depth', 'depth', image, **asked(sampler='DDIM', negative_prompt='blue', steps=5))


def playground():
    statistics = dict(latents_mean=[-1.6574, 1.886, -1.383, 2.5155], latents_std=[8.4927, 5.9022, 6.5498, 5.2299], scaling_factor=0.5)
    pipe = model('playground', StableDiffusionXLPipeline, unet=unet(cross_attention_dim=56, projection_class_embeddings_input_dim=6 * 8 + 20, **XL),
                 scheduler=EDMDPMSolverMultistepScheduler(sigma_min=0.002, sigma_max=80.0, sigma_data=0.5), vae=vae(**statistics), **towers())
    image = pipe('a red door', negative_prompt='blue', guidance_scale=3.0, height=32, width=48, num_inference_steps=4, generator=seeded(7)).images[0]
    keep('playground', 'playground', image, **asked(negative_prompt='blue', guidance=3.0, steps=4, sampler='DPM++ 2M'))


if __name__ == '__main__':
    playground()
    refiners()
    instructions()
    depths()
    save(sys.argv[1], 'unets')
