#!/usr/bin/env python3
"""Outputs of small networks of video models, computed with diffusers and transformers in f32 on the CPU.

    python3 make_video_networks.py OUT
"""
import sys
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from make_networks import fill, keep, make, normal, save, uniform


def wan_vaes():
    mean, std = [0.1, -0.2, 0.3, 0.4], [1.5, 0.7, 2.0, 1.1]
    small = dict(base_dim=6, z_dim=4, num_res_blocks=1, latents_mean=mean, latents_std=std)
    plain = dict(small, dim_mult=[1, 2, 2], temperal_downsample=[True, True], scale_factor_spatial=4)
    residual = dict(small, decoder_base_dim=8, dim_mult=[1, 2, 2, 2], temperal_downsample=[False, True, True], is_residual=True, patch_size=2, in_channels=12,
                    out_channels=12, scale_factor_spatial=16)
    one = dict(small, dim_mult=[1, 2], temperal_downsample=[False], num_res_blocks=2)
    for name, kind, config, factor in (('wan_vae', AutoencoderKLWan, plain, 4), ('wan22_vae', AutoencoderKLWan, residual, 16), ('qwen_vae', AutoencoderKLQwenImage, one, 2)):
        vae = make(name, kind, config)
        scale = lambda x: (x - x.new_tensor(mean)[:, None, None, None]) / x.new_tensor(std)[:, None, None, None]
        back = lambda x: x * x.new_tensor(std)[:, None, None, None] + x.new_tensor(mean)[:, None, None, None]
        frames = 1 if name == 'qwen_vae' else 9
        keep(f'{name}.encoded', scale(vae.encode(uniform('video', (1, 3, frames, 2 * factor, 3 * factor))).latent_dist.mean))
        # Larger, for tiles.
        height, width = (24, 20) if name == 'qwen_vae' else (2, 2)
        keep(f'{name}.decoded', vae.decode(back(normal('zv', 1, 4, (frames + 3) // 4, height, width))).sample)
        if name == 'wan_vae':
            wide = vae.decode(back(normal('zw', 1, 4, 2, 3, 36))).sample
            keep('wan_vae.wide', wide[:, :, 2::3, 5::6, ::5])


if __name__ == '__main__':
    wan_vaes()
    save(sys.argv[1], 'video')
