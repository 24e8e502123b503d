//! Times the layers of `cpu-kernels` at the sizes of the built-in image model at 256 x 256 and of Stable Diffusion 1.5,
//! and prints one tab-separated line for each, as `rocm-bench` does: `group name size microseconds rate unit`.

use clap::Parser;
use cpu_kernels::attention::{self, Attention};
use cpu_kernels::conv::{self, Conv};
use cpu_kernels::gate::{self, Activation, Rows};
use cpu_kernels::group_norm::{self, GroupNorm};
use cpu_kernels::{doubled, layer_norm, linear, Rayon};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Times layers of f32 on the CPU. RAYON_NUM_THREADS says by how many threads.")]
struct Cli {
    /// Milliseconds of work per measurement, of which the fastest call counts.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
}

/// Batch, channels in and out, side of the picture, side of the kernel.
const CONVOLUTIONS: [(usize, usize, usize, usize, usize); 8] = [
    (2, 96, 96, 32, 3),
    (2, 160, 160, 16, 3),
    (2, 192, 192, 8, 3),
    (2, 96, 96, 32, 1),
    (1, 128, 128, 32, 3),
    (1, 64, 64, 128, 3),
    (1, 32, 32, 256, 3),
    (2, 320, 320, 64, 3),
];
/// Batch, channels in and out, side of the picture before it is doubled.
const DOUBLED: [(usize, usize, usize, usize); 2] = [(1, 96, 96, 64), (1, 64, 64, 128)];
/// Rows, inputs, outputs.
const LINEAR: [(usize, usize, usize); 4] = [
    (2048, 96, 768),
    (2048, 384, 96),
    (512, 160, 160),
    (8192, 320, 320),
];
/// Batch, rows, keys, heads, size of a head.
const ATTENTIONS: [(usize, usize, usize, usize, usize); 5] = [
    (2, 1024, 1024, 4, 24),
    (2, 1024, 77, 4, 24),
    (2, 256, 256, 4, 40),
    (1, 1024, 1024, 1, 128),
    (2, 4096, 4096, 8, 40),
];
/// Batch, channels, groups, pixels.
const NORMS: [(usize, usize, usize, usize); 2] = [(2, 96, 32, 1024), (1, 64, 8, 65536)];

fn main() {
    let wanted = Duration::from_millis(Cli::parse().milliseconds);
    let ones = |count: usize| vec![0.5f32; count];
    for (batch, inputs, outputs, side, kernel) in CONVOLUTIONS {
        let conv = Conv {
            batch,
            inputs,
            size: (side, side),
            outputs,
            kernel: (kernel, kernel),
            stride: 1,
            padding: kernel / 2,
            dilation: 1,
        };
        let (x, w, b) = (
            ones(batch * inputs * side * side),
            ones(outputs * inputs * kernel * kernel),
            ones(outputs),
        );
        let count = batch * outputs * side * side;
        let work = 2 * count * inputs * kernel * kernel;
        let size = format!("{batch}x{inputs}x{side}x{side} to {outputs}, {kernel}x{kernel}");
        time("conv2d", &size, work, wanted, || {
            drop(conv::conv2d(&Rayon, &conv, &x, &w, Some(&b)));
        });
    }
    for (batch, inputs, outputs, side) in DOUBLED {
        let conv = Conv {
            batch,
            inputs,
            size: (side, side),
            outputs,
            kernel: (3, 3),
            stride: 1,
            padding: 1,
            dilation: 1,
        };
        let (x, w) = (
            ones(batch * inputs * side * side),
            ones(outputs * inputs * 9),
        );
        let count = 4 * batch * outputs * side * side;
        let work = 2 * count * inputs * 4;
        let size = format!("{batch}x{inputs}x{side}x{side} to {outputs}");
        time("conv2d_of_doubled", &size, work, wanted, || {
            drop(doubled::conv2d_of_doubled(&Rayon, &conv, &x, &w, None));
        });
    }
    for (rows, inputs, outputs) in LINEAR {
        let (x, w, b) = (ones(rows * inputs), ones(outputs * inputs), ones(outputs));
        let count = rows * outputs;
        let size = format!("{rows}x{inputs} to {outputs}");
        time("linear", &size, 2 * count * inputs, wanted, || {
            drop(linear::linear(&Rayon, &x, &w, Some(&b), inputs));
        });
    }
    for (batch, rows, keys, heads, size) in ATTENTIONS {
        let sizes = Attention {
            batch,
            rows,
            keys,
            heads,
            kv_heads: heads,
            size,
            scale: 0.2,
            causal: false,
        };
        let (q, k) = (
            ones(batch * rows * heads * size),
            ones(batch * keys * heads * size),
        );
        let text = format!("{batch}x{rows}x{heads}x{size}, {keys} keys");
        time("attention", &text, 4 * q.len() * keys, wanted, || {
            drop(attention::attention(&Rayon, &sizes, &q, &k, &k));
        });
    }
    for (batch, channels, groups, pixels) in NORMS {
        let norm = GroupNorm {
            channels,
            groups,
            pixels,
            eps: 1e-5,
            silu: true,
        };
        let (x, w) = (ones(batch * channels * pixels), ones(channels));
        let size = format!("{batch}x{channels}x{pixels}, {groups} groups");
        // Elements, not operations: the rate is that of memory.
        time("group_norm_silu", &size, x.len(), wanted, || {
            drop(group_norm::group_norm(&Rayon, &norm, &x, &w, &w));
        });
    }
    let (x, w) = (ones(2048 * 768), ones(768));
    let count = 2048 * 384;
    time("gelu_mul", "2048x384", count, wanted, || {
        let half = |elements| Rows {
            elements,
            stride: 768,
        };
        drop(gate::gate(
            &Rayon,
            Activation::Gelu,
            half(&x[384..]),
            half(&x),
            (2048, 384),
        ));
    });
    let mut out = [0f32; 768];
    time("layer_norm", "1x768", 768, wanted, || {
        layer_norm::row(&x[..768], &w, &w, 1e-5, &mut out);
    });
}

/// Prints what the fastest of some calls takes: on a machine that others use as well it is the one to compare.
fn time(name: &str, size: &str, work: usize, wanted: Duration, mut call: impl FnMut()) {
    call();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < wanted {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let rate = work as f64 / best / 1e9;
    println!("cpu\t{name}\t{size}\t{:.3}\t{rate:.2}\tG/s", best * 1e6);
}
