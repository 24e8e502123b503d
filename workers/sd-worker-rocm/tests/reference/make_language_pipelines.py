#!/usr/bin/env python3
"""Pictures of small models whose prompts go through language models: Qwen-Image, its editing forms, Lumina 2, HiDream; as make_pipelines.py.

    python3 make_language_pipelines.py PLACE
"""
import sys
import numpy as np
import torch
from diffusers import (AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline, HiDreamImageTransformer2DModel, Lumina2Pipeline, Lumina2Transformer2DModel, QwenImageEditPipeline,
                       QwenImageEditPlusPipeline, QwenImagePipeline, QwenImageTransformer2DModel)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from transformers import (BatchFeature, CLIPTextModelWithProjection, Gemma2Config, Gemma2Model, LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from small import EOS, TOKENIZERS, asked, clip, draw, keep, model, picture, pictures, save, seeded, t5, template, tokenizer, tokenizer_json, vae

SEEN = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|vision_start|>', '<|vision_end|>', '<|image_pad|>', '<|video_pad|>']
TOKENIZERS['qwen_vl'] = tokenizer_json(SEEN)
TOKENIZERS['llama'] = tokenizer_json(['<|begin_of_text|>', '<|eot_id|>'], template=template(('<|begin_of_text|>', 0), ('A', None)))
TOKENIZERS['gemma'] = tokenizer_json(['<pad>', '<eos>', '<bos>'], template=template(('<bos>', 2), ('A', None)))


def scheduler():
    """As published, but for shorter pictures."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=4, max_image_seq_len=64, shift_terminal=0.02)


def qwen(name, kind, **more):
    net = QwenImageTransformer2DModel(patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
                                      axes_dims_rope=(4, 6, 6), **more)
    text = dict(vocab_size=263, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                rope_parameters=dict(rope_type='default', rope_theta=1e4, mrope_section=[2, 1, 1]), bos_token_id=0, eos_token_id=0)
    vision = dict(depth=2, hidden_size=32, intermediate_size=40, num_heads=2, patch_size=14, spatial_merge_size=2, temporal_patch_size=2, window_size=112,
                  fullatt_block_indexes=[1], out_hidden_size=32)
    encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=5, video_token_id=6, vision_start_token_id=3,
                                                                  vision_end_token_id=4))
    codec = AutoencoderKLQwenImage(base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False], latents_mean=[0.1, -0.2, 0.3, 0.0],
                                   latents_std=[0.9, 1.1, 1.3, 0.7])
    parts = dict(transformer=net, scheduler=scheduler(), text_encoder=encoder, tokenizer=tokenizer('qwen_vl', '<|endoftext|>', 2048), vae=codec)
    if kind is QwenImagePipeline:
        return model(name, kind, **parts)
    pipe = model(name, kind, **parts, processor=None)
    pipe.processor = Processor(pipe.tokenizer)
    # Since transformers 5 only its own processors' token types lead to positions in pictures, and the pipeline does not pass them on: the model was not trained so.
    inner = pipe.text_encoder.model
    places = inner.compute_3d_position_ids
    inner.compute_3d_position_ids = lambda **given: places(**{**given, 'mm_token_type_ids': (given['input_ids'] == 5).int()})
    return pipe


class Processor:
    """transformers' own needs a package for videos."""

    def __init__(self, tokenizer):
        self.tokenizer, self.cut = tokenizer, Qwen2VLImageProcessorPil()

    def __call__(self, text, images, padding, return_tensors):
        made = self.cut(images=images, return_tensors=return_tensors)
        text = list(text)
        for grid in made.image_grid_thw:
            text[0] = text[0].replace('<|image_pad|>', '<|seen|>' * int(grid.prod() // 4), 1)
        return BatchFeature({**self.tokenizer([text[0].replace('<|seen|>', '<|image_pad|>')], padding=padding, return_tensors=return_tensors), **made})


def text_to_picture():
    pipe = qwen('qwen_image', QwenImagePipeline)
    request = asked(negative_prompt='blue and longer')
    draw('qwen_image', 'qwen_image', pipe, request, negative_prompt='blue and longer', true_cfg_scale=4.0)
    # Without guidance the negative prompt has no say.
    draw('qwen_image_plain', 'qwen_image', pipe, asked(guidance=1.0), true_cfg_scale=1.0)


def editing():
    """Pictures to look at in their own size, as the latents' size here is that of requests; the later models' text encoder still sees them at its own."""
    start, other = picture('start'), picture('other').resize((32, 64))
    pictures['start'], pictures['other'] = (torch.from_numpy(np.asarray(x).copy()) for x in (start, other))
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus):
        usual = module.calculate_dimensions
        for image in (start, other):
            assert usual(1024 * 1024, image.width / image.height) is not None
        module.calculate_dimensions = lambda area, ratio, usual=usual: (
            usual(area, ratio) if area != 1024 * 1024 else {1.5: (48, 32, None), 0.5: (32, 64, None)}[ratio][:len(usual(area, ratio))])
    for name, kind, images, more in (('qwen_image_edit', QwenImageEditPipeline, start, {}), ('qwen_image_edit_plus', QwenImageEditPlusPipeline, [start, other], {}),
                                     ('qwen_image_edit_still', QwenImageEditPlusPipeline, [start], dict(zero_cond_t=True))):
        pipe = qwen(name, kind, **more)
        # Much guidance: of what these small models read, pictures are the most.
        request = asked(negative_prompt='blue', guidance=12.0)
        image = pipe(image=images, prompt=request['prompt'], height=32, width=48, num_inference_steps=3, generator=seeded(7), negative_prompt='blue',
                     true_cfg_scale=12.0).images[0]
        keep(name, name, image, **request)


def lumina():
    net = Lumina2Transformer2DModel(in_channels=4, hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=20,
                                    ffn_dim_multiplier=0.7, axes_dim_rope=(4, 4, 4), axes_lens=(300, 32, 32), cap_feat_dim=24)
    gemma = Gemma2Model(Gemma2Config(vocab_size=259, hidden_size=24, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                     query_pre_attn_scalar=8, sliding_window=32, attn_logit_softcapping=5.0))
    pipe = model('lumina2', Lumina2Pipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0), text_encoder=gemma,
                 tokenizer=tokenizer('gemma', '<pad>', 256), vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False))
    request = asked(negative_prompt='blue')
    # The pipeline knows autoencoders of 8 pixels a latent only; this one has 2.
    image = pipe(request['prompt'], height=4 * request['height'], width=4 * request['width'], num_inference_steps=3, generator=seeded(7), negative_prompt='blue',
                 guidance_scale=4.0).images[0]
    keep('lumina2', 'lumina2', image, **request)


def hidream():
    net = HiDreamImageTransformer2DModel(patch_size=2, in_channels=4, num_layers=2, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, caption_channels=[24, 32],
                                         text_emb_dim=36, num_routed_experts=2, num_activated_experts=1, axes_dims_rope=(8, 4, 4), max_resolution=(24, 24),
                                         llama_layers=[0, 1, 1])
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                         bos_token_id=0, eos_token_id=1))
    words = tokenizer('llama', '<|eot_id|>', 512)
    words.eos_token = '<|eot_id|>'
    pipe = model('hidream', HiDreamImagePipeline, transformer=net, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
                 vae=vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
                 text_encoder=clip(CLIPTextModelWithProjection, projection_dim=16, hidden_act='quick_gelu', max_position_embeddings=128),
                 tokenizer=tokenizer('clip', EOS, 128),
                 text_encoder_2=clip(CLIPTextModelWithProjection, projection_dim=20, hidden_act='gelu', num_hidden_layers=3, max_position_embeddings=128),
                 tokenizer_2=tokenizer('clip', '!', 128), text_encoder_3=t5(24), tokenizer_3=tokenizer('t5', '<pad>', 512), text_encoder_4=llama, tokenizer_4=words)
    # It would bring pictures to about this many latents.
    pipe.default_sample_size = (16 * 24) ** 0.5 + 1e-6
    draw('hidream', 'hidream', pipe, asked(negative_prompt='blue'), negative_prompt='blue', guidance_scale=4.0)


if __name__ == '__main__':
    text_to_picture()
    editing()
    lumina()
    hidream()
    save(sys.argv[1], 'language_pipelines')
