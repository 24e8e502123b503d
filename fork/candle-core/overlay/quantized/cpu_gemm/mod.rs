//! Products with weights in 32-element blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0) on x86, sixteen rows of the weights at a
//! time.
//!
//! A panel of sixteen rows is unpacked to bytes with four neighbouring elements of each row side by side, as the
//! instructions for dot products of bytes take them; then every row of the activations (in 8 bits, a scale for 32
//! elements) is multiplied with it. For few rows of activations the weights stay packed. Lanes are rows of the weights,
//! so that a result does not depend on how many rows of activations there are.

use std::sync::{Mutex, PoisonError};

use crate::quantized::GgmlDType;

/// Elements that share a scale.
const BLOCK: usize = 32;
/// Rows of the weights in a panel.
const LANES: usize = 16;
/// Bytes of a panel's elements in one block of each row.
const STEP: usize = BLOCK * LANES;

/// From how many rows of activations on threads share their rounding.
const ROWS_FOR_THREADS: usize = 8;

/// How a type lays out a block: the scale, for some a minimum, then its elements.
#[derive(Clone, Copy)]
struct Format {
    bytes: usize,
    has_min: bool,
    /// Of an element: 4 are two elements in each of 16 bytes; 5 are as many, with 32 fifth bits before them; 8 are
    /// signed bytes.
    bits: usize,
    /// The element that stands for 0 where there is no minimum, once elements are made unsigned.
    zero: i32,
}

impl Format {
    fn of(dtype: GgmlDType) -> Option<Self> {
        let (bytes, has_min, bits, zero) = match dtype {
            GgmlDType::Q4_0 => (18, false, 4, 8),
            GgmlDType::Q4_1 => (20, true, 4, 0),
            GgmlDType::Q5_0 => (22, false, 5, 16),
            GgmlDType::Q5_1 => (24, true, 5, 0),
            GgmlDType::Q8_0 => (34, false, 8, 128),
            _ => return None,
        };
        Some(Self {
            bytes,
            has_min,
            bits,
            zero,
        })
    }
}

/// `dst` (m, n) = `lhs` (m, k) times the transposed weights (n, k), given as their blocks' bytes. False, and nothing
/// done, where the type, the processor or the shape is not for this.
pub(crate) fn matmul(
    dtype: GgmlDType,
    (m, k, n): (usize, usize, usize),
    lhs: &[f32],
    weights: &[u8],
    dst: &mut [f32],
) -> bool {
    let (Some(format), Some(level)) = (Format::of(dtype), x86::Level::detect()) else {
        return false;
    };
    let blocks = k / BLOCK;
    if !level.takes(format)
        || m == 0
        || n == 0
        || blocks == 0
        || k % BLOCK != 0
        || weights.len() != n * blocks * format.bytes
    {
        return false;
    }
    let lhs = Activations::new(&lhs[..m * k], k, format, level);
    let dst = Destination(dst[..m * n].as_mut_ptr());
    let stays_packed = m <= level.most_packed_rows();
    crate::utils::barrier_pool().execute_chunked(n.div_ceil(LANES), |panels| {
        let dst = &dst;
        let mut panel = Panel::new(if stays_packed { 0 } else { blocks });
        for first in panels.map(|panel| panel * LANES) {
            let rows = LANES.min(n - first);
            let bytes = &weights[first * blocks * format.bytes..][..rows * blocks * format.bytes];
            if !stays_packed {
                panel.fill(bytes, format, level);
            }
            let mut row = 0;
            while row < m {
                let mut products = [[0.; LANES]; x86::MAX_ROWS];
                let count = if stays_packed {
                    level.multiply_packed(bytes, format, &lhs, row, &mut products)
                } else {
                    level.multiply(&panel, &lhs, row, format.has_min, &mut products)
                };
                for products in &products[..count] {
                    // SAFETY: `row` < m and `first + rows` <= n, and every element belongs to one panel only.
                    unsafe {
                        let to = dst.0.add(row * n + first);
                        std::ptr::copy_nonoverlapping(products.as_ptr(), to, rows);
                    }
                    row += 1;
                }
            }
        }
    });
    true
}

/// Where the threads write, each to columns of its own.
struct Destination(*mut f32);
// SAFETY: see above; the pointer outlives the threads' work, which `execute_chunked` waits for.
unsafe impl Sync for Destination {}

/// Rows in 8 bits.
struct Activations {
    rows: usize,
    blocks: usize,
    quants: Vec<i8>,
    /// Of each block.
    scales: Vec<f32>,
    /// The sum of each block's elements: as integers times minus the format's zero, and as numbers.
    offsets: Vec<i32>,
    sums: Vec<f32>,
}

impl Activations {
    /// Scales and sums stay in f32, which the types Q8_0 and Q8_1 round to f16: there, a sum of large elements is
    /// infinite.
    fn new(lhs: &[f32], k: usize, format: Format, level: x86::Level) -> Self {
        let (rows, blocks) = (lhs.len() / k, k / BLOCK);
        let mut quants = vec![0; rows * k];
        let [mut scales, mut sums] = [(); 2].map(|()| vec![0.; rows * blocks]);
        let mut offsets = vec![0; rows * blocks];
        let work = lhs
            .chunks_exact(k)
            .zip(quants.chunks_exact_mut(k))
            .zip(scales.chunks_exact_mut(blocks))
            .zip(
                offsets
                    .chunks_exact_mut(blocks)
                    .zip(sums.chunks_exact_mut(blocks)),
            );
        let work = Mutex::new(work);
        let rounded = |count| {
            for _ in 0..count {
                let row = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((((x, quants), scales), (offsets, sums))) = row else {
                    return;
                };
                let x = x.chunks_exact(BLOCK).zip(quants.chunks_exact_mut(BLOCK));
                for (block, (x, quants)) in x.enumerate() {
                    let (scale, sum) =
                        level.quantize(x.try_into().unwrap(), quants.try_into().unwrap());
                    scales[block] = scale;
                    offsets[block] = -format.zero * sum;
                    sums[block] = sum as f32 * scale;
                }
            }
        };
        // Waking threads takes longer than a few rows.
        if rows < ROWS_FOR_THREADS {
            rounded(rows);
        } else {
            crate::utils::barrier_pool().execute_chunked(rows, |range| rounded(range.len()));
        }
        drop(work);
        Self {
            rows,
            blocks,
            quants,
            scales,
            offsets,
            sums,
        }
    }
}

/// Sixteen rows of the weights, unpacked.
struct Panel {
    /// For each block and each of its eight groups of four neighbours, these of every row: `(blocks, 8, 16, 4)`.
    elements: Vec<u8>,
    /// `(blocks, 16)`.
    scales: Vec<f32>,
    /// `(blocks, 16)`.
    mins: Vec<f32>,
}

impl Panel {
    fn new(blocks: usize) -> Self {
        Self {
            elements: vec![0; blocks * STEP],
            scales: vec![0.; blocks * LANES],
            mins: vec![0.; blocks * LANES],
        }
    }

    /// Unpacks up to sixteen rows; rows that are missing are left as they are, and nobody reads their products.
    fn fill(&mut self, bytes: &[u8], format: Format, level: x86::Level) {
        let blocks = self.scales.len() / LANES;
        let row_bytes = blocks * format.bytes;
        let rows = bytes.len() / row_bytes;
        for block in 0..blocks {
            let mut scales = [0; LANES];
            let mut mins = [0; LANES];
            let mut unpacked = x86::Unpacked([[0; BLOCK]; LANES]);
            for row in 0..rows {
                let packed = &bytes[row * row_bytes + block * format.bytes..][..format.bytes];
                let number = |at: usize| u16::from_le_bytes([packed[at], packed[at + 1]]);
                scales[row] = number(0);
                let mut at = 2;
                if format.has_min {
                    mins[row] = number(2);
                    at = 4;
                }
                let unpacked = &mut unpacked.0[row];
                if format.bits == 8 {
                    for (to, byte) in unpacked.iter_mut().zip(&packed[at..]) {
                        *to = byte ^ 0x80;
                    }
                    continue;
                }
                let fifth_bits = (format.bits == 5).then(|| {
                    at += 4;
                    u32::from_le_bytes(packed[at - 4..at].try_into().unwrap())
                });
                let nibbles = packed[at..].try_into().unwrap();
                level.unpack(nibbles, fifth_bits, unpacked);
            }
            let lanes = block * LANES..(block + 1) * LANES;
            level.convert(
                &scales,
                (&mut self.scales[lanes.clone()]).try_into().unwrap(),
            );
            if format.has_min {
                level.convert(&mins, (&mut self.mins[lanes]).try_into().unwrap());
            }
            let elements = &mut self.elements[block * STEP..(block + 1) * STEP];
            level.interleave(&unpacked, elements.try_into().unwrap());
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    //! Other processors have no level of this, so none of its functions is ever called.
    use super::*;

    pub const MAX_ROWS: usize = 1;
    pub struct Unpacked(pub [[u8; BLOCK]; LANES]);

    #[derive(Clone, Copy)]
    pub enum Level {}

    impl Level {
        pub fn detect() -> Option<Self> {
            None
        }
        pub fn takes(self, _: Format) -> bool {
            match self {}
        }
        pub fn most_packed_rows(self) -> usize {
            match self {}
        }
        pub fn multiply_packed(
            self,
            _: &[u8],
            _: Format,
            _: &Activations,
            _: usize,
            _: &mut [[f32; LANES]; MAX_ROWS],
        ) -> usize {
            match self {}
        }
        pub fn quantize(self, _: &[f32; BLOCK], _: &mut [i8; BLOCK]) -> (f32, i32) {
            match self {}
        }
        pub fn unpack(self, _: &[u8; 16], _: Option<u32>, _: &mut [u8; BLOCK]) {
            match self {}
        }
        pub fn convert(self, _: &[u16; LANES], _: &mut [f32; LANES]) {
            match self {}
        }
        pub fn interleave(self, _: &Unpacked, _: &mut [u8; STEP]) {
            match self {}
        }
        pub fn multiply(
            self,
            _: &Panel,
            _: &Activations,
            _: usize,
            _: bool,
            _: &mut [[f32; LANES]; MAX_ROWS],
        ) -> usize {
            match self {}
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
