//! Launches of gdn.cu.

use super::reference::{self, Delta};
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Types, and differences that rounding the result makes.
const KINDS: [(Type, &str, f64); 2] = [(F16, "__half", 1e-3), (BF16, "__nv_bfloat16", 8e-3)];

const RAGGED: &str = "threads whose column is beyond v_dim return before the block loads k and q together, so with a v_dim that is no \
                      multiple of 64 parts of both are never loaded";

/// The whole file.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for k in [64usize, 128] {
        for (steps, v) in [(5, 64), (1, 128), (3, 48)] {
            let row = Row::new("gated_delta_rule_recurrence_kernel_tiled")
                .template(&[&k.to_string(), "64"]);
            let row = delta(
                row,
                Delta {
                    heads: 2,
                    steps,
                    k,
                    v,
                },
                random,
            );
            rows.push(if v % 64 == 0 { row } else { row.known(RAGGED) });
        }
        // Two chunks, the second with a few steps.
        let row = Row::new("chunked_gated_delta_rule_kernel")
            .template(&["64", &k.to_string(), "64"])
            .shared(4 * (64 * k + 64 * 64 + 2 * 64 + k));
        rows.push(delta(
            row,
            Delta {
                heads: 1,
                steps: 70,
                k,
                v: 64,
            },
            random,
        ));
    }
    for (k, v) in [(40, 64), (40, 48), (256, 64)] {
        let row = Row::new("gated_delta_rule_recurrence_kernel_fallback")
            .template(&["64", "256"])
            .shared(2 * k * 4);
        let s = Delta {
            heads: 2,
            steps: 4,
            k,
            v,
        };
        rows.push(delta_with(row, s, &[s.steps, k, v], random));
    }
    for (kind, name, tolerance) in KINDS {
        rows.extend(convolutions(kind, name, tolerance, random));
        rows.push(gates(kind, name, tolerance, random));
    }
    rows
}

fn delta(row: Row, s: Delta, random: &mut Random) -> Row {
    delta_with(row, s, &[s.steps, s.v], random)
}

/// A launch of one of the forms of the delta rule, which differ in the numbers at the end.
fn delta_with(row: Row, s: Delta, numbers: &[usize], random: &mut Random) -> Row {
    let rows = s.heads * s.steps;
    let size = (s.k as f64).sqrt().recip();
    let q = Data::random(F32, rows * s.k, -1., 1., random);
    let k = Data::random(F32, rows * s.k, -size, size, random);
    let v = Data::random(F32, rows * s.v, -1., 1., random);
    let g = Data::random(F32, rows, -0.4, 0., random);
    let beta = Data::random(F32, rows, 0., 1., random);
    let state = Data::random(F32, s.heads * s.k * s.v, -1., 1., random);
    let (out, after) = reference::delta_rule(
        s,
        &q.values(),
        &k.values(),
        &v.values(),
        &g.values(),
        &beta.values(),
        &state.values(),
    );
    row.grid([s.v.div_ceil(64), s.heads, 1])
        .block([64, 1, 1])
        .input(&q)
        .input(&k)
        .input(&v)
        .input(&g)
        .input(&beta)
        .output(Output::exact(F32, after).within(2e-5, 2e-5).over(state))
        .output(Output::exact(F32, out).within(5e-5, 2e-5))
        .ints(numbers)
        .about(format!("{} steps, {} columns", s.steps, s.v))
}

fn convolutions(kind: Type, name: &str, tolerance: f64, random: &mut Random) -> Vec<Row> {
    let (batch, channels, taps) = (2, 300usize, 4);
    let blocks = channels.div_ceil(256);
    let w = Data::random(kind, channels * taps, -1., 1., random);
    let near = |expected: Vec<f64>| Output::exact(kind, expected).within(tolerance, tolerance);
    let mut rows = Vec::new();

    let x = Data::random(kind, batch * channels, -1., 1., random);
    let state = Data::random(kind, batch * channels * taps, -1., 1., random);
    let (after, out) =
        reference::conv_step(&x.values(), &w.values(), &state.values(), channels, taps);
    rows.push(
        Row::new("causal_conv1d_update_kernel")
            .template(&[name])
            .grid([blocks, batch, 1])
            .block([256, 1, 1])
            .input(&x)
            .input(&w)
            .output(Output::exact(kind, after).over(state))
            .output(near(out))
            .ints(&[batch, channels, taps]),
    );
    // Fewer steps than taps, too.
    for steps in [3, 7] {
        let x = Data::random(kind, batch * channels * steps, -1., 1., random);
        rows.push(
            Row::new("causal_conv1d_full_kernel")
                .template(&[name])
                .grid([blocks, steps, batch])
                .block([256, 1, 1])
                .input(&x)
                .input(&w)
                .output(near(reference::conv(
                    &x.values(),
                    &w.values(),
                    channels,
                    steps,
                    taps,
                )))
                .ints(&[batch, channels, steps, taps])
                .about(format!("{steps} steps")),
        );
        rows.push(
            Row::new("save_conv_state_kernel")
                .template(&[name])
                .grid([blocks, batch, 1])
                .block([256, 1, 1])
                .input(&x)
                .output(Output::exact(
                    kind,
                    reference::last_steps(&x.values(), steps, taps),
                ))
                .ints(&[batch, channels, steps, taps])
                .about(format!("{steps} steps")),
        );
    }
    rows
}

fn gates(kind: Type, name: &str, tolerance: f64, random: &mut Random) -> Row {
    let (total, heads) = (333, 9);
    let b = Data::random(kind, total, -4., 4., random);
    let a = Data::random(kind, total, -4., 4., random);
    let a_log = Data::random(F32, heads, -2., 1., random);
    let bias = Data::random(F32, heads, -1., 1., random);
    let (beta, g) = reference::gates(&b.values(), &a.values(), &a_log.values(), &bias.values());
    Row::new("fused_gdn_gating_kernel")
        .template(&[name])
        .grid([total.div_ceil(256), 1, 1])
        .block([256, 1, 1])
        .input(&b)
        .input(&a)
        .input(&a_log)
        .input(&bias)
        .output(Output::exact(kind, beta).within(0., tolerance))
        .output(Output::exact(kind, g).within(0., tolerance))
        .ints(&[total, heads])
}
