//! NumPy's `SeedSequence` (O'Neill's `seed_seq_fe`): one seed and a place in a tree become independent seeds.

/// Constants of the two hashes and of mixing.
const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;

/// A hash of a word, with a constant that moves on.
struct Hash {
    constant: u32,
    factor: u32,
}

impl Hash {
    fn of(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.factor);
        let word = word.wrapping_mul(self.constant);
        word ^ (word >> 16)
    }
}

fn mixed(a: u32, b: u32) -> u32 {
    let mixed = MIX_LEFT
        .wrapping_mul(a)
        .wrapping_sub(MIX_RIGHT.wrapping_mul(b));
    mixed ^ (mixed >> 16)
}

/// A number in words of 32 bits, the lowest first, as few as it takes.
fn words(number: u64) -> impl Iterator<Item = u32> {
    let high = (number >> 32) as u32;
    [number as u32, high]
        .into_iter()
        .take(1 + usize::from(high > 0))
}

/// The first words of `SeedSequence(entropy, spawn_key=place, pool_size=POOL).generate_state(N)`.
pub(super) fn state<const POOL: usize, const N: usize>(entropy: u64, place: &[u64]) -> [u32; N] {
    let mut given: Vec<u32> = words(entropy).collect();
    if !place.is_empty() {
        given.resize(given.len().max(POOL), 0);
        given.extend(place.iter().flat_map(|number| words(*number)));
    }
    let mut hash = Hash {
        constant: INIT_A,
        factor: MULT_A,
    };
    let mut pool: [u32; POOL] =
        std::array::from_fn(|i| hash.of(given.get(i).copied().unwrap_or(0)));
    for from in 0..POOL {
        for to in (0..POOL).filter(|to| *to != from) {
            pool[to] = mixed(pool[to], hash.of(pool[from]));
        }
    }
    for word in given.iter().skip(POOL) {
        for to in &mut pool {
            *to = mixed(*to, hash.of(*word));
        }
    }
    let mut hash = Hash {
        constant: INIT_B,
        factor: MULT_B,
    };
    std::array::from_fn(|i| hash.of(pool[i % POOL]))
}

#[cfg(test)]
mod tests {
    use super::state;

    #[test]
    fn numpys_numbers() {
        // NumPy 2.4.6.
        assert_eq!(
            state::<24, 3>(7, &[]),
            [1_376_543_887, 623_213_690, 436_845_524]
        );
        assert_eq!(
            state::<24, 4>((1 << 40) + 5, &[5, 3]),
            [3_504_654_109, 1_686_076_128, 242_735_800, 3_342_715_673]
        );
    }
}
