#!/usr/bin/env python3
"""Pictures of a small FLUX.1 that ControlNets steer, by diffusers' pipeline in f32 on the CPU. The autoencoder's mean is taken of their pictures.

    python3 make_flux_controls.py PLACE
"""
import sys
import numpy as np
import torch
from PIL import Image
from diffusers import FlowMatchEulerDiscreteScheduler, FluxControlNetModel, FluxControlNetPipeline, FluxPipeline, FluxTransformer2DModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from make_controls import network, shown
from small import EOS, LENGTH, asked, clip, keep, model, picture, pictures, save, seeded, t5, tokenizer, vae

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mode()
CONFIG = dict(in_channels=16, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24, pooled_projection_dim=32, axes_dims_rope=(4, 6, 6))


def flux(name, **of_vae):
    net = FluxTransformer2DModel(num_layers=3, num_single_layers=2, guidance_embeds=True, **CONFIG)
    return model(name, FluxPipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15),
                 text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), text_encoder_2=t5(24), tokenizer_2=tokenizer('t5', '<pad>', 512),
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False, **of_vae))


def steered(pipe, nets):
    made = FluxControlNetPipeline(**{k: v for k, v in pipe.components.items() if k not in ('image_encoder', 'feature_extractor')}, controlnet=nets)
    made.set_progress_bar_config(disable=True)
    return made


def seeing_pixels():
    """XLabs' kind, whose convolutions make a picture as small as an autoencoder of 8 pixels a latent does; two residuals for three blocks in turns."""
    pipe = flux('flux_eight', block_out_channels=(16, 16, 16, 32), down_block_types=('DownEncoderBlock2D',) * 4, up_block_types=('UpDecoderBlock2D',) * 4)
    net = network('flux_pixels', FluxControlNetModel(num_layers=2, num_single_layers=0, guidance_embeds=True, patch_size=2, conditioning_embedding_channels=4, **CONFIG))
    wide = picture('wide').resize((64, 48), Image.BILINEAR)
    pictures['wide'] = torch.from_numpy(np.asarray(wide).copy())
    image = steered(pipe, net)('a red door', control_image=wide, height=48, width=64, num_inference_steps=4, guidance_scale=3.5, generator=seeded(7),
                               controlnet_conditioning_scale=0.8).images[0]
    # Behind so many convolutions little is left of a picture with these weights: it is compared where it enters.
    pixels = torch.from_numpy(np.asarray(wide).copy()).float().permute(2, 0, 1)[None] / 127.5 - 1
    small = net.input_hint_block(pixels)
    pictures['pixels_embedded'] = net.controlnet_x_embedder(small.reshape(1, 4, 3, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(1, 12, 16))
    keep('flux_pixels_case', 'flux_eight', image, **asked(guidance=3.5, steps=4, width=64, height=48))


def all_of_them():
    pipe = flux('flux')
    hint, other = shown('hint'), shown('other')
    # Two residuals for three blocks; diffusers adds residuals of several networks one by one, so that all must have as many.
    plain = network('flux_plain', FluxControlNetModel(num_layers=2, num_single_layers=1, guidance_embeds=True, **CONFIG))
    # No single blocks; guidance is not its condition.
    blind = network('flux_blind', FluxControlNetModel(num_layers=2, num_single_layers=0, guidance_embeds=False, **CONFIG))
    union = network('flux_union', FluxControlNetModel(num_layers=2, num_single_layers=1, guidance_embeds=True, num_mode=7, **CONFIG))
    for case, nets, image, more in (
            ('flux_blind', blind, hint, dict(controlnet_conditioning_scale=0.8)),
            ('flux_depth', union, hint, dict(controlnet_conditioning_scale=0.7, control_mode=2)),
            ('flux_two', [plain, union], [hint, other], dict(controlnet_conditioning_scale=[0.8, 0.5], control_mode=[None, 0], control_guidance_start=[0.0, 0.25],
                                                            control_guidance_end=[0.5, 1.0]))):
        image = steered(pipe, nets)('a red door', control_image=image, height=32, width=48, num_inference_steps=4, guidance_scale=3.5, generator=seeded(7), **more).images[0]
        keep(f'{case}_case', 'flux', image, **asked(guidance=3.5, steps=4))


if __name__ == '__main__':
    all_of_them()
    seeing_pixels()
    save(sys.argv[1], 'flux_controls')
