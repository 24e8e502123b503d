#!/usr/bin/env python3
"""Draw prompts with diffusers and judge the pictures by numpy alone.

    python3 evaluate.py FOLDER [--prompts N] [--steps 20] [--guidance 4] [--out FOLDER]

FOLDER has safetensors (pack.py unpack). Judged are pictures on plain backgrounds, where everything can be measured: the background's colour, and
  one        colour and kind of one object ("a red house on a white background")
  number     how many ("three red apples on a white background")
  relation   which of two is where ("a red star to the left of a blue cup on a white background")
and places ("a red house in the snow") by the nearest mean picture of that place. `--check` judges rendered scenes instead: what the judge itself gets wrong.
Needs torch, diffusers, transformers, numpy, pillow.
"""
import argparse, json, os, random, sys
import numpy as np, torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from scenes import COLORS, COUNT, NAMES, OBJECTS, PLACES, PLACE_WORDS, SPRITES, Renderer, pack, scene, sprites

PALETTE = np.array(list(COLORS.values()))
FIELD = 40
RELATIONS = {'leftof': 'to the left of', 'rightof': 'to the right of', 'above': 'above', 'below': 'below'}


def nearest(rgb):
    return NAMES[int(np.abs(PALETTE - rgb).sum(-1).argmin())]


def parts_of(mask, least=120):
    """Connected areas, largest first."""
    seen, areas = np.zeros_like(mask), []
    for start in zip(*np.nonzero(mask)):
        if seen[start]:
            continue
        stack, area = [start], []
        seen[start] = True
        while stack:
            y, x = stack.pop()
            area.append((y, x))
            for a, b in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= a < mask.shape[0] and 0 <= b < mask.shape[1] and mask[a, b] and not seen[a, b]:
                    seen[a, b] = True
                    stack.append((a, b))
        if len(area) >= least:
            areas.append(np.array(area))
    return sorted(areas, key=len, reverse=True)


def boxed(mask):
    """A mask's bounding box, stretched over FIELD x FIELD, with its height by its width."""
    ys, xs = np.nonzero(mask)
    y = np.linspace(ys.min(), ys.max(), FIELD).round().astype(int)
    x = np.linspace(xs.min(), xs.max(), FIELD).round().astype(int)
    return mask[np.ix_(y, x)], (np.ptp(ys) + 1) / (np.ptp(xs) + 1)


class Judge:
    def __init__(self):
        masks, colors, own = (x.numpy() for x in sprites())
        self.looks = {}
        for o, name in enumerate(OBJECTS):
            shape, ratio = boxed(masks[o].max(0) > .5)
            main = (masks[o] * (own[o] > 0)[:, None, None]).max(0)
            for i in range(len(own[o])):
                if own[o][i] == 0:
                    main = np.where(masks[o][i] > .5, np.where(np.arange(len(own[o])).max() >= i, 0, main), main)
            self.looks[name] = shape, ratio
        render = Renderer('cpu')
        rng = random.Random(7)
        torch.manual_seed(7)
        made = []
        while len(made) < 8 * 24:
            s = scene(rng)
            if s['n'] == 1 and s['style'] == 0 and s['time'] == 0 and s['place'] == len(made) // 24:
                made.append(s)
        x = np.concatenate([self.small(render(pack(made[i:i + 24])).numpy() / 2 + .5) for i in range(0, len(made), 24)])
        self.places = x.reshape(8, 24, -1)

    @staticmethod
    def small(x):
        return x.reshape(len(x), 3, 16, 16, 16, 16).mean((3, 5))

    def background(self, x):
        edge = np.concatenate([x[:, :6].reshape(3, -1), x[:, -6:].reshape(3, -1), x[:, :, :6].reshape(3, -1), x[:, :, -6:].reshape(3, -1)], 1)
        return np.median(edge, 1)

    def areas(self, x):
        far = np.abs(x - self.background(x)[:, None, None]).sum(0) > .35
        return parts_of(far)

    def kind(self, mask):
        shape, ratio = boxed(mask)
        score = lambda other: (shape & other[0]).sum() / (shape | other[0]).sum() - .5 * abs(np.log(ratio / other[1]))
        return max(self.looks, key=lambda name: score(self.looks[name]))

    def one(self, x, s):
        """Background, colour and kind right?"""
        far = np.abs(x - self.background(x)[:, None, None]).sum(0) > .35
        if far.sum() < 200:
            return dict(background=nearest(self.background(x)) == NAMES[s['back']], colour=False, kind=False)
        share = np.mean([nearest(c) == NAMES[s['color']] for c in x[:, far].T[::7]])
        return dict(background=nearest(self.background(x)) == NAMES[s['back']], colour=share > .2, kind=self.kind(far) == s['kind'])

    def number(self, x, s):
        big = self.areas(x)
        big = [a for a in big if len(a) > .3 * len(big[0])] if big else []
        return dict(number=len(big) == s['n'])

    def relation(self, x, s):
        centre = []
        for color in s['colors']:
            near = np.abs(x - np.array(COLORS[color])[:, None, None]).sum(0) < .4
            if near.sum() < 60:
                return dict(both=False, relation=False)
            centre.append(np.median(np.argwhere(near), 0))
        dy, dx = centre[0] - centre[1]
        right = dict(leftof=dx < -20, rightof=dx > 20, above=dy < -20, below=dy > 20)[s['relation']]
        return dict(both=True, relation=bool(right))

    def place(self, x, s):
        d = ((self.places - self.small(x[None]).reshape(1, 1, -1)) ** 2).sum(-1)
        return dict(place=int(np.sort(d, 1)[:, :3].mean(1).argmin()) == s['place'])


def wishes(rng, n):
    """Prompts of each kind and what they ask for."""
    plain = [c for c in NAMES]
    for i in range(n):
        what = ('one', 'number', 'relation', 'place')[i % 4]
        back = rng.choice(plain)
        a, b = rng.sample([c for c in plain if c != back], 2)
        kind = rng.choice(OBJECTS)
        if what == 'one':
            yield what, f'a {a} {kind} on a {back} background', dict(back=NAMES.index(back), color=NAMES.index(a), kind=kind)
        elif what == 'number':
            k = rng.randint(2, 4)
            yield what, f'{COUNT[k]} {a} {SPRITES[kind][0]} on a {back} background', dict(n=k)
        elif what == 'relation':
            r = rng.choice(list(RELATIONS))
            # Colours that no part of an object has of itself.
            mine = [c for c in ('red', 'blue', 'purple', 'pink', 'turquoise', 'green')]
            a, b = rng.sample(mine, 2)
            back = rng.choice(('white', 'grey', 'black', 'yellow'))
            shapes = [k for k in OBJECTS if k in ('circle', 'square', 'triangle', 'star', 'heart', 'car', 'cup', 'balloon', 'butterfly', 'fish', 'cat', 'boat')]
            one, two = rng.choice(shapes), rng.choice(shapes)
            yield what, f'a {a} {one} {RELATIONS[r]} a {b} {two} on a {back} background', dict(colors=(a, b), relation=r)
        else:
            p = rng.randrange(1, 8)
            yield what, f'a {a} {kind} {rng.choice(PLACE_WORDS[p])}', dict(place=p)


def rendered(judge, n):
    """Judges rendered scenes: the judge's own mistakes."""
    rng, render, seen = random.Random(11), Renderer('cpu'), {}
    torch.manual_seed(11)
    while min([len(v) for v in seen.values()] or [0]) < n // 4 or len(seen) < 7:
        s = scene(rng)
        if s['style'] or s['time'] or any(t['texture'] for t in s['things']):
            continue
        names = [OBJECTS[t['kind']] for t in s['things']]
        colors = [NAMES[t['color']] for t in s['things']]
        if s['n'] == 1 and s['place'] == 0:
            what, wish = 'one', dict(back=s['back'], color=s['things'][0]['color'], kind=names[0])
        elif s['place'] == 0 and s['relation'] == 'same':
            what, wish = 'number', dict(n=s['n'])
        elif s['place'] == 0 and s['relation'] in RELATIONS and len(set(colors)) == 2 and set(colors) <= {'red', 'blue', 'purple', 'pink', 'turquoise', 'green'} and NAMES[s['back']] in ('white', 'grey', 'black', 'yellow'):
            what, wish = 'relation', dict(colors=colors, relation=s['relation'])
        elif s['n'] == 1 and s['place']:
            what, wish = 'place', dict(place=s['place'])
        else:
            continue
        if len(seen.get(next(iter({'one': ['kind'], 'number': ['number'], 'relation': ['relation'], 'place': ['place']}[what])), ())) >= n // 4:
            continue
        x = render(pack([s]))[0].numpy() / 2 + .5
        for key, value in getattr(judge, what)(x, wish).items():
            seen.setdefault(key, []).append(value)
    return seen


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('folder', nargs='?')
    ap.add_argument('--prompts', type=int, default=120)
    ap.add_argument('--steps', type=int, default=20)
    ap.add_argument('--guidance', type=float, default=4.0)
    ap.add_argument('--seed', type=int, default=5)
    ap.add_argument('--out')
    ap.add_argument('--check', action='store_true')
    args = ap.parse_args()
    judge = Judge()
    if args.check:
        seen = rendered(judge, args.prompts)
    else:
        from diffusers import StableDiffusionPipeline
        pipe = StableDiffusionPipeline.from_pretrained(args.folder, torch_dtype=torch.float32)
        pipe.set_progress_bar_config(disable=True)
        seen, failed = {}, []
        for i, (what, prompt, wish) in enumerate(wishes(random.Random(args.seed), args.prompts)):
            picture = pipe(prompt, num_inference_steps=args.steps, guidance_scale=args.guidance, height=256, width=256, generator=torch.Generator().manual_seed(args.seed * 1000 + i)).images[0]
            found = getattr(judge, what)(np.asarray(picture).transpose(2, 0, 1) / 255, wish)
            for key, value in found.items():
                seen.setdefault(key, []).append(value)
            if not all(found.values()):
                failed.append(f'{i}: {prompt}: {[k for k, v in found.items() if not v]}')
            if args.out:
                os.makedirs(args.out, exist_ok=True)
                picture.save(f'{args.out}/{i:03}{"" if all(found.values()) else "-wrong"}.png')
        print('\n'.join(failed))
    print(json.dumps({k: f'{sum(v)} of {len(v)}' for k, v in seen.items()}))


if __name__ == '__main__':
    main()
