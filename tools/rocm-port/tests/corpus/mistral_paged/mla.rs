//! The launch of flashinfer_mla_decode.cu: one query for each sequence over compressed keys, which are the values, too,
//! and a part for positions.

use super::attention::softmax;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Argument, Output, Row};

const KINDS: [(Type, &str, f64); 3] = [
    (F16, "__half", 2e-3),
    (BF16, "__nv_bfloat16", 1e-2),
    (F32, "float", 1e-5),
];
const RANK: usize = 512;
const POSITIONS: usize = 64;
const HEADS: usize = 3;
/// Tokens of a page: a power of two, so that its division is a shift.
const PAGE: usize = 8;

/// Template arguments with which the host code launches it.
fn template(name: &str) -> Vec<String> {
    [
        "2",
        "16",
        "2",
        "32",
        "8",
        "1",
        "2",
        "flashinfer::DefaultAttention<false, false, false, false>",
    ]
    .iter()
    .map(|&a| a.to_owned())
    .chain([format!(
        "flashinfer::BatchDecodeParamsMLA<{name}, {name}, {name}, int32_t>"
    )])
    .collect()
}

/// All types; a second tile of keys, and a last page that is not full.
pub fn all(random: &mut Random) -> Vec<Row> {
    KINDS
        .iter()
        .map(|&(kind, name, tolerance)| decode(kind, name, tolerance, random))
        .collect()
}

fn decode(kind: Type, name: &str, tolerance: f64, random: &mut Random) -> Row {
    let lengths = [21, 5];
    let pages: Vec<usize> = lengths
        .iter()
        .map(|length| usize::div_ceil(*length, PAGE))
        .collect();
    let (total, spare) = (pages.iter().sum::<usize>(), 2);
    let scale = F32.rounded(((RANK + POSITIONS) as f64).sqrt().recip());
    let batch = lengths.len();
    let q = Data::random(kind, batch * HEADS * RANK, -1., 1., random);
    let q_positions = Data::random(kind, batch * HEADS * POSITIONS, -1., 1., random);
    let compressed = Data::random(kind, (total + spare) * PAGE * RANK, -1., 1., random);
    let positions = Data::random(kind, (total + spare) * PAGE * POSITIONS, -1., 1., random);
    let indices = Data::shuffled(I32, total + spare, random);
    let (qs, qp, c, p, at) = (
        q.values(),
        q_positions.values(),
        compressed.values(),
        positions.values(),
        indices.values(),
    );
    let mut expected = Vec::new();
    for (sequence, &length) in lengths.iter().enumerate() {
        let first: usize = pages[..sequence].iter().sum();
        let token = |i: usize| at[first + i / PAGE] as usize * PAGE + i % PAGE;
        for head in 0..HEADS {
            let row = sequence * HEADS + head;
            let scores: Vec<f64> = (0..length)
                .map(|i| {
                    let main: f64 = (0..RANK)
                        .map(|d| qs[row * RANK + d] * c[token(i) * RANK + d])
                        .sum();
                    let rest: f64 = (0..POSITIONS)
                        .map(|d| qp[row * POSITIONS + d] * p[token(i) * POSITIONS + d])
                        .sum();
                    scale * (main + rest)
                })
                .collect();
            let all = softmax(&scores, None, RANK, |i, d| c[token(i) * RANK + d]);
            expected.extend(all.values.iter().map(|x| x / all.sum));
        }
    }

    let starts = Data::whole(I32, [0, pages[0], total]);
    let last = Data::whole(I32, lengths.map(|length| (length - 1) % PAGE + 1));
    let input = |data: &Data| Argument::Input(data.clone());
    let mut bytes = vec![0; 216];
    let mut word = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    word(32, (scale as f32).to_bits());
    // The page's size and how to divide by it: n * 1 >> 3.
    for (index, value) in [PAGE as u32, 0, PAGE.ilog2(), 1].into_iter().enumerate() {
        word(48 + 4 * index, value);
    }
    let strides = [
        RANK,
        POSITIONS,
        batch,
        PAGE * RANK,
        PAGE * POSITIONS,
        RANK,
        POSITIONS,
    ];
    for (index, value) in strides.into_iter().enumerate() {
        word(64 + 4 * index, value as u32);
    }
    word(144, batch as u32);
    word(148, HEADS as u32);
    word(152, u32::MAX); // No window.
    word(160, 1f32.to_bits());
    word(164, 1e-4f32.to_bits());
    let buffers = vec![
        (0, input(&q)),
        (8, input(&q_positions)),
        (
            16,
            Argument::Output(Output::exact(kind, expected).within(tolerance, 0.)),
        ),
        (96, input(&compressed)),
        (104, input(&positions)),
        (112, input(&indices)),
        (120, input(&starts)),
        (128, input(&last)),
        (168, input(&Data::whole(I32, 0..batch))),
        (176, input(&Data::whole(I32, vec![0; batch]))),
        (184, input(&Data::whole(I32, 0..batch + 1))),
        (192, input(&Data::whole(I32, [1 << 20]))),
    ];
    let template = template(name);
    let template: Vec<&str> = template.iter().map(String::as_str).collect();
    let size = if kind == F32 { 4 } else { 2 };
    Row::new("flashinfer::BatchDecodeWithPagedKVCacheKernelMLA")
        .template(&template)
        .grid([batch, 1, 1])
        .block([32, 8, 1])
        .shared(2 * 8 * (RANK + POSITIONS) * size + 256 * 8 * 2)
        .structure(bytes, buffers)
}
