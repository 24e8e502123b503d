//! Sorting, and the choice of tokens.

use super::{split_dtype, unknown};
use crate::ops::sampling::{self, Choice, Edit};
use crate::ops::sort::argsort;
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, difference, read, spoil_memory, tolerance, Numbers, Tensor};
use crate::{DType, DeclaredKernel, Device};

pub(super) fn sort(device: &Device, kernel: &DeclaredKernel) -> Finding {
    // Rows in tiles, several of them in one; rows of several tiles.
    let (dtype, dims) = match split_dtype(&kernel.name) {
        Some((_, dtype)) => (dtype, [190, 45]),
        None if kernel.name.ends_with("wide") => (DType::F64, [2, 9003]),
        None => (DType::F32, [2, 9003]),
    };
    let low = if dtype.is_float() { -100.0 } else { 0.0 };
    let x = Tensor::random(device, dtype, &dims, (low, 120.0))?;
    for ascending in [true, false] {
        spoil_memory(device, x.values.len() * size_of::<u32>())?;
        let out = argsort(device, &x.view(), ascending)?;
        let mut want = Vec::new();
        for row in x.values.chunks(dims[1]) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| match ascending {
                true => row[a].total_cmp(&row[b]),
                false => row[b].total_cmp(&row[a]),
            });
            want.extend(order.into_iter().map(|i| i as f64));
        }
        if let Some(wrong) = compare(device, &out, DType::U32, &want)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

const ROWS: usize = 3;
const VOCAB: usize = 5003;

pub(super) fn sampling(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let logits = Tensor::random(device, DType::F32, &[ROWS, VOCAB], (-4.0, 4.0))?;
    match kernel.name.as_str() {
        "sampling_edit" => edit(device, &logits),
        "sampling_mask" => mask(device, &logits),
        "sampling_choose" => choose(device, &logits),
        "sampling_report" => report(device, &logits),
        _ => unknown(kernel),
    }
}

fn edit(device: &Device, logits: &Tensor) -> Finding {
    let mut numbers = Numbers::new(1);
    let mut want = logits.values.clone();
    let mut edits = Vec::new();
    for token in (0..VOCAB).step_by(7) {
        let row = numbers.below(ROWS);
        let x = &mut want[row * VOCAB + token];
        let biased = *x + 0.5;
        *x = biased * if biased > 0.0 { 0.5 } else { 2.0 } - 0.25;
        edits.push(Edit {
            row: row as u32,
            token: token as u32,
            bias: 0.5,
            penalty: 2.0,
            subtract: 0.25,
        });
    }
    sampling::edit(device, &logits.view(), &edits)?;
    compare(device, logits.buffer(), DType::F32, &want)
}

fn mask(device: &Device, logits: &Tensor) -> Finding {
    let mut numbers = Numbers::new(2);
    let words = VOCAB.div_ceil(32);
    let masks: Vec<u32> = (0..2 * words).map(|_| numbers.bits() as u32).collect();
    let mut want = logits.values.clone();
    for (i, row) in [2, 0].into_iter().enumerate() {
        for token in 0..VOCAB {
            if masks[i * words + token / 32] >> (token % 32) & 1 == 0 {
                want[row * VOCAB + token] = f64::NEG_INFINITY;
            }
        }
    }
    sampling::mask(device, &logits.view(), &[2, 0], &masks)?;
    let got = read(device, logits.buffer(), DType::F32)?;
    let differs = |(g, w): (&f64, &f64)| g != w;
    let wrong = got.iter().zip(&want).position(differs);
    Ok(wrong.map(|i| format!("logit {i} is {}, not {}", got[i], want[i])))
}

fn choose(device: &Device, logits: &Tensor) -> Finding {
    let choice = |temperature: f32, top_k: u32| Choice {
        temperature,
        top_k,
        typical_p: 1.0,
        top_p: 1.0,
        log_min_p: f32::NEG_INFINITY,
        top_n_sigma: 0.0,
        dynamic_range: 0.0,
        dynamic_exponent: 1.0,
        xtc_threshold: 1.0,
        seed: [1, 2],
        position: 3,
    };
    // Of one token that is left, the random number does not matter.
    let choices = [choice(0.0, 0), choice(1.0, 1), choice(0.7, 1)];
    spoil_memory(device, ROWS * size_of::<u32>())?;
    let tokens = sampling::choose(device, &logits.view(), &choices)?;
    let want: Vec<f64> = logits
        .values
        .chunks(VOCAB)
        .map(|row| order(row)[0] as f64)
        .collect();
    compare(device, &tokens, DType::U32, &want)
}

/// Tokens of a row, most likely first.
fn order(row: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order
}

fn report(device: &Device, logits: &Tensor) -> Finding {
    const TOP: usize = 5;
    let chosen = [11.0, 22.0, 33.0];
    let chosen = Tensor::new(device, DType::U32, &[ROWS], &chosen)?;
    spoil_memory(device, ROWS * (TOP + 1) * size_of::<f32>())?;
    let (view, buffer) = (logits.view(), chosen.buffer());
    let (tokens, values) = sampling::report(device, &view, buffer, &[0, 1, 2], TOP)?;
    let (mut want_tokens, mut want_values) = (Vec::new(), Vec::new());
    for (row, chosen) in logits.values.chunks(VOCAB).zip(&chosen.values) {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        let order = order(row);
        want_tokens.extend(order[..TOP].iter().map(|&token| token as f64));
        let all = [*chosen as usize]
            .into_iter()
            .chain(order[..TOP].iter().copied());
        want_values.extend(all.map(|token| row[token] - sum.ln()));
    }
    if let Some(wrong) = compare(device, &tokens, DType::U32, &want_tokens)? {
        return Ok(Some(wrong));
    }
    let got = read(device, &values, DType::F32)?;
    Ok(difference(&got, &want_values, tolerance(DType::F32)))
}
