#!/usr/bin/env python3
"""Every setting that diffusers' and transformers' classes take, with its default and another value of its kind.

    python3 make_configurations.py OUT.json
"""
import importlib
import inspect
import json
import sys
import diffusers
import transformers

CLASSES = {
    transformers: ['CLIPTextConfig', 'CLIPVisionConfig', 'SiglipVisionConfig', 'T5Config', 'UMT5Config', 'Qwen2Config', 'Qwen3Config', 'LlamaConfig', 'MistralConfig', 'Gemma2Config',
                   'Gemma3TextConfig', 'Qwen2_5_VLTextConfig', 'Qwen3VLTextConfig', 'Qwen2_5_VLVisionConfig'],
    diffusers: ['UNet2DConditionModel', 'ControlNetModel', 'ControlNetUnionModel', 'T2IAdapter', 'AutoencoderKL', 'AutoencoderKLFlux2', 'AutoencoderKLWan',
                'AutoencoderKLQwenImage', 'AutoencoderKLLTXVideo', 'AutoencoderDC', 'SD3Transformer2DModel', 'SD3ControlNetModel', 'FluxTransformer2DModel',
                'FluxControlNetModel', 'Flux2Transformer2DModel', 'ChromaTransformer2DModel', 'ZImageTransformer2DModel', 'QwenImageTransformer2DModel',
                'Lumina2Transformer2DModel', 'HiDreamImageTransformer2DModel', 'SanaTransformer2DModel', 'WanTransformer3DModel',
                'LTXVideoTransformer3DModel'],
}
# Those that the library does not show at its top.
QWEN = 'transformers.models.qwen2_5_vl.configuration_qwen2_5_vl'
MODULES = {'Qwen2_5_VLTextConfig': QWEN, 'Qwen2_5_VLVisionConfig': QWEN, 'Qwen3VLTextConfig': 'transformers.models.qwen3_vl.configuration_qwen3_vl'}
OF_A_KIND = {'bool': True, 'int': 3, 'float': 0.75, 'str': 'another'}


def another(name, value, hint):
    """Another value of the same kind; where the default is None, what the annotation says first."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return value + '_another'
    if isinstance(value, dict):
        return {**value, 'another': 1}
    if isinstance(value, (list, tuple)) and value:
        return [*value, value[-1]]
    hint = str(hint).replace('typing.', '')
    if name == 'rope_parameters':
        return {'rope_type': 'another'}
    first = min((hint.index(kind), kind) for kind in OF_A_KIND if kind in hint)[1] if any(kind in hint for kind in OF_A_KIND) else 'int'
    many = any(kind in hint.lower() for kind in ('tuple', 'list'))
    return [OF_A_KIND[first]] * 4 if many else OF_A_KIND[first]


def settings(module, name):
    kind = getattr(importlib.import_module(MODULES[name]) if name in MODULES else module, name)
    taken = {}
    for key, parameter in inspect.signature(kind.__init__).parameters.items():
        if key == 'self' or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        if isinstance(default, (str, int, float, bool, list, tuple, dict, type(None))):
            taken[key] = [default, another(key, default, parameter.annotation)]
    return taken


if __name__ == '__main__':
    said = {name: settings(module, name) for module, names in CLASSES.items() for name in names}
    with open(sys.argv[1], 'w') as out:
        out.write('{\n' + ',\n'.join(f'"{name}": {json.dumps(keys, sort_keys=True)}' for name, keys in said.items()) + '\n}\n')
