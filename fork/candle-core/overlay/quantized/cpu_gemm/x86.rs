//! The steps of a product in instructions of x86.

use core::arch::x86_64::*;
use std::sync::OnceLock;

mod packed;

use super::{Activations, Format, Panel, BLOCK, LANES, STEP};

/// Rows of the activations that are multiplied at once.
pub const MAX_ROWS: usize = 8;

/// One block of each row of a panel, unpacked.
#[repr(align(32))]
pub struct Unpacked(pub [[u8; BLOCK]; LANES]);

/// What the processor has. A value is proof of it: [`Level::detect`] is the only source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// AVX2, FMA and F16C.
    Avx2,
    /// These, and AVX-512 with dot products of bytes.
    Avx512Vnni,
}

impl Level {
    /// The best level of this processor.
    pub fn detect() -> Option<Self> {
        static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let vnni = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vnni");
            match (avx2, vnni) {
                (true, true) => Some(Self::Avx512Vnni),
                (true, false) => Some(Self::Avx2),
                (false, _) => None,
            }
        })
    }

    /// Whether elements of this format can be multiplied: without dot products of bytes, sums of pairs of whole bytes
    /// do not fit.
    pub fn takes(self, format: Format) -> bool {
        self == Self::Avx512Vnni || format.bits < 8
    }

    /// Up to how many rows of activations are multiplied with packed weights; for more it pays to unpack the weights
    /// first.
    pub fn most_packed_rows(self) -> usize {
        match self {
            Self::Avx2 => 0,
            Self::Avx512Vnni => 16,
        }
    }

    /// The products of one row of activations, or of two if there is another one, with up to sixteen rows of packed
    /// weights; returns how many. Lanes whose row is missing are undefined.
    pub fn multiply_packed(
        self,
        bytes: &[u8],
        format: Format,
        lhs: &Activations,
        row: usize,
        to: &mut [[f32; LANES]; MAX_ROWS],
    ) -> usize {
        assert!(self == Self::Avx512Vnni && row < lhs.rows);
        let row_bytes = lhs.blocks * format.bytes;
        assert!(!bytes.is_empty() && bytes.len() % row_bytes == 0);
        assert!(i32::try_from(LANES * row_bytes).is_ok());
        let rows = (lhs.rows - row).min(2);
        // SAFETY: the level has the instructions, and the lengths are checked.
        unsafe {
            match (rows, format.bits) {
                (1, 4) => packed::multiply::<1, 4>(bytes, format, lhs, row, to),
                (1, 5) => packed::multiply::<1, 5>(bytes, format, lhs, row, to),
                (1, _) => packed::multiply::<1, 8>(bytes, format, lhs, row, to),
                (_, 4) => packed::multiply::<2, 4>(bytes, format, lhs, row, to),
                (_, 5) => packed::multiply::<2, 5>(bytes, format, lhs, row, to),
                (_, _) => packed::multiply::<2, 8>(bytes, format, lhs, row, to),
            }
        }
        rows
    }

    /// Elements in 8 bits; returns their scale and sum.
    pub fn quantize(self, x: &[f32; BLOCK], quants: &mut [i8; BLOCK]) -> (f32, i32) {
        // SAFETY: every level has AVX2.
        unsafe { quantize(x, quants) }
    }

    /// Two elements of each byte, the low halves first, each with its fifth bit.
    pub fn unpack(self, nibbles: &[u8; 16], fifth_bits: Option<u32>, to: &mut [u8; BLOCK]) {
        // SAFETY: every level has AVX2.
        unsafe { unpack(nibbles, fifth_bits, to) }
    }

    /// Numbers in f16 as f32.
    pub fn convert(self, halves: &[u16; LANES], to: &mut [f32; LANES]) {
        // SAFETY: every level has F16C.
        unsafe { convert(halves, to) }
    }

    /// Groups of four neighbours, by group and then by row.
    pub fn interleave(self, rows: &Unpacked, to: &mut [u8; STEP]) {
        // SAFETY: every level has AVX2.
        unsafe { interleave(rows, to) }
    }

    /// The products of up to eight rows of activations from `row` on with a panel; returns how many.
    pub fn multiply(
        self,
        panel: &Panel,
        lhs: &Activations,
        row: usize,
        has_min: bool,
        to: &mut [[f32; LANES]; MAX_ROWS],
    ) -> usize {
        assert!(panel.elements.len() == lhs.blocks * STEP && row < lhs.rows);
        let rows = match lhs.rows - row {
            MAX_ROWS.. => MAX_ROWS,
            4.. => 4,
            _ => 1,
        };
        // SAFETY: the level has the instructions; lengths are checked above, and the vectors of `Activations` and
        // `Panel` are sized by the same numbers of rows and blocks.
        unsafe {
            match (self, rows) {
                (Self::Avx512Vnni, MAX_ROWS) => {
                    multiply_512::<MAX_ROWS>(panel, lhs, row, has_min, to)
                }
                (Self::Avx512Vnni, 4) => multiply_512::<4>(panel, lhs, row, has_min, to),
                (Self::Avx512Vnni, _) => multiply_512::<1>(panel, lhs, row, has_min, to),
                (Self::Avx2, 1) => multiply_256::<1>(panel, lhs, row, has_min, to),
                // Two halves of four rows would not fit into sixteen registers.
                (Self::Avx2, _) => {
                    for (i, to) in to[..rows].chunks_exact_mut(2).enumerate() {
                        multiply_256::<2>(panel, lhs, row + 2 * i, has_min, to);
                    }
                }
            }
        }
        rows
    }
}

#[target_feature(enable = "avx2")]
fn quantize(x: &[f32; BLOCK], quants: &mut [i8; BLOCK]) -> (f32, i32) {
    let mut greatest = [0f32; 8];
    for x in x.chunks_exact(8) {
        for (greatest, x) in greatest.iter_mut().zip(x) {
            *greatest = greatest.max(x.abs());
        }
    }
    let greatest = greatest.iter().fold(0f32, |a, b| a.max(*b));
    let scale = greatest / 127.;
    // The inverse of a smaller one would be infinite.
    let inverse = if scale < f32::MIN_POSITIVE {
        0.
    } else {
        1. / scale
    };
    let mut sum = 0;
    for (x, quant) in x.iter().zip(quants.iter_mut()) {
        let scaled = x * inverse;
        // Half away from zero, as `f32::round`, but in instructions that work on many elements at once.
        let rounded = (scaled + 0.49999997f32.copysign(scaled)) as i32;
        *quant = rounded as i8;
        sum += rounded;
    }
    (scale, sum)
}

#[target_feature(enable = "avx2")]
fn unpack(nibbles: &[u8; 16], fifth_bits: Option<u32>, to: &mut [u8; BLOCK]) {
    // SAFETY: 16 bytes are read, 32 are written.
    unsafe {
        let packed = _mm_loadu_si128(nibbles.as_ptr().cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        let mut elements = _mm256_and_si256(both, _mm256_set1_epi8(0xf));
        if let Some(bits) = fifth_bits {
            // Byte i gets the byte of `bits` that its bit is in, then that bit alone.
            let spread = _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), spread);
            let own_bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own_bit), own_bit);
            let fifth = _mm256_and_si256(is_set, _mm256_set1_epi8(0x10));
            elements = _mm256_or_si256(elements, fifth);
        }
        _mm256_storeu_si256(to.as_mut_ptr().cast(), elements);
    }
}

#[target_feature(enable = "avx2,f16c")]
fn convert(halves: &[u16; LANES], to: &mut [f32; LANES]) {
    // SAFETY: twice 8 of the 16 numbers.
    unsafe {
        for half in 0..2 {
            let halves = _mm_loadu_si128(halves.as_ptr().cast::<__m128i>().add(half));
            _mm256_storeu_ps(to.as_mut_ptr().add(8 * half), _mm256_cvtph_ps(halves));
        }
    }
}

#[target_feature(enable = "avx2")]
fn interleave(rows: &Unpacked, to: &mut [u8; STEP]) {
    // SAFETY: `rows` is 16 vectors; of `to`, groups of 64 bytes are written, each half by half.
    unsafe {
        for half in 0..2 {
            let row = |i: usize| _mm256_load_si256(rows.0[8 * half + i].as_ptr().cast());
            // A transposed matrix of 8 x 8 numbers of 32 bits: first pairs of rows, then fours, then eights.
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let (e, f, g, h) = (row(4), row(5), row(6), row(7));
            let (ab0, ab1) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let (ef0, ef1) = (_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f));
            let (gh0, gh1) = (_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h));
            let upper = [
                _mm256_unpacklo_epi64(ab0, cd0),
                _mm256_unpackhi_epi64(ab0, cd0),
                _mm256_unpacklo_epi64(ab1, cd1),
                _mm256_unpackhi_epi64(ab1, cd1),
            ];
            let lower = [
                _mm256_unpacklo_epi64(ef0, gh0),
                _mm256_unpackhi_epi64(ef0, gh0),
                _mm256_unpacklo_epi64(ef1, gh1),
                _mm256_unpackhi_epi64(ef1, gh1),
            ];
            let mut store = |group: usize, value: __m256i| {
                let to = to.as_mut_ptr().add(group * 4 * LANES + half * 32);
                _mm256_storeu_si256(to.cast(), value);
            };
            for i in 0..4 {
                store(i, _mm256_permute2x128_si256::<0x20>(upper[i], lower[i]));
                store(i + 4, _mm256_permute2x128_si256::<0x31>(upper[i], lower[i]));
            }
        }
    }
}

/// Four neighbouring elements of a row of activations in every lane.
///
/// # Safety
/// `quants` must have 4 elements at `at`.
#[inline]
unsafe fn four(quants: *const i8, at: usize) -> i32 {
    quants.add(at).cast::<i32>().read_unaligned()
}

/// # Safety
/// The processor must have the instructions; rows `row..row + ROWS` must exist; panel and activations must have the
/// same blocks.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn multiply_512<const ROWS: usize>(
    panel: &Panel,
    lhs: &Activations,
    row: usize,
    has_min: bool,
    to: &mut [[f32; LANES]],
) {
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for block in 0..lhs.blocks {
        let at = |i: usize| (row + i) * lhs.blocks + block;
        let mut dots = [_mm512_setzero_si512(); ROWS];
        for (i, dot) in dots.iter_mut().enumerate() {
            *dot = _mm512_set1_epi32(*lhs.offsets.get_unchecked(at(i)));
        }
        for group in 0..8 {
            let elements = panel
                .elements
                .as_ptr()
                .add(block * STEP + group * 4 * LANES);
            let elements = _mm512_loadu_si512(elements.cast());
            for (i, dot) in dots.iter_mut().enumerate() {
                let quants =
                    _mm512_set1_epi32(four(lhs.quants.as_ptr(), at(i) * BLOCK + group * 4));
                *dot = _mm512_dpbusd_epi32(*dot, elements, quants);
            }
        }
        let scales = _mm512_loadu_ps(panel.scales.as_ptr().add(block * LANES));
        for (i, (sum, dot)) in sums.iter_mut().zip(&dots).enumerate() {
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*lhs.scales.get_unchecked(at(i))));
            *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(*dot), scale, *sum);
        }
        if has_min {
            let mins = _mm512_loadu_ps(panel.mins.as_ptr().add(block * LANES));
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

/// # Safety
/// As for [`multiply_512`].
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_256<const ROWS: usize>(
    panel: &Panel,
    lhs: &Activations,
    row: usize,
    has_min: bool,
    to: &mut [[f32; LANES]],
) {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for block in 0..lhs.blocks {
        let at = |i: usize| (row + i) * lhs.blocks + block;
        let mut dots = [[_mm256_setzero_si256(); 2]; ROWS];
        for (i, dots) in dots.iter_mut().enumerate() {
            *dots = [_mm256_set1_epi32(*lhs.offsets.get_unchecked(at(i))); 2];
        }
        for group in 0..8 {
            for half in 0..2 {
                let elements = block * STEP + group * 4 * LANES + half * 32;
                let elements = _mm256_loadu_si256(panel.elements.as_ptr().add(elements).cast());
                for (i, dots) in dots.iter_mut().enumerate() {
                    let quants = four(lhs.quants.as_ptr(), at(i) * BLOCK + group * 4);
                    // At most 2 x 31 x 127: pairs do not saturate.
                    let pairs = _mm256_maddubs_epi16(elements, _mm256_set1_epi32(quants));
                    dots[half] = _mm256_add_epi32(dots[half], _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        for half in 0..2 {
            let lanes = block * LANES + half * 8;
            let scales = _mm256_loadu_ps(panel.scales.as_ptr().add(lanes));
            for (i, sums) in sums.iter_mut().enumerate() {
                let own = _mm256_set1_ps(*lhs.scales.get_unchecked(at(i)));
                let dots = _mm256_cvtepi32_ps(dots[i][half]);
                sums[half] = _mm256_fmadd_ps(dots, _mm256_mul_ps(scales, own), sums[half]);
            }
            if has_min {
                let mins = _mm256_loadu_ps(panel.mins.as_ptr().add(lanes));
                for (i, sums) in sums.iter_mut().enumerate() {
                    let own = _mm256_set1_ps(*lhs.sums.get_unchecked(at(i)));
                    sums[half] = _mm256_fmadd_ps(mins, own, sums[half]);
                }
            }
        }
    }
    for (sums, to) in sums.iter().zip(to) {
        for half in 0..2 {
            _mm256_storeu_ps(to.as_mut_ptr().add(8 * half), sums[half]);
        }
    }
}
