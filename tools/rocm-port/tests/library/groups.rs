//! `cooperative_groups`, `cuda::pipeline`, `cuda::barrier` and copies.

use crate::device::{both_waves, Numbers};

const UNIT: &str = include_str!("kernels/groups.hip");

/// What a thread of a tile answers, line by line.
fn answers(x: &[i32], i: usize, n: usize) -> Vec<i32> {
    let (first, rank, v) = (i / n * n, i % n, x[i]);
    let tile = &x[first..first + n];
    let bits = |f: &dyn Fn(i32) -> bool| {
        let bits = (0..n).map(|at| (f(tile[at]) as u32) << at);
        bits.sum::<u32>() as i32
    };
    let sum = |to: usize| tile[..to].iter().sum::<i32>();
    let alike = tile.iter().all(|w| w / 4 == v / 4);
    let mut labels = tile.to_vec();
    labels.sort_unstable();
    labels.dedup();
    let members = |f: &dyn Fn(i32) -> bool| {
        let members = (first..first + n).filter(|&at| f(x[at]));
        members.collect::<Vec<usize>>()
    };
    let place = |group: &[usize]| group.iter().position(|&at| at == i).unwrap();
    let same = members(&|w| w == v);
    let half = members(&|w| w % 2 == v % 2);
    let own = place(&half);
    let votes = half.iter().enumerate();
    let votes = votes.map(|(at, &member)| ((x[member] > 1) as u32) << at);
    vec![
        rank as i32,
        (i / n) as i32 * 1001,
        (x.len() / n) as i32 * 1001 + 1_000_000 * n as i32,
        tile[1],
        tile[rank.saturating_sub(1)],
        tile[if rank + 2 < n { rank + 2 } else { rank }],
        tile[rank ^ (n / 2)],
        tile.contains(&3) as i32,
        tile.iter().all(|&w| w < 3) as i32,
        bits(&|w| w == 1),
        bits(&|w| w == v),
        if alike { bits(&|_| true) } else { 0 },
        alike as i32,
        sum(n),
        tile.iter().max().unwrap() * 10 + tile.iter().min().unwrap(),
        sum(rank + 1),
        sum(rank),
        (same.len() + 100 * place(&same) + 10_000 * labels.len()) as i32,
        same.iter().sum::<usize>() as i32,
        *half.last().unwrap() as i32 + 1000 * (v % 2 == 0) as i32,
        half[own.saturating_sub(1)] as i32,
        half[(own + 1).min(half.len() - 1)] as i32,
        votes.sum::<u32>() as i32,
        (i % 4) as i32 + 40,
        tile[0] + 1,
    ]
}

#[test]
fn tiles_and_partitions() {
    both_waves("groups.hip", UNIT, |device| {
        for (kernel, n) in [("tiles_4", 4), ("tiles_16", 16), ("tiles_32", 32)] {
            for threads in [32, 96, 192] {
                let mut numbers = Numbers::new(threads as u64);
                // The first tile agrees on everything.
                let mut value = |i| if i < n { 2 } else { numbers.below(5) as i32 };
                let x: Vec<i32> = (0..threads).map(&mut value).collect();
                let count = answers(&x, 0, n).len() * threads;
                let got: Vec<i32> = device.block(kernel, [threads as u32, 1, 1], &[&x], count);
                for i in 0..threads {
                    let got: Vec<i32> = got.iter().skip(i).step_by(threads).copied().collect();
                    let arch = device.arch;
                    assert_eq!(
                        got,
                        answers(&x, i, n),
                        "{arch}: {kernel}, thread {i} of {threads}"
                    );
                }
            }
        }
    });
}

#[test]
fn threads_that_are_here_together() {
    const THREADS: usize = 160;
    let mut numbers = Numbers::new(6);
    let x: Vec<i32> = (0..THREADS).map(|_| numbers.below(50) as i32).collect();
    both_waves("groups.hip", UNIT, |device| {
        let got: Vec<i32> = device.block("coalesced", [THREADS as u32, 1, 1], &[&x], 4 * THREADS);
        for i in 0..THREADS {
            let warp = i / 32 * 32..i / 32 * 32 + 32;
            let here: Vec<usize> = warp.filter(|&at| x[at] % 3 == 0).collect();
            let (mut first, mut second) = (0, 0);
            let rank = here.iter().position(|&at| at == i);
            if let (true, Some(rank)) = (i / 32 % 2 == 0, rank) {
                first = here.len() as i32 + 100 * rank as i32;
                second = here.iter().map(|&at| x[at]).sum::<i32>() * 100 + rank as i32 + 1;
            }
            let (at, n) = (i as i32, THREADS as i32);
            let got: Vec<i32> = got.iter().skip(i).step_by(THREADS).copied().collect();
            assert_eq!(
                got,
                [first, second, at + 1000 * n, at + 1000 + 10_000 * n],
                "thread {i}"
            );
        }
    });
}

#[test]
fn copies_arrive_before_they_are_read() {
    let mut numbers = Numbers::new(7);
    let x: Vec<i32> = (0..384).map(|_| numbers.bits() as i32).collect();
    both_waves("groups.hip", UNIT, |device| {
        let got: Vec<i32> = device.block("copies", [96, 1, 1], &[&x], 12 * 96);
        for i in 0..96 {
            let other = 95 - i;
            let mut wanted = vec![x[other], x[96 + other], x[other] & 0xffff];
            wanted.extend((0..4).chain(0..4).map(|k| x[96 * k + other]));
            wanted.push(if i < 32 { 3 * (31 - i as i32) } else { 0 });
            let got: Vec<i32> = got.iter().skip(i).step_by(96).copied().collect();
            assert_eq!(got, wanted, "thread {i}");
        }
    });
}
