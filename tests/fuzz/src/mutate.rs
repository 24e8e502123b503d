//! Damage to bytes, to text and to trees of JSON.

use crate::Random;
use serde_json::{json, Map, Value as Json};

/// Numbers near every limit.
const EXTREMES: [u64; 14] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];
/// Longest damaged input.
const MAX_BYTES: usize = 1 << 20;
/// Depth of the nested values that are put in.
const DEEP: usize = 200;

/// Damages bytes in one to six places, below `end` where what lies behind means little.
pub fn bytes(input: &mut Vec<u8>, end: usize, random: &mut Random) {
    for _ in 0..=random.below(6) {
        let end = end.min(input.len());
        let at = random.below(end);
        match random.below(9) {
            _ if input.is_empty() => input.push(random.bits() as u8),
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.bits() as u8,
            2 | 3 => {
                let width = *random.pick(&[1, 2, 4, 8]);
                let number = random.pick(&EXTREMES).to_le_bytes();
                let width = width.min(input.len() - at);
                input[at..at + width].copy_from_slice(&number[..width]);
                if random.one_in(4) {
                    input[at..at + width].reverse();
                }
            }
            4 => input.truncate(random.below(input.len() + 1)),
            5 => {
                let length = random.size().min(input.len() - at);
                drop(input.drain(at..at + length));
            }
            6 => {
                let piece: Vec<u8> = (0..random.size()).map(|_| random.bits() as u8).collect();
                drop(input.splice(at..at, piece));
            }
            7 => {
                let length = random.size().min(input.len() - at);
                let piece = input[at..at + length].to_vec();
                let to = random.below(input.len());
                drop(input.splice(to..to, piece));
            }
            _ => {
                let length = random.size().min(input.len() - at);
                let piece = input[at..at + length].to_vec();
                let times = random.size().min(MAX_BYTES / length.max(1));
                drop(input.splice(at..at, piece.repeat(times)));
            }
        }
        input.truncate(MAX_BYTES);
    }
}

/// Damages text: characters and pieces go, come twice or many times, come from a list of words that mean something
/// there, or from another text.
pub fn text(input: &str, words: &[&str], other: &str, random: &mut Random) -> String {
    let mut input: Vec<char> = input.chars().collect();
    let other: Vec<char> = other.chars().collect();
    for _ in 0..=random.below(5) {
        let at = random.below(input.len() + 1);
        let length = random.size().min(input.len() - at);
        match random.below(8) {
            0 => drop(input.drain(at..at + length)),
            1 | 2 => {
                let word = random.pick(words);
                let times = if random.one_in(4) { random.size() } else { 1 };
                drop(input.splice(at..at, word.repeat(times).chars()));
            }
            3 => {
                let word: Vec<char> = random.pick(words).chars().collect();
                drop(input.splice(at..at + length.min(8), word));
            }
            4 => {
                let piece = input[at..at + length.min(64)].to_vec();
                drop(input.splice(at..at, piece.repeat(random.size())));
            }
            5 => {
                let from = random.below(other.len() + 1);
                let length = random.size().min(other.len() - from);
                drop(input.splice(at..at, other[from..from + length].to_vec()));
            }
            6 => {
                let c = char::from_u32(random.bits() as u32 & 0x1f_ffff).unwrap_or('\u{fffd}');
                input.insert(at, c);
            }
            _ => {
                let c = *random.pick(&[
                    '\0', '\n', '"', '\\', '{', '}', '(', '[', '%', '\u{1b}', '9',
                ]);
                input.insert(at, c);
            }
        }
        input.truncate(MAX_BYTES / 4);
    }
    input.into_iter().collect()
}

/// Damages a tree of JSON in one to four places.
pub fn json(tree: &mut Json, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let copy = pick(tree, random).clone();
        let place = pick_mut(tree, random);
        match (random.below(8), place) {
            (0 | 1, place) => *place = value(random),
            (2, place) => *place = copy,
            (3, Json::Object(map)) => {
                let key = key_of(map, random);
                map.remove(&key);
            }
            (4, Json::Object(map)) => {
                let key = key_of(map, random);
                if let Some(value) = map.remove(&key) {
                    let other = key_of(map, random);
                    let name = if random.one_in(2) {
                        other
                    } else {
                        string(random)
                    };
                    map.insert(name, value);
                }
            }
            (5, Json::Array(list)) if !list.is_empty() => {
                let at = random.below(list.len());
                drop(list.remove(at));
            }
            (5 | 6, Json::Array(list)) if !list.is_empty() => {
                let item = random.pick(list).clone();
                let times = random.size().min(2000);
                list.extend(std::iter::repeat_n(item, times));
            }
            (5 | 6, Json::Number(number)) => {
                let value = number.as_f64().unwrap_or_default();
                let changed = [
                    -value,
                    value + 1.0,
                    value - 1.0,
                    value * 1e6,
                    value / 3.0,
                    value + 0.5,
                ];
                set_number(number, *random.pick(&changed));
            }
            (5 | 6, Json::String(text)) => *text = string(random),
            (_, place) => *place = value(random),
        }
    }
}

fn set_number(number: &mut serde_json::Number, value: f64) {
    if let Some(new) = serde_json::Number::from_f64(value) {
        // Whole numbers are written as such, as people write them.
        *number = match value.fract() == 0.0 && value.abs() < 9e15 {
            true => (value as i64).into(),
            false => new,
        };
    }
}

/// A value that fits hardly anywhere.
fn value(random: &mut Random) -> Json {
    let nested = |open: fn(Json) -> Json| (0..DEEP).fold(json!(1), |inner, _| open(inner));
    match random.below(16) {
        0 => Json::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(random.pick(&EXTREMES)),
        5 => json!(1e308),
        6 => json!(-1.5),
        7 => json!(1e-320),
        8 => json!([]),
        9 => json!({}),
        10 => nested(|inner| json!([inner])),
        11 => nested(|inner| json!({ "a": inner })),
        12 => json!(random.bits() as i32),
        13 => json!(i64::MIN),
        _ => Json::String(string(random)),
    }
}

fn string(random: &mut Random) -> String {
    let words = [
        "",
        "0",
        "-1",
        "a",
        "é\u{301}",
        "\0",
        "\u{1b}[31m",
        "\n",
        "../x",
        "/",
        "\u{feff}",
        "#",
        "NaN",
        "🙂",
        "<|im_end|>",
        "\u{202e}",
        "x\u{0}y",
        "$ref",
        "__proto__",
    ];
    let word = *random.pick(&words);
    match random.one_in(6) {
        true => word.repeat(random.size()),
        false => word.to_string(),
    }
}

fn key_of(map: &Map<String, Json>, random: &mut Random) -> String {
    let at = random.below(map.len());
    map.keys().nth(at).cloned().unwrap_or_default()
}

fn children(tree: &Json) -> usize {
    match tree {
        Json::Array(list) => list.len(),
        Json::Object(map) => map.len(),
        _ => 0,
    }
}

/// A place in the tree, those further down as likely as those above.
fn pick<'a>(mut tree: &'a Json, random: &mut Random) -> &'a Json {
    while children(tree) > 0 && !random.one_in(3) {
        let at = random.below(children(tree));
        let child = match tree {
            Json::Array(list) => list.get(at),
            Json::Object(map) => map.values().nth(at),
            _ => None,
        };
        match child {
            Some(child) => tree = child,
            None => break,
        }
    }
    tree
}

fn pick_mut<'a>(mut tree: &'a mut Json, random: &mut Random) -> &'a mut Json {
    while children(tree) > 0 && !random.one_in(3) {
        let at = random.below(children(tree));
        tree = match tree {
            Json::Array(list) => &mut list[at],
            Json::Object(map) => match map.values_mut().nth(at) {
                Some(child) => child,
                None => unreachable!("below the number of children"),
            },
            _ => unreachable!("others have no children"),
        };
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_of_a_seed_and_bounded() {
        for number in 0..60 {
            let damaged = || {
                let mut random = Random::new(1, number);
                let mut input = vec![7; 100];
                bytes(&mut input, 50, &mut random);
                let mut tree = json!({"a": [1, 2.5, {"b": "c"}], "d": null});
                json(&mut tree, &mut random);
                (input, text("{% if x %}", &["{{"], "y", &mut random), tree)
            };
            let (input, text, tree) = damaged();
            assert!(input.len() <= MAX_BYTES && text.len() <= MAX_BYTES);
            assert_eq!((input, text, tree), damaged());
        }
    }
}
