//! Numbers that depend on a seed alone: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014).

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of an input: its seed and its number among those of the seed.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut seeds = Self(seed);
        let own = seeds.next() ^ number.wrapping_mul(0xd134_2543_de82_ef95);
        Self(Self(own).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.next()
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        match end {
            0 => 0,
            end => (self.next() % end as u64) as usize,
        }
    }

    /// Whether something happens that happens once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of some values.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A small number mostly, a large one now and then: below 4, 32, 512 or 20,000.
    pub fn size(&mut self) -> usize {
        let end = [4, 4, 4, 32, 32, 512, 20_000];
        let end = *self.pick(&end);
        self.below(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_its_seeds_and_numbers() {
        let first = |seed, number| Random::new(seed, number).bits();
        assert_eq!(first(1, 2), first(1, 2));
        let all: std::collections::HashSet<u64> = (0..10)
            .flat_map(|seed| (0..100).map(move |number| first(seed, number)))
            .collect();
        assert_eq!(all.len(), 1000);
        let mut random = Random::new(0, 0);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[random.below(7)] = true);
        assert_eq!(seen, [true; 7]);
    }
}
