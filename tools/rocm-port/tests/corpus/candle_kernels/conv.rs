//! conv.cu: convolutions, their unfolding, pools and upsampling.

use crate::data::{Data, Type, Type::*};
use crate::layouts::Layout;
use crate::random::Random;
use crate::rows::{Output, Row};

/// What a convolution is made of: two spatial dimensions, of which the first is 1 for those of one.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    input: usize,
    output: usize,
    height: usize,
    width: usize,
    kernel_height: usize,
    kernel_width: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Shape {
    /// Size of the output along a dimension.
    fn out(&self, size: usize, kernel: usize) -> usize {
        (size + 2 * self.padding - self.dilation * (kernel - 1) - 1) / self.stride + 1
    }

    fn out_height(&self) -> usize {
        if self.height == 1 {
            1
        } else {
            self.out(self.height, self.kernel_height)
        }
    }

    fn out_width(&self) -> usize {
        self.out(self.width, self.kernel_width)
    }

    /// Where along a dimension the kernel's element `k` lies for output `o`, if it lies inside.
    fn source(&self, o: usize, k: usize, size: usize) -> Option<usize> {
        let at = (o * self.stride + k * self.dilation).checked_sub(self.padding)?;
        (at < size).then_some(at)
    }

    /// The same for the height, which is not padded where there is none.
    fn row(&self, o: usize, k: usize) -> Option<usize> {
        if self.height == 1 {
            Some(0)
        } else {
            self.source(o, k, self.height)
        }
    }

    /// The output of the convolution, rounded to `kind` after each sum if that adds in `kind`.
    fn convolve(&self, x: &[f64], k: &[f64]) -> Vec<f64> {
        let mut out = Vec::new();
        let s = self;
        for (b, o) in (0..s.batch).flat_map(|b| (0..s.output).map(move |o| (b, o))) {
            for (h, w) in (0..s.out_height()).flat_map(|h| (0..s.out_width()).map(move |w| (h, w)))
            {
                let mut sum = 0.;
                for c in 0..s.input {
                    for (kh, kw) in
                        (0..s.kernel_height).flat_map(|h| (0..s.kernel_width).map(move |w| (h, w)))
                    {
                        if let (Some(y), Some(z)) = (s.row(h, kh), s.source(w, kw, s.width)) {
                            let weight =
                                ((o * s.input + c) * s.kernel_height + kh) * s.kernel_width + kw;
                            sum += x[((b * s.input + c) * s.height + y) * s.width + z] * k[weight];
                        }
                    }
                }
                out.push(sum);
            }
        }
        out
    }

    /// The transposed one: each input is spread over the outputs that it would come from. `extra` is what the output
    /// is longer at its end.
    fn spread(&self, x: &[f64], k: &[f64], extra: usize) -> (usize, usize, Vec<f64>) {
        let s = self;
        let long = |size: usize, kernel: usize| {
            (size - 1) * s.stride + s.dilation * (kernel - 1) + extra + 1 - 2 * s.padding
        };
        let height = if s.height == 1 {
            1
        } else {
            long(s.height, s.kernel_height)
        };
        let width = long(s.width, s.kernel_width);
        let mut out = vec![0.; s.batch * s.output * height * width];
        let place = |i: usize, k: usize, size: usize| {
            let at = (i * s.stride + k * s.dilation).checked_sub(s.padding)?;
            (at < size).then_some(at)
        };
        for (b, c) in (0..s.batch).flat_map(|b| (0..s.input).map(move |c| (b, c))) {
            for (y, z) in (0..s.height).flat_map(|y| (0..s.width).map(move |z| (y, z))) {
                for o in 0..s.output {
                    for (kh, kw) in
                        (0..s.kernel_height).flat_map(|h| (0..s.kernel_width).map(move |w| (h, w)))
                    {
                        let h = if s.height == 1 {
                            Some(0)
                        } else {
                            place(y, kh, height)
                        };
                        if let (Some(h), Some(w)) = (h, place(z, kw, width)) {
                            let weight =
                                ((c * s.output + o) * s.kernel_height + kh) * s.kernel_width + kw;
                            out[((b * s.output + o) * height + h) * width + w] +=
                                x[((b * s.input + c) * s.height + y) * s.width + z] * k[weight];
                        }
                    }
                }
            }
        }
        (height, width, out)
    }

    fn with(self, stride: usize, padding: usize, dilation: usize) -> Self {
        Self {
            stride,
            padding,
            dilation,
            ..self
        }
    }
}

/// Types of conv.cu.
const KINDS: [Type; 6] = [BF16, F16, F32, F64, U8, U32];

const LINE: Shape = Shape {
    batch: 2,
    input: 3,
    output: 4,
    height: 1,
    width: 13,
    kernel_height: 1,
    kernel_width: 3,
    stride: 1,
    padding: 1,
    dilation: 1,
};

const PLANE: Shape = Shape {
    height: 7,
    width: 9,
    kernel_height: 2,
    kernel_width: 3,
    ..LINE
};

/// Output of sums in f32, or in the type itself if it is wider; integers wrap.
fn sums(kind: Type, expected: Vec<f64>) -> Output {
    match kind {
        F16 | BF16 => Output::exact(kind, expected).within(2. * kind.step(), kind.step()),
        F32 => Output::exact(kind, expected).within(1e-5, 1e-5),
        F64 => Output::exact(kind, expected).within(1e-13, 1e-13),
        _ => Output::exact(kind, expected),
    }
}

/// Numbers of a type that are small enough for sums: quarters, so that those of floats are exact in f32.
fn numbers(kind: Type, count: usize, random: &mut Random) -> Data {
    Data::new(
        kind,
        (0..count).map(|_| match kind.float() {
            true => random.below(17) as f64 / 4. - 2.,
            false => random.below(6) as f64,
        }),
    )
}

/// Sizes and strides of a tensor, without the height if there is none.
fn dims(shape: &[usize]) -> Vec<u64> {
    Layout::contiguous(shape).info()
}

/// conv1d, conv2d, conv_transpose1d, conv_transpose2d.
pub fn convolutions(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in KINDS {
        let word = kind.word();
        for base in [LINE, PLANE] {
            let one = base.height == 1;
            for (stride, padding, dilation) in [(1, 1, 1), (2, 0, 1), (1, 2, 2)] {
                let s = base.with(stride, padding, dilation);
                let x = numbers(kind, s.batch * s.input * s.height * s.width, random);
                let k = numbers(
                    kind,
                    s.output * s.input * s.kernel_height * s.kernel_width,
                    random,
                );
                let sizes = |kernel: [usize; 2]| {
                    let mut sizes = match one {
                        true => dims(&[s.batch, s.input, s.width]),
                        false => dims(&[s.batch, s.input, s.height, s.width]),
                    };
                    sizes.extend(match one {
                        true => dims(&[kernel[0], kernel[1], s.kernel_width]),
                        false => dims(&[kernel[0], kernel[1], s.kernel_height, s.kernel_width]),
                    });
                    Data::sizes(&sizes)
                };
                let expected = s.convolve(&x.values(), &k.values());
                let (height, width, elements) = (s.out_height(), s.out_width(), expected.len());
                let row = Row::new(format!("conv{}d_{word}", if one { 1 } else { 2 }))
                    .each(elements)
                    .size(x.values().len());
                let row = if one {
                    row.size(width)
                } else {
                    row.sizes(&[width, height])
                };
                let row = row
                    .sizes(&[stride, padding, dilation])
                    .input(&sizes([s.output, s.input]))
                    .input(&x)
                    .input(&k)
                    .output(sums(kind, expected))
                    .about(format!(
                        "stride {stride}, padding {padding}, dilation {dilation}"
                    ));
                rows.push(match one && dilation > 1 {
                    true => row.known(
                        "conv1d multiplies the output's place by the dilation too: wrong for dilations above 1",
                    ),
                    false => row,
                });

                let extra = stride - 1;
                let (height, width, expected) = s.spread(&x.values(), &k.values(), extra);
                let row = Row::new(format!("conv_transpose{}d_{word}", if one { 1 } else { 2 }))
                    .each(expected.len())
                    .size(x.values().len());
                let row = if one {
                    row.size(width)
                } else {
                    row.sizes(&[width, height])
                };
                rows.push(
                    row.sizes(&[stride, padding, extra, dilation])
                        .input(&sizes([s.input, s.output]))
                        .input(&x)
                        .input(&k)
                        .output(sums(kind, expected))
                        .about(format!(
                            "stride {stride}, padding {padding}, dilation {dilation}"
                        )),
                );
            }
        }
    }
    rows
}

/// im2col1d, im2col and col2im1d.
pub fn unfolding(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in KINDS {
        let word = kind.word();
        for (stride, padding, dilation) in [(1, 1, 1), (2, 2, 2)] {
            let s = LINE.with(stride, padding, dilation);
            let x = numbers(kind, s.batch * s.input * s.width, random);
            let values = x.values();
            let mut expected = Vec::new();
            for (b, o) in (0..s.batch).flat_map(|b| (0..s.out_width()).map(move |o| (b, o))) {
                for (c, k) in (0..s.input).flat_map(|c| (0..s.kernel_width).map(move |k| (c, k))) {
                    let source = s.source(o, k, s.width);
                    expected.push(source.map_or(0., |at| values[(b * s.input + c) * s.width + at]));
                }
            }
            let lines = expected.len() / s.kernel_width;
            rows.push(
                Row::new(format!("im2col1d_{word}"))
                    .each(lines)
                    .sizes(&[
                        lines,
                        s.out_width(),
                        s.kernel_width,
                        stride,
                        padding,
                        dilation,
                    ])
                    .input(&Data::sizes(&dims(&[s.batch, s.input, s.width])))
                    .input(&x)
                    .output(Output::exact(kind, expected)),
            );

            let s = PLANE.with(stride, padding, dilation);
            let x = numbers(kind, s.batch * s.input * s.height * s.width, random);
            let values = x.values();
            let mut expected = Vec::new();
            for b in 0..s.batch {
                for (h, w) in
                    (0..s.out_height()).flat_map(|h| (0..s.out_width()).map(move |w| (h, w)))
                {
                    for c in 0..s.input {
                        for (kh, kw) in (0..s.kernel_height)
                            .flat_map(|h| (0..s.kernel_width).map(move |w| (h, w)))
                        {
                            expected.push(match (s.row(h, kh), s.source(w, kw, s.width)) {
                                (Some(y), Some(z)) => {
                                    values[((b * s.input + c) * s.height + y) * s.width + z]
                                }
                                _ => 0.,
                            });
                        }
                    }
                }
            }
            let sizes = [s.kernel_height, s.kernel_width, stride, padding, dilation];
            rows.push(
                Row::new(format!("im2col_{word}"))
                    .each(expected.len())
                    .sizes(&[expected.len(), s.out_height(), s.out_width()])
                    .sizes(&sizes)
                    .input(&Data::sizes(&dims(&[s.batch, s.input, s.height, s.width])))
                    .input(&x)
                    .output(Output::exact(kind, expected)),
            );

            // Columns (batch, length, channel, place) are added where they came from.
            let (batch, length, channels, places) = (2, 6, 3, 4);
            let long = (length - 1) * stride + places;
            let x = numbers(kind, batch * length * channels * places, random);
            let values = x.values();
            let mut expected = vec![0.; batch * channels * long];
            for (at, value) in values.iter().enumerate() {
                let (b, l) = (
                    at / (length * channels * places),
                    at / (channels * places) % length,
                );
                let (c, k) = (at / places % channels, at % places);
                let sum: &mut f64 = &mut expected[(b * channels + c) * long + l * stride + k];
                *sum += value;
            }
            rows.push(
                Row::new(format!("col2im1d_{word}"))
                    .each(expected.len())
                    .sizes(&[expected.len(), long, length, channels, places, stride])
                    .input(&x)
                    .output(Output::exact(kind, expected)),
            );
        }
    }
    rows
}

/// avg_pool2d, max_pool2d, upsample_nearest2d and upsample_bilinear2d.
pub fn pools(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let (batch, channels, height, width) = (2, 3, 7, 9);
    let planes = batch * channels;
    for kind in KINDS {
        let word = kind.word();
        let x = numbers(kind, planes * height * width, random);
        let values = x.values();
        let sizes = Data::sizes(&dims(&[batch, channels, height, width]));
        let at = |plane: usize, y: usize, z: usize| values[(plane * height + y) * width + z];
        for (kh, kw, sh, sw) in [(2, 3, 2, 3), (3, 2, 1, 1)] {
            let (oh, ow) = ((height - kh) / sh + 1, (width - kw) / sw + 1);
            let places = (0..planes * oh * ow).map(|i| (i / (oh * ow), i / ow % oh, i % ow));
            let windows: Vec<Vec<f64>> = places
                .map(|(p, y, z)| {
                    (0..kh * kw)
                        .map(|k| at(p, y * sh + k / kw, z * sw + k % kw))
                        .collect()
                })
                .collect();
            let row = |name: &str, output: Output| {
                Row::new(format!("{name}_{word}"))
                    .each(windows.len())
                    .sizes(&[values.len(), kh, kw, sh, sw])
                    .input(&sizes)
                    .input(&x)
                    .output(output)
            };
            let mean = windows
                .iter()
                .map(|w| w.iter().sum::<f64>() / (kh * kw) as f64);
            let max = windows
                .iter()
                .map(|w| w.iter().copied().fold(f64::MIN, f64::max));
            // The quotient is a product with an f32: integers are truncated from just below or above.
            let mean: Vec<f64> = match kind.float() {
                true => mean.collect(),
                false => windows.iter().map(|w| truncated_mean(w)).collect(),
            };
            let output = match kind {
                F64 => Output::exact(kind, mean).within(1e-6, 1e-6),
                _ => sums(kind, mean),
            };
            rows.push(row("avg_pool2d", output));
            rows.push(row("max_pool2d", Output::exact(kind, max)));
        }
        for (oh, ow) in [(14, 18), (5, 12)] {
            let places =
                || (0..planes * oh * ow).map(move |i| (i / (oh * ow), i / ow % oh, i % ow));
            let (sh, sw) = (height as f64 / oh as f64, width as f64 / ow as f64);
            let nearest = places().map(|(p, y, z)| {
                let (y, z) = ((y as f64 * sh) as usize, (z as f64 * sw) as usize);
                at(p, y.min(height - 1), z.min(width - 1))
            });
            rows.push(
                Row::new(format!("upsample_nearest2d_{word}"))
                    .each(planes * oh * ow)
                    .sizes(&[oh, ow])
                    .scalar(F64, sh)
                    .scalar(F64, sw)
                    .input(&sizes)
                    .input(&x)
                    .output(Output::exact(kind, nearest)),
            );
            for (corners, given) in [(true, false), (false, false), (false, true)] {
                let factors = (2., 2.25);
                let scale = |size: usize, out: usize, factor: f64| match (corners, given) {
                    (true, _) => (size - 1) as f64 / (out - 1) as f64,
                    (_, true) => 1. / factor,
                    _ => size as f64 / out as f64,
                };
                let (sh, sw) = (scale(height, oh, factors.0), scale(width, ow, factors.1));
                let source = |o: usize, scale: f64, size: usize| {
                    let at = if corners {
                        scale * o as f64
                    } else {
                        scale * (o as f64 + 0.5) - 0.5
                    };
                    let at = at.max(0.);
                    let (low, high) =
                        (at.floor() as usize, (at.floor() as usize + 1).min(size - 1));
                    (low, high, (at - low as f64).clamp(0., 1.))
                };
                if places().any(|(_, y, z)| {
                    source(y, sh, height).0 >= height || source(z, sw, width).0 >= width
                }) {
                    continue;
                }
                let expected: Vec<f64> = places()
                    .map(|(p, y, z)| {
                        let (y0, y1, v) = source(y, sh, height);
                        let (z0, z1, u) = source(z, sw, width);
                        let top = at(p, y0, z0) * (1. - u) + at(p, y0, z1) * u;
                        let bottom = at(p, y1, z0) * (1. - u) + at(p, y1, z1) * u;
                        top * (1. - v) + bottom * v
                    })
                    .collect();
                let flag = |value: bool| f64::from(u8::from(value));
                rows.push(
                    Row::new(format!("upsample_bilinear2d_{word}"))
                        .each(planes * oh * ow)
                        .sizes(&[ow, oh])
                        .scalar(U8, flag(corners))
                        .scalar(U8, flag(given))
                        .scalar(F64, factors.0)
                        .scalar(U8, flag(given))
                        .scalar(F64, factors.1)
                        .input(&sizes)
                        .input(&x)
                        .output(match kind.float() {
                            true => sums(kind, expected),
                            // A sum of weights may come out a little below the whole number that it is.
                            false => Output::exact(kind, expected).within(1., 0.),
                        })
                        .about(if corners {
                            "corners aligned"
                        } else {
                            "centres aligned"
                        }),
                );
            }
        }
    }
    rows
}

/// The mean as avg_pool2d computes it for integers: the sum times an f32 below or above one over the count.
fn truncated_mean(window: &[f64]) -> f64 {
    let scale = (1. / window.len() as f64) as f32;
    f64::from(window.iter().sum::<f64>() as f32 * scale).trunc()
}
