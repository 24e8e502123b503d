"""Single layers that adaptations are merged into, and how the merged weights are kept: weights and adaptations are a function of their names, as in make_networks.py,
so PLACE/GROUP.json has the shapes and PLACE/GROUP.safetensors the merged weights.
"""
import json
import pathlib
import torch
from safetensors.torch import save_file
from torch import nn
from make_networks import weight

torch.set_grad_enabled(False)
torch.set_num_threads(1)
OUT, IN = 32, 24
cases, merged = {}, {}


def net():
    """A layer of each kind; `square` cannot be told from its transpose by its shape."""
    layers = dict(linear=nn.Linear(IN, OUT), square=nn.Linear(OUT, OUT), conv=nn.Conv2d(8, 16, 3), norm=nn.LayerNorm(IN))
    for name, layer in layers.items():
        for part, old in layer.state_dict().items():
            getattr(layer, part).copy_(weight('base', f'{name}.{part}', tuple(old.shape)))
    return nn.ModuleDict(layers)


def keep(case, layer, strength, tensors, weight_now, bias=None, config=None):
    """What a file with these tensors (values by their names but for `alpha`, which is given) makes of a layer."""
    cases[case] = {'layer': layer, 'strength': strength, 'config': config,
                   'tensors': {n: t if isinstance(t, (int, float)) else list(t.shape) for n, t in tensors.items()}}
    base = net()[layer]
    assert (weight_now - base.weight).abs().max() > 1e-3, case
    assert torch.isfinite(weight_now).all(), case
    merged[f'{case}.weight'] = weight_now.float().contiguous()
    if bias is not None:
        assert (bias - base.bias).abs().max() > 1e-3, case
        merged[f'{case}.bias'] = bias.float().contiguous()


def peft_tensors(case, layer, module):
    """An adapted layer of PEFT's with values by their names, and these as in its files."""
    tensors = {}
    for name, parameter in module.named_parameters():
        if 'base_layer' not in name:
            key = f'base_model.model.{layer}.{name.replace(".default", "")}'
            parameter.copy_(weight(case, key, tuple(parameter.shape)))
            tensors[key] = parameter.detach().clone()
    return tensors


def save(place, group):
    """Writes what was kept."""
    place = pathlib.Path(place)
    save_file(merged, place / f'{group}.safetensors')
    shapes = {f'{layer}.{part}': list(t.shape) for layer, m in net().items() for part, t in m.state_dict().items()}
    json.dump({'base': shapes, 'cases': cases}, open(place / f'{group}.json', 'w'), separators=(',', ':'))
    print(len(cases), 'cases')
