//! The same in instructions of AVX-512.

use super::{soften, Line, Scale, LANES};
use core::arch::x86_64::*;

/// Keys whose products are summed up together.
const KEYS: usize = 4;
/// Registers of a result that stay while all values are added to it.
const PARTS: usize = 4;

/// See [`super::attend`].
///
/// # Safety
/// The processor must have AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn attend(
    line: &mut Line,
    keys: &[f32],
    values: &[f32],
    scale: Scale,
    weights: &mut [f32],
) {
    let (width, v_width) = (line.query.len(), line.out.len());
    let count = weights.len();
    assert!(keys.len() >= count * width && values.len() >= count * v_width);
    for (group, weights) in weights.chunks_mut(KEYS).enumerate() {
        let last = weights.len() - 1;
        // A key that is missing is the last one once more.
        let rows: [&[f32]; KEYS] = std::array::from_fn(|i| {
            let key = group * KEYS + i.min(last);
            &keys[key * width..(key + 1) * width]
        });
        weights.copy_from_slice(&products(line.query, rows)[..=last]);
    }
    soften::<true>(line, scale, weights);
    let mut at = 0;
    while at < v_width {
        let whole = v_width - at >= PARTS * LANES;
        let out = &mut line.out[at..];
        if whole {
            add::<PARTS>(out, weights, &values[at..], v_width, u16::MAX);
            at += PARTS * LANES;
        } else {
            add::<1>(out, weights, &values[at..], v_width, mask(v_width - at));
            at += LANES;
        }
    }
}

/// The lanes that have an element if `left` are left.
fn mask(left: usize) -> __mmask16 {
    match left {
        LANES.. => u16::MAX,
        left => (1 << left) - 1,
    }
}

/// The products of a query with some keys of its length.
#[inline]
#[target_feature(enable = "avx512f")]
fn products(query: &[f32], keys: [&[f32]; KEYS]) -> [f32; KEYS] {
    let width = query.len();
    assert!(keys.iter().all(|key| key.len() == width));
    let mut sums = [_mm512_setzero_ps(); KEYS];
    for at in (0..width).step_by(LANES) {
        let here = mask(width - at);
        // SAFETY: lanes beyond `width` are masked.
        unsafe {
            let q = _mm512_maskz_loadu_ps(here, query.as_ptr().add(at));
            for (sum, key) in sums.iter_mut().zip(keys) {
                let k = _mm512_maskz_loadu_ps(here, key.as_ptr().add(at));
                *sum = _mm512_fmadd_ps(q, k, *sum);
            }
        }
    }
    // Columns are added up while keys move together, then the four quarters of the register.
    let twos = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (a, b) = (twos(sums[0], sums[1]), twos(sums[2], sums[3]));
    let fours = _mm512_add_ps(
        _mm512_shuffle_ps::<0b01_00_01_00>(a, b),
        _mm512_shuffle_ps::<0b11_10_11_10>(a, b),
    );
    let upper = _mm512_shuffle_f32x4::<0b11_10_11_10>(fours, fours);
    let half = _mm512_castps512_ps256(_mm512_add_ps(fours, upper));
    let sums = _mm_add_ps(
        _mm256_castps256_ps128(half),
        _mm256_extractf128_ps::<1>(half),
    );
    let mut out = [0.0; KEYS];
    // SAFETY: the array has room for four numbers.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// Adds weighted rows of `values`, `stride` apart, to the first `N` registers of `out`, of which the last has the lanes
/// `here`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add<const N: usize>(
    out: &mut [f32],
    weights: &[f32],
    values: &[f32],
    stride: usize,
    here: __mmask16,
) {
    let elements = (N - 1) * LANES + here.count_ones() as usize;
    let rows = weights.len();
    assert!(out.len() >= elements);
    assert!(rows == 0 || values.len() >= (rows - 1) * stride + elements);
    let lanes = |part: usize| if part + 1 == N { here } else { u16::MAX };
    // SAFETY: lanes beyond `elements` are masked, and rows are long enough.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); N];
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_maskz_loadu_ps(lanes(part), out.as_ptr().add(part * LANES));
        }
        for (row, weight) in weights.iter().enumerate() {
            let weight = _mm512_set1_ps(*weight);
            for (part, sum) in sums.iter_mut().enumerate() {
                let value = values.as_ptr().add(row * stride + part * LANES);
                let value = _mm512_maskz_loadu_ps(lanes(part), value);
                *sum = _mm512_fmadd_ps(weight, value, *sum);
            }
        }
        for (part, sum) in sums.iter().enumerate() {
            _mm512_mask_storeu_ps(out.as_mut_ptr().add(part * LANES), lanes(part), *sum);
        }
    }
}
