#!/usr/bin/env python3
"""Videos of whole pipelines of small models, computed with diffusers and transformers in f32 on the CPU; frames lie below each other.

    python3 make_video.py PLACE
"""
import sys
import numpy as np
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline, WanTransformer3DModel
from small import asked, keep, model, picture, pictures, save, seeded, tokenizer
import torch

STATISTICS = dict(latents_mean=[0.1, -0.2, 0.3, 0.4], latents_std=[1.5, 0.7, 2.0, 1.1])


def wan_vae():
    return AutoencoderKLWan(base_dim=12, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True], **STATISTICS)


def wan_net(**more):
    return WanTransformer3DModel(**{**dict(num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=24, freq_dim=16, ffn_dim=40, num_layers=2),
                                    **more})


def parts(**more):
    umt5 = UMT5EncoderModel(UMT5Config(vocab_size=258, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=2, feed_forward_proj='gated-gelu'))
    unipc = UniPCMultistepScheduler(prediction_type='flow_prediction', use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0)
    return {**dict(tokenizer=tokenizer('t5', '<pad>', 512), text_encoder=umt5, scheduler=unipc, vae=wan_vae()), **more}


def film(name, of, pipe, frames=5, width=48, height=32, guidance=4.0, **more):
    """Keeps what a pipeline makes of a prompt."""
    video = pipe(prompt='a red door', negative_prompt='blue', height=height, width=width, num_frames=frames, num_inference_steps=3, generator=seeded(7),
                 guidance_scale=guidance, output_type='np', **more).frames[0]
    stacked = (np.asarray(video) * 255).round().astype('uint8').reshape(-1, width, 3)
    request = asked(negative_prompt='blue', width=width, height=height, guidance=guidance, sampler='UniPC')
    keep(name, of, stacked, frames=frames, **{key: value for key, value in more.items() if key == 'guidance_scale_2'}, **request)


def wan():
    pipe = model('wan', WanPipeline, transformer=wan_net(), transformer_2=None, **parts())
    film('wan', 'wan', pipe, frames=9)
    film('wan_one', 'wan', pipe, frames=1)


def wan_late():
    """Two networks: the first two of three steps are the first one's."""
    pipe = model('wan_late', WanPipeline, transformer=wan_net(), transformer_2=wan_net(), boundary_ratio=0.8, **parts())
    film('wan_late', 'wan_late', pipe)
    film('wan_late_guided', 'wan_late', pipe, guidance_scale_2=1.5)


def wan_pictures():
    first, last = picture('first'), picture('last')
    for name, image in (('first', first), ('last', last)):
        pictures[name] = torch.from_numpy(np.asarray(image).copy())
    tower = CLIPVisionModel(CLIPVisionConfig(hidden_size=20, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8, hidden_act='gelu'))
    looks = CLIPImageProcessor(size={'shortest_edge': 16}, crop_size={'height': 16, 'width': 16})
    clip = dict(in_channels=12, image_dim=20, added_kv_proj_dim=32)
    pipe = model('wan_picture', WanImageToVideoPipeline, transformer=wan_net(**clip), transformer_2=None, image_encoder=tower, image_processor=looks, **parts())
    film('wan_picture', 'wan_picture', pipe, image=first)
    # From one picture to another: five rows of CLIP's for each.
    pipe = model('wan_pictures', WanImageToVideoPipeline, transformer=wan_net(**clip, pos_embed_seq_len=10), transformer_2=None, image_encoder=tower, image_processor=looks,
                 **parts())
    film('wan_pictures', 'wan_pictures', pipe, image=first, last_image=last)
    # 2.2, without CLIP.
    pipe = model('wan22_picture', WanImageToVideoPipeline, transformer=wan_net(in_channels=12), transformer_2=wan_net(in_channels=12), boundary_ratio=0.9,
                 image_encoder=None, image_processor=None, **parts())
    film('wan22_picture', 'wan22_picture', pipe, image=first)
    film('wan22_pictures', 'wan22_picture', pipe, image=first, last_image=last)


def wan_small():
    """The smallest of 2.2: latents of 16 pixels, text or a first frame."""
    vae = AutoencoderKLWan(base_dim=12, decoder_base_dim=12, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True], is_residual=True,
                           patch_size=2, in_channels=12, out_channels=12, scale_factor_spatial=16, **STATISTICS)
    pipe = model('wan_small', WanPipeline, transformer=wan_net(), transformer_2=None, expand_timesteps=True, **parts(vae=vae))
    film('wan_small', 'wan_small', pipe, width=64)
    both = WanImageToVideoPipeline(**{**pipe.components, 'image_encoder': None, 'image_processor': None}, expand_timesteps=True)
    both.set_progress_bar_config(disable=True)
    film('wan_small_picture', 'wan_small', both, width=64, image=picture('first').resize((64, 32)))
    pictures['first64'] = torch.from_numpy(np.asarray(picture('first').resize((64, 32))).copy())


if __name__ == '__main__':
    wan()
    wan_late()
    wan_pictures()
    wan_small()
    save(sys.argv[1], 'video')
