//! Few rows of activations times sixteen rows of weights that stay packed: for one row, unpacking them into a panel
//! would cost more than all else.

use core::arch::x86_64::*;
use std::array::from_fn;

use super::super::{Activations, Format, BLOCK, LANES};

/// Bytes that the processor reads at once.
const CACHE_LINE: usize = 64;

/// Sums block by block in the order of the panels, so that both ways give the same bits.
///
/// # Safety
/// The processor must have the instructions; `bytes` must be one or more whole rows, sixteen of which can be counted in
/// an `i32`; rows `row..row + ROWS` of the activations must exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
pub unsafe fn multiply<const ROWS: usize, const BITS: usize>(
    bytes: &[u8],
    format: Format,
    lhs: &Activations,
    row: usize,
    to: &mut [[f32; LANES]],
) {
    let row_bytes = lhs.blocks * format.bytes;
    let last = bytes.len() / row_bytes - 1;
    // A row that is missing is the last one once more.
    let starts: [usize; LANES] = from_fn(|i| i.min(last) * row_bytes);
    let lanes: [i32; LANES] = starts.map(|start| start as i32);
    let lanes = _mm512_loadu_si512(lanes.as_ptr().cast());
    let start = if format.has_min { 4 } else { 2 };
    let step = LANES * format.bytes;
    let next = bytes.as_ptr_range().end;
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for block in 0..lhs.blocks {
        // Sixteen rows at once are no pattern that a processor foresees: what is likely multiplied next is asked for in
        // its order.
        for line in (0..step).step_by(CACHE_LINE) {
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(block * step + line).cast());
        }
        let packed = bytes.as_ptr().add(block * format.bytes);
        let at = |i: usize| (row + i) * lhs.blocks + block;
        let mut quants = [_mm512_setzero_si512(); ROWS];
        for (i, quants) in quants.iter_mut().enumerate() {
            let row = lhs.quants.as_ptr().add(at(i) * BLOCK);
            *quants = _mm512_broadcast_i64x4(_mm256_loadu_si256(row.cast()));
        }
        // Row `a` of the weights in the lower half and row `a + 4` in the upper one.
        let mut dots = [[_mm512_setzero_si512(); LANES / 2]; ROWS];
        for pair in 0..LANES / 2 {
            let a = pair + (pair & 4);
            let (lower, upper) = (packed.add(starts[a]), packed.add(starts[a + 4]));
            let elements = elements::<BITS>(lower.add(start), upper.add(start));
            for (dots, quants) in dots.iter_mut().zip(quants) {
                dots[pair] = _mm512_dpbusd_epi32(dots[pair], elements, quants);
            }
        }
        // A block begins with its scale, and then its minimum if there is one.
        let numbers = _mm512_i32gather_epi32::<1>(lanes, packed.cast());
        let scales = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(numbers));
        for (i, (sum, dots)) in sums.iter_mut().zip(&dots).enumerate() {
            let offset = _mm512_set1_epi32(*lhs.offsets.get_unchecked(at(i)));
            let dot = _mm512_add_epi32(sum_of_rows(dots), offset);
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*lhs.scales.get_unchecked(at(i))));
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *sum);
        }
        if format.has_min {
            let mins = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(numbers)));
            for (i, sum) in sums.iter_mut().enumerate() {
                let own = _mm512_set1_ps(*lhs.sums.get_unchecked(at(i)));
                *sum = _mm512_fmadd_ps(mins, own, *sum);
            }
        }
    }
    for (sum, to) in sums.iter().zip(to) {
        _mm512_storeu_ps(to.as_mut_ptr(), *sum);
    }
}

/// The elements of two blocks, unsigned.
///
/// # Safety
/// The processor must have the instructions; both blocks must have as many bytes as 32 elements take.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn elements<const BITS: usize>(lower: *const u8, upper: *const u8) -> __m512i {
    let join = |lower, upper| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper);
    if BITS == 8 {
        let load = |bytes: *const u8| _mm256_loadu_si256(bytes.cast());
        return _mm512_xor_si512(join(load(lower), load(upper)), _mm512_set1_epi8(i8::MIN));
    }
    // Each byte twice: its low half is an element of the first 16, its high half one of the others.
    let twice = |bytes: *const u8| {
        let nibbles = bytes.add((BITS - 4) * BLOCK / 8);
        _mm256_broadcastsi128_si256(_mm_loadu_si128(nibbles.cast()))
    };
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let shifted = _mm512_srlv_epi64(join(twice(lower), twice(upper)), shifts);
    let elements = _mm512_and_si512(shifted, _mm512_set1_epi8(0xf));
    if BITS == 4 {
        return elements;
    }
    let fifth_bits =
        |bytes: *const u8| u64::from(u32::from_le(bytes.cast::<u32>().read_unaligned()));
    let set = fifth_bits(lower) | fifth_bits(upper) << BLOCK;
    _mm512_mask_add_epi8(elements, set, elements, _mm512_set1_epi8(0x10))
}

/// The sum of each half of each vector, in the order of the rows: columns are added up while rows move together.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_of_rows(halves: &[__m512i; LANES / 2]) -> __m512i {
    let mut twos = [_mm512_setzero_si512(); LANES / 4];
    for (two, pair) in twos.iter_mut().zip(halves.chunks_exact(2)) {
        let (a, b) = (pair[0], pair[1]);
        *two = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    }
    let mut fours = [_mm512_setzero_si512(); LANES / 8];
    for (four, pair) in fours.iter_mut().zip(twos.chunks_exact(2)) {
        let (a, b) = (pair[0], pair[1]);
        *four = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    _mm512_add_epi32(
        _mm512_shuffle_i32x4::<0b10_00_10_00>(fours[0], fours[1]),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(fours[0], fours[1]),
    )
}
