#!/usr/bin/env python3
"""Weights with adaptations of every kind merged, computed with LyCORIS and PEFT in f32 on the CPU (needs lycoris-lora and peft).

    python3 make_lora_kinds.py PLACE
"""
import sys
import torch
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, inject_adapter_in_model
from lycoris.functional.general import rebuild_tucker
from lycoris.functional.lokr import make_kron
from lycoris.modules.boft import ButterflyOFTModule
from lycoris.modules.diag_oft import DiagOFTModule
from lycoris.modules.full import FullModule
from lycoris.modules.glora import GLoRAModule
from lycoris.modules.ia3 import IA3Module
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.norms import NormModule
from layers import IN, OUT, keep, net, peft_tensors, save
from make_networks import weight


def lycoris(case, layer, kind, names, alpha, strength=0.7, expect=None, **shapes):
    """`names` are LyCORIS' own order of tensors; None where there is none. Values by the names that they have in a file."""
    base = net()[layer]
    key = lambda name: f'lycoris_{layer}.{name}'
    given = {name: weight(case, key(name), shape) for name, shape in shapes.items()}
    args = [torch.tensor(float(alpha)) if name == 'alpha' else given.get(name) for name in names]
    module = kind.make_module_from_state_dict('x', base, *args)
    weight_now, bias = module.get_merged_weight(multiplier=strength, shape=base.weight.shape) if expect is None else expect(base, module, given)
    tensors = {key(name): value for name, value in given.items()}
    if 'alpha' in names and alpha is not None:
        tensors[key('alpha')] = alpha
    keep(case, layer, strength, tensors, weight_now, bias)


LOCON = ['lora_up.weight', 'lora_down.weight', 'lora_mid.weight', 'alpha', 'dora_scale']
LOHA = ['hada_w1_a', 'hada_w1_b', 'hada_w2_a', 'hada_w2_b', 'hada_t1', 'hada_t2', 'alpha', 'dora_scale']
GLORA = ['a1.weight', 'a2.weight', 'b1.weight', 'b2.weight', 'bm.weight', 'alpha']

lycoris('locon_tucker', 'conv', LoConModule, LOCON, 2, **{'lora_up.weight': (16, 4, 1, 1), 'lora_down.weight': (4, 8, 1, 1), 'lora_mid.weight': (4, 4, 3, 3)})
def once(base, module, given):
    """With alpha over rank once, as PEFT and web UIs multiply; the merged weight of LyCORIS' present release has it twice."""
    return base.weight + 0.7 * module.get_weight(base.weight.shape), None


lycoris('loha', 'linear', LohaModule, LOHA, 2, expect=once, hada_w1_a=(OUT, 4), hada_w1_b=(4, IN), hada_w2_a=(OUT, 4), hada_w2_b=(4, IN))
lycoris('loha_conv', 'conv', LohaModule, LOHA, 2, expect=once, hada_w1_a=(16, 4), hada_w1_b=(4, 72), hada_w2_a=(16, 4), hada_w2_b=(4, 72))
lycoris('loha_tucker', 'conv', LohaModule, LOHA, 2, expect=once, hada_t1=(4, 4, 3, 3), hada_w1_a=(4, 16), hada_w1_b=(4, 8), hada_t2=(4, 4, 3, 3), hada_w2_a=(4, 16), hada_w2_b=(4, 8))


def lokr(case, layer, scale, **shapes):
    key = lambda name: f'lycoris_{layer}.{name}'
    base = net()[layer].weight
    g = {name: weight(case, key(name), s) for name, s in shapes.items()}
    if 'lokr_t2' in g:
        large = rebuild_tucker(g['lokr_t2'], g['lokr_w2_a'], g['lokr_w2_b'])
    else:
        large = g['lokr_w2'] if 'lokr_w2' in g else g['lokr_w2_a'] @ g['lokr_w2_b']
    delta = make_kron(g['lokr_w1'], large, scale).reshape(base.shape)
    keep(case, layer, 0.7, {**{key(n): t for n, t in g.items()}, key('alpha'): 1}, base + 0.7 * delta)


lokr('lokr', 'linear', 0.5, lokr_w1=(4, 4), lokr_w2_a=(8, 2), lokr_w2_b=(2, 6))
# An alpha of whole matrices says nothing.
lokr('lokr_full', 'linear', 1, lokr_w1=(4, 4), lokr_w2=(8, 6))
lokr('lokr_tucker', 'conv', 0.5, lokr_w1=(4, 2), lokr_w2_a=(2, 4), lokr_w2_b=(2, 4), lokr_t2=(2, 2, 3, 3))
lokr('lokr_conv', 'conv', 1, lokr_w1=(4, 2), lokr_w2=(4, 4, 3, 3))
lycoris('oft', 'linear', DiagOFTModule, ['oft_blocks', 'rescale', 'alpha'], 0, strength=1.0, oft_blocks=(8, 4, 4), rescale=(OUT, 1))
lycoris('oft_part', 'conv', DiagOFTModule, ['oft_blocks', 'rescale', 'alpha'], 0, oft_blocks=(4, 4, 4))
lycoris('oft_limited', 'linear', DiagOFTModule, ['oft_blocks', 'rescale', 'alpha'], 0.05, oft_blocks=(8, 4, 4))
lycoris('boft', 'linear', ButterflyOFTModule, ['oft_blocks', 'rescale', 'alpha'], 0, oft_blocks=(4, 8, 4, 4))
lycoris('boft_conv', 'conv', ButterflyOFTModule, ['oft_blocks', 'rescale', 'alpha'], 0, strength=1.0, oft_blocks=(3, 4, 4, 4), rescale=(16, 1, 1, 1))
lycoris('glora', 'linear', GLoRAModule, GLORA, 2, **{'a1.weight': (IN, 4), 'a2.weight': (4, IN), 'b1.weight': (OUT, 4), 'b2.weight': (4, IN)})
lycoris('norm', 'norm', NormModule, ['w_norm', 'b_norm'], None, strength=1.0, w_norm=(IN,), b_norm=(IN,))
lycoris('full', 'linear', FullModule, ['diff', 'diff_b'], None, strength=1.0, diff=(OUT, IN), diff_b=(OUT,),
        expect=lambda base, module, given: (base.weight + given['diff'], base.bias + given['diff_b']))


def dora(case, layer, shape, axis, tensors, delta):
    """Lengths of all that belongs to an output or an input."""
    key = lambda name: f'lycoris_{layer}.{name}'
    base = net()[layer].weight
    given = {name: weight(case, key(name), s) for name, s in {**tensors, 'dora_scale': shape}.items()}
    changed = base + delta(given).reshape(base.shape) * 0.5
    dims = [d for d in range(base.dim()) if d != axis]
    now = changed * (given['dora_scale'] / changed.square().sum(dim=dims, keepdim=True).sqrt())
    keep(case, layer, 0.7, {**{key(n): t for n, t in given.items()}, key('alpha'): 2}, base + 0.7 * (now - base))


pair = {'lora_up.weight': (OUT, 4), 'lora_down.weight': (4, OUT)}
low = lambda g: g['lora_up.weight'].flatten(1) @ g['lora_down.weight'].flatten(1)
dora('dora_inputs', 'square', (1, OUT), 1, pair, low)
dora('dora_outputs', 'square', (OUT, 1), 0, pair, low)
dora('dora_conv', 'conv', (1, 8, 1, 1), 1, {'lora_up.weight': (16, 4, 1, 1), 'lora_down.weight': (4, 8, 3, 3)}, low)
dora('dora_loha', 'linear', (OUT, 1), 0, dict(hada_w1_a=(OUT, 4), hada_w1_b=(4, IN), hada_w2_a=(OUT, 4), hada_w2_b=(4, IN)),
     lambda g: (g['hada_w1_a'] @ g['hada_w1_b']) * (g['hada_w2_a'] @ g['hada_w2_b']))

# (IA)3 of LyCORIS has a flag instead of an alpha.
for case, layer, size, on_input in (('ia3', 'linear', OUT, 0), ('ia3_inputs', 'linear', IN, 1)):
    base = net()[layer].weight
    vector = weight(case, f'lycoris_{layer}.weight', (size,))
    keep(case, layer, 0.7, {f'lycoris_{layer}.weight': vector, f'lycoris_{layer}.on_input': on_input},
         base + 0.7 * base * (vector if on_input else vector[:, None]))
# A whole weight in the place of another.
other = weight('set_weight', 'lycoris_linear.set_weight', (OUT, IN))
keep('set_weight', 'linear', 0.7, {'lycoris_linear.set_weight': other}, net()['linear'].weight * 0.3 + 0.7 * other)
# GLoRA before LyCORIS 2.0: each pair the other way around.
g = {n: weight('glora_old', f'lycoris_linear.{n}', s) for n, s in {'a1.weight': (4, IN), 'a2.weight': (IN, 4), 'b1.weight': (4, IN), 'b2.weight': (OUT, 4)}.items()}
base = net()['linear'].weight
keep('glora_old', 'linear', 0.7, {**{f'lycoris_linear.{n}': t for n, t in g.items()}, 'lycoris_linear.alpha': 2},
     base + 0.7 * 0.5 * (base @ g['a2.weight'] @ g['a1.weight'] + g['b2.weight'] @ g['b1.weight']))


def peft(case, layer, config, strength=0.7, only=None):
    """PEFT's own files: `base_model.model.` and settings beside the file."""
    adapted = inject_adapter_in_model(config, net())
    module = adapted[layer]
    tensors = peft_tensors(case, layer, module)
    if strength is not None:
        module.set_scale('default', strength)
    module.merge(safe_merge=True)
    said = {k: v for k, v in config.to_dict().items() if isinstance(v, (int, float, bool)) or k in ('alpha_pattern', 'peft_type')}
    said['peft_type'] = config.peft_type.value
    bias = module.base_layer.bias if any(n.endswith('lora_B.bias') for n in tensors) else None
    keep(case, layer, strength or 1.0, tensors, module.base_layer.weight, bias, said)


both = ['linear', 'conv']
peft('peft_dora', 'linear', LoraConfig(r=4, lora_alpha=2, use_dora=True, target_modules=both))
peft('peft_dora_conv', 'conv', LoraConfig(r=4, lora_alpha=2, use_dora=True, target_modules=both))
peft('peft_rslora', 'linear', LoraConfig(r=4, lora_alpha=2, use_rslora=True, target_modules=both))
peft('peft_pattern', 'linear', LoraConfig(r=4, lora_alpha=2, target_modules=both, rank_pattern={'linear': 2}, alpha_pattern={'linear': 5}))
peft('peft_bias', 'linear', LoraConfig(r=4, lora_alpha=2, lora_bias=True, target_modules=both))
peft('peft_loha', 'linear', LoHaConfig(r=4, alpha=2, target_modules=both))
peft('peft_loha_conv', 'conv', LoHaConfig(r=4, alpha=2, use_effective_conv2d=True, target_modules=both))
peft('peft_lokr', 'linear', LoKrConfig(r=2, alpha=1, target_modules=both))
peft('peft_lokr_full', 'linear', LoKrConfig(r=8, alpha=4, target_modules=both))
peft('peft_lokr_both', 'square', LoKrConfig(r=1, alpha=2, decompose_both=True, target_modules=['square']))
peft('peft_ia3', 'linear', IA3Config(target_modules=['linear', 'square'], feedforward_modules=['square']), strength=None)
peft('peft_ia3_inputs', 'square', IA3Config(target_modules=['linear', 'square'], feedforward_modules=['square']), strength=None)

save(sys.argv[1], 'lora_kinds')
