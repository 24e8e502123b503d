"""Small models for pictures of whole pipelines: their parts, and how they and their pictures are kept.

Weights are a function of their names, as in make_networks.py, so PLACE/GROUP.json has only the models' configuration files, the shapes of all tensors and what was
asked for; PLACE/GROUP.safetensors has the pictures, 8 bits a colour.
"""
import json
import pathlib
import tempfile
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from make_networks import uniform, weight

torch.set_grad_enabled(False)
torch.set_num_threads(1)
models, cases, pictures = {}, {}, {}

# Byte-level tokenizers without merges: a token a byte.
BYTES = [chr(b) for b in [*range(33, 127), *range(161, 173), *range(174, 256)]]
BYTES += [chr(256 + i) for i in range(256 - len(BYTES))]


def tokenizer_json(special, suffix='', template=None, **model):
    words = list(special) + BYTES + ([c + suffix for c in BYTES] if suffix else [])
    clip = bool(suffix)
    normalizer = {'type': 'Sequence', 'normalizers': [
        {'type': 'NFC'}, {'type': 'Replace', 'pattern': {'Regex': r'\s+'}, 'content': ' '}, {'type': 'Lowercase'}]}
    split = {'type': 'Split', 'pattern': {'Regex': r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"}, 'behavior': 'Removed', 'invert': True}
    level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': False}
    return {
        'version': '1.0', 'truncation': None, 'padding': None,
        'added_tokens': [{'id': i, 'content': s, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
                         for i, s in enumerate(special)],
        'normalizer': normalizer if clip else None,
        'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [split, level]} if clip else level,
        'post_processor': template, 'decoder': level,
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': suffix or None,
                  'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False, 'vocab': {w: i for i, w in enumerate(words)}, 'merges': []},
    }


def template(*parts):
    ids = {name: number for name, number in parts if number is not None}
    return {'type': 'TemplateProcessing', 'pair': [],
            'single': [{'Sequence': {'id': 'A', 'type_id': 0}} if number is None else {'SpecialToken': {'id': name, 'type_id': 0}}
                       for name, number in parts],
            'special_tokens': {name: {'id': name, 'ids': [number], 'tokens': [name]} for name, number in ids.items()}}


BOS, EOS = '<|startoftext|>', '<|endoftext|>'
TOKENIZERS = {
    'clip': tokenizer_json([BOS, EOS], '</w>', template((BOS, 0), ('A', None), (EOS, 1))),
    't5': tokenizer_json(['<pad>', '</s>'], template=template(('A', None), ('</s>', 1))),
    'qwen': tokenizer_json(['<|endoftext|>', '<|im_start|>', '<|im_end|>']),
    'mistral': tokenizer_json(['<unk>', '<s>', '</s>', '[INST]', '[/INST]', '[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]', '<pad>'], template=template(('<s>', 1), ('A', None))),
}
CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def tokenizer(kind, pad, length):
    text = json.dumps(TOKENIZERS[kind])
    special = {'bos_token': BOS, 'eos_token': EOS} if kind == 'clip' else {}
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), pad_token=pad, model_max_length=length, padding_side='right', **special)
    if kind == 'qwen':
        made.chat_template = CHAT
    return made


LENGTH = 24


def clip(kind=CLIPTextModel, **more):
    config = dict(vocab_size=514, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=LENGTH,
                  bos_token_id=0, eos_token_id=1, pad_token_id=1)
    return kind(CLIPTextConfig(**{**config, **more}))


def t5(width):
    return T5EncoderModel(T5Config(vocab_size=258, d_model=width, d_kv=8, d_ff=48, num_layers=2, num_heads=2, feed_forward_proj='gated-gelu'))


def vae(**more):
    config = dict(block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, latent_channels=4,
                  down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2)
    return AutoencoderKL(**{**config, **more})


def unet(**more):
    config = dict(sample_size=16, block_out_channels=(32, 64), layers_per_block=1, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'),
                  up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'), attention_head_dim=4, cross_attention_dim=32, norm_num_groups=16)
    return UNet2DConditionModel(**{**config, **more})


def with_weights(folder, prefix):
    """Gives all weights in a model's folder their values, and remembers the folder."""
    files, weights, tokenizers = {}, {}, {}
    for path in sorted(folder.rglob('*')):
        name = str(path.relative_to(folder))
        if path.name == 'tokenizer_config.json':
            said = json.loads(path.read_text())
            files[name] = {'pad_token': said['pad_token']}
        elif path.name == 'tokenizer.json':
            vocabulary = json.loads(path.read_text())['model']['vocab']
            tokenizers[name] = next(k for k, v in TOKENIZERS.items() if v['model']['vocab'] == vocabulary)
        elif path.suffix == '.safetensors':
            part = f'{prefix}.{path.parent.name}' if path.parent != folder else prefix
            old = load_file(path)
            save_file({n: weight(part, n, tuple(t.shape)) for n, t in old.items()}, path, {'format': 'pt'})
            weights[name] = {'prefix': part, 'shapes': {n: list(t.shape) for n, t in old.items()}}
        elif path.suffix == '.json' and path.name not in ('special_tokens_map.json', 'generation_config.json'):
            files[name] = json.loads(path.read_text())
    return {'files': files, 'tokenizers': tokenizers, 'weights': weights}


def model(name, kind, **parts):
    with tempfile.TemporaryDirectory() as place:
        kind(**parts).save_pretrained(place)
        models[name] = with_weights(pathlib.Path(place), name)
        pipe = kind.from_pretrained(place, **{part: None for part, made in parts.items() if made is None})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def keep(name, model, image, **request):
    pixels = np.asarray(image)
    edge = ((pixels == 0) | (pixels == 255)).mean()
    print(f'{name}: {pixels.shape}, mean {pixels.mean():.0f}, deviation {pixels.std():.0f}, at the ends {edge:.2f}')
    assert edge < 0.2 and pixels.std() > 20
    pictures[name] = torch.from_numpy(pixels.copy())
    cases[name] = {'model': model, 'request': request}


def seeded(seed):
    return torch.Generator('cpu').manual_seed(seed)


def draw(name, model, pipe, request, **more):
    image = pipe(request['prompt'], height=request['height'], width=request['width'], num_inference_steps=request['steps'],
                 generator=seeded(request['seed']), **more).images[0]
    keep(name, model, image, **request)


def asked(**more):
    return {**dict(prompt='a red door', negative_prompt='', width=48, height=32, steps=3, seed=7, guidance=4.0, sampler='Euler'), **more}


def ddim():
    return DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', clip_sample=False, set_alpha_to_one=False, steps_offset=1)


def picture(name):
    """Smooth colours, a function of the name."""
    small = ((uniform(name, (4, 6, 3)).numpy() + 1) * 127.5).astype(np.uint8)
    return Image.fromarray(small).resize((48, 32), Image.BILINEAR)


def save(place, group):
    """Writes what was kept."""
    place = pathlib.Path(place)
    save_file(pictures, place / f'{group}.safetensors')
    json.dump({'tokenizers': TOKENIZERS, 'models': models, 'cases': cases}, open(place / f'{group}.json', 'w'), separators=(',', ':'), ensure_ascii=False)
