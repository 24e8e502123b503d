#!/usr/bin/env python3
"""Outputs of small networks that make pictures larger, written here by their papers' definition.

    python3 make_upscalers.py OUT

ESRGAN: arXiv:1809.00219, Real-ESRGAN: arXiv:2107.10833, SwinIR: arXiv:2108.10257. Weights and inputs are a function of their names, as in make_networks.py.
"""
import json
import sys
import torch
import torch.nn.functional as F
from torch import nn
from safetensors.torch import save_file
from make_networks import about, keep, outputs, uniform, weight

torch.set_grad_enabled(False)


def conv(a, b, k=3):
    return nn.Conv2d(a, b, k, padding=k // 2)


def lrelu(x, slope=0.2):
    return F.leaky_relu(x, slope)


def fill(name, net, rename=lambda n: n):
    """Weights by the names that the file has."""
    shapes = {}
    for inner, tensor in net.state_dict().items():
        if tensor.dtype.is_floating_point:
            outer = rename(inner)
            tensor.copy_(weight(name, outer, tuple(tensor.shape)))
            shapes[outer] = list(tensor.shape)
    about[name] = {'shapes': shapes}
    return net.eval()


def run(name, net, height=10, width=13):
    x = (uniform(f'{name}.picture', (1, 3, height, width)) + 1) / 2
    keep(name, net(x))


class Dense(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        for i in range(5):
            setattr(self, f'conv{i + 1}', conv(width + i * growth, width if i == 4 else growth))

    def forward(self, x):
        seen = [x]
        for i in range(4):
            seen.append(lrelu(getattr(self, f'conv{i + 1}')(torch.cat(seen, 1))))
        return x + 0.2 * self.conv5(torch.cat(seen, 1))


class Block(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = (Dense(width, growth) for _ in range(3))

    def forward(self, x):
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDB(nn.Module):
    def __init__(self, doublings, unshuffle=1, width=16, growth=8, blocks=2):
        super().__init__()
        self.unshuffle, self.doublings = unshuffle, doublings
        self.conv_first = conv(3 * unshuffle ** 2, width)
        self.body = nn.ModuleList(Block(width, growth) for _ in range(blocks))
        self.conv_body, self.conv_hr, self.conv_last = conv(width, width), conv(width, width), conv(width, 3)
        for i in range(doublings):
            setattr(self, f'conv_up{i + 1}', conv(width, width))

    def forward(self, x):
        first = self.conv_first(F.pixel_unshuffle(x, self.unshuffle))
        y = first
        for block in self.body:
            y = block(y)
        y = first + self.conv_body(y)
        for i in range(self.doublings):
            y = lrelu(getattr(self, f'conv_up{i + 1}')(F.interpolate(y, scale_factor=2, mode='nearest')))
        return self.conv_last(lrelu(self.conv_hr(y)))


def oldest(doublings, blocks=2):
    """The names of ESRGAN's own files: places in nested lists of layers."""
    last = 3 * doublings
    top = {'conv_first': 'model.0', 'conv_body': f'model.1.sub.{blocks}', 'conv_hr': f'model.{last + 2}', 'conv_last': f'model.{last + 4}'}
    top |= {f'conv_up{i + 1}': f'model.{3 * i + 3}' for i in range(doublings)}

    def rename(name):
        parts = name.split('.')
        if parts[0] == 'body':
            return f'model.1.sub.{parts[1]}.{parts[2].upper()}.{parts[3]}.0.{parts[4]}'
        return f'{top[parts[0]]}.{parts[1]}'
    return rename


def older(name):
    return name.replace('conv_body', 'trunk_conv').replace('body.', 'RRDB_trunk.').replace('rdb', 'RDB').replace('conv_up', 'upconv').replace('conv_hr', 'HRconv')


class Compact(nn.Module):
    def __init__(self, scale, width=12, layers=3):
        super().__init__()
        self.scale = scale
        body = [conv(3, width), nn.PReLU(width)]
        for _ in range(layers):
            body += [conv(width, width), nn.PReLU(width)]
        self.body = nn.Sequential(*body, conv(width, 3 * scale * scale))

    def forward(self, x):
        return F.pixel_shuffle(self.body(x), self.scale) + F.interpolate(x, scale_factor=self.scale, mode='nearest')


class Attention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def bias(self):
        w = self.window
        places = [(i, j) for i in range(w) for j in range(w)]
        index = [[(a[0] - b[0] + w - 1) * (2 * w - 1) + a[1] - b[1] + w - 1 for b in places] for a in places]
        return self.relative_position_bias_table[torch.tensor(index)].permute(2, 0, 1)

    def forward(self, x, mask):
        """x: windows, pixels, channels; mask: windows, pixels, pixels."""
        n, p, c = x.shape
        q, k, v = self.qkv(x).view(n, p, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1) + self.bias()
        if mask is not None:
            scores = scores + mask[:, None]
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, p, c))


class Layer(nn.Module):
    def __init__(self, width, heads, window, hidden, shift):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, window)
        self.mlp = nn.ModuleDict({'fc1': nn.Linear(width, hidden), 'fc2': nn.Linear(hidden, width)})

    def windows(self, x):
        b, h, w, c = x.shape
        s = self.window
        return x.view(b, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)

    def forward(self, x):
        b, h, w, c = x.shape
        s = self.window
        y, mask = self.norm1(x), None
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            region = torch.zeros(1, h, w, 1)
            cuts = (slice(0, -s), slice(-s, -self.shift), slice(-self.shift, None))
            for i, rows in enumerate(cuts):
                for j, columns in enumerate(cuts):
                    region[:, rows, columns] = 3 * i + j
            region = self.windows(region).squeeze(-1)
            mask = (region[:, None] != region[:, :, None]).float() * -100
        y = self.attn(self.windows(y), mask)
        y = y.view(b, h // s, w // s, s, s, c).transpose(2, 3).reshape(b, h, w, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp['fc2'](F.gelu(self.mlp['fc1'](self.norm2(x))))


def mix(width, three):
    narrow = width // 4
    return nn.Sequential(conv(width, narrow), nn.LeakyReLU(0.2), conv(narrow, narrow, 1), nn.LeakyReLU(0.2), conv(narrow, width)) if three else conv(width, width)


class Group(nn.Module):
    def __init__(self, width, heads, window, hidden, depth, three):
        super().__init__()
        blocks = nn.ModuleList(Layer(width, heads, window, hidden, window // 2 if i % 2 else 0) for i in range(depth))
        self.residual_group = nn.ModuleDict({'blocks': blocks})
        self.conv = mix(width, three)

    def forward(self, x):
        y = x
        for block in self.residual_group['blocks']:
            y = block(y)
        return x + self.conv(y.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class SwinIR(nn.Module):
    def __init__(self, upsampler, scale, width=16, heads=2, window=4, depths=(2, 2), three=False, features=12):
        super().__init__()
        self.upsampler, self.scale, self.window = upsampler, scale, window
        self.register_buffer('mean', torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1), persistent=False)
        self.conv_first = conv(3, width)
        self.patch_embed = nn.ModuleDict({'norm': nn.LayerNorm(width)})
        self.layers = nn.ModuleList(Group(width, heads, window, 2 * width, d, three) for d in depths)
        self.norm, self.conv_after_body = nn.LayerNorm(width), mix(width, three)
        if upsampler in ('pixelshuffle', 'nearest+conv'):
            self.conv_before_upsample = nn.Sequential(conv(width, features), nn.LeakyReLU())
            self.conv_last = conv(features, 3)
        if upsampler == 'pixelshuffle':
            factors = [3] if scale == 3 else [2] * (scale.bit_length() - 1)
            self.upsample = nn.Sequential(*(layer for f in factors for layer in (conv(features, features * f * f), nn.PixelShuffle(f))))
        elif upsampler == 'pixelshuffledirect':
            self.upsample = nn.Sequential(conv(width, 3 * scale * scale), nn.PixelShuffle(scale))
        elif upsampler == 'nearest+conv':
            self.conv_up1, self.conv_hr = conv(features, features), conv(features, features)
            if scale == 4:
                self.conv_up2 = conv(features, features)
        else:
            self.conv_last = conv(width, 3)

    def forward(self, x):
        _, _, h, w = x.shape
        x = F.pad(x, (0, -w % self.window, 0, -h % self.window), 'reflect') - self.mean
        first = self.conv_first(x)
        y = self.patch_embed['norm'](first.permute(0, 2, 3, 1))
        for layer in self.layers:
            y = layer(y)
        y = first + self.conv_after_body(self.norm(y).permute(0, 3, 1, 2))
        if self.upsampler == 'pixelshuffle':
            y = self.conv_last(self.upsample(self.conv_before_upsample(y)))
        elif self.upsampler == 'pixelshuffledirect':
            y = self.upsample(y)
        elif self.upsampler == 'nearest+conv':
            y = self.conv_before_upsample(y)
            for up in (self.conv_up1, self.conv_up2) if self.scale == 4 else (self.conv_up1,):
                y = lrelu(up(F.interpolate(y, scale_factor=2, mode='nearest')))
            y = self.conv_last(lrelu(self.conv_hr(y)))
        else:
            y = x + self.conv_last(y)
        return (y + self.mean)[..., :h * self.scale, :w * self.scale]


if __name__ == '__main__':
    for doublings in (0, 1, 2):
        name = f'esrgan_{1 << doublings}x'
        run(name, fill(name, RRDB(doublings), oldest(doublings)))
    run('esrgan_older', fill('esrgan_older', RRDB(2), older))
    run('esrgan_8x', fill('esrgan_8x', RRDB(3), oldest(3)), 5, 6)
    run('real_4x', fill('real_4x', RRDB(2), lambda n: f'params_ema.{n}'))
    run('real_2x', fill('real_2x', RRDB(2, 2)), 10, 12)
    run('real_1x', fill('real_1x', RRDB(2, 4)), 8, 12)
    for scale in (1, 2, 4):
        run(f'compact_{scale}x', fill(f'compact_{scale}x', Compact(scale), lambda n: f'params.{n}'))
    for name, kind, scale, more in (('swin_classical', 'pixelshuffle', 4, {}), ('swin_3x', 'pixelshuffle', 3, {}), ('swin_light', 'pixelshuffledirect', 2, {}),
                                    ('swin_real', 'nearest+conv', 4, dict(three=True)), ('swin_real_2x', 'nearest+conv', 2, {}), ('swin_noise', '', 1, {})):
        run(name, fill(name, SwinIR(kind, scale, **more), lambda n: f'params.{n}'))
    save_file(outputs, f'{sys.argv[1]}/upscalers.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/upscalers.json', 'w'), separators=(',', ':'))
