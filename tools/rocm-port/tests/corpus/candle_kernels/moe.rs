//! moe: products of experts, by dot products and by tiles of matrix instructions, and what sorts tokens for them.

use super::quantized::quantize;
use crate::data::{Data, Type, Type::*};
use crate::ggml::{random_q8_1, Format, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_0};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Formats by the number that kernels know them by, and the name of their blocks.
static FORMATS: [(usize, &str, &Format); 6] = [
    (0, "block_q8_0", &Q8_0),
    (1, "block_q4_K", &Q4_K),
    (2, "block_q2_K", &Q2_K),
    (3, "block_q3_K", &Q3_K),
    (4, "block_q5_K", &Q5_K),
    (5, "block_q6_K", &Q6_K),
];

/// Tokens with their experts: five tokens, two experts each of three, sorted by expert.
struct Routes {
    /// Expert of each, ascending.
    experts: Vec<usize>,
    /// Number of the pair of token and choice.
    pairs: Vec<usize>,
    /// Where each expert's pairs begin, and the end.
    offsets: Vec<usize>,
    /// A weight for each pair, by its number.
    weights: Data,
}

const TOKENS: usize = 5;
const TOP: usize = 2;
const EXPERTS: usize = 4;

fn routes(random: &mut Random) -> Routes {
    // The third expert gets nothing.
    let chosen = [[0, 1], [3, 1], [1, 0], [1, 3], [0, 3]];
    let mut pairs: Vec<usize> = (0..TOKENS * TOP).collect();
    pairs.sort_by_key(|pair| chosen[pair / TOP][pair % TOP]);
    let experts: Vec<usize> = pairs
        .iter()
        .map(|pair| chosen[pair / TOP][pair % TOP])
        .collect();
    let offsets = (0..=EXPERTS)
        .map(|e| experts.iter().filter(|&&x| x < e).count())
        .collect();
    let weights = Data::random(F32, pairs.len(), 0.25, 1., random);
    Routes {
        experts,
        pairs,
        offsets,
        weights,
    }
}

/// Products of each pair's input with its expert's rows. With weights there is an input for each pair, else one for each
/// token.
fn expected(
    routes: &Routes,
    weighted: bool,
    inputs: &[f64],
    length: usize,
    rows: usize,
    weights: &[f64],
) -> Vec<f64> {
    let mut out = vec![0.; routes.pairs.len() * rows];
    let scales = routes.weights.values();
    for (&pair, &expert) in routes.pairs.iter().zip(&routes.experts) {
        let input = if weighted { pair } else { pair / TOP };
        let input = &inputs[input * length..(input + 1) * length];
        for row in 0..rows {
            let line = &weights[(expert * rows + row) * length..][..length];
            let sum: f64 = line.iter().zip(input).map(|(a, b)| a * b).sum();
            out[pair * rows + row] = sum * if weighted { scales[pair] } else { 1. };
        }
    }
    out
}

/// Launches of moe_gguf.cu.
pub fn gguf(random: &mut Random) -> Vec<Row> {
    let mut rows = vec![quantize("quantize_q8_1", F32, random)];
    let (length, padded, count) = (512, 1024, 6);
    for (_, block, format) in FORMATS {
        for weighted in [false, true] {
            let routes = routes(random);
            let blocks = format.random(EXPERTS * count * length, random);
            let inputs = if weighted { TOKENS * TOP } else { TOKENS };
            // Rows of activations are padded.
            let (mut activations, mut values) = (Vec::new(), Vec::new());
            for _ in 0..inputs {
                let (line, numbers) = random_q8_1(length, random);
                activations.extend(line);
                activations.extend(vec![0; (padded - length) / 32 * 36]);
                values.extend(numbers);
            }
            let expected = expected(
                &routes,
                weighted,
                &values,
                length,
                count,
                &format.values(&blocks),
            );
            let row = Row::new("moe_gemm_gguf_kernel")
                .template(&[block])
                .grid([count.div_ceil(4), routes.pairs.len(), 1])
                .block([32, 4, 1])
                .shared(length / format.elements * format.bytes * 4 + 1024)
                .bytes(&blocks)
                .bytes(&activations)
                .input(&Data::whole(I32, routes.pairs.iter().copied()))
                .input(&Data::whole(I32, routes.experts.iter().copied()));
            let row = if weighted {
                row.input(&routes.weights)
            } else {
                row.null()
            };
            rows.push(
                row.output(Output::exact(F32, expected).within(3e-3, 2e-5))
                    .ints(&[EXPERTS, TOP, routes.pairs.len(), count, length, padded]),
            );
        }
    }
    rows
}

/// Launches of the kernels that count tokens of experts, which moe_wmma.cu and moe_wmma_gguf.cu have.
fn offsets(random: &mut Random) -> Vec<Row> {
    let routes = routes(random);
    let counts: Vec<usize> = routes.offsets.windows(2).map(|w| w[1] - w[0]).collect();
    let whole = |values: &[usize]| values.iter().map(|&v| v as f64).collect::<Vec<_>>();
    vec![
        Row::new("count_tokens_per_expert_kernel")
            .each(routes.experts.len())
            .input(&Data::whole(I32, routes.experts.iter().copied()))
            .output(Output::exact(I32, whole(&counts)).over(Data::new(I32, [0.; EXPERTS])))
            .ints(&[routes.experts.len()]),
        Row::new("expert_prefix_sum_kernel")
            .block([32, 1, 1])
            .shared(32 * 4)
            .input(&Data::whole(I32, counts))
            .output(Output::exact(I32, whole(&routes.offsets)))
            .ints(&[EXPERTS]),
    ]
}

/// Inputs, pairs, offsets and weights, as the kernels with tiles begin.
fn tiled(
    row: Row,
    input: &Data,
    weights: impl Fn(Row) -> Row,
    routes: &Routes,
    weighted: bool,
) -> Row {
    let row = weights(row.input(input))
        .input(&Data::whole(I32, routes.pairs.iter().copied()))
        .input(&Data::whole(I32, routes.offsets.iter().copied()));
    if weighted {
        row.input(&routes.weights)
    } else {
        row.null()
    }
}

/// Launches of moe_wmma.cu: 40 columns, which are no full tiles.
pub fn wmma(random: &mut Random) -> Vec<Row> {
    let mut rows = offsets(random);
    let (length, count) = (48, 40);
    for (kind, word) in [(F16, "half"), (BF16, "nv_bfloat16")] {
        for (m, n, warps) in [(16, 16, 2), (8, 32, 1)] {
            for weighted in [false, true] {
                let routes = routes(random);
                let inputs = if weighted { TOKENS * TOP } else { TOKENS };
                let input = Data::random(kind, inputs * length, -1., 1., random);
                let weights = Data::random(kind, EXPERTS * count * length, -1., 1., random);
                let expected = expected(
                    &routes,
                    weighted,
                    &input.values(),
                    length,
                    count,
                    &weights.values(),
                );
                let shape = [m, n, warps].map(|v: usize| v.to_string());
                let row = Row::new("vllm_rs::moe_gemm_grouped_kernel")
                    .template(&[word, &shape[0], &shape[1], &shape[2]])
                    .grid([EXPERTS, count.div_ceil(32), 1])
                    .block([128, 1, 1])
                    .shared(1024 + 1024 + 4096);
                let row = tiled(row, &input, |row| row.input(&weights), &routes, weighted)
                    .output(Output::exact(kind, expected).within(2. * kind.step(), kind.step()))
                    .ints(&[EXPERTS, TOP, routes.pairs.len(), count, length]);
                rows.push(match kind {
                    F16 => row.known(
                        "from_float takes the bits of an f16 result for a whole number: f16 outputs are wrong",
                    ),
                    _ => row,
                });
            }
        }
    }
    rows
}

/// Launches of moe_wmma_gguf.cu.
pub fn wmma_gguf(random: &mut Random) -> Vec<Row> {
    const UNWRITTEN: &str =
        "rows that a tile lacks are read unwritten from shared memory, and not used";
    const RACE: &str =
        "no barrier between the products of one block of inputs and the loads of the next: \
                        warps that are ahead overwrite what others still read";
    let mut rows = offsets(random);
    for (kind, word) in [(F16, "half"), (BF16, "nv_bfloat16")] {
        for (number, block, format) in FORMATS {
            let tile = format.elements;
            // A warp takes a block of 32, or of 256 with 32 or 64 threads.
            let threads = if number < 2 { 32 } else { 64 };
            // Two tiles of outputs, the second of which is full or not.
            for (weighted, count, length, fault) in [
                (false, 40, tile, Some(UNWRITTEN)),
                (true, 64, tile, None),
                (true, 64, 2 * tile, Some(RACE)),
            ] {
                let routes = routes(random);
                let inputs = if weighted { TOKENS * TOP } else { TOKENS };
                let input = Data::random(kind, inputs * length, -1., 1., random);
                let blocks = format.random(EXPERTS * count * length, random);
                let values = format.values(&blocks);
                let expected = expected(&routes, weighted, &input.values(), length, count, &values);
                let shared =
                    (32 * tile * 2 * 2 + 32 * format.bytes).next_multiple_of(4) + 32 * 32 * 4;
                let row = Row::new("moe_gemm_gguf_prefill_kernel")
                    .template(&[word, block])
                    .grid([EXPERTS, count.div_ceil(32), 1])
                    .block([threads, 4, 1])
                    .shared(shared);
                // Weights are made in f16, with three roundings, and become the type: errors of a sum of up to 512 of them.
                let largest = values.iter().fold(0., |a: f64, v| a.max(v.abs()));
                let error = 3. * F16.step() + if kind == BF16 { BF16.step() } else { 0. };
                let row = tiled(row, &input, |row| row.bytes(&blocks), &routes, weighted)
                    .output(Output::exact(F32, expected).within(error * largest * 6., 1e-3))
                    .ints(&[EXPERTS, TOP, routes.pairs.len(), count, length, number]);
                rows.push(match fault {
                    None => row,
                    Some(fault) => row.known(fault),
                });
            }
        }
    }
    rows.push(quantize("quantize_q8_1", F32, random));
    rows
}

/// Launches of moe_align.cu.
pub fn align(random: &mut Random) -> Vec<Row> {
    let (experts, block, count) = (40, 4, 150);
    let ids: Vec<usize> = (0..count).map(|_| random.below(experts)).collect();
    let of = |expert: usize| ids.iter().filter(|&&id| id == expert).count();
    let mut sums = vec![0];
    for expert in 0..experts {
        sums.push(sums[expert] + of(expert).next_multiple_of(block));
    }
    let total = sums[experts];
    let room = (count + experts * (block - 1)).next_multiple_of(block);
    let mut owners = vec![-1.; room / block];
    for expert in 0..experts {
        owners[sums[expert] / block..sums[expert + 1] / block].fill(expert as f64);
    }
    let padded = experts.next_multiple_of(32);
    let whole = |values: &[usize]| values.iter().map(|&v| v as f64).collect::<Vec<_>>();
    let mut rows = vec![Row::new("moe_align_block_size_kernel")
        .grid([2, 1, 1])
        .block([1024, 1, 1])
        .shared(padded * 4)
        .input(&Data::whole(I32, ids.iter().copied()))
        .output(Output::exact(I32, vec![count as f64; room]))
        .output(Output::exact(I32, owners))
        .output(Output::exact(I32, [total as f64]))
        .ints(&[experts, padded, 32, block])
        .size(count)
        .output(Output::exact(I32, whole(&sums)))
        .ints(&[room])];
    // Several tokens for an expert: whoever comes first takes the next place.
    let tokens = (0..count).map(|token| token as f64);
    let sorted = tokens.chain(std::iter::repeat_n(999., room - count));
    let after: Vec<usize> = (0..experts).map(|e| sums[e] + of(e)).collect();
    rows.push(
        Row::new("count_and_sort_expert_tokens_kernel")
            .grid([1, 2, 1])
            .block([64, 1, 1])
            .input(&Data::whole(I32, ids.iter().copied()))
            .output(
                Output::exact(I32, sorted)
                    .over(Data::new(I32, vec![999.; room]))
                    .any_order(),
            )
            .output(
                Output::exact(I32, whole(&after))
                    .over(Data::whole(I32, sums[..experts].iter().copied())),
            )
            .size(count)
            .ints(&[experts])
            .about("several tokens for an expert"),
    );
    // One token for each expert at most, so that there is one right order.
    let order = Data::shuffled(Type::I32, experts, random);
    let mut sorted = vec![999.; experts * block];
    for (token, expert) in order.values().into_iter().enumerate() {
        sorted[expert as usize * block] = token as f64;
    }
    let starts: Vec<usize> = (0..experts).map(|e| e * block).collect();
    let after: Vec<usize> = starts.iter().map(|s| s + 1).collect();
    rows.push(
        Row::new("count_and_sort_expert_tokens_kernel")
            .grid([1, 2, 1])
            .block([32, 1, 1])
            .input(&order)
            .output(Output::exact(I32, sorted).over(Data::new(I32, vec![999.; experts * block])))
            .output(Output::exact(I32, whole(&after)).over(Data::whole(I32, starts)))
            .size(experts)
            .ints(&[experts]),
    );
    rows
}
