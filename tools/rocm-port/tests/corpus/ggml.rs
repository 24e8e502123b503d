//! Blocks of GGUF's quantized formats on the host: random ones that are sane, and what they stand for.
//!
//! Written from the description of the formats, in f64, so that device code of any crate can be compared with it.

use crate::random::Random;
use half::f16;

/// A format of blocks.
pub struct Format {
    /// Elements of a block.
    pub elements: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Offsets of the binary16 numbers (scales, minima) in a block.
    halves: &'static [usize],
    /// Values of a block's elements.
    values: fn(&[u8]) -> Vec<f64>,
}

pub static Q4_0: Format = Format {
    elements: 32,
    bytes: 18,
    halves: &[0],
    values: q4_0,
};
pub static Q4_1: Format = Format {
    elements: 32,
    bytes: 20,
    halves: &[0, 2],
    values: q4_1,
};
pub static Q5_0: Format = Format {
    elements: 32,
    bytes: 22,
    halves: &[0],
    values: q5_0,
};
pub static Q5_1: Format = Format {
    elements: 32,
    bytes: 24,
    halves: &[0, 2],
    values: q5_1,
};
pub static Q8_0: Format = Format {
    elements: 32,
    bytes: 34,
    halves: &[0],
    values: q8_0,
};
pub static Q2_K: Format = Format {
    elements: 256,
    bytes: 84,
    halves: &[80, 82],
    values: q2_k,
};
pub static Q3_K: Format = Format {
    elements: 256,
    bytes: 110,
    halves: &[108],
    values: q3_k,
};
pub static Q4_K: Format = Format {
    elements: 256,
    bytes: 144,
    halves: &[0, 2],
    values: q4_k,
};
pub static Q5_K: Format = Format {
    elements: 256,
    bytes: 176,
    halves: &[0, 2],
    values: q5_k,
};
pub static Q6_K: Format = Format {
    elements: 256,
    bytes: 210,
    halves: &[208],
    values: q6_k,
};
/// Its scale is a binary32, and behind the quants are sums that nothing here reads.
pub static Q8_K: Format = Format {
    elements: 256,
    bytes: 292,
    halves: &[],
    values: q8_k,
};

/// Formats with their word in names of kernels, as candle-kernels spells it.
pub static ALL: [(&str, &Format); 10] = [
    ("q4_0", &Q4_0),
    ("q4_1", &Q4_1),
    ("q5_0", &Q5_0),
    ("q5_1", &Q5_1),
    ("q8_0", &Q8_0),
    ("q2_K", &Q2_K),
    ("q3_K", &Q3_K),
    ("q4_K", &Q4_K),
    ("q5_K", &Q5_K),
    ("q6_K", &Q6_K),
];

impl Format {
    /// Random blocks for `elements`: any bits, but scales of the order of 0.01, so that sums stay small.
    pub fn random(&self, elements: usize, random: &mut Random) -> Vec<u8> {
        assert_eq!(elements % self.elements, 0);
        let mut blocks = random.bytes(elements / self.elements * self.bytes);
        for block in blocks.chunks_mut(self.bytes) {
            for &at in self.halves {
                let scale = f16::from_f64(random.between(0.002, 0.02));
                block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
            if self.bytes == Q8_K.bytes {
                block[..4].copy_from_slice(&(random.between(0.002, 0.02) as f32).to_le_bytes());
            }
        }
        blocks
    }

    /// What blocks stand for.
    pub fn values(&self, blocks: &[u8]) -> Vec<f64> {
        blocks.chunks(self.bytes).flat_map(self.values).collect()
    }

    /// Products of `rows` rows of blocks with `columns` vectors of `length` elements: column after column.
    pub fn product(&self, blocks: &[u8], rows: usize, vectors: &[f64], length: usize) -> Vec<f64> {
        let weights = self.values(blocks);
        vectors
            .chunks(length)
            .flat_map(|vector| {
                let rows = weights.chunks(length).take(rows);
                rows.map(move |row| row.iter().zip(vector).map(|(a, b)| a * b).sum())
            })
            .collect()
    }
}

/// Random activations as blocks of Q8_1 (a scale, the sum of the block's values, 32 quants), with their values. Scales
/// are powers of two and quants at most 60, so the sum is exact in binary16: kernels that use it instead of the quants
/// have to come to the same.
pub fn random_q8_1(elements: usize, random: &mut Random) -> (Vec<u8>, Vec<f64>) {
    let (mut blocks, mut values) = (Vec::new(), Vec::new());
    for _ in 0..elements / 32 {
        let scale = 0.5f64.powi(random.below(3) as i32 + 4);
        let quants: Vec<i8> = (0..32)
            .map(|_| (random.below(121) as i32 - 60) as i8)
            .collect();
        let sum: f64 = quants.iter().map(|&q| f64::from(q) * scale).sum();
        blocks.extend(f16::from_f64(scale).to_le_bytes());
        blocks.extend(f16::from_f64(sum).to_le_bytes());
        blocks.extend(quants.iter().map(|&q| q as u8));
        values.extend(quants.iter().map(|&q| f64::from(q) * scale));
    }
    (blocks, values)
}

/// The binary16 at byte `at`.
pub fn half_at(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// The two nibbles of 16 bytes: the low ones, then the high ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes
        .iter()
        .map(|b| b & 15)
        .chain(bytes.iter().map(|b| b >> 4))
}

fn q4_0(block: &[u8]) -> Vec<f64> {
    let d = half_at(block, 0);
    nibbles(&block[2..18])
        .map(|q| d * (f64::from(q) - 8.))
        .collect()
}

fn q4_1(block: &[u8]) -> Vec<f64> {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    nibbles(&block[4..20])
        .map(|q| d * f64::from(q) + m)
        .collect()
}

/// Quants of 5 bits: nibbles, and a word with the fifth bit of each.
fn fives(bits: &[u8], bytes: &[u8]) -> Vec<f64> {
    let bits = u32::from_le_bytes(bits.try_into().expect("four bytes"));
    let five = |(i, q): (usize, u8)| f64::from(q) + f64::from(bits >> i & 1) * 16.;
    nibbles(bytes).enumerate().map(five).collect()
}

fn q5_0(block: &[u8]) -> Vec<f64> {
    let d = half_at(block, 0);
    fives(&block[2..6], &block[6..22])
        .iter()
        .map(|q| d * (q - 16.))
        .collect()
}

fn q5_1(block: &[u8]) -> Vec<f64> {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    fives(&block[4..8], &block[8..24])
        .iter()
        .map(|q| d * q + m)
        .collect()
}

fn q8_0(block: &[u8]) -> Vec<f64> {
    let d = half_at(block, 0);
    block[2..34]
        .iter()
        .map(|&q| d * f64::from(q as i8))
        .collect()
}

/// Sixteen groups of 16: a byte with scale and minimum each; 64 bytes with 2 bits for four elements that are 32 apart.
fn q2_k(block: &[u8]) -> Vec<f64> {
    let (d, m) = (half_at(block, 80), half_at(block, 82));
    (0..256)
        .map(|i| {
            let group = block[i / 16];
            let q = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            d * f64::from(group & 15) * f64::from(q) - m * f64::from(group >> 4)
        })
        .collect()
}

/// As Q2_K without minima, with a third bit in the first 32 bytes (set: nothing is taken off, else 4), and 6-bit scales
/// in 12 bytes: nibbles in the first 8, and the upper two bits of four scales in each of the others.
fn q3_k(block: &[u8]) -> Vec<f64> {
    let d = half_at(block, 108);
    let scales = &block[96..108];
    (0..256)
        .map(|i| {
            let group = i / 16;
            let low = if group < 8 {
                scales[group] & 15
            } else {
                scales[group - 8] >> 4
            };
            let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            let q = block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            let taken = if block[i % 32] >> (i / 32) & 1 == 1 {
                0.
            } else {
                4.
            };
            d * (f64::from(low | high << 4) - 32.) * (f64::from(q) - taken)
        })
        .collect()
}

/// The 6-bit scale and minimum of a group of 32, of 12 bytes.
fn scale_and_minimum(group: usize, bytes: &[u8]) -> (f64, f64) {
    let (scale, minimum) = match group {
        0..4 => (bytes[group] & 63, bytes[group + 4] & 63),
        _ => (
            bytes[group + 4] & 15 | bytes[group - 4] >> 6 << 4,
            bytes[group + 4] >> 4 | bytes[group] >> 6 << 4,
        ),
    };
    (f64::from(scale), f64::from(minimum))
}

/// Eight groups of 32: two share 32 bytes, the first has the low nibbles.
fn q4_k(block: &[u8]) -> Vec<f64> {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    (0..256)
        .map(|i| {
            let (scale, minimum) = scale_and_minimum(i / 32, &block[4..16]);
            let q = block[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
            d * scale * f64::from(q) - m * minimum
        })
        .collect()
}

/// As Q4_K, with the fifth bits in 32 bytes: bit `group` of byte `i % 32`.
fn q5_k(block: &[u8]) -> Vec<f64> {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    (0..256)
        .map(|i| {
            let (scale, minimum) = scale_and_minimum(i / 32, &block[4..16]);
            let low = block[48 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
            let high = block[16 + i % 32] >> (i / 32) & 1;
            d * scale * f64::from(low | high << 4) - m * minimum
        })
        .collect()
}

/// Halves of 128: 64 bytes with nibbles, 32 bytes with the upper 2 bits of four elements that are 32 apart.
fn q6_k(block: &[u8]) -> Vec<f64> {
    let d = half_at(block, 208);
    (0..256)
        .map(|i| {
            let (half, inner) = (i / 128, i % 128);
            let low = block[half * 64 + inner % 64] >> (inner / 64 * 4) & 15;
            let high = block[128 + half * 32 + inner % 32] >> (inner / 32 * 2) & 3;
            let scale = block[192 + i / 16] as i8;
            d * f64::from(scale) * (f64::from(low | high << 4) - 32.)
        })
        .collect()
}

fn q8_k(block: &[u8]) -> Vec<f64> {
    let d = f32::from_le_bytes(block[..4].try_into().expect("four bytes"));
    block[4..260]
        .iter()
        .map(|&q| f64::from(d) * f64::from(q as i8))
        .collect()
}
