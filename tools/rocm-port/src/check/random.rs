//! Random numbers that are the same everywhere.

/// A stream of random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The stream that belongs to some names, so that a buffer's values do not depend on other buffers.
    pub(super) fn of(seed: u64, names: &[&str]) -> Self {
        // FNV-1a, with an end mark behind each name.
        let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ seed;
        for byte in names.iter().flat_map(|name| name.bytes().chain([0xff])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Random(hash)
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait)] // It has no end.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// A number from `low` to below `high`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / 2f64.powi(53))
    }

    /// A number of the standard normal distribution.
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(0.0, 1.0), self.uniform(0.0, 1.0));
        (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// An integer from `low` to `high`, both included; `low` if it is not below `high`.
    pub fn between(&mut self, low: i128, high: i128) -> i128 {
        if low >= high {
            return low;
        }
        let count = high.wrapping_sub(low) as u128;
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        match count.checked_add(1) {
            Some(count) => low.wrapping_add((bits % count) as i128),
            None => bits as i128,
        }
    }
}
