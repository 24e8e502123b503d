//! Attention to latent vectors and the choice of keys and experts.

use super::{split_dtype, unknown};
use crate::ops::attention::latent::{attend, choose, Keys, NO_KEY};
use crate::ops::moe::{route, Route, Scores};
use crate::verify::admit::Finding;
use crate::verify::bench::{difference, read, spoil_memory, tolerance, Tensor};
use crate::{DType, DeclaredKernel, Device};

const TOKENS: usize = 1;
const KEYS: usize = 301;
const BLOCK: usize = 16;
const HEADS: usize = 5;
const TURNING: usize = 32;
const RANK: usize = 96;
const SIZE: usize = TURNING + RANK;
const MOST: usize = 40;

/// `attention_latent_<dtype>`, `attention_latent_rank_<dtype>` and what joins and chooses.
pub(super) fn attention(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let ranks = kernel.name.contains("rank") || kernel.name.ends_with("choose");
    let dtype = match split_dtype(&kernel.name) {
        Some((_, dtype)) => dtype,
        None if ranks || kernel.name.ends_with("combine") => DType::F32,
        None => return unknown(kernel),
    };
    let blocks = KEYS.div_ceil(BLOCK);
    let dims = [blocks, BLOCK, 1, SIZE];
    let values = Tensor::random(device, DType::F32, &dims, (-1.0, 1.0))?.values;
    // Bytes have one factor, a power of two.
    let factor = 0.0078125;
    let stored: Vec<f64> = match dtype {
        DType::U8 => values
            .iter()
            .map(|v| f64::from((v / factor).round().clamp(-127.0, 127.0) as i8 as u8))
            .collect(),
        _ => values,
    };
    let keys = Tensor::new(device, dtype, &dims, &stored)?;
    let known: Vec<f64> = match dtype {
        DType::U8 => keys
            .values
            .iter()
            .map(|v| f64::from(*v as u8 as i8) * factor)
            .collect(),
        _ => keys.values.clone(),
    };
    let factors = vec![factor; blocks * BLOCK * SIZE / 32];
    let scales = Tensor::new(device, DType::F16, &[blocks, BLOCK, 1, SIZE / 32], &factors)?;
    let starts = |end: usize| Tensor::new(device, DType::U32, &[2], &[0.0, end as f64]);
    let (cu_rows, cu_keys) = (starts(TOKENS)?, starts(KEYS)?);
    // From the last block to the first.
    let order: Vec<f64> = (0..blocks).rev().map(|b| b as f64).collect();
    let table = Tensor::new(device, DType::U32, &[1, blocks], &order)?;
    let key = |position: usize| {
        let block = blocks - 1 - position / BLOCK;
        &known[(block * BLOCK + position % BLOCK) * SIZE..][..SIZE]
    };
    let cache = Keys {
        keys: keys.view(),
        scales: (dtype == DType::U8).then(|| scales.view()),
        cu_rows: cu_rows.view(),
        cu_keys: cu_keys.view(),
        blocks: table.view(),
        most: KEYS,
    };
    let q = Tensor::random(device, DType::F32, &[TOKENS, HEADS, SIZE], (-1.0, 1.0))?;
    let dot = |head: usize, position: usize| -> f64 {
        let query = &q.values[head * SIZE..][..SIZE];
        query.iter().zip(key(position)).map(|(a, b)| a * b).sum()
    };
    if ranks {
        let weights = Tensor::random(device, DType::F32, &[TOKENS, HEADS], (-1.0, 1.0))?;
        spoil_memory(device, MOST * size_of::<u32>())?;
        let chosen = choose(device, &q.view(), &weights.view(), &cache, MOST)?;
        let score = |position: usize| -> f64 {
            let heads = 0..HEADS;
            heads
                .map(|h| weights.values[h] * dot(h, position).max(0.0))
                .sum()
        };
        let mut best: Vec<usize> = (0..KEYS).collect();
        best.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
        best.truncate(MOST);
        best.sort_unstable();
        let want: Vec<f64> = best.into_iter().map(|key| key as f64).collect();
        return Ok(difference(&read(device, &chosen, DType::U32)?, &want, 0.0));
    }
    let chosen: Vec<usize> = (0..KEYS).step_by(2).collect();
    let mut listed: Vec<f64> = chosen.iter().map(|key| *key as f64).collect();
    listed.resize(chosen.len() + 3, f64::from(NO_KEY));
    let list = Tensor::new(device, DType::U32, &[TOKENS, listed.len()], &listed)?;
    let scale = 0.15;
    spoil_memory(device, HEADS * RANK * size_of::<f32>())?;
    let out = attend(
        device,
        &q.view(),
        &cache,
        TURNING,
        scale,
        Some(&list.view()),
    )?;
    let mut want = Vec::new();
    for head in 0..HEADS {
        let scores: Vec<f64> = chosen
            .iter()
            .map(|k| dot(head, *k) * f64::from(scale))
            .collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        want.extend((TURNING..SIZE).map(|c| {
            let each = chosen.iter().zip(&scores);
            each.map(|(k, s)| key(*k)[c] * (s - max).exp()).sum::<f64>() / sum
        }));
    }
    let got = read(device, &out, DType::F32)?;
    Ok(difference(&got, &want, tolerance(DType::F32)))
}

/// `moe_route`: with groups, a bias and a sum of 1.
pub(super) fn router(device: &Device, kernel: &DeclaredKernel) -> Finding {
    if kernel.name != "moe_route" {
        return unknown(kernel);
    }
    let (tokens, experts, used) = (7, 96, 6);
    let logits = Tensor::random(device, DType::F32, &[tokens, experts], (-3.0, 3.0))?;
    let bias = Tensor::random(device, DType::F32, &[experts], (-0.3, 0.3))?;
    let how = Route {
        used,
        scores: Scores::Sigmoid,
        groups: (8, 3),
        best_of_group: 2,
        normalised: Some(1e-20),
        scale: 2.5,
    };
    spoil_memory(device, tokens * used * size_of::<f32>())?;
    let (ids, weights) = route(device, &logits.view(), Some(&bias.view()), &how)?;
    let (mut want_ids, mut want) = (Vec::new(), Vec::new());
    for logits in logits.values.chunks_exact(experts) {
        let scores: Vec<f64> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        let rank = |expert: usize| scores[expert] + bias.values[expert];
        let size = experts / 8;
        let merit = |group: usize| -> f64 {
            let mut ranks: Vec<f64> = (group * size..(group + 1) * size).map(rank).collect();
            ranks.sort_by(|a, b| b.total_cmp(a));
            ranks[0] + ranks[1]
        };
        let mut groups: Vec<usize> = (0..8).collect();
        groups.sort_by(|a, b| merit(*b).total_cmp(&merit(*a)));
        let mut chosen: Vec<usize> = (0..experts)
            .filter(|expert| groups[..3].contains(&(expert / size)))
            .collect();
        chosen.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
        chosen.truncate(used);
        let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
        want_ids.extend(chosen.iter().map(|expert| *expert as f64));
        want.extend(chosen.iter().map(|expert| scores[*expert] / sum * 2.5));
    }
    let found = difference(&read(device, &ids, DType::U32)?, &want_ids, 0.0);
    let got = read(device, &weights, DType::F32)?;
    Ok(found.or_else(|| difference(&got, &want, tolerance(DType::F32))))
}
