//! Products in instructions of AVX-512; sums in the order that the module above defines.

use super::{LANES, TILE};
use core::arch::x86_64::*;
use half::{bf16, f16};

/// Rows of the input that are multiplied at once: with [`TILE`] rows of weights, 24 sums in 32 registers.
const ROWS: usize = 3;

/// Bytes that the processor reads at once.
const CACHE_LINE: usize = 64;

/// Whether the processor has the instructions.
pub(super) fn is_here() -> bool {
    is_x86_feature_detected!("avx512f")
}

/// A number that a register's lanes can be filled with.
pub(super) trait Number: Copy + Into<f32> {
    /// # Safety
    /// The processor must have AVX-512; there must be 16 numbers.
    unsafe fn load(numbers: *const Self) -> __m512;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn load(numbers: *const Self) -> __m512 {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_ps(numbers) }
    }
}

impl Number for f16 {
    #[inline(always)]
    unsafe fn load(numbers: *const Self) -> __m512 {
        // SAFETY: as the caller promises.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(numbers.cast())) }
    }
}

impl Number for bf16 {
    #[inline(always)]
    unsafe fn load(numbers: *const Self) -> __m512 {
        // SAFETY: as the caller promises. A bf16 is the upper half of an f32.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(numbers.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
}

/// The products of each row of `x` with each row of `weights`: `put(row of x, row of weights, product)`.
///
/// # Panics
/// If the processor does not have the instructions.
pub(super) fn multiply<W: Number>(
    x: &[f32],
    weights: &[W],
    inputs: usize,
    mut put: impl FnMut(usize, usize, f32),
) {
    assert!(is_here());
    let (rows, columns) = (x.len() / inputs, weights.len() / inputs);
    let mut row = 0;
    while row < rows {
        let count = if rows - row >= ROWS { ROWS } else { 1 };
        let x = &x[row * inputs..(row + count) * inputs];
        let mut column = 0;
        while column < columns {
            let weights = &weights[column * inputs..];
            // SAFETY: the processor has the instructions.
            unsafe {
                match (count, columns - column >= TILE) {
                    (ROWS, true) => dots::<W, ROWS, TILE>(x, weights, inputs, |r, c, value| {
                        put(row + r, column + c, value)
                    }),
                    (ROWS, false) => dots::<W, ROWS, 1>(x, weights, inputs, |r, c, value| {
                        put(row + r, column + c, value)
                    }),
                    (_, true) => dots::<W, 1, TILE>(x, weights, inputs, |r, c, value| {
                        put(row + r, column + c, value)
                    }),
                    (_, false) => dots::<W, 1, 1>(x, weights, inputs, |r, c, value| {
                        put(row + r, column + c, value)
                    }),
                }
            }
            column += if columns - column >= TILE { TILE } else { 1 };
        }
        row += count;
    }
}

/// # Safety
/// The processor must have AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn dots<W: Number, const R: usize, const C: usize>(
    x: &[f32],
    weights: &[W],
    inputs: usize,
    mut put: impl FnMut(usize, usize, f32),
) {
    assert!(x.len() >= R * inputs && weights.len() >= C * inputs);
    let mut sums = [[_mm512_setzero_ps(); C]; R];
    let whole = inputs / LANES * LANES;
    // Rows side by side are no pattern that a processor foresees: those that are likely multiplied next are asked for
    // in their order.
    let next = weights.as_ptr().wrapping_add(C * inputs).cast::<i8>();
    let step = C * LANES * size_of::<W>();
    for at in (0..whole).step_by(LANES) {
        if R == 1 {
            for line in (0..step).step_by(CACHE_LINE) {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(at / LANES * step + line));
            }
        }
        // SAFETY: `at + 16 <= inputs`, and there are enough rows, as checked above.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); R];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(x.as_ptr().add(r * inputs + at));
            }
            for c in 0..C {
                let w = W::load(weights.as_ptr().add(c * inputs + at));
                for (row, sums) in rows.iter().zip(sums.iter_mut()) {
                    sums[c] = _mm512_fmadd_ps(*row, w, sums[c]);
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let mut sum = sum_of_lanes(sums[r][c]);
            for i in whole..inputs {
                sum = x[r * inputs + i].mul_add(weights[c * inputs + i].into(), sum);
            }
            put(r, c, sum);
        }
    }
}

/// The upper half onto the lower one, until one lane is left.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_of_lanes(lanes: __m512) -> f32 {
    let upper = _mm512_castpd_ps(_mm512_castpd256_pd512(_mm512_extractf64x4_pd::<1>(
        _mm512_castps_pd(lanes),
    )));
    let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_castps512_ps256(upper));
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
