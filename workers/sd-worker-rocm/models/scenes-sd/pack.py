#!/usr/bin/env python3
"""Pack a model's folder of f16 safetensors as GGUF, or unpack it again.

    python3 pack.py pack   FOLDER OUT     # unet in 5 bits, text encoder and VAE in 8
    python3 pack.py unpack FOLDER OUT     # f16 safetensors, as diffusers reads them

A quantized tensor is stored as rows of 256 numbers, whatever its shape; its shape is in `comfy.gguf.orig_shape.NAME`, where
ComfyUI-GGUF looks for it. Needs gguf, numpy, safetensors.
"""
import json, os, shutil, sys
import numpy as np, gguf
from safetensors.numpy import load_file, save_file

PARTS = {'unet': ('diffusion_pytorch_model', 'Q5_1'), 'vae': ('diffusion_pytorch_model', 'Q8_0'), 'text_encoder': ('model', 'Q8_0')}
ROW = 256


def pack(source, out):
    for part, (stem, kind) in PARTS.items():
        kind = gguf.GGMLQuantizationType[os.environ.get('KIND_' + part, kind)]
        writer = gguf.GGUFWriter(f'{out}/{part}/{stem}.gguf', arch='sd1')
        for name, x in load_file(f'{source}/{part}/{stem}.safetensors').items():
            x = x.astype(np.float32)
            # Norms, biases, and what reads pictures or writes them.
            if x.ndim < 2 or x.size % ROW or x.size < 16 * ROW or name in ('conv_in.weight', 'conv_out.weight'):
                writer.add_tensor(name, x.astype(np.float16))
                continue
            writer.add_array(f'comfy.gguf.orig_shape.{name}', [int(d) for d in x.shape])
            writer.add_tensor(name, gguf.quants.quantize(x.reshape(-1, ROW), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def unpack(source, out):
    for part, (stem, _) in PARTS.items():
        reader, tensors = gguf.GGUFReader(f'{source}/{part}/{stem}.gguf'), {}
        for t in reader.tensors:
            x = gguf.quants.dequantize(t.data, t.tensor_type)
            shape = reader.fields.get(f'comfy.gguf.orig_shape.{t.name}')
            if shape is not None:
                x = x.reshape([int(shape.parts[i][0]) for i in shape.data])
            tensors[t.name] = x.astype(np.float16)
        save_file(tensors, f'{out}/{part}/{stem}.safetensors', metadata={'format': 'pt'})


if __name__ == '__main__':
    if len(sys.argv) != 4 or sys.argv[1] not in ('pack', 'unpack'):
        sys.exit(__doc__)
    shutil.copytree(sys.argv[2], sys.argv[3], ignore=shutil.ignore_patterns('*.safetensors', '*.gguf'), dirs_exist_ok=True)
    {'pack': pack, 'unpack': unpack}[sys.argv[1]](*sys.argv[2:])
