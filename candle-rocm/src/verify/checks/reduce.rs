//! Reductions: along rows, across columns, and of any layout, whole and in parts that are joined; cumulative sums.

use super::{split_dtype, unknown};
use crate::ops::reduce::{reduce, ReduceOp};
use crate::ops::scan::cumsum;
use crate::verify::admit::Finding;
use crate::verify::bench::{difference, read, spoil_memory, tolerance, Tensor};
use crate::{DType, DeclaredKernel, Device};

/// A problem by its sizes `[matrices, reduced, columns]`, the second of which is reduced.
type Problem = [usize; 3];

/// Kernels of any layout: columns that no pack divides.
pub(super) fn strided(device: &Device, kernel: &DeclaredKernel) -> Finding {
    check(device, kernel, [6, 211, 33], [1, 40_003, 3])
}

/// Kernels for packs, along rows or across columns.
pub(super) fn packs(device: &Device, kernel: &DeclaredKernel) -> Finding {
    match kernel.name.contains("_rows_") {
        true => check(device, kernel, [2100, 75, 1], [2, 40_003, 1]),
        false => check(device, kernel, [5, 211, 64], [1, 20_003, 16]),
    }
}

/// Cumulative sums forwards and from the end, of lines across columns, and of lines in parts that begin with others'
/// sums.
pub(super) fn scan(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((_, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    for dims in [[3, 211, 33], [2, 20_003, 1]] {
        let [_, reduced, columns] = dims;
        // Sums stay small.
        let range = match dtype {
            DType::F8E4M3 => (-0.1, 0.11),
            _ if dtype.is_float() => (-0.1, 0.2),
            _ => (0.0, 2.0),
        };
        let x = Tensor::random(device, dtype, &dims, range)?;
        for reversed in [false, true] {
            spoil_memory(device, x.values.len() * dtype.size_in_bytes())?;
            let out = cumsum(device, &x.view(), 1, reversed)?;
            let got = read(device, &out, dtype)?;
            let mut want = x.values.clone();
            for matrix in want.chunks_mut(reduced * columns) {
                let mut sums = vec![0.0; columns];
                for step in 0..reduced {
                    let step = if reversed { reduced - 1 - step } else { step };
                    let line = &mut matrix[step * columns..(step + 1) * columns];
                    for (sum, x) in sums.iter_mut().zip(line) {
                        *sum += *x;
                        *x = wrapped(dtype, *sum);
                    }
                }
            }
            if let Some(wrong) = difference(&got, &want, tolerance(dtype)) {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}

/// A sum as a dtype has it.
fn wrapped(dtype: DType, sum: f64) -> f64 {
    match dtype {
        DType::U8 => sum % 256.0,
        DType::I16 => f64::from(sum as i64 as i16),
        _ => sum,
    }
}

/// One problem for kernels that reduce at once; `parts` is for those that leave partial results or join them.
fn check(device: &Device, kernel: &DeclaredKernel, whole: Problem, parts: Problem) -> Finding {
    let name = kernel.name.replace("_rows", "").replace("_columns", "");
    let Some((head, to)) = split_dtype(&name) else {
        return unknown(kernel);
    };
    // Of two dtypes, the small one is that of the operation.
    let (word, dtypes) = match split_dtype(head) {
        Some((word, from)) => (word, vec![from, to]),
        None => (head, vec![to]),
    };
    let Some(op) = ReduceOp::ALL.into_iter().find(|op| op.as_str() == word) else {
        return unknown(kernel);
    };
    match dtypes[..] {
        [DType::F32, small] | [small, DType::F32] => compare(device, op, small, parts),
        [dtype] => {
            if let Some(wrong) = compare(device, op, dtype, whole)? {
                return Ok(Some(wrong));
            }
            // Parts of small floats are summed up as f32, by other kernels.
            let is_small = dtype.is_float() && dtype.size_in_bytes() < size_of::<f32>();
            match op == ReduceOp::Sum && is_small {
                true => Ok(None),
                false => compare(device, op, dtype, parts),
            }
        }
        _ => unknown(kernel),
    }
}

fn compare(device: &Device, op: ReduceOp, dtype: DType, dims: Problem) -> Finding {
    let [matrices, reduced, columns] = dims;
    // Sums stay small, and no element is the largest twice.
    let range = match dtype {
        // The largest is 448.
        DType::F8E4M3 if op == ReduceOp::Sum => (-0.1, 0.105),
        _ if dtype.is_float() && op == ReduceOp::Sum => (-0.1, 0.3),
        DType::F8E4M3 => (-400.0, 400.0),
        _ if dtype.is_float() => (-5.0, 5.0),
        DType::U8 if op == ReduceOp::Sum => (0.0, 1.0 + 200.0 / reduced as f64),
        DType::I16 if op == ReduceOp::Sum => (0.0, 1.7),
        _ => (0.0, 120.0),
    };
    let x = Tensor::random(device, dtype, &dims, range)?;
    let of_result = match op {
        ReduceOp::ArgMin | ReduceOp::ArgMax => DType::U32,
        _ => dtype,
    };
    let outputs = matrices * columns;
    spoil_memory(device, outputs * of_result.size_in_bytes())?;
    let out = reduce(device, op, &x.view(), &[1])?;
    let got = read(device, &out, of_result)?;
    let want: Vec<f64> = (0..outputs)
        .map(|output| {
            let first = output / columns * reduced * columns + output % columns;
            let line = (0..reduced).map(|i| x.values[first + i * columns]);
            reduced_line(op, dtype, line)
        })
        .collect();
    Ok(difference(&got, &want, tolerance(of_result)))
}

fn reduced_line(op: ReduceOp, dtype: DType, line: impl Iterator<Item = f64>) -> f64 {
    let mut best: Option<(usize, f64)> = None;
    let mut sum = 0.0;
    for (i, x) in line.enumerate() {
        sum += x;
        let wins = best.is_none_or(|(_, most)| match op {
            ReduceOp::Min | ReduceOp::ArgMin => x < most,
            _ => x > most,
        });
        if wins {
            best = Some((i, x));
        }
    }
    let (index, extreme) = best.unwrap_or((0, 0.0));
    match op {
        ReduceOp::Sum => wrapped(dtype, sum),
        ReduceOp::Min | ReduceOp::Max => extreme,
        ReduceOp::ArgMin | ReduceOp::ArgMax => index as f64,
    }
}
