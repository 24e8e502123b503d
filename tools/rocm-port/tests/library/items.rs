//! `cub`: loads, stores, exchanges, neighbours and histograms of a block.

use crate::device::{both_waves, Loaded, Numbers};
use half::f16;
use std::fmt::Debug;

const UNIT: &str = include_str!("kernels/items.hip");

fn copies<T: Copy + Default + PartialEq + Debug>(
    device: &Loaded,
    kernel: &str,
    block: [u32; 3],
    items: usize,
    of: impl Fn(u8) -> T,
) {
    let tile = block.iter().product::<u32>() as usize * items;
    let mut numbers = Numbers::new(tile as u64);
    let input: Vec<T> = (0..tile)
        .map(|_| of(numbers.below(100) as u8 + 100))
        .collect();
    for valid in [0, 1, tile / 2 + 1, tile - 1, tile] {
        let got: Vec<T> = device.block_with(kernel, block, &input, &[valid as i32], 3 * tile);
        let padded = |with: T| {
            let mut all = input.clone();
            all[valid..].fill(with);
            all
        };
        assert_eq!(got[..tile], padded(of(77)), "{kernel}: {valid} loaded");
        assert_eq!(
            got[tile..2 * tile],
            padded(of(0)),
            "{kernel}: {valid} stored"
        );
        assert_eq!(got[2 * tile..], input, "{kernel}: all");
    }
}

#[test]
fn loads_and_stores_by_every_algorithm() {
    both_waves("items.hip", UNIT, |device| {
        copies(device, "copy_direct", [50, 1, 1], 3, f32::from);
        copies(device, "copy_vectorize", [64, 1, 1], 4, u16::from);
        copies(device, "copy_transpose", [10, 5, 1], 3, f64::from);
        copies(device, "copy_warp_transpose", [64, 1, 1], 8, |x| x);
        copies(device, "copy_timesliced", [32, 3, 1], 5, f16::from);
        copies(device, "copy_striped", [96, 1, 1], 3, i32::from);
    });
}

#[test]
fn loads_and_stores_of_logical_warps() {
    const THREADS: usize = 96;
    fn check<T: Copy + Default + PartialEq + Debug>(
        device: &Loaded,
        kernel: &str,
        tile: usize,
        items: usize,
        of: impl Fn(u8) -> T,
    ) {
        let mut numbers = Numbers::new(tile as u64);
        let count = THREADS * items;
        let input: Vec<T> = (0..count).map(|_| of(numbers.below(200) as u8)).collect();
        for valid in [0, 1, tile / 2 + 1, tile] {
            let block = [THREADS as u32, 1, 1];
            let got: Vec<T> = device.block_with(kernel, block, &input, &[valid as i32], 3 * count);
            for (got, input) in got.chunks(3 * tile).zip(input.chunks(tile)) {
                let padded = |with: T| [&input[..valid], &vec![with; tile - valid]].concat();
                let wanted = [padded(of(77)), padded(of(0)), input.to_vec()].concat();
                assert_eq!(got, wanted, "{kernel}, {valid} valid");
            }
        }
    }
    both_waves("items.hip", UNIT, |device| {
        check(device, "warps_direct", 24, 3, f32::from);
        check(device, "warps_striped", 64, 2, u16::from);
        check(device, "warps_transpose", 80, 5, f64::from);
    });
}

#[test]
fn exchanges_between_arrangements() {
    const THREADS: usize = 64;
    const ITEMS: usize = 3;
    const TILE: usize = THREADS * ITEMS;
    // Where item i of a thread lies, striped over the block and over each warp.
    let striped = |at: usize| at % ITEMS * THREADS + at / ITEMS;
    let warp_striped =
        |at: usize| at / (32 * ITEMS) * 32 * ITEMS + at % ITEMS * 32 + at / ITEMS % 32;
    let mut numbers = Numbers::new(3);
    let mut ranks: Vec<i32> = (0..TILE as i32).collect();
    for i in (1..TILE).rev() {
        ranks.swap(i, numbers.below(i as u64 + 1) as usize);
    }
    // Each item is its own number: where the kind of places changes, what lies at a place is what shows.
    let mut wanted = vec![vec![0; TILE]; 6];
    for at in 0..TILE {
        wanted[0][striped(at)] = at as i32;
        wanted[1][at] = striped(at) as i32;
        wanted[2][warp_striped(at)] = at as i32;
        wanted[3][at] = warp_striped(at) as i32;
        wanted[4][ranks[at] as usize] = at as i32;
    }
    wanted[5] = (0..TILE).map(|at| wanted[4][striped(at)]).collect();
    both_waves("items.hip", UNIT, |device| {
        let got: Vec<i32> = device.block("exchanges", [THREADS as u32, 1, 1], &[&ranks], 8 * TILE);
        let step = |n: usize| &got[n * TILE..(n + 1) * TILE];
        for (n, wanted) in wanted.iter().enumerate() {
            assert_eq!(step(n), wanted, "exchange {n}");
        }
        for at in (0..TILE).filter(|&at| wanted[5][at] % 2 == 0) {
            assert_eq!([step(6)[at], step(7)[at]], [wanted[5][at]; 2]);
        }
    });
}

#[test]
fn neighbours_of_a_block() {
    const THREADS: usize = 80;
    const TILE: usize = 2 * THREADS;
    let mut numbers = Numbers::new(80);
    let input: Vec<i32> = (0..TILE).map(|_| numbers.below(3) as i32).collect();
    let x = &input;
    let before = |at: usize, edge: i32| if at > 0 { x[at - 1] } else { edge };
    let after = |at: usize, edge: i32| if at + 1 < TILE { x[at + 1] } else { edge };
    let line = |f: &dyn Fn(usize) -> i32| (0..TILE).map(f).collect::<Vec<i32>>();
    let (first, last) = (0, TILE - 1);
    let wanted = [
        line(&|i| (i == first || x[i] != x[i - 1]) as i32),
        line(&|i| (before(i, x[0]) != x[i] || i % 10 == 0) as i32),
        line(&|i| (i == last || x[i] != x[i + 1]) as i32),
        line(&|i| (before(i, x[0]) != x[i]) as i32),
        line(&|i| (after(i, x[last]) != x[i]) as i32),
        line(&|i| x[i] - before(i, 0)),
        line(&|i| x[i] - before(i, 1000)),
        line(&|i| x[i] - after(i, 0)),
        line(&|i| x[i] - if i < 101 { before(i, 0) } else { 0 }),
        line(&|i| x[i] - if i + 1 < 101 { x[i + 1] } else { 0 }),
        line(&|i| match (i / 2, i % 2) {
            (thread, 0) if thread < 3 => -1,
            (thread, 0) => x[2 * (thread - 3)],
            (thread, _) => x[2 * ((thread + 5) % THREADS)],
        }),
        line(&|i| before(i, -1)),
        line(&|i| after(i, -1)),
        line(&|i| x.iter().filter(|&&v| v as usize == i % 16).count() as i32),
    ];
    both_waves("items.hip", UNIT, |device| {
        let count = 14 * TILE + 1;
        let got: Vec<i32> = device.block("neighbours", [THREADS as u32, 1, 1], &[x], count);
        for (n, wanted) in wanted.iter().enumerate() {
            assert_eq!(&got[n * TILE..(n + 1) * TILE], wanted, "line {n}");
        }
        assert_eq!(got[14 * TILE], x[last]);
    });
}
