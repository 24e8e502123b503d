//! The choice of tokens, against a plain one on the host.

mod common;

use candle_rocm::ops::sampling::{
    choose, edit, mask, report, report_by, Choice, Edit, NOTHING_LEFT, NOT_A_NUMBER,
};
use candle_rocm::{Buffer, DType, Device, Error, View};
use common::{device, download, upload, Rng};

const VOCAB: usize = 1234;
const ROWS: usize = 18;

fn plain() -> Choice {
    Choice {
        temperature: 1.0,
        top_k: 0,
        typical_p: 1.0,
        top_p: 1.0,
        log_min_p: f32::NEG_INFINITY,
        top_n_sigma: 0.0,
        dynamic_range: 0.0,
        dynamic_exponent: 1.0,
        xtc_threshold: 1.0,
        seed: [0, 0],
        position: 0,
    }
}

fn view<'a>(buffer: &'a Buffer, dims: &'a [usize; 2], strides: &'a [usize; 2]) -> View<'a> {
    View::contiguous(buffer, DType::F32, dims, strides)
}

/// Standard Gumbel numbers from the first word of Philox 4x32-10.
fn gumbel(choice: &Choice, token: u32) -> f64 {
    let mut c = [token, choice.position, 0, 0];
    let mut key = choice.seed;
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xd251_1f53;
        let b = u64::from(c[2]) * 0xcd9e_8d57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9e37_79b9),
            key[1].wrapping_add(0xbb67_ae85),
        ];
    }
    let uniform = (f64::from(c[0] >> 8) + 0.5) / f64::from(1 << 24);
    -(-uniform.ln()).ln()
}

/// The token by sorting.
fn expected(logits: &[f32], choice: &Choice) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if choice.temperature == 0.0 {
        return logits.iter().position(|x| *x == max).unwrap() as u32;
    }
    let mut kept: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .map(|(token, logit)| (token, f64::from(logit - max)))
        .collect();
    if choice.top_n_sigma > 0.0 {
        let mean = kept.iter().map(|k| k.1).sum::<f64>() / kept.len() as f64;
        let square = kept.iter().map(|k| (k.1 - mean).powi(2)).sum::<f64>();
        let deviation = (square / kept.len() as f64).sqrt();
        kept.retain(|k| k.1 >= -f64::from(choice.top_n_sigma) * deviation);
    }
    let mut temperature = f64::from(choice.temperature);
    if choice.dynamic_range > 0.0 {
        let total: f64 = kept.iter().map(|k| k.1.exp()).sum();
        let surprise = |k: &(u32, f64)| k.1.exp() / total * (total.ln() - k.1);
        let entropy: f64 = kept.iter().map(surprise).sum();
        let share = entropy / (kept.len() as f64).ln();
        let range = f64::from(choice.dynamic_range);
        let (least, most) = ((temperature - range).max(0.0), temperature + range);
        temperature = least + (most - least) * share.powf(choice.dynamic_exponent.into());
    }
    kept.iter_mut().for_each(|k| k.1 /= temperature);
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if choice.top_k > 0 {
        kept.truncate(choice.top_k as usize);
    }
    let share = |kept: &mut Vec<(u32, f64)>, p: f32| {
        if p < 1.0 {
            let total: f64 = kept.iter().map(|k| k.1.exp()).sum();
            let mut sum = 0.0;
            let last = kept.iter().position(|k| {
                sum += k.1.exp();
                sum >= f64::from(p) * total
            });
            kept.truncate(last.unwrap() + 1);
        }
    };
    if choice.typical_p < 1.0 {
        let total: f64 = kept.iter().map(|k| k.1.exp()).sum();
        let mean = kept.iter().map(|k| k.1.exp() * k.1).sum::<f64>() / total;
        kept.sort_by(|a, b| (a.1 - mean).abs().total_cmp(&(b.1 - mean).abs()));
        share(&mut kept, choice.typical_p);
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    share(&mut kept, choice.top_p);
    let most = kept[0].1;
    kept.retain(|k| k.1 >= most + f64::from(choice.log_min_p));
    let total: f64 = kept.iter().map(|k| k.1.exp()).sum();
    let wanted = f64::from(choice.xtc_threshold) * total;
    let likely = kept.iter().take_while(|k| k.1.exp() >= wanted).count();
    kept.drain(..likely.saturating_sub(1));
    let noisy = |k: &(u32, f64)| k.1 + gumbel(choice, k.0);
    let best = kept.iter().max_by(|a, b| noisy(a).total_cmp(&noisy(b)));
    best.unwrap().0
}

fn logits(device: &Device, rows: usize) -> (Vec<f32>, Buffer) {
    let values: Vec<f32> = Rng::new(3).vec(rows * VOCAB, -4.0, 6.0);
    let buffer = upload(device, &values);
    (values, buffer)
}

#[test]
fn filters_and_draws() {
    let device = device();
    let (values, buffer) = logits(&device, ROWS);
    let kinds = [
        Choice {
            temperature: 0.0,
            ..plain()
        },
        plain(),
        Choice {
            temperature: 0.4,
            ..plain()
        },
        Choice {
            top_k: 1,
            ..plain()
        },
        Choice {
            top_k: 20,
            ..plain()
        },
        Choice {
            top_p: 0.5,
            ..plain()
        },
        Choice {
            top_p: 0.02,
            ..plain()
        },
        Choice {
            log_min_p: 0.3f32.ln(),
            ..plain()
        },
        Choice {
            typical_p: 0.4,
            ..plain()
        },
        Choice {
            top_k: 100,
            typical_p: 0.9,
            top_p: 0.8,
            log_min_p: 0.1f32.ln(),
            temperature: 0.7,
            ..plain()
        },
        Choice {
            top_k: 5000,
            ..plain()
        },
        Choice {
            top_p: 0.999,
            ..plain()
        },
        Choice {
            top_n_sigma: 1.2,
            ..plain()
        },
        Choice {
            dynamic_range: 0.6,
            dynamic_exponent: 2.0,
            temperature: 0.8,
            ..plain()
        },
        Choice {
            dynamic_range: 0.5,
            temperature: 0.2,
            ..plain()
        },
        Choice {
            xtc_threshold: 0.003,
            ..plain()
        },
        Choice {
            xtc_threshold: 0.4,
            temperature: 0.3,
            ..plain()
        },
        Choice {
            top_n_sigma: 1.6,
            dynamic_range: 0.3,
            temperature: 0.9,
            top_k: 90,
            top_p: 0.9,
            log_min_p: 0.05f32.ln(),
            xtc_threshold: 0.02,
            ..plain()
        },
    ];
    let mut drawn = std::collections::BTreeSet::new();
    for position in 0..4 {
        let choices: Vec<Choice> = kinds
            .iter()
            .enumerate()
            .map(|(i, kind)| Choice {
                seed: [i as u32 * 77, position * 3],
                position,
                ..*kind
            })
            .collect();
        let found = choose(
            &device,
            &view(&buffer, &[ROWS, VOCAB], &[VOCAB, 1]),
            &choices,
        );
        let found = download::<u32>(&device, &found.unwrap());
        for ((row, choice), found) in values.chunks(VOCAB).zip(&choices).zip(found) {
            assert_eq!(found, expected(row, choice), "{choice:?}");
            drawn.insert(found);
        }
    }
    assert!(drawn.len() > ROWS, "the draws are too much alike");
}

#[test]
fn equal_logits_go_by_token_and_what_is_no_number_shows() {
    let device = device();
    let mut rows = vec![0.0f32; 4 * VOCAB];
    rows[VOCAB + 700] = f32::NAN;
    rows[2 * VOCAB..3 * VOCAB].fill(f32::NEG_INFINITY);
    let buffer = upload(&device, &rows);
    let choices = [
        Choice {
            temperature: 0.0,
            ..plain()
        },
        plain(),
        plain(),
        Choice {
            top_k: 3,
            ..plain()
        },
    ];
    let found = choose(&device, &view(&buffer, &[4, VOCAB], &[VOCAB, 1]), &choices).unwrap();
    let found = download::<u32>(&device, &found);
    assert_eq!(found[..3], [0, NOT_A_NUMBER, NOTHING_LEFT]);
    assert!(found[3] < 3, "{found:?}");
}

#[test]
fn edits_and_masks() {
    let device = device();
    let (mut values, buffer) = logits(&device, 3);
    let change = |row, token, bias, penalty, subtract| Edit {
        row,
        token,
        bias,
        penalty,
        subtract,
    };
    let edits = [
        change(0, 5, 2.0, 1.0, 0.0),
        change(2, 1233, 0.0, 1.5, 0.25),
        change(2, 0, -50.0, 2.0, 1.0),
    ];
    let words = VOCAB.div_ceil(32);
    let mut masks = vec![u32::MAX; 2 * words];
    masks[0] = !(1 << 7);
    masks[words + 38] = 1;
    let (dims, strides) = ([3, VOCAB], [VOCAB, 1]);
    edit(&device, &view(&buffer, &dims, &strides), &edits).unwrap();
    mask(&device, &view(&buffer, &dims, &strides), &[2, 0], &masks).unwrap();
    for e in edits {
        let logit = &mut values[e.row as usize * VOCAB + e.token as usize];
        *logit += e.bias;
        *logit = if *logit > 0.0 {
            *logit / e.penalty
        } else {
            *logit * e.penalty
        } - e.subtract;
    }
    values[2 * VOCAB + 7] = f32::NEG_INFINITY;
    values[38 * 32 + 1..VOCAB].fill(f32::NEG_INFINITY);
    let found = download::<f32>(&device, &buffer);
    for (i, (found, expected)) in found.iter().zip(&values).enumerate() {
        let same = found == expected || (found - expected).abs() < 1e-5;
        assert!(same, "{i}: {found} instead of {expected}");
    }
    let beyond = change(3, 0, 1.0, 1.0, 0.0);
    let refused = edit(&device, &view(&buffer, &dims, &strides), &[beyond]);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    let refused = mask(&device, &view(&buffer, &dims, &strides), &[0], &masks);
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
}

#[test]
fn probabilities() {
    let device = device();
    let (values, buffer) = logits(&device, 3);
    let chosen = upload(&device, &[9u32, 8, 7]);
    let view = view(&buffer, &[3, VOCAB], &[VOCAB, 1]);
    let (tokens, numbers) = report(&device, &view, &chosen, &[2, 0], 4).unwrap();
    let tokens = download::<u32>(&device, &tokens);
    let numbers = download::<f32>(&device, &numbers);
    for (i, (row, token)) in [(2, 7), (0, 9)].into_iter().enumerate() {
        let logits = &values[row * VOCAB..(row + 1) * VOCAB];
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let mut order: Vec<u32> = (0..VOCAB as u32).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        assert_eq!(tokens[i * 4..i * 4 + 4], order[..4]);
        let expected = std::iter::once(token).chain(order[..4].iter().copied());
        for (found, token) in numbers[i * 5..].iter().zip(expected) {
            let expected = f64::from(logits[token as usize]) - sum.ln();
            assert!(
                (f64::from(*found) - expected).abs() < 1e-4,
                "{found} instead of {expected}"
            );
        }
    }
    // The same of all rows, without anything that is uploaded.
    let rows = upload(&device, &[0u32, 1, 2]);
    // SAFETY: they are rows.
    let all = unsafe { report_by(&device, &view, &chosen, &rows) }.unwrap();
    let all = download::<f32>(&device, &all);
    assert_eq!([all[2], all[0]], [numbers[0], numbers[5]]);
    let short = upload(&device, &[0u32, 1]);
    // SAFETY: they are rows.
    let refused = unsafe { report_by(&device, &view, &chosen, &short) };
    assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
}
