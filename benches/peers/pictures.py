#!/usr/bin/env python3
"""Pictures of four families beside PyTorch and stable-diffusion.cpp, on one GPU in one run, with random weights.

    python3 benches/peers/pictures.py --ours sd-worker-rocm [--kinds sd15,sdxl,sd35,schnell] [--place DIR] [--sdcpp sd-cli]
                                      [--no-compile] [--no-pytorch] [--batch 4] [--table] > pictures.jsonl

Needs PyTorch, diffusers and transformers. Each kind's model is made with random weights of the published shapes (diffusers' own components
and folders), measured by `sd-worker-rocm bench --json` with graphs and launch by launch, then by PyTorch: diffusers' network as it is, with
its launches recorded as a CUDA graph, and compiled; then it is removed. One JSON object a line:

    kind, by        which model, and what computed it
    evaluation_ms   one evaluation: of the prompt, with guidance of both prompts in one batch
    enqueue_ms      the host's part of it, where it is known
    picture_ms      a picture: all steps, and from latents to pixels
    batch_ms        an evaluation for `batch` pictures
    first_ms        from the start of the process to the first picture, weights loaded from the page cache

--table makes Markdown of such lines on standard input.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

DEVICE = "cuda"
STARTED = time.perf_counter()
HERE = os.path.dirname(os.path.abspath(__file__))
# torchvision asks whether there is a module of the name of a program beside this one.
sys.path = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
CARRIED = os.path.join(HERE, "../../workers/sd-worker-rocm/models/tiny-shapes-sd/tokenizer")
CLIP_L = dict(
    hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768, vocab_size=49408,
    max_position_embeddings=77, bos_token_id=49406, eos_token_id=49407, pad_token_id=49407,
)
CLIP_G = dict(
    CLIP_L, hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20, projection_dim=1280, hidden_act="gelu"
)
# FLUX.1 reads T5's text: of its width, but one layer, as encoding is not what is measured.
T5 = dict(vocab_size=512, d_model=4096, d_kv=64, d_ff=1024, num_layers=1, num_heads=64, feed_forward_proj="gated-gelu")
UNET = dict(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
UNET_XL = dict(
    sample_size=128, cross_attention_dim=2048, attention_head_dim=[5, 10, 20], block_out_channels=[320, 640, 1280],
    down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], transformer_layers_per_block=[1, 2, 10],
    use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
)
SD3 = dict(
    sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=24, num_attention_heads=24, attention_head_dim=64,
    joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048, pos_embed_max_size=384,
    dual_attention_layers=list(range(13)), qk_norm="rms_norm",
)
FLUX = dict(
    patch_size=1, in_channels=64, num_layers=19, num_single_layers=38, attention_head_dim=128, num_attention_heads=24, joint_attention_dim=4096,
    pooled_projection_dim=768, guidance_embeds=False, axes_dims_rope=[16, 56, 56],
)
VAE = dict(
    in_channels=3, out_channels=3, latent_channels=4, block_out_channels=[128, 256, 512, 512], layers_per_block=2, norm_num_groups=32,
    down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4, scaling_factor=0.18215,
)
VAE_16 = dict(VAE, latent_channels=16, scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False)
SCHEDULE = dict(
    _class_name="EulerDiscreteScheduler", beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000,
    prediction_type="epsilon", steps_offset=1, timestep_spacing="leading",
)
FLOW = dict(_class_name="FlowMatchEulerDiscreteScheduler", num_train_timesteps=1000, shift=3.0)
# Per kind: pixels a side, steps, guidance, PyTorch's type and ours.
KINDS = {
    "sd15": dict(size=512, steps=20, guidance=7.5, dtype="float16"),
    "sdxl": dict(size=1024, steps=20, guidance=7.5, dtype="float16"),
    "sd35": dict(size=1024, steps=20, guidance=4.5, dtype="bfloat16"),
    "schnell": dict(size=1024, steps=4, guidance=0.0, dtype="bfloat16"),
}
NAMES = {"sd15": "Stable Diffusion 1.5", "sdxl": "Stable Diffusion XL", "sd35": "Stable Diffusion 3.5 medium", "schnell": "FLUX.1 schnell"}
PRECISION = {"float16": "f16", "bfloat16": "bf16"}


def denoiser(kind):
    """Folder, class and configuration of a kind's network."""
    return {
        "sd15": ("unet", "UNet2DConditionModel", UNET),
        "sdxl": ("unet", "UNet2DConditionModel", UNET_XL),
        "sd35": ("transformer", "SD3Transformer2DModel", SD3),
        "schnell": ("transformer", "FluxTransformer2DModel", FLUX),
    }[kind]


def make(kind, folder):
    """Writes a model's folder."""
    import diffusers
    import torch
    import transformers

    # Both libraries import what they are asked for; some of it minds the default type.
    encoders = [transformers.CLIPTextModel, transformers.CLIPTextModelWithProjection, transformers.T5EncoderModel]
    network, autoencoder = getattr(diffusers, denoiser(kind)[1]), diffusers.AutoencoderKL
    dtype = getattr(torch, KINDS[kind]["dtype"])
    torch.set_default_dtype(dtype)
    torch.manual_seed(1)
    on_gpu = torch.device(DEVICE)
    parts = {}

    def save(name, build, library, classname):
        with on_gpu:
            network = build()
        # In one file, as stable-diffusion.cpp reads no index of several.
        network.to(dtype).save_pretrained(os.path.join(folder, name), max_shard_size="64GB")
        parts[name] = [library, classname]

    def clip(number, config, projects):
        name = "text_encoder" + number
        of = encoders[projects]
        save(name, lambda: of(transformers.CLIPTextConfig(**config)), "transformers", of.__name__)
        shutil.copytree(CARRIED, os.path.join(folder, "tokenizer" + number))
        parts["tokenizer" + number] = ["transformers", "CLIPTokenizer"]

    clip("", CLIP_L, kind == "sd35")
    if kind in ("sdxl", "sd35"):
        clip("_2", CLIP_G, True)
    if kind == "schnell":
        save("text_encoder_2", lambda: encoders[2](transformers.T5Config(**T5)), "transformers", "T5EncoderModel")
        os.makedirs(os.path.join(folder, "tokenizer_2"))
        write(os.path.join(folder, "tokenizer_2/tokenizer.json"), bytes_tokenizer())
        write(os.path.join(folder, "tokenizer_2/tokenizer_config.json"), {"model_max_length": 256, "pad_token": "<pad>"})
        parts["tokenizer_2"] = ["transformers", "T5TokenizerFast"]
    name, classname, config = denoiser(kind)
    save(name, lambda: network(**config), "diffusers", classname)
    vae = VAE if kind in ("sd15", "sdxl") else VAE_16
    save("vae", lambda: autoencoder(**vae), "diffusers", "AutoencoderKL")
    os.makedirs(os.path.join(folder, "scheduler"))
    schedule = SCHEDULE if kind in ("sd15", "sdxl") else dict(FLOW, shift=1.0 if kind == "schnell" else 3.0)
    write(os.path.join(folder, "scheduler/scheduler_config.json"), schedule)
    parts["scheduler"] = ["diffusers", schedule["_class_name"]]
    if kind == "sd35":
        parts.update(text_encoder_3=[None, None], tokenizer_3=[None, None])
    pipeline = {
        "sd15": "StableDiffusionPipeline", "sdxl": "StableDiffusionXLPipeline", "sd35": "StableDiffusion3Pipeline", "schnell": "FluxPipeline"
    }
    write(os.path.join(folder, "model_index.json"), {"_class_name": pipeline[kind], **parts})


def bytes_tokenizer():
    """A tokenizer of T5's form whose tokens are bytes."""
    alphabet = [chr(b) for b in range(33, 127)] + [chr(b) for b in range(161, 173)] + [chr(b) for b in range(174, 256)]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *alphabet])}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    special = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for token, i in vocabulary.items() if i < 3
    ]
    return {
        "version": "1.0", "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"},
    }


def write(path, content):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


class Peer:
    """diffusers' network and VAE of a folder, on a GPU."""

    def __init__(self, kind, folder):
        import diffusers
        import torch

        self.torch, self.kind, self.about = torch, kind, KINDS[kind]
        self.dtype = getattr(torch, self.about["dtype"])
        name, classname, _ = denoiser(kind)

        def load(classname, part):
            network = getattr(diffusers, classname).from_pretrained(os.path.join(folder, part), torch_dtype=self.dtype)
            return network.to(DEVICE).eval()

        self.network, self.vae = load(classname, name), load("AutoencoderKL", "vae")
        if kind in ("sd15", "sdxl"):
            # The faster layout for convolutions in halves.
            for network in (self.network, self.vae):
                network.to(memory_format=torch.channels_last)
        if kind == "sdxl":
            # `force_upcast` of its configuration: diffusers' pipeline decodes in f32, as ours does.
            self.vae.to(torch.float32)
        self.guided = self.about["guidance"] > 1
        self.call = self.network

    def inputs(self, pictures):
        """What the network is given besides latents and time, for so many pictures."""
        torch, rows = self.torch, pictures * (2 if self.guided else 1)
        random = lambda *shape: torch.randn(*shape, device=DEVICE, dtype=self.dtype)
        side = self.about["size"] // 8
        if self.kind == "sd15":
            return random(rows, 4, side, side), dict(encoder_hidden_states=random(rows, 77, 768))
        if self.kind == "sdxl":
            told = dict(text_embeds=random(rows, 1280), time_ids=torch.full((rows, 6), 1024.0, device=DEVICE, dtype=self.dtype))
            return random(rows, 4, side, side), dict(encoder_hidden_states=random(rows, 77, 2048), added_cond_kwargs=told)
        if self.kind == "sd35":
            return random(rows, 16, side, side), dict(encoder_hidden_states=random(rows, 333, 4096), pooled_projections=random(rows, 2048))
        tokens = (side // 2) ** 2
        ids = torch.zeros(tokens, 3, device=DEVICE)
        text = torch.zeros(256, 3, device=DEVICE)
        more = dict(encoder_hidden_states=random(rows, 256, 4096), pooled_projections=random(rows, 768), img_ids=ids, txt_ids=text)
        return random(rows, tokens, 64), more

    def time(self):
        return self.torch.full((1,), 601.0, device=DEVICE, dtype=self.torch.float32)

    def evaluate(self, x, t, more):
        t = t.expand(x.shape[0])
        return self.call(x, timestep=t / 1000 if self.kind == "schnell" else t, return_dict=False, **more)[0]

    def guided_output(self, x, t, more):
        output = self.evaluate(x, t, more)
        if not self.guided:
            return output
        negative, positive = output.chunk(2)
        return negative + self.about["guidance"] * (positive - negative)

    def graph(self, pictures):
        """An evaluation recorded as a graph."""
        torch = self.torch
        x, more = self.inputs(pictures)
        t = self.time()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.guided_output(x, t, more)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.guided_output(x, t, more)

        def replay(new, time):
            x.copy_(new)
            t.copy_(time)
            graph.replay()
            return output

        return replay, x

    def plain(self, pictures):
        x, more = self.inputs(pictures)
        return (lambda new, time: self.guided_output(new, time, more)), x

    def measure(self, evaluate, x, steps, runs=3):
        """Milliseconds of one evaluation, and of enqueuing it."""
        torch, t = self.torch, self.time()
        found = []
        for run in range(runs + 1):
            torch.cuda.synchronize()
            begun, enqueued, mark = time.perf_counter(), 0.0, None
            for _ in range(steps):
                before = time.perf_counter()
                evaluate(x, t)
                enqueued += time.perf_counter() - before
                # The host stays a step ahead at most.
                if mark:
                    mark.synchronize()
                mark = torch.cuda.Event()
                mark.record()
            torch.cuda.synchronize()
            if run:
                found.append(((time.perf_counter() - begun) / steps * 1e3, enqueued / steps * 1e3))
        found.sort()
        return found[len(found) // 2]

    def decode(self, pictures=1):
        torch, side = self.torch, self.about["size"] // 8
        channels = 4 if self.kind in ("sd15", "sdxl") else 16
        latents = torch.randn(pictures, channels, side, side, device=DEVICE, dtype=self.vae.dtype)
        pixels = self.vae.decode(latents, return_dict=False)[0]
        return ((pixels.float() * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu()

    def decoding(self):
        self.decode()
        times = []
        for _ in range(3):
            self.torch.cuda.synchronize()
            begun = time.perf_counter()
            self.decode()
            times.append((time.perf_counter() - begun) * 1e3)
        return sorted(times)[1]


def peers(kind, folder, batch, compiles):
    """Prints what PyTorch takes."""
    import torch

    torch.backends.cudnn.benchmark = True
    with torch.inference_mode():
        peer = Peer(kind, folder)
        about = peer.about
        evaluate, x = peer.plain(1)
        for _ in range(about["steps"]):
            evaluate(x, peer.time())
        peer.decode()
        first = (time.perf_counter() - STARTED) * 1e3
        decode = peer.decoding()
        ways = [("eager", peer.plain), ("CUDA graph", peer.graph)]
        for how, way in ways + ([("torch.compile", None)] if compiles else []):
            try:
                if way is None:
                    peer.call = torch.compile(peer.network)
                    way = peer.graph
                    how = "torch.compile, CUDA graph"
                steps = about["steps"]
                evaluate, x = way(1)
                evaluation, enqueue = peer.measure(evaluate, x, steps)
                evaluate, x = way(batch)
                of_batch, _ = peer.measure(evaluate, x, max(2, steps // 4), runs=1)
                del evaluate
                report = dict(evaluation_ms=evaluation, enqueue_ms=enqueue, decode_ms=decode, picture_ms=evaluation * steps + decode, batch_ms=of_batch)
                if how == "eager":
                    report["first_ms"] = first
                tell(kind, f"PyTorch {torch.__version__.split('+')[0]}, {how}", batch=batch, **report)
            except Exception as error:  # What one way cannot do, the others may.
                print(f"{kind}: {how}: {error!r}"[:2000], file=sys.stderr, flush=True)
            torch.cuda.empty_cache()


def tell(kind, by, **report):
    print(json.dumps(dict(kind=kind, by=by, **report)), flush=True)


def ours(kind, folder, program, batch):
    about = KINDS[kind]
    size = str(about["size"])
    options = ["--model", folder, "--width", size, "--height", size, "--steps", str(about["steps"]), "--precision", PRECISION[about["dtype"]]]
    if about["guidance"] > 1:
        options += ["--guidance", str(about["guidance"])]
    command = [program, "bench", "--json", "--both", "--batches", f"1,{batch}", "--runs", "3", "--sampler", "euler", "--seed", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr[-2000:], file=sys.stderr, flush=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for graphs in (True, False):
        of = {line["batch"]: line for line in lines if (line["graphs"] > 0) == graphs}
        one, several = of.get(1), of.get(batch, {})
        if one:
            more = dict(first_ms=one["first"]["picture_ms"], first=one["first"]) if graphs else {}
            tell(
                kind, "candle-rocm, " + ("graph" if graphs else "launches"), batch=batch, evaluation_ms=one["evaluation_ms"], enqueue_ms=one["enqueue_ms"],
                launches=one["launches"], batch_launches=several.get("launches"), decode_ms=one["decode_ms"], picture_ms=one["picture_ms"],
                batch_ms=several.get("evaluation_ms"), without_graphs=one["without_graphs"], **more,
            )


def sdcpp(kind, folder, program):
    """stable-diffusion.cpp's time for a picture, of the second of two. It knows the parts under their first names; T5 is left out, as what is
    measured here is not one."""
    about, place = KINDS[kind], os.path.join(folder, "originals")
    if subprocess.run([sys.executable, os.path.join(HERE, "original_names.py"), folder, place], check=False).returncode:
        return
    size, picture = str(about["size"]), os.path.join(folder, "sdcpp-%d.png")
    parts = [("--model", "model"), ("--diffusion-model", "denoiser"), ("--vae", "vae"), ("--clip_l", "clip_l"), ("--clip_g", "clip_g")]
    files = [(option, os.path.join(place, name + ".safetensors")) for option, name in parts]
    model = [word for option, file in files if os.path.exists(file) for word in (option, file)]
    command = [program, *model, "-p", "a red circle", "-W", size, "-H", size, "--steps", str(about["steps"]), "--sampling-method", "euler",
               "--cfg-scale", str(max(1.0, about["guidance"])), "--diffusion-fa", "-b", "2", "-v", "-o", picture]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    whole = (time.perf_counter() - begun) * 1e3
    milliseconds = lambda what: [float(found) * 1e3 for found in re.findall(what + r"[^\n]*taking ([0-9.]+)s", text)]
    sampling, decoding = milliseconds("sampling completed"), milliseconds(r"latent \d+ decoded")
    if done.returncode or not sampling or not decoding:
        print(f"{kind}: stable-diffusion.cpp: {text[-1500:]}", file=sys.stderr, flush=True)
        return
    evaluation = sampling[-1] / about["steps"]
    tell(kind, "stable-diffusion.cpp", evaluation_ms=evaluation, decode_ms=decoding[-1], picture_ms=sampling[-1] + decoding[-1], two_ms=whole)


def table(lines):
    reports = [json.loads(line) for line in lines if line.startswith("{")]
    print("| | | evaluation ms | of it enqueueing | launches | picture ms | decoding ms | batch of 4, ms | of one | first picture s |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    last = None
    for report in reports:
        number = lambda key, form="{:.1f}", of=1: form.format(report[key] / of) if report.get(key) is not None else ""
        name = NAMES[report["kind"]] if report["kind"] != last else ""
        last = report["kind"]
        times = f"{report['batch_ms'] / report['evaluation_ms']:.2f}" if report.get("batch_ms") else ""
        cells = [name, report["by"], number("evaluation_ms"), number("enqueue_ms"), number("launches", "{:,.0f}"), number("picture_ms", "{:,.0f}"),
                 number("decode_ms"), number("batch_ms"), times, number("first_ms", "{:.1f}", 1e3)]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--place", default="/tmp/pictures", help="where models are written, 27 GB at most")
    parser.add_argument("--ours", help="sd-worker-rocm")
    parser.add_argument("--sdcpp", help="stable-diffusion.cpp's program")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-pytorch", action="store_true")
    parser.add_argument("--only", metavar="KIND", help="what this program calls itself with: make or peer of one kind")
    parser.add_argument("--do", choices=["make", "peer"])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return table(sys.stdin)
    if options.only:
        folder = os.path.join(options.place, options.only)
        if options.do == "make":
            return make(options.only, folder)
        return peers(options.only, folder, options.batch, not options.no_compile)
    for kind in options.kinds.split(","):
        folder = os.path.join(options.place, kind)
        shutil.rmtree(folder, ignore_errors=True)
        again = [sys.executable, os.path.abspath(__file__), "--place", options.place, "--only", kind, "--batch", str(options.batch)]
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            before = time.perf_counter()
            if subprocess.run([*again, "--do", "make"], check=False).returncode:
                print(f"{kind}: no model", file=sys.stderr, flush=True)
                continue
            print(f"{kind}: made in {time.perf_counter() - before:.0f} s", file=sys.stderr, flush=True)
            if options.ours:
                ours(kind, folder, options.ours, options.batch)
            if options.sdcpp:
                sdcpp(kind, folder, options.sdcpp)
            more = ["--no-compile"] if options.no_compile else []
            if not options.no_pytorch:
                subprocess.run([*again, "--do", "peer", *more], check=False)
            print(f"{kind}: {time.perf_counter() - before:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
