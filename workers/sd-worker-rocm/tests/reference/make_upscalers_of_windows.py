#!/usr/bin/env python3
"""Outputs of small networks of attention that make pictures larger: the originals as spandrel 0.4.2 has them, and transformers' Swin2SR.

    python3 make_upscalers_of_windows.py OUT

Weights and inputs are a function of their names, as in make_networks.py; tensors that say something of the network's form are in OUT's JSON.
"""
import json
import sys
import torch
from safetensors.torch import save_file
from spandrel.architectures.DAT import DAT
from spandrel.architectures.HAT import HAT
from spandrel.architectures.Swin2SR import Swin2SR
from spandrel.architectures.SwinIR import SwinIR
from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution
from make_networks import about, keep, outputs, uniform, weight

FORM = ('rpe_biases', 'relative_coords_table')
LEFT_OUT = ('attn_mask', 'relative_position_index')


def fill(name, net, prefix=''):
    """Weights by the names that the file has."""
    shapes, form = {}, {}
    for inner, tensor in net.state_dict().items():
        outer = prefix + inner
        if inner.endswith(FORM):
            if not inner.startswith(('layers.0.blocks.0.', 'layers.0.residual_group.blocks.0.')):
                continue
            form[outer] = tensor.flatten().tolist()
            shapes[outer] = list(tensor.shape)
        elif not any(part in inner for part in LEFT_OUT) and tensor.dtype.is_floating_point:
            tensor.copy_(weight(name, outer, tuple(tensor.shape)))
            shapes[outer] = list(tensor.shape)
    about[name] = {'shapes': shapes, 'form': form}
    return net.eval()


def run(name, net, height=10, width=13):
    x = (uniform(f'{name}.picture', (1, 3, height, width)) + 1) / 2
    y = net(x)
    keep(name, y.reconstruction if hasattr(y, 'reconstruction') else y)


if __name__ == '__main__':
    about.clear()
    outputs.clear()
    small = dict(img_size=16, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, mlp_ratio=2)
    for name, kind, scale in (('swin2_classical', 'pixelshuffle', 2), ('swin2_light', 'pixelshuffledirect', 2),
                              ('swin2_real', 'nearest+conv', 4), ('swin2_compressed', 'pixelshuffle_aux', 4)):
        run(name, fill(name, Swin2SR(upsampler=kind, upscale=scale, **small)))
    jpeg = small | dict(img_size=14, window_size=7)
    run('swin2_jpeg', fill('swin2_jpeg', Swin2SR(upsampler='', upscale=1, img_range=255., **jpeg)))
    run('swin_jpeg', fill('swin_jpeg', SwinIR(upsampler='', upscale=1, img_range=255., **jpeg)))
    for name, scale, kind in (('swin2_transformers', 4, 'pixelshuffle'), ('swin2_transformers_light', 2, 'pixelshuffledirect')):
        config = Swin2SRConfig(image_size=16, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=8, mlp_ratio=2.0, upscale=scale, upsampler=kind)
        run(name, fill(name, Swin2SRForImageSuperResolution(config)), 16, 8)
    hat = small | dict(compress_ratio=4, squeeze_factor=4, overlap_ratio=0.5, upsampler='pixelshuffle')
    for scale in (2, 3, 4):
        run(f'hat_{scale}x', fill(f'hat_{scale}x', HAT(upscale=scale, num_feat=12, **hat), 'params_ema.'))
    dat = dict(img_size=16, embed_dim=64, split_size=[2, 4], depth=[3, 1], num_heads=[4, 4], expansion_factor=1.)
    run('dat_2x', fill('dat_2x', DAT(upscale=2, **dat), 'params.'))
    run('dat_3x', fill('dat_3x', DAT(upscale=3, **(dat | dict(split_size=[8, 4], depth=[1, 2], resi_connection='3conv')))))
    run('dat_light', fill('dat_light', DAT(upscale=2, upsampler='pixelshuffledirect', **(dat | dict(depth=[2], num_heads=[2])))))
    save_file(outputs, f'{sys.argv[1]}/upscalers_of_windows.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/upscalers_of_windows.json', 'w'), separators=(',', ':'))
