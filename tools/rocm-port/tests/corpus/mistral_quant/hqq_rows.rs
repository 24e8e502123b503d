//! Launches of hqq.cu and hqq_bitpack.cu: numbers of several rows in one byte or word, the first in the highest bits.

use super::{bits, KINDS};
use crate::data::{Data, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Bits, numbers in a word, and the kernel that unpacks them.
const FORMATS: [(usize, usize, &str); 5] = [
    (8, 1, "dequantize_8bit_u8_kernel"),
    (4, 2, "dequantize_4bit_u8_kernel"),
    (2, 4, "dequantize_2bit_u8_kernel"),
    (1, 8, "dequantize_1bit_u8_kernel"),
    (3, 10, "dequantize_3bit_32_kernel"),
];

/// Rows of `rows * count` packed into words of `rows`.
fn packed(numbers: &[u32], bits: usize, count: usize) -> Vec<u32> {
    let size = numbers.len() / count;
    (0..size)
        .map(|i| {
            (0..count).fold(0, |word, part| {
                word | numbers[part * size + i] << ((count - 1 - part) * bits)
            })
        })
        .collect()
}

fn data(words: &[u32], count: usize) -> Data {
    let kind = if count == 10 { I32 } else { U8 };
    Data::new(kind, words.iter().map(|&word| f64::from(word)))
}

/// hqq.cu.
pub fn dequantize(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name, _) in KINDS {
        for (bits, count, kernel) in FORMATS {
            let (height, width) = (7, 45);
            let numbers = bits::random(bits, height * width * count, random);
            let scale = Data::random(kind, width, 0.01, 1., random);
            let zero = Data::random(kind, width, 0., 2., random);
            let (s, z) = (scale.values(), zero.values());
            // Each of the two steps is rounded to the type.
            let expected = numbers
                .iter()
                .enumerate()
                .map(|(i, &q)| kind.rounded(f64::from(q) - z[i % width]) * s[i % width]);
            rows.push(
                Row::new(kernel)
                    .template(&[name])
                    .grid([(height * width).div_ceil(256), 1, 1])
                    .block([256, 1, 1])
                    .input(&data(&packed(&numbers, bits, count), count))
                    .input(&scale)
                    .input(&zero)
                    .output(Output::exact(kind, expected))
                    .ints(&[height, width]),
            );
        }
    }
    rows
}

/// hqq_bitpack.cu.
pub fn pack(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (bits, count, _) in FORMATS {
        let (height, width) = (6, 51);
        // More bits than are packed: the rest is cut off.
        let numbers = bits::random(8, height * count * width, random);
        let cut: Vec<u32> = numbers.iter().map(|&q| q & ((1 << bits) - 1)).collect();
        let input = if count == 10 { U32 } else { U8 };
        let input = Data::new(input, numbers.iter().map(|&q| f64::from(q)));
        let words = packed(&cut, bits, count);
        let output = data(&words, count);
        let row = Row::new(format!("pack_{bits}bit_kernel"))
            .grid([words.len().div_ceil(256), 1, 1])
            .block([256, 1, 1])
            .input(&input)
            .output(Output::exact(output.kind, output.values()));
        rows.push(if bits == 8 {
            row.size(words.len())
        } else {
            row.sizes(&[height * count, width])
        });
    }
    rows
}
