#!/usr/bin/env python3
"""Videos of small models of LTX-Video, computed with diffusers and transformers in f32 on the CPU; frames lie below each other.

    python3 make_ltx.py PLACE
"""
import sys
import numpy as np
import torch
from diffusers import (AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXConditionPipeline, LTXImageToVideoPipeline, LTXPipeline,
                       LTXVideoTransformer3DModel)
from diffusers.pipelines.ltx import pipeline_ltx_condition, pipeline_ltx_image2video
from diffusers.pipelines.ltx.pipeline_ltx_condition import LTXVideoCondition
from small import asked, keep, model, picture, pictures, save, seeded, t5, tokenizer

# Pictures are their latents' means here; nothing is drawn for what is mixed in with all its strength.
for module in (pipeline_ltx_image2video, pipeline_ltx_condition):
    module.retrieve_latents = lambda encoded, generator=None, sample_mode='sample': encoded.latent_dist.mode()
randn = pipeline_ltx_condition.randn_tensor
alone = []
pipeline_ltx_condition.randn_tensor = lambda shape, **more: torch.zeros(shape) if len(shape) == 5 and shape[2] == 1 and not alone else randn(shape, **more)
SIZE = dict(width=32, height=32)


def transformer():
    # Thirty-two heads, and a width that six does not divide, as in the real models.
    return LTXVideoTransformer3DModel(in_channels=4, out_channels=4, num_attention_heads=32, attention_head_dim=2, cross_attention_dim=64, num_layers=2,
                                      caption_channels=24)


def vae(**more):
    config = dict(latent_channels=4, block_out_channels=(8, 16), decoder_block_out_channels=(8, 16), layers_per_block=(1, 1, 1), decoder_layers_per_block=(1, 1, 1),
                  spatio_temporal_scaling=(True, False), decoder_spatio_temporal_scaling=(True, False), decoder_inject_noise=(False,) * 3, downsample_type=('conv',) * 2,
                  upsample_residual=(False,) * 2, upsample_factor=(1,) * 2, down_block_types=('LTXVideoDownBlock3D',) * 2, patch_size=4)
    return AutoencoderKLLTXVideo(**{**config, **more})


def middle_vae(**more):
    """As 0.9.1 has it."""
    return vae(**{**dict(timestep_conditioning=True, decoder_inject_noise=(False, True, True), upsample_residual=(True, False), upsample_factor=(2, 1),
                         decoder_block_out_channels=(16, 16)), **more})


def newer_vae():
    """As since 0.9.5."""
    return vae(block_out_channels=(8, 16, 16, 32), down_block_types=('LTXVideo095DownBlock3D',) * 3, spatio_temporal_scaling=(True,) * 3,
               downsample_type=('spatial', 'temporal', 'spatiotemporal'), layers_per_block=(1, 1, 1, 1), timestep_conditioning=True, upsample_residual=(True, True),
               upsample_factor=(2, 2), decoder_block_out_channels=(16, 32), decoder_spatio_temporal_scaling=(True, True), patch_size=2, spatial_compression_ratio=8,
               temporal_compression_ratio=4)


def parts(scheduler, **more):
    return {**dict(tokenizer=tokenizer('t5', '<pad>', 128), text_encoder=t5(24), transformer=transformer(), scheduler=FlowMatchEulerDiscreteScheduler(**scheduler)), **more}


SHIFTED = dict(use_dynamic_shifting=True, base_shift=0.95, max_shift=2.05, base_image_seq_len=1024, max_image_seq_len=4096, shift_terminal=0.1)


def film(name, of, pipe, frames=5, guidance=3.0, **more):
    """Keeps what a pipeline makes of a prompt; noise in the decoder is drawn after that of the latents."""
    generator, decode, plain = seeded(7), pipe.vae.decode, torch.randn

    def decoded(*args, **kwargs):
        torch.randn = lambda shape, generator_=generator, **kw: plain(shape, generator=generator_, dtype=kw.get('dtype'))
        alone.clear()
        try:
            return decode(*args, **kwargs)
        finally:
            torch.randn = plain
    pipe.vae.decode = decoded
    video = pipe(prompt='a red door', negative_prompt='blue', num_frames=frames, num_inference_steps=3, generator=generator, guidance_scale=guidance, output_type='np',
                 **SIZE, **more).frames[0]
    pipe.vae.decode = decode
    stacked = (np.asarray(video) * 255).round().astype('uint8').reshape(-1, SIZE['width'], 3)
    said = {key: value for key, value in more.items() if isinstance(value, float)}
    keep(name, of, stacked, frames=frames, fps=more.get('frame_rate', 25), **said, **asked(negative_prompt='blue', guidance=guidance, **SIZE))


def kept(name):
    image = picture(name).resize((32, 32))
    pictures[name] = torch.from_numpy(np.asarray(image).copy())
    return image


def first():
    """0.9.0: a plain decoder, which looks ahead."""
    pipe = model('ltx', LTXPipeline, **parts(SHIFTED, vae=vae()))
    film('ltx', 'ltx', pipe)
    film('ltx_slow', 'ltx', pipe, frame_rate=8)
    film('ltx_rescaled', 'ltx', pipe, guidance_rescale=0.7)
    both = LTXImageToVideoPipeline(**pipe.components)
    both.set_progress_bar_config(disable=True)
    film('ltx_picture', 'ltx', both, image=kept('first'))


def middle():
    """0.9.1: a decoder that takes out the last noise and adds some of its own."""
    pipe = model('ltx_noise', LTXPipeline, **parts(SHIFTED, vae=middle_vae()))
    film('ltx_noise', 'ltx_noise', pipe, decode_timestep=0.05, decode_noise_scale=0.025)
    film('ltx_noise_more', 'ltx_noise', pipe, decode_timestep=0.9, decode_noise_scale=0.3)
    pipe = model('ltx_causal', LTXPipeline, **parts(SHIFTED, vae=middle_vae(decoder_causal=True, encoder_causal=False, scaling_factor=0.8)))
    film('ltx_causal', 'ltx_causal', pipe, decode_timestep=0.05, decode_noise_scale=0.025)


def newer():
    """Since 0.9.5: pictures as any frames."""
    pipe = model('ltx_keyed', LTXConditionPipeline, **parts({}, vae=newer_vae()))
    film('ltx_keyed', 'ltx_keyed', pipe, frames=9, decode_timestep=0.05, decode_noise_scale=0.025)
    alone.append(1)
    film('ltx_keyed_one', 'ltx_keyed', pipe, frames=1, decode_timestep=0.05, decode_noise_scale=0.025)
    film('ltx_keyed_first', 'ltx_keyed', pipe, frames=9, image=kept('first'), decode_timestep=0.05, decode_noise_scale=0.025)
    frames = [LTXVideoCondition(image=kept(name), frame_index=at) for name, at in (('first', 0), ('middle', 5), ('last', 8))]
    film('ltx_keyed_all', 'ltx_keyed', pipe, frames=9, conditions=frames, image_cond_noise_scale=0.5, decode_timestep=0.05, decode_noise_scale=0.025)
    film('ltx_keyed_last', 'ltx_keyed', pipe, frames=9, conditions=frames[2:], decode_timestep=0.05, decode_noise_scale=0.025)


if __name__ == '__main__':
    first()
    middle()
    newer()
    save(sys.argv[1], 'ltx')
