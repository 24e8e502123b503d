//! Norms of groups of channels.

use crate::lanes::{for_each_level, map, silu, Lanes, Map};
use crate::parallel::{written, On, Shared, Threads};

/// Elements whose sum is one of f32; that of these sums is one of f64.
const BLOCK: usize = 1024;

/// The sizes of a norm.
#[derive(Debug, Clone, Copy)]
pub struct GroupNorm {
    /// Channels of a picture.
    pub channels: usize,
    /// Groups, a divisor of `channels`.
    pub groups: usize,
    /// Elements of a channel.
    pub pixels: usize,
    /// Added to the variance.
    pub eps: f64,
    /// Whether SiLU follows.
    pub silu: bool,
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` for each group of `x`, `(batch, channels, pixels)`, with a number
/// of `weight` and `bias` for each channel, and SiLU of it where asked for.
pub fn group_norm(
    threads: &dyn Threads,
    norm: &GroupNorm,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
) -> Vec<f32> {
    group_norm_at(On::best(threads), norm, x, weight, bias)
}

pub(crate) fn group_norm_at(
    on: On,
    norm: &GroupNorm,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
) -> Vec<f32> {
    let GroupNorm {
        channels,
        groups,
        pixels,
        ..
    } = *norm;
    assert!(
        groups > 0
            && channels.is_multiple_of(groups)
            && weight.len() == channels
            && bias.len() == channels
    );
    if x.is_empty() {
        return Vec::new();
    }
    assert!(x.len().is_multiple_of(channels * pixels));
    let each = channels / groups;
    let one_of = |i: usize, out: Shared| {
        let group = &x[i * each * pixels..(i + 1) * each * pixels];
        let first = i % groups * each;
        // SAFETY: the level is the processor's, and this part of the output is this task's.
        unsafe {
            let out = out.pointer().add(i * each * pixels);
            let (weight, bias) = (&weight[first..first + each], &bias[first..first + each]);
            one(on.level, norm, group, weight, bias, out);
        }
    };
    // SAFETY: the groups are all that there is.
    unsafe {
        written(x.len(), |out| {
            on.for_each(x.len() / (each * pixels), x.len(), |i| one_of(i, out));
        })
    }
}

for_each_level!(one = group(norm: &GroupNorm, x: &[f32], weight: &[f32], bias: &[f32], out: *mut f32));

#[inline(always)]
unsafe fn group<L: Lanes>(
    norm: &GroupNorm,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: *mut f32,
) {
    let count = x.len() as f64;
    let near = (sums::<L, false>(x, 0.0).0 / count) as f32;
    // Of what is left after the mean: the difference of large squares would lose what matters. That mean is of f32, so
    // what is left has a small one as well.
    let (rest, squares) = sums::<L, true>(x, near);
    let off = rest / count;
    let variance = squares / count - off * off;
    let scale = (variance + norm.eps).sqrt().recip();
    let lines = x.chunks_exact(norm.pixels).enumerate();
    for ((i, x), (weight, bias)) in lines.zip(weight.iter().zip(bias)) {
        let out = out.add(i * norm.pixels);
        let factor = scale * f64::from(*weight);
        let shift = f64::from(*bias) - off * factor;
        let (near, factor, shift) = (
            L::splat(near),
            L::splat(factor as f32),
            L::splat(shift as f32),
        );
        match norm.silu {
            true => map::<L>(
                x,
                &Line::<L, true> {
                    near,
                    factor,
                    shift,
                },
                out,
            ),
            false => map::<L>(
                x,
                &Line::<L, false> {
                    near,
                    factor,
                    shift,
                },
                out,
            ),
        }
    }
}

/// `(x - near) factor + shift`, and SiLU of it if asked for.
struct Line<L: Lanes, const SILU: bool> {
    near: L::V,
    factor: L::V,
    shift: L::V,
}

impl<L: Lanes, const SILU: bool> Map<L> for Line<L, SILU> {
    #[inline(always)]
    unsafe fn of(&self, x: L::V) -> L::V {
        let y = L::fma(L::sub(x, self.near), self.factor, self.shift);
        match SILU {
            true => silu::<L>(y),
            false => y,
        }
    }
}

/// The sum of `x - near`, and that of the squares of these if asked for.
#[inline(always)]
pub(crate) unsafe fn sums<L: Lanes, const SQUARES: bool>(x: &[f32], near: f32) -> (f64, f64) {
    let (zero, shift) = (L::splat(0.0), L::splat(near));
    let mut total = (0f64, 0f64);
    for block in x.chunks(BLOCK) {
        let from = block.as_ptr();
        // Four sums of each, so that none waits for itself.
        let (mut sums, mut squares) = ([zero; 4], [zero; 4]);
        let mut i = 0;
        while i + 4 * L::N <= block.len() {
            for j in 0..4 {
                let x = L::sub(L::load(from.add(i + j * L::N)), shift);
                sums[j] = L::add(sums[j], x);
                if SQUARES {
                    squares[j] = L::fma(x, x, squares[j]);
                }
            }
            i += 4 * L::N;
        }
        total.0 += f64::from(L::sum(L::add(
            L::add(sums[0], sums[1]),
            L::add(sums[2], sums[3]),
        )));
        if SQUARES {
            let squares = L::add(
                L::add(squares[0], squares[1]),
                L::add(squares[2], squares[3]),
            );
            total.1 += f64::from(L::sum(squares));
        }
        for x in &block[i..] {
            let x = f64::from(*x) - f64::from(near);
            total.0 += x;
            total.1 += x * x;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{all, numbers};

    fn plain(norm: &GroupNorm, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
        let each = norm.channels / norm.groups * norm.pixels;
        let groups = x.chunks_exact(each).enumerate();
        groups
            .flat_map(|(i, group)| {
                let mean = group.iter().map(|x| f64::from(*x)).sum::<f64>() / each as f64;
                let squares = group.iter().map(|x| (f64::from(*x) - mean).powi(2));
                let scale = (squares.sum::<f64>() / each as f64 + norm.eps)
                    .sqrt()
                    .recip();
                let elements = group.iter().enumerate();
                let channel = move |j: usize| (i * each + j) / norm.pixels % norm.channels;
                elements.map(move |(j, x)| {
                    let y = (f64::from(*x) - mean) * scale * f64::from(weight[channel(j)])
                        + f64::from(bias[channel(j)]);
                    if norm.silu {
                        y / (1.0 + (-y).exp())
                    } else {
                        y
                    }
                })
            })
            .collect()
    }

    #[test]
    fn groups_have_their_own_moments() {
        for (channels, groups, pixels, batch) in
            [(6, 3, 1, 2), (8, 2, 37, 3), (4, 4, 2500, 1), (5, 1, 16, 1)]
        {
            for (mean, silu) in [(0.0, false), (0.0, true), (1000.0, false), (-3.0, true)] {
                let norm = GroupNorm {
                    channels,
                    groups,
                    pixels,
                    eps: 1e-6,
                    silu,
                };
                let x: Vec<f32> = numbers(batch * channels * pixels, 7)
                    .iter()
                    .map(|x| x + mean)
                    .collect();
                let (weight, bias) = (numbers(channels, 8), numbers(channels, 9));
                let expected = plain(&norm, &x, &weight, &bias);
                for on in all() {
                    let level = on.level;
                    let out = group_norm_at(on, &norm, &x, &weight, &bias);
                    for (found, expected) in out.iter().zip(&expected) {
                        let apart = (f64::from(*found) - expected).abs();
                        assert!(
                            apart < 3e-6,
                            "{level:?}, {norm:?}, {mean}: {found} for {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_in_its_group() {
        let norm = GroupNorm {
            channels: 4,
            groups: 2,
            pixels: 19,
            eps: 1e-5,
            silu: true,
        };
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut x = numbers(4 * 19, 1);
            x[3] = wrong;
            for on in all() {
                let level = on.level;
                let out = group_norm_at(on, &norm, &x, &[1.0; 4], &[0.0; 4]);
                assert!(out[..38].iter().all(|x| x.is_nan()), "{level:?}");
                assert!(out[38..].iter().all(|x| x.is_finite()), "{level:?}");
            }
        }
    }
}
