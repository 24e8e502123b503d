//! `thrust` inside of a kernel.

use crate::device::{both_waves, Numbers};

const UNIT: &str = include_str!("kernels/thrust.hip");
const N: usize = 12;

/// What the kernel writes for a row.
fn answers(thread: i32, row: &[i32]) -> Vec<i32> {
    let mut out = vec![row.iter().sum::<i32>() + 5, *row.iter().max().unwrap()];
    out.extend((1..=N).map(|n| row[..n].iter().sum::<i32>()));
    out.extend((1..=N).map(|n| *row[..n].iter().min().unwrap()));
    out.extend((0..N).map(|n| 100 + row[..n].iter().sum::<i32>()));
    out.extend(row.iter().map(|x| 2 * x));
    let mut sorted = row.to_vec();
    sorted.sort_by_key(|x| x % 10);
    out.extend(&sorted);
    sorted.sort_unstable();
    let place = |value: &i32| row.iter().position(|x| x == value).unwrap() as i32;
    out.extend([
        place(row.iter().max().unwrap()),
        place(row.iter().min().unwrap()),
    ]);
    out.push(sorted.partition_point(|&x| x < row[3]) as i32);
    out.push(sorted.partition_point(|&x| x <= row[3]) as i32);
    out.push(row.contains(&50) as i32 + 10);
    out.push(row.iter().map(|x| x * x).sum());
    out.extend([9; 3]);
    out.push(2 * (thread + 4) + 1000);
    let equal = row[1] == row[2];
    out.push((row[1] < row[2]) as i32 + if equal { 10 } else { 100 });
    out.push(row[2] * 1000 + row[1]);
    let (x, y) = ((row[1], row[2] + 1), (row[2], row[1]));
    out.push(row[0] * 10_000 + row[2] * 100 + row[2] + 1);
    out.push((x < y) as i32 + if x == y { 10 } else { 100 } + 3000);
    out.extend([3 + 12 + 5, 3 + 4 + 5]);
    out.push((row[0] > 50) as i32 + 10 * (row[0] != row[1]) as i32);
    out.push(row[5]);
    out
}

#[test]
fn rows_of_a_thread() {
    const THREADS: usize = 70;
    let mut numbers = Numbers::new(12);
    let input: Vec<i32> = (0..THREADS * N)
        .map(|_| numbers.below(100) as i32)
        .collect();
    let wanted: Vec<Vec<i32>> = (0..)
        .zip(input.chunks(N))
        .map(|(i, row)| answers(i, row))
        .collect();
    both_waves("thrust.hip", UNIT, |device| {
        let count = wanted[0].len();
        let got: Vec<i32> =
            device.block("rows", [THREADS as u32, 1, 1], &[&input], count * THREADS);
        for (thread, (got, wanted)) in got.chunks(count).zip(&wanted).enumerate() {
            assert_eq!(got, wanted, "thread {thread}");
        }
    });
}
