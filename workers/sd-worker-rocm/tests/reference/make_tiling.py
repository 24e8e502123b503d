#!/usr/bin/env python3
"""Pictures whose opposite edges meet, by diffusers' pipelines whose convolutions are patched to go on at the other edge.

    python3 make_tiling.py PLACE
"""
import sys
import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline, StableDiffusionImg2ImgPipeline, StableDiffusionPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.downsampling import Downsample2D
from small import EOS, LENGTH, asked, clip, ddim, draw, keep, model, picture, pictures, save, seeded, tokenizer, unet, vae
import numpy as np

DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean
plain_conv, plain_down = torch.nn.Conv2d._conv_forward, Downsample2D.forward


def padded(x, sizes, around_x, around_y):
    left, right, above, below = sizes
    x = F.pad(x, (left, right, 0, 0), 'circular' if around_x else 'constant')
    return F.pad(x, (0, 0, above, below), 'circular' if around_y else 'constant')


def tile(around_x, around_y):
    def forward(self, x, weight, bias):
        if self.padding == (0, 0):
            return plain_conv(self, x, weight, bias)
        (rows, columns) = self.padding
        x = padded(x, (columns, columns, rows, rows), around_x, around_y)
        return F.conv2d(x, weight, bias, self.stride, 0, self.dilation, self.groups)

    def down(self, x, *args, **kwargs):
        # The encoder's pads by a row and a column of zeros itself.
        return self.conv(padded(x, (0, 1, 0, 1), around_x, around_y)) if self.padding == 0 else plain_down(self, x, *args, **kwargs)

    torch.nn.Conv2d._conv_forward, Downsample2D.forward = forward, down


if __name__ == '__main__':
    made = dict(text_encoder=clip(), tokenizer=tokenizer('clip', EOS, LENGTH), vae=vae(), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe = model('tiling', StableDiffusionPipeline, unet=unet(), scheduler=ddim(), **made)
    parts = {k: v for k, v in pipe.components.items() if k != 'image_encoder'}
    start = picture('start')
    pictures['start'] = torch.from_numpy(np.asarray(start).copy())
    again = StableDiffusionImg2ImgPipeline(**parts, requires_safety_checker=False)
    again.set_progress_bar_config(disable=True)
    request = asked(sampler='DDIM')
    for name, way in (('both', (True, True)), ('x', (True, False)), ('y', (False, True))):
        tile(*way)
        draw(name, 'tiling', pipe, request, guidance_scale=4.0)
    tile(True, True)
    image = again('a red door', image=start, strength=0.7, num_inference_steps=4, guidance_scale=4.0, generator=seeded(7)).images[0]
    keep('from_picture', 'tiling', image, **asked(sampler='DDIM', steps=4))
    net = dict(block_out_channels=(32, 64), layers_per_block=1, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), attention_head_dim=4,
               cross_attention_dim=32, norm_num_groups=16, conditioning_embedding_out_channels=(8, 16))
    tile(False, False)
    steered = model('steered', StableDiffusionControlNetPipeline, unet=unet(), controlnet=ControlNetModel(**net), scheduler=ddim(), **made)
    tile(True, True)
    draw('steered', 'steered', steered, request, image=start, guidance_scale=4.0)
    save(sys.argv[1], 'tiling')
