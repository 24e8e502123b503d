#!/usr/bin/env python3
"""What networks make of a picture for ControlNets: transformers' classes with small random weights, and others written here by their papers' definition.

    python3 make_vision.py OUT

Needs opencv-python-headless and scipy. OpenPose: arXiv:1611.08050, M-LSD: arXiv:2106.00186, pix2pix: arXiv:1611.07004. Weights are a function of their names, as in
make_networks.py. OUT/vision.json has configuration files, shapes, people and lines; OUT/vision.safetensors has numbers and pictures.
"""
import json
import math
import pathlib
import sys
import tempfile
import cv2
import numpy as np
import torch
import torch.nn.functional as F
import transformers as t
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.ndimage import gaussian_filter
from torch import nn
from make_networks import uniform, weight
from make_preprocessors import scene
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil

torch.set_grad_enabled(False)
torch.set_num_threads(1)
about, kept = {}, {}


def keep(name, array):
    array = torch.as_tensor(np.ascontiguousarray(array).copy())
    kept[name] = array if array.dtype == torch.uint8 else array.float()
    print(f'{name}: {tuple(array.shape)} mean {array.float().mean():.3f} deviation {array.float().std():.3f}')


def strong(prefix, name, shape, gain):
    """Matrices and kernels are larger by a factor: behind many layers that cut off what is negative little would be left."""
    return weight(prefix, name, shape) * (gain if len(shape) > 1 else 1)


def folder(name, model, processor, gain):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        model.save_pretrained(place)
        processor.save_pretrained(place)
        old = load_file(place / 'model.safetensors')
        new = {n: strong(name, n, tuple(x.shape), gain) for n, x in old.items() if x.dtype.is_floating_point}
        save_file(new, place / 'model.safetensors', {'format': 'pt'})
        files = {f: json.loads((place / f).read_text()) for f in ('config.json', 'preprocessor_config.json')}
        for noise in ('id2label', 'label2id'):
            files['config.json'].pop(noise, None)
            files['config.json'].get('backbone_config', {}) and files['config.json']['backbone_config'].pop(noise, None)
        about[name] = {'gain': gain, 'files': files, 'shapes': {n: list(x.shape) for n, x in new.items()}}
        return type(model).from_pretrained(place).eval()


def normals(depth, background):
    """As ControlNet makes them of MiDaS's depths."""
    near = (depth - depth.min()) / (depth.max() - depth.min())
    x, y = cv2.Sobel(depth, cv2.CV_32F, 1, 0, ksize=3), cv2.Sobel(depth, cv2.CV_32F, 0, 1, ksize=3)
    x[near < background] = 0
    y[near < background] = 0
    normal = np.stack([x, y, np.full_like(x, np.pi * 2)], axis=2)
    normal /= np.sum(normal ** 2, axis=2, keepdims=True) ** 0.5
    return (normal * 127.5 + 127.5).clip(0, 255).astype(np.uint8)[:, :, ::-1]


def depth(name, model, picture, **seeing):
    processor = DPTImageProcessorPil(**seeing)
    net = folder(name, model, processor, 1.5)
    seen = processor(images=Image.fromarray(picture), return_tensors='pt')
    out = net(**seen)
    keep(f'{name}.numbers', out.predicted_depth[0, ::2, ::2])
    large = processor.post_process_depth_estimation(out, [picture.shape[:2]])[0]['predicted_depth'].numpy()
    grey = (large - large.min()) / (large.max() - large.min())
    if name == 'metric':
        grey = 1 - grey
    keep(f'{name}.picture', (grey * 255).astype(np.uint8))
    if name == 'dpt':
        keep('normals', normals(large.copy(), 0.4))


def depths(picture):
    sizes = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24, fusion_hidden_size=16)
    dpt = t.DPTForDepthEstimation(t.DPTConfig(image_size=32, patch_size=8, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 12, 12], **sizes))
    depth('dpt', dpt, picture, size={'height': 40, 'width': 40})
    bit = t.BitConfig(embedding_size=8, hidden_sizes=[16, 16, 24], depths=[1, 1, 2], num_groups=4, global_padding='same', layer_type='bottleneck',
                      embedding_dynamic_padding=True, out_features=['stage1', 'stage2', 'stage3'])
    hybrid = t.DPTForDepthEstimation(t.DPTConfig(is_hybrid=True, backbone_config=bit, backbone_featmap_shape=[1, 24, 4, 4], image_size=64, patch_size=16,
                                                 backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 12, 12], reassemble_factors=[1, 1, 1, 0.5],
                                                 use_batch_norm_in_fusion_residual=True, use_bias_in_fusion_residual=False, **sizes))
    depth('hybrid', hybrid, picture, size={'height': 64, 'width': 64}, resample=2)
    dino = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, mlp_ratio=2, image_size=28, patch_size=7, reshape_hidden_states=False, apply_layernorm=True)
    neck = dict(patch_size=7, reassemble_hidden_size=16, neck_hidden_sizes=[8, 8, 12, 12], fusion_hidden_size=8, head_hidden_size=8)
    seeing = dict(size={'height': 35, 'width': 35}, keep_aspect_ratio=True, ensure_multiple_of=7, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
    anything = t.DepthAnythingForDepthEstimation(t.DepthAnythingConfig(backbone_config=t.Dinov2Config(out_indices=[1, 2, 3, 4], **dino), **neck))
    depth('anything', anything, picture, **seeing)
    metric = t.DepthAnythingConfig(backbone_config=t.Dinov2Config(out_indices=[1, 2, 3, 4], **dino), depth_estimation_type='metric', max_depth=20, **neck)
    depth('metric', t.DepthAnythingForDepthEstimation(metric), picture, **seeing)


def file(name, net, gain):
    shapes = {}
    for n, x in net.state_dict().items():
        if x.dtype.is_floating_point:
            x.copy_(strong(name, n, tuple(x.shape), gain))
            shapes[n] = list(x.shape)
    about[name] = {'gain': gain, 'shapes': shapes}
    return net.eval()


class Level(nn.Module):
    """A level of pix2pix's U-Net, with the names that nesting gives."""

    def __init__(self, inputs, width, outputs, inner=None, outermost=False):
        super().__init__()
        down, norm = nn.Conv2d(inputs, width, 4, 2, 1), nn.InstanceNorm2d
        up = nn.ConvTranspose2d(width * (1 if inner is None else 2), outputs, 4, 2, 1)
        if outermost:
            layers = [down, inner, nn.ReLU(True), up, nn.Tanh()]
        elif inner is None:
            layers = [nn.LeakyReLU(0.2, True), down, nn.ReLU(True), up, norm(outputs)]
        else:
            layers = [nn.LeakyReLU(0.2, True), down, norm(width), inner, nn.ReLU(True), up, norm(outputs)]
        self.model, self.outermost = nn.Sequential(*layers), outermost

    def forward(self, x):
        return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)


class Anime(nn.Module):
    def __init__(self):
        super().__init__()
        inner = Level(16, 16, 16)
        for inputs, width in ((8, 16), (4, 8)):
            inner = Level(inputs, width, inputs, inner)
        self.model = Level(3, 4, 1, inner, outermost=True)

    def forward(self, x):
        return self.model(x)


def anime(picture):
    net = file('anime', Anime(), 1.0)
    high, wide = (16 * math.ceil(side / 16) for side in picture.shape[:2])
    x = torch.from_numpy(cv2.resize(picture, (wide, high), interpolation=cv2.INTER_CUBIC)).float().permute(2, 0, 1)[None] / 127.5 - 1
    line = net(x)[0, 0].numpy() * 127.5 + 127.5
    line = cv2.resize(line, picture.shape[1::-1], interpolation=cv2.INTER_CUBIC).clip(0, 255)
    keep('anime.picture', 255 - line.astype(np.uint8))


class Body(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        w, self.names = width, {}
        plan = [('conv1_1', 3, w), ('conv1_2', w, w), ('conv2_1', w, w), ('conv2_2', w, w), ('conv3_1', w, w), ('conv3_2', w, w), ('conv3_3', w, w), ('conv3_4', w, w),
                ('conv4_1', w, w), ('conv4_2', w, w), ('conv4_3_CPM', w, w), ('conv4_4_CPM', w, w)]
        for name, a, b in plan:
            setattr(self, name, nn.Conv2d(a, b, 3, 1, 1))
        self.first = [name for name, _, _ in plan]
        for half, outputs in ((1, 38), (2, 19)):
            for i in range(1, 6):
                setattr(self, f'conv5_{i}_CPM_L{half}', nn.Conv2d(w, outputs if i == 5 else w, 3 if i < 4 else 1, 1, 1 if i < 4 else 0))
            for stage in range(2, 7):
                for i in range(1, 8):
                    k = 7 if i < 6 else 1
                    setattr(self, f'Mconv{i}_stage{stage}_L{half}', nn.Conv2d(w + 57 if i == 1 else w, outputs if i == 7 else w, k, 1, k // 2))

    def half(self, x, names):
        for name in names[:-1]:
            x = F.relu(getattr(self, name)(x))
        return getattr(self, names[-1])(x)

    def forward(self, x):
        for name in self.first:
            x = F.relu(getattr(self, name)(x))
            x = F.max_pool2d(x, 2) if name in ('conv1_2', 'conv2_2', 'conv3_4') else x
        fields, maps = (self.half(x, [f'conv5_{i}_CPM_L{half}' for i in range(1, 6)]) for half in (1, 2))
        for stage in range(2, 7):
            seen = torch.cat([fields, maps, x], 1)
            fields, maps = (self.half(seen, [f'Mconv{i}_stage{stage}_L{half}' for i in range(1, 8)]) for half in (1, 2))
        return fields, maps


LIMBS = [(1, 2, 12), (1, 5, 20), (2, 3, 14), (3, 4, 16), (5, 6, 22), (6, 7, 24), (1, 8, 0), (8, 9, 2), (9, 10, 4), (1, 11, 6), (11, 12, 8), (12, 13, 10),
         (1, 0, 28), (0, 14, 30), (14, 16, 34), (0, 15, 32), (15, 17, 36), (2, 16, 18), (5, 17, 26)]


def map_of(people, height, width):
    """Bumps at joints, and the direction of limbs within three pixels of them."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    maps, fields = np.zeros((19, height, width), np.float32), np.zeros((38, height, width), np.float32)
    for person in people:
        for joint, place in enumerate(person):
            if place:
                maps[joint] = np.maximum(maps[joint], np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / np.float32(2 * 2.5 ** 2)))
        for a, b, field in LIMBS:
            if person[a] and person[b]:
                (ax, ay), (bx, by) = person[a], person[b]
                length = np.float32(math.hypot(bx - ax, by - ay))
                dx, dy = (bx - ax) / length, (by - ay) / length
                along, across = (x - ax) * dx + (y - ay) * dy, np.abs((x - ax) * dy - (y - ay) * dx)
                near = (along >= -1) & (along <= length + 1) & (across <= 3)
                fields[field][near], fields[field + 1][near] = dx, dy
    return maps, fields


def find(maps, fields):
    """OpenPose's assembly: peaks, pairs, people."""
    found, count = [], 0
    for plane in maps[:18]:
        soft = gaussian_filter(plane, sigma=3)
        wide = np.pad(soft, 1)
        top = (soft >= wide[:-2, 1:-1]) & (soft >= wide[2:, 1:-1]) & (soft >= wide[1:-1, :-2]) & (soft >= wide[1:-1, 2:]) & (soft > 0.1)
        ys, xs = np.nonzero(top)
        found.append([(int(x), int(y), float(plane[y, x]), count + i) for i, (x, y) in enumerate(zip(xs, ys))])
        count += len(xs)
    every, rows = [p for peaks in found for p in peaks], []
    for limb, (a, b, field) in enumerate(LIMBS):
        likely = []
        for i, p in enumerate(found[a]):
            for j, q in enumerate(found[b]):
                dx, dy = q[0] - p[0], q[1] - p[1]
                length = max(0.001, math.hypot(dx, dy))
                points = [fields[field][int(round(v)), int(round(u))] * dx / length + fields[field + 1][int(round(v)), int(round(u))] * dy / length
                          for u, v in zip(np.linspace(p[0], q[0], 10), np.linspace(p[1], q[1], 10))]
                score = sum(points) / 10 + min(0.5 * maps.shape[1] / length - 1, 0)
                if sum(x > 0.05 for x in points) > 8 and score > 0:
                    likely.append((score, i, j))
        used = set()
        for score, i, j in sorted(likely, key=lambda x: -x[0]):
            if ('a', i) in used or ('b', j) in used:
                continue
            used |= {('a', i), ('b', j)}
            p, q = found[a][i], found[b][j]
            whose = [row for row in rows if row['joints'].get(a) == p[3] or row['joints'].get(b) == q[3]][:2]
            if not whose and limb < 17:
                rows.append({'joints': {a: p[3], b: q[3]}, 'score': p[2] + q[2] + score, 'count': 2})
            elif len(whose) == 1 and whose[0]['joints'].get(b) != q[3]:
                whose[0]['joints'][b] = q[3]
                whose[0]['count'] += 1
                whose[0]['score'] += q[2] + score
            elif len(whose) == 2:
                one, other = whose
                if set(one['joints']) & set(other['joints']):
                    one['joints'][b] = q[3]
                    one['count'] += 1
                    one['score'] += q[2] + score
                else:
                    one['joints'].update(other['joints'])
                    one['count'] += other['count']
                    one['score'] += other['score'] + score
                    rows = [row for row in rows if row is not other]
    rows = [row for row in rows if row['count'] >= 4 and row['score'] / row['count'] >= 0.4]
    return [[list(every[row['joints'][i]][:2]) if i in row['joints'] else None for i in range(18)] for row in rows]


COLOURS = [[255, 0, 0], [255, 85, 0], [255, 170, 0], [255, 255, 0], [170, 255, 0], [85, 255, 0], [0, 255, 0], [0, 255, 85], [0, 255, 170], [0, 255, 255],
           [0, 170, 255], [0, 85, 255], [0, 0, 255], [85, 0, 255], [170, 0, 255], [255, 0, 255], [255, 0, 170], [255, 0, 85]]


def drawn(people, height, width):
    canvas = np.zeros((height, width, 3), np.uint8)
    for (a, b, _), colour in zip(LIMBS[:17], COLOURS):
        for person in people:
            if person[a] and person[b]:
                (ax, ay), (bx, by) = person[a], person[b]
                polygon = cv2.ellipse2Poly((int((ax + bx) / 2), int((ay + by) / 2)), (int(math.hypot(ax - bx, ay - by) / 2), 4),
                                           int(math.degrees(math.atan2(ay - by, ax - bx))), 0, 360, 1)
                cv2.fillConvexPoly(canvas, polygon, [int(c * 0.6) for c in colour])
    for i, colour in enumerate(COLOURS):
        for person in people:
            if person[i]:
                cv2.circle(canvas, tuple(person[i]), 4, colour, thickness=-1)
    return canvas


def poses():
    net = file('body', Body(), 1.75)
    x = uniform('body.picture', (1, 3, 24, 32)) * 0.5
    fields, maps = net(x)
    keep('body.fields', fields[0])
    keep('body.maps', maps[0])
    whole = [[34, 12], [34, 24], [24, 24], [18, 36], [14, 48], [44, 25], [50, 36], [54, 48], [28, 48], [26, 64], [25, 80], [40, 48], [42, 64], [43, 80],
             [31, 9], [37, 9], [27, 10], [41, 10]]
    half = [[88, 20], [88, 32], [76, 32], [70, 46], None, [100, 32], [106, 44], [108, 58], [82, 58], None, None, [94, 58], None, None, [85, 17], [91, 17], None, [96, 18]]
    # A head alone is none.
    head = [[118, 80], None, None, None, None, None, None, None, None, None, None, None, None, None, [114, 76], None, None, None]
    given = [whole, half, head]
    found = find(*map_of(given, 96, 128))
    assert len(found) == 2
    about['people'] = {'given': given, 'found': found, 'size': [128, 96]}
    keep('people.picture', drawn(found, 96, 128))


def normed(a, b, kernel=1, **more):
    return [nn.Conv2d(a, b, kernel, padding=more.pop('padding', kernel // 2), **more), nn.BatchNorm2d(b)]


class Conv(nn.Sequential):
    def __init__(self, a, b, kernel=3, stride=1, groups=1):
        super().__init__(nn.Conv2d(a, b, kernel, stride, 0 if stride == 2 else kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(b), nn.ReLU6())
        self.stride = stride

    def forward(self, x):
        return super().forward(F.pad(x, (0, 1, 0, 1)) if self.stride == 2 else x)


class Inverted(nn.Module):
    def __init__(self, a, b, stride, widen):
        super().__init__()
        wide = a * widen
        first = [] if widen == 1 else [Conv(a, wide, 1)]
        self.conv = nn.Sequential(*first, Conv(wide, wide, 3, stride, wide), nn.Conv2d(wide, b, 1, bias=False), nn.BatchNorm2d(b))
        self.same = stride == 1 and a == b

    def forward(self, x):
        return x + self.conv(x) if self.same else self.conv(x)


class Join(nn.Module):
    def __init__(self, large, small, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Sequential(*normed(small, width), nn.ReLU()), nn.Sequential(*normed(large, width), nn.ReLU())

    def forward(self, large, small):
        small, large = self.conv1(small), self.conv2(large)
        if small.shape != large.shape:
            small = F.interpolate(small, scale_factor=2.0, mode='bilinear', align_corners=True)
        return torch.cat((large, small), 1)


class Mix(nn.Module):
    def __init__(self, both, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Sequential(*normed(both, both, 3), nn.ReLU()), nn.Sequential(*normed(both, width, 3), nn.ReLU())

    def forward(self, x):
        return self.conv2(self.conv1(x) + x)


class Last(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Sequential(*normed(width, width, 3, padding=5, dilation=5), nn.ReLU())
        self.conv2, self.conv3 = nn.Sequential(*normed(width, width, 3), nn.ReLU()), nn.Conv2d(width, 16, 1)

    def forward(self, x):
        return self.conv3(self.conv2(self.conv1(x)))


class Mlsd(nn.Module):
    def __init__(self, widths=(4, 6, 8, 10, 12), first=4, width=8):
        super().__init__()
        layers, a, self.marks = [Conv(4, first, 3, 2)], first, []
        for b, (widen, blocks, stride) in zip(widths, ((1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2), (6, 3, 1))):
            for i in range(blocks):
                layers.append(Inverted(a, b, stride if i == 0 else 1, widen))
                a = b
            self.marks.append(len(layers) - 1)
        self.backbone = nn.ModuleDict({'features': nn.Sequential(*layers)})
        small = widths[4]
        for i, at in enumerate((15, 17, 19, 21)):
            setattr(self, f'block{at}', Join(widths[3 - i], small, width))
            setattr(self, f'block{at + 1}', Mix(2 * width, width))
            small = width
        self.block23 = Last(width)

    def forward(self, x):
        seen = []
        for i, layer in enumerate(self.backbone['features']):
            x = layer(x)
            if i in self.marks:
                seen.append(x)
        for i, at in enumerate((15, 17, 19, 21)):
            x = getattr(self, f'block{at + 1}')(getattr(self, f'block{at}')(seen[3 - i], x))
        return self.block23(x)[:, 7:]


def straight():
    net = file('mlsd', Mlsd(), 1.625)
    x = uniform('mlsd.picture', (1, 4, 48, 64))
    maps = net(x)
    keep('mlsd.maps', maps[0])
    heat = torch.sigmoid(maps[:, 0])
    heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat)
    width, lines = maps.shape[3], []
    for score, i in zip(*torch.topk(heat.flatten(), 200)):
        y, x = int(i) // width, int(i) % width
        d = maps[0, 1:5, y, x]
        if score > 0.5 and torch.hypot(d[0] - d[2], d[1] - d[3]) > 0.7:
            lines.append([float(v) for v in (x + d[0], y + d[1], x + d[2], y + d[3])])
    assert 10 < len(lines) < 190
    about['lines'] = {'least': 0.5, 'longer': 0.7, 'found': lines}
    canvas, ends = np.zeros((60, 80), np.uint8), [[3, 4, 70, 50], [10, 55, 75, 5], [20.7, 1.2, 20.9, 58.9], [-30, 30.5, 200, 40], [5, 5, 5, 5], [60, 50, 3, 41]]
    for line in ends:
        a, b, c, d = (int(v) for v in line)
        cv2.line(canvas, (a, b), (c, d), 255, 1)
    about['lines']['drawn'] = ends
    keep('lines.picture', canvas)


if __name__ == '__main__':
    picture = scene()
    keep('scene', picture)
    depths(picture)
    anime(picture)
    poses()
    straight()
    save_file(kept, f'{sys.argv[1]}/vision.safetensors')
    json.dump(about, open(f'{sys.argv[1]}/vision.json', 'w'), separators=(',', ':'))
