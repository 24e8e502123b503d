//! Launches of pagedattention.cuh, once as one kernel and once in partitions.

use super::attention::{combine, paged, Pages, Scores};
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Types, as the text calls them, and differences that their roundings make (also of weights).
const KINDS: [(Type, &str, f64); 3] = [
    (F16, "uint16_t", 3e-3),
    (BF16, "__nv_bfloat16", 2e-2),
    (F32, "float", 2e-6),
];
const THREADS: usize = 128;
const PARTITION: usize = 512;

/// Sizes of heads and blocks, and whether the cache holds 8-bit floats: all that the text has with FULL=1.
fn sizes() -> Vec<(usize, usize, bool)> {
    if std::env::var_os("FULL").is_none() {
        return vec![
            (64, 8, false),
            (80, 16, true),
            (128, 32, false),
            (256, 32, true),
        ];
    }
    let all = [64, 80, 96, 112, 128, 192, 256, 512].into_iter();
    all.flat_map(|head| {
        [8, 16, 32]
            .into_iter()
            .flat_map(move |block| [(head, block, false), (head, block, true)])
    })
    .collect()
}

/// What a launch of either kernel reads.
struct Inputs {
    kind: Type,
    pages: Pages,
    contexts: Vec<usize>,
    q_stride: usize,
    q: Data,
    keys: Data,
    values: Data,
    table: Data,
    scales: Option<(f64, f64)>,
    tolerance: f64,
    template: Vec<String>,
}

impl Inputs {
    fn new(
        which: usize,
        (head_size, block_size, small): (usize, usize, bool),
        contexts: &[usize],
        random: &mut Random,
    ) -> Self {
        let (kind, name, tolerance) = KINDS[which];
        let cache = if small { F8 } else { kind };
        let longest = contexts.iter().copied().max().unwrap_or(0);
        let pages = Pages {
            heads: 4,
            kv_heads: 2,
            head_size,
            block_size,
            x: 16 / cache.bytes(),
            max_blocks: longest.div_ceil(block_size) + 1,
        };
        let blocks = contexts.len() * pages.max_blocks;
        let q_stride = pages.heads * head_size + 16;
        let scales = small.then(|| (F32.rounded(0.7), F32.rounded(1.3)));
        let cache_type = if small {
            ["uint8_t", "kFp8E4M3"]
        } else {
            [name, "kAuto"]
        };
        Self {
            kind,
            pages,
            contexts: contexts.to_vec(),
            q_stride,
            q: Data::random(kind, contexts.len() * q_stride, -1., 1., random),
            keys: Data::random(cache, blocks * pages.block(), -1., 1., random),
            values: Data::random(cache, blocks * pages.block(), -1., 1., random),
            table: Data::shuffled(U32, blocks, random),
            scales,
            // Out of 8-bit floats they go through binary16, and in f32 as well.
            tolerance: if small {
                tolerance.max(3e-3)
            } else {
                tolerance
            },
            template: vec![
                name.into(),
                cache_type[0].into(),
                format!("vllm::Fp8KVCacheDataType::{}", cache_type[1]),
                head_size.to_string(),
                block_size.to_string(),
                THREADS.to_string(),
            ],
        }
    }

    /// Keys and values as the kernel has them.
    fn caches(&self) -> (Vec<f64>, Vec<f64>) {
        let scaled = |data: &Data, scale: f64| data.values().iter().map(|x| x * scale).collect();
        let (k, v) = self.scales.unwrap_or((1., 1.));
        (scaled(&self.keys, k), scaled(&self.values, v))
    }

    /// Calls `done(sequence, head, query, table)` for each sequence and head.
    fn each(&self, mut done: impl FnMut(usize, usize, &[f64], &[i64])) {
        let (q, table) = (self.q.values(), self.table.values());
        let table: Vec<i64> = table.iter().map(|&block| block as i64).collect();
        for sequence in 0..self.contexts.len() {
            for head in 0..self.pages.heads {
                let at = sequence * self.q_stride + head * self.pages.head_size;
                done(
                    sequence,
                    head,
                    &q[at..],
                    &table[sequence * self.pages.max_blocks..],
                );
            }
        }
    }

    /// The arguments from the queries to the end, which both kernels have in the same order.
    fn arguments(&self, row: Row, scores: &Scores) -> Row {
        let optional = |row: Row, values: Option<&[f64]>| match values {
            Some(values) => row.input(&Data::new(F32, values.iter().copied())),
            None => row.null(),
        };
        let lengths = Data::whole(U32, self.contexts.iter().copied());
        let block = self.pages.block();
        let row = row
            .input(&self.q)
            .input(&self.keys)
            .input(&self.values)
            .ints(&[self.pages.kv_heads])
            .scalar(F32, scores.scale)
            .scalar(F32, scores.softcap)
            .input(&self.table)
            .input(&lengths)
            .ints(&[self.pages.max_blocks]);
        let row =
            optional(row, scores.alibi).ints(&[self.q_stride, block, block / self.pages.kv_heads]);
        let row = match self.scales {
            Some((k, v)) => row.input(&Data::new(F32, [k])).input(&Data::new(F32, [v])),
            None => row.null().null(),
        };
        optional(row, scores.sinks)
    }

    fn row(&self, kernel: &str, more: &[String], partitions: usize, tokens: usize) -> Row {
        let template: Vec<String> = self.template.iter().chain(more).cloned().collect();
        let template: Vec<&str> = template.iter().map(String::as_str).collect();
        let tokens = tokens.next_multiple_of(self.pages.block_size);
        Row::new(kernel)
            .template(&template)
            .grid([self.pages.heads, self.contexts.len(), partitions])
            .block([THREADS, 1, 1])
            .shared(4 * tokens.max(THREADS / 32 / 2 * self.pages.head_size))
    }
}

const SINKS: [f64; 4] = [0.5, -1.0, 2.0, 0.0];
const SLOPES: [f64; 4] = [0.25, 0.125, 0.0625, 0.5];

/// pagedattention_v1_*.cu.
pub fn v1(which: usize, random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, size) in sizes().into_iter().enumerate() {
        let contexts = if index == 0 {
            vec![1, 37]
        } else {
            vec![70, 19]
        };
        let inputs = Inputs::new(which, size, &contexts, random);
        let scale = F32.rounded((inputs.pages.head_size as f64).sqrt().recip());
        let plain = Scores {
            scale,
            softcap: 1.,
            alibi: None,
            sinks: None,
        };
        let mut variants = vec![
            ("", plain),
            (
                "capped scores, sinks",
                Scores {
                    softcap: 2.,
                    sinks: Some(&SINKS),
                    ..plain
                },
            ),
        ];
        if index == 0 {
            variants.push((
                "slopes",
                Scores {
                    alibi: Some(&SLOPES),
                    ..plain
                },
            ));
        }
        let (keys, values) = inputs.caches();
        for (about, scores) in variants {
            let mut expected = Vec::new();
            inputs.each(|sequence, head, q, table| {
                let context = inputs.contexts[sequence];
                let sink = scores.sinks.map(|sinks| sinks[head]);
                let all = paged(
                    &inputs.pages,
                    &scores,
                    q,
                    (&keys, &values),
                    table,
                    head,
                    0..context,
                    context,
                    sink,
                );
                expected.extend(all.values.iter().map(|x| x / (all.sum + 1e-6)));
            });
            let longest = contexts.iter().copied().max().unwrap_or(0);
            let row = inputs.row("vllm::paged_attention_v1_kernel", &[], 1, longest);
            let row = row
                .output(Output::exact(inputs.kind, expected).within(inputs.tolerance, 0.))
                .about(about);
            let row = inputs.arguments(row, &scores);
            rows.push(if scores.alibi.is_some() {
                row.known("ALiBi: `token_idx - context_len + 1` is computed in uint32_t, so all tokens but the last get a bias of 2^32 slopes")
            } else {
                row
            });
        }
    }
    rows
}

/// pagedattention_v2_*.cu: the partitions, and what puts them together.
pub fn v2(which: usize, random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, size) in sizes().into_iter().enumerate() {
        // Two partitions take the simulator a while.
        let contexts = if index == 0 {
            vec![PARTITION + 40, 37]
        } else {
            vec![33, 60]
        };
        let partitions = if index == 0 { 2 } else { 1 };
        let inputs = Inputs::new(which, size, &contexts, random);
        let width = inputs.pages.head_size;
        let scale = F32.rounded((width as f64).sqrt().recip());
        let scores = Scores {
            scale,
            softcap: 1.,
            alibi: None,
            sinks: None,
        };
        let (keys, values) = inputs.caches();
        let (mut sums, mut largest, mut out) = (Vec::new(), Vec::new(), Vec::new());
        inputs.each(|sequence, head, q, table| {
            let context = inputs.contexts[sequence];
            for partition in 0..partitions {
                let range = partition * PARTITION..((partition + 1) * PARTITION).min(context);
                if range.is_empty() {
                    sums.push(0.);
                    largest.push(0.);
                    out.extend(vec![0.; width]);
                    continue;
                }
                let part = paged(
                    &inputs.pages,
                    &scores,
                    q,
                    (&keys, &values),
                    table,
                    head,
                    range,
                    context,
                    None,
                );
                sums.push(part.sum);
                largest.push(part.max);
                out.extend(part.values.iter().map(|x| x / (part.sum + 1e-6)));
            }
        });
        let zeros = |kind, count| Data::new(kind, vec![0.; count]);
        let row = inputs
            .row(
                "vllm::paged_attention_v2_kernel",
                &[PARTITION.to_string()],
                partitions,
                PARTITION,
            )
            .output(
                Output::exact(F32, sums.clone())
                    .within(0., inputs.tolerance)
                    .over(zeros(F32, sums.len())),
            )
            .output(
                Output::exact(F32, largest)
                    .within(inputs.tolerance, 0.)
                    .over(zeros(F32, sums.len())),
            )
            .output(
                Output::exact(inputs.kind, out.clone())
                    .within(inputs.tolerance, 0.)
                    .over(zeros(inputs.kind, out.len())),
            );
        rows.push(inputs.arguments(row, &scores));
        for sinks in [None, Some(&SINKS)] {
            rows.push(reduce(which, width, sinks, random));
        }
    }
    rows
}

/// A launch that puts partitions together, of contexts that have three and one.
fn reduce(which: usize, width: usize, sinks: Option<&[f64; 4]>, random: &mut Random) -> Row {
    let (kind, name, tolerance) = KINDS[which];
    let (heads, most, contexts) = (4, 3, [2 * PARTITION + 5, 300]);
    let sums = Data::random(F32, contexts.len() * heads * most, 0.5, 3., random);
    let largest = Data::random(F32, contexts.len() * heads * most, -2., 2., random);
    let parts = Data::random(kind, contexts.len() * heads * most * width, -1., 1., random);
    let (s, l, p) = (sums.values(), largest.values(), parts.values());
    let mut expected = Vec::new();
    for (sequence, context) in contexts.iter().enumerate() {
        for head in 0..heads {
            let first = (sequence * heads + head) * most;
            let count = context.div_ceil(PARTITION);
            if count == 1 && sinks.is_none() {
                expected.extend_from_slice(&p[first * width..][..width]);
                continue;
            }
            let all: Vec<(f64, f64, &[f64])> = (first..first + count)
                .map(|at| (l[at], s[at], &p[at * width..][..width]))
                .collect();
            expected.extend(combine(&all, sinks.map(|sinks| sinks[head]), width));
        }
    }
    let arguments = [
        name.to_owned(),
        width.to_string(),
        THREADS.to_string(),
        PARTITION.to_string(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let row = Row::new("vllm::paged_attention_v2_reduce_kernel")
        .template(&arguments)
        .grid([heads, contexts.len(), 1])
        .block([THREADS, 1, 1])
        .shared(2 * most * 4)
        .output(Output::exact(kind, expected).within(tolerance, 0.))
        .input(&sums)
        .input(&largest)
        .input(&parts)
        .input(&Data::whole(U32, contexts))
        .ints(&[most]);
    match sinks {
        Some(sinks) => row
            .input(&Data::new(F32, sinks.iter().copied()))
            .about("sinks"),
        None => row.null(),
    }
}
