//! MFMA of gfx950 on floats of 8 or 4 bits, each 32 of which along K share a scale.
//!
//! Of A a lane `l` holds row `l % 16`, of B the column. With `g = l / 16`: of 8-bit floats, the places of K from `16 g`
//! on, 16 of them, and those 64 further; of 4-bit floats, which fill half of the registers, the 32 places from `32 g` on,
//! in a byte the lower nibble first. It also brings the scale, a power of two (e8m0), of the places from `32 g` on, in a
//! byte of a word that the instruction names. ("AMD Instinct CDNA4 Instruction Set Architecture", block-scaled matrix
//! instructions; the OCP's "Microscaling Formats (MX) Specification".)

use super::{store, sums_of, Layout, Operands, MOST, TILE};

/// Places of K.
const K: usize = 128;
/// Places that share a scale.
const BLOCK: usize = 32;
/// Bytes of a lane's elements, before its scales.
const REGISTERS: usize = 32;

/// The value of the bits of a float without its sign, subnormal ones included.
pub(super) fn magnitude(bits: u8, mantissa: u32, bias: i32) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> mantissa), bits & ((1 << mantissa) - 1));
    let (whole, exponent) = match exponent {
        0 => (0, 1),
        _ => (1 << mantissa, exponent),
    };
    (f32::from(fraction) + whole as f32) * 2f32.powi(exponent - bias - mantissa as i32)
}

/// What elements are, as the instruction numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    E4m3,
    E5m2,
    E2m1,
}

impl Element {
    fn of(number: u32) -> Result<Self, String> {
        match number {
            0 => Ok(Element::E4m3),
            1 => Ok(Element::E5m2),
            4 => Ok(Element::E2m1),
            other => Err(format!(
                "v_mfma_scale_f32_16x16x128_f8f6f4 of format {other}, which is not simulated"
            )),
        }
    }

    /// Elements of a lane's registers: places of K and values.
    fn places(self, lane: usize, registers: &[u8; REGISTERS]) -> Vec<(usize, f64)> {
        let group = lane / TILE;
        match self {
            Element::E2m1 => (0..BLOCK)
                .map(|i| {
                    let nibble = registers[i / 2] >> (4 * (i % 2)) & 15;
                    (BLOCK * group + i, self.value(nibble))
                })
                .collect(),
            Element::E4m3 | Element::E5m2 => (0..REGISTERS)
                .map(|i| (i / 16 * 64 + 16 * group + i % 16, self.value(registers[i])))
                .collect(),
        }
    }

    fn value(self, bits: u8) -> f64 {
        let (sign, value) = match self {
            Element::E2m1 => (bits & 8, magnitude(bits & 7, 1, 1)),
            Element::E4m3 => match bits & 0x7f {
                0x7f => (bits & 0x80, f32::NAN),
                rest => (bits & 0x80, magnitude(rest, 3, 7)),
            },
            Element::E5m2 => match bits & 0x7f {
                0x7c => (bits & 0x80, f32::INFINITY),
                0x7d..=0x7f => (bits & 0x80, f32::NAN),
                rest => (bits & 0x80, magnitude(rest, 2, 15)),
            },
        };
        f64::from(if sign != 0 { -value } else { value })
    }
}

/// An operand: rows of A, or columns of B, with their scales applied.
///
/// # Safety
/// Each of `parts` points to a lane's registers and scales.
unsafe fn operand(
    parts: impl Iterator<Item = *const u8> + Clone,
    element: Element,
    byte: usize,
) -> [[f64; K]; TILE] {
    let mut values = [[0.0; K]; TILE];
    let mut scales = [[0.0; K / BLOCK]; TILE];
    for (lane, part) in parts.enumerate() {
        // SAFETY: the caller's promise.
        let (registers, scale) = unsafe {
            (
                &*part.cast::<[u8; REGISTERS]>(),
                *part.add(REGISTERS + byte),
            )
        };
        for (place, value) in element.places(lane, registers) {
            values[lane % TILE][place] = value;
        }
        scales[lane % TILE][lane / TILE] = match scale {
            255 => f64::NAN,
            exponent => 2f64.powi(i32::from(exponent) - 127),
        };
    }
    for (row, scales) in values.iter_mut().zip(&scales) {
        for (block, scale) in row.chunks_mut(BLOCK).zip(scales) {
            block.iter_mut().for_each(|value| *value *= scale);
        }
    }
    values
}

/// D = A B + C: each product, exact in f64, is added to the sum there, which is rounded to f32 after it.
///
/// # Safety
/// As for [`super::execute`].
pub(super) unsafe fn multiply(lanes: &[*const Operands]) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let immediates = unsafe { (*lanes[0]).signs };
    let of_a = Element::of(immediates & 15)?;
    let of_b = Element::of(immediates >> 4 & 15)?;
    let (byte_a, byte_b) = (immediates >> 8 & 3, immediates >> 12 & 3);
    // SAFETY: the caller's promise.
    let (a, b) = unsafe {
        (
            operand(
                lanes.iter().map(|lane| (**lane).a.cast()),
                of_a,
                byte_a as usize,
            ),
            operand(
                lanes.iter().map(|lane| (**lane).b.cast()),
                of_b,
                byte_b as usize,
            ),
        )
    };
    let mut d = [[0f32; MOST]; MOST];
    // SAFETY: the caller's promise.
    unsafe { sums_of(lanes, Layout::Mfma, &mut d) };
    for (row, sums) in a.iter().zip(&mut d) {
        for (column, sum) in b.iter().zip(sums) {
            for (x, y) in row.iter().zip(column) {
                *sum = (x * y + f64::from(*sum)) as f32;
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store(lanes, Layout::Mfma, &d) };
    Ok(())
}
