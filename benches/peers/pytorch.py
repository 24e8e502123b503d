#!/usr/bin/env python3
"""The lines of rocm-bench for PyTorch: group, name, size, microseconds, rate, unit, tab-separated."""
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TARGET, BATCHES = 0.02, 5
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def measure(call):
    def batch(count):
        start = time.perf_counter()
        for i in range(count):
            call(i)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    batch(2)
    count, share = 2, TARGET / BATCHES
    while count < 1 << 20:
        seconds = batch(count)
        if seconds >= share:
            break
        count = min(max(int(share * 1.2 / max(seconds, 1e-7) * count), count * 2), count * 16)
    return sorted(batch(count) for _ in range(BATCHES))[BATCHES // 2] / count


def report(group, name, size, call, work, unit):
    try:
        seconds = measure(call)
    except Exception as error:  # an operation that PyTorch lacks for a dtype
        print(f"# {group} {name} {size}: {error}".splitlines()[0])
        return
    scale = 1e9 if unit == "GB/s" else 1e12
    print(f"{group}\t{name}\t{size}\t{seconds * 1e6:.3f}\t{work / seconds / scale:.2f}\t{unit}", flush=True)


def random(dtype, *dims):
    return torch.randn(*dims, device="cuda", dtype=DTYPES[dtype])


def operations():
    group = "operation"
    for n in (1 << 12, 1 << 20, 1 << 26):
        columns = min(4096, n)
        rows = n // columns
        for dtype in DTYPES:
            x, y = random(dtype, n), random(dtype, n)
            width = x.element_size()

            def line(name, call, tensors):
                report(group, f"{name} {dtype}", n, call, tensors * n * width, "GB/s")

            line("add", lambda i: x + y, 3)
            line("div", lambda i: x / y, 3)
            line("exp", lambda i: torch.exp(x), 2)
            line("silu", lambda i: F.silu(x), 2)
            line("gelu", lambda i: F.gelu(x, approximate="tanh"), 2)
            line("gelu_erf", lambda i: F.gelu(x), 2)
            line("tanh", lambda i: torch.tanh(x), 2)
            line("sin", lambda i: torch.sin(x), 2)
            line("sqrt", lambda i: torch.sqrt(x), 2)
            to = "f16" if dtype == "f32" else "f32"
            report(group, f"cast {dtype} {to}", n, lambda i: x.to(DTYPES[to]), 6 * n, "GB/s")
            condition = x < y
            report(group, f"where {dtype}", n, lambda i: torch.where(condition, x, y), n * (3 * width + 1), "GB/s")
            report(group, f"lt {dtype}", n, lambda i: x < y, n * (2 * width + 1), "GB/s")
            line("silu_mul", lambda i: F.silu(x) * y, 3)
            line("normal", lambda i: torch.randn(n, device="cuda", dtype=DTYPES[dtype]), 1)
            side = 1 << ((n.bit_length() - 1) // 2)
            square = random(dtype, side, n // side).t()
            line("copy transposed", lambda i: square.contiguous(), 2)
            matrix, row = random(dtype, rows, columns), random(dtype, columns)
            line("add row", lambda i: matrix + row, 2)
            other = x.view(rows, columns)
            line("concatenate", lambda i: torch.cat([matrix, other], 1), 4)
            if dtype == "bf16":
                continue
            line("sum rows", lambda i: matrix.sum(1), 1)
            line("sum columns", lambda i: matrix.sum(0), 1)
            line("sum all", lambda i: matrix.sum(), 1)
            line("max rows", lambda i: matrix.amax(1), 1)
            line("max columns", lambda i: matrix.amax(0), 1)
            line("max all", lambda i: matrix.amax(), 1)
            line("argmax rows", lambda i: matrix.argmax(1), 1)
            line("argmax columns", lambda i: matrix.argmax(0), 1)
            line("softmax", lambda i: torch.softmax(matrix, 1), 2)
            line("rms_norm", lambda i: F.rms_norm(matrix, (columns,), row, 1e-5), 2)
            line("layer_norm", lambda i: F.layer_norm(matrix, (columns,), row, row, 1e-5), 2)
            heads = random(dtype, 1, columns // 128, rows, 128)
            cos, sin = random(dtype, rows, 128), random(dtype, rows, 128)
            line("rope", lambda i: heads * cos + torch.cat([-heads[..., 64:], heads[..., :64]], -1) * sin, 2)
            ids = torch.randint(rows, (rows,), device="cuda")
            line("index_select", lambda i: torch.index_select(matrix, 0, ids), 2)
            line("index_add", lambda i: torch.index_add(matrix, 0, ids, matrix), 4)
        source, target = random("f32", rows, columns), random("f32", rows, columns)
        ids = torch.randint(columns, (rows, columns), device="cuda")
        report(group, "gather f32", n, lambda i: torch.gather(source, 1, ids), 12 * n, "GB/s")
        report(group, "scatter_add f32", n, lambda i: target.scatter_add_(1, ids, source), 16 * n, "GB/s")
        if n <= 1 << 20:
            matrix = random("f32", rows, columns)
            report(group, "argsort f32", n, lambda i: torch.argsort(matrix, 1), 8 * n, "GB/s")


def ceilings():
    a = torch.randn((1 << 30) // 4, device="cuda")
    b = torch.empty_like(a)
    report("ceiling", "copy", 1 << 30, lambda i: b.copy_(a), 2 << 30, "GB/s")
    for dtype in ("bf16", "f16", "f32"):
        product("ceiling", dtype, 1, 8192, 8192, 8192)


def product(group, dtype, b, m, n, k):
    x, w = random(dtype, b, m, k), random(dtype, b, n, k).transpose(1, 2)
    work, unit = (b * n * k * x.element_size(), "GB/s") if m == 1 else (2 * b * m * n * k, "TFLOP/s")
    report(group, f"matmul {dtype}", f"{b}x{m}x{n}x{k}", lambda i: torch.bmm(x, w), work, unit)


def products():
    for dtype in ("f16", "bf16", "f32"):
        for shape in ((1, 512, 512, 512), (1, 4096, 4096, 4096), (1, 1, 4096, 4096), (1, 1, 14336, 4096), (1, 512, 14336, 4096), (32, 512, 512, 256)):
            product("product", dtype, *shape)


def scaled():
    for n, k in ((4096, 4096), (14336, 4096)):
        w = random("f32", n, k).to(torch.float8_e4m3fn).t()
        for m in (1, 16, 512, 4096):
            x = random("f32", m, k).to(torch.float8_e4m3fn)
            work, unit = (n * k, "GB/s") if m == 1 else (2 * m * n * k, "TFLOP/s")
            kinds = {"tensor": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((m, k // 128), (k // 128, n // 128))}
            for kind, shapes in kinds.items():
                a, b = (torch.rand(shape, device="cuda") for shape in shapes)
                if kind == "blocks":  # cuBLAS reads the scales of a block's rows behind each other.
                    a, b = a.t().contiguous().t(), b.t().contiguous().t()
                call = lambda i: torch._scaled_mm(x, w, scale_a=a, scale_b=b, out_dtype=torch.bfloat16)
                report("scaled", f"scaled {kind}", f"{m}x{n}x{k}", call, work, unit)


def attention():
    for dtype in ("f16", "bf16"):
        for keys in (1024, 4096, 16384):
            q, k, v = random(dtype, 1, 32, keys, 128), random(dtype, 1, 8, keys, 128), random(dtype, 1, 8, keys, 128)
            one = q[:, :, :1]
            report("attention", f"decode {dtype}", keys, lambda i: F.scaled_dot_product_attention(one, k, v, enable_gqa=True), 2 * keys * 8 * 128 * 2, "GB/s")
            report(
                "attention",
                f"causal {dtype}",
                keys,
                lambda i: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                2 * keys * keys * 32 * 128,
                "TFLOP/s",
            )


def convolutions():
    for dtype in ("f16", "f32"):
        for batch, c_in, c_out, side, kernel in ((2, 320, 320, 64, 3), (2, 640, 640, 32, 3), (2, 1280, 1280, 16, 3), (2, 320, 320, 64, 1), (1, 128, 128, 512, 3)):
            x, w = random(dtype, batch, c_in, side, side), random(dtype, c_out, c_in, kernel, kernel)
            size = f"{batch}x{c_in}x{side}x{side} to {c_out}, {kernel}x{kernel}"
            flops = 2 * batch * c_out * c_in * side * side * kernel * kernel
            report("convolution", f"conv2d {dtype}", size, lambda i: F.conv2d(x, w, padding=kernel // 2), flops, "TFLOP/s")


def images():
    for dtype in ("f32", "f16"):
        for batch, channels, side in ((2, 1280, 16), (2, 320, 64), (1, 256, 256)):
            x = random(dtype, batch, channels, side, side)
            size, one = f"{batch}x{channels}x{side}x{side}", x.numel() * x.element_size()
            report("image", f"upsample_nearest2d {dtype}", size, lambda i: F.interpolate(x, scale_factor=2), 5 * one, "GB/s")
            report("image", f"upsample_bilinear2d {dtype}", size, lambda i: F.interpolate(x, scale_factor=2, mode="bilinear"), 5 * one, "GB/s")
            report("image", f"avg_pool2d {dtype}", size, lambda i: F.avg_pool2d(x, 2), 1.25 * one, "GB/s")
            report("image", f"max_pool2d {dtype}", size, lambda i: F.max_pool2d(x, 2), 1.25 * one, "GB/s")


GROUPS = {
    "ceiling": ceilings,
    "operation": operations,
    "product": products,
    "scaled": scaled,
    "attention": attention,
    "convolution": convolutions,
    "image": images,
}

print(f"# PyTorch {torch.__version__} on {torch.cuda.get_device_name()}")
with torch.inference_mode():
    for wanted in sys.argv[1:] or GROUPS:
        GROUPS[wanted]()
