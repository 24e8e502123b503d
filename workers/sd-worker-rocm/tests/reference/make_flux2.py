#!/usr/bin/env python3
"""Pictures of small models of FLUX.2, computed with diffusers and transformers in f32 on the CPU.

    python3 make_flux2.py PLACE
"""
import sys
import numpy as np
import torch
from PIL import Image
from transformers import (Mistral3Config, Mistral3ForConditionalGeneration, MistralConfig, PixtralVisionConfig, PreTrainedTokenizerFast, Qwen3Config,
                          Qwen3ForCausalLM)
from tokenizers import Tokenizer
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Pipeline, Flux2Transformer2DModel
from small import TOKENIZERS, asked, cases, keep, model, picture, pictures, save, seeded, tokenizer
import json

# The first quarter, half and three quarters of the layers.
LAYERS = (1, 2, 3)
# As these models' own templates have it, for messages of texts alone.
MISTRAL_CHAT = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content[0].text }}[/SYSTEM_PROMPT]"
                "{% else %}[INST]{{ m.content[0].text }}[/INST]{% endif %}{% endfor %}")
QWEN_CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
             "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}")


def vae(**more):
    return AutoencoderKLFlux2(**{**dict(block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, latent_channels=4,
                                        down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2), **more})


def transformer(guided, text):
    return Flux2Transformer2DModel(in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=3 * text,
                                   axes_dims_rope=(4, 4, 4, 4), guidance_embeds=guided)


def scheduler(**more):
    return FlowMatchEulerDiscreteScheduler(**{**dict(use_dynamic_shifting=True, shift=3.0), **more})


def kept(name):
    image = picture(name)
    pictures[name] = torch.from_numpy(np.asarray(image).copy())
    return image


def draw(name, of, pipe, request, **more):
    image = pipe(prompt=request['prompt'], height=request['height'], width=request['width'], num_inference_steps=request['steps'],
                 generator=seeded(request['seed']), text_encoder_out_layers=LAYERS, **more).images[0]
    keep(name, of, image, **request)


def larger():
    """Of a size that is no multiple of patches, large enough for diffusers to look at."""
    image = kept('reference').resize((74, 66), Image.BILINEAR)
    pictures['reference'] = torch.from_numpy(np.asarray(image).copy())
    return image


def dev():
    text = dict(vocab_size=264, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14, head_dim=8)
    mistral = Mistral3ForConditionalGeneration(Mistral3Config(text_config=MistralConfig(**text), vision_config=PixtralVisionConfig(**vision), image_token_index=7))
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(TOKENIZERS['mistral'])), bos_token='<s>', eos_token='</s>', pad_token='<pad>',
                                    model_max_length=512, padding_side='left')
    words.chat_template = MISTRAL_CHAT
    pipe = model('dev', Flux2Pipeline, transformer=transformer(True, 16), scheduler=scheduler(), vae=vae(decoder_block_out_channels=(8, 16)), text_encoder=mistral,
                 tokenizer=words)
    pipe.tokenizer = words
    # Long enough to matter beside the system's message and padding.
    request = asked(guidance=4.0, prompt=20 * 'a red door, ')
    draw('dev', 'dev', pipe, request, guidance_scale=4.0)
    first, second = larger(), kept('second').resize((64, 64), Image.BILINEAR)
    pictures['second'] = torch.from_numpy(np.asarray(second).copy())
    draw('dev_references', 'dev', pipe, request, guidance_scale=4.0, image=[first, second])


def klein():
    qwen = Qwen3ForCausalLM(Qwen3Config(vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                                        head_dim=8, tie_word_embeddings=True))
    for name, distilled in (('klein', True), ('klein_base', False)):
        words = tokenizer('qwen', '<|endoftext|>', 512)
        words.chat_template = QWEN_CHAT
        pipe = model(name, Flux2KleinPipeline, transformer=transformer(False, 16), scheduler=scheduler(), vae=vae(), text_encoder=qwen, tokenizer=words,
                     is_distilled=distilled)
        guidance = 1.0 if distilled else 4.0
        draw(name, name, pipe, asked(guidance=guidance), guidance_scale=guidance)
        if distilled:
            draw('klein_reference', name, pipe, asked(guidance=1.0), guidance_scale=1.0, image=larger())
            for option, scheme in (('linear', dict(time_shift_type='linear')), ('terminal', dict(shift_terminal=0.1))):
                pipe.scheduler = scheduler(**scheme)
                draw(f'klein_{option}', name, pipe, asked(guidance=1.0, steps=4), guidance_scale=1.0)
                cases[f'klein_{option}']['scheduler'] = {'_class_name': type(pipe.scheduler).__name__,
                                                         **{k: v for k, v in pipe.scheduler.config.items() if not k.startswith('_')}}


if __name__ == '__main__':
    dev()
    klein()
    save(sys.argv[1], 'flux2')
