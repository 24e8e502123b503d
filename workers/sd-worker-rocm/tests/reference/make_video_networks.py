#!/usr/bin/env python3
"""Outputs of small networks of video models, computed with diffusers and transformers in f32 on the CPU.

    python3 make_video_networks.py OUT
"""
import sys
import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan, WanTransformer3DModel
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection, UMT5Config, UMT5EncoderModel
from make_networks import fill, keep, make, normal, save, uniform, weight


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


def wan():
    small = dict(num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, freq_dim=16, ffn_dim=40, num_layers=2)
    x, text = normal('xv', 2, 4, 3, 4, 6), normal('textv', 2, 9, 24)
    net = make('wan', WanTransformer3DModel, small)
    keep('wan', net(x, torch.tensor([601, 601]), text).sample)
    # Wan 2.2's smallest: the first frame is there already.
    times = torch.full((2, 3, 6), 601)
    times[:, 0] = 0
    keep('wan.first', net(x, times.flatten(1), text).sample)
    # Starts from a picture, or from two. Texts beside pictures have 512 rows.
    text = torch.cat([text, text.new_zeros(2, 503, 24)], 1)
    for name, more in (('wan_picture', dict(cross_attn_norm=False)), ('wan_pictures', dict(pos_embed_seq_len=10))):
        net = make(name, WanTransformer3DModel, dict(small, in_channels=12, image_dim=20, added_kv_proj_dim=32, **more))
        views = normal('views', 2, 5, 20)
        views = views.repeat_interleave(2, 0)[:2] if name == 'wan_picture' else views.repeat(2, 1, 1)
        keep(name, net(normal('xv12', 2, 12, 3, 4, 6), torch.tensor([601, 601]), text, views).sample)


def encoders():
    config = dict(vocab_size=60, d_model=24, d_kv=8, d_ff=48, num_layers=3, num_heads=2, feed_forward_proj='gated-gelu', relative_attention_num_buckets=8,
                  relative_attention_max_distance=20)
    config = UMT5Config(**config)
    net = fill('umt5', UMT5EncoderModel(config), config.to_dict())
    # It is the same tensor as the encoder's.
    net.shared.weight.copy_(weight('umt5', 'shared.weight', (60, 24)))
    ids = torch.arange(1, 31)[None]
    mask = torch.ones_like(ids)
    mask[:, 27:] = 0
    keep('umt5', net(ids, mask).last_hidden_state[:, :27])
    config = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, image_size=20, patch_size=8, hidden_act='gelu', projection_dim=12)
    net = fill('clip_vision', CLIPVisionModelWithProjection(CLIPVisionConfig(**config)), config)
    out = net(normal('pictures', 2, 3, 20, 20), output_hidden_states=True)
    keep('clip_vision.rows', out.hidden_states[-2])
    keep('clip_vision.embeddings', out.image_embeds)


if __name__ == '__main__':
    wan_vaes()
    wan()
    encoders()
    save(sys.argv[1], 'video')
