//! Numbers of a few bits in words.

use crate::random::Random;

/// `count` numbers of `bits` bits.
pub fn random(bits: usize, count: usize, random: &mut Random) -> Vec<u32> {
    (0..count).map(|_| random.below(1 << bits) as u32).collect()
}

/// Numbers one after another, the first in the lowest bits: the bytes of the words that hold them.
pub fn pack(numbers: impl IntoIterator<Item = u32>, bits: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut held, mut count) = (0u64, 0);
    for number in numbers {
        held |= u64::from(number) << count;
        count += bits;
        while count >= 8 {
            bytes.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        bytes.push(held as u8);
    }
    bytes
}

/// The same as words.
pub fn words(numbers: impl IntoIterator<Item = u32>, bits: usize) -> Vec<u32> {
    pack(numbers, bits)
        .chunks(4)
        .map(|b| u32::from_le_bytes(b.try_into().expect("whole words")))
        .collect()
}

/// `numbers` is `[rows, columns]`: each column is packed downwards, so the words are `[rows * bits / 32, columns]`.
pub fn columns(numbers: &[u32], columns: usize, pack: impl Fn(&[u32]) -> Vec<u32>) -> Vec<u32> {
    let packed: Vec<Vec<u32>> = (0..columns)
        .map(|column| {
            pack(
                &numbers
                    .iter()
                    .copied()
                    .skip(column)
                    .step_by(columns)
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    let rows = packed.first().map_or(0, Vec::len);
    (0..rows)
        .flat_map(|row| packed.iter().map(move |column| column[row]))
        .collect()
}

/// As the products of GPTQ read them: numbers with even places in the lower half of a word, the others in the upper
/// one. Of 3 bits there are 32 in three words, the last two spread over the highest bits of halves.
pub fn halves(numbers: &[u32], bits: usize) -> Vec<u32> {
    let pairs = |numbers: &[u32]| {
        numbers.chunks(2).enumerate().fold(0, |word, (i, pair)| {
            word | (pair[0] | pair[1] << 16) << (i * bits)
        })
    };
    match bits {
        8 => words(numbers.iter().copied(), 8),
        3 => numbers
            .chunks(32)
            .flat_map(|group| {
                (0..3).map(move |word| {
                    let rest = (group[30] >> word & 1) << 15 | (group[31] >> word & 1) << 31;
                    pairs(&group[10 * word..][..10]) | rest
                })
            })
            .collect(),
        _ => numbers.chunks(32 / bits).map(pairs).collect(),
    }
}

#[test]
fn numbers_lie_in_words_from_the_lowest_bits_on() {
    assert_eq!(words([1, 2, 3, 4, 5, 6, 7, 8], 4), [0x8765_4321]);
    assert_eq!(
        pack([7, 0, 7, 0, 7, 0, 7, 0], 3),
        [0b1100_0111, 0b0111_0001, 0b0001_1100]
    );
    assert_eq!(halves(&[0, 1, 2, 3, 4, 5, 6, 7], 4), [0x7531_6420]);
    assert_eq!(
        columns(&[1, 2, 3, 4], 2, |column| words(
            column.iter().copied().chain([0; 6]),
            4
        )),
        [0x31, 0x42]
    );
}
