#!/usr/bin/env python3
"""Numbers of diffusers' schedulers with their options, for a fixed model function: writes schedulers.json beside this file.

    python3 make_schedulers.py        (diffusers 0.42.1, torch, scipy; CPU)

The state, the model function and the noise are those of make_samplers.py.
"""
import json, os
import torch, diffusers
import make_samplers as base

HERE = os.path.dirname(os.path.abspath(__file__))
SD = base.SD
# Classes that keep x / alpha.
SCALED = ('EulerDiscreteScheduler', 'EulerAncestralDiscreteScheduler', 'HeunDiscreteScheduler', 'LMSDiscreteScheduler',
          'KDPM2DiscreteScheduler', 'KDPM2AncestralDiscreteScheduler', 'EDMEulerScheduler', 'EDMDPMSolverMultistepScheduler')


def case(name, config, steps, sigmas=None, mu=None):
    scheduler = getattr(diffusers, name)(**config)
    if sigmas is None:
        scheduler.set_timesteps(steps)
    else:
        scheduler.set_timesteps(sigmas=sigmas, **({} if mu is None else dict(mu=mu)))
    noise = base.Noise()
    module = __import__(type(scheduler).__module__, fromlist=['x'])
    if hasattr(module, 'randn_tensor'):
        module.randn_tensor = noise
    keep, torch.randn_like = torch.randn_like, noise
    x = base.start()
    if name.startswith('EDM'):
        x = x * float(scheduler.init_noise_sigma)
    elif name in SCALED:
        x = x * (1 + float(scheduler.sigmas[0]) ** 2) ** .5
    # diffusers' numbers are in 32 bits where it casts to them.
    asked = []
    for t in scheduler.timesteps:
        inp = scheduler.scale_model_input(x, t) if name in SCALED else x
        asked.append(float(t))
        x = scheduler.step(base.model(inp, t, True), t, x, return_dict=False)[0].to(torch.float64)
    torch.randn_like = keep
    # A state that ends with noise is compared as x.
    last = float(scheduler.sigmas[-1]) if hasattr(scheduler, 'sigmas') and len(scheduler.sigmas) else 0.
    if name in SCALED and last > 0:
        x = x / (last ** 2 + (config.get('sigma_data', .5) if name.startswith('EDM') else 1) ** 2) ** .5
    return dict(config=json.dumps({**config, '_class_name': name}), steps=steps, timesteps=asked, final=x.flatten().tolist())


def main():
    def vp(name, steps=8, **options):
        return case(name + 'Scheduler', {**SD, **options}, steps)
    leading = dict(timestep_spacing='leading', steps_offset=1)
    solvers = ('DPMSolverMultistep', 'DPMSolverSinglestep', 'DEISMultistep', 'UniPCMultistep')
    levels = ('use_karras_sigmas', 'use_exponential_sigmas', 'use_beta_sigmas')
    v = dict(prediction_type='v_prediction')
    flow = dict(prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=3.)
    threshold = dict(thresholding=True, dynamic_thresholding_ratio=.8, sample_max_value=1.4)
    minimum = dict(final_sigmas_type='sigma_min')
    cases = [vp(name, **{flag: True}) for name in solvers for flag in levels]
    cases += [vp(name, **{flag: True}, **leading) for name in ('LMSDiscrete', 'KDPM2Discrete', 'KDPM2AncestralDiscrete') for flag in levels]
    cases += [vp(name, **spacing, **v) for name in ('LMSDiscrete', 'KDPM2Discrete', 'KDPM2AncestralDiscrete')
              for spacing in (leading, dict(timestep_spacing='trailing'), {})]
    # DPM-Solver
    many = [dict(algorithm_type=kind, solver_order=order, solver_type=form, **(minimum if kind.endswith('dpmsolver') else {}))
            for kind in ('dpmsolver', 'dpmsolver++', 'sde-dpmsolver', 'sde-dpmsolver++') for order in (1, 2, 3) for form in ('midpoint', 'heun')
            if not (kind == 'sde-dpmsolver' and order == 3)]
    cases += [vp('DPMSolverMultistep', 7, **options) for options in many]
    cases += [vp('DPMSolverMultistep', 16, solver_order=3, **options) for options in ({}, minimum, dict(euler_at_final=True, **minimum))]
    cases += [vp('DPMSolverMultistep', 7, solver_order=3, lower_order_final=False, **options) for options in ({}, minimum)]
    cases += [vp('DPMSolverMultistep', use_lu_lambdas=True), vp('DPMSolverMultistep', **threshold), vp('DPMSolverMultistep', **flow),
              vp('DPMSolverMultistep', lambda_min_clipped=-2.), vp('DPMSolverMultistep', lambda_min_clipped=-2., **leading),
              vp('DPMSolverMultistep', beta_schedule='squaredcos_cap_v2', lambda_min_clipped=-5.1),
              vp('DPMSolverMultistep', rescale_betas_zero_snr=True, timestep_spacing='trailing', **v)]
    cases += [vp('DPMSolverSinglestep', steps, solver_order=order, **options) for steps in (6, 7, 8) for order in (1, 2, 3)
              for options in ({}, dict(lower_order_final=True, **minimum), dict(solver_type='heun', **minimum))]
    cases += [vp('DPMSolverSinglestep', 6, solver_order=order, algorithm_type=kind, solver_type=form, **minimum)
              for order in (2, 3) for form in ('midpoint', 'heun') for kind in ('dpmsolver', 'sde-dpmsolver++')]
    cases += [vp('DPMSolverSinglestep', **threshold), vp('DPMSolverSinglestep', **flow)]
    cases += [vp('DEISMultistep', steps, solver_order=order) for steps in (7, 16) for order in (1, 2, 3)]
    cases += [vp('DEISMultistep', 16, solver_order=3, use_karras_sigmas=True), vp('DEISMultistep', 7, lower_order_final=False),
              vp('DEISMultistep', **threshold), vp('DEISMultistep', **flow)]
    cases += [vp('UniPCMultistep', 9, solver_order=order, solver_type=form, predict_x0=image, **ends) for order in (1, 2, 3, 4)
              for form in ('bh1', 'bh2') for image, ends in ((True, {}), (True, minimum), (False, minimum))
              if ends or form == 'bh2']  # diffusers has no numbers for bh1 that ends without noise
    cases += [vp('UniPCMultistep', 9, solver_order=3, lower_order_final=False, **minimum), vp('UniPCMultistep', disable_corrector=[0, 3]),
              vp('UniPCMultistep', use_karras_sigmas=True, **minimum), vp('UniPCMultistep', **threshold), vp('UniPCMultistep', **flow),
              vp('UniPCMultistep', 6, shift_terminal=.1, **flow)]
    cases += [vp('SASolver', 9, predictor_order=one, corrector_order=other, algorithm_type=kind) for one in (1, 2, 3, 4) for other in (1, 2, 3, 4)
              for kind in ('data_prediction', 'noise_prediction') if abs(one - other) < 2]
    cases += [vp('SASolver', 9, **options) for options in (dict(lower_order_final=False, predictor_order=3), leading, dict(timestep_spacing='trailing', **v),
                                                           dict(use_karras_sigmas=True), dict(use_exponential_sigmas=True), threshold, flow)]
    # others
    cases += [vp('EulerDiscrete', **minimum), vp('EulerDiscrete', use_karras_sigmas=True, sigma_min=.1, sigma_max=9.),
              vp('HeunDiscrete', clip_sample=True, clip_sample_range=.8), vp('DDIM', clip_sample=True, **leading),
              vp('DDIM', clip_sample=False, **threshold, **leading), vp('DDPM', 10, clip_sample=False, **leading),
              vp('DDPM', 10, clip_sample=True, **leading), vp('LCM', 4, clip_sample=True), vp('TCD', 4, clip_sample=True, clip_sample_range=.7)]
    even = lambda n: [1 - i / n for i in range(n)]
    flows = [dict(shift=2., shift_terminal=.15), dict(shift=2., stochastic_sampling=True), dict(shift=2., shift_terminal=.1, use_karras_sigmas=True)]
    cases += [case('FlowMatchEulerDiscreteScheduler', options, 8, even(8)) for options in flows]
    # At 256 tokens mu is base_shift.
    cases += [case('FlowMatchEulerDiscreteScheduler', dict(use_dynamic_shifting=True, base_shift=.7, time_shift_type=form), 8, even(8), mu=.7)
              for form in ('linear', 'exponential')]
    cases += [case('FlowMatchLCMScheduler', dict(shift=3.), 5, even(5))]
    cases += [case('EDMEulerScheduler', dict(prediction_type=kind, **options), 8) for kind in ('epsilon', 'v_prediction')
              for options in ({}, dict(sigma_data=1., sigma_max=20.), dict(sigma_schedule='exponential'), dict(rho=5., **minimum))]
    cases += [case('EDMDPMSolverMultistepScheduler', options, 8) for options in
              ({}, dict(solver_order=3), dict(solver_type='heun', **minimum), dict(algorithm_type='sde-dpmsolver++'), dict(**threshold))]
    with open(f'{HERE}/schedulers.json', 'w') as f:
        json.dump(dict(diffusers=diffusers.__version__, torch=torch.__version__, cases=cases), f, indent=0)


if __name__ == '__main__':
    main()
