"""Scenes of several objects with captions: 256 x 256 pictures, drawn on the device in batches.

Objects are layers of masks (`SPRITES`), drawn once by Pillow; a batch places, colours and textures them over backgrounds and draws everything in a style.
"""
import math, random
import numpy as np, torch, torch.nn.functional as F
from PIL import Image, ImageDraw

SIZE, MASK = 256, 192
COLORS = {'red': (.85, .13, .13), 'green': (.16, .62, .24), 'blue': (.15, .32, .85), 'yellow': (.96, .82, .15), 'purple': (.52, .20, .70),
          'orange': (.95, .50, .10), 'pink': (.96, .56, .72), 'brown': (.48, .29, .14), 'white': (.95, .95, .95), 'black': (.08, .08, .08),
          'grey': (.52, .52, .54), 'turquoise': (.15, .72, .70)}
NAMES = list(COLORS)
FIXED = {'main': None, 'dark': 'dark', 'white': (.97, .97, .97), 'black': (.06, .06, .07), 'brown': (.42, .26, .13), 'glass': (.68, .86, .95), 'green': (.18, .52, .20),
         'red': (.80, .16, .14), 'yellow': (.97, .82, .22), 'grey': (.45, .45, .48), 'orange': (.95, .52, .12), 'cream': (.97, .90, .76)}
TEXTURES = ('', 'striped', 'dotted', 'checkered')
SIZES = ('small', '', 'large')
STYLES = ('', 'pencil drawing', 'watercolor', 'pixel art', 'neon', 'blueprint')
PLACES = ('', 'meadow', 'sea', 'snow', 'desert', 'city', 'room', 'space')
TIMES = ('', 'sunset', 'night')


def poly(points):
    return lambda d, m: d.polygon([(x * m, y * m) for x, y in points], fill=255)


def ell(x0, y0, x1, y1):
    return lambda d, m: d.ellipse((x0 * m, y0 * m, x1 * m, y1 * m), fill=255)


def rect(x0, y0, x1, y1, r=0.0):
    return lambda d, m: d.rounded_rectangle((x0 * m, y0 * m, x1 * m, y1 * m), r * m, fill=255)


def arc(x0, y0, x1, y1, a, b, w):
    return lambda d, m: d.arc((x0 * m, y0 * m, x1 * m, y1 * m), a, b, fill=255, width=int(w * m))


def line(w, *points):
    return lambda d, m: d.line([(x * m, y * m) for x, y in points], fill=255, width=int(w * m), joint='curve')


def pie(x0, y0, x1, y1, a, b):
    return lambda d, m: d.pieslice((x0 * m, y0 * m, x1 * m, y1 * m), a, b, fill=255)


def ring(n, outer, inner, c=(.5, .5), turn=-math.pi / 2):
    return [(c[0] + (outer if i % 2 == 0 else inner) * math.cos(turn + i * math.pi / n), c[1] + (outer if i % 2 == 0 else inner) * math.sin(turn + i * math.pi / n)) for i in range(2 * n)]


HEART = [(.5 + .029 * 16 * math.sin(t) ** 3, .46 - .029 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t))) for t in np.linspace(0, 2 * np.pi, 90)]
# name: (plural, floats, layers of (role, shapes)); coordinates 0 to 1, the ground is y = 0.98.
SPRITES = {
    'circle': ('circles', 1, [('main', [ell(.06, .06, .94, .94)])]),
    'square': ('squares', 1, [('main', [rect(.1, .1, .9, .9)])]),
    'triangle': ('triangles', 1, [('main', [poly([(.5, .05), (.97, .92), (.03, .92)])])]),
    'star': ('stars', 1, [('main', [poly(ring(5, .5, .21, (.5, .53)))])]),
    'heart': ('hearts', 1, [('main', [poly(HEART)])]),
    'house': ('houses', 0, [('main', [rect(.14, .45, .86, .98)]), ('red', [poly([(.5, .06), (.96, .47), (.04, .47)])]),
                            ('brown', [rect(.42, .66, .58, .98)]), ('glass', [rect(.22, .58, .36, .74), rect(.64, .58, .78, .74)])]),
    'tree': ('trees', 0, [('brown', [rect(.43, .6, .57, .98)]), ('main', [ell(.12, .2, .62, .68), ell(.38, .2, .88, .68), ell(.22, .02, .78, .52)])]),
    'car': ('cars', 0, [('main', [rect(.03, .5, .97, .82, .08), poly([(.22, .52), (.34, .28), (.68, .28), (.82, .52)])]),
                        ('glass', [poly([(.3, .5), (.38, .34), (.49, .34), (.49, .5)]), poly([(.53, .5), (.53, .34), (.65, .34), (.73, .5)])]),
                        ('black', [ell(.14, .68, .36, .9), ell(.64, .68, .86, .9)]), ('grey', [ell(.2, .74, .3, .84), ell(.7, .74, .8, .84)])]),
    'boat': ('boats', 0, [('main', [poly([(.04, .68), (.96, .68), (.8, .92), (.2, .92)])]), ('brown', [rect(.48, .08, .52, .7)]),
                          ('white', [poly([(.54, .1), (.54, .62), (.9, .62)]), poly([(.46, .16), (.46, .62), (.16, .62)])])]),
    'flower': ('flowers', 0, [('green', [rect(.475, .5, .525, .98), ell(.5, .68, .74, .8), ell(.26, .74, .5, .86)]),
                              ('main', [ell(.5 + .2 * math.cos(a) - .14, .34 + .2 * math.sin(a) - .14, .5 + .2 * math.cos(a) + .14, .34 + .2 * math.sin(a) + .14) for a in np.arange(6) * np.pi / 3]),
                              ('yellow', [ell(.38, .22, .62, .46)])]),
    'fish': ('fish', 1, [('main', [ell(.08, .26, .74, .74), poly([(.66, .5), (.96, .26), (.96, .74)])]), ('dark', [poly([(.34, .28), (.56, .28), (.5, .12)])]),
                         ('white', [ell(.19, .37, .31, .49)]), ('black', [ell(.22, .4, .28, .46)])]),
    'cat': ('cats', 0, [('main', [ell(.26, .46, .78, .98), ell(.22, .14, .7, .58), poly([(.24, .3), (.25, .03), (.42, .18)]), poly([(.5, .18), (.67, .03), (.68, .3)]), arc(.58, .5, .98, .96, -60, 110, .07)]),
                        ('white', [ell(.32, .28, .42, .4), ell(.5, .28, .6, .4)]), ('black', [ell(.355, .31, .405, .38), ell(.525, .31, .575, .38), poly([(.43, .42), (.49, .42), (.46, .46)])])]),
    'mushroom': ('mushrooms', 0, [('cream', [rect(.38, .48, .62, .97, .08)]), ('main', [pie(.06, .08, .94, .96, 180, 360)]), ('white', [ell(.24, .28, .36, .4), ell(.46, .16, .6, .3), ell(.68, .3, .8, .42)])]),
    'balloon': ('balloons', 1, [('grey', [line(.014, (.5, .72), (.47, .82), (.53, .9), (.5, .99))]), ('main', [ell(.2, .02, .8, .7), poly([(.5, .66), (.44, .74), (.56, .74)])]), ('white', [ell(.3, .14, .42, .3)])]),
    'apple': ('apples', 1, [('main', [ell(.1, .26, .6, .94), ell(.4, .26, .9, .94)]), ('brown', [line(.04, (.5, .34), (.54, .1))]), ('green', [ell(.54, .08, .8, .22)])]),
    'rocket': ('rockets', 1, [('orange', [poly([(.4, .8), (.6, .8), (.5, .99)])]), ('dark', [poly([(.34, .5), (.14, .84), (.36, .78)]), poly([(.66, .5), (.86, .84), (.64, .78)])]),
                              ('main', [poly([(.5, .02), (.64, .22), (.67, .5), (.62, .82), (.38, .82), (.33, .5), (.36, .22)])]), ('glass', [ell(.41, .28, .59, .46)])]),
    'umbrella': ('umbrellas', 1, [('brown', [rect(.48, .4, .52, .86), arc(.36, .78, .52, .96, 0, 180, .04)]), ('main', [pie(.04, .1, .96, .98, 180, 360)]), ('dark', [pie(.34, .1, .66, .98, 180, 360)])]),
    'snowman': ('snowmen', 0, [('white', [ell(.22, .5, .78, .99), ell(.29, .24, .71, .62)]), ('main', [rect(.3, .16, .7, .22), rect(.37, .0, .63, .2), rect(.32, .54, .68, .61)]),
                               ('black', [ell(.41, .33, .46, .38), ell(.54, .33, .59, .38), ell(.47, .68, .53, .74), ell(.47, .8, .53, .86)]), ('orange', [poly([(.5, .41), (.5, .47), (.68, .45)])])]),
    'cup': ('cups', 0, [('main', [rect(.14, .3, .7, .96, .1), arc(.56, .42, .94, .8, -100, 100, .07)]), ('dark', [ell(.14, .24, .7, .38)]), ('brown', [ell(.19, .27, .65, .36)])]),
    'butterfly': ('butterflies', 1, [('main', [ell(.04, .12, .48, .56), ell(.52, .12, .96, .56), ell(.14, .48, .48, .86), ell(.52, .48, .86, .86)]), ('white', [ell(.18, .24, .34, .4), ell(.66, .24, .82, .4)]),
                                     ('black', [ell(.46, .18, .54, .84), line(.016, (.5, .22), (.4, .06)), line(.016, (.5, .22), (.6, .06))])]),
}
OBJECTS = list(SPRITES)
LAYERS, N = 4, 4


def sprites():
    """Masks (objects, LAYERS, MASK, MASK), colours (objects, LAYERS, 3) and how much of the object's own colour is in them (objects, LAYERS)."""
    masks, colors, own = np.zeros((len(OBJECTS), LAYERS, MASK, MASK), np.float32), np.zeros((len(OBJECTS), LAYERS, 3), np.float32), np.zeros((len(OBJECTS), LAYERS), np.float32)
    for o, name in enumerate(OBJECTS):
        for i, (role, shapes) in enumerate(SPRITES[name][2]):
            big = Image.new('L', (MASK * 4, MASK * 4))
            draw = ImageDraw.Draw(big)
            for shape in shapes:
                shape(draw, MASK * 4)
            masks[o, i] = np.asarray(big.resize((MASK, MASK), Image.BOX)) / 255
            own[o, i] = {'main': 1.0, 'dark': .6}.get(role, 0)
            colors[o, i] = (0, 0, 0) if role in ('main', 'dark') else FIXED[role]
    return torch.from_numpy(masks), torch.from_numpy(colors), torch.from_numpy(own)


# ---------------------------------------------------------------------------------------------------- scenes
def scene(rng):
    """What a picture shows: a dictionary of numbers, and its caption's parts."""
    n = rng.choices((1, 2, 3, 4), (38, 42, 12, 8))[0]
    place = rng.choices(range(len(PLACES)), (40, 12, 9, 8, 7, 8, 8, 8))[0]
    style = rng.choices(range(len(STYLES)), (64, 8, 8, 8, 6, 6))[0]
    time = rng.choices(range(3), (70, 12, 18))[0] if 0 < place < 6 else 0
    ground = rng.uniform(196, 224)

    def thing(same=None):
        return same or dict(kind=rng.randrange(len(OBJECTS)), color=rng.randrange(len(NAMES)), texture=rng.choices(range(4), (76, 9, 8, 7))[0], size=rng.choices(range(3), (20, 60, 20))[0])
    relation, same = '', None
    if n == 1:
        things = [thing()]
        relation = rng.choices(('', 'left', 'right', 'middle'), (70, 10, 10, 10))[0]
        if place == 0 and rng.random() < .2 and not relation:
            relation = rng.choice(('top', 'bottom'))
    elif n == 2:
        things = [thing(), thing()]
        relation = rng.choices(('and', 'leftof', 'rightof', 'above', 'below', 'same'), (18, 27, 27, 10, 10, 8))[0]
    elif n == 3:
        things = [thing(), thing(), thing()]
        relation = rng.choices(('and', 'same'), (60, 40))[0]
    else:
        things, relation = [thing() for _ in range(4)], 'same'
    if relation == 'same':
        things = [things[0]] * n
    back = rng.randrange(len(NAMES))
    if place == 0:
        while back in {t['color'] for t in things}:
            back = rng.randrange(len(NAMES))
    # Centres and radii.
    base = {1: (38, 58, 88), 2: (30, 44, 56), 3: (24, 33, 40), 4: (20, 27, 32)}[n]
    vertical = relation in ('above', 'below')
    placed = []
    for i, t in enumerate(things):
        r = base[t['size']] * rng.uniform(.93, 1.07)
        if vertical:
            r = min(r, 52)
        if n == 1:
            x = {'left': 72, 'right': 184}.get(relation, 128) + rng.uniform(-10, 10)
            if relation in ('left', 'right'):
                r = min(r, 66)
            if relation == '' and rng.random() < .3:
                x += rng.uniform(-24, 24)
            y = {'top': 70, 'bottom': 186}.get(relation, 128) + rng.uniform(-10, 10)
            if relation in ('top', 'bottom'):
                r = min(r, 62)
        elif vertical:
            x, y = 128 + rng.uniform(-22, 22), (68 if (i == 0) == (relation == 'above') else 188) + rng.uniform(-6, 6)
        else:
            step = 256 / n
            x, y = step * (i + .5) + rng.uniform(-5, 5) * (4 / n), 128 + rng.uniform(-14, 14)
            if relation == 'rightof':
                x = 256 - x
        floats = SPRITES[OBJECTS[t['kind']]][1]
        if place not in (0, 7) and not vertical:
            y = (ground + rng.uniform(-4, 6) - r * .96) if not floats else (ground - r - rng.uniform(0, 60))
        placed.append((x, min(max(y, r * .9), 256 - r * .9), r, rng.uniform(-.1, .1)))
    order = list(range(n))
    if relation == 'and':
        # Named from left to right or in any order.
        rng.shuffle(order)
    return dict(n=n, things=things, placed=placed, place=place, time=time, style=style, back=back, ground=ground, relation=relation, order=order)


SIZE_WORDS = {0: ('small', 'small', 'tiny', 'little'), 1: ('',), 2: ('large', 'large', 'big', 'huge')}
COUNT = {2: 'two', 3: 'three', 4: 'four'}
PLACE_WORDS = {1: ('in a meadow', 'on the grass', 'in a green field'), 2: ('by the sea', 'on the beach', 'at the sea'), 3: ('in the snow', 'in winter', 'in a snowy landscape'), 4: ('in the desert', 'on the sand of a desert'),
               5: ('in the city', 'in a city', 'in front of a skyline'), 6: ('in a room', 'indoors', 'inside a room'), 7: ('in space', 'among the stars', 'in outer space')}
TIME_WORDS = {1: ('at sunset', 'in the evening'), 2: ('at night', 'in the night')}
STYLE_WORDS = {1: ('pencil drawing', 'pencil sketch'), 2: ('watercolor', 'watercolor painting'), 3: ('pixel art',), 4: ('neon', 'neon lights'), 5: ('blueprint',)}
FILLER = ('beautiful', 'simple', 'nice', 'colourful', 'clean', 'modern', 'pretty', 'detailed', 'digital art', 'high quality', '4k', 'best quality', 'sharp', 'illustration', 'masterpiece')


def noun(t, rng, count=1):
    words = [rng.choice(SIZE_WORDS[t['size']]), NAMES[t['color']], TEXTURES[t['texture']], SPRITES[OBJECTS[t['kind']]][0] if count > 1 else OBJECTS[t['kind']]]
    text = ' '.join(w for w in words if w)
    if rng.random() < .25:
        text = text.replace('grey', 'gray')
    if count > 1:
        return f'{COUNT[count]} {text}'
    article = 'an' if text[0] in 'aeiou' else 'a'
    return f'{article} {text}' if rng.random() < .93 else text


def caption(s, rng):
    things, r = s['things'], s['relation']
    if r == 'same':
        text = noun(things[0], rng, s['n'])
    elif s['n'] == 1:
        text = noun(things[0], rng)
        text += {'': '', 'left': rng.choice((' on the left', ' on the left side')), 'right': rng.choice((' on the right', ' on the right side')),
                 'middle': rng.choice((' in the middle', ' in the center')), 'top': ' at the top', 'bottom': ' at the bottom'}[r]
    elif r == 'and':
        names = [noun(things[i], rng) for i in s['order']]
        text = ' and '.join(names) if len(names) == 2 else f'{names[0]}, {names[1]} and {names[2]}'
        if len(names) == 2 and rng.random() < .25:
            text = text.replace(' and ', rng.choice((' next to ', ' beside ', ' with ')), 1)
    else:
        joint = {'leftof': (' to the left of ', ' left of '), 'rightof': (' to the right of ', ' right of '), 'above': (' above ', ' over '), 'below': (' below ', ' under ')}[r]
        text = noun(things[0], rng) + rng.choice(joint) + noun(things[1], rng)
    if s['place'] == 0:
        if rng.random() < .92:
            back = NAMES[s['back']] if rng.random() > .25 else NAMES[s['back']].replace('grey', 'gray')
            text += rng.choice((' on a {} background', ' on a {} background', ', {} background', ' on {}', ' in front of a {} background')).format(back)
            text = text.replace(' on a orange', ' on an orange').replace('of a orange', 'of an orange')
    else:
        text += ' ' + rng.choice(PLACE_WORDS[s['place']])
    if s['time']:
        text += ' ' + rng.choice(TIME_WORDS[s['time']])
    if s['style']:
        w = rng.choice(STYLE_WORDS[s['style']])
        text = rng.choice((f'{text}, {w}', f'{text}, {w}', f'{w} of {text}', f'a {w} of {text}', f'{text} as {w}'))
    elif rng.random() < .1:
        text = rng.choice(('a picture of ', 'an image of ', 'a drawing of ', 'a photo of ')) + text
    if rng.random() < .08:
        text += ', ' + rng.choice(FILLER)
    if rng.random() < .2:
        text += '.'
    return text


def words_of_captions():
    text = ' '.join([*OBJECTS, *(v[0] for v in SPRITES.values()), *NAMES, 'gray', *TEXTURES, *sum(map(list, (*SIZE_WORDS.values(), *PLACE_WORDS.values(), *TIME_WORDS.values(), *STYLE_WORDS.values())), []), *FILLER,
                     *COUNT.values(), 'one a an and the on in at of to left right side middle center top bottom next beside with above over below under background front picture image drawing photo as from shows showing . ,'])
    return sorted(set(text.lower().split()))


def pack(scenes):
    """Tensors of a batch."""
    b = len(scenes)
    whole = {k: np.zeros((b, N), np.int64) for k in ('kind', 'color', 'texture')}
    geometry, live = np.zeros((b, N, 4), np.float32), np.zeros((b, N), np.float32)
    for i, s in enumerate(scenes):
        for j, t in enumerate(s['things']):
            for k, v in whole.items():
                v[i, j] = t[k]
        n = len(s['things'])
        geometry[i, :n], live[i, :n] = s['placed'], 1
    flat = {k: np.array([s[k] for s in scenes]) for k in ('place', 'time', 'style', 'back')}
    flat['ground'] = np.array([s['ground'] for s in scenes], np.float32)
    return {k: torch.from_numpy(v) for k, v in dict(**whole, geometry=geometry, live=live, **flat).items()}


class Renderer:
    def __init__(self, device):
        self.dev = device
        self.masks, self.colors, self.own = (x.to(device) for x in sprites())
        self.pal = torch.tensor(list(COLORS.values()), device=device)
        g = torch.arange(SIZE, device=device) + .5
        self.yy, self.xx = torch.meshgrid(g, g, indexing='ij')

    def rand(self, *shape, lo=0.0, hi=1.0):
        return torch.rand(shape, device=self.dev) * (hi - lo) + lo

    def backgrounds(self, s):
        """(b, 3, SIZE, SIZE)."""
        b = len(s['place'])
        y, x, ground = self.yy[None], self.xx[None], (s['ground'] - 26)[:, None, None]
        c = lambda *rgb: torch.tensor(rgb, device=self.dev)[None, :, None, None]
        plain = self.pal[s['back']][:, :, None, None] + (self.rand(b, 1, 1, 1, lo=-.06, hi=.06) * (y / 256 - .5)[:, None]) + self.rand(b, 3, 1, 1, lo=-.02, hi=.02)
        t = (y / ground).clamp(0, 1)[:, None]
        sky = torch.where((s['time'] == 0)[:, None, None, None], c(.42, .68, .95) * (1 - t) + c(.82, .92, .99) * t,
                          torch.where((s['time'] == 1)[:, None, None, None], c(.36, .24, .52) * (1 - t) + c(.99, .58, .24) * t, c(.03, .04, .14) * (1 - t) + c(.10, .14, .32) * t))
        light = torch.where(s['time'] == 0, 1.0, torch.where(s['time'] == 1, .78, .42))[:, None, None, None]
        warm = torch.where((s['time'] == 1)[:, None, None, None], c(1.08, .92, .80), c(1.0, 1.0, 1.0))
        # Sun or moon, and stars.
        sx, sy = self.rand(b, 1, 1, lo=30, hi=226), self.rand(b, 1, 1, lo=24, hi=56)
        disc = ((16 + .5) - ((x - sx) ** 2 + (y - sy) ** 2).sqrt()).clamp(0, 1)[:, None]
        sky = sky + (torch.where((s['time'] == 2)[:, None, None, None], c(.93, .93, .85), torch.where((s['time'] == 1)[:, None, None, None], c(1.0, .80, .35), c(1.0, .93, .45))) - sky) * disc
        stars = (self.rand(b, 1, 128, 128) > .9965).float()
        stars = F.interpolate(stars, size=(SIZE, SIZE), mode='bilinear')
        night = (s['time'] == 2)[:, None, None, None]
        sky = torch.where(night, (sky + stars * .9).clamp(max=1), sky)
        phase, wave = self.rand(b, 1, 1, hi=6.28), self.rand(b, 1, 1, lo=.010, hi=.022)
        edge = ground + 7 * torch.sin(x * wave + phase)
        mix = lambda a, z, m: a + (z - a) * m
        below = lambda line: (y - line + .5).clamp(0, 1)[:, None]
        depth = ((y - ground) / 80).clamp(0, 1)[:, None]
        far = ground - 22 - 20 * torch.sin(x * wave * .8 + phase * 2).abs()
        meadow = mix(mix(sky, c(.35, .62, .38) * light * warm, below(far)), (c(.40, .74, .28) * (1 - .35 * depth)) * light * warm, below(edge))
        foam = torch.sin(y * .55 + 2.2 * torch.sin(x * .06 + phase))[:, None] > .93
        sea = mix(mix(sky, (c(.10, .42, .72) + .18 * foam.float() * c(1.0, 1.0, 1.0)) * light * warm, below(ground - 30)), c(.93, .83, .58) * light * warm, below(ground + 16 + 3 * torch.sin(x * .05 + phase)))
        snow = mix(mix(sky, c(.74, .82, .92) * light, below(far)), c(.96, .97, .99) * (light * .9 + .1) * (1 - .08 * depth), below(edge))
        desert = mix(mix(sky, c(.86, .62, .34) * light * warm, below(far + 10)), (c(.93, .76, .44) * (1 - .15 * depth)) * light * warm, below(edge))
        towers = self.rand(b, 1, 16, lo=30, hi=110)
        tall = ground - F.interpolate(towers, size=SIZE, mode='nearest')
        lit = ((torch.sin(x * .785) > 0) & (torch.sin(y * .785) > .2)).float()[:, None]
        walls = torch.where(night, c(.10, .11, .17) + lit * c(.75, .62, .25), c(.50, .54, .62) * light * warm + lit * .16)
        city = mix(mix(sky, walls, below(tall)), c(.36, .36, .38) * (light * .8 + .2), below(ground))
        wall = torch.tensor([[.93, .88, .78], [.78, .86, .90], [.85, .90, .80], [.92, .80, .78]], device=self.dev)[torch.randint(4, (b,), device=self.dev)][:, :, None, None]
        boards = (torch.sin((x - 128) * 30 / (y - ground + 70).clamp(min=20)) > .96).float()[:, None]
        room = mix(wall + 0 * sky, c(.62, .42, .25) - .10 * boards, below(ground))
        room = mix(room, c(.97, .97, .95), ((y - ground).abs()[:, None] < 3).float())
        cloud = self.rand(b, 1, 6, 6)
        cloud = F.interpolate(cloud, size=(SIZE, SIZE), mode='bicubic').clamp(0, 1) ** 3
        space = c(.02, .02, .07) + cloud * c(.16, .06, .26) + stars * .95
        every = torch.stack([plain + 0 * sky, meadow, sea, snow, desert, city, room, space], 1)
        return every[torch.arange(b, device=self.dev), s['place']], light * torch.where(s['place'] == 0, 1.0, 1.0)[:, None, None, None]

    def objects(self, s, picture, light):
        """Draws the objects over the pictures; also gives where they are."""
        b = len(picture)
        shade = torch.where((s['time'] == 2)[:, None, None, None], .62, 1.0)
        for j in range(N):
            kind, geometry = s['kind'][:, j], s['geometry'][:, j]
            x, y, r, a = (geometry[:, i, None, None] for i in range(4))
            live = s['live'][:, j, None, None]
            dx, dy = (self.xx - x) / r.clamp(min=1), (self.yy - y) / r.clamp(min=1)
            u, v = a.cos() * dx + a.sin() * dy, a.cos() * dy - a.sin() * dx
            masks = F.grid_sample(self.masks[kind], torch.stack([u, v], -1), align_corners=False)
            main = self.pal[s['color'][:, j]][:, :, None, None] + self.rand(b, 3, 1, 1, lo=-.02, hi=.02)
            pale = main.mean(1, keepdim=True) < .62
            other = torch.where(pale, main * .25 + .72, main * .45)
            pattern = torch.stack([torch.zeros_like(u), (torch.sin(u * 11 + v * 3) > .25).float(),
                                   (((u * 2.6) % 1 - .5) ** 2 + ((v * 2.6) % 1 - .5) ** 2 < .07).float(),
                                   (((u * 2.6).floor() + (v * 2.6).floor()) % 2 == 0).float()], 1)
            pattern = pattern[torch.arange(b, device=self.dev), s['texture'][:, j]][:, None]
            body = main + (other - main) * pattern
            body = body * (1.06 - .16 * ((v + 1) / 2).clamp(0, 1)[:, None])
            for i in range(LAYERS):
                own = self.own[kind, i][:, None, None, None]
                fill = torch.where(own > 0, body * own, self.colors[kind, i][:, :, None, None])
                picture = picture + (fill * shade - picture) * (masks[:, i] * live)[:, None]
        return picture

    def edges(self, x):
        grey = F.pad(x, (1, 1, 1, 1), mode='replicate')
        gx = (grey[..., 1:-1, 2:] - grey[..., 1:-1, :-2])
        gy = (grey[..., 2:, 1:-1] - grey[..., :-2, 1:-1])
        return (gx ** 2 + gy ** 2).sum(1, keepdim=True).sqrt()

    def styles(self, s, x):
        b = len(x)
        c = lambda *rgb: torch.tensor(rgb, device=self.dev)[None, :, None, None]
        blur = lambda t, k: F.avg_pool2d(F.pad(t, (k, k, k, k), mode='replicate'), 2 * k + 1, 1)
        e = (self.edges(x) * 2.2).clamp(0, 1)
        wide = blur(e, 1) * 1.6
        grey = x.mean(1, keepdim=True)
        grain = self.rand(b, 1, SIZE, SIZE)
        hatch = (torch.sin((self.xx + self.yy) * .9)[None, None] > grey * 2.2 - .55).float() * .16
        pencil = (c(.97, .96, .93) - .85 * wide.clamp(max=1) - hatch - .03 * grain).expand(-1, 3, -1, -1)
        flow = F.interpolate(self.rand(b, 2, 20, 20, lo=-1, hi=1), size=(SIZE, SIZE), mode='bicubic').permute(0, 2, 3, 1) * .022
        where = torch.stack([(self.xx / 128 - 1), (self.yy / 128 - 1)], -1)[None] + flow
        wet = F.grid_sample(blur(x, 1), where, padding_mode='border', align_corners=False)
        pigment = F.interpolate(self.rand(b, 1, 24, 24), size=(SIZE, SIZE), mode='bicubic')
        water = (1 - (1 - wet) * (.74 + .20 * pigment)) - .14 * (self.edges(wet) * 1.5).clamp(0, 1) + .015 * (grain - .5)
        small = F.avg_pool2d(x, 8)
        pixel = F.interpolate((small * 9).round() / 9, scale_factor=8, mode='nearest')
        pure = (x - .8 * x.amin(1, keepdim=True)).clamp(min=0)
        tint = pure / pure.amax(1, keepdim=True).clamp(min=.04)
        glow = tint * (wide + .8 * blur(e, 5) + .35 * blur(blur(e, 9), 9)).clamp(0, 1.2) + c(.02, .01, .05)
        plan = c(.08, .22, .50) + .85 * wide.clamp(max=1) * c(1.0, 1.0, 1.0) + .05 * (((self.xx % 32 < 1) | (self.yy % 32 < 1)).float())[None, None]
        every = torch.stack([x, pencil, water, pixel, glow, plan + 0 * x], 1)
        return every[torch.arange(b, device=self.dev), s['style']]

    @torch.no_grad()
    def __call__(self, s):
        """Pictures (b, 3, SIZE, SIZE), -1 to 1, of packed scenes."""
        s = {k: v.to(self.dev, non_blocking=True) for k, v in s.items()}
        x, light = self.backgrounds(s)
        x = self.styles(s, self.objects(s, x.clamp(0, 1), light).clamp(0, 1))
        return (x + torch.randn_like(x) * .006).clamp(0, 1) * 2 - 1


if __name__ == '__main__':
    rng = random.Random(3)
    scenes = [scene(rng) for _ in range(40)]
    torch.manual_seed(1)
    x = Renderer('cpu')(pack(scenes))
    x = ((x / 2 + .5) * 255).byte().permute(0, 2, 3, 1).numpy()
    Image.fromarray(np.concatenate([np.concatenate(list(x[i:i + 8]), 1) for i in range(0, 40, 8)], 0)).save('/tmp/scenes.png')
    for s in scenes:
        print(caption(s, rng))
    print(len(words_of_captions()))
