//! Products with rows of blocks in instructions of x86 (AVX2, FMA and F16C).
//!
//! The bits of an element are moved to where binary16 has them, which the processor turns into binary32: the same few
//! instructions whatever the element, and no table in memory.

use core::arch::x86_64::*;

use ggml_formats::Format;

use super::super::mx;
use super::{total, Fast, CHUNK, LANES, ROWS};

/// Elements that are decoded at once: four vectors.
const PART: usize = 32;
/// Rows of activations that are multiplied with [`ROWS`] unpacked rows at once: as many sums as there are registers
/// for.
const COLUMNS: usize = 3;

/// Proof that the processor has the instructions: [`Vectors::detect`] is the only source.
#[derive(Clone, Copy)]
pub struct Vectors(());

impl Fast {
    /// What a product of decoded elements is to be multiplied with: elements are decoded divided by a power of two.
    pub fn factor(self) -> f32 {
        match self {
            Self::F8E4M3 => F8E4M3::FACTOR,
            Self::Mxfp4 => Mxfp4::FACTOR,
            Self::Nvfp4 => Nvfp4::FACTOR,
        }
    }

    /// Elements and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F8E4M3 => (F8E4M3::ELEMENTS, F8E4M3::BYTES),
            Self::Mxfp4 => (Mxfp4::ELEMENTS, Mxfp4::BYTES),
            Self::Nvfp4 => (Nvfp4::ELEMENTS, Nvfp4::BYTES),
        }
    }
}

impl Vectors {
    /// Some if this processor has them.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }

    /// The products of `x` with each of the rows in `blocks`, up to [`ROWS`].
    pub fn product(self, fast: Fast, blocks: &[u8], x: &[f32], to: &mut [f32]) {
        let (elements, bytes) = fast.block();
        assert!(x.len() % elements == 0 && to.len() <= ROWS);
        assert!(blocks.len() == to.len() * (x.len() / elements * bytes));
        // SAFETY: the processor has the instructions, and there are as many blocks as the lengths say.
        unsafe {
            match fast {
                Fast::F8E4M3 => product::<F8E4M3>(blocks, x, to),
                Fast::Mxfp4 => product::<Mxfp4>(blocks, x, to),
                Fast::Nvfp4 => product::<Nvfp4>(blocks, x, to),
            }
        }
    }

    /// Decodes whole blocks.
    pub fn decode(self, fast: Fast, blocks: &[u8], to: &mut [f32]) {
        let (elements, bytes) = fast.block();
        assert!(to.len() % elements == 0 && blocks.len() == to.len() / elements * bytes);
        // SAFETY: as above.
        unsafe {
            match fast {
                Fast::F8E4M3 => decode::<F8E4M3>(blocks, to),
                Fast::Mxfp4 => decode::<Mxfp4>(blocks, to),
                Fast::Nvfp4 => decode::<Nvfp4>(blocks, to),
            }
        }
    }

    /// Adds the products of some elements to the sums: `rows` are [`ROWS`] of `len` elements, [`CHUNK`] apart; of each row of
    /// `lhs`, `k` apart, the elements from `start` on; the sums of a row of `lhs` are those with each row.
    pub fn products(
        self,
        rows: &[f32],
        len: usize,
        lhs: &[f32],
        (k, start): (usize, usize),
        sums: &mut [[[f32; LANES]; ROWS]],
    ) {
        assert!(rows.len() == ROWS * CHUNK && len <= CHUNK && len % LANES == 0);
        assert!(start + len <= k && lhs.len() == sums.len() * k);
        let mut lhs = lhs;
        for sums in sums.chunks_mut(COLUMNS) {
            let (own, rest) = lhs.split_at(sums.len() * k);
            lhs = rest;
            // SAFETY: the processor has the instructions; `own` is as many rows as there are sums.
            unsafe {
                let at = own.as_ptr().add(start);
                match sums.len() {
                    1 => products::<1>(rows.as_ptr(), len, at, k, sums),
                    2 => products::<2>(rows.as_ptr(), len, at, k, sums),
                    _ => products::<COLUMNS>(rows.as_ptr(), len, at, k, sums),
                }
            }
        }
    }
}

/// How the blocks of a format are decoded.
trait Decode {
    const ELEMENTS: usize;
    const BYTES: usize;
    const FACTOR: f32;

    /// Elements `PART * part..` of a block, in order, divided by the factor.
    ///
    /// # Safety
    /// The processor must have the instructions of [`Vectors`], and `block` a block's bytes.
    unsafe fn part(block: *const u8, part: usize) -> [__m256; 4];
}

struct F8E4M3;

impl Decode for F8E4M3 {
    const ELEMENTS: usize = Format::F8E4M3.block_size();
    const BYTES: usize = Format::F8E4M3.type_size();
    /// The exponent of binary16 is biased by 15, not 7.
    const FACTOR: f32 = 256.;

    #[inline(always)]
    unsafe fn part(block: *const u8, part: usize) -> [__m256; 4] {
        let d = _mm256_set1_ps(block.cast::<f32>().read_unaligned());
        let bytes = block.add(4 + PART * part);
        // Sign, four bits of exponent and three of mantissa; the fifth bit of the exponent is 0.
        let halves = |at: usize| {
            let wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes.add(at).cast()));
            _mm256_and_si256(
                _mm256_slli_epi16::<7>(wide),
                _mm256_set1_epi16(0xbf80u16 as i16),
            )
        };
        let (a, b) = (halves(0), halves(16));
        let scaled = |halves| _mm256_mul_ps(_mm256_cvtph_ps(halves), d);
        [
            scaled(_mm256_castsi256_si128(a)),
            scaled(_mm256_extracti128_si256::<1>(a)),
            scaled(_mm256_castsi256_si128(b)),
            scaled(_mm256_extracti128_si256::<1>(b)),
        ]
    }
}

/// Twice the level of each nibble's half, as the upper byte of binary16; the lower one is 0.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn levels(nibbles: __m128i) -> __m128i {
    let table = _mm_setr_epi8(
        0x00, 0x3c, 0x40, 0x42, 0x44, 0x46, 0x48, 0x4a, -0x80, -0x44, -0x40, -0x3e, -0x3c, -0x3a,
        -0x38, -0x36,
    );
    _mm_shuffle_epi8(table, _mm_and_si128(nibbles, _mm_set1_epi8(15)))
}

/// The first or last eight levels, times `d`.
///
/// # Safety
/// The processor must have AVX2 and F16C.
#[inline(always)]
unsafe fn scaled<const UPPER: bool>(levels: __m128i, d: __m256) -> __m256 {
    let zero = _mm_setzero_si128();
    let halves = match UPPER {
        false => _mm_unpacklo_epi8(zero, levels),
        true => _mm_unpackhi_epi8(zero, levels),
    };
    _mm256_mul_ps(_mm256_cvtph_ps(halves), d)
}

struct Mxfp4;

impl Decode for Mxfp4 {
    const ELEMENTS: usize = Format::MXFP4.block_size();
    const BYTES: usize = Format::MXFP4.type_size();
    const FACTOR: f32 = 1.;

    #[inline(always)]
    unsafe fn part(block: *const u8, _: usize) -> [__m256; 4] {
        let d = _mm256_set1_ps(mx::e8m0_half(*block));
        let nibbles = _mm_loadu_si128(block.add(1).cast());
        let (lower, upper) = (levels(nibbles), levels(_mm_srli_epi16::<4>(nibbles)));
        [
            scaled::<false>(lower, d),
            scaled::<true>(lower, d),
            scaled::<false>(upper, d),
            scaled::<true>(upper, d),
        ]
    }
}

struct Nvfp4;

impl Decode for Nvfp4 {
    const ELEMENTS: usize = Format::NVFP4.block_size();
    const BYTES: usize = Format::NVFP4.type_size();
    /// Half of what F8E4M3 has: levels are doubled.
    const FACTOR: f32 = 128.;

    #[inline(always)]
    unsafe fn part(block: *const u8, part: usize) -> [__m256; 4] {
        // Two scales; signs are ignored, and the byte of NaN is 0.
        let scales = block.add(2 * part).cast::<u16>().read_unaligned();
        let (scales, low) = (_mm_set1_epi16(scales as i16), _mm_set1_epi8(0x7f));
        let nan = _mm_cmpeq_epi8(scales, low);
        let scales = _mm_andnot_si128(nan, _mm_and_si128(scales, low));
        let scales = _mm_cvtepu8_epi16(scales);
        let scales = _mm_cvtph_ps(_mm_slli_epi16::<7>(scales));
        let d0 = _mm256_broadcastss_ps(scales);
        let d1 = _mm256_broadcastss_ps(_mm_movehdup_ps(scales));
        let nibbles = _mm_loadu_si128(block.add(4 + 16 * part).cast());
        let (lower, upper) = (levels(nibbles), levels(_mm_srli_epi16::<4>(nibbles)));
        [
            scaled::<false>(lower, d0),
            scaled::<false>(upper, d0),
            scaled::<true>(lower, d1),
            scaled::<true>(upper, d1),
        ]
    }
}

/// # Safety
/// The processor must have the instructions; `blocks` must be rows of whole blocks of `x.len()` elements each.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<D: Decode>(blocks: &[u8], x: &[f32], to: &mut [f32]) {
    let row_bytes = x.len() / D::ELEMENTS * D::BYTES;
    match <&mut [f32; ROWS]>::try_from(&mut *to) {
        Ok(to) => *to = side_by_side::<D, ROWS>(blocks, row_bytes, x),
        Err(_) => {
            for (blocks, to) in blocks.chunks_exact(row_bytes).zip(to) {
                [*to] = side_by_side::<D, 1>(blocks, row_bytes, x);
            }
        }
    }
}

/// # Safety
/// As for [`product`], with `N` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn side_by_side<D: Decode, const N: usize>(
    blocks: &[u8],
    row_bytes: usize,
    x: &[f32],
) -> [f32; N] {
    let mut sums = [_mm256_setzero_ps(); N];
    for block in 0..x.len() / D::ELEMENTS {
        let first = blocks.as_ptr().add(block * D::BYTES);
        for part in 0..D::ELEMENTS / PART {
            let x = x.as_ptr().add(block * D::ELEMENTS + part * PART);
            let mut row = first;
            for sum in &mut sums {
                let part = D::part(row, part);
                for (i, w) in part.into_iter().enumerate() {
                    *sum = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.add(LANES * i)), *sum);
                }
                row = row.wrapping_add(row_bytes);
            }
        }
    }
    sums.map(|sum| {
        let mut lanes = [0.; LANES];
        _mm256_storeu_ps(lanes.as_mut_ptr(), sum);
        total(&lanes) * D::FACTOR
    })
}

/// # Safety
/// The processor must have the instructions, and `blocks` be as many as `to` has elements for.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode<D: Decode>(blocks: &[u8], to: &mut [f32]) {
    for (block, to) in blocks
        .chunks_exact(D::BYTES)
        .zip(to.chunks_exact_mut(D::ELEMENTS))
    {
        for (part, to) in to.chunks_exact_mut(PART).enumerate() {
            for (w, to) in D::part(block.as_ptr(), part)
                .into_iter()
                .zip(to.chunks_exact_mut(LANES))
            {
                _mm256_storeu_ps(to.as_mut_ptr(), w);
            }
        }
    }
}

/// # Safety
/// The processor must have the instructions; `rows` must have [`ROWS`] times [`CHUNK`] elements, `lhs` `len` at each of
/// `N` multiples of `k`.
#[target_feature(enable = "avx2,fma")]
unsafe fn products<const N: usize>(
    rows: *const f32,
    len: usize,
    lhs: *const f32,
    k: usize,
    to: &mut [[[f32; LANES]; ROWS]],
) {
    let mut sums = [[_mm256_setzero_ps(); ROWS]; N];
    for (sums, to) in sums.iter_mut().zip(&*to) {
        for (sum, to) in sums.iter_mut().zip(to) {
            *sum = _mm256_loadu_ps(to.as_ptr());
        }
    }
    for at in (0..len).step_by(LANES) {
        let mut x = [_mm256_setzero_ps(); N];
        for (i, x) in x.iter_mut().enumerate() {
            *x = _mm256_loadu_ps(lhs.add(i * k + at));
        }
        for row in 0..ROWS {
            let w = _mm256_loadu_ps(rows.add(row * CHUNK + at));
            for (sums, x) in sums.iter_mut().zip(x) {
                sums[row] = _mm256_fmadd_ps(w, x, sums[row]);
            }
        }
    }
    for (sums, to) in sums.iter().zip(to) {
        for (sum, to) in sums.iter().zip(to) {
            _mm256_storeu_ps(to.as_mut_ptr(), *sum);
        }
    }
}
