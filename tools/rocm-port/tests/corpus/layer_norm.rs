//! candle-layer-norm: layer norm and RMS norm with an optional residual, whose kernel takes a structure of addresses.

use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Argument, Output, Row};
use crate::run::full;

/// Types of weights, input, residual and output; sums are in f32.
const TYPES: [[Type; 4]; 10] = [
    [F32, F32, F32, F32],
    [F16, F32, F32, F32],
    [F32, F16, F32, F16],
    [F16, F16, F32, F16],
    [F32, F16, F16, F16],
    [F32, BF16, F32, BF16],
    [BF16, BF16, F32, BF16],
    [F32, BF16, BF16, BF16],
    [F16, F16, F16, F16],
    [BF16, BF16, BF16, BF16],
];

/// Widths that the kernel is made for, with warps along columns of rows, and of columns.
const WIDTHS: [(usize, usize, usize); 13] = [
    (256, 4, 1),
    (512, 4, 1),
    (768, 4, 1),
    (1024, 4, 1),
    (1280, 4, 1),
    (1536, 4, 1),
    (2048, 4, 1),
    (2560, 4, 1),
    (3072, 1, 4),
    (4096, 1, 4),
    (5120, 1, 4),
    (6144, 1, 8),
    (8192, 1, 8),
];

/// The name of a type in the kernel's text.
fn word(kind: Type) -> &'static str {
    match kind {
        F16 => "half",
        BF16 => "nv_bfloat16",
        _ => "float",
    }
}

/// Template arguments of the kernel: types, width and so on in one, then whether columns fill the width.
fn template(types: [Type; 4], width: (usize, usize, usize), full: bool) -> [String; 5] {
    let [weight, input, residual, output] = types.map(word);
    let (columns, down, across) = width;
    let traits = format!(
        "layer_norm::Kernel_traits<{weight}, {input}, {residual}, {output}, float, uint32_t, {columns}, 1, {down}, \
         {across}, 16>"
    );
    let [no, full] = [false, full].map(|flag| flag.to_string());
    [traits, no.clone(), no.clone(), no, full]
}

/// Launches of all combinations of types at the smallest width, and of one at widths with warps along columns; or of
/// everything.
pub fn all(random: &mut Random) -> Vec<Row> {
    let wide = WIDTHS
        .into_iter()
        .filter(|width| matches!(width.0, 3072 | 6144));
    let chosen: Vec<_> = match full() {
        true => WIDTHS
            .into_iter()
            .flat_map(|width| TYPES.map(|types| (types, width)))
            .collect(),
        false => {
            let narrow = TYPES.map(|types| (types, WIDTHS[0]));
            narrow
                .into_iter()
                .chain(wide.map(|width| (TYPES[3], width)))
                .collect()
        }
    };
    chosen
        .into_iter()
        .flat_map(|(types, width)| layer_norm(types, width, random))
        .collect()
}

/// Launches for one width and combination of types: with and without residual and shift, both norms.
fn layer_norm(types: [Type; 4], width: (usize, usize, usize), random: &mut Random) -> Vec<Row> {
    let [weight, input, residual, output] = types;
    let (columns, down, across) = width;
    let rows = down + 1;
    let mut launches = Vec::new();
    for (full, with_residual, with_beta, rms) in [
        (true, true, true, false),
        (false, false, true, false),
        (true, false, false, true),
        (false, true, false, true),
    ] {
        let columns = if full { columns } else { columns - 56 };
        let x0 = Data::random(input, rows * columns, -2., 3., random);
        let more = with_residual.then(|| Data::random(residual, rows * columns, -1., 1., random));
        let gamma = Data::random(weight, columns, 0.5, 1.5, random);
        let beta = with_beta.then(|| Data::random(weight, columns, -1., 1., random));
        let mut x = x0.values();
        if let Some(more) = &more {
            x.iter_mut()
                .zip(more.values())
                .for_each(|(x, more)| *x += more);
        }
        let epsilon = f64::from(1e-5f32);
        let (mut means, mut scales, mut z) = (Vec::new(), Vec::new(), Vec::new());
        for line in x.chunks(columns) {
            let mean = line.iter().sum::<f64>() / columns as f64;
            let variance =
                line.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / columns as f64;
            let (taken, square) = if rms { (0., mean * mean) } else { (mean, 0.) };
            let scale = 1. / (variance + epsilon + square).sqrt();
            let shift = beta.as_ref().map_or(vec![0.; columns], Data::values);
            let both = gamma.values().into_iter().zip(shift);
            z.extend(
                line.iter()
                    .zip(both)
                    .map(|(v, (g, b))| g * scale * (v - taken) + b),
            );
            means.push(mean);
            scales.push(scale);
        }
        // The sum is kept where there is something to keep.
        let kept = with_residual || input != residual;
        let near = |kind: Type, values: Vec<f64>| {
            Output::near(kind, values, 1.).within(2e-5, kind.step().max(2e-5))
        };
        let mut bytes = vec![0; 208];
        let mut buffers = Vec::new();
        let mut put = |at: usize, value: [u8; 4]| bytes[at..at + 4].copy_from_slice(&value);
        // The order of the structure: blocks, rows, columns; addresses from byte 16 on; numbers from byte 128 on.
        put(0, 1i32.to_le_bytes());
        put(4, (rows as i32).to_le_bytes());
        put(8, (columns as i32).to_le_bytes());
        put(128, (1. / columns as f32).to_le_bytes());
        put(132, 1f32.to_le_bytes());
        put(136, 1f32.to_le_bytes());
        put(140, 1f32.to_le_bytes());
        put(144, [u8::from(rms), 0, 0, 0]);
        put(200, 1e-5f32.to_le_bytes());
        buffers.push((16, Argument::Input(x0)));
        buffers.extend(more.map(|more| (32, Argument::Input(more))));
        if kept {
            buffers.push((40, Argument::Output(near(residual, x.clone()))));
        }
        buffers.push((64, Argument::Output(near(F32, means))));
        buffers.push((72, Argument::Output(near(F32, scales))));
        buffers.push((80, Argument::Input(gamma)));
        buffers.push((168, Argument::Output(near(output, z))));
        buffers.extend(beta.map(|beta| (184, Argument::Input(beta))));
        let template = template(types, width, full);
        launches.push(
            Row::new("layer_norm::ln_fwd_kernel")
                .template(&template.each_ref().map(String::as_str))
                .block([down * across * 32, 1, 1])
                .shared(if across > 1 { down * across * 16 } else { 0 })
                .structure(bytes, buffers)
                .about(format!(
                    "{}{}{}",
                    if rms { "RMS norm" } else { "layer norm" },
                    if with_residual {
                        " with a residual"
                    } else {
                        ""
                    },
                    if full {
                        ""
                    } else {
                        ", columns that do not fill the width"
                    },
                )),
        );
    }
    launches
}
