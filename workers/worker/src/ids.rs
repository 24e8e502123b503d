//! Names that nothing else has, and numbers that nobody can guess, from the operating system's random numbers.

use std::time::{SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// A name for a worker, a job or an answer: a random UUID. [`Uuid::simple`] is its form without hyphens.
pub fn uuid() -> Uuid {
    Uuid::new_v4()
}

/// Bits of an integer that JavaScript's numbers hold exactly.
pub const JAVASCRIPT_BITS: u32 = 53;

/// A seed that nobody chose, of so many bits.
pub fn seed(bits: u32) -> u64 {
    // A seed has to differ from the last one, no more: without random numbers the clock does.
    let seed = getrandom::u64().unwrap_or_else(|_| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    });
    seed & (u64::MAX >> (64 - bits.clamp(1, 64)))
}

/// So many lower-case letters and digits, 11 at most.
pub fn letters_and_digits(count: usize) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // 36 to the 11th is less than 2 to the 57th, and the last 62 bits of a random UUID are random.
    let mut number = uuid().as_u128() % (1 << 62);
    (0..count.min(11))
        .map(|_| {
            let c = ALPHABET[(number % 36) as usize];
            number /= 36;
            char::from(c)
        })
        .collect()
}

/// Opens one thing to whoever has it, as a picture by its address: 122 random bits.
#[derive(Debug, Clone)]
pub struct Token(String);

impl Token {
    /// A new one.
    pub fn new() -> Self {
        Self(uuid().simple().to_string())
    }

    /// Its text: 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `given` is this token. The time taken does not tell how much of it is right.
    pub fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nothing_comes_twice() {
        let seeds: HashSet<u64> = (0..1000).map(|_| seed(64)).collect();
        assert_eq!(seeds.len(), 1000);
        // All bits are used, and no more.
        assert_eq!(seeds.iter().fold(0, |all, seed| all | seed), u64::MAX);
        let short = (0..1000).map(|_| seed(32)).fold(0, |all, seed| all | seed);
        assert_eq!(short, u64::from(u32::MAX));
        let names: HashSet<String> = (0..1000).map(|_| letters_and_digits(9)).collect();
        assert!(names.len() == 1000 && names.iter().all(|name| name.len() == 9));
        let ids: HashSet<Uuid> = (0..1000).map(|_| uuid()).collect();
        assert_eq!(ids.len(), 1000);
    }

    #[test]
    fn a_token_is_itself_only() {
        let token = Token::new();
        assert_eq!(token.as_str().len(), 32);
        assert!(token.is(token.as_str()));
        assert!(
            !token.is("") && !token.is(&token.as_str()[1..]) && !token.is(Token::new().as_str())
        );
    }
}
