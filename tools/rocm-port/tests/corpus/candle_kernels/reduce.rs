//! reduce.cu: sums and extremes of groups, softmax, norms and rotary embeddings.

use crate::data::{Data, Type, Type::*};
use crate::layouts::Layout;
use crate::random::Random;
use crate::rows::{Output, Row};

/// Layouts whose last dimensions are reduced, with the number of elements of a group.
fn groups() -> Vec<(Layout, usize)> {
    vec![
        (Layout::contiguous(&[5, 67]), 67),
        (Layout::contiguous(&[3, 4, 130]), 520),
        (Layout::new("transposed", &[4, 50], &[1, 4]), 50),
    ]
}

/// The values of a layout, in groups.
fn grouped(data: &Data, layout: &Layout, group: usize) -> Vec<Vec<f64>> {
    let values = data.values();
    let all: Vec<f64> = layout.all().into_iter().map(|at| values[at]).collect();
    all.chunks(group).map(<[f64]>::to_vec).collect()
}

/// Where the number is that is best; numbers differ.
fn best(values: &[f64], better: fn(f64, f64) -> bool) -> usize {
    (1..values.len()).fold(0, |best, i| {
        if better(values[i], values[best]) {
            i
        } else {
            best
        }
    })
}

/// Numbers for extremes: they differ within a group of up to 256, and are not all positive.
fn different(kind: Type, count: usize, random: &mut Random) -> Data {
    let shuffled = Data::shuffled(F64, count, random).values();
    Data::new(
        kind,
        shuffled.into_iter().map(|v| {
            if kind.float() {
                v - count as f64 / 3.
            } else {
                v
            }
        }),
    )
}

/// fast_sum, fast_min, fast_max, fast_argmin, fast_argmax, fast_sum_small and sum.
pub fn extremes_and_sums(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [BF16, F16, F32, F64, U32, I64, U8] {
        let word = kind.word();
        for (layout, group) in groups() {
            let (elements, count) = (layout.elements(), layout.elements() / group);
            let threads = group.min(1024).next_power_of_two();
            let row = |name: &str, input: &Data| {
                Row::new(format!("{name}_{word}"))
                    .grid([count, 1, 1])
                    .block([threads, 1, 1])
                    .sizes(&[elements, group, layout.dims.len()])
                    .input(&Data::sizes(&layout.info()))
                    .input(input)
                    .about(layout.name)
            };
            let high = if kind == U8 { 3. } else { 9. };
            let input = Data::random(kind, layout.storage(), 0., high, random);
            let sums = grouped(&input, &layout, group)
                .into_iter()
                .map(|g| g.iter().sum::<f64>());
            // f16 adds in f16, the others in f32 or exactly.
            let steps = if kind == F16 { 16. } else { 8. };
            rows.push(row("fast_sum", &input).output(Output::near(kind, sums, steps)));

            // A type with 8 bits of mantissa has no 520 different numbers.
            if layout.elements() > 256 && kind.bytes() < 4 {
                continue;
            }
            let input = different(kind, layout.storage(), random);
            let values = grouped(&input, &layout, group);
            for (word, better) in [
                ("min", (|a, b| a < b) as fn(f64, f64) -> bool),
                ("max", |a, b| a > b),
            ] {
                let found: Vec<usize> = values.iter().map(|g| best(g, better)).collect();
                let extreme = values.iter().zip(&found).map(|(g, &i)| g[i]);
                rows.push(
                    row(&format!("fast_{word}"), &input).output(Output::exact(kind, extreme)),
                );
                // The kernel takes the place in the last dimension.
                let last = layout.dims[layout.dims.len() - 1];
                let found = found.into_iter().map(|i| (i % last) as f64);
                rows.push(
                    row(&format!("fast_arg{word}"), &input).output(Output::exact(U32, found)),
                );
            }
        }
        for (layout, group) in [
            (Layout::contiguous(&[70, 8]), 8),
            (Layout::contiguous(&[3, 1]), 1),
            (Layout::new("transposed", &[9, 32], &[1, 9]), 32),
        ] {
            let count = layout.elements() / group;
            let input = Data::random(kind, layout.storage(), 0., 7., random);
            let sums = grouped(&input, &layout, group)
                .into_iter()
                .map(|g| g.iter().sum::<f64>());
            rows.push(
                Row::new(format!("fast_sum_small_{word}"))
                    .each(count)
                    .sizes(&[count, group, layout.dims.len()])
                    .input(&Data::sizes(&layout.info()))
                    .input(&input)
                    .output(Output::near(kind, sums, 4.))
                    .about(layout.name),
            );
        }
    }
    // Sums by atomics, over the first and the last of three dimensions.
    for kind in [BF16, F16, F32, F64, U32] {
        for layout in [
            Layout::contiguous(&[3, 5, 4]),
            Layout::new("transposed", &[3, 5, 4], &[1, 3, 15]),
        ] {
            let input = Data::random(kind, 60, 0., 9., random);
            let values = input.values();
            let mut sums = [0.; 5];
            for i in 0..60 {
                sums[i / 4 % 5] += values[layout.at(i)];
            }
            let sizes: Vec<u64> = layout.info().into_iter().chain([3, 4, 20, 1]).collect();
            rows.push(
                Row::new(format!("sum_{}", kind.word()))
                    .atomic()
                    .steps(60)
                    .sizes(&[60, 3, 2])
                    .input(&Data::sizes(&sizes))
                    .input(&input)
                    .output(Output::near(kind, sums, 8.).over(Data::new(kind, [0.; 5])))
                    .about(layout.name),
            );
        }
    }
    rows
}

/// softmax, rmsnorm and layernorm, of rows that a block of 32 takes and of rows that one of 1024 does.
pub fn norms(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [BF16, F16, F32, F64] {
        let word = kind.word();
        // Three roundings of the type; f64 kernels add in f32.
        let (absolute, relative) = match kind {
            F16 | BF16 => (3. * kind.step(), 3. * kind.step()),
            _ => (2e-5, 2e-5),
        };
        for (columns, threads) in [(5, 32), (70, 32), (1100, 1024)] {
            let lines = if columns > 1000 { 1 } else { 3 };
            let input = Data::random(kind, lines * columns, -3., 3., random);
            let values = input.values();
            let (alpha, beta) = (
                Data::random(kind, columns, 0.5, 2., random),
                Data::random(kind, columns, -1., 1., random),
            );
            let eps = f64::from(1e-5f32);
            if columns < 1000 {
                let softmax = values.chunks(columns).flat_map(|line| {
                    let max = line.iter().copied().fold(f64::MIN, f64::max);
                    let powers: Vec<f64> = line.iter().map(|v| (v - max).exp()).collect();
                    let sum: f64 = powers.iter().sum();
                    powers.into_iter().map(move |p| p / sum)
                });
                let (absolute, relative) = if kind == F64 {
                    (1e-14, 1e-12)
                } else {
                    (absolute, relative)
                };
                rows.push(
                    Row::new(format!("softmax_{word}"))
                        .grid([lines, 1, 1])
                        .block([1, 32, 1])
                        .input(&input)
                        .output(Output::exact(kind, softmax).within(absolute, relative))
                        .ints(&[columns]),
                );
            }
            let row = |name: &str| {
                Row::new(format!("{name}_{word}"))
                    .grid([lines, 1, 1])
                    .block([threads, 1, 1])
                    .input(&input)
            };
            let optional = |row: Row, data: Option<&Data>| match data {
                Some(data) => row.input(data),
                None => row.null(),
            };
            let end = |row: Row| row.ints(&[columns, threads]).scalar(F32, eps);
            for a in [None, Some(&alpha)] {
                let scale = a.map_or(vec![1.; columns], Data::values);
                let expected = values.chunks(columns).flat_map(|line| {
                    let square: f64 = line.iter().map(|v| v * v).sum::<f64>() / columns as f64;
                    let by = 1. / (square + eps).sqrt();
                    line.iter().zip(&scale).map(move |(v, s)| v * by * s)
                });
                let output = Output::exact(kind, expected).within(absolute, relative);
                rows.push(end(optional(row("rmsnorm").output(output), a)));
                for b in [None, Some(&beta)] {
                    let shift = b.map_or(vec![0.; columns], Data::values);
                    let expected = values.chunks(columns).flat_map(|line| {
                        let mean = line.iter().sum::<f64>() / columns as f64;
                        let square = line.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
                        let by = 1. / (square / columns as f64 + eps).sqrt();
                        let both = scale.iter().zip(&shift);
                        line.iter()
                            .zip(both)
                            .map(move |(v, (s, t))| (v - mean) * by * s + t)
                    });
                    // f32 sums of squares lose some where the variance is small beside the mean.
                    let output = Output::exact(kind, expected).within(absolute, relative.max(5e-5));
                    rows.push(end(optional(
                        optional(row("layernorm").output(output), a),
                        b,
                    )));
                }
            }
        }
    }
    rows
}

/// rope, rope_i and rope_thd, with one table for all of a batch or one for each.
pub fn rope(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let (b, h, t, d) = (2, 3, 5, 6);
    for kind in [BF16, F16, F32, F64] {
        let input = Data::random(kind, b * h * t * d, -2., 2., random);
        let values = input.values();
        for each in [false, true] {
            let tables = if each { b } else { 1 };
            let mut table = || Data::random(kind, tables * t * d / 2, -1., 1., random);
            let (cos, sin) = (table(), table());
            let stride = if each { h * t * d } else { 0 };
            let (c, s) = (cos.values(), sin.values());
            // (batch, head, time) of each pair, in order of tensors (b, h, t, d) and (b, t, h, d).
            let mut places: Vec<(usize, usize, usize)> = Vec::new();
            for (b, h, t) in
                (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..t).map(move |t| (b, h, t))))
            {
                places.push((b, h, t));
            }
            // Pairs are neighbours (`interleaved`) or half a row apart.
            let rotated = |interleaved: bool, times_first: bool| {
                let mut out = vec![0.; values.len()];
                for &(pb, ph, pt) in &places {
                    let line = match times_first {
                        true => (pb * t + pt) * h + ph,
                        false => (pb * h + ph) * t + pt,
                    };
                    for i in 0..d / 2 {
                        let (x, y) = if interleaved {
                            (2 * i, 2 * i + 1)
                        } else {
                            (i, i + d / 2)
                        };
                        let (x, y) = (line * d + x, line * d + y);
                        let at = (if each { pb * t } else { 0 } + pt) * (d / 2) + i;
                        out[x] = values[x] * c[at] - values[y] * s[at];
                        out[y] = values[x] * s[at] + values[y] * c[at];
                    }
                }
                Output::exact(kind, out).within(4. * kind.step(), kind.step())
            };
            let row = |name: &str, output: Output| {
                Row::new(format!("{name}_{}", kind.word()))
                    .each(b * h * t * d / 2)
                    .input(&input)
                    .input(&cos)
                    .input(&sin)
                    .output(output)
                    .about(if each {
                        "a table for each of the batch"
                    } else {
                        "one table"
                    })
            };
            let words = |row: Row, values: &[usize]| {
                values
                    .iter()
                    .fold(row, |row, &value| row.scalar(U32, value as f64))
            };
            rows.push(words(
                row("rope_i", rotated(true, false)),
                &[b * h, t * d, stride],
            ));
            rows.push(words(
                row("rope", rotated(false, false)),
                &[b * h, t * d, d, stride],
            ));
            rows.push(words(
                row("rope_thd", rotated(false, true)),
                &[b, t, h, d, stride],
            ));
        }
    }
    rows
}
