#!/usr/bin/env python3
"""Pictures of small UNets that ControlNets of every kind and T2I-Adapters steer, by diffusers' pipelines in f32 on the CPU.

    python3 make_controls.py PLACE
"""
import pathlib
import sys
import tempfile
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import CLIPTextModelWithProjection
from diffusers import (ControlNetModel, ControlNetUnionModel, EulerDiscreteScheduler, MultiAdapter, StableDiffusionAdapterPipeline,
                       StableDiffusionControlNetPipeline, StableDiffusionPipeline, StableDiffusionXLAdapterPipeline, StableDiffusionXLControlNetPipeline,
                       StableDiffusionXLControlNetUnionPipeline, StableDiffusionXLPipeline, T2IAdapter)
from small import EOS, LENGTH, asked, clip, ddim, keep, model, models, picture, pictures, save, seeded, tokenizer, unet, vae, with_weights

TOWN = dict(block_out_channels=(32, 64), layers_per_block=1, attention_head_dim=4, norm_num_groups=16, conditioning_embedding_out_channels=(8, 16))
SD = dict(TOWN, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), cross_attention_dim=32)
XL = dict(TOWN, down_block_types=('DownBlock2D', 'CrossAttnDownBlock2D'), attention_head_dim=(2, 4), transformer_layers_per_block=(1, 2), cross_attention_dim=56,
          use_linear_projection=True, addition_embed_type='text_time', addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + 20)


def shown(name):
    made = picture(name)
    pictures[name] = torch.from_numpy(np.asarray(made).copy())
    return made


def network(name, net):
    """A network with weights of its name's, kept."""
    with tempfile.TemporaryDirectory() as place:
        net.save_pretrained(place)
        models[name] = with_weights(pathlib.Path(place), name)
        return type(net).from_pretrained(place)


def base(name, kind, **parts):
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(**parts.pop('vae', {})))
    return model(name, kind, **made, **parts)


def steered(kind, pipe, **more):
    parts = {k: v for k, v in pipe.components.items() if k != 'image_encoder'}
    made = kind(**{**parts, **more}, **(dict(requires_safety_checker=False) if 'XL' not in kind.__name__ else {}))
    made.set_progress_bar_config(disable=True)
    return made


def draw(case, name, pipe, image, steps=4, **more):
    size = {} if 'Adapter' in type(pipe).__name__ and not isinstance(pipe, StableDiffusionXLAdapterPipeline) else dict(height=32, width=48)
    made = pipe('a red door', image=image, negative_prompt='blue', num_inference_steps=steps, guidance_scale=4.0, generator=seeded(7), **size, **more).images[0]
    keep(case, name, made, **asked(sampler='DDIM' if name == 'sd' else 'Euler', negative_prompt='blue', steps=steps))


def stable_diffusion():
    pipe = base('sd', StableDiffusionPipeline, unet=unet(), scheduler=ddim(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    hint, other = shown('hint'), shown('other')
    plain = network('plain', ControlNetModel(**SD))
    backward = network('backward', ControlNetModel(**SD, controlnet_conditioning_channel_order='bgr'))
    pooling = network('pooling', ControlNetModel(**SD, global_pool_conditions=True))
    control = StableDiffusionControlNetPipeline
    draw('guess', 'sd', steered(control, pipe, controlnet=plain), hint, guess_mode=True, controlnet_conditioning_scale=0.8)
    draw('backward', 'sd', steered(control, pipe, controlnet=backward), hint, controlnet_conditioning_scale=0.8)
    draw('pooling', 'sd', steered(control, pipe, controlnet=pooling), hint, controlnet_conditioning_scale=0.8)
    # What is to be painted is -1, as ControlNets for inpainting are trained.
    hidden = torch.from_numpy(np.asarray(hint).copy()).float().permute(2, 0, 1)[None] / 255
    hidden[..., 8:28, 20:40] = -1
    draw('hidden', 'sd', steered(control, pipe, controlnet=plain), hidden, controlnet_conditioning_scale=0.8)
    draw('two', 'sd', steered(control, pipe, controlnet=[plain, backward]), [hint, other], controlnet_conditioning_scale=[0.8, 0.5],
         control_guidance_start=[0.0, 0.25], control_guidance_end=[0.5, 1.0])
    softer(steered(control, pipe, controlnet=plain), hint)
    full = network('full', T2IAdapter(channels=[32, 64], num_res_blocks=2, downscale_factor=2))
    draw('full', 'sd', steered(StableDiffusionAdapterPipeline, pipe, adapter=full), hint, adapter_conditioning_scale=0.7)
    light = network('light', T2IAdapter(in_channels=1, channels=[32, 64], num_res_blocks=2, downscale_factor=2, adapter_type='light_adapter'))
    draw('light', 'sd', steered(StableDiffusionAdapterPipeline, pipe, adapter=light), hint.convert('L'), adapter_conditioning_scale=0.7)
    both = MultiAdapter([full, full])
    draw('adapters', 'sd', steered(StableDiffusionAdapterPipeline, pipe, adapter=both), [hint, other], adapter_conditioning_scale=[0.7, 0.4])


def softer(pipe, hint):
    """The web UI's extension: residuals further out count less, and, if the picture is to count more, only for the prompt."""
    net, plain = pipe.controlnet, type(pipe.controlnet).forward
    for case, prompt_only in (('prompt', False), ('control', True)):
        def forward(self, *inputs, **more):
            down, mid = plain(self, *inputs, **{**more, 'guess_mode': False, 'conditioning_scale': 0.8, 'return_dict': False})
            n = len(down)
            down, mid = [x * 0.825 ** (n - i) for i, x in enumerate(down)], mid
            if prompt_only:
                keep_it = torch.tensor([0.0, 1.0])[:, None, None, None]
                down, mid = [x * keep_it for x in down], mid * keep_it
            return down, mid
        net.forward = forward.__get__(net)
        draw(case, 'sd', pipe, hint, controlnet_conditioning_scale=0.8)
    del net.forward


def xl():
    euler = EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', timestep_spacing='leading', steps_offset=1)
    net = unet(up_block_types=('CrossAttnUpBlock2D', 'UpBlock2D'), **{k: v for k, v in XL.items() if k != 'conditioning_embedding_out_channels'})
    big = clip(CLIPTextModelWithProjection, hidden_size=24, projection_dim=20, hidden_act='gelu', num_hidden_layers=3)
    pipe = base('xl', StableDiffusionXLPipeline, unet=net, scheduler=euler, text_encoder_2=big, tokenizer_2=tokenizer('clip', '!', LENGTH), vae=dict(scaling_factor=0.13025))
    hint = picture('hint')
    plain = network('xl_plain', ControlNetModel(**XL))
    draw('xl_guess', 'xl', steered(StableDiffusionXLControlNetPipeline, pipe, controlnet=plain), hint, guess_mode=True, controlnet_conditioning_scale=0.8)
    union = network('union', ControlNetUnionModel(**XL, num_control_type=8, num_trans_channel=32, num_trans_head=8, num_proj_channel=32))
    for kind in (1, 3):
        # This pipeline names its picture otherwise.
        made = steered(StableDiffusionXLControlNetUnionPipeline, pipe, controlnet=union)
        image = made('a red door', control_image=[hint], control_mode=[kind], negative_prompt='blue', num_inference_steps=4, guidance_scale=4.0, height=32, width=48,
                     generator=seeded(7), controlnet_conditioning_scale=0.8).images[0]
        keep(f'union_{kind}', 'xl', image, **asked(negative_prompt='blue', steps=4))
    adapter = network('xl_full', T2IAdapter(channels=[32, 64, 64], num_res_blocks=1, downscale_factor=4, adapter_type='full_adapter_xl'))
    draw('xl_adapter', 'xl', steered(StableDiffusionXLAdapterPipeline, pipe, adapter=adapter), hint, adapter_conditioning_scale=0.7, adapter_conditioning_factor=0.5)


if __name__ == '__main__':
    stable_diffusion()
    xl()
    save(sys.argv[1], 'controls')
