//! Launches of sort.cu.

use super::reference;
use crate::data::{Data, Type, Type::*};
use crate::random::Random;
use crate::rows::{Output, Row};

const SORTED: [(Type, &str); 7] = [
    (BF16, "__nv_bfloat16"),
    (F16, "__half"),
    (F32, "float"),
    (F64, "double"),
    (U8, "uint8_t"),
    (U32, "uint32_t"),
    (I64, "int64_t"),
];
const RANKED: [(Type, &str, f64); 3] = [
    (F32, "float", 1e-6),
    (BF16, "__nv_bfloat16", 4e-3),
    (F16, "__half", 1e-3),
];

/// The whole file.
pub fn all(random: &mut Random) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in SORTED {
        for ascending in [true, false] {
            for (j, k) in [(1, 2), (16, 64), (64, 128)] {
                rows.push(exchange(kind, name, ascending, j, k, random));
            }
        }
    }
    for (kind, name, tolerance) in RANKED {
        for (columns, k, block) in [(60, 1, 64), (128, 8, 128), (200, 4, 256)] {
            rows.push(top(kind, name, None, columns, k, block, random));
            rows.push(top(kind, name, Some(tolerance), columns, k, block, random));
        }
    }
    rows
}

/// One step of the sort, over two blocks.
fn exchange(
    kind: Type,
    name: &str,
    ascending: bool,
    j: usize,
    k: usize,
    random: &mut Random,
) -> Row {
    let count = 128;
    let values = Data::shuffled(kind, count, random);
    let indices = Data::shuffled(U32, count, random);
    let mut after = values.values();
    let mut moved: Vec<i64> = indices.values().iter().map(|&i| i as i64).collect();
    reference::bitonic_step(ascending, j, k, &mut after, &mut moved);
    Row::new("bitonic_sort_kernel")
        .template(&[name, if ascending { "true" } else { "false" }])
        .grid([2, 1, 1])
        .block([64, 1, 1])
        .output(Output::exact(kind, after).over(values))
        .output(Output::exact(U32, moved.iter().map(|&i| i as f64)).over(indices))
        .ints(&[j, k])
        .about(format!("distance {j} in runs of {k}"))
}

/// The largest of rows, or with a tolerance their softmax.
fn top(
    kind: Type,
    name: &str,
    softmax: Option<f64>,
    columns: usize,
    k: usize,
    block: usize,
    random: &mut Random,
) -> Row {
    let rows = 3;
    // Different ones, negative as well, that all types have exactly.
    let mut all = Vec::new();
    for _ in 0..rows {
        let order = Data::shuffled(U32, columns, random).values();
        all.extend(order.iter().map(|x| (x - columns as f64 / 2.) / 8.));
    }
    let input = Data::new(kind, all);
    let (values, indices) = reference::top(&input.values(), columns, k);
    let bytes = columns * kind.bytes() + columns;
    let (kernel, values, shared) = match softmax {
        None => ("topk_kernel", Output::exact(kind, values), bytes),
        Some(tolerance) => (
            "topk_softmax_kernel",
            Output::exact(kind, reference::softmax(&values, k)).within(0., tolerance),
            bytes + k * kind.bytes() + k * 8,
        ),
    };
    Row::new(kernel)
        .template(&[name])
        .grid([rows, 1, 1])
        .block([block, 1, 1])
        .shared(shared)
        .input(&input)
        .output(values)
        .output(Output::exact(U32, indices.iter().map(|&i| i as f64)))
        .ints(&[rows, columns, k])
        .about(format!("{k} of {columns}"))
}
