//! Rows of f32 on the CPU, in eight lanes side by side: compilers may not reorder sums of floats themselves.

/// Elements side by side.
const LANES: usize = 8;

/// The sum of `of` of all elements in f64, of eight partial sums.
pub(crate) fn sum(row: &[f32], of: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0f64; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += of(f64::from(*x));
        }
    }
    rest.iter()
        .fold(sums.iter().sum(), |sum, x| sum + of(f64::from(*x)))
}

/// exp(x - max) / sum of these; the sum is f64's.
pub(crate) fn softmax(row: &[f32]) -> Vec<f32> {
    let max = max(row);
    let mut powers: Vec<f32> = row.iter().map(|x| exp(x - max)).collect();
    let factor = sum(&powers, |power| power).recip();
    for power in &mut powers {
        *power = (f64::from(*power) * factor) as f32;
    }
    powers
}

/// The largest element that is a number.
fn max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut most = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, x) in most.iter_mut().zip(chunk) {
            *most = larger(*most, *x);
        }
    }
    most.iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, larger)
}

/// e to the power of `x`, at most 1, within two units in the last place, without a branch or a table. What is below
/// the smallest normal number is 0; of NaN it is NaN.
fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, of which the first times a small integer is exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let part = x - whole * LN_2.0 - whole * LN_2.1;
    // Taylor's series; the rest lies within half of ln 2, where the next term is 5e-9.
    let series = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let power = series.into_iter().fold(0.0, |sum, term| sum * part + term);
    let exponent = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    match x < -87.0 {
        true => 0.0,
        false => power * f32::from_bits(exponent << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_right_to_two_units() {
        for i in 0..=870_000 {
            let x = -(i as f32) / 10_000.0;
            let (found, expected) = (exp(x), f64::from(x).exp());
            let apart = (f64::from(found) - expected).abs() / expected;
            assert!(
                apart < 2.0 * f64::from(f32::EPSILON),
                "{x}: {found} for {expected}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn every_element_counts() {
        for length in [0, 1, 7, 8, 9, 17] {
            let row: Vec<f32> = (1..=length).map(|x| x as f32).collect();
            assert_eq!(sum(&row, |x| x), (length * (length + 1) / 2) as f64);
            assert_eq!(max(&row), row.last().copied().unwrap_or(f32::NEG_INFINITY));
        }
    }
}
