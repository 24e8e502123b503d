//! Products of 8-bit floats in f64, and what they are compared with.

use crate::common::Rng;
use float8::F8E4M3;

/// Normalised mean squared error that sums in f32 are allowed, of results in f32.
pub const SUMMED: f64 = 1e-11;

/// The same of results of 16 bits.
pub const ROUNDED: f64 = 1e-5;

/// Any floats but NaN, all bits alike, -0 among them.
pub fn finite(rng: &mut Rng, count: usize) -> Vec<F8E4M3> {
    let float = |_| match rng.below(256) as u8 {
        0x7f | 0xff => F8E4M3::from_bits(0x80),
        bits => F8E4M3::from_bits(bits),
    };
    (0..count).map(float).collect()
}

/// The product for each matrix of `a`, which all meet one of `b` or each its own.
pub fn product(a: &[f64], b: &[f64], [batches, m, n, k]: [usize; 4]) -> Vec<f64> {
    let mut out = Vec::with_capacity(batches * m * n);
    for (matrix, a) in a.chunks(m * k).enumerate() {
        let b = match b.len() == n * k {
            true => b,
            false => &b[matrix * n * k..][..n * k],
        };
        for row in a.chunks(k) {
            let column = |column: &[f64]| row.iter().zip(column).map(|(x, y)| x * y).sum::<f64>();
            out.extend(b.chunks(k).map(column));
        }
    }
    out
}
