#!/usr/bin/env python3
"""Weights turned by OFT and BOFT of PEFT, and by the first files of LyCORIS' diagonal OFT, in f32 on the CPU (needs peft).

    python3 make_lora_rotations.py PLACE

PEFT has several stages of BOFT on GPUs only; what its kernel does, blocks on a diagonal, is done here.
"""
import sys
import torch
import peft.tuners.boft.layer as boft
from peft import BOFTConfig, OFTConfig, inject_adapter_in_model
from layers import IN, OUT, keep, net, peft_tensors, save
from make_networks import weight

boft.get_fbd_cuda = lambda: True


class Diagonal:
    @staticmethod
    def apply(x):
        return torch.stack([torch.block_diag(*stage) for stage in x])


boft.FastBlockDiag = Diagonal


def turned(case, layer, strength, tensors, now, config=None):
    base = net()[layer].weight
    keep(case, layer, strength, tensors, base + strength * (now - base), config=config)


def peft(case, layer, config, strength=1.0):
    config.target_modules = [layer]
    module = inject_adapter_in_model(config, net())[layer]
    tensors = peft_tensors(case, layer, module)
    module.merge(safe_merge=True)
    said = {k: v for k, v in config.to_dict().items() if isinstance(v, (int, float, bool))}
    turned(case, layer, strength, tensors, module.base_layer.weight.detach(), said | {'peft_type': config.peft_type.value})


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
turned('oft_diag', 'linear', 0.7, {'lora_unet_linear.oft_diag': blocks}, now)

save(sys.argv[1], 'lora_rotations')
