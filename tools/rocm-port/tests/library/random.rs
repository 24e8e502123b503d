//! cuRAND's device functions.

use crate::device::{both_waves, Numbers};
use crate::generators::{philox, Xorwow, PHILOX_VECTORS};
use std::f64::consts::TAU;

const UNIT: &str = include_str!("kernels/random.hip");

#[test]
fn philox_gives_the_known_answers() {
    let vectors = PHILOX_VECTORS.iter();
    let input: Vec<u32> = vectors
        .clone()
        .flat_map(|(counter, key, _)| [&counter[..], key].concat())
        .collect();
    let wanted: Vec<u32> = vectors.flat_map(|(_, _, result)| *result).collect();
    both_waves("random.hip", UNIT, |device| {
        let got: Vec<u32> = device.block("philox_blocks", [3, 1, 1], &[&input], 12);
        assert_eq!(got, wanted);
    });
}

#[test]
fn words_of_every_subsequence_and_offset() {
    let mut numbers = Numbers::new(8);
    let xorwow = Xorwow::new();
    // Seed, subsequence, offset, and how far it skips. An offset beyond a subsequence of Philox goes on in the next one.
    let mut philox_starts = vec![
        [0, 0, 0, 0],
        [7, u64::MAX, u64::MAX, 5],
        [7, 3, u64::MAX - 1, u64::MAX],
    ];
    let mut xorwow_starts: Vec<[u64; 4]> = (0..10).map(|n| [0, n, 0, 0]).collect();
    for _ in 0..20 {
        let [seed, subsequence, offset] = [0; 3].map(|_| numbers.bits());
        philox_starts.push([seed, subsequence, offset, numbers.below(9)]);
        xorwow_starts.push([seed, subsequence % 40, offset % 1000, numbers.below(50)]);
    }
    // The first uniform numbers of the seed 0 as examples of cuRAND's default generator print them: one of each
    // subsequence.
    let known = [
        "0.7402", "0.9210", "0.0390", "0.9690", "0.9251", "0.4464", "0.6673", "0.1099", "0.4702",
        "0.5132",
    ];
    both_waves("random.hip", UNIT, |device| {
        let words = |kernel: &str, starts: &[[u64; 4]]| -> Vec<u32> {
            let threads = [starts.len() as u32, 1, 1];
            device.block(kernel, threads, &[&starts.concat()], 11 * starts.len())
        };
        let got = words("philox_words", &philox_starts);
        for (got, &[seed, subsequence, offset, skip]) in got.chunks(11).zip(&philox_starts) {
            let wanted = philox(seed, subsequence, offset as u128 + skip as u128).take(11);
            assert_eq!(
                got,
                wanted.collect::<Vec<u32>>(),
                "{seed} {subsequence} {offset} {skip}"
            );
        }
        let got = words("xorwow_words", &xorwow_starts);
        for (got, &[seed, subsequence, offset, skip]) in got.chunks(11).zip(&xorwow_starts) {
            let wanted = xorwow.words(seed, subsequence, offset + skip).take(11);
            assert_eq!(
                got,
                wanted.collect::<Vec<u32>>(),
                "{seed} {subsequence} {offset} {skip}"
            );
        }
        for (words, known) in got.chunks(11).zip(known) {
            let first = words[0] as f64 / 4_294_967_296.0;
            assert_eq!(format!("{first:.4}"), known);
        }
    });
}

fn unit(x: u32) -> f64 {
    (x as f32 * 2f32.powi(-32) + 2f32.powi(-33)) as f64
}

fn unit_of_two(x: u32, y: u32) -> f64 {
    (x as u64 ^ ((y as u64) << 21)) as f64 * 2f64.powi(-53) + 2f64.powi(-54)
}

fn box_muller(radius: f64, angle: f64) -> [f64; 2] {
    let radius = (-2.0 * radius.ln()).sqrt();
    let (sine, cosine) = (angle * TAU).sin_cos();
    [sine * radius, cosine * radius]
}

/// A number, and whether all of its bits are told.
type Wanted = (f64, bool);

/// What `numbers` of the unit writes; `two` is whether a uniform double takes two words.
fn numbers(word: &mut dyn FnMut() -> u32, two: bool) -> Vec<Wanted> {
    let mut out = vec![(unit(word()), true), (unit(word()), true)];
    for _ in 0..2 {
        let x = word();
        let of_one = x as f64 * 2f64.powi(-32) + 2f64.powi(-32);
        out.push((if two { unit_of_two(x, word()) } else { of_one }, true));
    }
    let [first, second, third] = [0; 3].map(|_| box_muller(unit(word()), unit(word())));
    // A pair is used up by two calls, with a call for another pair between them.
    let normals = [first[0], first[1], second[0], third[0], third[1], second[1]];
    out.extend(normals.map(|x| (x, false)));
    let four = [0; 4].map(|_| word());
    let doubles = box_muller(unit_of_two(four[0], four[1]), unit_of_two(four[2], four[3]));
    out.extend(doubles.map(|x| (x, false)));
    let logarithms = box_muller(unit(word()), unit(word()));
    out.extend(logarithms.map(|x| ((0.5 + 0.25 * x).exp(), false)));
    out
}

fn philox_numbers(word: &mut dyn FnMut() -> u32) -> Vec<Wanted> {
    let mut out = numbers(word, false);
    out.extend([0; 4].map(|_| (unit(word()), true)));
    out.extend([0; 2].map(|_| (unit_of_two(word(), word()), true)));
    let mut normals = || {
        [0; 2]
            .map(|_| box_muller(unit(word()), unit(word())))
            .concat()
    };
    out.extend(normals().into_iter().map(|x| (x, false)));
    out.extend(
        normals()
            .into_iter()
            .map(|x| ((2.0 * x - 1.0).exp(), false)),
    );
    out
}

fn compare(got: &[f64], wanted: &[Wanted], what: &str) {
    assert_eq!(got.len(), wanted.len());
    for (i, (got, &(wanted, exact))) in got.iter().zip(wanted).enumerate() {
        // A radius near 0 has the rounding of a logarithm near 0, and an exponential what its argument has.
        let near = (got - wanted).abs() <= 2e-5 * wanted.abs().max(1.0);
        let right = if exact { *got == wanted } else { near };
        assert!(right, "{what}, number {i}: {got}, not {wanted}");
    }
}

#[test]
fn distributions() {
    let starts: Vec<[u64; 4]> = (0..48).map(|i| [i * 77, i, i % 5, 0]).collect();
    let flat = starts.concat();
    let xorwow = Xorwow::new();
    both_waves("random.hip", UNIT, |device| {
        let got: Vec<f64> = device.block("philox_numbers", [48, 1, 1], &[&flat], 48 * 28);
        for (got, &[seed, subsequence, offset, _]) in got.chunks(28).zip(&starts) {
            let mut words = philox(seed, subsequence, offset as u128);
            let wanted = philox_numbers(&mut || words.next().unwrap());
            compare(got, &wanted, "Philox");
        }
        let got: Vec<f64> = device.block("xorwow_numbers", [48, 1, 1], &[&flat], 48 * 14);
        for (got, &[seed, subsequence, offset, _]) in got.chunks(14).zip(&starts) {
            let mut words = xorwow.words(seed, subsequence, offset);
            let wanted = numbers(&mut || words.next().unwrap(), true);
            compare(got, &wanted, "XORWOW");
        }
    });
}

#[test]
fn poisson_numbers_have_their_mean_and_variance() {
    let means = [0.3, 20.0, 100.0, 5000.0];
    both_waves("random.hip", UNIT, |device| {
        const COUNT: usize = 64 * 256;
        let got: Vec<u32> = device.block("poisson", [64, 1, 1], &[&means[..]], 4 * COUNT);
        for (&mean, numbers) in means.iter().zip(got.chunks(COUNT)) {
            let count = COUNT as f64;
            let average = numbers.iter().map(|&x| x as f64).sum::<f64>() / count;
            let squares = numbers.iter().map(|&x| (x as f64 - average).powi(2));
            let variance = squares.sum::<f64>() / count;
            // Five standard deviations of the average, and of the variance.
            let close = (average - mean).abs() < 5.0 * (mean / count).sqrt();
            assert!(close, "mean {mean}: {average}");
            let spread = ((mean + 2.0 * mean * mean) / count).sqrt();
            let close = (variance - mean).abs() < 5.0 * spread;
            assert!(close, "mean {mean}: variance {variance}");
        }
    });
}
