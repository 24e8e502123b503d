#!/usr/bin/env python3
"""Every setting that diffusers' and transformers' classes take, with its default and another value of its kind.

    python3 make_configurations.py OUT.json
"""
import importlib
import enum
import inspect
import json
import sys
import diffusers
import transformers

CLASSES = {
    transformers: ['CLIPTextConfig', 'CLIPVisionConfig', 'SiglipVisionConfig', 'T5Config', 'UMT5Config', 'Qwen2Config', 'Qwen3Config', 'LlamaConfig', 'MistralConfig', 'Gemma2Config',
                   'Gemma3TextConfig', 'Qwen2_5_VLTextConfig', 'Qwen3VLTextConfig', 'Qwen2_5_VLVisionConfig', 'DPTConfig', 'DepthAnythingConfig', 'Dinov2Config', 'BitConfig',
                   'DPTImageProcessorPil', 'CLIPImageProcessorPil', 'SiglipImageProcessorPil', 'Qwen2VLImageProcessorPil'],
    diffusers: ['UNet2DConditionModel', 'ControlNetModel', 'ControlNetUnionModel', 'T2IAdapter', 'AutoencoderKL', 'AutoencoderKLFlux2', 'AutoencoderKLWan',
                'AutoencoderKLQwenImage', 'AutoencoderKLLTXVideo', 'AutoencoderDC', 'SD3Transformer2DModel', 'SD3ControlNetModel', 'FluxTransformer2DModel',
                'FluxControlNetModel', 'Flux2Transformer2DModel', 'ChromaTransformer2DModel', 'ZImageTransformer2DModel', 'QwenImageTransformer2DModel',
                'Lumina2Transformer2DModel', 'HiDreamImageTransformer2DModel', 'SanaTransformer2DModel', 'WanTransformer3DModel',
                'LTXVideoTransformer3DModel', 'ReduxImageEncoder'],
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
    if name in ('image_mean', 'image_std'):
        return [number + 0.25 for number in value]
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
    if hasattr(kind, 'valid_kwargs'):
        # An image processor: its settings are fields of the class.
        takes = [(key, getattr(kind, key, None), hint) for key, hint in kind.valid_kwargs.__annotations__.items()]
    else:
        kept = [p for p in inspect.signature(kind.__init__).parameters.values() if p.name != 'self' and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        # Files of backbones have these without the line.
        takes = [(p.name.removeprefix('_'), None if p.default is p.empty else p.default, p.annotation) for p in kept]
    taken = {}
    for key, default, hint in takes:
        default = default.value if isinstance(default, enum.Enum) else default
        if isinstance(default, (str, int, float, bool, list, tuple, dict, type(None))):
            taken[key] = [default, another(key, default, hint)]
    return taken


if __name__ == '__main__':
    said = {name: settings(module, name) for module, names in CLASSES.items() for name in names}
    with open(sys.argv[1], 'w') as out:
        out.write('{\n' + ',\n'.join(f'"{name}": {json.dumps(keys, sort_keys=True)}' for name, keys in said.items()) + '\n}\n')
