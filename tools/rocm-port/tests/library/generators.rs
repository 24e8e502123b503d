//! Philox 4x32-10 and XORWOW, written from their papers.

fn philox_block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (p, q) = (0xd251_1f53u64 * a as u64, 0xcd9e_8d57u64 * c as u64);
        let (p_high, q_high) = ((p >> 32) as u32, (q >> 32) as u32);
        [a, b, c, d] = [q_high ^ b ^ k, q as u32, p_high ^ d ^ l, p as u32];
        k = k.wrapping_add(0x9e37_79b9);
        l = l.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

/// The reference agrees with Random123's known answers: counter, key, result.
pub const PHILOX_VECTORS: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
    (
        [0; 4],
        [0; 2],
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
    ),
    (
        [u32::MAX; 4],
        [u32::MAX; 2],
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
    ),
    (
        [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
        [0xa409_3822, 0x299f_31d0],
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
    ),
];

/// Words from `offset` on of a subsequence: the counter is the block of four, and the subsequence above it.
pub fn philox(seed: u64, subsequence: u64, offset: u128) -> impl Iterator<Item = u32> {
    (offset..).map(move |at| {
        let block = (at / 4).wrapping_add((subsequence as u128) << 64);
        let counter = [0, 32, 64, 96].map(|shift| (block >> shift) as u32);
        philox_block(counter, [seed as u32, (seed >> 32) as u32])[(at % 4) as usize]
    })
}

type Register = [u32; 5];

fn shifted([a, b, c, d, e]: Register) -> Register {
    let t = a ^ (a >> 2);
    [b, c, d, e, e ^ (e << 4) ^ t ^ (t << 1)]
}

/// XORWOW with cuRAND's seeds, and its subsequences as powers of the matrix of one step.
pub struct Xorwow {
    /// What 2^67 steps make of each bit of the register.
    subsequence: Vec<Register>,
}

fn times(matrix: &[Register], v: Register) -> Register {
    let mut sum = [0; 5];
    for (bit, row) in matrix.iter().enumerate() {
        if (v[bit / 32] >> (bit % 32)) & 1 == 1 {
            sum.iter_mut().zip(row).for_each(|(s, r)| *s ^= r);
        }
    }
    sum
}

impl Xorwow {
    pub fn new() -> Xorwow {
        let mut matrix: Vec<Register> = (0..160)
            .map(|bit| {
                let mut one = [0; 5];
                one[bit / 32] = 1 << (bit % 32);
                shifted(one)
            })
            .collect();
        for _ in 0..67 {
            matrix = matrix.iter().map(|&row| times(&matrix, row)).collect();
        }
        Xorwow {
            subsequence: matrix,
        }
    }

    pub fn words(&self, seed: u64, subsequence: u64, offset: u64) -> impl Iterator<Item = u32> {
        let a = 1_099_087_573u32.wrapping_mul(seed as u32 ^ 0xaad2_6b49);
        let b = 2_591_861_531u32.wrapping_mul((seed >> 32) as u32 ^ 0xf7dc_efdd);
        let mut v = [
            123_456_789u32.wrapping_add(a),
            362_436_069 ^ a,
            521_288_629u32.wrapping_add(b),
            88_675_123 ^ b,
            5_783_321u32.wrapping_add(a),
        ];
        let mut d = 6_615_241u32.wrapping_add(a).wrapping_add(b);
        for _ in 0..subsequence {
            v = times(&self.subsequence, v);
        }
        let words = std::iter::repeat_with(move || {
            v = shifted(v);
            d = d.wrapping_add(362_437);
            v[4].wrapping_add(d)
        });
        words.skip(offset as usize)
    }
}

#[test]
fn the_reference_has_the_known_answers() {
    for (counter, key, result) in PHILOX_VECTORS {
        assert_eq!(philox_block(counter, key), result);
    }
}
