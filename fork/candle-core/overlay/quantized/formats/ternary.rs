//! TQ1_0 and TQ2_0: one scale, and -1, 0 or 1 per element.

use half::f16;

use super::{half_at, put, search};

/// Where the elements of a TQ1_0 block lie: runs of bytes whose digits, most significant first, are elements `len`
/// apart.
struct Run {
    byte: usize,
    len: usize,
    digits: usize,
    element: usize,
}

const TQ1_RUNS: [Run; 3] = [
    Run {
        byte: 0,
        len: 32,
        digits: 5,
        element: 0,
    },
    Run {
        byte: 32,
        len: 16,
        digits: 5,
        element: 160,
    },
    Run {
        byte: 48,
        len: 4,
        digits: 4,
        element: 240,
    },
];

/// 52 bytes of five (the last four: four) ternary digits each, as the fraction digits of `byte / 256`; half d.
pub(super) fn read_tq1(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 52);
    for run in &TQ1_RUNS {
        for i in 0..run.len {
            let mut fraction = block[run.byte + i];
            for digit in 0..run.digits {
                let q = (u16::from(fraction) * 3) >> 8;
                values[run.element + digit * run.len + i] = d * (f32::from(q) - 1.);
                fraction = fraction.wrapping_mul(3);
            }
        }
    }
}

pub(super) fn write_tq1(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
    let (d, inverse) = scale(values);
    for run in &TQ1_RUNS {
        for i in 0..run.len {
            let digits = (0..5).map(|digit| match digit < run.digits {
                true => trit(values[run.element + digit * run.len + i] * inverse),
                false => 0,
            });
            let number = digits.fold(0u16, |number, trit| number * 3 + u16::from(trit));
            // Rounded up, so that the digits come out of the fraction undisturbed.
            block[run.byte + i] = (number * 256).div_ceil(243) as u8;
        }
    }
    put(block, 52, &d.to_le_bytes());
}

/// 64 bytes of 2-bit values, four runs of 32 elements in 32 bytes; half d.
pub(super) fn read_tq2(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 64);
    for (e, value) in values.iter_mut().enumerate() {
        let q = block[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
        *value = d * (f32::from(q) - 1.);
    }
}

pub(super) fn write_tq2(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
    let (d, inverse) = scale(values);
    block.fill(0);
    for (e, value) in values.iter().enumerate() {
        block[e / 128 * 32 + e % 32] |= trit(value * inverse) << (e % 128 / 32 * 2);
    }
    put(block, 64, &d.to_le_bytes());
}

/// The largest magnitude, as stored, and the inverse of what it was.
fn scale(values: &[f32]) -> (f16, f32) {
    let d = search::largest_magnitude(values);
    (f16::from_f32(d), search::inverse(d))
}

fn trit(value: f32) -> u8 {
    (value.round().clamp(-1., 1.) + 1.) as u8
}
