#!/usr/bin/env python3
"""Pictures that start from pictures, by diffusers' pipelines with the autoencoder's mean; what diffusers has no pipeline for is a loop over its parts.

    python3 make_editing.py PLACE
"""
import sys
import numpy as np
import torch
from PIL import Image, ImageFilter
from transformers import CLIPTextModelWithProjection
from diffusers import (FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Img2ImgPipeline, StableDiffusion3Pipeline,
                       StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline, StableDiffusionPipeline)
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from small import EOS, LENGTH, asked, clip, ddim, keep, model, pictures, save, seeded, tokenizer, uniform, unet, vae

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean


def colours(name, size):
    """Smooth colours, a function of the name."""
    small = ((uniform(name, (6, 8, 3)).numpy() + 1) * 127.5).astype(np.uint8)
    return Image.fromarray(small).resize(size, Image.BILINEAR)


def remember(name, image):
    pictures[name] = torch.from_numpy(np.asarray(image.convert('RGB')).copy())
    return image


def box(size, left, top, right, bottom):
    mask = np.zeros((size[1], size[0]), np.uint8)
    mask[top:bottom, left:right] = 255
    return Image.fromarray(mask)


def inpaint(pipe):
    start = remember('start', colours('start', (48, 32)))
    large = remember('large', colours('large', (112, 80)))
    request = asked(sampler='DDIM', steps=4)
    said = dict(num_inference_steps=4, guidance_scale=4.0, strength=0.75, height=32, width=48)
    mask = box((48, 32), 20, 8, 40, 28)
    image = pipe('a red door', image=start, mask_image=mask, generator=seeded(7), **said).images[0]
    # diffusers leaves laying the result over the picture to its caller, where nothing is cut out.
    keep('whole', 'edit', pipe.image_processor.apply_overlay(mask, start, image), **request)
    mask = box((112, 80), 60, 24, 72, 32)
    image = pipe('a red door', image=large, mask_image=mask, padding_mask_crop=4, generator=seeded(7), **said).images[0]
    keep('only_masked', 'edit', image, **request)


def loop(pipe, name, start, mask, fill='original', soft=False):
    """The sampler's clean picture is led to what is kept; a soft mask's grey is the share of the steps that a pixel is painted in."""
    pixels = torch.from_numpy(np.asarray(start).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    small = torch.nn.functional.avg_pool2d(torch.from_numpy(np.asarray(mask).copy()).float()[None, None] / 255, 2)
    hard = (small >= 0.5).float()
    factor = pipe.vae.config.scaling_factor
    kept = pipe.vae.encode(pixels).latent_dist.mean * factor
    text, negative = pipe.encode_prompt('a red door', 'cpu', 1, True, '')
    noise = torch.randn(kept.shape, generator=seeded(7))
    scheduler = pipe.scheduler
    scheduler.set_timesteps(4)
    first = {'original': kept, 'nothing': kept * (1 - small), 'noise': kept * (1 - small) + noise * small}[fill]
    x = scheduler.add_noise(first, noise, scheduler.timesteps[:1])
    for i, t in enumerate(scheduler.timesteps):
        uncond, cond = pipe.unet(torch.cat([x] * 2), t, torch.cat([negative, text])).sample.chunk(2)
        a = scheduler.alphas_cumprod[t]
        clean = (x - (1 - a).sqrt() * (uncond + 4.0 * (cond - uncond))) / a.sqrt()
        share = (small >= 1 - i / 4).float() if soft else hard
        clean = clean * share + kept * (1 - share)
        x = scheduler.step((x - a.sqrt() * clean) / (1 - a).sqrt(), t, x).prev_sample
    if not soft:
        x = x * hard + kept * (1 - hard)
    image = ((pipe.vae.decode(x / factor).sample + 1) * 127.5).clamp(0, 255).round()[0].permute(1, 2, 0).numpy()
    over = np.asarray(mask).astype(np.float32)[..., None] / 255
    if soft:
        over = (over > 0).astype(np.float32)
    keep(name, 'edit', (image * over + np.asarray(start) * (1 - over)).round().astype(np.uint8), **asked(sampler='DDIM', steps=4))


# As the web UI's extension "Soft inpainting" has them: schedule bias, preservation strength, transition contrast boost, mask
# influence, difference threshold, difference contrast.
USUAL = (1, 0.5, 4, 0, 0.5, 2)


def mixed(kept, painted, mask, sigma, bias, strength, boost, *_):
    """Latents along straight lines, with lengths of their own (float64)."""
    new = torch.pow(mask, sigma ** bias * strength)
    line = kept * (1 - new) + painted * new
    length = lambda x: x.double().norm(dim=1, keepdim=True)
    wanted = (length(kept) ** boost * (1 - new) + length(painted) ** boost * new) ** (1 / boost)
    return line * (wanted / (length(line) + 1e-5)).to(line.dtype)


def ranked(values, low, high):
    """Weighted means of the neighbours between two shares of their weights, over a weight of 1 at least."""
    y, x = np.mgrid[-2:3, -2:3]
    bell = lambda square: np.exp(-square / 1.5 ** 2)
    weights = np.maximum(0, (bell(x ** 2 + y ** 2) - bell(9.0)) / (1 - bell(9.0)))
    out = np.empty_like(values)
    height, width = values.shape
    for row in range(height):
        for column in range(width):
            near = [(values[row + dy, column + dx], weights[dy + 2, dx + 2]) for dy in range(-2, 3) for dx in range(-2, 3)
                    if 0 <= row + dy < height and 0 <= column + dx < width]
            near.sort()
            ends = np.cumsum([weight for _, weight in near])
            total = ends[-1]
            a, b = total * low, total * high
            if b - a < 1:
                a, b = (a + b) / 2 - 0.5, (a + b) / 2 + 0.5
                if b > total:
                    a, b = total - 1, total
                if a < 0:
                    a, b = 0, 1
            share = np.clip(np.minimum(b, ends) - np.maximum(a, np.concatenate([[0], ends[:-1]])), 0, None)
            out[row, column] = (share * [value for value, _ in near]).sum() / share.sum()
    return out


def overlay(kept, painted, mask, size, bias, strength, boost, influence, threshold, contrast):
    """Where latents have changed, as a mask in pixels."""
    scale = 0.5 * (1 - influence) + (1 - mask[0, 0].numpy() ** (strength / 2)) * influence
    scale = scale / (1.00001 - scale)
    distance = (painted - kept).norm(dim=1)[0].numpy()
    distance = ranked(ranked(distance, 0.9, 1), 0.25, 0.75)
    with np.errstate(divide='ignore', invalid='ignore'):
        old = 1 / (1 + (distance / (threshold * scale)) ** contrast)
    old = old ** 3 * (old * (6 * old - 15) + 10)
    image = Image.fromarray((255 * (1 - old)).astype(np.uint8)).resize(size, Image.LANCZOS)
    return image.filter(ImageFilter.GaussianBlur(4))


def soft_inpainting(pipe, name, start, mask, settings=USUAL, latent_mask=None, noisy=False):
    """The web UI's loop: what the network thinks is mixed with what is kept in every step, and the differences at the end say what is seen."""
    pixels = torch.from_numpy(np.asarray(start).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    factor = pipe.vae.config.scaling_factor
    kept = pipe.vae.encode(pixels).latent_dist.mean * factor
    small = (latent_mask or mask).convert('RGB').resize((kept.shape[3], kept.shape[2]))
    small = torch.from_numpy(np.asarray(small)[..., 0].astype(np.float32) / 255)[None, None]
    if settings is None:
        small = small.round()
    text, negative = pipe.encode_prompt('a red door', 'cpu', 1, True, '')
    noise = torch.randn(kept.shape, generator=seeded(7))
    if noisy:
        kept = kept * (1 - small) + noise * small
    scheduler = pipe.scheduler
    scheduler.set_timesteps(4)
    x = scheduler.add_noise(kept, noise, scheduler.timesteps[:1])
    for t in scheduler.timesteps:
        uncond, cond = pipe.unet(torch.cat([x] * 2), t, torch.cat([negative, text])).sample.chunk(2)
        a = scheduler.alphas_cumprod[t]
        clean = (x - (1 - a).sqrt() * (uncond + 4.0 * (cond - uncond))) / a.sqrt()
        if settings is None:
            clean = clean * small + kept * (1 - small)
        else:
            clean = mixed(kept, clean, small, float(((1 - a) / a).sqrt()), *settings)
        x = scheduler.step((x - a.sqrt() * clean) / (1 - a).sqrt(), t, x).prev_sample
    if settings is None:
        x = x * small + kept * (1 - small)
    image = ((pipe.vae.decode(x / factor).sample + 1) * 127.5).clamp(0, 255).round()[0].permute(1, 2, 0).numpy()
    seen = mask if settings is None else overlay(kept, x, small, start.size, *settings)
    seen = np.asarray(seen).astype(np.float32)[..., None] / 255
    keep(name, 'edit', (image * seen + np.asarray(start) * (1 - seen)).round().astype(np.uint8), **asked(sampler='DDIM', steps=4))


def modes():
    """Sizes of another shape."""
    processor = VaeImageProcessor()
    large = colours('large', (112, 80))
    for mode, size in (('crop', (48, 48)), ('fill', (48, 48)), ('crop', (64, 24)), ('fill', (64, 24))):
        remember(f'{mode}_{size[0]}', processor.resize(large, size[1], size[0], mode))
    for name in ('nearest', 'box', 'bilinear', 'bicubic', 'lanczos'):
        kind = Image.Resampling[name.upper()]
        remember(f'{name}_37', large.resize((37, 23), kind))
        remember(f'{name}_125', large.resize((125, 91), kind).crop((0, 0, 125, 9)))


def highres(name, model_name, first, second, sampler):
    """Two passes: the first one's latents are stretched and go through the last half of the second one's steps."""
    for pipe in (first, second):
        pipe.set_progress_bar_config(disable=True)
    said = dict(guidance_scale=4.0, num_inference_steps=4)
    latents = first('a red door', height=32, width=48, generator=seeded(7), output_type='latent', **said).images
    for kind in ('bilinear', 'bicubic'):
        larger = torch.nn.functional.interpolate(latents, size=(24, 36), mode=kind)
        image = second('a blue door', image=larger, strength=0.5, generator=seeded(7), **said).images[0]
        keep(f'{name}_{kind}', model_name, image, **asked(sampler=sampler, steps=4))


def sd3():
    towers = dict(text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu'), tokenizer=tokenizer('clip', EOS, LENGTH),
                  text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu'), tokenizer_2=tokenizer('clip', '!', LENGTH))
    net = SD3Transformer2DModel(sample_size=20, patch_size=2, in_channels=4, out_channels=4, num_layers=1, num_attention_heads=2, attention_head_dim=16,
                                joint_attention_dim=72, caption_projection_dim=32, pooled_projection_dim=36, pos_embed_max_size=20)
    first = model('sd3', StableDiffusion3Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder_3=None, tokenizer_3=None,
                  vae=vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False), **towers)
    highres('highres_sd3', 'sd3', first, StableDiffusion3Img2ImgPipeline(**{k: v for k, v in first.components.items()}), 'Euler')


if __name__ == '__main__':
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe = model('edit', StableDiffusionInpaintPipeline, unet=unet(), scheduler=ddim(), **made)
    inpaint(pipe)
    start, mask = colours('start', (48, 32)), box((48, 32), 20, 8, 40, 28)
    loop(pipe, 'nothing', start, mask, fill='nothing')
    loop(pipe, 'noise', start, mask, fill='noise')
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1)))
    loop(pipe, 'soft', start, remember('ramp', ramp).convert('L'), soft=True)
    loop(pipe, 'mixed', start, ramp)
    soft_inpainting(pipe, 'soft_inpainting', start, ramp)
    soft_inpainting(pipe, 'soft_inpainting_set', start, ramp, (1.5, 2, 9, 0.4, 1.25, 3))
    soft_inpainting(pipe, 'soft_inpainting_noise', start, ramp, (0.5, 1, 32, 0.7, 2, 1), noisy=True)
    other = box((48, 32), 4, 2, 30, 20)
    soft_inpainting(pipe, 'latent_mask', start, mask, None, other)
    modes()
    parts = {k: v for k, v in pipe.components.items() if k != 'image_encoder'}
    highres('highres', 'edit', StableDiffusionPipeline(**parts, requires_safety_checker=False), StableDiffusionImg2ImgPipeline(**parts, requires_safety_checker=False), 'DDIM')
    sd3()
    save(sys.argv[1], 'editing')
