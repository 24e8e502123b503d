//! Moves of keys and values into and out of caches.

use super::attention::Pages;

/// `reshape_and_cache`: tokens' keys and values, each row `stride` apart, to their slots; negative slots are padding.
pub fn store(
    pages: &Pages,
    (key_stride, value_stride): (usize, usize),
    (key, value): (&[f64], &[f64]),
    slots: &[i64],
    (mut keys, mut values): (Vec<f64>, Vec<f64>),
) -> (Vec<f64>, Vec<f64>) {
    for (token, &slot) in slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else {
            continue;
        };
        let (block, slot) = (slot / pages.block_size, slot % pages.block_size);
        for head in 0..pages.kv_heads {
            for d in 0..pages.head_size {
                let i = head * pages.head_size + d;
                keys[pages.key(block, head, d, slot)] = key[token * key_stride + i];
                values[pages.value(block, head, d, slot)] = value[token * value_stride + i];
            }
        }
    }
    (keys, values)
}

/// `gather_kv_cache`: all tokens of all sequences, which end at `ends`, row after row.
pub fn gather(
    pages: &Pages,
    (keys, values): (&[f64], &[f64]),
    table: &[i64],
    starts: &[i64],
) -> (Vec<f64>, Vec<f64>) {
    let (mut k, mut v) = (Vec::new(), Vec::new());
    for (sequence, bounds) in starts.windows(2).enumerate() {
        for token in 0..(bounds[1] - bounds[0]) as usize {
            let block = table[sequence * pages.max_blocks + token / pages.block_size] as usize;
            let slot = token % pages.block_size;
            for head in 0..pages.kv_heads {
                for d in 0..pages.head_size {
                    k.push(keys[pages.key(block, head, d, slot)]);
                    v.push(values[pages.value(block, head, d, slot)]);
                }
            }
        }
    }
    (k, v)
}

/// `concat_and_cache_mla`, for one of the two parts: rows of `width`, `stride` apart, to their slots.
pub fn store_rows(
    rows: &[f64],
    stride: usize,
    width: usize,
    slots: &[i64],
    mut cache: Vec<f64>,
) -> Vec<f64> {
    for (token, &slot) in slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else {
            continue;
        };
        cache[slot * width..][..width].copy_from_slice(&rows[token * stride..][..width]);
    }
    cache
}

/// `gather_mla_cache`, for one of the two parts.
pub fn gather_rows(
    cache: &[f64],
    width: usize,
    block_size: usize,
    max_blocks: usize,
    table: &[i64],
    starts: &[i64],
) -> Vec<f64> {
    let mut rows = Vec::new();
    for (sequence, bounds) in starts.windows(2).enumerate() {
        for token in 0..(bounds[1] - bounds[0]) as usize {
            let block = table[sequence * max_blocks + token / block_size] as usize;
            rows.extend_from_slice(
                &cache[(block * block_size + token % block_size) * width..][..width],
            );
        }
    }
    rows
}

/// `compute_and_update_scales`: what the largest magnitude takes of the 240 steps of an 8-bit float, never less than
/// before.
pub fn scale(x: &[f64], before: f64) -> f64 {
    let largest = x.iter().fold(0f64, |max, x| max.max(x.abs()));
    before.max(largest / 240.0)
}
