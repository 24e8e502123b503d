//! `cub`: sorts.

use crate::device::{both_waves, Loaded, Numbers};
use half::{bf16, f16};

const UNIT: &str = include_str!("kernels/sort.hip");

/// Places after a stable sort by `key`.
fn sorted<K: Ord>(count: usize, key: impl Fn(usize) -> K) -> Vec<u32> {
    let mut places: Vec<u32> = (0..count as u32).collect();
    places.sort_by_key(|&at| key(at as usize));
    places
}

/// Keys whose order is that of `ordered`, unsigned numbers of so many bits.
fn radix<T: Copy>(
    device: &Loaded,
    kernel: &str,
    block: [u32; 3],
    keys: &[T],
    bits: u32,
    ordered: impl Fn(T) -> u64,
) {
    let tile = keys.len();
    let got: Vec<u32> = device.block(kernel, block, &[keys], 7 * tile);
    let all = u64::MAX >> (64 - bits);
    let up = sorted(tile, |at| ordered(keys[at]));
    let down = sorted(tile, |at| !ordered(keys[at]) & all);
    let part = sorted(tile, |at| (ordered(keys[at]) >> 3) & 31);
    let same: Vec<u32> = (0..tile as u32).collect();
    let wanted = [&up, &down, &up, &down, &part, &same, &vec![1; tile]];
    for (n, wanted) in wanted.into_iter().enumerate() {
        let got = &got[n * tile..(n + 1) * tile];
        assert_eq!(got, wanted, "{}: {kernel}, sort {n}", device.arch);
    }
}

/// The bits of a float as a number of the same order; -0 is 0.
fn float_order(bits: u64, width: u32) -> u64 {
    let sign = 1 << (width - 1);
    let bits = if bits == sign { 0 } else { bits };
    if bits & sign != 0 {
        !bits & (u64::MAX >> (64 - width))
    } else {
        bits | sign
    }
}

#[test]
fn radix_sorts_are_stable_for_every_type() {
    let mut numbers = Numbers::new(9);
    let mut make = |count: usize| {
        let numbers = (0..count).map(|_| numbers.between(-60, 60));
        numbers.collect::<Vec<i64>>()
    };
    let special = |x: i64| match x {
        0 => -0.0,
        1 => 0.0,
        2 => f64::INFINITY,
        3 => f64::NEG_INFINITY,
        4 => 1e-7,
        _ => x as f64 / 3.0,
    };
    let i32s: Vec<i32> = make(288).iter().map(|&x| x as i32 * 30_000_000).collect();
    let u8s: Vec<u8> = make(100).iter().map(|&x| (x * 2 + 128) as u8).collect();
    let i64s: Vec<i64> = make(128).iter().map(|&x| (x << 57) | 5).collect();
    let f32s: Vec<f32> = make(1024).iter().map(|&x| special(x) as f32).collect();
    let f64s: Vec<f64> = make(32).iter().map(|&x| special(x)).collect();
    let f16s: Vec<f16> = make(128)
        .iter()
        .map(|&x| f16::from_f64(special(x)))
        .collect();
    let bf16s: Vec<bf16> = make(128)
        .iter()
        .map(|&x| bf16::from_f64(special(x)))
        .collect();
    both_waves("sort.hip", UNIT, |device| {
        radix(device, "radix_i32", [96, 1, 1], &i32s, 32, |x| {
            (x as u32 ^ (1 << 31)) as u64
        });
        radix(device, "radix_u8", [50, 1, 1], &u8s, 8, |x| x as u64);
        radix(device, "radix_i64", [16, 4, 1], &i64s, 64, |x| {
            x as u64 ^ (1 << 63)
        });
        radix(device, "radix_f32", [256, 1, 1], &f32s, 32, |x| {
            float_order(x.to_bits() as u64, 32)
        });
        radix(device, "radix_f64", [32, 1, 1], &f64s, 64, |x| {
            float_order(x.to_bits(), 64)
        });
        radix(device, "radix_f16", [64, 1, 1], &f16s, 16, |x| {
            float_order(x.to_bits() as u64, 16)
        });
        radix(device, "radix_bf16", [64, 1, 1], &bf16s, 16, |x| {
            float_order(x.to_bits() as u64, 16)
        });
    });
}

#[test]
fn merge_sorts_of_blocks_and_warps() {
    let mut numbers = Numbers::new(10);
    let keys: Vec<i32> = (0..288).map(|_| numbers.below(1000) as i32).collect();
    both_waves("sort.hip", UNIT, |device| {
        let input = &keys[..240];
        let got: Vec<u32> = device.block("merge", [80, 1, 1], &[input], 480);
        assert_eq!(got[..240], sorted(240, |at| -(input[at] % 10)));
        // Of the first 100; the others are all like the last one.
        let first = |at: usize| if at < 100 { -(input[at] % 10) } else { 0 };
        assert_eq!(got[240..], sorted(240, first));
        let got: Vec<i32> = device.block("warps", [96, 1, 1], &[&keys], 288);
        for (got, input) in got.chunks(24).zip(keys.chunks(24)) {
            let mut wanted = input.to_vec();
            wanted.sort_unstable();
            assert_eq!(got, wanted);
        }
    });
}
