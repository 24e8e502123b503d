//! What instructions make of known values, compared with what they promise.

use super::admit::Finding;
use super::bench::{bytes_of, decode, difference, encode, Numbers};
use crate::ops::instructions::{
    products, products_of_bytes, Words, BLOCK, MATRIX, OPERAND, THREADS,
};
use crate::{Buffer, DType, Device, Result};
use half::{bf16, f16};

/// What is wrong with one of them.
pub(super) fn check(device: &Device, name: &str) -> Finding {
    match name {
        "matrix" => matrices(device),
        "lanes" => words(device, Words::Lanes, lanes),
        "lds" => words(device, Words::Lds, lds),
        "bytes" => words(device, Words::Bytes, bytes),
        "dot" => words(device, Words::Dot, dot),
        "loads" => words(device, Words::Loads, loads),
        _ => words(device, Words::Waves, waves),
    }
}

/// The words that threads have, and a thread's place among them.
struct Threads<'a> {
    values: &'a [u32],
    wave: usize,
}

impl Threads<'_> {
    /// What another lane of the wave has.
    fn lane(&self, i: usize, lane: usize) -> u32 {
        self.values[i / self.wave * self.wave + lane % self.wave]
    }

    fn of_wave(&self, i: usize) -> &[u32] {
        let first = i / self.wave * self.wave;
        &self.values[first..first + self.wave]
    }

    fn of_block(&self, i: usize) -> &[u32] {
        let first = i / BLOCK * BLOCK;
        &self.values[first..first + BLOCK]
    }
}

/// Whether a result is right: `want` gives those of each thread, by the number of the result.
type Want = fn(&Threads, usize) -> Vec<Expected>;

/// What a word should be.
enum Expected {
    Word(u32),
    /// Halves that are nearest to these numbers.
    Near(DType, [f32; 2]),
}

impl Expected {
    fn holds(&self, got: u32) -> bool {
        let (dtype, numbers) = match self {
            Expected::Word(word) => return got == *word,
            Expected::Near(dtype, numbers) => (dtype, numbers),
        };
        let halves = [got as u16, (got >> 16) as u16];
        halves.iter().zip(numbers).all(|(&half, &x)| {
            let (y, step) = match dtype {
                DType::F16 => (f16::from_bits(half).to_f32(), 1.0 / 2048.0),
                _ => (bf16::from_bits(half).to_f32(), 1.0 / 256.0),
            };
            // Halves between two may go either way, and the smallest numbers of f16 toward zero.
            (y - x).abs() <= x.abs() * step + 6.0e-5
        })
    }
}

fn words(device: &Device, kernel: Words, want: Want) -> Finding {
    let mut numbers = Numbers::new(THREADS as u64);
    let values: Vec<u32> = (0..THREADS + 4).map(|_| numbers.bits() as u32).collect();
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let out = kernel.run(device, &device.upload(&raw)?)?;
    let got: Vec<u32> = bytes_of(device, &out)?
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let threads = Threads {
        values: &values,
        wave: device.properties().wave_size as usize,
    };
    for i in 0..THREADS {
        for (result, expected) in want(&threads, i).iter().enumerate() {
            let word = got[result * THREADS + i];
            if !expected.holds(word) {
                return Ok(Some(format!(
                    "result {result} of thread {i} is {word:#010x}"
                )));
            }
        }
    }
    Ok(None)
}

fn lanes(t: &Threads, i: usize) -> Vec<Expected> {
    let lane = i % t.wave;
    let masks = [1, 2, 7, 8, 16, if t.wave == 64 { 32 } else { 0 }, 16];
    let sum = t
        .of_wave(i)
        .iter()
        .fold(0u32, |sum, v| sum.wrapping_add(*v));
    let across = masks.iter().map(|mask| t.lane(i, lane ^ mask));
    across.chain([sum]).map(Expected::Word).collect()
}

fn waves(t: &Threads, i: usize) -> Vec<Expected> {
    let lane = i % t.wave;
    let wave = t.of_wave(i);
    let votes = (wave.iter().enumerate()).fold(0u64, |all, (l, v)| all | u64::from(v & 1) << l);
    let block = t.of_block(i);
    let sum = block.iter().fold(0u32, |sum, v| sum.wrapping_add(*v));
    [
        t.lane(i, lane * 5 + 3),
        votes as u32,
        (votes >> 32) as u32,
        wave[0],
        wave.iter().any(|v| v % 64 == 7).into(),
        sum,
        block[(i % BLOCK * 7 + 1) % BLOCK],
        (BLOCK * (BLOCK + 1) / 2) as u32,
    ]
    .map(Expected::Word)
    .into()
}

fn lds(t: &Threads, i: usize) -> Vec<Expected> {
    let mut words = t.of_wave(i).to_vec();
    for round in 0..4 {
        let others = words.clone();
        for (lane, word) in words.iter_mut().enumerate() {
            let other = others[(lane * 7 + round + 1) % t.wave];
            *word = word.wrapping_mul(3).wrapping_add(other);
        }
    }
    vec![Expected::Word(words[i % t.wave])]
}

fn bytes(t: &Threads, i: usize) -> Vec<Expected> {
    let at = |offset: usize| t.values[(i + offset) % THREADS];
    let (a, b, selector) = (at(0), at(1), at(2) & 0x0707_0707);
    let all = (u64::from(a) << 32 | u64::from(b)).to_le_bytes();
    let picked = selector.to_le_bytes().map(|byte| all[usize::from(byte)]);
    let number = |word: u32| (word & 0xffff) as f32 / 48.0;
    let pair = [number(a), -number(b)];
    vec![
        Expected::Word(u32::from_le_bytes(picked)),
        Expected::Word(a & 0xffff | b << 16),
        Expected::Word(a >> 16 | b & 0xffff_0000),
        Expected::Near(DType::F16, pair),
        Expected::Near(DType::BF16, pair),
    ]
}

fn dot(t: &Threads, i: usize) -> Vec<Expected> {
    let at = |offset: usize| t.values[(i + offset) % THREADS];
    let signed = |word: u32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
    let products = signed(at(0)).into_iter().zip(signed(at(1)));
    let sum: i32 = products.map(|(a, b)| a * b).sum();
    vec![Expected::Word((at(2) >> 8).wrapping_add(sum as u32))]
}

fn loads(t: &Threads, i: usize) -> Vec<Expected> {
    let raw: Vec<u8> = t.values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let words = |at: usize, count: usize| (0..count).map(move |n| at + 4 * n);
    let short = word(i) & 0xffff;
    let all = words(i, 1)
        .chain(words(i, 2))
        .chain(words(i, 4))
        .chain(words(2 * i, 4))
        .chain(words(4 * i, 4));
    let all: Vec<u32> = all.map(word).collect();
    [short].into_iter().chain(all).map(Expected::Word).collect()
}

/// Small integers, whose products and sums are exact in every dtype.
fn operand(device: &Device, dtype: DType, seed: u64) -> Result<(Buffer, Vec<f64>)> {
    let mut numbers = Numbers::new(seed);
    let values: Vec<f64> = (0..OPERAND)
        .map(|_| numbers.below(5) as f64 - 2.0)
        .collect();
    let raw = match dtype {
        DType::U8 => values.iter().map(|v| *v as i8 as u8).collect(),
        _ => encode(dtype, &values),
    };
    Ok((device.upload(&raw)?, values))
}

/// `sum over k of a[row][k] b[column][k]`, for 16 columns.
fn product(a: &[f64], b: &[f64], rows: usize, k: usize) -> Vec<f64> {
    let value = |row: usize, column: usize| -> f64 {
        let (a, b) = (&a[row * k..][..k], &b[column * k..][..k]);
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    };
    (0..rows * 16).map(|i| value(i / 16, i % 16)).collect()
}

fn matrices(device: &Device) -> Finding {
    let Some(matrix) = device.properties().arch.generation().matrix() else {
        return Ok(None);
    };
    let wrong =
        |dtype: &str, what: &str, text: String| Ok(Some(format!("{dtype}, {what}: {text}")));
    for dtype in [DType::F16, DType::BF16] {
        let (a, of_a) = operand(device, dtype, 1)?;
        let (b, of_b) = operand(device, dtype, 2)?;
        let (c, of_c) = operand(device, dtype, 3)?;
        let got = products(device, dtype, [&a, &b, &c])?;
        let got = decode(DType::F32, &bytes_of(device, &got)?);
        let k = got[MATRIX] as usize;
        if !(8..=32).contains(&k) {
            return wrong(dtype.as_str(), "product", format!("an inner size of {k}"));
        }
        let first = product(&of_a, &of_b, 16, k);
        if let Some(text) = difference(&got[..MATRIX], &first, 0.0) {
            return wrong(dtype.as_str(), "product", text);
        }
        // Of mma.sync only the first product is asked for.
        if matrix != crate::Matrix::MmaSync {
            let all = product(&of_a, &of_b, k, k);
            let columns: Vec<f64> = (0..16 * k).map(|i| all[i % k * 16 + i / k]).collect();
            let second = product(&of_c, &columns, 16, k);
            if let Some(text) = difference(&got[MATRIX + 1..][..MATRIX], &second, 0.0) {
                return wrong(dtype.as_str(), "product of a product", text);
            }
        }
        let largest: Vec<f64> = (0..16)
            .map(|column| (0..16).fold(f64::MIN, |most, row| most.max(first[row * 16 + column])))
            .collect();
        if let Some(text) = difference(&got[2 * MATRIX + 1..], &largest, 0.0) {
            return wrong(dtype.as_str(), "largest of a column", text);
        }
    }
    let (a, of_a) = operand(device, DType::U8, 4)?;
    let (b, of_b) = operand(device, DType::U8, 5)?;
    let got = products_of_bytes(device, [&a, &b])?;
    let got = decode(DType::I32, &bytes_of(device, &got)?);
    let k = got[MATRIX] as usize;
    if !(8..=32).contains(&k) {
        return wrong("i8", "product", format!("an inner size of {k}"));
    }
    match difference(&got[..MATRIX], &product(&of_a, &of_b, 16, k), 0.0) {
        Some(text) => wrong("i8", "product", text),
        None => Ok(None),
    }
}
