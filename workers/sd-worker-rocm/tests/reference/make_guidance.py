#!/usr/bin/env python3
"""Guidance in its forms, and steps that take over work: numbers of the forms (guidance_forms.json beside this file) and pictures of small models.

    python3 make_guidance.py PLACE        (diffusers 0.42.1)

Perturbed attention and skip-layer guidance are diffusers' own; DeepCache, TeaCache and the first block's cache are hooks on diffusers' networks.
"""
import json
import os
import sys
import numpy as np
import torch
from transformers import CLIPTextModelWithProjection
from diffusers import (FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel, SD3Transformer2DModel,
                       StableDiffusion3Pipeline, StableDiffusionPAGPipeline)
from diffusers.guiders.adaptive_projected_guidance import MomentumBuffer, normalized_guidance
from diffusers.guiders.classifier_free_zero_star_guidance import cfg_zero_star_scale
from small import EOS, LENGTH, asked, clip, ddim, draw, model, save, t5, tokenizer, unet, vae


def mimic(cond, uncond, scale, lower, percentile):
    """Dynamic thresholding as its extension of web UIs has it: by channels, about the mean, bounded by the largest value of the lower guidance."""
    target = lambda s: (uncond + (cond - uncond) * s).flatten(2)
    low, high = target(lower), target(scale)
    mean = high.mean(2, keepdim=True)
    low, high = low - low.mean(2, keepdim=True), high - mean
    bound = low.abs().amax(2, keepdim=True)
    most = torch.maximum(bound, torch.quantile(high.abs(), percentile, dim=2, keepdim=True))
    return (high.clamp(-most, most) / most * bound + mean).reshape(cond.shape)


def forms():
    i = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    steps = [(torch.sin(0.37 * i + k), torch.cos(0.21 * i * (1 + 0.1 * k)) * 1.3) for k in range(3)]
    def run(of):
        return [of(cond, uncond).flatten().tolist() for cond, uncond in steps]
    def zero_star(cond, uncond):
        uncond = uncond * cfg_zero_star_scale(cond.flatten(1), uncond.flatten(1)).view(-1, 1, 1, 1)
        return uncond + 4.0 * (cond - uncond)
    def projected(eta, norm, momentum):
        buffer = MomentumBuffer(momentum) if momentum else None
        return run(lambda cond, uncond: normalized_guidance(cond, uncond, 4.0, buffer, eta, norm))
    return dict(
        steps=[[t.flatten().tolist() for t in pair] for pair in steps],
        cases=[dict(tuning=dict(cfg_zero=True), outputs=run(zero_star)),
               dict(tuning=dict(apg_eta=0.3), outputs=projected(0.3, 0., 0.)),
               dict(tuning=dict(apg_eta=0.0, apg_norm=5.0, apg_momentum=-0.5), outputs=projected(0., 5., -.5)),
               dict(tuning=dict(mimic_guidance=2.0), outputs=run(lambda c, u: mimic(c, u, 4.0, 2.0, 1.0))),
               dict(tuning=dict(mimic_guidance=2.0, mimic_percentile=0.9), outputs=run(lambda c, u: mimic(c, u, 4.0, 2.0, .9)))])


def sd():
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None)
    pipe = model('sd', StableDiffusionPAGPipeline, unet=unet(), scheduler=ddim(), **made)
    request = asked(sampler='DDIM')
    for name, layers, more in (('pag', ['mid'], {}), ('pag_blocks', ['down_blocks.0', 'up_blocks.1.attentions.0'], {}),
                               ('pag_fading', ['mid'], dict(pag_adaptive_scale=0.004)), ('pag_rescaled', ['mid'], dict(guidance_rescale=0.7))):
        pipe.set_pag_applied_layers(layers)
        draw(name, 'sd', pipe, request, guidance_scale=4.0, pag_scale=3.0, **more)
    # DeepCache: what goes into the outermost block on the way up is that of each second step.
    kept, step = {}, [0]
    def deep(block, args, kwargs):
        if step[0] % 2 == 0:
            kept['x'] = kwargs['hidden_states']
        step[0] += 1
        return args, {**kwargs, 'hidden_states': kept['x']}
    hook = pipe.unet.up_blocks[-1].register_forward_pre_hook(deep, with_kwargs=True)
    draw('deep', 'sd', pipe, asked(sampler='DDIM', steps=4), guidance_scale=4.0, pag_scale=0.0)
    hook.remove()
    draw('not_deep', 'sd', pipe, asked(sampler='DDIM', steps=4), guidance_scale=4.0, pag_scale=0.0)


def sd3():
    width = 72
    towers = dict(text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu'), tokenizer=tokenizer('clip', EOS, LENGTH),
                  text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu', num_hidden_layers=3), tokenizer_2=tokenizer('clip', '!', LENGTH),
                  text_encoder_3=None, tokenizer_3=None)
    net = SD3Transformer2DModel(sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=3, num_attention_heads=2, attention_head_dim=16,
                                joint_attention_dim=width, caption_projection_dim=32, pooled_projection_dim=36, pos_embed_max_size=16)
    pipe = model('sd3', StableDiffusion3Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
                 vae=vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False), **towers)
    request = asked(negative_prompt='blue', steps=5)
    for name, start, end in (('skip', 0.0, 0.7), ('skip_late', 0.4, 1.0)):
        draw(name, 'sd3', pipe, request, negative_prompt='blue', guidance_scale=4.0, skip_guidance_layers=[1], skip_layer_guidance_scale=2.5,
             skip_layer_guidance_start=start, skip_layer_guidance_stop=end)


def flux():
    net = FluxTransformer2DModel(in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=24,
                                 pooled_projection_dim=32, guidance_embeds=True, axes_dims_rope=(4, 6, 6))
    pipe = model('flux', FluxPipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0, base_shift=0.5, max_shift=1.15),
                 text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), text_encoder_2=t5(24), tokenizer_2=tokenizer('t5', '<pad>', 512),
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False))
    request = asked(guidance=3.5, steps=6)
    more = dict(guidance_scale=3.5, max_sequence_length=512)
    draw('uncached', 'flux', pipe, request, **more)
    tea(pipe.transformer, request['steps'], TEA, lambda: draw('tea', 'flux', pipe, request, **more))
    first_block(pipe.transformer, FIRST, lambda: draw('first_block', 'flux', pipe, request, **more))


FIRST, TEA = 0.55, 0.4
COEFFICIENTS = [4.98651651e+02, -2.83781631e+02, 5.58554382e+01, -3.82021401e+00, 2.64230861e-01]


def hooked(net, first, last, draw):
    """Draws with the first block called by `first(forward, ...)` and the end told by `last(picture)`; blocks between do nothing while `net.skips`."""
    blocks = [*net.transformer_blocks, *net.single_transformer_blocks]
    forwards = [block.forward for block in blocks]
    def inner(i):
        def forward(hidden_states, encoder_hidden_states, **more):
            text, picture = encoder_hidden_states, hidden_states
            if not net.skips:
                text, picture = forwards[i](hidden_states=picture, encoder_hidden_states=text, **more)
            return (text, last(picture)) if i + 1 == len(blocks) else (text, picture)
        return forward
    for i, block in enumerate(blocks):
        block.forward = inner(i) if i else (lambda **k: first(forwards[0], **k))
    draw()
    for block, forward in zip(blocks, forwards):
        block.forward = forward


def change(now, before):
    return ((now - before).abs().mean() / before.abs().mean()).item()


def tea(net, steps, threshold, draw):
    """TeaCache: all blocks are skipped while the sum of the modulated input's changes, through a polynomial, is below a threshold."""
    state = dict(step=0, before=None, sum=0., start=None, gain=None)
    def first(forward, hidden_states, encoder_hidden_states, temb, **more):
        modulated = net.transformer_blocks[0].norm1(hidden_states, emb=temb)[0]
        net.skips = False
        if state['step'] not in (0, steps - 1):
            state['sum'] += float(np.polyval(COEFFICIENTS, change(modulated, state['before'])))
            net.skips = state['sum'] < threshold
        if not net.skips:
            state['sum'] = 0.
        print('tea', state['step'], 'skipped' if net.skips else 'computed')
        state.update(before=modulated, step=state['step'] + 1, start=hidden_states)
        if net.skips:
            return encoder_hidden_states, hidden_states
        return forward(hidden_states=hidden_states, encoder_hidden_states=encoder_hidden_states, temb=temb, **more)
    def last(picture):
        if net.skips:
            return picture + state['gain']
        state['gain'] = picture - state['start']
        return picture
    hooked(net, first, last, draw)


def first_block(net, threshold, draw):
    """The first block's cache: the others are skipped while what the first adds changes less than a threshold."""
    state = dict(added=None, start=None, gain=None)
    def first(forward, hidden_states, **more):
        text, picture = forward(hidden_states=hidden_states, **more)
        added = picture - hidden_states
        net.skips = state['added'] is not None and change(added, state['added']) <= threshold
        print('first block', 'skipped' if net.skips else 'computed')
        if not net.skips:
            state.update(added=added, start=picture)
        return text, picture
    def last(picture):
        if net.skips:
            return picture + state['gain']
        state['gain'] = picture - state['start']
        return picture
    hooked(net, first, last, draw)


if __name__ == '__main__':
    json.dump(forms(), open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'guidance_forms.json'), 'w'), indent=0)
    sd()
    sd3()
    flux()
    save(sys.argv[1], 'guidance')
