//! Launches of moe_gemv.cu, moe_gemm.cu and moe_gemm_wmma.cu.

use super::reference::{moe, Experts};
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Types, as the text calls them, those of pairs, and differences that rounding the result makes.
const KINDS: [(Type, &str, &str, f64); 2] = [
    (F16, "half", "half2", 1e-3),
    (BF16, "nv_bfloat16", "nv_bfloat162", 4e-3),
];

const BITS_AS_NUMBER: &str = "from_float of a half makes a half of the number that its bits are (static_cast<half>(uint16_t)), and to_float \
                              the other way round: results in f16 are wrong";
const NO_BARRIER: &str = "no barrier between the products of one tile and the loads of the next: with more than 64 inputs, threads that are \
                          ahead overwrite what others still read";
const RAGGED: &str = "threads of columns beyond N return before the block loads the inputs together: if the last tile has fewer than 8 \
                      columns, a part of them is never loaded";

/// Tokens, experts and data of a product.
struct Work {
    kind: Type,
    topk: usize,
    n: usize,
    k: usize,
    experts: usize,
    tokens: Data,
    expert_of: Data,
    gates: Option<Data>,
    transposed: bool,
    input: Data,
    weights: Data,
}

impl Work {
    /// Rows of work for three experts, the second of which has none; `rows` is even.
    fn new(
        kind: Type,
        rows: usize,
        (n, k): (usize, usize),
        gated: bool,
        transposed: bool,
        random: &mut Random,
    ) -> Self {
        let (experts, topk) = (3, 2);
        let inputs = if gated { rows } else { rows / topk };
        Self {
            kind,
            topk,
            n,
            k,
            experts,
            tokens: Data::shuffled(I32, rows, random),
            expert_of: Data::whole(I32, (0..rows).map(|row| if row + 5 < rows { 0 } else { 2 })),
            gates: gated.then(|| Data::random(F32, rows, 0.1, 1., random)),
            transposed,
            input: Data::random(kind, inputs * k, -1., 1., random),
            weights: Data::random(kind, experts * n * k, -1., 1., random),
        }
    }

    fn rows(&self) -> usize {
        self.tokens.values().len()
    }

    fn expected(&self) -> Vec<f64> {
        let whole = |data: &Data| -> Vec<i64> { data.values().iter().map(|&x| x as i64).collect() };
        let gates = self.gates.as_ref().map(Data::values);
        let work = Experts {
            topk: self.topk,
            n: self.n,
            k: self.k,
            tokens: &whole(&self.tokens),
            experts: &whole(&self.expert_of),
            weights: gates.as_deref(),
            transposed: self.transposed,
        };
        moe(
            &work,
            &self.input.values(),
            &self.weights.values(),
            vec![0.; self.rows() * self.n],
        )
    }

    /// The arguments, which all kernels have in the same order; the fourth is `experts`.
    fn arguments(&self, row: Row, experts: &Data, output: Output) -> Row {
        let row = row
            .input(&self.input)
            .input(&self.weights)
            .input(&self.tokens)
            .input(experts);
        let row = match &self.gates {
            Some(gates) => row.input(gates),
            None => row.null(),
        };
        row.output(output)
            .ints(&[self.experts, self.topk, self.rows(), self.n, self.k])
            .about(format!(
                "{} outputs of {}{}",
                self.n,
                self.k,
                if self.gates.is_some() { ", gates" } else { "" }
            ))
    }

    fn name(&self, kernel: &str, transposed: &str) -> Row {
        Row::new(if self.transposed { transposed } else { kernel })
    }
}

/// moe_gemv.cu, and what counts tokens.
pub fn vectors(random: &mut Random) -> Vec<Row> {
    let mut rows = vec![count(random)];
    for (kind, name, _, tolerance) in KINDS {
        for (gated, transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            let work = Work::new(kind, 8, (3, 328), gated, transposed, random);
            let row = work
                .name("moe_gemv_kernel", "moe_gemv_transposed_kernel")
                .template(&[name, "256"])
                .grid([work.n, work.rows(), 1])
                .block([256, 1, 1]);
            let output = Output::exact(kind, work.expected()).within(10. * tolerance, tolerance);
            let row = work.arguments(row, &work.expert_of, output);
            rows.push(if kind == F16 {
                row.known(BITS_AS_NUMBER)
            } else {
                row
            });
        }
    }
    rows
}

/// Tokens of each expert, added to what was there.
fn count(random: &mut Random) -> Row {
    let experts = Data::whole(I32, (0..300).map(|_| random.below(5)));
    let mut counts = [1.; 5];
    for expert in experts.values() {
        counts[expert as usize] += 1.;
    }
    Row::new("count_tokens_per_expert_kernel")
        .grid([2, 1, 1])
        .block([256, 1, 1])
        .input(&experts)
        .output(Output::exact(I32, counts).over(Data::new(I32, [1.; 5])))
        .ints(&[300])
}

/// moe_gemm.cu: pairs of the type are summed in the type, so the reference does as well.
pub fn tiles(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, pair, _) in KINDS {
        for transposed in [false, true] {
            for (n, k, gated) in [
                (64, 64, false),
                (72, 64, true),
                (68, 64, false),
                (64, 128, false),
            ] {
                let work = Work::new(kind, 8, (n, k), gated, transposed, random);
                let row = work
                    .name("moe_gemm_vectorized_kernel", "moe_gemm_transposed_kernel")
                    .template(&[name, pair, "64", "64", "8"])
                    .grid([n.div_ceil(64), work.rows(), 1])
                    .block([64, 8, 1]);
                let row =
                    work.arguments(row, &work.expert_of, Output::exact(kind, in_pairs(&work)));
                rows.push(match (n, k, kind, gated) {
                    (68, ..) => row.known(RAGGED),
                    (_, 128, ..) => row.known(NO_BARRIER),
                    (_, _, F16, true) => row.known(BITS_AS_NUMBER),
                    _ => row,
                });
            }
        }
    }
    rows
}

/// The product as pairs do it: even and odd inputs apart, each step rounded to the type once.
fn in_pairs(work: &Work) -> Vec<f64> {
    let (kind, n, k) = (work.kind, work.n, work.k);
    let (input, weights) = (work.input.values(), work.weights.values());
    let gates = work.gates.as_ref().map(Data::values);
    let mut out = vec![0.; work.rows() * n];
    for (token, expert) in work
        .tokens
        .values()
        .into_iter()
        .zip(work.expert_of.values())
    {
        let (token, expert) = (token as usize, expert as usize);
        let row = token / if gates.is_some() { 1 } else { work.topk };
        for column in 0..n {
            let mut sums = [0.; 2];
            for i in 0..k {
                let at = if work.transposed {
                    i * n + column
                } else {
                    column * k + i
                };
                sums[i % 2] =
                    kind.rounded(sums[i % 2] + input[row * k + i] * weights[expert * n * k + at]);
            }
            let sum = kind.rounded(sums[0] + sums[1]);
            out[token * n + column] = gates
                .as_ref()
                .map_or(sum, |gates| F32.rounded(sum * gates[token]));
        }
    }
    out
}

/// moe_gemm_wmma.cu: more rows than a tile has, columns and inputs that do not fill one.
pub fn matrices(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, _, tolerance) in KINDS {
        for (gated, transposed) in [(false, false), (true, true)] {
            let work = Work::new(kind, 40, (45, 56), gated, transposed, random);
            let mut starts = vec![0usize; work.experts + 1];
            for expert in work.expert_of.values() {
                starts[expert as usize + 1..]
                    .iter_mut()
                    .for_each(|start| *start += 1);
            }
            let row = work
                .name(
                    "moe_gemm_grouped_kernel",
                    "moe_gemm_grouped_transposed_kernel",
                )
                .template(&[name])
                .grid([work.experts, work.n.div_ceil(32), 1])
                .block([128, 1, 1])
                .shared(2 * 32 * 16 * 2 + 32 * 32 * 4);
            let output = Output::exact(kind, work.expected()).within(tolerance, tolerance);
            let output = output.over(Data::new(kind, vec![0.; work.rows() * work.n]));
            let row = work.arguments(row, &Data::whole(I32, starts), output);
            rows.push(if kind == F16 {
                row.known(BITS_AS_NUMBER)
            } else {
                row
            });
        }
    }
    rows
}
