//! Quantized matrices times one vector, a few and many, for every format.

use crate::measure::{Bench, Random, Work};
use candle_rocm::ops::quantized::{linear, Epilogue, Format, QuantizedMatrix};
use candle_rocm::{DType, Result};

const SHAPES: [(usize, usize); 3] = [(4096, 4096), (14336, 4096), (32000, 4096)];
/// A step of one sequence, of several, and a prompt.
const COLUMNS: [usize; 7] = [1, 4, 8, 16, 32, 64, MANY];
const MANY: usize = 512;
/// Copies of a matrix are taken in turn until they exceed every cache, as the layers of a model are.
const CYCLE_BYTES: usize = 512 << 20;

/// Calls of a recorded graph, as a model's step has them.
const RECORDED: usize = 64;

/// Each product enqueued by itself.
pub fn run(bench: &Bench) -> Result<()> {
    each(bench, false)
}

/// Products behind each other in one graph.
pub fn recorded(bench: &Bench) -> Result<()> {
    each(bench, true)
}

fn each(bench: &Bench, recorded: bool) -> Result<()> {
    for &format in Format::ALL.iter().filter(|format| format.is_weight()) {
        for (rows, cols) in SHAPES {
            time(
                bench,
                format,
                (bench.size(rows), bench.size(cols)),
                recorded,
            )?;
        }
    }
    Ok(())
}

fn time(bench: &Bench, format: Format, (rows, cols): (usize, usize), recorded: bool) -> Result<()> {
    let bytes = rows * cols / format.block_size() * format.type_size();
    let copies = (CYCLE_BYTES / bytes).max(1);
    let mut random = Random(3);
    // Without the two highest bits of a byte, scales are finite numbers below 2.
    let one: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| (random.next() & 0x3f3f_3f3f_3f3f_3f3f).to_le_bytes())
        .collect();
    let buffer = bench.device.alloc(copies * bytes)?;
    bench.device.upload_into(&one[..bytes], &buffer, 0)?;
    for copy in 1..copies {
        bench
            .device
            .copy(&buffer, 0, &buffer, copy * bytes, bytes)?;
    }
    // Integers are multiplied with vectors in 8 bits, whatever they were before.
    let dtypes: &[DType] = match format.has_integers() {
        true => &[DType::F32],
        false => &[DType::F32, DType::BF16],
    };
    let all = COLUMNS
        .into_iter()
        .flat_map(|columns| dtypes.iter().map(move |dtype| (columns, *dtype)));
    for (columns, dtype) in all {
        let x = bench.random(dtype, &[columns, cols])?;
        let (name, work) = match columns {
            MANY => ("matmul", Work::Flops(2.0 * (columns * rows * cols) as f64)),
            _ => ("matvec", Work::Bytes(bytes as f64)),
        };
        let of = match dtype {
            DType::F32 => String::new(),
            dtype => format!(" of {dtype}"),
        };
        let name = format_args!("{name} {}{of}", format.word());
        let size = format_args!("{rows}x{cols}x{columns}");
        let product = |i: usize| {
            let mut weights = QuantizedMatrix::new(format, &buffer, rows, cols);
            weights.offset = i % copies * bytes;
            linear(bench.device, &weights, &x.view(), &Epilogue::default()).map(drop)
        };
        match recorded {
            true => bench.time_recorded(name, size, work, RECORDED, product),
            false => bench.time(name, size, work, product),
        }
    }
    Ok(())
}
