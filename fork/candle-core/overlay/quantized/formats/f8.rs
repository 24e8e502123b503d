//! 8-bit floats (e4m3) with a binary32 scale for 64 of them.

use float8::F8E4M3;

use super::{put, search, u32_at};

/// Bytes of the scale, before the elements.
const SCALE: usize = 4;
/// The largest float (`F8E4M3::MAX` is the one below).
const LARGEST: f32 = 448.;

/// The scale, then a byte for each element.
pub(super) fn read(block: &[u8], values: &mut [f32]) {
    let d = f32::from_bits(u32_at(block, 0));
    for (value, bits) in values.iter_mut().zip(&block[SCALE..]) {
        *value = d * VALUES[usize::from(*bits)];
    }
}

/// The scale makes the largest magnitude the largest float; then each value takes the nearest, of equals the even one.
pub(super) fn write(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
    let max = search::largest_magnitude(values);
    // Below, its inverse is infinite.
    let d = (max / LARGEST).max(f32::MIN_POSITIVE);
    put(block, 0, &d.to_le_bytes());
    for (bits, value) in block[SCALE..].iter_mut().zip(values) {
        let nearest = F8E4M3::from_f32(value / d).to_bits();
        // There is no -0: GPUs whose floats have another bias read it as NaN.
        *bits = if nearest == 0x80 { 0 } else { nearest };
    }
}

/// What each byte stands for.
static VALUES: [f32; 256] = {
    let mut values = [0.; 256];
    let mut bits = 0;
    while bits < 256 {
        let (exponent, mantissa) = (bits as u32 >> 3 & 15, bits as u32 & 7);
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.,
            _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
        };
        values[bits] = if bits < 128 { magnitude } else { -magnitude };
        bits += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_for_what_float8_says() {
        for bits in 0..=255u8 {
            let expected = F8E4M3::from_bits(bits).to_f32();
            let value = VALUES[usize::from(bits)];
            assert!(
                value == expected || value.is_nan() && expected.is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.37).collect();
        let (mut block, mut back) = ([0; 68], [0.; 64]);
        write(&values, None, &mut block);
        read(&block, &mut back);
        for (value, back) in values.iter().zip(back) {
            assert!(
                (value - back).abs() <= value.abs() / 16. + 1e-4,
                "{value} {back}"
            );
        }
        write(&[0.; 64], None, &mut block);
        read(&block, &mut back);
        assert_eq!(back, [0.; 64]);
        write(&[-1e-30; 64], None, &mut block);
        assert!(!block[4..].contains(&0x80));
    }
}
