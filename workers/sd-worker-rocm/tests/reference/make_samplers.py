#!/usr/bin/env python3
"""Numbers of diffusers' schedulers for a fixed model function: writes samplers.json and torch_randn.json beside this file.

    python3 make_samplers.py        (diffusers 0.32, torch, scipy, torchsde; CPU)

States are x = alpha * image + sigma * noise. Schedulers that keep x / alpha are started and read accordingly, all from the same
unit noise. The model sees the state scaled to unit variance and the time step:

    model(x, t) = 0.9 * tanh(0.8 x + 0.3) + 0.1 * cos(t / 150)        (without the last term where "time" is false)

Fresh noise is noise(k) for the k-th call.
"""
import json, os
import numpy as np, torch, diffusers
from diffusers import (DDIMScheduler, DPMSolverMultistepScheduler, DPMSolverSDEScheduler, EulerAncestralDiscreteScheduler,
                       EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler, HeunDiscreteScheduler,
                       LCMScheduler, PNDMScheduler, TCDScheduler, UniPCMultistepScheduler)

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = 16
SD = dict(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', num_train_timesteps=1000)
LEADING = dict(timestep_spacing='leading', steps_offset=1)
ZERO = dict(prediction_type='v_prediction', rescale_betas_zero_snr=True, timestep_spacing='trailing')


def start():
    i = np.arange(COUNT)
    return torch.tensor(np.sin(1.3 * i) + 0.5 * np.cos(0.7 * i * i), dtype=torch.float64).reshape(1, 1, COUNT)


class Noise:
    def __init__(self):
        self.calls = 0

    def __call__(self, *args, **kwargs):
        i = np.arange(COUNT)
        self.calls += 1
        return torch.tensor(np.cos(2.1 * i + 0.9 * (self.calls - 1)), dtype=torch.float64).reshape(1, 1, COUNT)


def model(x, t, time):
    out = 0.9 * torch.tanh(0.8 * x + 0.3)
    return out + 0.1 * np.cos(float(t) / 150) if time else out


def case(scheduler_class, config, sampler, schedule, steps, eta=None, time=True, scaled=False, sigmas=None):
    """scaled: the scheduler keeps x / alpha."""
    scheduler = scheduler_class(**config)
    if sigmas is None:
        scheduler.set_timesteps(steps)
    else:
        scheduler.set_timesteps(sigmas=sigmas)
    noise = Noise()
    module = __import__(scheduler_class.__module__, fromlist=['randn_tensor'])
    if hasattr(module, 'randn_tensor'):
        module.randn_tensor = noise
    if scheduler_class is DPMSolverSDEScheduler:
        scheduler.noise_sampler = noise
    x = start() * (1 + float(scheduler.sigmas[0]) ** 2) ** .5 if scaled else start()
    timesteps = []
    step_args = {} if eta is None else dict(eta=eta)
    for t in scheduler.timesteps:
        inp = scheduler.scale_model_input(x, t) if scaled else x
        timesteps.append(float(t))
        x = scheduler.step(model(inp, t, time), t, x, **step_args, return_dict=False)[0]
    return dict(scheduler=scheduler_class.__name__, config=json.dumps({**config, '_class_name': scheduler_class.__name__}),
                sampler=sampler, schedule=schedule, steps=steps, eta=eta, time=time, timesteps=timesteps, final=x.flatten().tolist())


def main():
    euler = lambda conf, schedule, steps, **k: case(EulerDiscreteScheduler, {**SD, **conf}, 'euler', schedule, steps, scaled=True, **k)
    dpm = lambda conf, sampler, schedule, steps, **k: case(
        DPMSolverMultistepScheduler, {**SD, **conf}, sampler, schedule, steps, **k)
    unipc = lambda conf, schedule, steps, **k: case(UniPCMultistepScheduler, {**SD, **conf}, 'unipc', schedule, steps, **k)
    karras = dict(use_karras_sigmas=True, timestep_spacing='linspace')
    exponential = dict(use_exponential_sigmas=True, timestep_spacing='linspace')
    beta = dict(use_beta_sigmas=True, timestep_spacing='linspace')
    sde = dict(algorithm_type='sde-dpmsolver++')
    v = dict(prediction_type='v_prediction')
    pndm = lambda conf, steps: case(PNDMScheduler, {**SD, 'skip_prk_steps': True, **conf}, 'plms', 'discrete', steps)
    spaced = lambda flag: {**LEADING, flag: True}
    solver = dict(prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=3.0)
    cases = [
        euler(LEADING, 'discrete', 20),
        euler({**LEADING, **v}, 'discrete', 20),
        euler(dict(timestep_spacing='linspace'), 'discrete', 10),
        euler(dict(timestep_spacing='trailing'), 'discrete', 8),
        euler(ZERO, 'discrete', 10),
        euler(karras, 'karras', 12),
        euler(exponential, 'exponential', 12),
        euler(beta, 'beta', 12),
        case(EulerAncestralDiscreteScheduler, {**SD, **LEADING}, 'euler a', 'discrete', 20, scaled=True),
        case(EulerAncestralDiscreteScheduler, {**SD, **LEADING, **v}, 'euler a', 'discrete', 10, scaled=True),
        case(HeunDiscreteScheduler, {**SD, **LEADING}, 'heun', 'discrete', 10, scaled=True),
        case(HeunDiscreteScheduler, {**SD, **v, **karras}, 'heun', 'karras', 8, scaled=True),
        case(DDIMScheduler, {**SD, **LEADING, 'clip_sample': False, 'set_alpha_to_one': False}, 'ddim', 'discrete', 20, eta=0.0),
        case(DDIMScheduler, {**SD, **LEADING, 'clip_sample': False, 'set_alpha_to_one': True}, 'ddim', 'discrete', 10, eta=0.0),
        case(DDIMScheduler, {**SD, **LEADING, 'clip_sample': False}, 'ddim', 'discrete', 20, eta=0.5),
        case(DDIMScheduler, {**SD, **ZERO, 'clip_sample': False}, 'ddim', 'discrete', 10, eta=0.0),
        dpm(LEADING, 'dpm++ 2m', 'discrete', 20),
        dpm(dict(timestep_spacing='linspace'), 'dpm++ 2m', 'discrete', 10),
        dpm(karras, 'dpm++ 2m', 'karras', 12, time=False),
        dpm(v | karras, 'dpm++ 2m', 'karras', 20, time=False),
        dpm(ZERO, 'dpm++ 2m', 'discrete', 10),
        dpm({**LEADING, **sde}, 'dpm++ 2m sde', 'discrete', 20),
        dpm({**karras, **sde}, 'dpm++ 2m sde', 'karras', 12, time=False),
        case(DPMSolverSDEScheduler, {**SD, **LEADING}, 'dpm++ sde', 'discrete', 10, scaled=True, time=False),
        case(DPMSolverSDEScheduler, {**SD, **karras}, 'dpm++ sde', 'karras', 8, scaled=True, time=False),
        unipc(LEADING, 'discrete', 20),
        unipc({**karras, 'final_sigmas_type': 'zero'}, 'karras', 12, time=False),
        unipc({**LEADING, **v}, 'discrete', 6),
        case(LCMScheduler, {**SD, 'clip_sample': False}, 'lcm', 'discrete', 4),
        case(LCMScheduler, {**SD, 'clip_sample': False}, 'lcm', 'discrete', 8),
        case(TCDScheduler, {**SD, 'clip_sample': False}, 'tcd', 'discrete', 4, eta=0.3),
        case(TCDScheduler, {**SD, 'clip_sample': False}, 'tcd', 'discrete', 8, eta=0.6),
        case(FlowMatchEulerDiscreteScheduler, dict(shift=3.0), 'euler', 'discrete', 12, sigmas=[1 - i / 12 for i in range(12)]),
        case(FlowMatchEulerDiscreteScheduler, dict(shift=1.0), 'flow-match euler', 'discrete', 4, sigmas=[1 - i / 4 for i in range(4)]),
        pndm({**LEADING, 'set_alpha_to_one': False}, 20),
        pndm({**LEADING, **v, 'set_alpha_to_one': True}, 7),
        pndm(LEADING, 1),
        euler(spaced('use_karras_sigmas'), 'karras', 12),
        euler(spaced('use_exponential_sigmas'), 'exponential', 9),
        euler(spaced('use_beta_sigmas'), 'beta', 10),
        case(HeunDiscreteScheduler, {**SD, **spaced('use_karras_sigmas')}, 'heun', 'karras', 8, scaled=True),
        case(FlowMatchEulerDiscreteScheduler, dict(shift=3.0, use_karras_sigmas=True), 'euler', 'karras', 8, sigmas=[1 - i / 8 for i in range(8)]),
        case(FlowMatchEulerDiscreteScheduler, dict(shift=2.0, use_beta_sigmas=True), 'euler', 'beta', 8, sigmas=[1 - i / 8 for i in range(8)]),
        dpm(solver, 'dpm++ 2m', 'discrete', 10),
    ]
    with open(f'{HERE}/samplers.json', 'w') as f:
        json.dump(dict(diffusers=diffusers.__version__, torch=torch.__version__, cases=cases), f, indent=0)
    randn = []
    for seed, counts in [(0, [64]), (1234, [16, 16]), (42, [23, 17]), (7, [5, 3, 1]), (2**32 + 5, [20]), (99, [1, 2, 16, 1])]:
        generator = torch.Generator().manual_seed(seed)
        randn.append(dict(seed=seed, draws=[torch.randn(n, generator=generator).tolist() for n in counts]))
    with open(f'{HERE}/torch_randn.json', 'w') as f:
        json.dump(dict(torch=torch.__version__, cases=randn), f, indent=0)


if __name__ == '__main__':
    main()
