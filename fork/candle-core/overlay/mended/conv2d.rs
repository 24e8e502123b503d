//! Convolutions of f32 on the CPU. Where `cpu-kernels` has products for the processor they are its; elsewhere each tile
//! of output rows is one product, `kernel (c_out, c_in k_h k_w)` times the
//! columns of the tile's pixels (im2col), written where it belongs. Neither picture nor kernel is turned first, as both
//! lie as the product wants them, and small pictures are divided by output channels, too, so that all threads work.

use crate::conv::ParamsConv2D;
use crate::{CpuStorageRef, Layout, Result, WithDType};
use gemm::{gemm, Parallelism};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use std::borrow::Cow;

/// Pixels of a tile: its columns stay in the cache that a core has for itself.
const TILE: usize = 256;
/// Pixels of a tile and channels of a part, below which dividing costs more than another thread brings.
const LEAST: (usize, usize) = (64, 16);

/// Where a tile of one picture's output goes. Tiles are disjoint, so threads may write side by side.
#[derive(Clone, Copy)]
struct Output(*mut f32);

// SAFETY: every task writes rows and channels of its own only.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// What a task computes: output rows `rows` and output channels `channels` of a picture.
struct Task {
    picture: usize,
    rows: std::ops::Range<usize>,
    channels: std::ops::Range<usize>,
}

/// The convolution of `picture` with `kernel` if both are of f32.
pub(crate) fn of_f32<T: WithDType>(
    p: &ParamsConv2D,
    (picture, picture_layout): (&[T], &Layout),
    (kernel, kernel_layout): (&[T], &Layout),
) -> Option<Result<Vec<T>>> {
    let refs = (T::cpu_storage_ref(picture), T::cpu_storage_ref(kernel));
    let (CpuStorageRef::F32(picture), CpuStorageRef::F32(kernel)) = refs else {
        return None;
    };
    let picture = contiguous(picture, picture_layout);
    let kernel = contiguous(kernel, kernel_layout);
    let conv = sizes(p);
    let out = match cpu_kernels::has_products() && conv.is_ordinary() {
        true => {
            let pool = crate::utils::barrier_pool();
            cpu_kernels::conv::conv2d(pool, &conv, &picture, &kernel, None)
        }
        false => conv2d(p, &picture, &kernel, rayon::current_num_threads()),
    };
    Some(T::cpu_storage_data(crate::CpuStorage::F32(out)))
}

fn sizes(p: &ParamsConv2D) -> cpu_kernels::conv::Conv {
    cpu_kernels::conv::Conv {
        batch: p.b_size,
        inputs: p.c_in,
        size: (p.i_h, p.i_w),
        outputs: p.c_out,
        kernel: (p.k_h, p.k_w),
        stride: p.stride,
        padding: p.padding,
        dilation: p.dilation,
    }
}

/// Layers of `cpu-kernels` share the threads of candle's other operations: those of another pool would wait for the
/// cores on which these look out for more work.
impl cpu_kernels::Threads for crate::utils::BarrierPool {
    fn count(&self) -> usize {
        self.n_workers() + 1
    }

    fn share(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.execute_chunked(tasks, |some| some.for_each(task));
    }
}

fn contiguous<'a>(values: &'a [f32], layout: &Layout) -> Cow<'a, [f32]> {
    match layout.contiguous_offsets() {
        Some((first, end)) => Cow::Borrowed(&values[first..end]),
        None => Cow::Owned(layout.strided_index().map(|at| values[at]).collect()),
    }
}

/// The convolution of `picture` `(b_size, c_in, i_h, i_w)` with `kernel` `(c_out, c_in, k_h, k_w)`, both contiguous:
/// `(b_size, c_out, out_h, out_w)`.
fn conv2d(p: &ParamsConv2D, picture: &[f32], kernel: &[f32], threads: usize) -> Vec<f32> {
    let (height, width) = (p.out_h(), p.out_w());
    let (pixels, depth) = (height * width, p.c_in * p.k_h * p.k_w);
    let size = p.b_size * p.c_out * pixels;
    // Products of an empty sum are zeros, and empty ones nothing.
    let mut out = vec![0f32; size];
    if size == 0 || depth == 0 {
        return out;
    }
    let output = Output(out.as_mut_ptr());
    let is_plain = p.k_h == 1 && p.k_w == 1 && p.stride == 1 && p.padding == 0;
    tasks(p, threads)
        .into_par_iter()
        .for_each_init(Vec::new, |columns, task| {
            let from = &picture[task.picture * p.c_in * p.i_h * p.i_w..][..p.c_in * p.i_h * p.i_w];
            let count = task.rows.len() * width;
            let first = task.rows.start * width;
            let (columns, stride) = match is_plain {
                // The pixels are the columns.
                true => (&from[first..], pixels),
                false => {
                    columns.resize(depth * count, 0.0);
                    gather(p, from, &task.rows, columns);
                    (&columns[..], count)
                }
            };
            let kernel = &kernel[task.channels.start * depth..task.channels.end * depth];
            let to = (task.picture * p.c_out + task.channels.start) * pixels + first;
            let whole = output;
            // SAFETY: the kernel has `channels` rows of `depth`, the columns `depth` rows of `count` that are `stride`
            // apart, and the output `channels` rows of `count` from `to` on that are `pixels` apart and this task's.
            unsafe {
                gemm(
                    task.channels.len(),
                    count,
                    depth,
                    whole.0.add(to),
                    1,
                    pixels as isize,
                    false,
                    kernel.as_ptr(),
                    1,
                    depth as isize,
                    columns.as_ptr(),
                    1,
                    stride as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                )
            }
        });
    out
}

fn tasks(p: &ParamsConv2D, threads: usize) -> Vec<Task> {
    let (height, width) = (p.out_h(), p.out_w());
    let wanted = if threads > 1 { 2 * threads } else { 1 };
    let pixels = (p.b_size * height * width / wanted).clamp(LEAST.0, TILE);
    let rows = (pixels / width).clamp(1, height);
    let tiles = height.div_ceil(rows);
    let parts = (threads / (p.b_size * tiles)).clamp(1, (p.c_out / LEAST.1).max(1));
    let channels = p.c_out.div_ceil(parts);
    let mut tasks = Vec::with_capacity(p.b_size * tiles * parts);
    for picture in 0..p.b_size {
        for first in (0..height).step_by(rows) {
            for channel in (0..p.c_out).step_by(channels) {
                tasks.push(Task {
                    picture,
                    rows: first..(first + rows).min(height),
                    channels: channel..(channel + channels).min(p.c_out),
                });
            }
        }
    }
    tasks
}

/// What each element of the kernel meets at the pixels of these output rows: `(c_in k_h k_w, rows * width)`.
fn gather(p: &ParamsConv2D, from: &[f32], rows: &std::ops::Range<usize>, columns: &mut [f32]) {
    let width = p.out_w();
    let lines = columns.chunks_exact_mut(rows.len() * width);
    for (element, lines) in lines.enumerate() {
        let (channel, ky, kx) = (
            element / (p.k_h * p.k_w),
            element / p.k_w % p.k_h * p.dilation,
            element % p.k_w * p.dilation,
        );
        let plane = &from[channel * p.i_h * p.i_w..][..p.i_h * p.i_w];
        // Outputs whose input lies within the picture.
        let first = p.padding.saturating_sub(kx).div_ceil(p.stride).min(width);
        let last = match (p.i_w + p.padding).checked_sub(kx + 1) {
            Some(reach) => (reach / p.stride + 1).clamp(first, width),
            None => first,
        };
        for (line, row) in lines.chunks_exact_mut(width).zip(rows.clone()) {
            let y = row * p.stride + ky;
            let within = y >= p.padding && y - p.padding < p.i_h;
            if !within || first == last {
                line.fill(0.0);
                continue;
            }
            let start = (y - p.padding) * p.i_w + first * p.stride + kx - p.padding;
            line[..first].fill(0.0);
            line[last..].fill(0.0);
            let line = &mut line[first..last];
            match p.stride {
                1 => line.copy_from_slice(&plane[start..][..line.len()]),
                stride => {
                    let every = plane[start..].iter().step_by(stride);
                    line.iter_mut()
                        .zip(every)
                        .for_each(|(to, from)| *to = *from);
                }
            }
        }
    }
}
