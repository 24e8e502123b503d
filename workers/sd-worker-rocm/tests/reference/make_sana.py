#!/usr/bin/env python3
"""Pictures of small models of Sana, computed with diffusers and transformers in f32 on the CPU.

    python3 make_sana.py PLACE OUT
"""
import sys
import torch
from diffusers import AutoencoderDC, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, SanaPAGPipeline, SanaPipeline, SanaTransformer2DModel
from diffusers.models.attention_processor import PAGCFGSanaLinearAttnProcessor2_0, PAGIdentitySanaLinearAttnProcessor2_0
from transformers import Gemma2Config, Gemma2Model
from small import TOKENIZERS, asked, draw, model, models, save, template, tokenizer, tokenizer_json
from make_networks import keep as keep_numbers, make, normal, save as save_numbers, uniform

TOKENIZERS['gemma'] = tokenizer_json(['<pad>', '<eos>', '<bos>'], template=template(('<bos>', 2), ('A', None)))


def transformer(**more):
    config = dict(in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, num_layers=2, num_cross_attention_heads=2, cross_attention_head_dim=16,
                  cross_attention_dim=32, caption_channels=32, sample_size=4)
    return SanaTransformer2DModel(**{**config, **more})


def vae(**more):
    config = dict(latent_channels=8, attention_head_dim=8, encoder_block_types=('ResBlock', 'ResBlock', 'EfficientViTBlock'),
                  decoder_block_types=('ResBlock', 'ResBlock', 'EfficientViTBlock'), encoder_block_out_channels=(8, 16, 32), decoder_block_out_channels=(8, 16, 32),
                  encoder_layers_per_block=(1, 1, 1), decoder_layers_per_block=(1, 1, 2), encoder_qkv_multiscales=((), (), (5,)), decoder_qkv_multiscales=((), (), (5,)),
                  scaling_factor=2.0)
    return {**config, **more}


def pipeline(name, scheduler, **net):
    gemma = Gemma2Model(Gemma2Config(vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                     query_pre_attn_scalar=8, sliding_window=16, pad_token_id=0, eos_token_id=1, bos_token_id=2))
    return model(name, SanaPipeline, transformer=transformer(**net), scheduler=scheduler, text_encoder=gemma, tokenizer=tokenizer('gemma', '<pad>', 2048),
                 vae=AutoencoderDC(**vae()))


def pictures():
    pipe = pipeline('sana_b', FlowMatchEulerDiscreteScheduler(shift=3.0))
    said = dict(prompt=' A Red Door', negative_prompt='Blue', width=64)
    draw('sana', 'sana_b', pipe, asked(**said), negative_prompt='Blue', guidance_scale=4.0, use_resolution_binning=False)
    worse = SanaPAGPipeline(**pipe.components)
    for name, layers in (('apart', ['transformer_blocks.0']), ('apart_second', ['transformer_blocks.1'])):
        worse.set_pag_applied_layers(layers, (PAGCFGSanaLinearAttnProcessor2_0(), PAGIdentitySanaLinearAttnProcessor2_0()))
        draw(f'sana_{name}', 'sana_b', worse, asked(**said), negative_prompt='Blue', guidance_scale=4.0, pag_scale=5.0, use_resolution_binning=False)
    # As published: its solver, and of the later models norms of queries and keys, slower time, places.
    solver = DPMSolverMultistepScheduler(prediction_type='flow_prediction', use_flow_sigmas=True, flow_shift=3.0)
    pipe = pipeline('sana_places', solver, qk_norm='rms_norm_across_heads', interpolation_scale=2, timestep_scale=0.5, attention_bias=True)
    # It is no number for JSON, and has no say here.
    del models['sana_places']['files']['scheduler/scheduler_config.json']['lambda_min_clipped']
    draw('sana_places', 'sana_places', pipe, asked(sampler='DPM++ 2M', **said), negative_prompt='Blue', guidance_scale=4.0, use_resolution_binning=False)


def numbers():
    for name, more in (('dc_vae', {}), ('dc_vae_other', dict(encoder_layers_per_block=(0, 1, 1), decoder_layers_per_block=(0, 1, 1), downsample_block_type='Conv',
                                                             upsample_block_type='interpolate', encoder_out_shortcut=False, decoder_in_shortcut=False,
                                                             decoder_act_fns=('relu', 'relu', 'silu'), decoder_conv_act_fn='silu', scaling_factor=1.0))):
        config = vae(**more)
        net = make(name, AutoencoderDC, config)
        keep_numbers(f'{name}.encoded', net.encode(uniform('picture', (1, 3, 16, 24))).latent * config['scaling_factor'])
        keep_numbers(f'{name}.decoded', net.decode(normal('z8', 1, 8, 4, 6) / config['scaling_factor']).sample)


if __name__ == '__main__':
    pictures()
    save(sys.argv[1], 'sana')
    numbers()
    save_numbers(sys.argv[2], 'sana')
