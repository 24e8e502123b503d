//! Numbers that a seed repeats.

/// A xorshift generator: the same seed gives the same test again.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed; 0 is as good as any.
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
        // Seeds that are near each other drift apart.
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        // Zero would stay zero.
        self.0 = self.0.max(1);
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A size of up to `most`, small ones as often as large ones.
    pub fn size(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros();
        let below = 1u64 << self.below(bits.into()).min(62);
        (below + self.below(below)).clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_sizes_are_within() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.size(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let sizes = draw(1);
        assert!(sizes.iter().all(|&size| (1..=1000).contains(&size)));
        assert!(sizes.iter().any(|&size| size < 16) && sizes.iter().any(|&size| size > 500));
    }
}
