#!/usr/bin/env python3
"""What OpenCV and small networks, written here by their papers' definition, make of a picture.

    python3 make_preprocessors.py OUT

Needs opencv-python-headless. HED: arXiv:1504.06375, line drawings: arXiv:2203.12691. Weights are a function of their names, as in make_networks.py.
"""
import json
import sys
import cv2
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from make_networks import about, uniform
from make_upscalers import fill

torch.set_grad_enabled(False)
kept = {}


def keep(name, picture):
    kept[name] = torch.from_numpy(np.ascontiguousarray(picture).copy())


def scene():
    """Smooth colours with a few shapes and some grain."""
    small = ((uniform('scene', (5, 7, 3)).numpy() + 1) * 127.5).astype(np.uint8)
    picture = cv2.resize(small, (92, 68), interpolation=cv2.INTER_CUBIC)
    cv2.circle(picture, (30, 30), 17, (230, 40, 60), -1)
    cv2.rectangle(picture, (55, 12), (80, 50), (20, 30, 40), 2)
    cv2.line(picture, (5, 60), (88, 40), (250, 250, 250), 1)
    grain = (uniform('grain', picture.shape).numpy() * 12).round()
    return np.clip(picture.astype(np.float32) + grain, 0, 255).astype(np.uint8)


def filters(picture):
    for low, high in ((100, 200), (30, 60), (250, 20)):
        keep(f'canny_{low}_{high}', cv2.Canny(picture, low, high))
    wide = picture.astype(np.float32)
    dog = (255 - np.min(cv2.GaussianBlur(wide, (0, 0), 5.0) - cv2.GaussianBlur(wide, (0, 0), 0.5), axis=2)).clip(0, 255).astype(np.uint8)
    scribble = np.zeros_like(dog)
    scribble[2 * (255 - dog.astype(int)) > 32] = 255
    keep('scribble', scribble)
    lines = np.min(cv2.GaussianBlur(wide, (0, 0), 6.0) - wide, axis=2).clip(0, 255)
    lines = lines / max(16, np.median(lines[lines > 8])) * 127
    keep('lineart', lines.clip(0, 255).astype(np.uint8))
    keep('blur', cv2.GaussianBlur(picture, (0, 0), 3.0))
    keep('threshold', (picture.min(2) > 90).astype(np.uint8) * 255)
    keep('intensity', picture.max(2))
    keep('luminance', cv2.cvtColor(picture, cv2.COLOR_RGB2LAB)[:, :, 0])
    keep('shuffle', shuffle(picture, 5))
    keep('thinned', scribbled(picture.max(2)))


def noise_disk(height, width, step=256):
    """ControlNet's smooth noise."""
    noise = np.random.uniform(low=0, high=1, size=(height // step + 2, width // step + 2))
    noise = cv2.resize(noise, (width + 2 * step, height + 2 * step), interpolation=cv2.INTER_CUBIC)[step:step + height, step:step + width]
    return (noise - noise.min()) / (noise.max() - noise.min())


def shuffle(picture, seed):
    np.random.seed(seed)
    height, width = picture.shape[:2]
    x, y = noise_disk(height, width) * (width - 1), noise_disk(height, width) * (height - 1)
    return cv2.remap(picture, np.stack([x, y], axis=2).astype(np.float32), None, cv2.INTER_LINEAR)


def scribbled(edges):
    """ControlNet's scribbles of soft edges: ridges along any of four directions."""
    soft = cv2.GaussianBlur(edges.astype(np.float32), (0, 0), 3.0)
    ridges = np.zeros_like(soft)
    for line in ([[0, 0, 0], [1, 1, 1], [0, 0, 0]], [[0, 1, 0]] * 3, np.eye(3), np.eye(3)[::-1]):
        np.putmask(ridges, cv2.dilate(soft, np.array(line, np.uint8)) == soft, soft)
    soft = cv2.GaussianBlur((ridges > 127).astype(np.uint8) * 255, (0, 0), 3.0)
    return (soft > 4).astype(np.uint8) * 255


class Hed(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.Parameter(torch.zeros(1, 3, 1, 1))
        inputs = 3
        for i, layers in enumerate((2, 2, 3, 3, 3)):
            outputs = width * min(2 ** i, 8)
            convs = nn.ModuleList(nn.Conv2d(inputs if j == 0 else outputs, outputs, 3, padding=1) for j in range(layers))
            setattr(self, f'block{i + 1}', nn.ModuleDict({'convs': convs, 'projection': nn.Conv2d(outputs, 1, 1)}))
            inputs = outputs

    def forward(self, x):
        h, w = x.shape[-2:]
        x, edges = x - self.norm, []
        for i in range(5):
            block = getattr(self, f'block{i + 1}')
            x = F.max_pool2d(x, 2) if i else x
            for layer in block['convs']:
                x = F.relu(layer(x))
            edge = block['projection'](x)
            edges.append(torch.from_numpy(cv2.resize(edge[0, 0].numpy(), (w, h), interpolation=cv2.INTER_LINEAR)))
        return torch.sigmoid(torch.stack(edges).mean(0))


class Lines(nn.Module):
    def __init__(self, width=8, blocks=2):
        super().__init__()
        norm, pad = nn.InstanceNorm2d, nn.ReflectionPad2d
        self.model0 = nn.Sequential(pad(3), nn.Conv2d(3, width, 7), norm(width), nn.ReLU())
        down, up = [], []
        for i in (1, 2):
            down += [nn.Conv2d(i * width, 2 * i * width, 3, 2, 1), norm(2 * i * width), nn.ReLU()]
        for i in (4, 2):
            up += [nn.ConvTranspose2d(i * width, i * width // 2, 3, 2, 1, 1), norm(i * width // 2), nn.ReLU()]
        wide = 4 * width
        block = lambda: nn.ModuleDict({'conv_block': nn.Sequential(pad(1), nn.Conv2d(wide, wide, 3), norm(wide), nn.ReLU(), pad(1), nn.Conv2d(wide, wide, 3), norm(wide))})
        self.model1, self.model3 = nn.Sequential(*down), nn.Sequential(*up)
        self.model2 = nn.ModuleList(block() for _ in range(blocks))
        self.model4 = nn.Sequential(pad(3), nn.Conv2d(width, 1, 7), nn.Sigmoid())

    def forward(self, x):
        x = self.model1(self.model0(x))
        for block in self.model2:
            x = x + block['conv_block'](x)
        return self.model4(self.model3(x))[0, 0]


if __name__ == '__main__':
    picture = scene()
    keep('scene', picture)
    filters(picture)
    x = torch.from_numpy(picture.copy()).float().permute(2, 0, 1)[None]
    net = fill('hed', Hed())
    for i in range(5):
        # Colours go to 255: without it all is black or white.
        getattr(net, f'block{i + 1}')['projection'].weight.mul_(0.02)
    edges = net(x).numpy()
    keep('hed', (edges * 255).round().clip(0, 255).astype(np.uint8))
    keep('safe', ((edges * 3).astype(np.int32) / 2 * 255).round().clip(0, 255).astype(np.uint8))
    net = fill('lines', Lines())
    keep('lines', 255 - (net(x / 255) * 255).round().clip(0, 255).numpy().astype(np.uint8))
    for name in ('hed', 'safe', 'lines', 'luminance', 'shuffle', 'thinned'):
        print(name, kept[name].float().mean(), kept[name].float().std())
    save_file(kept, f'{sys.argv[1]}/preprocessors.safetensors')
    json.dump({name: about[name] for name in ('hed', 'lines')}, open(f'{sys.argv[1]}/preprocessors.json', 'w'), separators=(',', ':'))
