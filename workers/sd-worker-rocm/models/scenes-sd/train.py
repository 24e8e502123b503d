#!/usr/bin/env python3
"""Train scenes-sd: a text-to-image model with the layout of Stable Diffusion 1.5 for scenes of up to four objects, 256 x 256.

The data is procedural (scenes.py): nothing is read but this folder.

  stage 1   AutoencoderKL (factor 8, 4 latent channels): L1, L1 of pixel differences, KL; with --init its decoder only, so that latents stay what they are
  stage 2   CLIP-style text encoder and UNet2DConditionModel together: v-prediction, min-SNR-5, a tenth of the captions empty

    torchrun --nproc-per-node GPUS train.py --out model
    python3 train.py --out /tmp/try --vae-seconds 20 --unet-seconds 20 --pool 64 --batch 4 --vae-batch 2     # tries the code on a CPU

Needs torch, diffusers, tokenizers, safetensors, numpy, pillow.
"""
import argparse, copy, json, math, multiprocessing, os, random, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from diffusers import AutoencoderKL, UNet2DConditionModel
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from scenes import Renderer, caption, pack, scene, words_of_captions

TEXT = dict(vocab_size=0, hidden_size=192, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=77,
            hidden_act='quick_gelu', layer_norm_eps=1e-5, projection_dim=192, bos_token_id=0, eos_token_id=0, pad_token_id=0)
UNET = dict(sample_size=32, in_channels=4, out_channels=4, block_out_channels=(96, 160, 192, 224), layers_per_block=1,
            down_block_types=('CrossAttnDownBlock2D',) * 3 + ('DownBlock2D',), up_block_types=('UpBlock2D',) + ('CrossAttnUpBlock2D',) * 3,
            cross_attention_dim=192, attention_head_dim=4, norm_num_groups=32)
VAE = dict(in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(32, 64, 96, 128), layers_per_block=1, norm_num_groups=8,
           down_block_types=('DownEncoderBlock2D',) * 4, up_block_types=('UpDecoderBlock2D',) * 4, sample_size=256)
BETAS = dict(beta_start=0.00085, beta_end=0.012, beta_schedule='scaled_linear', num_train_timesteps=1000)
RANK, WORLD = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
JUNK = ('dog', 'woman', 'man', 'forest', 'king', 'queen', 'dragon', 'river', 'plane', 'bird', 'horse', 'castle', 'guitar', 'robot', 'table', 'chair', 'running', 'flying', 'sleeping', 'happy', 'sad',
        'old', 'young', 'wooden', 'golden', 'magical', 'dark', 'bright', 'portrait', 'style', 'by', 'artist', 'trending', 'cinematic', 'lighting', 'epic', 'fantasy', 'realistic', 'very', 'some', 'many')


# -------------------------------------------------------------------------------------------------- tokenizer
def make_tokenizer(out):
    """CLIP's byte-pair scheme with a vocabulary of its own: each word of the captions is one token, all else is cut into pieces."""
    keep = [b for b in (*range(33, 127), *range(161, 173), *range(174, 256))]
    extra = {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in keep)}
    chars = [chr(b) if b in keep else extra[b] for b in range(256)]
    vocab, merges = chars + [c + '</w>' for c in chars], []
    have = set(vocab)
    for word in words_of_captions():
        parts = [*word[:-1], word[-1] + '</w>']
        left = parts[0]
        for part in parts[1:]:
            if left + part not in have:
                merges.append(f'{left} {part}')
                have.add(left + part)
                vocab.append(left + part)
            left += part
    vocab += ['<|startoftext|>', '<|endoftext|>']
    ids = {t: i for i, t in enumerate(vocab)}
    bos, eos = ids['<|startoftext|>'], ids['<|endoftext|>']
    TEXT.update(vocab_size=len(vocab), bos_token_id=bos, eos_token_id=eos, pad_token_id=eos)
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=t.startswith('<|start'), special=True) for t, i in (('<|startoftext|>', bos), ('<|endoftext|>', eos))]
    level = dict(type='ByteLevel', add_prefix_space=False, trim_offsets=True, use_regex=False)
    split = dict(type='Split', pattern={'Regex': r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"}, behavior='Removed', invert=True)
    made = dict(version='1.0', truncation=None, padding=None, added_tokens=added,
                normalizer=dict(type='Sequence', normalizers=[dict(type='NFC'), dict(type='Replace', pattern={'Regex': r'\s+'}, content=' '), dict(type='Lowercase')]),
                pre_tokenizer=dict(type='Sequence', pretokenizers=[split, level]),
                post_processor=dict(type='RobertaProcessing', sep=['<|endoftext|>', eos], cls=['<|startoftext|>', bos], trim_offsets=False, add_prefix_space=False), decoder=level,
                model=dict(type='BPE', dropout=None, unk_token='<|endoftext|>', continuing_subword_prefix='', end_of_word_suffix='</w>', fuse_unk=False, byte_fallback=False, ignore_merges=False,
                           vocab=ids, merges=merges))
    if out and RANK == 0:
        os.makedirs(f'{out}/tokenizer', exist_ok=True)
        json.dump(made, open(f'{out}/tokenizer/tokenizer.json', 'w'), ensure_ascii=False)
        json.dump(dict(tokenizer_class='CLIPTokenizer', model_max_length=77, bos_token='<|startoftext|>', eos_token='<|endoftext|>', pad_token='<|endoftext|>', unk_token='<|endoftext|>'),
                  open(f'{out}/tokenizer/tokenizer_config.json', 'w'))
    tok = Tokenizer.from_str(json.dumps(made))
    tok.enable_padding(length=77, pad_id=eos, pad_token='<|endoftext|>')
    tok.enable_truncation(77)
    return tok


def disturbed(text, rng):
    """With words in it that say nothing of the picture, sometimes."""
    if rng.random() < .1:
        words = text.split()
        word = rng.choice(JUNK) if rng.random() < .6 else ''.join(rng.choice('abcdefghijklmnopqrstuvwxyz') for _ in range(rng.randint(2, 9)))
        words.insert(rng.randrange(len(words) + 1), word)
        return ' '.join(words)
    return text


VARIANTS = 4


def some_scenes(job):
    seed, n, tokenizer = job
    rng = random.Random(seed)
    made = [scene(rng) for _ in range(n)]
    tok = Tokenizer.from_str(tokenizer)
    texts = [disturbed(caption(s, rng), rng) for s in made for _ in range(VARIANTS)]
    ids = np.array([e.ids for e in tok.encode_batch(texts)], np.int16).reshape(n, VARIANTS, 77)
    return {k: v.numpy() for k, v in pack(made).items()}, ids


def all_scenes(n, tok, seed):
    """Packed scenes and their captions' ids, made by all processors."""
    each = max(1, min(2000, n // 4))
    jobs = [(seed * 1000003 + i, each, tok.to_str()) for i in range(-(-n // each))]
    workers = max(1, (os.cpu_count() or 2) // WORLD - 1)
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    with multiprocessing.get_context('spawn').Pool(workers) as pool:
        parts = pool.map(some_scenes, jobs, chunksize=1)
    scenes = {k: torch.from_numpy(np.concatenate([p[0][k] for p in parts])) for k in parts[0][0]}
    return scenes, torch.from_numpy(np.concatenate([p[1] for p in parts]))


def rows(packed, index):
    return {k: v[index] for k, v in packed.items()}


# ----------------------------------------------------------------------------------------------- text encoder
class ClipLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c['hidden_size']
        self.heads = c['num_attention_heads']
        self.self_attn = nn.ModuleDict({k: nn.Linear(d, d) for k in ('k_proj', 'v_proj', 'q_proj', 'out_proj')})
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(d, c['layer_norm_eps']), nn.LayerNorm(d, c['layer_norm_eps'])
        self.mlp = nn.ModuleDict({'fc1': nn.Linear(d, c['intermediate_size']), 'fc2': nn.Linear(c['intermediate_size'], d)})

    def forward(self, x):
        b, n, d = x.shape
        h = self.layer_norm1(x)
        q, k, v = (self.self_attn[p](h).view(b, n, self.heads, -1).transpose(1, 2) for p in ('q_proj', 'k_proj', 'v_proj'))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_attn['out_proj'](a.transpose(1, 2).reshape(b, n, d))
        h = self.mlp['fc1'](self.layer_norm2(x))
        return x + self.mlp['fc2'](h * torch.sigmoid(1.702 * h))


class ClipText(nn.Module):
    """The text model of CLIP; keys as in transformers' CLIPTextModel."""
    def __init__(self, c):
        super().__init__()
        m = self.text_model = nn.Module()
        m.embeddings = nn.ModuleDict({'token_embedding': nn.Embedding(c['vocab_size'], c['hidden_size']), 'position_embedding': nn.Embedding(c['max_position_embeddings'], c['hidden_size'])})
        m.encoder = nn.ModuleDict({'layers': nn.ModuleList(ClipLayer(c) for _ in range(c['num_hidden_layers']))})
        m.final_layer_norm = nn.LayerNorm(c['hidden_size'], c['layer_norm_eps'])
        for e in m.embeddings.values():
            nn.init.normal_(e.weight, std=.05)

    def forward(self, ids):
        m = self.text_model
        x = m.embeddings['token_embedding'](ids) + m.embeddings['position_embedding'].weight[:ids.shape[1]]
        for layer in m.encoder['layers']:
            x = layer(x)
        return m.final_layer_norm(x)


# --------------------------------------------------------------------------------------------------- schedule
def alphas_cumprod(device='cpu'):
    b = torch.linspace(BETAS['beta_start'] ** .5, BETAS['beta_end'] ** .5, 1000, dtype=torch.float64) ** 2
    return torch.cumprod(1 - b, 0).float().to(device)


@torch.no_grad()
def sample(unet, cond, uncond, latents, steps=20, guidance=4.0):
    """DDIM, eta 0, leading spacing with offset 1, of a network that predicts v."""
    ac, ratio = alphas_cumprod(latents.device), 1000 // steps
    ctx, x = torch.cat([uncond, cond]), latents.float()
    for t in range((steps - 1) * ratio + 1, 0, -ratio):
        v = unet(torch.cat([x, x]), torch.full((2 * len(x),), t, device=x.device), ctx).float()
        u, c = v.chunk(2)
        v = u + guidance * (c - u)
        a, p = ac[t], ac[max(t - ratio, 0)]
        clean, noise = a.sqrt() * x - (1 - a).sqrt() * v, a.sqrt() * v + (1 - a).sqrt() * x
        x = p.sqrt() * clean + (1 - p).sqrt() * noise
    return x


# --------------------------------------------------------------------------------------------------- training
def fit(name, modules, loss_fn, seconds, lr, ema_decay, cuda, saves=(), on_save=None):
    """AdamW with warm-up and cosine decay over `seconds`; gradients are averaged over all ranks. Leaves the averaged weights in `modules`."""
    params = [p for m in modules for p in m.parameters() if p.requires_grad]
    average = [p.detach().clone() for p in params]
    opt = torch.optim.AdamW(params, lr=lr, betas=(.9, .99), weight_decay=.01, fused=cuda)
    flat = torch.zeros(sum(p.numel() for p in params), device=params[0].device)
    start, step, log, progress, saves = None, 0, [], 0.0, list(saves)
    clock = torch.zeros(1, device=params[0].device)

    def swap():
        for p, a in zip(params, average):
            t = p.detach().clone()
            p.data.copy_(a)
            a.copy_(t)
    while progress < 1:
        opt.zero_grad(set_to_none=True)
        with torch.autocast('cuda', torch.bfloat16, enabled=cuda):
            loss, info = loss_fn()
        loss.backward()
        if WORLD > 1:
            torch.cat([p.grad.flatten() for p in params], out=flat)
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            at = 0
            for p in params:
                p.grad.copy_(flat[at:at + p.numel()].view_as(p))
                at += p.numel()
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        opt.step()
        step += 1
        with torch.no_grad():
            d = min(ema_decay, (1 + step) / (20 + step))
            torch._foreach_lerp_(average, [p.detach() for p in params], 1 - d)
        if start is None and step == 3:
            # Compiling does not count.
            if cuda:
                torch.cuda.synchronize()
            start = time.time()
            print(f'[{RANK}] {name}: first steps done', flush=True)
        if start is not None and step % 10 == 0:
            clock.fill_((time.time() - start) / seconds)
            if WORLD > 1:
                dist.broadcast(clock, 0)
            progress = float(clock)
        elif start is None and step > 3:
            start = time.time()
        warm = min(1.0, step / 300)
        for g in opt.param_groups:
            g['lr'] = lr * warm * (.01 + .99 * .5 * (1 + math.cos(math.pi * min(progress, 1))))
        if step % 200 == 0 or progress >= 1:
            vals = {k: round(float(v), 5) for k, v in dict(loss=loss.detach(), **info).items()}
            log.append([step, vals])
            if RANK == 0:
                print(f'{name} step {step} progress {progress:.3f} {vals} {step / max(1e-9, time.time() - start):.2f} step/s', flush=True)
        if saves and progress >= saves[0]:
            saves.pop(0)
            if RANK == 0:
                swap(); on_save(); swap()
    swap()
    return dict(steps=step, seconds=round(time.time() - start, 1), lr=lr, ema=ema_decay, log=log[::5])


def compiled(f, args, *example):
    """The function, compiled if that works here."""
    if not (args.compile and torch.cuda.is_available()):
        return f
    try:
        made = torch.compile(f)
        with torch.autocast('cuda', torch.bfloat16):
            y = made(*example)
            (y[0] if isinstance(y, tuple) else y).float().mean().backward()
        torch.cuda.synchronize()
        return made
    except Exception as e:
        print(f'[{RANK}] not compiled: {type(e).__name__}: {str(e)[:300]}', flush=True)
        return f


def train_vae(vae, render, scenes, args, cuda):
    n = len(scenes['place'])
    encoder = (vae.encoder, vae.quant_conv)
    for m in encoder:
        m.requires_grad_(not args.init)

    def run(x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not args.init):
            mean, logvar = vae.quant_conv(vae.encoder(x)).float().chunk(2, 1)
        logvar = logvar.clamp(-30, 20)
        z = mean + (.5 * logvar).exp() * torch.randn_like(mean)
        return vae.decoder(vae.post_quant_conv(z)).float(), mean, logvar
    if not args.init:
        run = compiled(run, args, torch.zeros(args.vae_batch, 3, 256, 256, device=next(vae.parameters()).device).contiguous(memory_format=torch.channels_last))

    def loss_fn():
        with torch.no_grad():
            x = render(rows(scenes, torch.randint(n, (args.vae_batch,)))).contiguous(memory_format=torch.channels_last)
        y, mean, logvar = run(x)
        kl = .5 * (mean ** 2 + logvar.exp() - 1 - logvar).mean()
        rec = (y - x).abs().mean()
        edge = ((y[..., 1:] - y[..., :-1]) - (x[..., 1:] - x[..., :-1])).abs().mean() + ((y[..., 1:, :] - y[..., :-1, :]) - (x[..., 1:, :] - x[..., :-1, :])).abs().mean()
        return rec + .5 * edge + args.kl * kl, {'l1': rec.detach(), 'edge': edge.detach(), 'kl': kl.detach()}
    return fit('vae', [vae], loss_fn, args.vae_seconds, args.vae_lr, .998, cuda)


@torch.no_grad()
def build_pool(vae, render, scenes, cuda, b=256):
    means, stds = [], []
    n = len(scenes['place'])
    for i in range(0, n, b):
        x = render(rows(scenes, slice(i, i + b))).contiguous(memory_format=torch.channels_last)
        with torch.autocast('cuda', torch.bfloat16, enabled=cuda):
            mean, logvar = vae.quant_conv(vae.encoder(x)).float().chunk(2, 1)
        means.append(mean.half())
        stds.append((.5 * logvar.clamp(-30, 20)).exp().half())
    return torch.cat(means), torch.cat(stds)


def train_diffusion(net, text, pool, ids, empty, scale, args, cuda, modules, saves, on_save):
    means, stds = pool
    dev = means.device
    ac = alphas_cumprod(dev)
    snr = ac / (1 - ac)
    weight = snr.clamp(max=5) / (snr + 1)

    def loss_fn():
        b = args.batch
        i = torch.randint(len(means), (b,), device=dev)
        tokens = ids[i, torch.randint(VARIANTS, (b,), device=dev)].long()
        tokens = torch.where((torch.rand(b, device=dev) < .1)[:, None], empty, tokens)
        x = means[i].float()
        x = (x + stds[i].float() * torch.randn_like(x)) * scale
        t, e = torch.randint(1000, (b,), device=dev), torch.randn_like(x)
        a = ac[t][:, None, None, None]
        y = net((a.sqrt() * x + (1 - a).sqrt() * e).contiguous(memory_format=torch.channels_last), t, text(tokens))
        se = (y.float() - (a.sqrt() * e - (1 - a).sqrt() * x)).square().mean((1, 2, 3))
        return (se * weight[t]).mean() / .3, {'mse': se.mean().detach()}
    return fit('unet', modules, loss_fn, args.unet_seconds, args.lr, args.ema, cuda, saves, on_save)


# ----------------------------------------------------------------------------------------------------- output
def save_part(out, part, module, config, file):
    os.makedirs(f'{out}/{part}', exist_ok=True)
    save_file({k: v.detach().half().cpu().contiguous() for k, v in module.state_dict().items()}, f'{out}/{part}/{file}', metadata={'format': 'pt'})
    json.dump(config, open(f'{out}/{part}/config.json', 'w'), indent=2)


def save_all(out, text, unet, vae, scale):
    lists = lambda d: {k: list(v) if isinstance(v, tuple) else v for k, v in d.items()}
    save_part(out, 'text_encoder', text, {'architectures': ['CLIPTextModel'], 'model_type': 'clip_text_model', **TEXT, 'torch_dtype': 'float16'}, 'model.safetensors')
    save_part(out, 'unet', unet, {'_class_name': 'UNet2DConditionModel', **lists(UNET), 'act_fn': 'silu', 'center_input_sample': False, 'downsample_padding': 1, 'flip_sin_to_cos': True,
                                  'freq_shift': 0, 'mid_block_scale_factor': 1, 'norm_eps': 1e-5}, 'diffusion_pytorch_model.safetensors')
    save_part(out, 'vae', vae, {'_class_name': 'AutoencoderKL', **lists(VAE), 'act_fn': 'silu', 'scaling_factor': scale}, 'diffusion_pytorch_model.safetensors')
    os.makedirs(f'{out}/scheduler', exist_ok=True)
    json.dump({'_class_name': 'DDIMScheduler', **BETAS, 'clip_sample': False, 'set_alpha_to_one': False, 'steps_offset': 1, 'prediction_type': 'v_prediction', 'timestep_spacing': 'leading',
               'thresholding': False}, open(f'{out}/scheduler/scheduler_config.json', 'w'), indent=2)
    json.dump({'_class_name': 'StableDiffusionPipeline', 'feature_extractor': [None, None], 'image_encoder': [None, None], 'requires_safety_checker': False, 'safety_checker': [None, None],
               'scheduler': ['diffusers', 'DDIMScheduler'], 'text_encoder': ['transformers', 'CLIPTextModel'], 'tokenizer': ['transformers', 'CLIPTokenizerFast'],
               'unet': ['diffusers', 'UNet2DConditionModel'], 'vae': ['diffusers', 'AutoencoderKL']}, open(f'{out}/model_index.json', 'w'), indent=2)


def to_u8(x):
    return ((x.float() / 2 + .5).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def grid(images, cols, path):
    made = [np.concatenate(list(images[i:i + cols]), 1) for i in range(0, len(images) // cols * cols, cols)]
    Image.fromarray(np.concatenate(made, 0)).save(path, quality=90)


LOOK = ['a red house and a large green tree in a meadow', 'a blue car in the city at night', 'two yellow flowers in the snow', 'a white boat by the sea at sunset', 'a black cat to the left of a pink mushroom in a meadow',
        'an orange cat in a room', 'a purple rocket in space', 'three red apples on a white background', 'a green striped balloon above a blue cup on a yellow background', 'a pencil drawing of a house',
        'a snowman in the snow at night', 'a watercolor of a red umbrella by the sea', 'a yellow fish to the right of a blue fish on a white background', 'a turquoise car, pixel art', 'a pink butterfly, neon',
        'a blueprint of a rocket', 'a red circle below a blue star on a grey background', 'a large checkered heart on a black background', 'a small brown house on the left in the desert', 'four black cats on a pink background',
        'a red car, a yellow car and a green house in the city', 'a dotted mushroom in the desert at night', 'a white cup in the middle on a brown background', 'a tree at sunset by the sea']


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', required=True)
    ap.add_argument('--seed', type=int, default=20)
    ap.add_argument('--vae-seconds', type=float, default=280)
    ap.add_argument('--vae-batch', type=int, default=32)
    ap.add_argument('--kl', type=float, default=1e-4, help='weight of the mean KL per latent element')
    ap.add_argument('--pool', type=int, default=300000, help='scenes of each rank, rendered and encoded for stage 2')
    ap.add_argument('--unet-seconds', type=float, default=1080)
    ap.add_argument('--batch', type=int, default=512, help='of each rank')
    ap.add_argument('--lr', type=float, default=1.2e-3)
    ap.add_argument('--ema', type=float, default=.999)
    ap.add_argument('--compile', type=int, default=1)
    ap.add_argument('--vae-lr', type=float, default=1.2e-3)
    ap.add_argument('--init', help='folder of a model to go on from')
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    dev = f'cuda:{int(os.environ.get("LOCAL_RANK", 0))}' if cuda else 'cpu'
    if cuda:
        torch.cuda.set_device(dev)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if WORLD > 1:
        dist.init_process_group('nccl')
    os.makedirs(args.out, exist_ok=True)
    begin = time.time()
    stamp = lambda what: RANK == 0 and print(f'[{time.time() - begin:.0f} s] {what}', flush=True)
    tok = make_tokenizer(args.out)
    torch.manual_seed(args.seed)
    vae, unet, text = AutoencoderKL(**VAE), UNet2DConditionModel(**UNET), ClipText(TEXT)
    if args.init:
        for m, file in ((vae, 'vae/diffusion_pytorch_model'), (unet, 'unet/diffusion_pytorch_model'), (text, 'text_encoder/model')):
            m.load_state_dict({k: v.float() for k, v in load_file(f'{args.init}/{file}.safetensors').items()})
    for m in (vae, unet):
        m.to(memory_format=torch.channels_last)
    for m in (vae, unet, text):
        m.to(dev)
    report = {'args': vars(args), 'torch': torch.__version__, 'world': WORLD, 'parameters': {type(m).__name__: sum(p.numel() for p in m.parameters()) for m in (text, unet, vae)}}
    stamp(report['parameters'])
    torch.manual_seed(args.seed + 1 + RANK)
    render = Renderer(dev)
    scenes, ids = all_scenes(args.pool, tok, args.seed + 100 * RANK)
    stamp(f'{len(ids)} scenes')
    report['vae'] = train_vae(vae, render, scenes, args, cuda)
    stamp('vae trained')
    vae.load_state_dict({k: v.half().float() for k, v in vae.state_dict().items()})
    vae.requires_grad_(False)
    pool = build_pool(vae, render, scenes, cuda)
    m = pool[0][:20000].float()
    scale = torch.tensor(1 / float((m + pool[1][:20000].float() * torch.randn_like(m)).std()), device=dev)
    if WORLD > 1:
        dist.broadcast(scale, 0)
    scale = json.load(open(f'{args.init}/vae/config.json'))['scaling_factor'] if args.init else float(f'{float(scale):.5f}')
    report['latents'] = dict(scaling_factor=scale, channel_std=(m.std((0, 2, 3)) * scale).tolist(), posterior_std=float(pool[1].float().mean()) * scale)
    stamp(report['latents'])
    if RANK == 0:
        with torch.no_grad():
            x = render(rows(scenes, slice(0, 16)))
            y = vae.decode(vae.encode(x).latent_dist.mean).sample
            report['vae_l1_0_to_1'] = float((x - y.clamp(-1, 1)).abs().mean() / 2)
            grid(np.concatenate([to_u8(x)[:8], to_u8(y)[:8], to_u8(x)[8:], to_u8(y)[8:]]), 8, f'{args.out}/vae.jpg')
    ids = ids.to(dev)
    encode = lambda texts: torch.tensor([e.ids for e in tok.encode_batch(list(texts))], device=dev)
    empty = encode([''])
    plain = lambda x, t, c: unet(x, t, encoder_hidden_states=c).sample
    zeros = lambda *shape: torch.zeros(*shape, device=dev)
    net = compiled(plain, args, zeros(args.batch, 4, 32, 32).contiguous(memory_format=torch.channels_last), zeros(args.batch).long(), zeros(args.batch, 77, TEXT['hidden_size']))
    stamp('network ready')

    def store():
        save_all(args.out, text, unet, vae, scale)
        looks = LOOK if cuda else LOOK[:2]
        with torch.no_grad(), torch.autocast('cuda', torch.bfloat16, enabled=cuda):
            x0 = torch.randn(len(looks), 4, 32, 32, generator=torch.Generator().manual_seed(args.seed)).to(dev)
            x = sample(plain, text(encode(looks)), text(empty).repeat(len(looks), 1, 1), x0, 20 if cuda else 2)
            grid(to_u8(vae.decode(x / scale).sample), 6 if cuda else 2, f'{args.out}/samples.jpg')
        json.dump(report, open(f'{args.out}/report.json', 'w'), indent=1)
        stamp('stored')
    report['diffusion'] = train_diffusion(net, text, pool, ids, empty, scale, args, cuda, [unet, text], (.15, .4, .7), store)
    stamp('diffusion trained')
    if RANK == 0:
        store()
        open(f'{args.out}/DONE', 'w').write('done')
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
