#!/usr/bin/env python3
"""Outputs of small networks for faces, and faces cut out and put back by OpenCV as facexlib 0.3.0 does it.

    python3 make_faces.py OUT

GFPGAN is spandrel's; CodeFormer (arXiv:2206.11253), RetinaFace (arXiv:1905.00641) and ParseNet are written here by their definition. Weights and inputs are a function of their
names, as in make_networks.py.
"""
import json
import sys
import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from safetensors.torch import save_file
from spandrel.architectures.GFPGAN import GFPGAN
from make_networks import about, keep, outputs, uniform, weight


def fill(name, net):
    shapes = {}
    for inner, tensor in net.state_dict().items():
        if tensor.dtype.is_floating_point:
            made = weight(name, inner, tuple(tensor.shape))
            if inner.startswith('noises') or '.noises.' in inner:
                made = uniform(f'{name}.{inner}', tuple(tensor.shape))
            tensor.copy_(made)
            shapes[inner] = list(tensor.shape)
    about[name] = {'shapes': shapes}
    return net.eval()


# CodeFormer

def norm(width):
    return nn.GroupNorm(32, width, eps=1e-6)


def conv(a, b, k=3, **more):
    return nn.Conv2d(a, b, k, padding=k // 2, **more)


class Res(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1, self.norm2, self.conv2 = norm(a), conv(a, b), norm(b), conv(b, b)
        if a != b:
            self.conv_out = conv(a, b, 1)

    def forward(self, x):
        y = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return y + (self.conv_out(x) if hasattr(self, 'conv_out') else x)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = norm(c)
        self.q, self.k, self.v, self.proj_out = (conv(c, c, 1) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (m(y).flatten(2) for m in (self.q, self.k, self.v))
        w = torch.softmax(q.transpose(1, 2) @ k * x.shape[1] ** -0.5, 2)
        return x + self.proj_out((v @ w.transpose(1, 2)).view_as(x))


class Down(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, 2)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = conv(c, c)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode='nearest'))


class Blocks(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)


def encoder(widths, numbers):
    blocks, before = [conv(3, widths[0])], widths[0]
    for i, width in enumerate(widths):
        last = i == len(widths) - 1
        for _ in range(2):
            blocks += [Res(before, width)] + ([Attn(width)] if last else [])
            before = width
        if not last:
            blocks.append(Down(width))
    return Blocks(blocks + [Res(before, before), Attn(before), Res(before, before), norm(before), conv(before, numbers)])


def generator(widths, numbers):
    before = widths[-1]
    blocks = [conv(numbers, before), Res(before, before), Attn(before), Res(before, before)]
    for i, width in reversed(list(enumerate(widths))):
        for _ in range(2):
            blocks += [Res(before, width)] + ([Attn(width)] if i == len(widths) - 1 else [])
            before = width
        if i:
            blocks.append(Up(width))
    return Blocks(blocks + [norm(before), conv(before, 3)])


class SelfAttention(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, 8)
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, places):
        y = self.norm1(x)
        x = x + self.self_attn(y + places, y + places, y)[0]
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class Fuse(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encode_enc = Res(2 * width, width)
        self.scale, self.shift = (nn.Sequential(conv(width, width), nn.LeakyReLU(0.2), conv(width, width)) for _ in range(2))

    def forward(self, given, made, w):
        both = self.encode_enc(torch.cat([given, made], 1))
        return made + w * (made * self.scale(both) + self.shift(both))


class CodeFormer(nn.Module):
    def __init__(self, widths=(32, 32, 64, 64), numbers=24, codes=40, side=4, width=64, layers=2):
        super().__init__()
        self.encoder, self.generator, self.side = encoder(widths, numbers), generator(widths, numbers), side
        self.quantize = nn.ModuleDict({'embedding': nn.Embedding(codes, numbers)})
        self.position_emb = nn.Parameter(torch.zeros(side * side, width))
        self.feat_emb = nn.Linear(numbers, width)
        self.ft_layers = nn.ModuleList(SelfAttention(width, 2 * width) for _ in range(layers))
        self.idx_pred_layer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, codes, bias=False))
        # Behind the doublings: the sizes 8, 16, 32; at the last as at the published one's 512 nothing is let through.
        self.fuse_convs_dict = nn.ModuleDict({'8': Fuse(64), '16': Fuse(32)})

    def forward(self, x, w):
        given = {}
        for block in self.encoder.blocks:
            if isinstance(block, Down):
                given[str(x.shape[-1])] = x
            x = block(x)
        found = x
        rows = self.feat_emb(found.flatten(2).permute(2, 0, 1))
        for layer in self.ft_layers:
            rows = layer(rows, self.position_emb[:, None])
        ids = self.idx_pred_layer(rows).argmax(-1)
        x = self.quantize['embedding'](ids.T).view(1, self.side, self.side, -1).permute(0, 3, 1, 2)

        def moments(x):
            x = x.flatten(2)
            return x.mean(2)[..., None, None], (x.var(2) + 1e-5).sqrt()[..., None, None]
        (mean, deviation), (m, d) = moments(found), moments(x)
        x, up = (x - m) / d * deviation + mean, False
        for block in self.generator.blocks:
            x = block(x)
            size = str(x.shape[-1])
            if up and w > 0 and size in self.fuse_convs_dict:
                x = self.fuse_convs_dict[size](given[size], x, w)
            up = isinstance(block, Up)
        return x


# RetinaFace

def layer(a, b, k=3, stride=1, slope=None):
    return nn.Sequential(conv(a, b, k, stride=stride, bias=False), nn.BatchNorm2d(b), *([] if slope is None else [nn.LeakyReLU(slope)]))


def separable(a, b, stride):
    return nn.Sequential(nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.LeakyReLU(0.1),
                         nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = nn.Sequential(layer(3, 4, 3, 2, 0.1), separable(4, 6, 1), separable(6, 8, 2), separable(8, 8, 1), separable(8, 12, 2), separable(12, 12, 1))
        self.stage2 = nn.Sequential(separable(12, 16, 2), separable(16, 16, 1))
        self.stage3 = nn.Sequential(separable(16, 20, 2), separable(20, 20, 1))
        self.widths = (12, 16, 20)

    def forward(self, x):
        a = self.stage1(x)
        b = self.stage2(a)
        return a, b, self.stage3(b)


class Bottleneck(nn.Module):
    def __init__(self, a, inner, outer, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(a, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv(inner, inner, 3, stride=stride, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)
        if stride > 1 or a != outer:
            self.downsample = nn.Sequential(conv(a, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + (self.downsample(x) if hasattr(self, 'downsample') else x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 7, 2, 3, bias=False), nn.BatchNorm2d(6)
        before = 6
        for i, (inner, outer, count, stride) in enumerate(((4, 8, 2, 1), (4, 12, 2, 2), (6, 16, 1, 2), (6, 20, 2, 2))):
            setattr(self, f'layer{i + 1}', nn.Sequential(*(Bottleneck(before if j == 0 else outer, inner, outer, stride if j == 0 else 1) for j in range(count))))
            before = outer
        self.widths = (12, 16, 20)

    def forward(self, x):
        x = self.layer1(F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1))
        a = self.layer2(x)
        b = self.layer3(a)
        return a, b, self.layer4(b)


class Context(nn.Module):
    def __init__(self, width, slope):
        super().__init__()
        q = width // 4
        self.conv3X3, self.conv5X5_1, self.conv5X5_2 = layer(width, width // 2), layer(width, q, slope=slope), layer(q, q)
        self.conv7X7_2, self.conv7x7_3 = layer(q, q, slope=slope), layer(q, q)

    def forward(self, x):
        y = self.conv5X5_1(x)
        return F.relu(torch.cat([self.conv3X3(x), self.conv5X5_2(y), self.conv7x7_3(self.conv7X7_2(y))], 1))


class RetinaFace(nn.Module):
    def __init__(self, body, width):
        super().__init__()
        slope = 0.1 if width <= 64 else 0.0
        self.body = body
        self.fpn = nn.ModuleDict({f'output{i + 1}': layer(body.widths[i], width, 1, slope=slope) for i in range(3)} | {f'merge{i + 1}': layer(width, width, slope=slope) for i in range(2)})
        self.ssh1, self.ssh2, self.ssh3 = (Context(width, slope) for _ in range(3))
        for name, numbers in (('ClassHead', 2), ('BboxHead', 4), ('LandmarkHead', 10)):
            setattr(self, name, nn.ModuleList(nn.ModuleDict({'conv1x1': conv(width, 2 * numbers, 1)}) for _ in range(3)))

    def forward(self, x):
        a, b, c = (self.fpn[f'output{i + 1}'](y) for i, y in enumerate(self.body(x)))
        b = self.fpn['merge2'](b + F.interpolate(c, size=b.shape[2:], mode='nearest'))
        a = self.fpn['merge1'](a + F.interpolate(b, size=a.shape[2:], mode='nearest'))
        features = self.ssh1(a), self.ssh2(b), self.ssh3(c)

        def rows(heads, numbers):
            return torch.cat([h['conv1x1'](y).permute(0, 2, 3, 1).reshape(-1, numbers) for h, y in zip(heads, features)])
        return rows(self.BboxHead, 4), rows(self.ClassHead, 2).softmax(-1), rows(self.LandmarkHead, 10)


def detect(net, picture):
    """facexlib's detect_faces: rows of bounds, score and landmarks, and how sure it is of these. `picture` is height, width, RGB."""
    h, w, _ = picture.shape
    x = torch.from_numpy(picture[..., ::-1].astype(np.float32).transpose(2, 0, 1)[None] - np.array([104, 117, 123], np.float32).reshape(1, 3, 1, 1))
    boxes, scores, landmarks = net(x)
    asked = [((j + 0.5) * step, (i + 0.5) * step, side) for step, sides in ((8, (16, 32)), (16, (64, 128)), (32, (256, 512)))
             for i in range(-(-h // step)) for j in range(-(-w // step)) for side in sides]
    asked = torch.tensor(asked)
    middle, side = asked[:, :2], asked[:, 2:]
    c, s = middle + boxes[:, :2] * 0.1 * side, side * torch.exp(boxes[:, 2:] * 0.2)
    points = middle[:, None] + landmarks.view(-1, 5, 2) * 0.1 * side[:, None]
    rows = torch.cat([c - s / 2, c + s / 2, scores[:, 1:], points.flatten(1)], 1)
    # So that some are found, with a gap to the next one.
    scores = rows[:, 4].sort(descending=True).values
    at = 20 + int((scores[20:40] - scores[21:41]).argmax())
    sure = float(scores[at] + scores[at + 1]) / 2
    rows = rows[rows[:, 4] > sure]
    rows = rows[rows[:, 4].argsort(descending=True)]
    kept = []
    for row in rows:
        def shared(other):
            size = (torch.minimum(row[2:4], other[2:4]) - torch.maximum(row[:2], other[:2])).clamp(min=0).prod()
            return size / ((row[2:4] - row[:2]).prod() + (other[2:4] - other[:2]).prod() - size)
        if all(shared(other) <= 0.4 for other in kept):
            kept.append(row)
    return torch.stack(kept), sure


# ParseNet

class Mirrored(nn.Module):
    def __init__(self, a, b, stride=1, normed=False, up=False):
        super().__init__()
        self.conv2d, self.up = nn.Conv2d(a, b, 3, stride, bias=not normed), up
        if normed:
            self.norm = nn.ModuleDict({'norm': nn.BatchNorm2d(b)})

    def forward(self, x):
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode='nearest')
        x = self.conv2d(F.pad(x, (1, 1, 1, 1), 'reflect'))
        return self.norm['norm'](x) if hasattr(self, 'norm') else x


class Part(nn.Module):
    def __init__(self, a, b, scale):
        super().__init__()
        down, up = 2 if scale == 'down' else 1, scale == 'up'
        if scale or a != b:
            self.shortcut_func = Mirrored(a, b, down, up=up)
        self.conv1, self.conv2 = Mirrored(a, b, 1, True, up), Mirrored(b, b, down, True)

    def forward(self, x):
        y = self.conv2(F.leaky_relu(self.conv1(x), 0.2))
        return y + (self.shortcut_func(x) if hasattr(self, 'shortcut_func') else x)


class ParseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(Mirrored(3, 6), Part(6, 8, 'down'), Part(8, 12, 'down'))
        self.body = nn.Sequential(Part(12, 12, ''), Part(12, 12, ''))
        self.decoder = nn.Sequential(Part(12, 8, 'up'), Part(8, 6, 'up'))
        self.out_mask_conv = Mirrored(6, 19)

    def forward(self, x):
        y = self.encoder(x)
        return self.out_mask_conv(self.decoder(y + self.body(y)))


# facexlib's way with OpenCV, at a face's size of `size`

TEMPLATE = np.array([[192.98138, 239.94708], [318.90277, 240.1936], [256.63416, 314.01935], [201.26117, 371.41043], [313.08905, 371.15118]])


def scene(h, w):
    y, x = np.mgrid[:h, :w]
    return np.stack([127 + 100 * np.sin(x / 7 + y / 23), 127 + 100 * np.cos(y / 9), (3 * x + 2 * y) % 256 * 0.5 + 60], -1).clip(0, 255).astype(np.uint8)


def aligned(picture, landmarks, size):
    matrix = cv2.estimateAffinePartial2D(landmarks, TEMPLATE * (size / 512), method=cv2.LMEDS)[0]
    return matrix, cv2.warpAffine(picture, matrix, (size, size), borderMode=cv2.BORDER_CONSTANT, borderValue=(132, 133, 135))


def pasted(picture, face, matrix, parts=None):
    h, w, _ = picture.shape
    back, size = cv2.invertAffineTransform(matrix), face.shape[0]
    new = cv2.warpAffine(face, back, (w, h))
    if parts is not None:
        mask = np.zeros(parts.shape)
        for part in range(19):
            mask[parts == part] = 0 if part in (0, 14, 16, 17, 18) else 255
        for _ in range(2):
            mask = cv2.GaussianBlur(mask, (101, 101), 11)
        mask[:10], mask[-10:], mask[:, :10], mask[:, -10:] = 0, 0, 0, 0
        share = cv2.warpAffine(mask / 255, back, (w, h), flags=3)[..., None]
    else:
        mask = cv2.warpAffine(np.ones((size, size), np.float32), back, (w, h))
        mask = cv2.erode(mask, np.ones((2, 2), np.uint8))
        new = mask[..., None] * new
        edge = int(np.sum(mask) ** 0.5) // 20
        share = cv2.GaussianBlur(cv2.erode(mask, np.ones((2 * edge, 2 * edge), np.uint8)), (2 * edge + 1, 2 * edge + 1), 0)[..., None]
    return share * new + (1 - share) * picture


def face_landmarks(centre, size, turn, noise):
    points = (TEMPLATE / 512 - 0.5) @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) * size
    return (points + centre + np.array(noise)).astype(np.float32)


if __name__ == '__main__':
    about.clear()
    outputs.clear()
    torch.manual_seed(0)
    for name, half, each in (('gfpgan', True, True), ('gfpgan_whole', False, False)):
        net = fill(name, GFPGAN(out_size=32, num_style_feat=12, channel_multiplier=2, narrow=0.0625, num_mlp=1, sft_half=half, different_w=each))
        for part in [p for p in about[name]['shapes'] if 'style_mlp' in p or p.startswith('toRGB')]:
            del about[name]['shapes'][part]
        keep(name, net(uniform(f'{name}.face', (1, 3, 32, 32)), return_rgb=False, randomize_noise=False)[0])
    net = fill('codeformer', CodeFormer())
    for w in (0.0, 0.5, 1.0):
        keep(f'codeformer.{w}', net(uniform('codeformer.face', (1, 3, 32, 32)), w))
    keep('parsenet', fill('parsenet', ParseNet())(uniform('parsenet.face', (1, 3, 32, 32))))
    picture = scene(75, 100)
    for name, body, width in (('mobile', Mobile(), 16), ('residual', Residual(), 68)):
        net = fill(name, RetinaFace(body, width))
        boxes, scores, landmarks = net(uniform(f'{name}.picture', (1, 3, 37, 70)))
        keep(f'{name}.rows', torch.cat([boxes, scores, landmarks], 1))
    found, about['residual']['sure'] = detect(net, picture)
    keep('residual', found)
    picture = scene(120, 160)
    outputs['scene'] = torch.from_numpy(picture)
    for name, centre, size, turn, noise in (
            ('upright', (80, 60), 80, 0.0, 0.0), ('turned', (70, 55), 60, 0.5, [[2, 1], [-1, 1], [0, 3], [1, -2], [0, 0]]),
            ('edge', (8, 15), 70, -0.3, [[0, 1], [1, 0], [0, 0], [2, 1], [9, 14]]), ('small', (135, 100), 22, 2.5, 0.3), ('beside', (500, 500), 90, 0.1, 0.0)):
        landmarks = face_landmarks(centre, size, turn, noise)
        outputs[f'{name}.landmarks'] = torch.from_numpy(landmarks)
        matrix, face = aligned(picture, landmarks, 128)
        outputs[f'{name}.face'] = torch.from_numpy(face)
        # In place of a network: other colours.
        face = 255 - face
        outputs[f'{name}.square'] = torch.from_numpy(pasted(picture, face, matrix).round().clip(0, 255).astype(np.uint8))
        y, x = np.mgrid[:128, :128]
        parts = np.where((x - 64) ** 2 + (y - 70) ** 2 < 45 ** 2, 1 + (x // 16), np.where(y < 30, 17, 0))
        outputs[f'{name}.mask'] = torch.from_numpy(pasted(picture, face, matrix, parts).round().clip(0, 255).astype(np.uint8))
    # Every second pixel says as much.
    for name in list(outputs):
        if name.endswith(('.face', '.square', '.mask')):
            outputs[name] = outputs[name][::2, ::2].contiguous()
    save_file(outputs, f'{sys.argv[1]}/faces.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/faces.json', 'w'), separators=(',', ':'))
