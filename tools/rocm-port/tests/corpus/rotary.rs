//! candle-rotary: rotary embedding of queries and keys in place.

use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

/// Launches of rotary.cu: fewer threads than elements, rows that are wider than what is rotated, and tokens that do
/// not follow each other.
pub fn rotary(random: &mut Random) -> Vec<Row> {
    let (tokens, heads, keys, size, half) = (3, 5, 2, 16, 6);
    // Elements from one token to the next.
    let (query_stride, key_stride) = (heads * size + 7, keys * size);
    let mut rows = Vec::new();
    for (kind, word) in [(F16, "half"), (BF16, "__nv_bfloat16"), (F32, "float")] {
        for neox in [true, false] {
            let mut table = || Data::random(kind, tokens * half, -1., 1., random);
            let (cos, sin) = (table(), table());
            let query = Data::random(kind, tokens * query_stride, -2., 2., random);
            let key = Data::random(kind, tokens * key_stride, -2., 2., random);
            let turned = |data: &Data, heads: usize, stride: usize| {
                let (mut values, cos, sin) = (data.values(), cos.values(), sin.values());
                for (token, head) in (0..tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
                    for i in 0..half {
                        let (x, y) = if neox {
                            (i, half + i)
                        } else {
                            (2 * i, 2 * i + 1)
                        };
                        let at = token * stride + head * size;
                        let (c, s) = (cos[token * half + i], sin[token * half + i]);
                        let (a, b) = (values[at + x], values[at + y]);
                        (values[at + x], values[at + y]) = (a * c - b * s, b * c + a * s);
                    }
                }
                output(kind, values, data)
            };
            rows.push(
                Row::new("vllm::rotary_embedding_kernel")
                    .template(&[word, if neox { "true" } else { "false" }])
                    .grid([tokens, 1, 1])
                    .block([heads * half, 1, 1])
                    .output(turned(&query, heads, query_stride))
                    .output(turned(&key, keys, key_stride))
                    .input(&cos)
                    .input(&sin)
                    .ints(&[half])
                    .scalar(I64, query_stride as f64)
                    .scalar(I64, key_stride as f64)
                    .ints(&[heads, keys, size])
                    .about(if neox { "halves" } else { "neighbours" }),
            );
        }
    }
    rows
}

/// Two products and their difference, each rounded.
fn output(kind: Type, values: Vec<f64>, before: &Data) -> Output {
    Output::exact(kind, values)
        .within(4. * kind.step(), 2. * kind.step())
        .over(before.clone())
}
