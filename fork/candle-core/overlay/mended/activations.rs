//! Rows of activations that blocks of 8 bits do not hold.
//!
//! The blocks that weights in 32-element blocks are multiplied with have their scale, and some the sum of their
//! elements, in f16: beyond 2047 (65504 / 32) the sum is infinite, and below 127 / 2^14 the scale loses bits and ends at
//! 0. f16 weights take activations in f16. Such a row is multiplied by a power of two first and its products divided by
//! it, which changes no bit of them. A NaN or an infinity becomes an element of 0 in any such block, so a row with one
//! is set to NaN instead.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::quantized::GgmlDType;

/// The greatest magnitudes that need no factor, as exponents of two: from 2^-7 to below 2^11.
const PLAIN: std::ops::Range<i32> = -7..11;
/// The exponent that the greatest magnitude of a row gets.
const TARGET: i32 = 9;

/// What a row needs.
#[derive(Clone, Copy, PartialEq)]
enum Row {
    Plain,
    /// A factor of two to this power.
    Scaled(i32),
    NotFinite,
}

/// What blocks of activations can hold, for weights of a dtype.
#[derive(Clone, Copy, PartialEq)]
enum Blocks {
    /// As floats that hold all of f32.
    Floats,
    /// In 8 bits with scales in f32.
    Bytes,
    /// With scales in f16, or in f16 themselves.
    Halves,
}

impl Blocks {
    fn of(weights: GgmlDType) -> Self {
        use GgmlDType::{F16, Q2K, Q3K, Q4K, Q4_0, Q4_1, Q5K, Q5_0, Q5_1, Q6K, Q8K, Q8_0, Q8_1};
        match weights {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | F16 => Self::Halves,
            Q2K | Q3K | Q4K | Q5K | Q6K | Q8K => Self::Bytes,
            _ => Self::Floats,
        }
    }

    fn row(self, x: &[f32]) -> Row {
        // As integers, magnitudes are in their order, and what is not finite is above them.
        let greatest = x
            .iter()
            .fold(0, |most: u32, v| most.max(v.to_bits() & i32::MAX as u32));
        if greatest >= f32::INFINITY.to_bits() {
            return Row::NotFinite;
        }
        let exponent = f64::from(f32::from_bits(greatest)).log2().floor() as i32;
        match self == Self::Halves && greatest != 0 && !PLAIN.contains(&exponent) {
            true => Row::Scaled(TARGET - exponent),
            false => Row::Plain,
        }
    }

    fn rows(self, lhs: &[f32], k: usize) -> impl Iterator<Item = Row> + '_ {
        // Nothing is wrong with rows of no elements, or with floats.
        let rows = match k == 0 || self == Self::Floats {
            true => &[],
            false => lhs,
        };
        rows.chunks(k.max(1)).map(move |x| self.row(x))
    }
}

/// From how many activations on threads share looking at them.
const FOR_THREADS: usize = 1 << 16;

/// Whether products of rows of `k` activations with weights of this dtype need nothing of this module.
pub(crate) fn are_plain(weights: GgmlDType, lhs: &[f32], k: usize) -> bool {
    let blocks = Blocks::of(weights);
    let all = |lhs: &[f32]| blocks.rows(lhs, k).all(|row| row == Row::Plain);
    if lhs.len() < FOR_THREADS || k == 0 || blocks == Blocks::Floats {
        return all(lhs);
    }
    let are_plain = AtomicBool::new(true);
    crate::utils::barrier_pool().execute_chunked(lhs.len() / k, |rows| {
        if !all(&lhs[rows.start * k..rows.end * k]) {
            are_plain.store(false, Ordering::Relaxed);
        }
    });
    are_plain.into_inner()
}

/// Rows that can be multiplied, made of some that could not.
pub(crate) struct Scaled {
    pub(crate) values: Vec<f32>,
    rows: Vec<Row>,
}

impl Scaled {
    /// Nothing if all rows are plain.
    pub(crate) fn new(weights: GgmlDType, lhs: &[f32], k: usize) -> Option<Self> {
        if are_plain(weights, lhs, k) {
            return None;
        }
        let rows: Vec<Row> = Blocks::of(weights).rows(lhs, k).collect();
        let mut values = lhs.to_vec();
        for (x, row) in values.chunks_mut(k).zip(&rows) {
            match row {
                Row::Plain => (),
                Row::Scaled(exponent) => scale(x, *exponent),
                Row::NotFinite => x.fill(0.),
            }
        }
        Some(Self { values, rows })
    }

    /// Makes products with `n` rows of weights those of the rows that were given.
    pub(crate) fn restore(&self, products: &mut [f32], n: usize) {
        for (y, row) in products.chunks_mut(n.max(1)).zip(&self.rows) {
            match row {
                Row::Plain => (),
                Row::Scaled(exponent) => scale(y, -exponent),
                Row::NotFinite => y.fill(f32::NAN),
            }
        }
    }
}

/// Times two to a power that f32 may not hold.
fn scale(values: &mut [f32], exponent: i32) {
    let factor = 2f64.powi(exponent);
    for value in values {
        *value = (f64::from(*value) * factor) as f32;
    }
}
