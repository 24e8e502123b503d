//! Keys or values of four, five or eight bits with factors, in memory, as the device has them: elements and factors lie
//! apart, and eight neighbours of four bits are four bytes, of which byte i has element i in its lower half and element
//! i + 4 in its upper one.

use super::format::{row, shared_by, CacheDType, SCALED};
use half::f16;

/// The levels of [`CacheDType::Iq4Nl`]: those of ggml's IQ4_NL.
const LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Vectors of one size.
pub(super) struct Packed {
    dtype: CacheDType,
    /// Elements of a vector, and what it is filled up to.
    size: usize,
    row: usize,
    /// Elements that share a factor.
    shared: usize,
    elements: Vec<u8>,
    factors: Vec<u8>,
}

/// A factor, and what code 0 stands for, or is away from the middle.
#[derive(Clone, Copy)]
struct Factor {
    factor: f32,
    least: f32,
}

impl Packed {
    /// So many vectors of `size` elements.
    pub(super) fn new(vectors: usize, size: usize, dtype: CacheDType) -> Self {
        let shared = match dtype {
            CacheDType::F8 => shared_by(size),
            _ => SCALED,
        };
        let mut packed = Self {
            dtype,
            size,
            row: row(size),
            shared,
            elements: Vec::new(),
            factors: Vec::new(),
        };
        packed.elements = vec![0; vectors * packed.element_bytes()];
        packed.factors = vec![0; vectors * packed.factor_bytes()];
        packed
    }

    /// Elements of a vector.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Bytes of a vector's elements.
    fn element_bytes(&self) -> usize {
        match self.bits() {
            8 => self.row,
            _ => self.row / 2,
        }
    }

    /// Bytes of a vector's factors.
    fn factor_bytes(&self) -> usize {
        self.row / self.shared * self.record()
    }

    fn bits(&self) -> u32 {
        match self.dtype {
            CacheDType::Q4_0 | CacheDType::Q4_1 | CacheDType::Iq4Nl => 4,
            CacheDType::Q5_0 | CacheDType::Q5_1 => 5,
            _ => 8,
        }
    }

    fn has_least(&self) -> bool {
        matches!(self.dtype, CacheDType::Q4_1 | CacheDType::Q5_1)
    }

    /// Bytes of what is kept of elements that share a factor: the factor, what 0 stands for, fifth bits.
    fn record(&self) -> usize {
        2 + if self.has_least() { 2 } else { 0 } + if self.bits() == 5 { 4 } else { 0 }
    }

    /// Stores a vector.
    pub(super) fn write(&mut self, vector: usize, x: &[f32]) {
        let mut padded = [0.0; 128];
        let record = self.record();
        for first in (0..self.row).step_by(self.shared) {
            let given = &x[first.min(x.len())..(first + self.shared).min(x.len())];
            let block = &mut padded[..self.shared];
            block[..given.len()].copy_from_slice(given);
            block[given.len()..].fill(0.0);
            let at = vector * self.factor_bytes() + first / self.shared * record;
            let at = at..at + record;
            let start = vector * self.row + first;
            match self.bits() {
                8 => self.write_bytes(start, at, block.len(), &padded),
                _ => self.write_nibbles(start, at, &padded),
            }
        }
    }

    fn write_bytes(&mut self, start: usize, at: std::ops::Range<usize>, len: usize, x: &[f32]) {
        let x = &x[..len];
        let to = &mut self.elements[start..start + len];
        let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let kept = if self.dtype == CacheDType::Q8_0 {
            let factor = largest / 127.0;
            let inverse = inverse(factor);
            for (to, x) in to.iter_mut().zip(x) {
                *to = (x * inverse).round_ties_even() as i8 as u8;
            }
            f16::from_f32(factor)
        } else {
            let kept = f16::from_f32(largest / 448.0);
            let inverse = inverse(kept.to_f32());
            for (to, x) in to.iter_mut().zip(x) {
                *to = to_f8(x * inverse);
            }
            kept
        };
        self.factors[at].copy_from_slice(&kept.to_le_bytes());
    }

    fn write_nibbles(&mut self, start: usize, at: std::ops::Range<usize>, x: &[f32]) {
        let x = &x[..SCALED];
        let high = x.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
        let low = x.iter().fold(f32::INFINITY, |m, x| m.min(*x));
        // The element of the largest magnitude gets the code 0, which is further from what stands for 0 than the last.
        let furthest = if high >= -low { high } else { low };
        let (top, middle) = match self.bits() {
            5 => (31.0, 16.0),
            _ => (15.0, 8.0),
        };
        let mut codes = [0u8; SCALED];
        let (kept, least) = if self.dtype == CacheDType::Iq4Nl {
            (choose_levels(x, furthest, &mut codes), f16::ZERO)
        } else {
            let factor = match self.has_least() {
                true => (high - low) / top,
                false => furthest / -middle,
            };
            let kept = f16::from_f32(factor);
            let least = f16::from_f32(if self.has_least() { low } else { 0.0 });
            let inverse = inverse(kept.to_f32());
            let zero = match self.has_least() {
                true => -least.to_f32() * inverse,
                false => middle,
            };
            for (code, x) in codes.iter_mut().zip(x) {
                *code = (x * inverse + zero).round_ties_even().clamp(0.0, top) as u8;
            }
            (kept, least)
        };
        let has_least = self.has_least();
        let record = &mut self.factors[at];
        record[..2].copy_from_slice(&kept.to_le_bytes());
        if has_least {
            record[2..4].copy_from_slice(&least.to_le_bytes());
        }
        let fifth = record.len() - record.len().min(4);
        let to = &mut self.elements[start / 2..(start + SCALED) / 2];
        for (group, codes) in codes.chunks_exact(8).enumerate() {
            for i in 0..4 {
                to[group * 4 + i] = codes[i] & 15 | codes[i + 4] << 4;
            }
            if top > 15.0 {
                let bits = codes.iter().enumerate();
                record[fifth + group] = bits.fold(0, |all, (i, code)| all | (code >> 4) << i);
            }
        }
    }

    /// Appends the elements of some vectors.
    pub(super) fn read(&self, vectors: std::ops::Range<usize>, out: &mut Vec<f32>) {
        for vector in vectors {
            let end = out.len() + self.size;
            for first in (0..self.row).step_by(self.shared) {
                let at = vector * self.factor_bytes() + first / self.shared * self.record();
                let record = &self.factors[at..at + self.record()];
                let start = vector * self.row + first;
                match self.bits() {
                    8 => {
                        let factor = half(record);
                        let bytes = self.elements[start..start + self.shared].iter();
                        match self.dtype {
                            CacheDType::Q8_0 => {
                                out.extend(bytes.map(|byte| factor * f32::from(*byte as i8)));
                            }
                            _ => out.extend(bytes.map(|byte| factor * from_f8(*byte))),
                        }
                    }
                    _ => self.read_nibbles(start, record, out),
                }
            }
            out.truncate(end);
        }
    }

    fn read_nibbles(&self, start: usize, record: &[u8], out: &mut Vec<f32>) {
        let bytes = &self.elements[start / 2..(start + SCALED) / 2];
        let factor = half(record);
        let by = Factor {
            factor,
            least: match self.dtype {
                CacheDType::Q4_1 | CacheDType::Q5_1 => half(&record[2..]),
                CacheDType::Q5_0 => -16.0 * factor,
                _ => -8.0 * factor,
            },
        };
        let mut codes = [0u8; SCALED];
        for (codes, bytes) in codes.chunks_exact_mut(8).zip(bytes.chunks_exact(4)) {
            for i in 0..4 {
                codes[i] = bytes[i] & 15;
                codes[i + 4] = bytes[i] >> 4;
            }
        }
        if self.bits() == 5 {
            let fifth = &record[record.len() - 4..];
            for (codes, bits) in codes.chunks_exact_mut(8).zip(fifth) {
                for (i, code) in codes.iter_mut().enumerate() {
                    *code |= (bits >> i & 1) << 4;
                }
            }
        }
        if self.dtype == CacheDType::Iq4Nl {
            let level = |code: &u8| factor * f32::from(LEVELS[*code as usize]);
            out.extend(codes.iter().map(level));
        } else {
            out.extend(
                codes
                    .iter()
                    .map(|code| by.factor * f32::from(*code) + by.least),
            );
        }
    }

    /// Bytes of so many vectors.
    pub(super) fn bytes(&self, vectors: usize) -> usize {
        vectors * (self.element_bytes() + self.factor_bytes())
    }

    /// Appends vectors as they lie in memory.
    pub(super) fn append_bytes(&self, vectors: std::ops::Range<usize>, out: &mut Vec<u8>) {
        let of = |bytes: usize| vectors.start * bytes..vectors.end * bytes;
        out.extend_from_slice(&self.elements[of(self.element_bytes())]);
        out.extend_from_slice(&self.factors[of(self.factor_bytes())]);
    }

    /// Overwrites vectors with what [`Packed::append_bytes`] gave.
    pub(super) fn take_bytes(&mut self, vectors: std::ops::Range<usize>, bytes: &[u8]) {
        let of = |bytes: usize| vectors.start * bytes..vectors.end * bytes;
        let (of_elements, of_factors) = (of(self.element_bytes()), of(self.factor_bytes()));
        let (elements, factors) = bytes.split_at(of_elements.len());
        self.elements[of_elements].copy_from_slice(elements);
        self.factors[of_factors].copy_from_slice(factors);
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn inverse(x: f32) -> f32 {
    match x {
        0.0 => 0.0,
        x => 1.0 / x,
    }
}

/// The levels that are nearest, and the factor that suits them best, where an error counts as much as the element is
/// large.
fn choose_levels(x: &[f32], furthest: f32, codes: &mut [u8; SCALED]) -> f16 {
    let factor = furthest / -127.0;
    let inverse = inverse(factor);
    let (mut products, mut squares) = (0.0, 0.0);
    for (code, x) in codes.iter_mut().zip(x) {
        let scaled = x * inverse;
        let middles = LEVELS.windows(2);
        let middles = middles.map(|pair| 0.5 * (f32::from(pair[0]) + f32::from(pair[1])));
        *code = middles.filter(|middle| scaled > *middle).count() as u8;
        let level = f32::from(LEVELS[*code as usize]);
        let weighted = x * x * level;
        products += weighted * x;
        squares += weighted * level;
    }
    f16::from_f32(if squares > 0.0 {
        products / squares
    } else {
        factor
    })
}

/// To the nearest f8e4m3, of two the even one, at most 448.
fn to_f8(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24 & 0x80) as u8;
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    let code = if magnitude < 0.015625 {
        // Below 2^-6: multiples of 2^-9.
        (magnitude * 512.0).round_ties_even() as u32
    } else {
        let bits = magnitude.to_bits();
        let rounded = bits.saturating_add(0x7ffff + (bits >> 20 & 1));
        (rounded >> 20) - (120 << 3)
    };
    sign | code.min(0x7e) as u8
}

fn from_f8(byte: u8) -> f32 {
    /// By the lower seven bits.
    const VALUES: [f32; 128] = {
        let mut values = [0.0; 128];
        let mut i = 0;
        while i < 128 {
            // 2^120 brings exponents from 7 to 127 and makes subnormals normal.
            values[i] = f32::from_bits((i as u32) << 20) * f32::from_bits((127 + 120) << 23);
            i += 1;
        }
        values
    };
    let value = VALUES[usize::from(byte & 0x7f)];
    if byte & 0x80 == 0 {
        value
    } else {
        -value
    }
}

/// Turns `size` neighbours each by the Walsh-Hadamard transform, which is its own inverse; with 0 nothing turns.
pub(super) fn rotate(x: &mut [f32], size: usize) {
    if size == 0 {
        return;
    }
    let factor = 1.0 / (size as f32).sqrt();
    for x in x.chunks_exact_mut(size) {
        let mut step = 1;
        while step < size {
            for pair in x.chunks_exact_mut(2 * step) {
                let (low, high) = pair.split_at_mut(step);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            step *= 2;
        }
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + 13) % 1000) as f32 / 250.0 - 1.7)
            .collect()
    }

    #[test]
    fn elements_come_back_within_half_a_step() {
        for (dtype, steps) in [
            (CacheDType::Q4_0, 8.0),
            (CacheDType::Q4_1, 15.0),
            (CacheDType::Q5_0, 16.0),
            (CacheDType::Q5_1, 31.0),
            (CacheDType::Iq4Nl, 7.0),
            (CacheDType::Q8_0, 250.0),
            (CacheDType::F8, 16.0),
        ] {
            for size in [64, 80] {
                let mut packed = Packed::new(3, size, dtype);
                let x = numbers(size);
                packed.write(1, &x);
                let mut got = Vec::new();
                packed.read(1..2, &mut got);
                assert_eq!(got.len(), size);
                for (block, got) in x.chunks(SCALED).zip(got.chunks(SCALED)) {
                    let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
                    let spread = match dtype {
                        CacheDType::Q4_1 | CacheDType::Q5_1 => 2.0 * largest,
                        _ => largest,
                    };
                    // Halves round, and the last code is a step short of the largest.
                    let limit = spread / steps * 1.02;
                    for (x, got) in block.iter().zip(got) {
                        assert!((x - got).abs() <= limit, "{dtype:?}: {got} for {x}");
                    }
                }
                // Neighbours are as they were.
                let mut others = Vec::new();
                packed.read(0..1, &mut others);
                packed.read(2..3, &mut others);
                let is_zero = |x: &f32| *x == 0.0;
                assert!(others.iter().all(is_zero), "{dtype:?}");
            }
        }
    }

    #[test]
    fn f8_is_right_for_every_code() {
        for code in 0..=0x7eu8 {
            assert_eq!(to_f8(from_f8(code)), code);
            assert_eq!(to_f8(-from_f8(code)), code | 0x80);
            if code < 0x7e {
                let middle = (from_f8(code) + from_f8(code + 1)) / 2.0;
                assert_eq!(to_f8(middle) % 2, 0, "{middle}");
                assert_eq!(to_f8(middle * 1.001), code + 1);
                assert_eq!(to_f8(middle * 0.999), code);
            }
        }
        assert_eq!(from_f8(0x7e), 448.0);
        assert_eq!(to_f8(1e9), 0x7e);
        assert_eq!(to_f8(f32::INFINITY), 0x7e);
    }

    #[test]
    fn what_turns_twice_is_what_it_was() {
        for size in [8, 16, 64, 128] {
            let x = numbers(128);
            let mut turned = x.clone();
            rotate(&mut turned, size);
            let squares = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
            assert!((squares(&turned) - squares(&x)).abs() < 1e-3);
            assert!((turned[1] - x[1]).abs() > 0.01);
            rotate(&mut turned, size);
            for (got, want) in turned.iter().zip(&x) {
                assert!((got - want).abs() < 1e-5);
            }
        }
    }
}
