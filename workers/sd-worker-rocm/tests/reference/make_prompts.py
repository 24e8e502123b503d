#!/usr/bin/env python3
"""Pictures of prompts that change, are composed or have regions, and of noise that varies, computed with diffusers' components in f32 on the CPU.

    python3 make_prompts.py PLACE

diffusers has none of these: the loop over its UNet and scheduler is written here, with the semantics of AUTOMATIC1111's web UI (schedules, AND, variation
seeds, seeds of another size) and of ComfyUI (masks of conditions).
"""
import sys
import torch
from diffusers import StableDiffusionPipeline
from make_networks import weight
from small import EOS, LENGTH, asked, clip, ddim, keep, model, save, tokenizer, unet, vae

made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
pipe = model('sd', StableDiffusionPipeline, unet=unet(), scheduler=ddim(), **made)
STEPS, GUIDANCE = 4, 4.0
SHAPE = (4, 16, 24)


def text(prompt):
    ids = pipe.tokenizer(prompt, padding='max_length', max_length=LENGTH, return_tensors='pt').input_ids
    return pipe.text_encoder(ids)[0]


def noise(seed, shape=SHAPE):
    return torch.randn((1, *shape), generator=torch.Generator('cpu').manual_seed(seed))


def draw(name, predict, start=None, **request):
    """`predict(x, t, step)` is the guided prediction."""
    x = noise(7) if start is None else start
    pipe.scheduler.set_timesteps(STEPS)
    for step, t in enumerate(pipe.scheduler.timesteps):
        x = pipe.scheduler.step(predict(x, t, step), t, x).prev_sample
    image = pipe.vae.decode(x / pipe.vae.config.scaling_factor).sample
    image = pipe.image_processor.postprocess(image, output_type='pil')[0]
    keep(name, 'sd', image, **asked(**{**dict(steps=STEPS, sampler='DDIM', guidance=GUIDANCE), **request}))


def of(prompt):
    states = text(prompt)
    return lambda x, t: pipe.unet(x, t, states).sample


empty = of('')


def guided(positive, negative=empty):
    def predict(x, t, step):
        off = negative(x, t)
        return off + GUIDANCE * (positive(x, t, step, off) - off)
    return predict


def steps(*ends):
    """Prompts, each up to a step that still belongs to it."""
    ready = [(end, of(prompt)) for end, prompt in ends]
    return lambda x, t, step, off: next(f for end, f in ready if step <= end)(x, t)


draw('plain', guided(steps((9, 'a red door'))), prompt='a red door')
draw('schedule', guided(steps((1, 'a red door'), (4, 'a blue door'))), prompt='a [red:blue:0.25] door')
draw('turns', guided(steps((1, 'a cat'), (2, 'a dog'), (3, 'a cat'))), prompt='a [cat|dog]')
first, second = of('a red door'), of('blue sky')
draw('and', guided(lambda x, t, step, off: off + (first(x, t) - off) + 0.6 * (second(x, t) - off)), prompt='a red door AND blue sky :0.6')
mask = torch.zeros(1, 1, *SHAPE[1:])
mask[..., 12:] = 1.5
draw('region', guided(lambda x, t, step, off: (first(x, t) + mask * second(x, t)) / (1 + mask)), prompt='a red door')


def plain(x, t, step):
    return (first(x, t) + 0.5 * second(x, t)) / 1.5


draw('and_unguided', plain, prompt='a red door AND blue sky:0.5', guidance=1.0)


def slerp(share, low, high):
    cosine = ((low / low.norm(dim=2, keepdim=True)) * (high / high.norm(dim=2, keepdim=True))).sum(2, keepdim=True)
    angle = cosine.acos()
    return ((1 - share) * angle).sin() / angle.sin() * low + (share * angle).sin() / angle.sin() * high


prompt = guided(steps((9, 'a red door')))
draw('variation', prompt, slerp(0.3, noise(7), noise(40)), prompt='a red door')
# A smaller picture's noise in the middle, and the middle of a larger one's.
inner = noise(7)
inner[..., 3:13, 4:20] = noise(7, (4, 10, 16))
draw('seed_smaller', prompt, inner, prompt='a red door')
large = noise(7, (4, 20, 18))
inner = noise(7)
inner[..., :, 3:21] = large[..., 2:18, :]
draw('seed_larger', prompt, inner, prompt='a red door')


# A LoRA on two layers, at another strength in each, that acts in the second half of the steps.
LAYERS = {'down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q': 1.0, 'up_blocks.1.attentions.1.transformer_blocks.0.ff.net.2': 0.25}


def change(step):
    for layer, factor in LAYERS.items():
        own = pipe.unet.get_submodule(layer).weight
        up, down = (weight('lora', f'unet.{layer}.lora_{part}.weight', shape) for part, shape in (('B', (own.shape[0], 4)), ('A', (4, own.shape[1]))))
        if step == 0:
            kept[layer] = own.clone()
        own.copy_(kept[layer] + (2.0 * factor * up @ down if step >= 2 else 0))


kept = {}


def with_lora(x, t, step):
    change(step)
    return prompt(x, t, step)


draw('lora', with_lora, prompt='a red door')
save(sys.argv[1], 'prompts')
