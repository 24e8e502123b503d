//! Launches of mxfp4_gemm.cu and mxfp4_gemm_wmma.cu: 4-bit floats (e2m1), 32 with a power of two.

use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

const KINDS: [(Type, &str, f64); 2] = [(F16, "half", 2e-3), (BF16, "__nv_bfloat16", 8e-3)];
const LEVELS: [f64; 8] = [0., 0.5, 1., 1.5, 2., 3., 4., 6.];
const RAGGED: &str = "warps of outputs beyond N return before the block loads its input together: with an N that is no multiple of 8, parts of \
                      it are never loaded";

/// Weights of `rows` rows of `k`.
struct Weights {
    packed: Vec<u8>,
    scales: Vec<u8>,
    values: Vec<f64>,
}

impl Weights {
    fn new(rows: usize, k: usize, random: &mut Random) -> Self {
        let packed = random.bytes(rows * k / 2);
        let scales: Vec<u8> = (0..rows * k / 32)
            .map(|_| 121 + random.below(6) as u8)
            .collect();
        let level = |bits: u8| {
            if bits < 8 {
                LEVELS[bits as usize]
            } else {
                -LEVELS[bits as usize - 8]
            }
        };
        let values = (0..rows * k)
            .map(|at| {
                let bits = packed[at / 2] >> (4 * (at % 2)) & 15;
                level(bits) * 2f64.powi(i32::from(scales[at / 32]) - 127)
            })
            .collect();
        Self {
            packed,
            scales,
            values,
        }
    }

    fn arguments(&self, row: Row) -> Row {
        row.bytes(&self.packed).bytes(&self.scales)
    }
}

/// mxfp4_gemm.cu.
pub fn plain(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, tolerance) in KINDS {
        for biased in [false, true] {
            let (m, n, k) = (2, 7usize, 96);
            let row = Row::new("mxfp4_gemm::mxfp4_vecmat")
                .template(&[name])
                .grid([n.div_ceil(4), m, 1])
                .block([256, 1, 1]);
            rows.push(matmul(row, kind, tolerance, (m, n, k), biased, random));
            let (m, n, k) = (9usize, 70usize, 64);
            let row = Row::new("mxfp4_gemm::mxfp4_matmul_tiled")
                .template(&[name, "64", "64", "32", "4", "4"])
                .grid([n.div_ceil(64), m.div_ceil(64), 1])
                .block([16, 16, 1]);
            rows.push(matmul(row, kind, tolerance, (m, n, k), biased, random));
        }
        for (n, repeated) in [(16, false), (8, true), (13, false)] {
            let e = Experts {
                tokens: 3,
                topk: 2,
                experts: 4,
                n,
                // The five warps of the last 13 - 8 outputs load 160 inputs.
                k: if n == 13 { 256 } else { 64 },
                repeated,
            };
            let chunks = n.div_ceil(8usize);
            let row = Row::new("mxfp4_gemm::mxfp4_moe_gemm")
                .template(&[name])
                .grid([e.tokens * chunks * if repeated { e.topk } else { 1 }, 1, 1])
                .block([256, 1, 1])
                .shared((e.k + e.k / 32) * 4);
            let row = experts(row, kind, tolerance, e, random);
            rows.push(if n % 8 == 0 { row } else { row.known(RAGGED) });
        }
        // More rows for each than a tile has.
        let e = Experts {
            tokens: 70,
            topk: 2,
            experts: 2,
            n: 70,
            k: 64,
            repeated: false,
        };
        for repeated in [false, true] {
            let e = Experts { repeated, ..e };
            let row = Row::new("mxfp4_gemm::mxfp4_moe_grouped_gemm_tiled")
                .template(&[name, "64", "64", "32", "4", "4"])
                .grid([e.n.div_ceil(64), e.experts, 1])
                .block([16, 16, 1])
                .shared(e.tokens * e.topk * 4);
            rows.push(experts(row, kind, tolerance, e, random));
        }
    }
    rows
}

/// mxfp4_gemm_wmma.cu.
pub fn matrices(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    let tiles = 2 * 64 * 32 * 2 + 64 * 64 * 4;
    for (kind, name, tolerance) in KINDS {
        for biased in [false, true] {
            let (m, n, k) = (70usize, 37usize, 64);
            let row = Row::new("mxfp4_wmma::mxfp4_matmul_wmma_kernel")
                .template(&[name])
                .grid([n.div_ceil(64), m.div_ceil(64), 1])
                .block([256, 1, 1])
                .shared(tiles);
            rows.push(matmul(row, kind, tolerance, (m, n, k), biased, random));
        }
        for repeated in [false, true] {
            let e = Experts {
                tokens: 35,
                topk: 2,
                experts: 3,
                n: 37,
                k: 64,
                repeated,
            };
            let row = Row::new("mxfp4_wmma::mxfp4_moe_grouped_gemm_wmma_kernel")
                .template(&[name])
                .grid([e.n.div_ceil(64), e.experts, 1])
                .block([256, 1, 1])
                .shared((e.tokens * e.topk * 4).next_multiple_of(16) + tiles);
            rows.push(experts(row, kind, tolerance, e, random));
        }
    }
    rows
}

fn bias(row: Row, bias: Option<&Data>) -> Row {
    match bias {
        Some(bias) => row.input(bias).about("bias"),
        None => row.null(),
    }
}

fn flag(row: Row, on: bool) -> Row {
    row.scalar(U8, f64::from(u8::from(on)))
}

fn matmul(
    row: Row,
    kind: Type,
    tolerance: f64,
    (m, n, k): (usize, usize, usize),
    biased: bool,
    random: &mut Random,
) -> Row {
    let x = Data::random(kind, m * k, -1., 1., random);
    let weights = Weights::new(n, k, random);
    let biases = Data::random(kind, n, -1., 1., random);
    let (xs, bs) = (x.values(), biases.values());
    let expected: Vec<f64> = (0..m * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            let sum: f64 = (0..k)
                .map(|i| xs[row * k + i] * weights.values[column * k + i])
                .sum();
            sum + if biased { bs[column] } else { 0. }
        })
        .collect();
    let row = weights.arguments(row.input(&x));
    let row = bias(row, biased.then_some(&biases))
        .output(Output::exact(kind, expected).within(tolerance, tolerance))
        .ints(&[m, n, k]);
    flag(row, biased)
}

#[derive(Clone, Copy)]
struct Experts {
    tokens: usize,
    topk: usize,
    experts: usize,
    n: usize,
    k: usize,
    /// Tokens come once for each of their experts.
    repeated: bool,
}

/// A product of each token with its experts, with biases.
fn experts(row: Row, kind: Type, tolerance: f64, e: Experts, random: &mut Random) -> Row {
    let pairs = e.tokens * e.topk;
    let x = Data::random(
        kind,
        e.k * if e.repeated { pairs } else { e.tokens },
        -1.,
        1.,
        random,
    );
    let weights = Weights::new(e.experts * e.n, e.k, random);
    let biases = Data::random(kind, e.experts * e.n, -1., 1., random);
    let indices = Data::whole(U32, (0..pairs).map(|_| random.below(e.experts)));
    let (xs, bs, chosen) = (x.values(), biases.values(), indices.values());
    let expected: Vec<f64> = (0..pairs * e.n)
        .map(|at| {
            let (pair, column) = (at / e.n, at % e.n);
            let row = if e.repeated { pair } else { pair / e.topk };
            let weight = chosen[pair] as usize * e.n + column;
            (0..e.k)
                .map(|i| xs[row * e.k + i] * weights.values[weight * e.k + i])
                .sum::<f64>()
                + bs[weight]
        })
        .collect();
    let row = bias(weights.arguments(row.input(&x)), Some(&biases))
        .input(&indices)
        .output(Output::exact(kind, expected).within(tolerance, tolerance))
        .ints(&[e.tokens, e.topk, e.experts, e.n, e.k])
        .about(format!(
            "{} outputs{}",
            e.n,
            if e.repeated {
                ", inputs for each expert"
            } else {
                ""
            }
        ));
    flag(flag(row, true), e.repeated)
}
