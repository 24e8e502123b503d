//! indexing.cu and sort.cu.

use crate::data::{Data, Type, Type::*};
use crate::layouts::Layout;
use crate::random::Random;
use crate::rows::{Output, Row};

/// Types of elements, and of ids that go with each.
fn types() -> Vec<(Type, Type)> {
    let mut types = Vec::new();
    for ids in [I64, U32, U8] {
        types.extend([BF16, F16, F32, F64, U8, U32, I64, F8].map(|kind| (kind, ids)));
    }
    types.extend([(F8, I16), (F8, I32)]);
    types
}

/// Ids below `end`. The largest number of the type stands for nothing, if `none` is: every fifth one then.
fn ids(
    kind: Type,
    count: usize,
    end: usize,
    none: bool,
    random: &mut Random,
) -> (Data, Vec<Option<usize>>) {
    let picked: Vec<Option<usize>> = (0..count)
        .map(|i| (!none || i % 5 != 3).then(|| random.below(end)))
        .collect();
    let largest: u64 = match kind {
        U8 => u8::MAX.into(),
        U32 => u32::MAX.into(),
        I16 => i16::MAX as u64,
        I32 => i32::MAX as u64,
        _ => i64::MAX as u64,
    };
    let bytes = picked.iter().flat_map(|id| {
        let bits = id.map_or(largest, |id| id as u64).to_le_bytes();
        bits[..kind.bytes()].to_vec()
    });
    (
        Data {
            kind,
            bytes: bytes.collect(),
        },
        picked,
    )
}

/// Outer, picked and inner dimension.
const LEFT: usize = 3;
const PICKED: usize = 6;
const RIGHT: usize = 11;
/// Size of the dimension that is picked from, or added to.
const FROM: usize = 9;

/// Where element (left, middle, right) is, with `size` in the middle.
fn at(left: usize, size: usize, middle: usize, right: usize) -> usize {
    (left * size + middle) * RIGHT + right
}

/// Every (left, picked, right), in order.
fn places() -> impl Iterator<Item = (usize, usize, usize)> {
    let inner = |l| move |p| (0..RIGHT).map(move |r| (l, p, r));
    (0..LEFT).flat_map(move |l| (0..PICKED).flat_map(inner(l)))
}

/// Launches of all of indexing.cu.
pub fn indexing(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, id) in types() {
        let name = |operation: &str| format!("{operation}_{}_{}", id.word(), kind.word());
        let (low, high) = if kind.float() { (-4., 4.) } else { (0., 40.) };
        let numel = LEFT * PICKED * RIGHT;

        // index_select, of a contiguous tensor and of a transposed one.
        let (chosen, picked) = ids(id, PICKED, FROM, true, random);
        for source in [
            Layout::contiguous(&[LEFT, FROM, RIGHT]),
            Layout::new("transposed", &[LEFT, FROM, RIGHT], &[1, LEFT * RIGHT, LEFT]),
        ] {
            let input = Data::random(kind, source.storage(), low, high, random);
            let values = input.values();
            let expected = places().map(|(l, p, r)| match picked[p] {
                Some(id) => values[source.at(at(l, FROM, id, r))],
                None => 0.,
            });
            rows.push(
                Row::new(name("is"))
                    .steps(numel)
                    .sizes(&[numel, 3])
                    .input(&Data::sizes(&source.info()))
                    .input(&chosen)
                    .input(&input)
                    .output(Output::exact(kind, expected))
                    .sizes(&[LEFT, FROM, PICKED, RIGHT])
                    .about(source.name),
            );
        }

        // gather: an id for each element.
        let (chosen, picked) = ids(id, numel, FROM, true, random);
        let input = Data::random(kind, LEFT * FROM * RIGHT, low, high, random);
        let values = input.values();
        let expected = places().zip(&picked).map(|((l, _, r), id)| match id {
            Some(id) => values[at(l, FROM, *id, r)],
            None => 0.,
        });
        rows.push(
            Row::new(name("gather"))
                .steps(numel)
                .size(numel)
                .input(&chosen)
                .input(&input)
                .output(Output::exact(kind, expected))
                .sizes(&[LEFT, FROM, PICKED, RIGHT]),
        );

        // index_add: into an output that has contents. 8-bit floats do not know ids that stand for nothing.
        let (chosen, picked) = ids(id, PICKED, FROM, kind != F8, random);
        let input = Data::random(kind, numel, low, high, random);
        let before = Data::random(kind, LEFT * FROM * RIGHT, low, high, random);
        let (source, mut expected) = (input.values(), before.values());
        for (l, p, r) in places() {
            if let Some(id) = picked[p] {
                let sum = &mut expected[at(l, FROM, id, r)];
                *sum = kind.rounded(*sum + source[at(l, PICKED, p, r)]);
            }
        }
        rows.push(
            Row::new(name("ia"))
                .steps(LEFT * RIGHT)
                .input(&chosen)
                .size(PICKED)
                .input(&input)
                .output(Output::exact(kind, expected).over(before))
                .sizes(&[LEFT, FROM, FROM, RIGHT]),
        );

        // scatter and scatter_add: an id for each element; where several go to one place, the last stays.
        let (chosen, picked) = ids(id, numel, FROM, kind != F8, random);
        for add in [false, true] {
            if kind == F8 && !add {
                continue;
            }
            let before = Data::random(kind, LEFT * FROM * RIGHT, low, high, random);
            let mut expected = before.values();
            for ((l, p, r), id) in places().zip(&picked) {
                if let Some(id) = *id {
                    let place = &mut expected[at(l, FROM, id, r)];
                    let value = source[at(l, PICKED, p, r)];
                    *place = if add {
                        kind.rounded(*place + value)
                    } else {
                        value
                    };
                }
            }
            rows.push(
                Row::new(name(if add { "sa" } else { "s" }))
                    .steps(LEFT * RIGHT)
                    .input(&chosen)
                    .input(&input)
                    .output(Output::exact(kind, expected).over(before))
                    .sizes(&[LEFT, PICKED, FROM, RIGHT]),
            );
        }
    }
    rows
}

/// Launches of all of sort.cu: numbers differ, so that there is one right order.
pub fn sort(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in [BF16, F16, F32, F64, U8, U32, I64] {
        for (columns, threads) in [(1, 1), (37, 64), (100, 32)] {
            let padded = usize::next_power_of_two(columns);
            let lines: Vec<Data> = (0..2)
                .map(|_| Data::shuffled(kind, columns, random))
                .collect();
            let all = Data {
                kind,
                bytes: lines.iter().flat_map(|l| l.bytes.clone()).collect(),
            };
            for (word, downwards) in [("asc", false), ("desc", true)] {
                let order = lines.iter().flat_map(|line| {
                    let values = line.values();
                    let mut order: Vec<usize> = (0..columns).collect();
                    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
                    if downwards {
                        order.reverse();
                    }
                    order.into_iter().map(|i| i as f64)
                });
                rows.push(
                    Row::new(format!("asort_{word}_{}", kind.word()))
                        .grid([2, 1, 1])
                        .block([threads, 1, 1])
                        .shared(padded * 4)
                        .input(&all)
                        .output(Output::exact(U32, order))
                        .ints(&[columns, padded]),
                );
            }
        }
    }
    rows
}
