#!/usr/bin/env python3
"""Numbers of samplers that diffusers does not have, for a fixed model function: writes k_samplers.json beside this file.

    python3 make_k_samplers.py        (numpy)

The methods are written anew from their papers and from what k-diffusion, ComfyUI and web UIs compute. A model function D(X, s)
gives the image behind X at s: for variance preserving models X = x / alpha and s = sigma / alpha, for flow models X = x and
s = sigma. The network, its negative half, the start and fresh noise are those of tests/samplers.rs.
"""
import json, math, os
import numpy as np
from numpy.polynomial import Polynomial

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = 16
LEAST_ALPHA = 1 / 4096

betas = np.linspace(0.00085 ** .5, 0.012 ** .5, 1000) ** 2
alphas = np.cumprod(1 - betas)
RATIOS = np.sqrt((1 - alphas) / alphas)


def start():
    i = np.arange(COUNT)
    return np.sin(1.3 * i) + 0.5 * np.cos(0.7 * i * i)


class Noise:
    def __init__(self):
        self.calls = 0

    def __call__(self, *_):
        self.calls += 1
        return np.cos(2.1 * np.arange(COUNT) + 0.9 * (self.calls - 1))


class Model:
    """D(X, s), which keeps what the negative half saw last."""

    def __init__(self, flow, prediction):
        self.flow, self.prediction, self.calls, self.negative = flow, prediction, 0, None

    def __call__(self, X, s):
        self.calls += 1
        if self.flow:
            x, alpha, sigma, t = X, 1 - s, s, 1000 * s
        else:
            alpha = 1 / math.hypot(1, s)
            x, sigma, t = X * alpha, s * alpha, np.interp(math.log(s), np.log(RATIOS), np.arange(1000))
        bias = 0.1 * math.cos(t / 150)
        image = lambda out: x - sigma * out if self.flow else (
            (x - sigma * out) / alpha if self.prediction == 'epsilon' else alpha * x - sigma * out)
        self.negative = image(0.7 * np.tanh(0.6 * x - 0.2) + bias)
        return image(0.9 * np.tanh(0.8 * x + 0.3) + bias)


def split(a, b, eta):
    """Where an ancestral step goes down to, and the noise that leads up to b again."""
    up = min(b, eta * math.sqrt(b * b * (a * a - b * b) / (a * a)))
    return math.sqrt(b * b - up * up), up


class Plan:
    """down, and how to come from there to b: X = scale * X + up * noise."""

    def __init__(self, model, a, b, eta):
        self.scale, self.down, self.up = 1., b, 0.
        if not eta or not b:
            return
        if not model.flow:
            self.down, self.up = split(a, b, eta)
            return
        self.down = b * (1 + (b / a - 1) * eta)
        self.scale = (1 - b) / (1 - self.down)
        self.up = math.sqrt(max(0, b * b - (self.down * self.scale) ** 2))


def churn(X, a, steps, noise, amount, low, high, strength):
    gamma = min(amount / steps, math.sqrt(2) - 1) if low <= a <= high else 0
    if not gamma:
        return X, a
    more = a * (1 + gamma)
    return X + noise() * strength * math.sqrt(more * more - a * a), more


def euler(model, X, S, noise, churned=None, **_):
    for a, b in zip(S, S[1:]):
        if churned:
            X, a = churn(X, a, len(S) - 1, noise, *churned)
        X = X + (X - model(X, a)) / a * (b - a)
    return X


def euler_ancestral(model, X, S, noise, eta=1., strength=1., **_):
    for a, b in zip(S, S[1:]):
        plan = Plan(model, a, b, eta)
        X = X + (X - model(X, a)) / a * (plan.down - a)
        X = plan.scale * X + (plan.up * strength * noise() if plan.up else 0)
    return X


def heun_step(model, X, a, b):
    d = (X - model(X, a)) / a
    ahead = X + d * (b - a)
    if not b:
        return ahead
    return X + (d + (ahead - model(ahead, b)) / b) / 2 * (b - a)


def heun(model, X, S, noise, churned=None, **_):
    for a, b in zip(S, S[1:]):
        if churned:
            X, a = churn(X, a, len(S) - 1, noise, *churned)
        X = heun_step(model, X, a, b)
    return X


def heunpp2(model, X, S, noise, **_):
    for i, (a, b) in enumerate(zip(S, S[1:])):
        d = (X - model(X, a)) / a
        X2 = X + d * (b - a)
        if not b:
            X = X2
            continue
        d2 = (X2 - model(X2, b)) / b
        c = S[i + 2]
        if not c:
            w2 = b / (2 * S[0])
            X = X + ((1 - w2) * d + w2 * d2) * (b - a)
            continue
        X3 = X2 + d2 * (c - b)
        d3 = (X3 - model(X3, c)) / c
        w2, w3 = b / (3 * S[0]), c / (3 * S[0])
        X = X + ((1 - w2 - w3) * d + w2 * d2 + w3 * d3) * (b - a)
    return X


def dpm_2(model, X, S, noise, eta=0., churned=None, **_):
    for a, b in zip(S, S[1:]):
        if churned:
            X, a = churn(X, a, len(S) - 1, noise, *churned)
        plan = Plan(model, a, b, eta)
        d = (X - model(X, a)) / a
        if plan.down:
            m = math.sqrt(a * plan.down)
            X2 = X + d * (m - a)
            d = (X2 - model(X2, m)) / m
        X = X + d * (plan.down - a)
        X = plan.scale * X + (plan.up * noise() if plan.up else 0)
    return X


def dpm_2_ancestral(model, X, S, noise, **_):
    return dpm_2(model, X, S, noise, eta=1.)


def lms(model, X, S, noise, **_):
    seen = []
    for i, (a, b) in enumerate(zip(S, S[1:])):
        seen = [(X - model(X, a)) / a] + seen[:3]
        nodes = [S[i - j] for j in range(len(seen))]
        for j, d in enumerate(seen):
            basis = Polynomial([1.])
            for k, node in enumerate(nodes):
                if k != j:
                    basis *= Polynomial([-node, 1.]) / (nodes[j] - node)
            whole = basis.integ()
            X = X + (whole(b) - whole(a)) * d
    return X


ADAMS = [[1], [3 / 2, -1 / 2], [23 / 12, -16 / 12, 5 / 12], [55 / 24, -59 / 24, 37 / 24, -9 / 24]]


def ipndm(model, X, S, noise, weigh=lambda gaps: ADAMS[len(gaps) - 1], **_):
    seen = []
    for i, (a, b) in enumerate(zip(S, S[1:])):
        D = model(X, a)
        seen = [(X - D) / a] + seen[:3]
        gaps = [S[i + 1 - j] - S[i - j] for j in range(len(seen))]
        X = D if not b else X + (b - a) * sum(w * d for w, d in zip(weigh(gaps), seen))
    return X


def ipndm_v(model, X, S, noise, **_):
    """Weights as the authors publish them; gaps are this step and those before."""
    def weigh(gaps):
        if len(gaps) == 1:
            return [1]
        h, p = gaps[:2]
        one = [1 + h / p / 2, -h / p / 2]
        if len(gaps) == 2:
            return one
        q = gaps[2]
        t = (1 - h / (3 * (h + p)) * h * (h + p) / (p * (p + q))) / 2
        two = [one[0] + t, one[1] - (1 + p / q) * t, t * p / q]
        if len(gaps) == 3:
            return two
        r = gaps[3]
        u = (1 - h / (3 * (h + p))) / 2 + (1 - h / (2 * (h + p))) * h / (6 * (h + p + q))
        u *= h * (h + p) * (h + p + q) / (p * (p + q) * (p + q + r))
        far = p * (p + q) / (q * (q + r))
        return [two[0] + u, two[1] - (1 + p / q + far) * u, two[2] + (p / q + far * (1 + q / r)) * u, -u * far * p / q]
    return ipndm(model, X, S, noise, weigh)


class Log:
    """lambda = ln(image / noise), the weights of X there, and back."""

    def __init__(self, model):
        self.flow = model.flow

    def __call__(self, s):
        return math.log((1 - s) / s) if self.flow else -math.log(s)

    def back(self, l):
        return 1 / (1 + math.exp(l)) if self.flow else math.exp(-l)

    def alpha(self, s):
        return 1 - s if self.flow else 1.


def held(model, X, D, a, b):
    """The exact step for an image that stays."""
    return X * b / a + D * (Log(model).alpha(b) - Log(model).alpha(a) * b / a)


def dpmpp_2s(model, X, S, noise, plus=False, **_):
    log = Log(model)
    for a, b in zip(S, S[1:]):
        plan = Plan(model, a, b, 1.)
        image = model(X, a)
        D = model.negative if plus else image
        towards = image - model.negative
        if plan.down:
            m = 0.9999 if a == 1 else log.back((log(a) + log(plan.down)) / 2)
            guided = model(held(model, X, D, a, m), m)
            D = model.negative if plus else guided
        X = held(model, X, D, a, plan.down)
        X = plan.scale * X + (plan.up * noise() if b else 0)
        if plus:
            X = X + log.alpha(b) * towards
    return X


def dpmpp_2s_cfg_pp(model, X, S, noise, **_):
    return dpmpp_2s(model, X, S, noise, plus=True)


def sde_multistep(model, X, S, noise, order, heun, eta=1., **_):
    """DPM-Solver++ with noise, orders 2 (midpoint or integrated slope) and 3."""
    log, seen, steps = Log(model), [], []
    for a, b in zip(S, S[1:]):
        D = model(X, a)
        seen = [D] + seen[:2]
        if not b:
            X = D
            continue
        h, alpha = log(b) - log(a), log.alpha(b)
        e = h * (1 + eta)
        X = X * b / a * math.exp(-h * eta) + alpha * -math.expm1(-e) * D
        phi2 = math.expm1(-e) / e + 1
        if order == 3 and len(seen) == 3:
            r0, r1 = steps[0] / h, steps[1] / h
            near, far = (seen[0] - seen[1]) / r0, (seen[1] - seen[2]) / r1
            X = X + alpha * phi2 * (near + (near - far) * r0 / (r0 + r1)) - alpha * (phi2 / e - .5) * (near - far) / (r0 + r1)
        elif len(seen) > 1:
            slope = (seen[0] - seen[1]) * h / steps[0]
            X = X + alpha * (phi2 if heun else -math.expm1(-e) / 2) * slope
        X = X + b * math.sqrt(-math.expm1(-2 * h * eta)) * noise()
        steps = [h] + steps
    return X


def dpmpp_2m_sde_heun(*a, **k):
    return sde_multistep(*a, order=2, heun=True, **k)


def dpmpp_3m_sde(*a, **k):
    return sde_multistep(*a, order=3, heun=True, **k)


class OneStep:
    """DPM-Solver of one step in t = -ln s."""

    def __init__(self, model, X, t):
        self.model, self.X, self.t, self.cache = model, X, t, {}
        self.d = self.eps(X, t)

    def eps(self, X, t):
        return (X - self.model(X, math.exp(-t))) / math.exp(-t)

    def inner(self, h, r):
        if r not in self.cache:
            self.cache[r] = self.eps(self.X - math.exp(-self.t - r * h) * math.expm1(r * h) * self.d, self.t + r * h)
        return self.cache[r]

    def step(self, to, order, r=1 / 2):
        h, s = to - self.t, math.exp(-to)
        first = self.X - s * math.expm1(h) * self.d
        if order == 1:
            return first
        if order == 2:
            return first - s / (2 * r) * math.expm1(h) * (self.inner(h, r) - self.d)
        one, r2 = self.inner(h, 1 / 3), 2 / 3
        s2 = math.exp(-self.t - r2 * h)
        X2 = self.X - s2 * math.expm1(r2 * h) * self.d - s2 * 2 * (math.expm1(r2 * h) / (r2 * h) - 1) * (one - self.d)
        two = self.eps(X2, self.t + r2 * h)
        return first - s / r2 * (math.expm1(h) / h - 1) * (two - self.d)


def noisy_end(model, a, b, end, eta):
    """The plan of an ancestral step, which does not go below the end of the run."""
    plan = Plan(model, a, b, eta)
    if plan.down < end:
        plan.down, plan.scale = end, (1 - b) / (1 - end) if model.flow else 1.
        plan.up = math.sqrt(b * b - (plan.scale * end) ** 2)
    return plan


def dpm_fast(model, X, S, noise, eta=0., **_):
    count, low = len(S) - 1, S[-2]
    stages = count // 3 + 1
    orders = [3] * (stages - 2) + [2, 1] if count % 3 == 0 else [3] * (stages - 1) + [count % 3]
    t = np.linspace(-math.log(S[0]), -math.log(low), stages + 1)
    for i, order in enumerate(orders):
        plan = noisy_end(model, math.exp(-t[i]), math.exp(-t[i + 1]), low, eta)
        X = OneStep(model, X, t[i]).step(-math.log(plan.down), order)
        X = plan.scale * X + (plan.up * noise() if plan.up else 0)
    return X


def dpm_adaptive(model, X, S, noise, eta=0., **_):
    t, end, h, before = -math.log(S[0]), -math.log(S[-2]), 0.05, X
    while t < end - 1e-5:
        to = min(end, t + h)
        plan = noisy_end(model, math.exp(-t), math.exp(-to), S[-2], eta)
        one = OneStep(model, X, t)
        low, high = one.step(-math.log(plan.down), 2, 1 / 3), one.step(-math.log(plan.down), 3)
        allowed = np.maximum(0.0078, 0.05 * np.maximum(abs(low), abs(before)))
        error = math.sqrt(np.mean(((low - high) / allowed) ** 2))
        factor = 1 + math.atan((1 / (error + 1e-8)) ** (1 / (1.5 if eta else 3)) - 1)
        h *= factor
        if factor >= 0.81:
            before, X, t = low, plan.scale * high + (plan.up * noise() if plan.up else 0), to
    return X


def karras(count, low, high, rho=7):
    r = np.linspace(0, 1, count)
    return (high ** (1 / rho) + r * (low ** (1 / rho) - high ** (1 / rho))) ** rho


def restart(model, X, S, noise, **_):
    steps, again = len(S) - 1, None
    if steps >= 20:
        more, times = (steps // 4, 2) if steps >= 36 else (9, 1)
        S = list(karras(steps - more * times, S[-2], S[0])) + [0.]
        again = int(np.argmin(abs(np.array(S) - .1)))
    plan = []
    for i in range(len(S) - 1):
        plan.append((S[i], S[i + 1]))
        if i + 1 == again:
            high = int(np.argmin(abs(np.array(S) - 2.)))
            part = list(karras(more + 1, S[again], S[high]))
            plan += list(zip(part, part[1:])) * times
    last = None
    for a, b in plan:
        if last is not None and a > last + 1e-9:
            X = X + noise() * math.sqrt(a * a - last * last)
        X, last = heun_step(model, X, a, b), b
    return X


def residual(model, X, S, noise, eta=0., plus=False, **_):
    before = None
    for i, (a, b) in enumerate(zip(S, S[1:])):
        D = model(X, a)
        U = model.negative if plus else D
        plan = Plan(model, a, b, eta)
        if not plan.down or before is None:
            X = D + (X - U) / a * plan.down
        else:
            h = math.log(a / plan.down)
            c = math.log(before[1] / S[i - 1]) / h
            phi1 = math.expm1(-h) / -h
            phi2 = (phi1 - 1) / -h
            b1, b2 = (phi1 - phi2 / c, phi2 / c) if c else (0., 0.)
            if plus:
                X = X + (D - U)
            X = math.exp(-h) * X + h * (b1 * U + b2 * before[0])
        X = plan.scale * X + (plan.up * noise() if b and eta else 0)
        before = (U, plan.down)
    return X


def res_multistep_ancestral(*a, **_):
    return residual(*a, eta=1.)


def res_multistep_cfg_pp(*a, **_):
    return residual(*a, plus=True)


def res_multistep_ancestral_cfg_pp(*a, **_):
    return residual(*a, eta=1., plus=True)


def gradient_estimation(model, X, S, noise, plus=False, **_):
    before = None
    for a, b in zip(S, S[1:]):
        D = model(X, a)
        d = (X - (model.negative if plus else D)) / a
        if not b:
            X = D
        else:
            X = D + d * b if plus else X + d * (b - a)
            if before is not None:
                X = X + (d - before) * (b - a)
        before = d
    return X


def gradient_estimation_cfg_pp(*a, **_):
    return gradient_estimation(*a, plus=True)


def euler_cfg_pp(model, X, S, noise, eta=0., **_):
    log = Log(model)
    for a, b in zip(S, S[1:]):
        D = model(X, a)
        if not b:
            X = D
            continue
        A, B = log.alpha(a), log.alpha(b)
        down, up = split(a / A, b / B, eta)
        X = B * D + B * down * (X - A * model.negative) / a + (B * up * noise() if eta else 0)
    return X


def euler_ancestral_cfg_pp(*a, **_):
    return euler_cfg_pp(*a, eta=1.)


def dpmpp_2m_cfg_pp(model, X, S, noise, **_):
    log, before = Log(model), None
    for i, (a, b) in enumerate(zip(S, S[1:])):
        D = model(X, a)
        if not b:
            X = D
            continue
        h, B = log(b) - log(a), log.alpha(b)
        mixed = D - math.exp(-h) * model.negative
        if before is not None:
            mixed = mixed - math.expm1(-h) * h / (2 * (log(a) - log(S[i - 1]))) * (D - before)
        X = B * mixed + X * b / a
        before = model.negative
    return X


def er_sde(model, X, S, noise, **_):
    log = Log(model)
    scale = lambda v: v * (np.exp(v ** .3) + 10)
    ratio = [math.exp(-log(s)) if s else 0. for s in S]
    image = slope = None
    for i, (a, b) in enumerate(zip(S, S[1:])):
        D = model(X, a)
        if not b:
            X = D
            continue
        u, v, A, B = ratio[i], ratio[i + 1], log.alpha(a), log.alpha(b)
        r = scale(v) / scale(u)
        X = B / A * r * X + B * (1 - r) * D
        if image is not None:
            width = (u - v) / 200
            at = v + np.arange(200) * width
            new = (D - image) / (u - ratio[i - 1])
            X = X + B * (v - u + np.sum(1 / scale(at)) * width * scale(v)) * new
            if slope is not None:
                curve = (new - slope) / ((u - ratio[i - 2]) / 2)
                X = X + B * ((v - u) ** 2 / 2 + np.sum((at - u) / scale(at)) * width * scale(v)) * curve
            slope = new
        X = X + B * math.sqrt(max(0, v * v - u * u * r * r)) * noise()
        image = D
    return X


# Sampler's name, and whether a flow model's first level keeps a trace of the image.
SAMPLERS = {
    'euler_ancestral': (euler_ancestral, False), 'heun': (heun, False), 'heunpp2': (heunpp2, False), 'dpm_2': (dpm_2, False),
    'dpm_2_ancestral': (dpm_2_ancestral, False), 'lms': (lms, False), 'ipndm': (ipndm, False), 'ipndm_v': (ipndm_v, False),
    'dpmpp_2s_ancestral': (dpmpp_2s, False), 'dpmpp_2s_ancestral_cfg_pp': (dpmpp_2s_cfg_pp, False),
    'dpmpp_2m_sde_heun': (dpmpp_2m_sde_heun, True), 'dpmpp_3m_sde': (dpmpp_3m_sde, True), 'dpm_fast': (dpm_fast, False),
    'dpm_adaptive': (dpm_adaptive, False), 'restart': (restart, True), 'res_multistep': (residual, False),
    'res_multistep_ancestral': (res_multistep_ancestral, False), 'res_multistep_cfg_pp': (res_multistep_cfg_pp, False),
    'res_multistep_ancestral_cfg_pp': (res_multistep_ancestral_cfg_pp, False), 'gradient_estimation': (gradient_estimation, False),
    'gradient_estimation_cfg_pp': (gradient_estimation_cfg_pp, False), 'euler_cfg_pp': (euler_cfg_pp, True),
    'euler_ancestral_cfg_pp': (euler_ancestral_cfg_pp, True), 'dpmpp_2m_cfg_pp': (dpmpp_2m_cfg_pp, True), 'er_sde': (er_sde, True),
}


def sigmas(flow, steps, keeps):
    if not flow:
        return [*karras(steps, RATIOS[0], RATIOS[-1]), 0.]
    s = [3 * u / (1 + 2 * u) for u in (1 - i / steps for i in range(steps))]
    if keeps:
        s[0] = 1 - LEAST_ALPHA
    return [*s, 0.]


def case(name, flow, steps, prediction='epsilon', **options):
    method, keeps = SAMPLERS.get(name, (euler, False))
    model, noise = Model(flow, 'flow' if flow else prediction), Noise()
    S = sigmas(flow, steps, keeps)
    X = start() if flow else start() * math.hypot(1, S[0])
    X = method(model, X, S, noise, **options)
    assert np.all(np.isfinite(X)), name
    # The methods that end at the least noise give the state there.
    x = X / math.hypot(1, S[-2]) if name in ('dpm_fast', 'dpm_adaptive') and not flow else X
    return dict(sampler=name, flow=flow, prediction=model.prediction, schedule='sgm_uniform' if flow else 'karras', steps=steps,
                eta=options.get('eta'), churned=options.get('churned'), evaluations=model.calls, draws=noise.calls, final=list(x))


def loglinear(table, count):
    """A list's logarithms at so many even places."""
    return np.exp(np.interp(np.linspace(0, 1, count), np.linspace(0, 1, len(table)), np.log(table)))


SD1 = [14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029]
XL = [14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029]


def at_timesteps(flow, t):
    if flow:
        return [3 * u / (1 + 2 * u) for u in (np.array(t) / 1000)]
    return np.exp(np.interp(t, np.arange(1000), np.log(RATIOS)))


def spread(name, flow, n):
    """Levels without the end: ratios of noise to image, or sigmas of a flow model with shift 3."""
    low, high = (3 / 1000 / (1 + 2 / 1000), 1.) if flow else (RATIOS[0], RATIOS[-1])
    ramp = np.linspace(1, 0, n)
    if name.startswith('polyexponential'):
        return np.exp(math.log(low) + ramp ** float(name.split()[1]) * (math.log(high) - math.log(low)))
    if name == 'kl_optimal':
        return np.tan(ramp * math.atan(high) + (1 - ramp) * math.atan(low))
    if name == 'linear_quadratic':
        half = n // 2
        a = (half - .025 * n) / (half * (n - half) ** 2)
        b = .025 / half - 2 * (half - .025 * n) / (n - half) ** 2
        shares = [i * .025 / half for i in range(half)] + [a * i * i + b * i + a * half ** 2 for i in range(half, n)]
        return [high * (1 - x) for x in shares]
    if name == 'bong_tangent':
        def arc(count, pivot, a, b):
            y = [math.atan(-.2 / ((n + 2) / 40) * (x - pivot)) for x in range(count)]
            return [(v - y[-1]) / (y[0] - y[-1]) * (a - b) + b for v in y]
        first = int((n + 2) * .6)
        return [high * x for x in arc(first, first, 1., .5)[:-1] + arc(n + 2 - first, 0, .5, 0.)][:n]
    if name == 'align_your_steps':
        return loglinear(SD1, n + 1)[:-1]
    if name == 'align_your_steps xl':
        return loglinear(XL, n + 1)[:-1]
    if name == 'ddim_uniform':
        return at_timesteps(flow, [1 + i * (1000 // n) for i in range(n)][::-1])
    if name == 'turbo':
        return at_timesteps(flow, np.arange(n, 0, -1) * 1000 / n - (0 if flow else 1))
    return at_timesteps(flow, np.linspace(1000, 1, n) if flow else np.linspace(999, 0, n))


def schedules():
    names = ['polyexponential 1', 'polyexponential 1.7', 'kl_optimal', 'linear_quadratic', 'bong_tangent', 'align_your_steps',
             'align_your_steps xl', 'ddim_uniform', 'turbo', 'normal']
    return [dict(schedule=name, flow=flow, levels=list(map(float, spread(name, flow, n)))) for name in names for flow in (False, True)
            for n in (10, 20) if not (flow and name.startswith('align'))]


def main():
    # Restart is defined for the ratios of variance preserving models.
    cases = [case(name, flow, steps) for name in SAMPLERS for flow in (False, True) for steps in (7, 12)
             if not (flow and name == 'restart')]
    cases += [case(name, False, 10, prediction='velocity') for name in SAMPLERS]
    cases += [case('restart', False, steps) for steps in (20, 40)]
    churned = (8., 0.1, 9., 1.1)
    cases += [case(name, False, 9, churned=churned) for name in ('euler', 'heun', 'dpm_2')]
    cases += [case(name, flow, 9, eta=.6) for name in ('euler_ancestral', 'dpm_fast') for flow in (False, True)]
    cases += [case(name, False, steps, eta=.6) for name in ('dpm_adaptive', 'dpmpp_3m_sde') for steps in (9,)]
    cases += [case('dpm_fast', False, steps) for steps in (2, 3, 4)]
    with open(f'{HERE}/k_samplers.json', 'w') as f:
        json.dump(dict(cases=cases, schedules=schedules()), f, indent=0)


if __name__ == '__main__':
    main()
