//! Launches of what moves keys and values into and out of caches.

use super::attention::Pages;
use super::cache;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Argument, Output, Row};

/// Types of keys and values, as the text calls them: binary16 numbers are moved as bits.
const KINDS: [(Type, &str); 3] = [(F16, "uint16_t"), (BF16, "__nv_bfloat16"), (F32, "float")];
/// The same where the text has the types themselves.
const FLOATS: [(Type, &str); 3] = [(F16, "__half"), (BF16, "__nv_bfloat16"), (F32, "float")];

fn pages(cache: Type) -> Pages {
    Pages {
        heads: 6,
        kv_heads: 3,
        head_size: 32,
        block_size: 8,
        x: 16 / cache.bytes(),
        max_blocks: 4,
    }
}

/// What a cache of type `cache` holds of a number, and what comes out of it again.
fn cached(cache: Type, value: f64, scale: f64) -> f64 {
    if cache == F8 {
        F8.rounded(F32.rounded(value / scale))
    } else {
        value
    }
}

fn read(cache: Type, value: f64, scale: f64) -> f64 {
    if cache == F8 {
        F32.rounded(value * scale)
    } else {
        value
    }
}

/// Template arguments: `first` and `second` are the types in the kernel's order.
fn template(first: &str, second: &str, cache: Type) -> [String; 3] {
    let kind = if cache == F8 { "kFp8E4M3" } else { "kAuto" };
    [
        first.into(),
        second.into(),
        format!("vllm::Fp8KVCacheDataType::{kind}"),
    ]
}

fn text(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// reshape_and_cache_kernel.cu.
pub fn store(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in KINDS {
        for cache in [kind, F8] {
            let pages = pages(cache);
            let width = pages.kv_heads * pages.head_size;
            let (key_stride, value_stride, tokens, blocks) = (width + 5, width, 5, 3);
            let slots = Data::new(I64, [17., 2., -1., 23., 0.]);
            let (ks, vs) = (F32.rounded(0.031), F32.rounded(0.5));
            let key = Data::random(kind, tokens * key_stride, -2., 2., random);
            let value = Data::random(kind, tokens * value_stride, -2., 2., random);
            let before =
                |random: &mut Random| Data::random(cache, blocks * pages.block(), -1., 1., random);
            let (keys, values) = (before(random), before(random));
            let (k, v): (Vec<f64>, Vec<f64>) = (
                key.values().iter().map(|&x| cached(cache, x, ks)).collect(),
                value
                    .values()
                    .iter()
                    .map(|&x| cached(cache, x, vs))
                    .collect(),
            );
            let slot_numbers: Vec<i64> = slots.values().iter().map(|&s| s as i64).collect();
            let (expected_keys, expected_values) = cache::store(
                &pages,
                (key_stride, value_stride),
                (&k, &v),
                &slot_numbers,
                (keys.values(), values.values()),
            );
            let cache_name = if cache == F8 { "uint8_t" } else { name };
            rows.push(
                Row::new("vllm::reshape_and_cache_kernel")
                    .template(&text(&template(name, cache_name, cache)))
                    .grid([tokens, 1, 1])
                    .block([width.min(512), 1, 1])
                    .input(&key)
                    .input(&value)
                    .output(Output::exact(cache, expected_keys).over(keys))
                    .output(Output::exact(cache, expected_values).over(values))
                    .input(&slots)
                    .ints(&[
                        key_stride,
                        value_stride,
                        pages.kv_heads,
                        pages.head_size,
                        pages.block_size,
                        pages.x,
                    ])
                    .input(&Data::new(F32, [ks]))
                    .input(&Data::new(F32, [vs]))
                    .about("a padding token, rows of keys apart"),
            );
        }
    }
    rows
}

/// Random tables of blocks for sequences that end at `starts[1..]`.
fn tables(pages: &Pages, sequences: usize, random: &mut Random) -> Data {
    Data::shuffled(I32, sequences * pages.max_blocks, random)
}

fn whole(data: &Data) -> Vec<i64> {
    data.values().iter().map(|&x| x as i64).collect()
}

/// gather_kv_cache_kernel.cu.
pub fn gather(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in KINDS {
        for cache in [kind, F8] {
            let pages = pages(cache);
            let starts = Data::new(I32, [0., 11., 11., 38.]);
            let (sequences, tokens) = (3, 38);
            let table = tables(&pages, sequences, random);
            let (ks, vs) = (F32.rounded(0.031), F32.rounded(0.5));
            let blocks = sequences * pages.max_blocks;
            let keys = Data::random(cache, blocks * pages.block(), -2., 2., random);
            let values = Data::random(cache, blocks * pages.block(), -2., 2., random);
            let (k, v) = cache::gather(
                &pages,
                (&keys.values(), &values.values()),
                &whole(&table),
                &whole(&starts),
            );
            let cache_name = if cache == F8 { "uint8_t" } else { name };
            let width = pages.kv_heads * pages.head_size;
            let mut row = Row::new("vllm::gather_kv_cache_kernel")
                .template(&text(&template(cache_name, name, cache)))
                .grid([tokens, 1, 1])
                .block([width.min(512), 1, 1])
                .input(&keys)
                .input(&values)
                .output(Output::exact(kind, k.iter().map(|&x| read(cache, x, ks))))
                .output(Output::exact(kind, v.iter().map(|&x| read(cache, x, vs))));
            row = if cache == F8 {
                row.input(&Data::new(F32, [ks]))
                    .input(&Data::new(F32, [vs]))
            } else {
                row.null().null()
            };
            rows.push(
                row.input(&table)
                    .input(&starts)
                    .ints(&[
                        tokens,
                        sequences,
                        pages.block_size,
                        pages.max_blocks,
                        pages.kv_heads,
                        pages.head_size,
                        pages.x,
                    ])
                    .about("an empty sequence among them"),
            );
        }
    }
    rows
}

/// concat_and_cache_mla_kernel.cu.
pub fn store_mla(random: &mut Random) -> Vec<Row> {
    FLOATS
        .iter()
        .map(|&(kind, name)| {
            let (tokens, rank, width, block_size, blocks) = (4, 40, 24, 4, 3);
            let (rank_stride, width_stride) = (rank + 3, width);
            let slots = Data::new(I64, [9., -1., 0., 5.]);
            let ckv = Data::random(kind, tokens * rank_stride, -2., 2., random);
            let kpe = Data::random(kind, tokens * width_stride, -2., 2., random);
            let ckv_cache = Data::random(kind, blocks * block_size * rank, -1., 1., random);
            let kpe_cache = Data::random(kind, blocks * block_size * width, -1., 1., random);
            let stored = |rows: &Data, stride, width, cache: &Data| {
                Output::exact(
                    kind,
                    cache::store_rows(
                        &rows.values(),
                        stride,
                        width,
                        &whole(&slots),
                        cache.values(),
                    ),
                )
                .over(cache.clone())
            };
            Row::new("concat_and_cache_mla_kernel")
                .template(&[name])
                .grid([tokens, 1, 1])
                .block([rank, 1, 1])
                .input(&ckv)
                .input(&kpe)
                .output(stored(&ckv, rank_stride, rank, &ckv_cache))
                .output(stored(&kpe, width_stride, width, &kpe_cache))
                .input(&slots)
                .ints(&[rank_stride, width_stride, rank, width, block_size])
        })
        .collect()
}

/// gather_mla_cache_kernel.cu.
pub fn gather_mla(random: &mut Random) -> Vec<Row> {
    FLOATS
        .iter()
        .map(|&(kind, name)| {
            let (rank, width, block_size, max_blocks) = (300, 24, 4, 3);
            let starts = Data::new(I32, [0., 5., 16.]);
            let sequence_of = Data::whole(I32, (0..16).map(|token| usize::from(token >= 5)));
            let table = Data::shuffled(I32, 2 * max_blocks, random);
            let ckv = Data::random(kind, 2 * max_blocks * block_size * rank, -2., 2., random);
            let kpe = Data::random(kind, 2 * max_blocks * block_size * width, -2., 2., random);
            let gathered = |cache: &Data, width| {
                Output::exact(
                    kind,
                    cache::gather_rows(
                        &cache.values(),
                        width,
                        block_size,
                        max_blocks,
                        &whole(&table),
                        &whole(&starts),
                    ),
                )
            };
            Row::new("gather_mla_cache_kernel")
                .template(&[name])
                .grid([16, 1, 1])
                .block([256, 1, 1])
                .input(&ckv)
                .input(&kpe)
                .output(gathered(&ckv, rank))
                .output(gathered(&kpe, width))
                .input(&table)
                .input(&starts)
                .input(&sequence_of)
                .ints(&[16, block_size, max_blocks, rank, width])
        })
        .collect()
}

/// copy_blocks_kernel.cu: blocks 2 and 0 of each of two layers become copies of 1 and 3.
pub fn copy(random: &mut Random) -> Vec<Row> {
    [
        ("copy_blocks_kernel_f32", F32),
        ("copy_blocks_kernel_f16", F16),
        ("copy_blocks_kernel_bf16", BF16),
    ]
    .iter()
    .map(|&(kernel, kind)| {
        let (keys, values) = (37, 53);
        let mut caches = |count: usize| {
            let copied = |random: &mut Random| {
                let before = Data::random(kind, 4 * count, -2., 2., random);
                let mut after = before.values();
                after.copy_within(count..2 * count, 2 * count);
                after.copy_within(3 * count..4 * count, 0);
                Argument::Output(Output::exact(kind, after).over(before))
            };
            Argument::Table(vec![copied(random), copied(random)])
        };
        let (key_caches, value_caches) = (caches(keys), caches(values));
        let mut row = Row::new(kernel).grid([2, 2, 1]).block([values, 1, 1]);
        row.arguments.extend([key_caches, value_caches]);
        row.input(&Data::new(I64, [1., 2., 3., 0.]))
            .ints(&[keys, values])
    })
    .collect()
}

/// update_kvscales.cu.
pub fn scales(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in FLOATS {
        for (count, before) in [(1, 0.), (1300, 0.), (700, 1.5)] {
            let key = Data::random(kind, count, -9., 9., random);
            let value = Data::random(kind, count, -400., 400., random);
            let scale = |x: &Data| {
                Output::exact(F32, [cache::scale(&x.values(), before)])
                    .within(0., 2e-7)
                    .over(Data::new(F32, [before]))
            };
            let blocks = count.div_ceil(512usize);
            rows.push(
                Row::new("compute_and_update_scales_kernel")
                    .template(&[name])
                    .grid([blocks, 1, 1])
                    .block([512, 1, 1])
                    .shared(2 * 512 * 4)
                    .input(&key)
                    .input(&value)
                    .scalar(I64, count as f64)
                    .output(scale(&key))
                    .output(scale(&value)),
            );
        }
    }
    rows
}
