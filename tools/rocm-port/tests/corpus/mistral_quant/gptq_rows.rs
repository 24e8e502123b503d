//! Launches of gptq/q_gemm.cu: weights of 2, 3, 4 and 8 bits in columns, with a scale and a zero point for each group of
//! rows.

use super::bits;
use crate::data::{Data, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

const ZEROED_LATE: &str = "blocks of the first 128 inputs set the output to zero while those of the others may already have added to it";
const WIDE: &str = "threads of columns beyond the width of the last 128 read and write on";

/// Weights `[k, n]`.
struct Weights {
    bits: usize,
    k: usize,
    n: usize,
    groups: usize,
    numbers: Vec<u32>,
    zeros: Vec<u32>,
    scales: Data,
}

impl Weights {
    fn new(bits: usize, k: usize, n: usize, groups: usize, random: &mut Random) -> Self {
        let size = 0.4 / f64::from(1 << bits);
        Self {
            bits,
            k,
            n,
            groups,
            numbers: bits::random(bits, k * n, random),
            zeros: bits::random(bits, groups * n, random),
            scales: Data::random(F16, groups * n, size / 2., size, random),
        }
    }

    /// As they are stored.
    fn packed(&self, numbers: &[u32]) -> Data {
        word_data(&bits::columns(numbers, self.n, |column| {
            bits::words(column.iter().copied(), self.bits)
        }))
    }

    /// As products read them.
    fn shuffled(&self) -> Data {
        word_data(&bits::columns(&self.numbers, self.n, |column| {
            bits::halves(column, self.bits)
        }))
    }

    fn packed_zeros(&self) -> Data {
        word_data(&bits::words(self.zeros.iter().copied(), self.bits))
    }

    /// The weight of a row that is in `group`, rounded as all kernels that make them do.
    fn value(&self, row: usize, column: usize, group: usize) -> f64 {
        let at = group * self.n + column;
        let scale =
            half::f16::from_le_bytes([self.scales.bytes[2 * at], self.scales.bytes[2 * at + 1]])
                .to_f64();
        (f64::from(self.numbers[row * self.n + column]) - f64::from(self.zeros[at]) - 1.) * scale
    }

    /// All of them, in groups of as many rows.
    fn values(&self) -> Vec<f64> {
        let size = self.k / self.groups;
        (0..self.k * self.n)
            .map(|at| self.value(at / self.n, at % self.n, at / self.n / size))
            .collect()
    }
}

fn word_data(words: &[u32]) -> Data {
    Data::new(U32, words.iter().map(|&word| f64::from(word)))
}

fn product(
    a: &[f64],
    weights: &[f64],
    (m, n, k): (usize, usize, usize),
    row_of: impl Fn(usize) -> usize,
) -> Output {
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            (0..k)
                .map(|i| a[at / n * k + row_of(i)] * weights[i * n + at % n])
                .sum()
        })
        .collect();
    // Sums of up to 32 products, and their sums, are rounded to binary16 on the way.
    Output::exact(F16, expected).within(1.5e-2, 1e-2)
}

/// The whole file.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for bits in [2, 3, 4, 8] {
        let counts = if std::env::var_os("FULL").is_some() {
            vec![1, 2, 3, 4, 5, 6, 7, 8]
        } else {
            vec![1, 8]
        };
        for count in counts {
            for (k, ordered) in [(128, false), (64, true), (640, false)] {
                rows.push(gemm(bits, count, k, ordered, random));
            }
        }
        for ordered in [false, true] {
            rows.push(reconstruct(bits, ordered, random));
        }
        rows.push(reconstruct_by_index(bits, random));
        rows.push(shuffle(bits, random));
        rows.push(sequential(bits, random));
    }
    for bits in [4, 8] {
        for (k, n) in [(128, 128), (96, 256), (640, 128), (64, 64)] {
            rows.push(by_index(bits, k, n, random));
        }
    }
    rows
}

fn order(k: usize, on: bool, random: &mut Random) -> Option<Data> {
    on.then(|| Data::shuffled(I32, k, random))
}

fn or_null(row: Row, data: Option<&Data>) -> Row {
    match data {
        Some(data) => row.input(data).about("rows in another order"),
        None => row.null(),
    }
}

fn gemm(bits: usize, m: usize, k: usize, ordered: bool, random: &mut Random) -> Row {
    let n = 96;
    let weights = Weights::new(bits, k, n, k / 32, random);
    let a = Data::random(F16, m * k, -1., 1., random);
    let order = order(k, ordered, random);
    let from: Vec<usize> = match &order {
        Some(order) => order.values().iter().map(|&row| row as usize).collect(),
        None => (0..k).collect(),
    };
    let output = product(&a.values(), &weights.values(), (m, n, k), |i| from[i]);
    let row = Row::new(format!("gemm_half_q_half_gptq_{bits}bit_kernel"))
        .template(&["true", &m.to_string()])
        .grid([n.div_ceil(512), 1, k.div_ceil(128)])
        .block([128, 1, 1])
        .input(&a)
        .input(&weights.shuffled())
        .input(&weights.packed_zeros())
        .input(&weights.scales)
        .output(output)
        .ints(&[m, n, k, weights.groups]);
    let row = or_null(row, order.as_ref());
    if k > 128 {
        row.known(ZEROED_LATE)
    } else {
        row
    }
}

fn reconstruct(bits: usize, ordered: bool, random: &mut Random) -> Row {
    let (k, n) = (160, 96);
    let weights = Weights::new(bits, k, n, 5, random);
    let order = order(k, ordered, random);
    let mut expected = weights.values();
    if let Some(order) = &order {
        for (from, to) in order.values().into_iter().enumerate() {
            let to = to as usize * n;
            expected[to..to + n].copy_from_slice(&weights.values()[from * n..][..n]);
        }
    }
    let row = Row::new(format!("reconstruct_exllama_{bits}bit_kernel"))
        .grid([n.div_ceil(128), k.div_ceil(128), 1])
        .block([128, 1, 1])
        .input(&weights.shuffled());
    or_null(row, order.as_ref())
        .input(&weights.packed_zeros())
        .input(&weights.scales)
        .ints(&[k, n, weights.groups])
        .output(Output::exact(F16, expected))
}

/// A group for each row, in no order.
fn groups_of(weights: &Weights, random: &mut Random) -> (Data, Vec<f64>) {
    let of: Vec<usize> = (0..weights.k)
        .map(|_| random.below(weights.groups))
        .collect();
    let n = weights.n;
    let values = (0..weights.k * n)
        .map(|at| weights.value(at / n, at % n, of[at / n]))
        .collect();
    (Data::whole(I32, of), values)
}

fn reconstruct_by_index(bits: usize, random: &mut Random) -> Row {
    let (k, n) = (64, 160);
    let weights = Weights::new(bits, k, n, 3, random);
    let (of, values) = groups_of(&weights, random);
    let (row, rows_of_block) = if bits == 3 {
        (Row::new("reconstruct_gptq_3bit_kernel"), 32)
    } else {
        let view = format!("MatrixView_q{bits}_row");
        (
            Row::new("reconstruct_gptq_kernel").template(&[&view, &bits.to_string()]),
            32 / bits,
        )
    };
    row.grid([n.div_ceil(128), k / rows_of_block, 1])
        .block([128, 1, 1])
        .input(&weights.packed(&weights.numbers))
        .input(&weights.scales)
        .input(&weights.packed_zeros())
        .input(&of)
        .ints(&[k, n, weights.groups])
        .output(Output::exact(F16, values))
}

fn shuffle(bits: usize, random: &mut Random) -> Row {
    let (k, n) = (96, 40);
    let weights = Weights::new(bits, k, n, 1, random);
    let after = weights.shuffled();
    Row::new(format!("shuffle_{bits}bit_kernel"))
        .grid([n.div_ceil(32), 1, 1])
        .block([32, 1, 1])
        .output(Output::exact(U32, after.values()).over(weights.packed(&weights.numbers)))
        .ints(&[k, n])
}

fn sequential(bits: usize, random: &mut Random) -> Row {
    let (k, n) = (64, 72);
    let weights = Weights::new(bits, k, n, 1, random);
    let order = Data::shuffled(I32, k, random);
    let moved: Vec<u32> = order
        .values()
        .iter()
        .flat_map(|&row| weights.numbers[row as usize * n..][..n].to_vec())
        .collect();
    // Two columns at once, but of 3 bits.
    let (threads, rows) = if bits == 3 {
        (n, k / 32)
    } else {
        (n / 2, k * bits / 32)
    };
    Row::new(format!("make_sequential_{bits}bit_kernel"))
        .grid([threads.div_ceil(32), rows, 1])
        .block([32, 1, 1])
        .input(&weights.packed(&weights.numbers))
        .output(Output::exact(U32, weights.packed(&moved).values()))
        .input(&order)
        .ints(&[n])
}

/// The product whose rows name their group.
fn by_index(bits: usize, k: usize, n: usize, random: &mut Random) -> Row {
    let m = 3;
    let weights = Weights::new(bits, k, n, 4, random);
    let (of, values) = groups_of(&weights, random);
    let a = Data::random(F16, m * k, -1., 1., random);
    let row = Row::new(format!("gemm_half_q_half_alt_{bits}bit_kernel"))
        .grid([n.div_ceil(128), 1, k.div_ceil(128)])
        .block([128, 1, 1])
        .input(&a)
        .input(&weights.packed(&weights.numbers))
        .output(product(&a.values(), &values, (m, n, k), |i| i))
        .input(&weights.scales)
        .input(&weights.packed_zeros())
        .input(&of)
        .ints(&[m, k * bits / 32, n]);
    match (k, n) {
        (640, _) => row.known(ZEROED_LATE),
        (_, 64) => row.known(WIDE),
        _ => row,
    }
}
