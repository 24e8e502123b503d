//! The weights of tiny models.

/// The same numbers as in `generate.py`.
pub fn numbers(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let seed = name.bytes().fold(2_166_136_261u32, |seed, byte| {
        (seed ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    (0..count as u32).map(move |i| {
        let mut x = i.wrapping_mul(2_654_435_761).wrapping_add(seed);
        x ^= x >> 16;
        x = x.wrapping_mul(0x7feb_352d);
        x ^= x >> 15;
        x = x.wrapping_mul(0x846c_a68b);
        x ^= x >> 16;
        f64::from(x) / f64::from(1u32 << 31) - 1.0
    })
}

/// Matrices keep the size of what they multiply, norms are near `norm`, limits apart, other vectors near 0.
pub fn weight(name: &str, shape: &[usize], norm: f64) -> Vec<u8> {
    let (scale, center) = if shape.is_empty() && name.ends_with("_min") {
        (0.2, -1.5)
    } else if shape.is_empty() && name.ends_with("_max") {
        (0.2, 1.5)
    } else if shape.len() > 1 {
        (1.7 / (shape[shape.len() - 1] as f64).sqrt(), 0.0)
    } else if name.contains("norm") && name.ends_with("weight") {
        (0.3, norm)
    } else {
        (0.2, 0.0)
    };
    numbers(name, shape.iter().product())
        .flat_map(|x| ((center + scale * x) as f32).to_le_bytes())
        .collect()
}
