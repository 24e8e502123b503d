//! `cub::BlockReduce` and `cub::BlockScan`.

use crate::device::{both_waves, Loaded, Numbers};
use half::f16;
use std::fmt::Debug;

const UNIT: &str = include_str!("kernels/reduce.hip");

/// As the device's: x -> factor x + offset, modulo 2^32.
type Affine = [u32; 2];

fn then(a: Affine, b: Affine) -> Affine {
    let offset = b[0].wrapping_mul(a[1]).wrapping_add(b[1]);
    [a[0].wrapping_mul(b[0]), offset]
}

type Wide = [u16; 3];

/// The same as the kernel, one element after the other.
fn expected<T: Copy>(
    input: &[T],
    threads: usize,
    items: usize,
    valid: usize,
    op: impl Fn(T, T) -> T,
) -> Vec<T> {
    let fold = |values: &[T]| values[1..].iter().fold(values[0], |a, &b| op(a, b));
    let initial = input[0];
    let inclusive = |values: &[T]| {
        let ends = 1..=values.len();
        ends.map(|n| fold(&values[..n])).collect::<Vec<T>>()
    };
    let exclusive = |first: T, values: &[T]| {
        let mut before = first;
        let mut out = Vec::with_capacity(values.len());
        for &value in values {
            out.push(before);
            before = op(before, value);
        }
        out
    };
    let mut running = initial;
    let mut out = Vec::new();
    for tile in input.chunks(threads * items) {
        let firsts: Vec<T> = tile.iter().copied().step_by(items).collect();
        out.extend([fold(tile), fold(&firsts[..valid]), fold(&firsts)]);
        out.extend(inclusive(&firsts));
        out.extend(exclusive(initial, &firsts));
        out.extend(exclusive(running, &firsts));
        running = op(running, fold(&firsts));
        out.extend(inclusive(tile));
        out.extend(exclusive(initial, tile));
    }
    out
}

fn check<T: Copy + Default + PartialEq + Debug>(
    device: &Loaded,
    kernel: &str,
    block: [u32; 3],
    items: usize,
    make: impl Fn(&mut Numbers) -> T,
    op: impl Fn(T, T) -> T + Copy,
) {
    let threads = block.iter().product::<u32>() as usize;
    let mut numbers = Numbers::new(threads as u64);
    let count = 2 * threads * items;
    let input: Vec<T> = (0..count).map(|_| make(&mut numbers)).collect();
    for valid in [1, threads / 2 + 1, threads - 1, threads] {
        let wanted = expected(&input, threads, items, valid, op);
        let got: Vec<T> = device.block_with(kernel, block, &input, &[valid as i32], wanted.len());
        for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            let arch = device.arch;
            assert_eq!(got, wanted, "{arch}: {kernel}, {valid} valid, element {i}");
        }
    }
}

#[test]
fn blocks_of_any_shape_reduce_and_scan_in_order() {
    both_waves("reduce.hip", UNIT, |device| {
        let affine = |numbers: &mut Numbers| [numbers.bits() as u32 | 1, numbers.bits() as u32];
        check(device, "affine_96", [96, 1, 1], 3, affine, then);
        check(device, "affine_80", [80, 1, 1], 1, affine, then);
        check(device, "affine_8x6x3", [8, 6, 3], 2, affine, then);
        check(device, "affine_7", [7, 1, 1], 2, affine, then);
        let whole = |numbers: &mut Numbers| numbers.between(-99, 99) as f32;
        check(device, "float_1024", [1024, 1, 1], 1, whole, |a, b| a + b);
        let half = |numbers: &mut Numbers| f16::from_f64(numbers.between(-999, 999) as f64 / 8.0);
        let larger = |a: f16, b: f16| if a < b { b } else { a };
        check(device, "half_64", [64, 1, 1], 2, half, larger);
        let wide = |numbers: &mut Numbers| [0; 3].map(|_| numbers.bits() as u16);
        let add = |a: Wide, b: Wide| [0, 1, 2].map(|i| a[i].wrapping_add(b[i]));
        check(device, "wide_128", [128, 1, 1], 1, wide, add);
    });
}

#[test]
fn sums_with_storage_of_their_own() {
    both_waves("reduce.hip", UNIT, |device| {
        let mut numbers = Numbers::new(50);
        let input: Vec<i32> = (0..50)
            .map(|_| numbers.between(-1000, 1000) as i32)
            .collect();
        let got: Vec<i32> = device.block("sums_50", [50, 1, 1], &[&input], 152);
        let sum = |n: usize| input[..n].iter().sum::<i32>();
        assert_eq!(got[..2], [sum(50), sum(33)]);
        for i in 0..50 {
            let wanted = [sum(i + 1), sum(i), sum(50)];
            assert_eq!([got[2 + i], got[52 + i], got[102 + i]], wanted);
        }
    });
}
