//! Norms of rows.

use crate::group_norm::sums;
use crate::lanes::{for_each_level, Lanes, Level};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of one row; all slices are as long as it.
pub fn row(x: &[f32], weight: &[f32], bias: &[f32], eps: f64, out: &mut [f32]) {
    row_at(Level::detect(), x, weight, bias, eps, out);
}

pub(crate) fn row_at(
    level: Level,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    eps: f64,
    out: &mut [f32],
) {
    assert!([weight.len(), bias.len(), out.len()] == [x.len(); 3]);
    // SAFETY: the level is the processor's, and lengths are checked above.
    unsafe { one(level, x, weight, bias, eps, out) }
}

for_each_level!(one = norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f64, out: &mut [f32]));

#[inline(always)]
unsafe fn norm<L: Lanes>(x: &[f32], weight: &[f32], bias: &[f32], eps: f64, out: &mut [f32]) {
    let count = x.len() as f64;
    let near = (sums::<L, false>(x, 0.0).0 / count) as f32;
    let (rest, squares) = sums::<L, true>(x, near);
    let off = rest / count;
    let scale = (squares / count - off * off + eps).sqrt().recip();
    let (near, scale, shift) = (
        L::splat(near),
        L::splat(scale as f32),
        L::splat((-off * scale) as f32),
    );
    let (from, weight, bias, to) = (x.as_ptr(), weight.as_ptr(), bias.as_ptr(), out.as_mut_ptr());
    let whole = x.len() / L::N * L::N;
    let mut i = 0;
    while i < whole {
        let normed = L::fma(L::sub(L::load(from.add(i)), near), scale, shift);
        L::store(
            to.add(i),
            L::fma(normed, L::load(weight.add(i)), L::load(bias.add(i))),
        );
        i += L::N;
    }
    let rest = x.len() - whole;
    if rest > 0 {
        let normed = L::fma(L::sub(L::load_part(from.add(i), rest), near), scale, shift);
        let (weight, bias) = (
            L::load_part(weight.add(i), rest),
            L::load_part(bias.add(i), rest),
        );
        L::store_part(to.add(i), L::fma(normed, weight, bias), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn rows_have_their_own_moments() {
        for (width, mean) in [(1, 0.0), (15, 3.0), (96, 1000.0), (1100, -1.0)] {
            let x: Vec<f32> = numbers(width, 1).iter().map(|x| x + mean).collect();
            let (weight, bias) = (numbers(width, 2), numbers(width, 3));
            let middle = x.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
            let squares = x
                .iter()
                .map(|x| (f64::from(*x) - middle).powi(2))
                .sum::<f64>();
            let deviation = (squares / width as f64 + 1e-5).sqrt();
            for level in Level::all() {
                let mut out = vec![f32::NAN; width];
                row_at(level, &x, &weight, &bias, 1e-5, &mut out);
                for (i, found) in out.iter().enumerate() {
                    let expected = (f64::from(x[i]) - middle) / deviation * f64::from(weight[i])
                        + f64::from(bias[i]);
                    assert!(
                        (f64::from(*found) - expected).abs() < 3e-6,
                        "{level:?}, {width}, {i}: {found} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_is_none_in_all_of_the_row() {
        for (level, wrong) in Level::all()
            .into_iter()
            .flat_map(|l| [f32::NAN, f32::INFINITY].map(|x| (l, x)))
        {
            let mut x = numbers(21, 1);
            x[20] = wrong;
            let mut out = [0f32; 21];
            row_at(level, &x, &[1.0; 21], &[0.0; 21], 1e-5, &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{level:?}");
        }
    }
}
