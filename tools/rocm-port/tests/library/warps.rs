//! `cub::WarpReduce`, `cub::WarpScan` and shuffles.

use crate::device::{both_waves, Numbers};
use std::cmp::Reverse;

const UNIT: &str = include_str!("kernels/warps.hip");

type Affine = [u32; 2];

fn then(a: Affine, b: Affine) -> Affine {
    let offset = b[0].wrapping_mul(a[1]).wrapping_add(b[1]);
    [a[0].wrapping_mul(b[0]), offset]
}

fn fold(values: &[Affine]) -> Affine {
    values[1..].iter().fold(values[0], |a, &b| then(a, b))
}

/// The lines that the kernel writes for logical warps of so many lanes; where a result is undefined, ones.
fn expected(input: &[Affine], lanes: usize, valid: usize, flags: &[i32]) -> Vec<Affine> {
    let only = |there: bool, values: &[Affine]| if there { fold(values) } else { [u32::MAX; 2] };
    let mut lines = vec![Vec::new(); 10];
    for (warp, flags) in input.chunks(lanes).zip(flags.chunks(lanes)) {
        for lane in 0..lanes {
            let first = lane == 0;
            let next_head = (lane + 1..lanes)
                .find(|&at| flags[at] != 0)
                .unwrap_or(lanes);
            let tail = (lane..lanes)
                .find(|&at| flags[at] != 0)
                .unwrap_or(lanes - 1);
            let begins = first || flags[lane - 1] != 0;
            let from_initial = [&input[..1], &warp[..lane]].concat();
            let answers = [
                only(first, warp),
                only(first, &warp[..valid.min(lanes)]),
                fold(&warp[..=lane]),
                fold(warp),
                only(!first, &warp[..lane.max(1)]),
                fold(&from_initial),
                fold(warp),
                only(first || flags[lane] != 0, &warp[lane..next_head]),
                only(begins, &warp[lane..=tail]),
                warp[1],
            ];
            lines
                .iter_mut()
                .zip(answers)
                .for_each(|(line, answer)| line.push(answer));
        }
    }
    lines.concat()
}

#[test]
fn logical_warps_of_every_width() {
    both_waves("warps.hip", UNIT, |device| {
        for lanes in [2, 4, 8, 16, 32] {
            let kernel = format!("logical_{lanes}");
            for threads in [32, 96, 128] {
                let mut numbers = Numbers::new((threads * lanes) as u64);
                let input: Vec<Affine> = (0..threads)
                    .map(|_| [numbers.bits() as u32 | 1, numbers.bits() as u32])
                    .collect();
                let flags: Vec<i32> = (0..threads).map(|_| numbers.below(3) as i32 / 2).collect();
                for valid in [1, lanes / 2, lanes] {
                    let with = [&[valid as i32][..], &flags].concat();
                    let wanted = expected(&input, lanes, valid, &flags);
                    let block = [threads as u32, 1, 1];
                    let got: Vec<Affine> =
                        device.block_with(&kernel, block, &input, &with, wanted.len());
                    let lines = got.chunks(threads).zip(wanted.chunks(threads));
                    for (line, (got, wanted)) in lines.enumerate() {
                        let arch = device.arch;
                        assert_eq!(
                            got, wanted,
                            "{arch}: {kernel} of {threads}, {valid} valid, line {line}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn warps_that_do_not_do_the_same() {
    let mut numbers = Numbers::new(4);
    let input: Vec<i32> = (0..256).map(|_| numbers.between(-9, 9) as i32).collect();
    let sum = |values: &[i32]| values.iter().fold(0i32, |a, &b| a.wrapping_add(b));
    let mut values = input.clone();
    for (number, warp) in values.chunks_mut(32).enumerate() {
        for _ in 0..number {
            let sum = sum(warp);
            warp.iter_mut().for_each(|v| *v = sum.wrapping_sub(*v));
        }
    }
    both_waves("warps.hip", UNIT, |device| {
        let got: Vec<i32> = device.block("uneven", [256, 1, 1], &[&input], 257);
        assert_eq!(got[0], sum(&values));
        assert_eq!(got[1..], values);
    });
}

#[test]
fn shuffles_of_any_type() {
    const THREADS: usize = 160;
    let mut numbers = Numbers::new(5);
    let x: Vec<i32> = (0..THREADS).map(|_| numbers.below(200) as i32).collect();
    both_waves("warps.hip", UNIT, |device| {
        let got: Vec<i32> = device.block("shuffles", [THREADS as u32, 1, 1], &[&x], 5 * THREADS);
        for i in 0..THREADS {
            let third = x[i / 16 * 16 + 3];
            let mut warp = i / 32 * 32..i / 32 * 32 + 32;
            let first = warp.start;
            let best = warp
                .by_ref()
                .max_by_key(|&at| (x[at] % 5, Reverse(at)))
                .unwrap();
            let wanted = [
                third | (((third + 6) & 255) << 8),
                x[if i % 8 >= 3 { i - 3 } else { i }],
                x[if i % 8 + 3 <= 7 { i + 3 } else { i }],
                (i % 32 + 100 * (i / 32)) as i32,
                if i == first { best as i32 } else { 0 },
            ];
            let got: Vec<i32> = got.iter().skip(i).step_by(THREADS).copied().collect();
            assert_eq!(got, wanted, "thread {i}");
        }
    });
}
