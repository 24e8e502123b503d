//! Caches of keys and values in formats of their own: what is written, and attention to it.

use super::attention::Problem;
use super::unknown;
use crate::ops::attention::kv_cache::{self, Tokens};
use crate::ops::attention::packed::{rotation, Format, Half, PackedCache};
use crate::ops::attention::{attention_on, Attention, Lengths, Tier, Window, SCORE_BYTES};
use crate::verify::admit::Finding;
use crate::verify::bench::{
    bytes_of, decode, difference, read, spoil_memory, tolerance, Numbers, Tensor,
};
use crate::{DType, DeclaredKernel, Device, Result};
use half::f16;

/// Entries of a block.
const BLOCK: usize = 16;
/// Elements of a factor.
const SCALED: usize = 32;

/// Turns neighbours of a vector as caches have it.
fn turned(x: &[f64]) -> Vec<f64> {
    let size = rotation(x.len());
    let sign = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    let of_few = |x: &[f64]| -> Vec<f64> {
        let sum = |i: usize| {
            x.iter()
                .enumerate()
                .map(|(j, x)| sign(i, j) * x)
                .sum::<f64>()
        };
        (0..size).map(|i| sum(i) / (size as f64).sqrt()).collect()
    };
    x.chunks(size).flat_map(of_few).collect()
}

/// Codes of so many elements, from groups of eight: element i and i + 4 share byte i, and fifth bits are a byte.
fn nibbles(elements: &[u8], fifth: impl Fn(usize) -> u8, count: usize) -> Vec<f64> {
    let code = |i: usize| {
        let byte = elements[i / 8 * 4 + i % 4];
        let nibble = if i % 8 < 4 { byte & 15 } else { byte >> 4 };
        nibble | (fifth(i / 8) >> (i % 8) & 1) << 4
    };
    (0..count).map(|i| f64::from(code(i))).collect()
}

/// The elements of a cache in Q5_1.
fn of_q5_1(elements: &[u8], factors: &[u8], count: usize) -> Vec<f64> {
    let record = |block: usize| &factors[block * 8..][..8];
    let codes = nibbles(elements, |group| record(group / 4)[4 + group % 4], count);
    let numbers = codes.iter().enumerate();
    numbers
        .map(|(i, code)| {
            let halves = decode(DType::F16, &record(i / SCALED)[..4]);
            halves[0] * code + halves[1]
        })
        .collect()
}

/// Where an entry's vector is, in vectors.
fn place(slot: usize, head: usize, heads: usize) -> usize {
    (slot / BLOCK * heads + head) * BLOCK + slot % BLOCK
}

/// Attention of few rows, by `attention_split_packed_<elements>_<rows>`.
pub(super) fn split(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let words: Vec<&str> = kernel.name.split('_').collect();
    let [_, _, _, elements, rows] = words[..] else {
        return unknown(kernel);
    };
    let group = match rows {
        "1" => 1,
        "4" => 3,
        _ => 7,
    };
    attend(device, 1, group, if elements == "16" { 320 } else { 64 })
}

/// What is written, and vectors that turn by themselves.
pub(super) fn cache(device: &Device, kernel: &DeclaredKernel) -> Finding {
    match kernel.name.as_str() {
        "kv_cache_rotate" => attend(device, 41, 2, 64),
        "kv_cache_write_packed" => write(device),
        _ => unknown(kernel),
    }
}

/// Keys in Q5_1 and values in F8, both turned.
fn attend(device: &Device, rows: usize, group: usize, width: usize) -> Finding {
    let (keys, kv_heads) = (1003usize, 2);
    let blocks = keys.div_ceil(BLOCK);
    let dims = [blocks, BLOCK, kv_heads, width];
    let vectors = blocks * BLOCK * kv_heads;
    let count = vectors * width;
    let k = Half::new(device, Format::Q5_1, dims, true)?;
    let v = Half::new(device, Format::F8, dims, true)?;
    let mut rng = Numbers::new(29);
    let mut random = |count: usize| -> Vec<u8> { (0..count).map(|_| rng.bits() as u8).collect() };
    let k_elements = random(count / 2);
    let fifth = random(count / SCALED * 4);
    let record = |fifth: &[u8]| -> Vec<u8> {
        let halves = [f16::from_f64(0.125), f16::from_f64(-2.0)];
        let halves = halves.map(f16::to_le_bytes).concat();
        [&halves, fifth].concat()
    };
    let k_factors: Vec<u8> = fifth.chunks(4).flat_map(record).collect();
    // 0.5 to 1.875 with both signs.
    let v_elements: Vec<u8> = random(count).iter().map(|x| x & 0x8f | 0x30).collect();
    let [_, (factors, bytes)] = v.blocks();
    let v_factors = f16::ONE.to_le_bytes().repeat(blocks * bytes / 2);
    for (bytes, buffer) in [
        (&k_elements, k.blocks()[0].0),
        (&k_factors, k.blocks()[1].0),
        (&v_elements, v.blocks()[0].0),
        (&v_factors, factors),
    ] {
        device.upload_into(bytes, buffer, 0)?;
    }
    let stored_k = of_q5_1(&k_elements, &k_factors, count);
    let stored_v = decode(DType::F8E4M3, &v_elements);
    let seen = |stored: &[f64]| -> Vec<f64> {
        let places = (0..keys).flat_map(|key| (0..kv_heads).map(move |h| place(key, h, kv_heads)));
        places
            .flat_map(|at| stored[at * width..][..width].to_vec())
            .collect()
    };
    let problem = Problem {
        rows,
        keys,
        heads: group * kv_heads,
        kv_heads,
        width,
        dtype: DType::F32,
        kv_dtype: DType::U8,
    };
    let q = Tensor::random(
        device,
        DType::F32,
        &[rows, problem.heads, width],
        (-1.0, 1.0),
    )?;
    let numbers = |values: &[f64]| Tensor::new(device, DType::U32, &[values.len()], values);
    let (cu_rows, cu_keys) = (numbers(&[0.0, rows as f64])?, numbers(&[0.0, keys as f64])?);
    let order: Vec<f64> = (0..blocks).map(|block| block as f64).collect();
    let table = Tensor::new(device, DType::U32, &[1, blocks], &order)?;
    let scale = 1.0 / (width as f32).sqrt();
    let a = Attention {
        packed: Some(PackedCache::new(&k, &v)),
        window: Window::CAUSAL,
        lengths: Lengths::Paged {
            cu_rows: cu_rows.view(),
            cu_keys: cu_keys.view(),
            max_rows: rows,
            max_keys: keys,
            blocks: table.view(),
        },
        ..Attention::new(q.view(), k.view(), v.view(), scale)
    };
    spoil_memory(device, q.values.len() * 4)?;
    let attended = attention_on(device, &a, Tier::Tiled, SCORE_BYTES)?;
    // Products are the same if queries turn in place of keys.
    let queries: Vec<f64> = q.values.chunks(width).flat_map(turned).collect();
    let want = problem.textbook(&queries, &seen(&stored_k), &seen(&stored_v), true);
    let want: Vec<f64> = want.chunks(width).flat_map(turned).collect();
    let got = read(device, &attended.out, DType::F32)?;
    Ok(difference(&got, &want, 2.0 * tolerance(DType::F32)))
}

/// Keys turned, in f16, and values in Q5_1.
fn write(device: &Device) -> Finding {
    let (blocks, heads, width, tokens) = (5, 2, 64, 37);
    let dims = [blocks, BLOCK, heads, width];
    let k_half = Half::new(device, Format::F16, dims, true)?;
    let v_half = Half::new(device, Format::Q5_1, dims, false)?;
    let k = Tensor::random(device, DType::F32, &[tokens, heads, width], (-2.0, 1.0))?;
    let v = Tensor::random(device, DType::F32, &[tokens, heads, width], (-1.0, 2.0))?;
    // Each has a place of its own; the last is not written.
    let mut places: Vec<f64> = (0..tokens)
        .map(|t| (t * 7 % (blocks * BLOCK)) as f64)
        .collect();
    places[tokens - 1] = f64::from(u32::MAX);
    let slots = Tensor::new(device, DType::U32, &[tokens], &places)?;
    let given = Tokens {
        q: None,
        k: k.view(),
        v: v.view(),
        slots: slots.view(),
    };
    kv_cache::write_packed(device, &PackedCache::new(&k_half, &v_half), &given, None)?;
    let held = |half: &Half| -> Result<[Vec<u8>; 2]> {
        let [(elements, _), (factors, _)] = half.blocks();
        Ok([bytes_of(device, elements)?, bytes_of(device, factors)?])
    };
    let [k_elements, _] = held(&k_half)?;
    let [v_elements, v_factors] = held(&v_half)?;
    let (mut got_k, mut want_k) = (Vec::new(), Vec::new());
    for (token, slot) in places.iter().enumerate().take(tokens - 1) {
        for head in 0..heads {
            let x = (token * heads + head) * width;
            let at = place(*slot as usize, head, heads) * width;
            got_k.extend(decode(DType::F16, &k_elements[2 * at..][..2 * width]));
            want_k.extend(turned(&k.values[x..][..width]));
            let got = of_q5_1(&v_elements[at / 2..], &v_factors[at / SCALED * 8..], width);
            let want = &v.values[x..][..width];
            for (got, want) in got.chunks(SCALED).zip(want.chunks(SCALED)) {
                let high = want.iter().copied().fold(f64::MIN, f64::max);
                let low = want.iter().copied().fold(f64::MAX, f64::min);
                // Half a step, and what halves round.
                let limit = 0.51 * (high - low) / 31.0 + 0.002 * high.max(-low);
                let pairs = got.iter().zip(want);
                if let Some((got, want)) = pairs.into_iter().find(|(g, w)| (*g - *w).abs() > limit)
                {
                    return Ok(Some(format!("a value of {want} is stored as {got}")));
                }
            }
        }
    }
    Ok(difference(&got_k, &want_k, tolerance(DType::F16)))
}
