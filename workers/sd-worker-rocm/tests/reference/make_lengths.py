#!/usr/bin/env python3
"""Pictures of small models whose pipelines change lengths of guided predictions, computed with diffusers and transformers in f32 on the CPU.

    python3 make_lengths.py PLACE
"""
import sys
from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel, ZImagePipeline, ZImageTransformer2DModel
from transformers import Gemma2Config, Gemma2Model, Qwen3Config, Qwen3ForCausalLM
from small import TOKENIZERS, asked, keep, model, save, seeded, template, tokenizer, tokenizer_json, vae

TOKENIZERS['gemma'] = tokenizer_json(['<pad>', '<eos>', '<bos>'], template=template(('<bos>', 2), ('A', None)))
CODEC = dict(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)


def z_image():
    net = ZImageTransformer2DModel(in_channels=4, dim=64, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=24, axes_dims=[8, 12, 12],
                                   axes_lens=[128, 32, 32])
    qwen = Qwen3ForCausalLM(Qwen3Config(vocab_size=259, hidden_size=24, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                        tie_word_embeddings=True))
    pipe = model('z_image', ZImagePipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), text_encoder=qwen,
                 tokenizer=tokenizer('qwen', '<|endoftext|>', 512), vae=vae(**CODEC))
    image = pipe('a red door', negative_prompt='blue', height=32, width=48, num_inference_steps=3, generator=seeded(7), guidance_scale=9.0, cfg_normalization=0.8).images[0]
    far = pipe('a red door', negative_prompt='blue', height=32, width=48, num_inference_steps=3, generator=seeded(7), guidance_scale=3.0).images[0]
    keep('z_image_far', 'z_image', far, **asked(guidance=3.0, negative_prompt='blue'))
    keep('z_image_normed', 'z_image', image, **asked(guidance=9.0, negative_prompt='blue'))


def lumina():
    net = Lumina2Transformer2DModel(in_channels=4, hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=20,
                                    axes_dim_rope=(4, 4, 4), axes_lens=(300, 32, 32), cap_feat_dim=32)
    gemma = Gemma2Model(Gemma2Config(vocab_size=259, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                     query_pre_attn_scalar=8, sliding_window=16, pad_token_id=0, eos_token_id=1, bos_token_id=2))
    pipe = model('lumina2', Lumina2Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0), text_encoder=gemma,
                 tokenizer=tokenizer('gemma', '<pad>', 256), vae=vae(**CODEC))
    # The pipeline knows autoencoders of 8 pixels a latent only; this one has 2.
    for name, more in (('lumina2_free', dict(cfg_normalization=False)), ('lumina2_part', dict(cfg_trunc_ratio=0.4))):
        image = pipe('a red door', negative_prompt='blue', height=128, width=192, num_inference_steps=3, generator=seeded(7), guidance_scale=4.0, **more).images[0]
        keep(name, 'lumina2', image, **asked(negative_prompt='blue'))


if __name__ == '__main__':
    z_image()
    lumina()
    save(sys.argv[1], 'lengths')
