//! Products with rows of blocks: the dequantized values times f32 activations.
//!
//! A row's products are added in eight sums from its first element to its last, whether the row is decoded on the way
//! into the product, as for one row of activations, or once for all of them. So a result does not depend on how many
//! rows of activations there are.

use super::Codec;
use crate::quantized::GgmlDType;

/// Rows of weights that are multiplied side by side.
const ROWS: usize = 4;
/// Sums of a row.
const LANES: usize = 8;
/// Elements of each of these rows that are decoded before they are multiplied: so many stay in the nearest cache. A
/// multiple of every format's block.
const CHUNK: usize = 512;

/// The formats that instructions decode without a table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fast {
    F8E4M3,
    Mxfp4,
    Nvfp4,
}

impl Fast {
    fn of(dtype: GgmlDType) -> Option<Self> {
        match dtype {
            GgmlDType::F8E4M3 => Some(Self::F8E4M3),
            GgmlDType::MXFP4 => Some(Self::Mxfp4),
            GgmlDType::NVFP4 => Some(Self::Nvfp4),
            _ => None,
        }
    }
}

/// `dst` (m, n) = `lhs` (m, k) times the transposed weights (n, k), given as their blocks' bytes; nothing is empty.
pub(super) fn matmul(
    codec: &Codec,
    mkn: (usize, usize, usize),
    lhs: &[f32],
    blocks: &[u8],
    dst: &mut [f32],
) {
    matmul_by(x86::Vectors::detect(), codec, mkn, lhs, blocks, dst);
}

fn matmul_by(
    vectors: Option<x86::Vectors>,
    codec: &Codec,
    (m, k, n): (usize, usize, usize),
    lhs: &[f32],
    blocks: &[u8],
    dst: &mut [f32],
) {
    let row_bytes = k / codec.elements * codec.bytes;
    assert!(lhs.len() == m * k && blocks.len() == n * row_bytes && dst.len() == m * n);
    let fast = Fast::of(codec.dtype);
    let dst = Destination(dst.as_mut_ptr());
    crate::utils::barrier_pool().execute_chunked(n.div_ceil(ROWS), |groups| {
        let dst = &dst;
        let mut scratch = match (vectors, fast) {
            (Some(_), Some(_)) if m == 1 => Scratch::new(0, 0),
            (Some(_), _) => Scratch::new(ROWS * CHUNK, m),
            (None, _) => Scratch::new(k, 0),
        };
        for first in groups.map(|group| group * ROWS) {
            let rows = ROWS.min(n - first);
            let blocks = &blocks[first * row_bytes..][..rows * row_bytes];
            let put = |row: usize, i: usize, product: f32| {
                assert!(row < m && i < rows);
                // SAFETY: the element is within `dst`, and no other group of rows has it.
                unsafe { *dst.0.add(row * n + first + i) = product };
            };
            match (vectors, fast) {
                (Some(vectors), Some(fast)) if m == 1 => {
                    let mut products = [0.; ROWS];
                    vectors.product(fast, blocks, lhs, &mut products[..rows]);
                    for (i, product) in products[..rows].iter().enumerate() {
                        put(0, i, *product);
                    }
                }
                (Some(vectors), _) => {
                    scratch.sum(vectors, fast, codec, blocks, (rows, k), lhs);
                    let factor = fast.map_or(1., Fast::factor);
                    for (row, sums) in scratch.sums.iter().enumerate() {
                        for (i, sums) in sums[..rows].iter().enumerate() {
                            put(row, i, total(sums) * factor);
                        }
                    }
                }
                (None, _) => {
                    for (i, blocks) in blocks.chunks_exact(row_bytes).enumerate() {
                        read(codec, blocks, &mut scratch.values);
                        for (row, lhs) in lhs.chunks_exact(k).enumerate() {
                            put(row, i, dot(lhs, &scratch.values));
                        }
                    }
                }
            }
        }
    });
}

/// Where the threads write, each to columns of its own.
struct Destination(*mut f32);
// SAFETY: see above; the pointer outlives the threads' work, which `execute_chunked` waits for.
unsafe impl Sync for Destination {}

/// What a thread needs besides registers.
struct Scratch {
    /// Decoded elements.
    values: Vec<f32>,
    /// Of each row of activations with each row of weights.
    sums: Vec<[[f32; LANES]; ROWS]>,
}

impl Scratch {
    fn new(values: usize, sums: usize) -> Self {
        Self {
            values: vec![0.; values],
            sums: vec![[[0.; LANES]; ROWS]; sums],
        }
    }

    /// The sums of every row of `lhs` with some rows of weights; sums with rows that are missing are undefined.
    fn sum(
        &mut self,
        vectors: x86::Vectors,
        fast: Option<Fast>,
        codec: &Codec,
        blocks: &[u8],
        (rows, k): (usize, usize),
        lhs: &[f32],
    ) {
        self.sums.fill([[0.; LANES]; ROWS]);
        let row_bytes = blocks.len() / rows;
        for start in (0..k).step_by(CHUNK) {
            let len = CHUNK.min(k - start);
            let bytes = |elements: usize| elements / codec.elements * codec.bytes;
            let chunks = blocks.chunks_exact(row_bytes);
            for (row, values) in chunks.zip(self.values.chunks_exact_mut(CHUNK)) {
                let (blocks, values) = (&row[bytes(start)..bytes(start + len)], &mut values[..len]);
                match fast {
                    Some(fast) => vectors.decode(fast, blocks, values),
                    None => read(codec, blocks, values),
                }
            }
            vectors.products(&self.values, len, lhs, (k, start), &mut self.sums);
        }
    }
}

/// Dequantizes consecutive blocks.
pub(super) fn read(codec: &Codec, blocks: &[u8], values: &mut [f32]) {
    let blocks = blocks.chunks_exact(codec.bytes);
    for (block, values) in blocks.zip(values.chunks_exact_mut(codec.elements)) {
        (codec.read)(block, values);
    }
}

/// Sum of products, in sums that a vector unit forms at once.
fn dot(lhs: &[f32], rhs: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    for (lhs, rhs) in lhs.chunks_exact(LANES).zip(rhs.chunks_exact(LANES)) {
        for (sum, (l, r)) in sums.iter_mut().zip(lhs.iter().zip(rhs)) {
            *sum += l * r;
        }
    }
    total(&sums)
}

/// A row's sums in one.
fn total(sums: &[f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = *sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    //! Other processors have no vectors of this, so none of its functions is ever called.
    use super::*;

    #[derive(Clone, Copy)]
    pub enum Vectors {}

    impl Vectors {
        pub fn detect() -> Option<Self> {
            None
        }
        pub fn product(self, _: Fast, _: &[u8], _: &[f32], _: &mut [f32]) {
            match self {}
        }
        pub fn decode(self, _: Fast, _: &[u8], _: &mut [f32]) {
            match self {}
        }
        pub fn products(
            self,
            _: &[f32],
            _: usize,
            _: &[f32],
            _: (usize, usize),
            _: &mut [[[f32; LANES]; ROWS]],
        ) {
            match self {}
        }
    }

    impl Fast {
        pub fn factor(self) -> f32 {
            1.
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        let number = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.;
        (0..count).map(number).collect()
    }

    /// Processors without the instructions find the same but for rounding.
    #[test]
    fn products_without_vectors_are_those_with_them() {
        let (k, n) = (768, 7);
        for codec in crate::quantized::formats::ALL {
            let mut blocks = vec![0; n * k / codec.elements * codec.bytes];
            let weights = numbers(n * k);
            let values = weights.chunks_exact(codec.elements);
            for (block, values) in blocks.chunks_exact_mut(codec.bytes).zip(values) {
                (codec.write)(values, None, block);
            }
            for m in [1, 5] {
                let lhs = numbers(m * k);
                let product = |vectors| {
                    let mut dst = vec![f32::NAN; m * n];
                    matmul_by(vectors, codec, (m, k, n), &lhs, &blocks, &mut dst);
                    dst
                };
                let (with, without) = (product(x86::Vectors::detect()), product(None));
                for (a, b) in with.iter().zip(&without) {
                    assert!((a - b).abs() < 1e-3, "{:?} {m}: {a}, {b}", codec.dtype);
                }
            }
        }
    }
}
