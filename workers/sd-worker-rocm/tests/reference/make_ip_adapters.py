#!/usr/bin/env python3
"""Pictures of small UNets with IP-Adapters, by diffusers' pipelines in f32 on the CPU. The adapters have the checkpoints' own names.

    python3 make_ip_adapters.py PLACE
"""
import sys
import numpy as np
import torch
from transformers import CLIPImageProcessorPil, CLIPTextModelWithProjection, CLIPVisionConfig, CLIPVisionModelWithProjection
from diffusers import (ControlNetModel, EulerDiscreteScheduler, StableDiffusionControlNetPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline,
                       T2IAdapter)
from diffusers.image_processor import IPAdapterMaskProcessor
from PIL import Image
from make_controls import SD, XL, network, shown, steered
from make_networks import uniform, weight
from small import EOS, LENGTH, asked, clip, ddim, keep, model, models, pictures, save, seeded, tokenizer, unet, vae

PIXELS = 16


def encoder():
    net = CLIPVisionModelWithProjection(CLIPVisionConfig(hidden_size=32, intermediate_size=64, projection_dim=24, num_hidden_layers=3, num_attention_heads=4,
                                                         image_size=PIXELS, patch_size=8, hidden_act='gelu'))
    return network('encoder', net)


def channels_of(net):
    """Channels of the attentions to the text, in the order of the checkpoints."""
    modules = dict(net.named_modules())
    names = [n.removesuffix('.processor') for n in net.attn_processors if n.endswith('attn2.processor')]
    return [modules[n].to_q.weight.shape[0] for n in names]


def adapter(name, net, width, shapes):
    channels = channels_of(net)
    shapes = {f'image_proj.{n}': s for n, s in shapes.items()}
    for i, c in enumerate(channels):
        shapes.update({f'ip_adapter.{2 * i + 1}.to_k_ip.weight': (c, width), f'ip_adapter.{2 * i + 1}.to_v_ip.weight': (c, width)})
    models[name] = {'files': {}, 'tokenizers': {}, 'weights': {'adapter.safetensors': {'prefix': name, 'shapes': {n: list(s) for n, s in shapes.items()}}}}
    parts = {'image_proj': {}, 'ip_adapter': {}}
    for n, s in shapes.items():
        part, rest = n.split('.', 1)
        parts[part][rest] = weight(name, n, tuple(s))
    return parts


def plain(width):
    return {'proj.weight': (4 * width, 24), 'proj.bias': (4 * width,), 'norm.weight': (width,), 'norm.bias': (width,)}


def full(width):
    return {'proj.0.weight': (32, 32), 'proj.0.bias': (32,), 'proj.2.weight': (width, 32), 'proj.2.bias': (width,), 'proj.3.weight': (width,), 'proj.3.bias': (width,)}


def face(width):
    return {'proj.0.weight': (32, 16), 'proj.0.bias': (32,), 'proj.2.weight': (4 * width, 32), 'proj.2.bias': (4 * width,), 'norm.weight': (width,),
            'norm.bias': (width,)}


def plus(width):
    shapes = {'latents': (1, 5, 40), 'proj_in.weight': (40, 32), 'proj_in.bias': (40,), 'proj_out.weight': (width, 40), 'proj_out.bias': (width,),
              'norm_out.weight': (width,), 'norm_out.bias': (width,)}
    for i in range(4):
        look, feed = f'layers.{i}.0.', f'layers.{i}.1.'
        shapes.update({look + 'norm1.weight': (40,), look + 'norm1.bias': (40,), look + 'norm2.weight': (40,), look + 'norm2.bias': (40,), look + 'to_q.weight': (64, 40),
                       look + 'to_kv.weight': (128, 40), look + 'to_out.weight': (40, 64), feed + '0.weight': (40,), feed + '0.bias': (40,), feed + '1.weight': (160, 40),
                       feed + '3.weight': (40, 160)})
    return shapes


def draw(case, name, pipe, sampler, adapters, scales, images=None, **more):
    pipe.load_ip_adapter(adapters, subfolder='', weight_name=[None] * len(adapters), image_encoder_folder=None, low_cpu_mem_usage=False)
    pipe.set_ip_adapter_scale(scales)
    image = pipe('a red door', negative_prompt='blue', height=32, width=48, num_inference_steps=4, guidance_scale=4.0, generator=seeded(7), ip_adapter_image=images,
                 **more).images[0]
    pipe.unload_ip_adapter()
    keep(case, name, image, **asked(sampler=sampler, negative_prompt='blue', steps=4))


def with_encoder(pipe, net):
    pipe.register_modules(image_encoder=net, feature_extractor=CLIPImageProcessorPil(size={'shortest_edge': PIXELS}, crop_size={'height': PIXELS, 'width': PIXELS}))
    return pipe


def mixed(pipe, net, kind, hint, seen):
    """A ControlNet for half of the steps, a T2I-Adapter and an IP-Adapter at once. diffusers' pipelines have two of them: the third's features come in where its own
    pipeline gives them."""
    control = network('control', ControlNetModel(**SD))
    features = network('features', T2IAdapter(channels=[32, 64], num_res_blocks=2, downscale_factor=2))
    pixels = torch.from_numpy(np.asarray(seen).copy()).float().permute(2, 0, 1)[None] / 255
    states = [0.5 * x for x in features(pixels)]
    plain = pipe.unet.forward

    def forward(sample, *inputs, **more):
        more['down_intrablock_additional_residuals'] = [torch.cat([x] * len(sample)) for x in states]
        return plain(sample, *inputs, **more)

    pipe.unet.forward = forward
    draw('mixed', 'sd', with_encoder(steered(StableDiffusionControlNetPipeline, pipe, controlnet=control), net), 'DDIM', [kind], [0.7], [[seen]], image=hint,
         controlnet_conditioning_scale=0.6, control_guidance_end=0.5)
    del pipe.unet.forward


def all_of_them():
    net = encoder()
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae())
    pipe = model('sd', StableDiffusionPipeline, unet=unet(), scheduler=ddim(), safety_checker=None, feature_extractor=None, requires_safety_checker=False, **made)
    one, other = shown('one'), shown('two')
    kinds = {name: adapter(name, pipe.unet, 32, of(32)) for name, of in (('plain', plain), ('full', full), ('plus', plus), ('face', face))}
    for name in ('plain', 'full', 'plus'):
        draw(f'ip_{name}', 'sd', with_encoder(pipe, net), 'DDIM', [kinds[name]], [0.7], [[one]])
    draw('ip_several', 'sd', with_encoder(pipe, net), 'DDIM', [kinds['plain'], kinds['plus']], [0.5, 0.4], [[one, other], [other]])
    mask = np.zeros((32, 48), np.uint8)
    mask[:, :20] = 255
    pictures['mask'] = torch.from_numpy(np.stack([mask] * 3, -1).copy())
    masks = IPAdapterMaskProcessor().preprocess([Image.fromarray(mask)], height=32, width=48)
    draw('ip_mask', 'sd', with_encoder(pipe, net), 'DDIM', [kinds['plain']], [[0.9]], [[one]], cross_attention_kwargs={'ip_adapter_masks': [masks.reshape(1, 1, 32, 48)]})
    faces = uniform('faces', (1, 2, 16))
    draw('ip_face', 'sd', with_encoder(pipe, net), 'DDIM', [kinds['face']], [0.7], None, ip_adapter_image_embeds=[torch.cat([torch.zeros_like(faces), faces])])

    mixed(pipe, net, kinds['plain'], one, other)

    euler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', timestep_spacing='leading', steps_offset=1)
    big = clip(CLIPTextModelWithProjection, hidden_size=24, projection_dim=20, hidden_act='gelu', num_hidden_layers=3)
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(scaling_factor=0.13025), text_encoder_2=big, tokenizer_2=tokenizer('clip', '!', LENGTH))
    net_xl = unet(up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), **{k: v for k, v in XL.items() if k != 'conditioning_embedding_out_channels'})
    pipe = model('xl', StableDiffusionXLPipeline, unet=net_xl, scheduler=euler, **made)
    of_xl = adapter('plain_xl', pipe.unet, 56, plain(56))
    draw('ip_xl', 'xl', with_encoder(pipe, net), 'Euler', [of_xl], [0.7], [[one]])
    draw('ip_blocks', 'xl', with_encoder(pipe, net), 'Euler', [of_xl], [{'down': 0.5, 'up': {'block_0': [0.0, 1.0]}}], [[one]])


if __name__ == '__main__':
    all_of_them()
    save(sys.argv[1], 'ip_adapters')
