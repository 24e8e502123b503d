#!/usr/bin/env python3
"""Outputs of small networks of many kinds, computed with diffusers and transformers in f32 on the CPU.

    python3 make_networks.py OUT

Weights and inputs are a function of their names (`uniform`, as in tests/fixtures/tiny-sd/make_tiny_sd.py at the root), so OUT/networks.safetensors has
only outputs; OUT/networks.json has the configurations and the shapes of all tensors.
"""
import json
import sys
import numpy as np
import torch
from safetensors.torch import save_file

torch.set_grad_enabled(False)
torch.set_num_threads(1)
MASK = (1 << 64) - 1


def uniform(name, shape):
    h = 0xcbf29ce484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001b3) & MASK
    n = int(np.prod(shape))
    with np.errstate(over='ignore'):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(h)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = ((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) / np.float32(1 << 23)
    return torch.from_numpy(u.reshape(shape).copy())


def weight(prefix, name, shape):
    u = uniform(f'{prefix}.{name}', shape)
    if name.endswith('bias'):
        return u * 0.05
    if len(shape) == 1:
        return 1 + u * 0.1
    if 'embedding.weight' in name and 'time' not in name:
        return u * 0.5
    return u * float(np.float32(np.sqrt(3.0 / np.prod(shape[1:]))))


outputs, about = {}, {}


def fill(prefix, model, config):
    shapes = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype.is_floating_point:
            tensor.copy_(weight(prefix, name, tuple(tensor.shape)))
            shapes[name] = list(tensor.shape)
    about[prefix] = {'config': config, 'shapes': shapes}
    return model.eval()


def normal(name, *shape):
    return uniform(name, shape) * float(np.sqrt(3.0))


def make(prefix, kind, config):
    return fill(prefix, kind(**config), {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()})


def keep(name, tensor):
    outputs[name] = tensor.detach().float().contiguous()


def unets():
    from diffusers import UNet2DConditionModel, ControlNetModel
    xl = dict(sample_size=16, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=2,
              down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'),
              transformer_layers_per_block=(1, 2), attention_head_dim=(2, 4), cross_attention_dim=48, norm_num_groups=16,
              use_linear_projection=True, addition_embed_type='text_time', addition_time_embed_dim=8,
              projection_class_embeddings_input_dim=6 * 8 + 20)
    x, text = normal('x', 2, 4, 12, 10), normal('text', 2, 7, 48)
    added = {'text_embeds': normal('pooled', 2, 20), 'time_ids': torch.tensor([[96., 80., 0., 0., 96., 80.]] * 2)}
    unet = make('xl', UNet2DConditionModel, xl)
    keep('xl', unet(x, 601, text, added_cond_kwargs=added).sample)
    control = dict(xl, conditioning_embedding_out_channels=(8, 16, 32, 48))
    del control['out_channels'], control['up_block_types'], control['sample_size']
    net = make('xl_control', ControlNetModel, control)
    hint = (uniform('hint', (1, 3, 96, 80)) + 1) / 2
    down, mid = net(x, 601, text, hint, conditioning_scale=0.7, added_cond_kwargs=added, return_dict=False)
    keep('xl_control', unet(x, 601, text, added_cond_kwargs=added, down_block_additional_residuals=down,
                            mid_block_additional_residual=mid).sample)
    lcm = dict(sample_size=16, in_channels=9, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
               down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'),
               attention_head_dim=8, cross_attention_dim=24, norm_num_groups=8, time_cond_proj_dim=16)
    unet = make('lcm', UNet2DConditionModel, lcm)
    from diffusers import LatentConsistencyModelPipeline
    embed = LatentConsistencyModelPipeline.get_guidance_scale_embedding(None, torch.tensor([7.5 - 1] * 2), embedding_dim=16)
    # 9 and 11 do not halve evenly.
    keep('lcm', unet(normal('x9', 2, 9, 9, 11), 251, normal('text24', 2, 7, 24), timestep_cond=embed).sample)


def clips():
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection
    config = dict(vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=12, hidden_act='gelu', projection_dim=20, eos_token_id=199, bos_token_id=198, pad_token_id=0)
    tower = CLIPTextModelWithProjection(CLIPTextConfig(**config))
    fill('clip_g', tower, config)
    ids = torch.tensor([[198, 5, 17, 120, 199, 0, 0, 0, 0, 0, 0, 0], [198, 3, 199, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
    out = tower(ids, output_hidden_states=True)
    keep('clip_g.hidden', out.hidden_states[-2])
    keep('clip_g.pooled', out.text_embeds)


def vaes():
    from diffusers import AutoencoderKL, AutoencoderTiny
    config = dict(in_channels=3, out_channels=3, latent_channels=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8,
                  down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2, scaling_factor=0.3611,
                  shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)
    vae = make('vae16', AutoencoderKL, config)
    keep('vae16.decoded', vae.decode(normal('z16', 1, 16, 12, 10) / 0.3611 + 0.1159).sample)
    keep('vae16.encoded', (vae.encode(uniform('picture', (1, 3, 20, 24))).latent_dist.mean - 0.1159) * 0.3611)
    tiny = make('taesd', AutoencoderTiny, dict(latent_channels=4))
    keep('taesd', tiny.decode(normal('z4', 1, 4, 6, 5)).sample)


def transformers():
    from diffusers import SD3Transformer2DModel, FluxTransformer2DModel
    for name, dual in (('sd3', ()), ('sd35', (0,))):
        config = dict(sample_size=12, patch_size=2, in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2,
                      attention_head_dim=16, joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=20,
                      pos_embed_max_size=12, dual_attention_layers=dual, qk_norm='rms_norm' if dual else None)
        net = make(name, SD3Transformer2DModel, config)
        keep(name, net(normal('x4', 2, 4, 12, 8), normal('context', 2, 9, 24), normal('pooled', 2, 20), torch.tensor([601., 601.])).sample)
    for name, guided in (('flux', True), ('schnell', False)):
        config = dict(patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
                      joint_attention_dim=24, pooled_projection_dim=20, guidance_embeds=guided, axes_dims_rope=(4, 6, 6))
        net = make(name, FluxTransformer2DModel, config)
        x = normal('x4', 2, 4, 12, 8)
        packed = x.view(2, 4, 6, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).reshape(2, 24, 16)
        ids = torch.stack([torch.zeros(6, 4), torch.arange(6.)[:, None].expand(6, 4), torch.arange(4.)[None].expand(6, 4)], -1).reshape(24, 3)
        out = net(packed, normal('context', 2, 9, 24), normal('pooled', 2, 20), torch.tensor([0.6, 0.6]), ids, torch.zeros(9, 3),
                  torch.tensor([3.5, 3.5]) if guided else None).sample
        keep(name, out.view(2, 6, 4, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(2, 4, 12, 8))


def z_image():
    from diffusers import ZImageTransformer2DModel
    config = dict(in_channels=4, dim=64, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=24,
                  axes_dims=[8, 12, 12], axes_lens=[128, 32, 32])
    net = make('z_image', ZImageTransformer2DModel, config)
    # Neither 20 tokens of text nor 24 patches are multiples of 32: both are filled up.
    x, text = normal('xz', 4, 1, 8, 12), normal('contextz', 20, 24)
    out = net([x], torch.tensor([0.4]), [text])
    keep('z_image', (out[0] if isinstance(out, tuple) else out.sample)[0])


def save(place, group):
    """Writes what was kept."""
    save_file(outputs, f'{place}/{group}.safetensors')
    json.dump(about, open(f'{place}/{group}.json', 'w'), separators=(',', ':'))


if __name__ == '__main__':
    for part in (unets, clips, vaes, transformers, z_image):
        part()
    save(sys.argv[1], 'networks')
