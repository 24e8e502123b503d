//! Random numbers from the operating system.

use rand::Rng;

/// Random seeds stay below this, so that JavaScript's numbers hold them exactly.
const SEED_LIMIT: u64 = 1 << 53;

/// A seed that nobody chose.
pub(crate) fn seed() -> u64 {
    rand::rng().random_range(0..SEED_LIMIT)
}

/// So many lower-case letters and digits.
pub(crate) fn letters_and_digits(count: usize) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = rand::rng();
    (0..count)
        .map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]))
        .collect()
}
