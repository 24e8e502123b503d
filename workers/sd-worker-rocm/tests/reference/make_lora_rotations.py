#!/usr/bin/env python3
"""Weights turned by OFT and BOFT of PEFT, and by the first files of LyCORIS' diagonal OFT, in f32 on the CPU (needs peft).

    python3 make_lora_rotations.py PLACE

As make_lora_kinds.py: weights and adaptations are a function of their names. PEFT has several stages of BOFT on GPUs only; what its kernel does, blocks on a diagonal, is done here.
"""
import json
import pathlib
import sys
import torch
from safetensors.torch import save_file
from torch import nn
import peft.tuners.boft.layer as boft
from peft import BOFTConfig, OFTConfig, inject_adapter_in_model
from make_networks import weight

torch.set_grad_enabled(False)
torch.set_num_threads(1)
OUT, IN = 32, 24
cases, merged = {}, {}
boft.get_fbd_cuda = lambda: True


class Diagonal:
    @staticmethod
    def apply(x):
        return torch.stack([torch.block_diag(*stage) for stage in x])


boft.FastBlockDiag = Diagonal


def net():
    layers = dict(linear=nn.Linear(IN, OUT), square=nn.Linear(OUT, OUT), conv=nn.Conv2d(8, 16, 3), norm=nn.LayerNorm(IN))
    for name, layer in layers.items():
        for part, old in layer.state_dict().items():
            getattr(layer, part).copy_(weight('base', f'{name}.{part}', tuple(old.shape)))
    return nn.ModuleDict(layers)


def keep(case, layer, strength, tensors, now, config=None):
    cases[case] = {'layer': layer, 'strength': strength, 'config': config, 'tensors': {n: list(t.shape) for n, t in tensors.items()}}
    base = net()[layer].weight
    assert (now - base).abs().max() > 1e-3, case
    merged[f'{case}.weight'] = (base + strength * (now - base)).contiguous()


def peft(case, layer, config, strength=1.0):
    config.target_modules = [layer]
    module = inject_adapter_in_model(config, net())[layer]
    tensors = {}
    for name, parameter in module.named_parameters():
        if 'base_layer' not in name:
            key = f'base_model.model.{layer}.{name.replace(".default", "")}'
            parameter.copy_(weight(case, key, tuple(parameter.shape)))
            tensors[key] = parameter.detach().clone()
    module.merge(safe_merge=True)
    said = {k: v for k, v in config.to_dict().items() if isinstance(v, (int, float, bool))}
    keep(case, layer, strength, tensors, module.base_layer.weight.detach(), said | {'peft_type': config.peft_type.value})


oft = lambda **more: OFTConfig(**dict(oft_block_size=4) | more)
peft('oft', 'linear', oft(use_cayley_neumann=False))
peft('oft_part', 'square', oft(use_cayley_neumann=False), 0.6)
peft('oft_series', 'linear', oft(use_cayley_neumann=True))
peft('oft_long_series', 'linear', oft(use_cayley_neumann=True, num_cayley_neumann_terms=7))
peft('oft_short_series', 'linear', oft(use_cayley_neumann=True, num_cayley_neumann_terms=2))
peft('oft_conv', 'conv', oft(use_cayley_neumann=False))
peft('oft_limited', 'linear', oft(coft=True, eps=0.3, use_cayley_neumann=False))
peft('oft_shared', 'square', oft(block_share=True, use_cayley_neumann=False))
several = lambda **more: BOFTConfig(**dict(boft_block_size=4, boft_n_butterfly_factor=1, init_weights=False) | more)
peft('boft', 'linear', several())
peft('boft_stages', 'square', several(boft_n_butterfly_factor=4))
peft('boft_part', 'square', several(boft_n_butterfly_factor=2), 0.4)
peft('boft_conv', 'conv', several(boft_n_butterfly_factor=2))
# LyCORIS before 2.0: the rotations themselves, as the web UIs read them.
blocks = weight('oft_diag', 'lora_unet_linear.oft_diag', (8, 4, 4))
base = net()['linear'].weight
now = torch.einsum('knm,kni->kmi', blocks, base.view(8, 4, IN)).reshape(OUT, IN)
keep('oft_diag', 'linear', 0.7, {'lora_unet_linear.oft_diag': blocks}, now)

place = pathlib.Path(sys.argv[1])
save_file(merged, place / 'lora_rotations.safetensors')
shapes = {f'{layer}.{part}': list(t.shape) for layer, m in net().items() for part, t in m.state_dict().items()}
json.dump({'base': shapes, 'cases': cases}, open(place / 'lora_rotations.json', 'w'), separators=(',', ':'))
print(len(cases), 'cases')
