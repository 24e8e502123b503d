//! Convolutions of pictures doubled by nearest neighbour, without ever making the doubled picture.

use crate::conv::{Conv, Pixels};
use crate::parallel::{written, On, Shared, Threads};
use crate::product::{run, Bias, Job, Task};

/// Pixels that all phases are computed of at once, at least and at most.
const BAND: (usize, usize) = (64, 256);

/// `picture`, `(batch, inputs, rows, columns)`, doubled by nearest neighbour, then convolved with `kernel`,
/// `(outputs, inputs, 3, 3)`, with one zero on every side, plus `bias`: `(batch, outputs, 2 rows, 2 columns)`. The size
/// that `conv` tells is that of the picture before.
///
/// Of the nine elements of the kernel those that meet the same pixel are added first: each of the four pixels that one
/// becomes is a convolution of the picture itself with four elements.
pub fn conv2d_of_doubled(
    threads: &dyn Threads,
    conv: &Conv,
    picture: &[f32],
    kernel: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    assert!(conv.kernel == (3, 3) && (conv.stride, conv.padding, conv.dilation) == (1, 1, 1));
    let sizes = (conv.batch, conv.inputs, conv.size, conv.outputs);
    doubled_at(On::best(threads), sizes, picture, kernel, bias)
}

pub(crate) fn doubled_at(
    on: On,
    (batch, inputs, (height, width), outputs): (usize, usize, (usize, usize), usize),
    picture: &[f32],
    kernel: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let plane = inputs * height * width;
    assert!(picture.len() == batch * plane && kernel.len() == outputs * inputs * 9);
    assert!(bias.is_none_or(|bias| bias.len() == outputs));
    let kernels = phases(kernel);
    // Bands of rows, each of which one task computes for all phases.
    let wanted = batch * height * width / (4 * on.threads.count());
    let band = (wanted.clamp(BAND.0, BAND.1) / width.max(1)).clamp(1, height.max(1));
    let bands = height.div_ceil(band);
    let one = |task: usize, out: Shared| {
        let (i, rows) = (
            task / bands,
            task % bands * band..(task % bands * band + band).min(height),
        );
        let count = rows.len() * width;
        let (mut panels, mut phase) = (Vec::new(), vec![0f32; 2 * outputs * count]);
        for down in 0..2 {
            for right in 0..2 {
                let columns = Pixels {
                    picture: &picture[i * plane..(i + 1) * plane],
                    size: (height, width),
                    width,
                    kernel: (2, 2),
                    stride: 1,
                    dilation: 1,
                    padding: (1 - down, 1 - right),
                };
                let first = rows.start * width;
                let job = Job {
                    depth: inputs * 4,
                    left: (&kernels[2 * down + right], inputs * 4),
                    right: &columns,
                    out: (0, count),
                    rows: outputs,
                    columns: height * width,
                    bias: bias.map(Bias::Rows),
                };
                let task = Task::new(0..outputs, first..first + count);
                // Its columns begin at the band's first pixel.
                let to = Shared::new(phase[right * outputs * count..].as_mut_ptr()).back(first);
                // SAFETY: `phase` has room for the band, and sizes are checked above.
                unsafe { run(on.level, &job, &task, to, &mut panels) }
            }
            let (left, right) = phase.split_at(outputs * count);
            for channel in 0..outputs {
                for row in rows.clone() {
                    let from = channel * count + (row - rows.start) * width;
                    let to = ((i * outputs + channel) * 2 * height + 2 * row + down) * 2 * width;
                    let pairs = left[from..from + width]
                        .iter()
                        .zip(&right[from..from + width]);
                    for (x, (left, right)) in pairs.enumerate() {
                        // SAFETY: this row of the output is this task's.
                        unsafe {
                            out.pointer()
                                .add(to + 2 * x)
                                .cast::<[f32; 2]>()
                                .write_unaligned([*left, *right])
                        }
                    }
                }
            }
        }
    };
    // SAFETY: the bands are all rows of all pictures.
    unsafe {
        written(4 * batch * outputs * height * width, |out| {
            on.for_each(batch * bands, usize::MAX, |task| one(task, out));
        })
    }
}

/// The kernels of four elements of the phases (0, 0), (0, 1), (1, 0), (1, 1): in the first one of a direction, the first of
/// three elements meets the pixel before and the others this one, in the second the first two meet this one.
fn phases(kernel: &[f32]) -> [Vec<f32>; 4] {
    let mut phases = [(); 4].map(|()| Vec::with_capacity(kernel.len() / 9 * 4));
    for nine in kernel.as_chunks::<9>().0 {
        for (down, phases) in phases.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let columns: [[f32; 2]; 3] = std::array::from_fn(|column| {
                let [a, b, c] = [nine[column], nine[3 + column], nine[6 + column]];
                match down {
                    0 => [a, b + c],
                    _ => [a + b, c],
                }
            });
            let [a, b, c] = columns;
            for row in 0..2 {
                phases[0].extend([a[row], b[row] + c[row]]);
                phases[1].extend([a[row] + b[row], c[row]]);
            }
        }
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::tests::{assert_near, plain};
    use crate::testing::{all, numbers};

    #[test]
    fn doubled_pictures_are_doubled_first() {
        for (batch, inputs, size, outputs) in [
            (1, 1, (1, 1), 1),
            (2, 5, (3, 7), 13),
            (1, 70, (33, 18), 6),
            (1, 2, (2, 300), 7),
        ] {
            let picture = numbers(batch * inputs * size.0 * size.1, 4);
            let (kernel, bias) = (numbers(outputs * inputs * 9, 5), numbers(outputs, 6));
            let double: Vec<f32> = (0..batch * inputs * 4 * size.0 * size.1)
                .map(|i| {
                    let (plane, y, x) = (
                        i / (4 * size.0 * size.1),
                        i / (2 * size.1) % (2 * size.0),
                        i % (2 * size.1),
                    );
                    picture[(plane * size.0 + y / 2) * size.1 + x / 2]
                })
                .collect();
            let c = Conv {
                batch,
                inputs,
                size: (2 * size.0, 2 * size.1),
                outputs,
                kernel: (3, 3),
                stride: 1,
                padding: 1,
                dilation: 1,
            };
            let expected = plain(&c, &double, &kernel, Some(&bias));
            for on in all() {
                let level = on.level;
                let out = doubled_at(
                    on,
                    (batch, inputs, size, outputs),
                    &picture,
                    &kernel,
                    Some(&bias),
                );
                assert_near(&out, &expected, c.depth(), &format!("{level:?}, {size:?}"));
            }
        }
    }
}
