//! The lines of rocm-bench for candle's own CUDA backend: group, name, size, microseconds, rate, unit, tab-separated;
//! or, of GGUF files, the JSON of `llm-worker-rocm bench`.
//!
//!     candle-bench [GROUP…]
//!     candle-bench model FILE.gguf…

mod model;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use std::borrow::Cow;
use std::time::Instant;

const TARGET: f64 = 0.02;
const BATCHES: usize = 5;

enum Work {
    Bytes(f64),
    Flops(f64),
    Calls,
}

struct Bench {
    device: Device,
}

impl Bench {
    fn seconds(&self, call: &mut impl FnMut(usize) -> Result<()>) -> Result<f64> {
        let mut batch = |count: usize| -> Result<f64> {
            let start = Instant::now();
            (0..count).try_for_each(&mut *call)?;
            self.device.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        batch(2)?;
        let (mut count, share) = (2, TARGET / BATCHES as f64);
        while count < 1 << 20 {
            let seconds = batch(count)?;
            if seconds >= share {
                break;
            }
            let wanted = share * 1.2 / seconds.max(1e-7) * count as f64;
            count = (wanted as usize).clamp(count * 2, count * 16);
        }
        let mut times = (0..BATCHES)
            .map(|_| batch(count))
            .collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[BATCHES / 2] / count as f64)
    }

    fn time(
        &self,
        group: &str,
        name: &str,
        size: &str,
        work: Work,
        mut call: impl FnMut(usize) -> Result<()>,
    ) {
        let seconds = match self.seconds(&mut call) {
            Ok(seconds) => seconds,
            Err(error) => {
                return println!(
                    "# {group} {name} {size}: {}",
                    error.to_string().lines().next().unwrap_or_default()
                )
            }
        };
        let (rate, unit) = match work {
            Work::Bytes(bytes) => (bytes / seconds / 1e9, "GB/s"),
            Work::Flops(flops) => (flops / seconds / 1e12, "TFLOP/s"),
            Work::Calls => (1e-3 / seconds, "kcall/s"),
        };
        println!(
            "{group}\t{name}\t{size}\t{:.3}\t{rate:.2}\t{unit}",
            seconds * 1e6
        );
    }

    fn random(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        Tensor::randn(0f32, 1f32, dims, &self.device)?.to_dtype(dtype)
    }
}

fn name(dtype: DType) -> &'static str {
    dtype.as_str()
}

fn operations(bench: &Bench) -> Result<()> {
    for n in [1usize << 12, 1 << 20, 1 << 26] {
        let size = n.to_string();
        let columns = n.min(4096);
        let rows = n / columns;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let (x, y) = (bench.random(dtype, &[n])?, bench.random(dtype, &[n])?);
            let one = (n * dtype.size_in_bytes()) as f64;
            let line = |operation: &str, tensors: f64, call: &dyn Fn() -> Result<Tensor>| {
                let label = format!("{operation} {}", name(dtype));
                bench.time(
                    "operation",
                    &label,
                    &size,
                    Work::Bytes(tensors * one),
                    |_| call().map(drop),
                );
            };
            line("add", 3.0, &|| &x + &y);
            line("div", 3.0, &|| &x / &y);
            line("exp", 2.0, &|| x.exp());
            line("silu", 2.0, &|| x.silu());
            line("gelu", 2.0, &|| x.gelu());
            line("gelu_erf", 2.0, &|| x.gelu_erf());
            line("tanh", 2.0, &|| x.tanh());
            line("sin", 2.0, &|| x.sin());
            line("sqrt", 2.0, &|| x.sqrt());
            line("affine", 2.0, &|| x.affine(1.5, 0.5));
            let to = if dtype == DType::F32 {
                DType::F16
            } else {
                DType::F32
            };
            let label = format!("cast {} {}", name(dtype), name(to));
            bench.time(
                "operation",
                &label,
                &size,
                Work::Bytes(6.0 * n as f64),
                |_| x.to_dtype(to).map(drop),
            );
            let condition = x.lt(&y)?;
            line("where", 3.0 + 1.0 / dtype.size_in_bytes() as f64, &|| {
                condition.where_cond(&x, &y)
            });
            let name_of = |operation: &str| format!("{operation} {}", name(dtype));
            let compared = Work::Bytes(2.0 * one + n as f64);
            bench.time("operation", &name_of("lt"), &size, compared, |_| {
                x.lt(&y).map(drop)
            });
            line("silu_mul", 3.0, &|| x.silu()? * &y);
            line("normal", 1.0, &|| x.randn_like(0.0, 1.0));
            let side = 1 << (n.ilog2() / 2);
            let square = bench.random(dtype, &[side, n / side])?.t()?;
            line("copy transposed", 2.0, &|| square.contiguous());
            let matrix = bench.random(dtype, &[rows, columns])?;
            let row = bench.random(dtype, &[columns])?;
            line("add row", 2.0, &|| matrix.broadcast_add(&row));
            let other = x.reshape((rows, columns))?;
            line("concatenate", 4.0, &|| Tensor::cat(&[&matrix, &other], 1));
            if dtype == DType::BF16 {
                continue;
            }
            line("sum rows", 1.0, &|| matrix.sum(1));
            line("sum columns", 1.0, &|| matrix.sum(0));
            line("sum all", 1.0, &|| matrix.sum_all());
            line("max rows", 1.0, &|| matrix.max(1));
            line("max columns", 1.0, &|| matrix.max(0));
            line("max all", 1.0, &|| matrix.max_all());
            line("argmax rows", 1.0, &|| matrix.argmax(1));
            line("argmax columns", 1.0, &|| matrix.argmax(0));
            line("softmax", 2.0, &|| {
                candle_nn::ops::softmax_last_dim(&matrix)
            });
            line("rms_norm", 2.0, &|| {
                candle_nn::ops::rms_norm(&matrix, &row, 1e-5)
            });
            line("layer_norm", 2.0, &|| {
                candle_nn::ops::layer_norm(&matrix, &row, &row, 1e-5)
            });
            let heads = bench.random(dtype, &[1, columns / 128, rows, 128])?;
            let cos = bench.random(dtype, &[rows, 64])?;
            let sin = bench.random(dtype, &[rows, 64])?;
            line("rope", 2.0, &|| {
                candle_nn::rotary_emb::rope(&heads, &cos, &sin)
            });
            let ids: Vec<u32> = (0..rows as u32)
                .map(|i| (i as u64 * 2654435761 % rows as u64) as u32)
                .collect();
            let ids = Tensor::new(ids, &bench.device)?;
            line("index_select", 2.0, &|| matrix.index_select(&ids, 0));
            line("index_add", 4.0, &|| matrix.index_add(&ids, &matrix, 0));
        }
        let from = bench.random(DType::F32, &[rows, columns])?;
        let to = bench.random(DType::F32, &[rows, columns])?;
        let ids: Vec<u32> = (0..n as u64)
            .map(|i| (i * 2654435761 % columns as u64) as u32)
            .collect();
        let ids = Tensor::from_vec(ids, (rows, columns), &bench.device)?;
        let (gathered, added) = (Work::Bytes(12.0 * n as f64), Work::Bytes(16.0 * n as f64));
        bench.time("operation", "gather f32", &size, gathered, |_| {
            from.gather(&ids, 1).map(drop)
        });
        bench.time("operation", "scatter_add f32", &size, added, |_| {
            to.scatter_add_set(&ids, &from, 1)
        });
        if n <= 1 << 20 {
            let x = bench.random(DType::F32, &[rows, columns])?;
            bench.time(
                "operation",
                "argsort f32",
                &size,
                Work::Bytes(8.0 * n as f64),
                |_| x.arg_sort_last_dim(true).map(drop),
            );
        }
    }
    Ok(())
}

fn products(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (b, m, n, k) in [
            (1, 512, 512, 512),
            (1, 4096, 4096, 4096),
            (1, 1, 4096, 4096),
            (1, 1, 14336, 4096),
            (1, 512, 14336, 4096),
            (32, 512, 512, 256),
        ] {
            let x = bench.random(dtype, &[b, m, k])?;
            let w = bench
                .random(dtype, &[b, n, k])?
                .transpose(D::Minus1, D::Minus2)?;
            let work = match m {
                1 => Work::Bytes((b * n * k * dtype.size_in_bytes()) as f64),
                _ => Work::Flops(2.0 * (b * m * n * k) as f64),
            };
            let label = format!("matmul {}", name(dtype));
            bench.time("product", &label, &format!("{b}x{m}x{n}x{k}"), work, |_| {
                x.matmul(&w).map(drop)
            });
        }
    }
    Ok(())
}

fn quantized(bench: &Bench) -> Result<()> {
    use GgmlDType::*;
    for (format, label) in [
        (Q4_0, "q4_0"),
        (Q4_1, "q4_1"),
        (Q5_0, "q5_0"),
        (Q5_1, "q5_1"),
        (Q8_0, "q8_0"),
        (Q2K, "q2k"),
        (Q3K, "q3k"),
        (Q4K, "q4k"),
        (Q5K, "q5k"),
        (Q6K, "q6k"),
    ] {
        for (rows, cols) in [(4096usize, 4096usize), (14336, 4096), (32000, 4096)] {
            let bytes = rows * cols / format.block_size() * format.type_size();
            let mut state = 3u64;
            let one: Vec<u8> = (0..bytes.div_ceil(8))
                .flat_map(|_| {
                    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mut z = state;
                    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                    ((z ^ (z >> 31)) & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes()
                })
                .collect();
            let matrices = (0..((512 << 20) / bytes).max(1))
                .map(|_| {
                    let storage =
                        QStorage::from_data(Cow::Borrowed(&one[..bytes]), &bench.device, format)?;
                    QMatMul::from_qtensor(QTensor::new(storage, (rows, cols))?)
                })
                .collect::<Result<Vec<_>>>()?;
            for columns in [1, 4, 512] {
                let x = bench.random(DType::F32, &[columns, cols])?;
                let (operation, work) = match columns {
                    512 => ("matmul", Work::Flops(2.0 * (columns * rows * cols) as f64)),
                    _ => ("matvec", Work::Bytes(bytes as f64)),
                };
                bench.time(
                    "quantized",
                    &format!("{operation} {label}"),
                    &format!("{rows}x{cols}x{columns}"),
                    work,
                    |i| matrices[i % matrices.len()].forward(&x).map(drop),
                );
            }
        }
    }
    Ok(())
}

fn convolutions(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::F32] {
        for (batch, c_in, c_out, side, kernel) in [
            (2, 320, 320, 64, 3),
            (2, 640, 640, 32, 3),
            (2, 1280, 1280, 16, 3),
            (2, 320, 320, 64, 1),
            (1, 128, 128, 512, 3),
        ] {
            let x = bench.random(dtype, &[batch, c_in, side, side])?;
            let w = bench.random(dtype, &[c_out, c_in, kernel, kernel])?;
            let size = format!("{batch}x{c_in}x{side}x{side} to {c_out}, {kernel}x{kernel}");
            let flops = 2.0 * (batch * c_out * c_in * side * side * kernel * kernel) as f64;
            bench.time(
                "convolution",
                &format!("conv2d {}", name(dtype)),
                &size,
                Work::Flops(flops),
                |_| x.conv2d(&w, kernel / 2, 1, 1, 1).map(drop),
            );
        }
    }
    Ok(())
}

/// As candle's models compute it: keys and values repeated for the heads that share them, all scores in memory.
fn attention(bench: &Bench) -> Result<()> {
    const HEADS: usize = 32;
    const KV_HEADS: usize = 8;
    const HEAD_SIZE: usize = 128;
    let attend = |q: &Tensor, k: &Tensor, v: &Tensor, hidden: Option<(&Tensor, &Tensor)>| {
        let [k, v] =
            [k, v].map(|x| candle_transformers::utils::repeat_kv(x.clone(), HEADS / KV_HEADS));
        let scores = (q.matmul(&k?.t()?)? / (HEAD_SIZE as f64).sqrt())?;
        let scores = match hidden {
            None => scores,
            Some((mask, infinity)) => {
                let dims = scores.dims();
                mask.broadcast_as(dims)?
                    .where_cond(&infinity.broadcast_as(dims)?, &scores)?
            }
        };
        candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v?)
    };
    for dtype in [DType::F16, DType::BF16] {
        for keys in [1024, 4096, 16384] {
            let q = bench.random(dtype, &[1, HEADS, keys, HEAD_SIZE])?;
            let k = bench.random(dtype, &[1, KV_HEADS, keys, HEAD_SIZE])?;
            let v = bench.random(dtype, &[1, KV_HEADS, keys, HEAD_SIZE])?;
            let one = q.narrow(2, 0, 1)?.contiguous()?;
            let bytes =
                Work::Bytes((2 * keys * KV_HEADS * HEAD_SIZE * dtype.size_in_bytes()) as f64);
            let label = |kind: &str| format!("{kind} {}", name(dtype));
            bench.time(
                "attention",
                &label("decode"),
                &keys.to_string(),
                bytes,
                |_| attend(&one, &k, &v, None).map(drop),
            );
            let mask = candle_transformers::utils::build_causal_mask(keys, 0, &bench.device)?;
            let infinity = Tensor::new(f32::NEG_INFINITY, &bench.device)?.to_dtype(dtype)?;
            let flops = Work::Flops(2.0 * (keys * keys * HEADS * HEAD_SIZE) as f64);
            bench.time(
                "attention",
                &label("causal"),
                &keys.to_string(),
                flops,
                |_| attend(&q, &k, &v, Some((&mask, &infinity))).map(drop),
            );
        }
    }
    Ok(())
}

fn images(bench: &Bench) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        for (batch, channels, side) in [(2, 1280, 16), (2, 320, 64), (1, 256, 256)] {
            let x = bench.random(dtype, &[batch, channels, side, side])?;
            let size = format!("{batch}x{channels}x{side}x{side}");
            let one = (x.elem_count() * dtype.size_in_bytes()) as f64;
            let line = |operation: &str, tensors: f64, call: &dyn Fn() -> Result<Tensor>| {
                let label = format!("{operation} {}", name(dtype));
                bench.time("image", &label, &size, Work::Bytes(tensors * one), |_| {
                    call().map(drop)
                });
            };
            line("upsample_nearest2d", 5.0, &|| {
                x.upsample_nearest2d(2 * side, 2 * side)
            });
            line("upsample_bilinear2d", 5.0, &|| {
                x.upsample_bilinear2d(2 * side, 2 * side, false)
            });
            line("avg_pool2d", 1.25, &|| x.avg_pool2d(2));
            line("max_pool2d", 1.25, &|| x.max_pool2d(2));
        }
    }
    Ok(())
}

/// What the host pays for one operation while the device works behind.
fn host(bench: &Bench) -> Result<()> {
    let (x, y) = (
        bench.random(DType::F32, &[1024])?,
        bench.random(DType::F32, &[1024])?,
    );
    let weight = bench.random(DType::F32, &[1024])?;
    let matrix = x.reshape((1, 1024))?;
    let calls: [(&str, &dyn Fn() -> Result<Tensor>); 2] = [
        ("operation: add", &|| &x + &y),
        ("operation: rms_norm", &|| {
            candle_nn::ops::rms_norm(&matrix, &weight, 1e-5)
        }),
    ];
    for (label, call) in calls {
        call()?;
        let mut times = Vec::new();
        for _ in 0..41 {
            bench.device.synchronize()?;
            let start = Instant::now();
            for _ in 0..512 {
                call()?;
            }
            times.push(start.elapsed().as_secs_f64() / 512.0);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "host\t{label}\thost\t{:.3}\t{:.2}\tkcall/s",
            times[20] * 1e6,
            1e-3 / times[20]
        );
    }
    bench.time("host", "synchronize", "host", Work::Calls, |_| {
        bench.device.synchronize()
    });
    Ok(())
}

fn main() -> Result<()> {
    let bench = Bench {
        device: Device::new_cuda(0)?,
    };
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let [command, files @ ..] = &wanted[..] {
        if command == "model" {
            return files
                .iter()
                .try_for_each(|file| model::measure(file, &bench.device));
        }
    }
    println!("# candle 0.11.1, CUDA");
    let groups: [(&str, fn(&Bench) -> Result<()>); 7] = [
        ("host", host),
        ("operation", operations),
        ("product", products),
        ("quantized", quantized),
        ("attention", attention),
        ("convolution", convolutions),
        ("image", images),
    ];
    for (group, run) in groups {
        if wanted.is_empty() || wanted.iter().any(|name| name == group) {
            run(&bench)?;
        }
    }
    Ok(())
}
