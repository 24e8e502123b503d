//! Launches of ops.cu.

use super::KINDS;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

const WHOLE: [(Type, &str); 4] = [
    (U8, "uint8_t"),
    (U32, "uint32_t"),
    (I64, "int64_t"),
    (I32, "int32_t"),
];
/// Four elements at once, as the text calls them.
const FOUR: [&str; 3] = ["float4", "uint64_t", "uint64_t"];

/// The whole file.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = vec![indices()];
    for (kind, name) in WHOLE {
        rows.extend(bitwise(kind, name, random));
    }
    for ((kind, name, tolerance), four) in KINDS.into_iter().zip(FOUR) {
        rows.extend(swiglu(kind, name, four, tolerance, random));
        rows.extend(softmax(kind, name, tolerance, random));
        rows.extend(glu(kind, name, four, tolerance, random));
    }
    rows
}

/// Flat places of elements as one for each dimension.
fn indices() -> Row {
    let dims = [3usize, 5, 7];
    let places: Vec<usize> = (0..103).step_by(2).collect();
    let expected = places
        .iter()
        .flat_map(|place| [place / 35, place / 7 % 5, place % 7].map(|i| i as f64));
    Row::new("transform_indices")
        .grid([1, 1, 1])
        .block([64, 1, 1])
        .input(&Data::whole(U32, places.iter().copied()))
        .scalar(U32, places.len() as f64)
        .input(&Data::whole(U32, dims))
        .scalar(U32, 3.)
        .output(Output::exact(U32, expected.collect::<Vec<_>>()))
}

fn bitwise(kind: Type, name: &str, random: &mut Random) -> Vec<Row> {
    let count = 1100usize;
    let most = if kind == U8 { 256. } else { 2f64.powi(31) };
    let least = if matches!(kind, I32 | I64) { -most } else { 0. };
    let mut numbers = || {
        Data::new(
            kind,
            (0..count)
                .map(|_| random.between(least, most).floor())
                .collect::<Vec<_>>(),
        )
    };
    let (a, b) = (numbers(), numbers());
    // Whole numbers of up to 32 bits go through f64 and back.
    let pairs: Vec<(i64, i64)> = a
        .values()
        .iter()
        .zip(b.values())
        .map(|(&a, b)| (a as i64, b as i64))
        .collect();
    let row = |kernel: &str| {
        Row::new(kernel)
            .template(&[name])
            .grid([count.div_ceil(1024), 1, 1])
            .block([1024, 1, 1])
    };
    type Bitwise = (&'static str, fn(i64, i64) -> i64);
    let functions: [Bitwise; 3] = [
        ("bitwise_and__kernel", |a, b| a & b),
        ("bitwise_or__kernel", |a, b| a | b),
        ("bitwise_xor__kernel", |a, b| a ^ b),
    ];
    let mut rows: Vec<Row> = functions
        .iter()
        .map(|(kernel, f)| {
            let expected = pairs.iter().map(|&(a, b)| f(a, b) as f64);
            row(kernel)
                .input(&a)
                .input(&b)
                .output(Output::exact(kind, expected))
                .scalar(U32, count as f64)
        })
        .collect();
    let shifted = pairs.iter().map(|&(a, _)| match kind {
        U8 => f64::from((a << 3) as u8),
        U32 => f64::from((a << 3) as u32),
        I32 => f64::from((a << 3) as i32),
        _ => (a << 3) as f64,
    });
    rows.push(
        row("leftshift_kernel")
            .input(&a)
            .output(Output::exact(kind, shifted))
            .scalar(U32, count as f64)
            .scalar(I32, 3.),
    );
    rows
}

/// The gated activation of GPT-OSS: one by one, four at a time, and with both inputs in turns.
fn swiglu(kind: Type, name: &str, four: &str, tolerance: f64, random: &mut Random) -> Vec<Row> {
    let (alpha, limit) = (F32.rounded(1.702), 2.);
    let f = |gate: f64, up: f64| {
        let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
        (up + 1.) * gate / (1. + (-gate * alpha).exp())
    };
    let mut rows = Vec::new();
    for (kernel, count, at_once) in [
        ("gptoss_swiglu_kernel", 301usize, 1),
        ("gptoss_swiglu_kernel_vec4", 1200, 4),
    ] {
        let gate = Data::random(kind, count, -4., 4., random);
        let up = Data::random(kind, count, -4., 4., random);
        let expected = gate
            .values()
            .into_iter()
            .zip(up.values())
            .map(|(gate, up)| f(gate, up));
        let work = count / at_once;
        let row = Row::new(kernel)
            .grid([work.div_ceil(256), 1, 1])
            .block([256, 1, 1]);
        let row = if at_once == 1 {
            row.template(&[name])
        } else {
            row.template(&[name, four])
        };
        rows.push(
            row.input(&gate)
                .input(&up)
                .output(Output::exact(kind, expected).within(tolerance, tolerance))
                .scalar(U32, work as f64)
                .scalar(F32, alpha)
                .scalar(F32, limit),
        );
    }
    let (tokens, width) = (3, 101);
    let both = Data::random(kind, 2 * tokens * width, -4., 4., random);
    let expected: Vec<f64> = both
        .values()
        .chunks(2)
        .map(|pair| f(pair[0], pair[1]))
        .collect();
    rows.push(
        Row::new("gptoss_swiglu_interleaved_kernel")
            .template(&[name])
            .grid([(tokens * width).div_ceil(256), 1, 1])
            .block([256, 1, 1])
            .input(&both)
            .output(Output::exact(kind, expected).within(tolerance, tolerance))
            .scalar(U32, tokens as f64)
            .scalar(U32, width as f64)
            .scalar(F32, alpha)
            .scalar(F32, limit),
    );
    rows
}

/// Rows shorter and longer than a block; masks are shared by heads.
fn softmax(kind: Type, name: &str, tolerance: f64, random: &mut Random) -> Vec<Row> {
    let (batch, heads, queries) = (2, 3, 2);
    let mut rows = Vec::new();
    for (keys, block, masked) in [(37, 64, true), (200, 128, false)] {
        let logits = Data::random(kind, batch * heads * queries * keys, -3., 3., random);
        let sinks = Data::random(kind, heads, -1., 2., random);
        let mask = (0..batch * queries * keys).map(|_| {
            if random.below(4) == 0 {
                f64::NEG_INFINITY
            } else {
                0.
            }
        });
        let mask = Data::new(kind, mask.collect::<Vec<_>>());
        let (l, s, m) = (logits.values(), sinks.values(), mask.values());
        let mut expected = Vec::new();
        for row in 0..batch * heads * queries {
            let (b, head, q) = (
                row / (heads * queries),
                row / queries % heads,
                row % queries,
            );
            let weights: Vec<f64> = (0..keys)
                .map(|k| {
                    (l[row * keys + k]
                        + if masked {
                            m[(b * queries + q) * keys + k]
                        } else {
                            0.
                        })
                    .exp()
                })
                .collect();
            let sum = weights.iter().sum::<f64>() + s[head].exp();
            expected.extend(weights.iter().map(|w| w / sum));
        }
        let row = Row::new("softmax_with_sinks_kernel")
            .template(&[name])
            .grid([batch * heads * queries, 1, 1])
            .block([block, 1, 1])
            .input(&logits)
            .input(&sinks);
        let row = if masked {
            row.input(&mask).about("a mask")
        } else {
            row.null()
        };
        rows.push(
            row.output(Output::exact(kind, expected).within(1e-7, tolerance))
                .ints(&[batch, heads, queries, keys])
                .scalar(F32, 1.),
        );
    }
    rows
}

/// Gated units: SiLU, both GELUs and ReLU. The activation is rounded before the product.
fn glu(kind: Type, name: &str, four: &str, tolerance: f64, random: &mut Random) -> Vec<Row> {
    let activations: [fn(f64) -> f64; 4] = [
        |x| x / (1. + (-x).exp()),
        |x| {
            0.5 * x
                * (1. + ((2. / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        },
        |x| x.max(0.),
        |x| x * libm::erfc(-x / std::f64::consts::SQRT_2) / 2.,
    ];
    let mut rows = Vec::new();
    for (activation, f) in activations.into_iter().enumerate() {
        for (kernel, count, at_once) in [
            ("fused_glu_kernel", 301usize, 1),
            ("fused_glu_kernel_vec4", 1200, 4),
        ] {
            let a = Data::random(kind, count, -4., 4., random);
            let b = Data::random(kind, count, -2., 2., random);
            let expected = a
                .values()
                .into_iter()
                .zip(b.values())
                .map(|(a, b)| f(a) * b);
            let work = count / at_once;
            let row = Row::new(kernel)
                .grid([work.div_ceil(256), 1, 1])
                .block([256, 1, 1]);
            let row = if at_once == 1 {
                row.template(&[name])
            } else {
                row.template(&[name, four])
            };
            rows.push(
                row.input(&a)
                    .input(&b)
                    .output(Output::exact(kind, expected).within(tolerance, 2. * tolerance))
                    .scalar(U32, work as f64)
                    .ints(&[activation])
                    .about(format!("activation {activation}")),
            );
        }
    }
    rows
}
