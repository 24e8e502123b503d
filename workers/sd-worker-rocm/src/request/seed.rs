//! Seeds.

/// A seed of 32 bits, so that it survives JavaScript and spreadsheets.
pub fn random_seed() -> u64 {
    worker::ids::seed(32)
}

/// The seed that a client sent; a negative one asks for a random seed, as does none.
pub fn given_seed(seed: Option<i64>) -> Option<u64> {
    seed.and_then(|seed| u64::try_from(seed).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_seeds_are_random() {
        assert_eq!(given_seed(Some(7)), Some(7));
        assert_eq!(given_seed(Some(-1)), None);
        assert_eq!(given_seed(None), None);
        let seeds: std::collections::HashSet<u64> = (0..8).map(|_| random_seed()).collect();
        assert!(seeds.len() > 4 && seeds.iter().all(|seed| *seed <= u64::from(u32::MAX)));
    }
}
