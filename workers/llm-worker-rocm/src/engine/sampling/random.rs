//! Random numbers that are a function of seed, position and token: Philox4x32-10 ("Parallel Random Numbers: As Easy as
//! 1, 2, 3", Salmon et al., 2011).

/// No number of [`gumbel`] is larger.
pub(super) const MAX_GUMBEL: f32 = 17.5;

/// A number of the standard Gumbel distribution.
pub(crate) fn gumbel(seed: u64, position: u32, token: u32) -> f32 {
    -(-fraction(seed, [token, position, 0, 0]).ln()).ln()
}

/// A number between 0 and 1 for a position, which has nothing to do with those of its tokens.
pub(super) fn uniform(seed: u64, position: u32) -> f32 {
    fraction(seed, [0, position, 1, 0])
}

/// The middle of one of 2^24 equal parts of (0, 1).
fn fraction(seed: u64, counter: [u32; 4]) -> f32 {
    let bits = philox(counter, [seed as u32, (seed >> 32) as u32]);
    ((bits >> 8) as f32 + 0.5) * (1.0 / (1 << 24) as f32)
}

/// The first word of the block.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> u32 {
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    for _ in 0..10 {
        let [a, b] = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [0, 1].map(|i| key[i].wrapping_add(WEYL[i]));
    }
    counter[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        // The known answers of the authors' library for counters and keys of zeros, of ones, and of the digits of pi.
        assert_eq!(philox([0; 4], [0; 2]), 0x6627_e8d5);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), 0x408f_276d);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(pi, [0xa409_3822, 0x299f_31d0]), 0xd16c_fe09);
    }

    #[test]
    fn the_distribution_is_gumbels() {
        let numbers: Vec<f64> = (0..100_000)
            .map(|i| f64::from(gumbel(7, i / 1000, i % 1000)))
            .collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        // Euler's constant, and a sixth of the square of pi.
        assert!((mean - 0.5772).abs() < 0.02, "{mean}");
        assert!((variance - 1.6449).abs() < 0.04, "{variance}");
        assert!(numbers.iter().all(|x| *x < f64::from(MAX_GUMBEL)));
    }
}
