#!/usr/bin/env python3
"""Pictures of small models of FLUX.1's variants and Chroma, computed with diffusers and transformers in f32 on the CPU.

    python3 make_flux.py PLACE

Where diffusers draws pictures' latents at random out of what the autoencoder says, its mean is taken.
"""
import sys
import numpy as np
import torch
from PIL import Image
from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel
from diffusers import (FluxPriorReduxPipeline, ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler, FluxControlPipeline, FluxFillPipeline, FluxKontextPipeline, FluxPipeline,
                       FluxTransformer2DModel)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from small import EOS, LENGTH, asked, cases, clip, keep, model, picture, pictures, save, seeded, t5, tokenizer, vae

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mode()

SHIFTED = dict(use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15)
PROMPT = 'a red door'


def transformer(guided=True, **more):
    return FluxTransformer2DModel(**{**dict(in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24,
                                            pooled_projection_dim=32, guidance_embeds=guided, axes_dims_rope=(4, 6, 6)), **more})


def parts(**more):
    return {**dict(scheduler=FlowMatchEulerDiscreteScheduler(**SHIFTED), text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH),
                   text_encoder_2=t5(24), tokenizer_2=tokenizer('t5', '<pad>', 512),
                   vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)), **more}


def kept(name):
    image = picture(name)
    pictures[name] = torch.from_numpy(np.asarray(image).copy())
    return image


def draw(name, of, pipe, request, **more):
    image = pipe(prompt=request['prompt'], height=request['height'], width=request['width'], num_inference_steps=request['steps'],
                 generator=seeded(request['seed']), **more).images[0]
    keep(name, of, image, **request)


def negative():
    """Guidance by a negative prompt beside the condition; brackets in the prompt are taken as they are."""
    pipe = model('dev', FluxPipeline, transformer=transformer(), **parts())
    draw('true_cfg', 'dev', pipe, asked(guidance=3.5, negative_prompt='blue'), guidance_scale=3.5, negative_prompt='blue', true_cfg_scale=2.5)
    draw('brackets', 'dev', pipe, asked(guidance=3.5, prompt='a (red:1.4) [door]'), guidance_scale=3.5)
    # Weights of T5's tokens as ComfyUI has them; CLIP's pooled text knows none.
    inside = 40 * 'red velvet '
    text, pooled, _ = pipe.encode_prompt(f'a {inside}door', None, max_sequence_length=512)
    empty, _, _ = pipe.encode_prompt('', None, max_sequence_length=512)
    weights = torch.ones(1, 512, 1)
    weights[:, 2:2 + len(inside)] = 3.0
    text = empty + (text - empty) * weights
    image = pipe(prompt_embeds=text, pooled_prompt_embeds=pooled, height=32, width=48, num_inference_steps=3, generator=seeded(7), guidance_scale=3.5).images[0]
    keep('weights', 'dev', image, **asked(guidance=3.5, prompt=f'a ({inside}:3.0)door'))
    return pipe


def schnell():
    """The schedules that a folder may ask for."""
    schedules = dict(plain=dict(shift=1.0), karras=dict(shift=1.0, use_karras_sigmas=True), exponential=dict(shift=1.0, use_exponential_sigmas=True),
                     beta=dict(shift=1.0, use_beta_sigmas=True), shifted=dict(shift=3.0), dynamic=SHIFTED)
    pipe = model('schnell', FluxPipeline, transformer=transformer(False), **parts())
    for name, scheduler in schedules.items():
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(**scheduler)
        name = f'schnell_{name}'
        draw(name, 'schnell', pipe, asked(guidance=1.0, steps=5), guidance_scale=0.0, max_sequence_length=256)
        cases[name]['scheduler'] = {'_class_name': type(pipe.scheduler).__name__, **{k: v for k, v in pipe.scheduler.config.items() if not k.startswith('_')}}


def kontext():
    pipe = model('kontext', FluxKontextPipeline, transformer=transformer(), image_encoder=None, feature_extractor=None, **parts())
    draw('kontext', 'kontext', pipe, asked(guidance=2.5), guidance_scale=2.5, image=kept('reference'), max_area=32 * 48, _auto_resize=False)
    # A picture of another size than the painted one.
    small = kept('reference').crop((0, 0, 32, 24))
    draw('kontext_small', 'kontext', pipe, asked(guidance=2.5), guidance_scale=2.5, image=small, max_area=32 * 48, _auto_resize=False)


def control():
    pipe = model('control', FluxControlPipeline, transformer=transformer(in_channels=32, out_channels=16), **parts())
    draw('control', 'control', pipe, asked(guidance=10.0), guidance_scale=10.0, control_image=kept('depth'))


def fill():
    """What is kept is put back in every step and in the picture, as web UIs do."""
    pipe = model('fill', FluxFillPipeline, transformer=transformer(in_channels=48, out_channels=16), **parts())
    start = kept('start')
    pixels = torch.from_numpy(np.asarray(start).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    mask = np.zeros((32, 48), np.uint8)
    mask[4:, 24:] = 255
    latents = (pipe.vae.encode(pixels).latent_dist.mode() - 0.1159) * 0.3611
    latents = pipe._pack_latents(latents, 1, 4, 16, 24)
    share = torch.nn.functional.avg_pool2d(torch.from_numpy(mask)[None, None] / 255.0, 2).repeat(1, 4, 1, 1)
    share = pipe._pack_latents(share, 1, 4, 16, 24)
    noise = pipe._pack_latents(torch.randn(1, 4, 16, 24, generator=seeded(7)), 1, 4, 16, 24)
    before = [noise]

    def put_back(pipe, i, t, kwargs):
        sigma, after = pipe.scheduler.sigmas[i], pipe.scheduler.sigmas[i + 1]
        x = before[0]
        there = x * after / sigma + latents * (1 - after / sigma)
        before[0] = kwargs['latents'] * share + there * (1 - share)
        return {'latents': before[0]}

    request = asked(guidance=30.0)
    image = pipe(prompt=PROMPT, image=start, mask_image=Image.fromarray(mask), height=32, width=48, num_inference_steps=3, strength=1.0, guidance_scale=30.0,
                 latents=noise, generator=seeded(7), callback_on_step_end=put_back).images[0]
    image = np.asarray(image).copy()
    image[mask == 0] = np.asarray(start)[mask == 0]
    keep('fill', 'fill', image, **request)


def chroma():
    """Tokens of padding but the first are left out of the text. diffusers gives attention a mask of floats, which is added to the scores instead of hiding
    anything; the network's makers hide these tokens."""
    net = ChromaTransformer2DModel(in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24,
                                   axes_dims_rope=(4, 6, 6), approximator_num_channels=16, approximator_hidden_dim=40, approximator_layers=2)
    pipe = model('chroma', ChromaPipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=t5(24),
                 tokenizer=tokenizer('t5', '<pad>', 512), image_encoder=None, feature_extractor=None,
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False))

    def embedded(prompt):
        text, mask = pipe._get_t5_prompt_embeds(prompt)
        text = text[:, :int(mask.sum())]
        return text, torch.ones(text.shape[:2])

    for name, scale, negative in (('chroma', 4.0, 'blue'), ('chroma_unguided', 1.0, '')):
        request = asked(guidance=scale, negative_prompt=negative)
        (text, mask), (other, other_mask) = embedded(request['prompt']), embedded(negative)
        image = pipe(prompt_embeds=text, prompt_attention_mask=mask, negative_prompt_embeds=other, negative_prompt_attention_mask=other_mask, height=32, width=48,
                     num_inference_steps=3, guidance_scale=scale, generator=seeded(7)).images[0]
        keep(name, 'chroma', image, **request)


def redux(dev):
    """Pictures as prompts, one and two with strengths of their own."""
    tower = SiglipVisionModel(SiglipVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=42, patch_size=14))
    looks = SiglipImageProcessor(size={'height': 42, 'width': 42})
    words = dict(text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None)
    prior = model('redux', FluxPriorReduxPipeline, image_encoder=tower, feature_extractor=looks, image_embedder=ReduxImageEncoder(redux_dim=32, txt_in_features=24),
                  **words)
    prior = FluxPriorReduxPipeline(**{**prior.components, **{part: getattr(dev, part) for part in words}})
    one, other = kept('redux_one'), kept('redux_other')
    for name, images, scales in (('redux', [one], [1.0]), ('redux_two', [one, other], [0.7, 0.5])):
        request = asked(guidance=3.5)
        seen = prior(image=images, prompt=request['prompt'], prompt_embeds_scale=scales, pooled_prompt_embeds_scale=scales)
        image = dev(**seen, height=32, width=48, num_inference_steps=3, generator=seeded(7), guidance_scale=3.5).images[0]
        keep(name, 'dev', image, **request)


if __name__ == '__main__':
    redux(negative())
    schnell()
    kontext()
    control()
    fill()
    chroma()
    save(sys.argv[1], 'flux')
