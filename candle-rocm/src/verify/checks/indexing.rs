//! Gathering and scattering by rows in LDS.

use super::unknown;
use crate::ops::indexing;
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Numbers, Tensor};
use crate::{DType, DeclaredKernel, Device};

/// Rows, and elements of a row that are written to.
const ROWS: usize = 70;
const PLACES: usize = 130;
/// Ids of a row.
const IDS: usize = 101;

pub(super) fn rows(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let name = kernel.name.as_str();
    let last = name.rsplit('_').next().unwrap_or_default();
    let dtype = match last {
        "b8" => DType::U8,
        "b16" => DType::I16,
        "b32" => DType::U32,
        "b64" => DType::I64,
        word => match DType::ALL.into_iter().find(|d| d.as_str() == word) {
            Some(dtype) => dtype,
            None => return unknown(kernel),
        },
    };
    match name.starts_with("gather_rows") {
        true => gather(device, dtype),
        false => scatter(device, dtype, name.contains("_add_")),
    }
}

fn ids(places: usize) -> Vec<f64> {
    let mut numbers = Numbers::new(places as u64);
    (0..ROWS * IDS)
        .map(|_| numbers.below(places) as f64)
        .collect()
}

fn gather(device: &Device, dtype: DType) -> Finding {
    let src = Tensor::random(device, dtype, &[ROWS, PLACES], (0.0, 100.0))?;
    let ids = Tensor::new(device, DType::U32, &[ROWS, IDS], &ids(PLACES))?;
    spoil_memory(device, ROWS * IDS * dtype.size_in_bytes())?;
    let out = indexing::gather_by_rows(device, &src.view(), &ids.view(), 1)?;
    let places = ids.values.iter().enumerate();
    let want: Vec<f64> = places
        .map(|(i, place)| src.values[i / IDS * PLACES + *place as usize])
        .collect();
    compare(device, &out, dtype, &want)
}

fn scatter(device: &Device, dtype: DType, adds: bool) -> Finding {
    // Small enough for sums of all dtypes to be exact.
    let dst = Tensor::random(device, dtype, &[ROWS, PLACES], (0.0, 3.0))?;
    let whole: Vec<f64> = dst.values.iter().map(|v| v.trunc()).collect();
    let dst = Tensor::new(device, dtype, &[ROWS, PLACES], &whole)?;
    let src: Vec<f64> = (0..ROWS * IDS).map(|i| (i % 3) as f64 / 2.0).collect();
    let src = Tensor::new(device, dtype, &[ROWS, IDS], &src)?;
    let ids = Tensor::new(device, DType::U32, &[ROWS, IDS], &ids(PLACES))?;
    let run = match adds {
        true => indexing::scatter_add,
        false => indexing::scatter_set,
    };
    run(device, &dst.view(), &ids.view(), &src.view(), 1)?;
    let mut want = dst.values.clone();
    for (i, place) in ids.values.iter().enumerate() {
        let place = &mut want[i / IDS * PLACES + *place as usize];
        *place = src.values[i] + if adds { *place } else { 0.0 };
    }
    compare(device, dst.buffer(), dtype, &want)
}
