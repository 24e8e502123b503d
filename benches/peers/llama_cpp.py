#!/usr/bin/env python3
"""The lines of rocm-bench's group `recorded` for llama.cpp: quantized matrices times vectors, many in one graph of ggml.

    benches/peers/llama_cpp.py FOLDER

FOLDER has libggml-base.so and libggml-cuda.so (or libggml-hip.so), as llama.cpp's build makes them with -DBUILD_SHARED_LIBS=ON.
"""
import ctypes
import glob
import os
import random
import sys
import time

FORMATS = {
    "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2k": 10, "q3k": 11, "q4k": 12, "q5k": 13, "q6k": 14,
    "iq2_xxs": 16, "iq2_xs": 17, "iq3_xxs": 18, "iq1_s": 19, "iq4_nl": 20, "iq3_s": 21, "iq2_s": 22, "iq4_xs": 23, "iq1_m": 29,
    "tq1_0": 34, "tq2_0": 35, "mxfp4": 39, "nvfp4": 40,
}  # fmt: skip
F32 = 0
SHAPES, COLUMNS = [(4096, 4096), (14336, 4096), (32000, 4096)], [1, 4, 512]
# As in rocm-bench: copies of a matrix beyond every cache, calls of a graph, seconds and batches of a measurement.
CYCLE_BYTES, RECORDED = 512 << 20, 64
TARGET, BATCHES = 0.02, 5

POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool)]


def library(folder):
    """Functions of ggml by name, declared as they are used here."""
    base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    found = [path for gpu in ("cuda", "hip") for path in glob.glob(os.path.join(folder, f"libggml-{gpu}.so"))]
    if not found:
        sys.exit(f"{folder} has no libggml-cuda.so or libggml-hip.so")
    gpu = ctypes.CDLL(found[0])

    def declare(owner, name, result, *arguments):
        function = getattr(owner, name)
        function.restype, function.argtypes = result, arguments
        return function

    i64, i32 = ctypes.c_int64, ctypes.c_int
    return {
        "device": declare(gpu, "ggml_backend_cuda_init", POINTER, i32),
        "init": declare(base, "ggml_init", POINTER, InitParams),
        "free": declare(base, "ggml_free", None, POINTER),
        "tensor": declare(base, "ggml_new_tensor_2d", POINTER, POINTER, i32, i64, i64),
        "product": declare(base, "ggml_mul_mat", POINTER, POINTER, POINTER, POINTER),
        "graph": declare(base, "ggml_new_graph_custom", POINTER, POINTER, SIZE, ctypes.c_bool),
        "add": declare(base, "ggml_build_forward_expand", None, POINTER, POINTER),
        "row_size": declare(base, "ggml_row_size", SIZE, i32, i64),
        "allocate": declare(base, "ggml_backend_alloc_ctx_tensors", POINTER, POINTER, POINTER),
        "free_buffer": declare(base, "ggml_backend_buffer_free", None, POINTER),
        "set": declare(base, "ggml_backend_tensor_set", None, POINTER, POINTER, SIZE, SIZE),
        "copy": declare(base, "ggml_backend_tensor_copy", None, POINTER, POINTER),
        "supports": declare(base, "ggml_backend_supports_op", ctypes.c_bool, POINTER, POINTER),
        "compute": declare(base, "ggml_backend_graph_compute_async", i32, POINTER, POINTER),
        "synchronize": declare(base, "ggml_backend_synchronize", None, POINTER),
    }


def measure(ggml, device, graph):
    """Seconds for a graph: the median of batches."""

    def batch(count):
        start = time.perf_counter()
        for _ in range(count):
            if ggml["compute"](device, graph) != 0:
                raise RuntimeError("the graph failed")
        ggml["synchronize"](device)
        return time.perf_counter() - start

    # ggml records a graph when it has seen it some times.
    batch(8)
    count = max(1, int(TARGET / BATCHES / max(batch(1), 1e-7)))
    return sorted(batch(count) for _ in range(BATCHES))[BATCHES // 2] / count


def line(ggml, device, name, rows, inner, columns):
    weight_type = FORMATS[name]
    weight_bytes = ggml["row_size"](weight_type, inner) * rows
    copies = max(CYCLE_BYTES // weight_bytes, 1)
    context = ggml["init"](InitParams(4 << 20, None, True))
    weights = [ggml["tensor"](context, weight_type, inner, rows) for _ in range(copies)]
    x = ggml["tensor"](context, F32, inner, columns)
    products = [ggml["product"](context, weights[i % copies], x) for i in range(RECORDED)]
    size = f"{rows}x{inner}x{columns}"
    kind = "matmul" if columns == COLUMNS[-1] else "matvec"
    if not ggml["supports"](device, products[0]):
        print(f"# recorded {kind} {name} {size}: llama.cpp does not have it on this device")
        ggml["free"](context)
        return
    graph = ggml["graph"](context, 4 * RECORDED, False)
    for product in products:
        ggml["add"](graph, product)
    buffer = ggml["allocate"](context, device)
    # Without the two highest bits of a byte, scales are finite numbers below 2.
    data = bytearray(random.Random(3).randbytes(weight_bytes)).translate(bytearray(i & 0x3F for i in range(256)))
    ggml["set"](weights[0], (ctypes.c_char * weight_bytes).from_buffer(data), 0, weight_bytes)
    for weight in weights[1:]:
        ggml["copy"](weights[0], weight)
    ones = (ctypes.c_float * (inner * columns))(*[0.5] * (inner * columns))
    ggml["set"](x, ones, 0, ctypes.sizeof(ones))
    seconds = measure(ggml, device, graph) / RECORDED
    work, unit = (2e-12 * rows * inner * columns, "TFLOP/s") if kind == "matmul" else (1e-9 * weight_bytes, "GB/s")
    print(f"recorded\t{kind} {name}\t{size}\t{seconds * 1e6:.3f}\t{work / seconds:.2f}\t{unit}", flush=True)
    ggml["free_buffer"](buffer)
    ggml["free"](context)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    ggml = library(sys.argv[1])
    device = ggml["device"](0)
    if not device:
        sys.exit("ggml finds no GPU")
    for name in FORMATS:
        for rows, inner in SHAPES:
            for columns in COLUMNS:
                line(ggml, device, name, rows, inner, columns)


if __name__ == "__main__":
    main()
