//! Convolutions of pictures.

use crate::lanes::{for_each_level, Lanes, Level};
use crate::parallel::{written, On, Threads};
use crate::product::{multiply_all, Bias, Columns, Job};
use std::ops::Range;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct Conv {
    /// Pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub inputs: usize,
    /// Rows and columns of a picture.
    pub size: (usize, usize),
    /// Channels of the result.
    pub outputs: usize,
    /// Rows and columns of the kernel.
    pub kernel: (usize, usize),
    /// Pixels of the picture from one of the result to the next.
    pub stride: usize,
    /// Zeros on every side.
    pub padding: usize,
    /// Pixels of the picture from one element of the kernel to the next.
    pub dilation: usize,
}

/// Largest step of a convolution that is computed here, in pixels.
const MOST: usize = 1 << 16;

impl Conv {
    /// Whether it is one of those that models have, which are computed here: no step is 0 or larger than 65,536, and
    /// nothing that is computed of the sizes overflows.
    pub fn is_ordinary(&self) -> bool {
        let steps = [self.stride, self.dilation, self.kernel.0, self.kernel.1];
        let sides = [self.size.0, self.size.1];
        steps.iter().all(|step| (1..=MOST).contains(step))
            && self.padding <= MOST
            && sides.iter().all(|side| *side <= 1 << 31)
    }

    /// Rows and columns of the result; none where the kernel does not fit.
    pub fn out_size(&self) -> (usize, usize) {
        let along = |size: usize, kernel: usize| {
            let reach = self.dilation * (kernel - 1) + 1;
            match (size + 2 * self.padding).checked_sub(reach) {
                Some(rest) => rest / self.stride + 1,
                None => 0,
            }
        };
        (
            along(self.size.0, self.kernel.0),
            along(self.size.1, self.kernel.1),
        )
    }

    pub(crate) fn depth(&self) -> usize {
        self.inputs * self.kernel.0 * self.kernel.1
    }
}

/// Of which pixels a picture's columns consist.
pub(crate) struct Pixels<'a> {
    pub(crate) picture: &'a [f32],
    /// Rows and columns of the picture.
    pub(crate) size: (usize, usize),
    /// Columns of the result.
    pub(crate) width: usize,
    pub(crate) kernel: (usize, usize),
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Where the kernel's first element meets the first pixel: rows and columns outside of the picture.
    pub(crate) padding: (usize, usize),
}

/// Channels that are asked for before they are read.
const AHEAD: usize = 2;

/// Neighbours in a row of the result.
#[derive(Clone, Copy)]
struct Run {
    row: usize,
    first: usize,
    last: usize,
    /// Where they stand in a line.
    at: usize,
}

impl Columns for Pixels<'_> {
    unsafe fn pack(
        &self,
        level: Level,
        depth: Range<usize>,
        columns: Range<usize>,
        width: usize,
        to: *mut f32,
    ) {
        pack_runs(level, self, depth, columns, width, to);
    }
}

for_each_level!(pack_runs = runs(pixels: &Pixels, depth: Range<usize>, columns: Range<usize>, width: usize, to: *mut f32));

#[inline(always)]
unsafe fn runs<L: Lanes>(
    pixels: &Pixels,
    depth: Range<usize>,
    columns: Range<usize>,
    width: usize,
    to: *mut f32,
) {
    // Panels are at most 64 columns wide.
    let mut runs = [Run {
        row: 0,
        first: 0,
        last: 0,
        at: 0,
    }; 64];
    let (mut count, mut next) = (0, columns.start);
    while next < columns.end {
        let (row, first) = (next / pixels.width, next % pixels.width);
        let last = pixels.width.min(first + columns.end - next);
        runs[count] = Run {
            row,
            first,
            last,
            at: next - columns.start,
        };
        count += 1;
        next += last - first;
    }
    let (height, from_width) = pixels.size;
    let (k_h, k_w) = pixels.kernel;
    // Counted, as a division takes as long as copying a line.
    let mut channel = depth.start / (k_h * k_w);
    let (mut ky, mut kx) = (depth.start / k_w % k_h, depth.start % k_w);
    let mut line = to;
    for _ in depth {
        let plane = pixels.picture.as_ptr().add(channel * height * from_width);
        let (down, right) = (ky * pixels.dilation, kx * pixels.dilation);
        let (begin, end) = pixels.within(right);
        for run in &runs[..count] {
            let y = (run.row * pixels.stride + down).wrapping_sub(pixels.padding.0);
            let to = line.add(run.at);
            let first = run.first.max(begin).min(run.last);
            let last = run.last.min(end).max(first);
            if y >= height || first == last {
                fill::<L>(to, run.last - run.first);
                continue;
            }
            let from = plane.add(y * from_width + first * pixels.stride + right - pixels.padding.1);
            if kx == 0 {
                // Planes lie far apart, often as far as makes them compete for the same lines of the cache.
                let ahead = from.wrapping_add(AHEAD * height * from_width);
                for i in (0..(last - first) * pixels.stride).step_by(16) {
                    L::prefetch(ahead.wrapping_add(i));
                }
            }
            let to = to.add(first - run.first);
            match pixels.stride {
                1 => copy::<L>(from, to, last - first),
                stride => {
                    for i in 0..last - first {
                        *to.add(i) = *from.add(i * stride);
                    }
                }
            }
            // Beside the picture.
            for i in run.first..first {
                *line.add(run.at + i - run.first) = 0.0;
            }
            for i in last..run.last {
                *line.add(run.at + i - run.first) = 0.0;
            }
        }
        fill::<L>(line.add(columns.len()), width - columns.len());
        line = line.add(width);
        kx += 1;
        if kx == k_w {
            (kx, ky) = (0, ky + 1);
            if ky == k_h {
                (ky, channel) = (0, channel + 1);
            }
        }
    }
}

impl Pixels<'_> {
    /// Of a row of the result, the pixels that meet one of the picture with the element of the kernel that lies so far
    /// to the right.
    #[inline(always)]
    fn within(&self, right: usize) -> (usize, usize) {
        let first = self.padding.1.saturating_sub(right);
        let reach = (self.size.1 + self.padding.1).saturating_sub(right);
        match self.stride {
            1 => (first, reach),
            stride => (first.div_ceil(stride), reach.div_ceil(stride)),
        }
    }
}

#[inline(always)]
unsafe fn copy<L: Lanes>(from: *const f32, to: *mut f32, count: usize) {
    let mut i = 0;
    while i + L::N <= count {
        L::store(to.add(i), L::load(from.add(i)));
        i += L::N;
    }
    if i < count {
        L::store_part(to.add(i), L::load_part(from.add(i), count - i), count - i);
    }
}

#[inline(always)]
unsafe fn fill<L: Lanes>(to: *mut f32, count: usize) {
    let mut i = 0;
    while i < count {
        L::store_part(to.add(i), L::splat(0.0), count - i);
        i += L::N;
    }
}

/// The convolution of `picture`, `(batch, inputs, rows, columns)`, with `kernel`, `(outputs, inputs, rows, columns)`, plus
/// `bias`, `outputs`: `(batch, outputs, rows, columns)`. Without bias, nothing is added.
///
/// # Panics
/// If slices are not of these sizes, or the convolution is not [`Conv::is_ordinary`].
pub fn conv2d(
    threads: &dyn Threads,
    conv: &Conv,
    picture: &[f32],
    kernel: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    conv2d_at(On::best(threads), conv, picture, kernel, bias)
}

pub(crate) fn conv2d_at(
    on: On,
    conv: &Conv,
    picture: &[f32],
    kernel: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    // What follows reads by pointers at places computed of these.
    assert!(conv.is_ordinary(), "{conv:?} is not computed here");
    let (height, width) = conv.out_size();
    let (depth, pixels) = (conv.depth(), height * width);
    let plane = conv.inputs * conv.size.0 * conv.size.1;
    assert!(picture.len() == conv.batch * plane && kernel.len() == conv.outputs * depth);
    assert!(bias.is_none_or(|bias| bias.len() == conv.outputs));
    let columns: Vec<_> = (0..conv.batch)
        .map(|i| Pixels {
            picture: &picture[i * plane..(i + 1) * plane],
            size: conv.size,
            width,
            kernel: conv.kernel,
            stride: conv.stride,
            dilation: conv.dilation,
            padding: (conv.padding, conv.padding),
        })
        .collect();
    let jobs: Vec<_> = columns
        .iter()
        .enumerate()
        .map(|(i, right)| Job {
            depth,
            left: (kernel, depth),
            right,
            out: (i * conv.outputs * pixels, pixels),
            rows: conv.outputs,
            columns: pixels,
            bias: bias.map(Bias::Rows),
        })
        .collect();
    // SAFETY: sizes are checked above, and the jobs are all rows of all pictures.
    unsafe {
        written(conv.batch * conv.outputs * pixels, |out| {
            multiply_all(on, &jobs, out);
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{all, numbers};

    /// A convolution of one picture by kernels of 3 x 3 that keeps its size.
    fn padded(inputs: usize, size: (usize, usize), outputs: usize) -> Conv {
        Conv {
            batch: 1,
            inputs,
            size,
            outputs,
            kernel: (3, 3),
            stride: 1,
            padding: 1,
            dilation: 1,
        }
    }

    /// The convolution by its definition.
    pub(crate) fn plain(
        c: &Conv,
        picture: &[f32],
        kernel: &[f32],
        bias: Option<&[f32]>,
    ) -> Vec<f64> {
        let (height, width) = c.out_size();
        let mut out = Vec::new();
        for i in 0..c.batch {
            for o in 0..c.outputs {
                for at in 0..height * width {
                    let mut sum = bias.map_or(0.0, |b| f64::from(b[o]));
                    for k in 0..c.depth() {
                        let (channel, ky, kx) = (
                            k / (c.kernel.0 * c.kernel.1),
                            k / c.kernel.1 % c.kernel.0,
                            k % c.kernel.1,
                        );
                        let y = (at / width * c.stride + ky * c.dilation).wrapping_sub(c.padding);
                        let x = (at % width * c.stride + kx * c.dilation).wrapping_sub(c.padding);
                        if y < c.size.0 && x < c.size.1 {
                            let from = ((i * c.inputs + channel) * c.size.0 + y) * c.size.1 + x;
                            sum += f64::from(picture[from]) * f64::from(kernel[o * c.depth() + k]);
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    pub(crate) fn assert_near(found: &[f32], expected: &[f64], depth: usize, what: &str) {
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let apart = (f64::from(*found) - expected).abs();
            assert!(
                apart < 1e-5 * (depth as f64).sqrt(),
                "{what}, {i}: {found} for {expected}"
            );
        }
    }

    #[test]
    fn convolutions_are_sums_of_products() {
        let base = padded(3, (7, 9), 5);
        let cases = [
            base,
            Conv {
                batch: 2,
                inputs: 65,
                size: (4, 4),
                outputs: 26,
                ..base
            },
            Conv {
                size: (32, 33),
                outputs: 13,
                ..base
            },
            Conv {
                size: (1, 130),
                outputs: 6,
                ..base
            },
            Conv {
                stride: 2,
                size: (17, 16),
                ..base
            },
            Conv {
                stride: 3,
                padding: 0,
                kernel: (2, 5),
                size: (11, 70),
                ..base
            },
            Conv {
                dilation: 2,
                padding: 2,
                size: (8, 20),
                ..base
            },
            Conv {
                padding: 5,
                size: (2, 2),
                ..base
            },
            Conv {
                kernel: (1, 1),
                padding: 0,
                inputs: 20,
                size: (16, 16),
                ..base
            },
            Conv {
                kernel: (1, 1),
                padding: 3,
                size: (3, 2),
                ..base
            },
            Conv {
                kernel: (5, 5),
                padding: 0,
                size: (4, 9),
                ..base
            },
        ];
        for (number, c) in cases.iter().enumerate() {
            let picture = numbers(c.batch * c.inputs * c.size.0 * c.size.1, 1);
            let (kernel, bias) = (numbers(c.outputs * c.depth(), 2), numbers(c.outputs, 3));
            for bias in [None, Some(bias.as_slice())] {
                let expected = plain(c, &picture, &kernel, bias);
                for on in all() {
                    let level = on.level;
                    let out = conv2d_at(on, c, &picture, &kernel, bias);
                    assert_near(
                        &out,
                        &expected,
                        c.depth(),
                        &format!("{level:?}, case {number}"),
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_reaches_as_far_as_the_kernel() {
        let c = padded(1, (9, 40), 1);
        let mut picture = vec![1f32; 9 * 40];
        picture[4 * 40 + 20] = f32::NAN;
        for on in all() {
            let level = on.level;
            let out = conv2d_at(on, &c, &picture, &[1.0; 9], None);
            for (i, x) in out.iter().enumerate() {
                let near = (i / 40).abs_diff(4) < 2 && (i % 40).abs_diff(20) < 2;
                assert_eq!(x.is_nan(), near, "{level:?}, {i}");
            }
        }
    }

    #[test]
    fn steps_that_no_model_has_are_not_computed() {
        let ordinary = padded(1, (4, 5), 1);
        assert!(ordinary.is_ordinary());
        let changes: [fn(&mut Conv, usize); 4] = [
            |c, n| c.stride = n,
            |c, n| c.padding = n,
            |c, n| c.dilation = n,
            |c, n| c.kernel.1 = n,
        ];
        for change in changes {
            let mut other = ordinary;
            change(&mut other, usize::MAX);
            assert!(!other.is_ordinary(), "{other:?}");
        }
        for change in [changes[0], changes[2], changes[3]] {
            let mut other = ordinary;
            change(&mut other, 0);
            assert!(!other.is_ordinary(), "{other:?}");
        }
    }
}
