//! Operations bound by memory: element-wise, copies, reductions, rows, indices.

use crate::measure::{Bench, Tensor, Work};
use candle_rocm::ops::{
    affine, binary, cast, copy, gated, indexing, norm, rand, reduce, rope, softmax, sort, ternary,
    unary,
};
use candle_rocm::{DType, Result};

use binary::BinaryOp;
use reduce::ReduceOp;
use unary::UnaryOp;

const SIZES: [usize; 3] = [1 << 12, 1 << 20, 1 << 26];
const COLUMNS: usize = 4096;
const HEAD_SIZE: usize = 128;

pub fn run(bench: &Bench) -> Result<()> {
    for size in SIZES.map(|size| bench.size(size)) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            elementwise(bench, dtype, size)?;
        }
        for dtype in [DType::F32, DType::F16] {
            rows(bench, dtype, size)?;
        }
        indices(bench, size)?;
    }
    Ok(())
}

fn elementwise(bench: &Bench, dtype: DType, n: usize) -> Result<()> {
    let device = bench.device;
    let (x, y) = (bench.random(dtype, &[n])?, bench.random(dtype, &[n])?);
    let tensor_bytes = (n * dtype.size_in_bytes()) as f64;
    let (two, three) = (
        Work::Bytes(2.0 * tensor_bytes),
        Work::Bytes(3.0 * tensor_bytes),
    );
    for (name, op) in [("add", BinaryOp::Add), ("div", BinaryOp::Div)] {
        bench.time(format_args!("{name} {dtype}"), n, three, |_| {
            binary::binary(device, op, &x.view(), &y.view()).map(drop)
        });
    }
    for (name, op) in [
        ("exp", UnaryOp::Exp),
        ("silu", UnaryOp::Silu),
        ("gelu", UnaryOp::Gelu),
        ("gelu_erf", UnaryOp::GeluErf),
        ("tanh", UnaryOp::Tanh),
        ("sin", UnaryOp::Sin),
        ("sqrt", UnaryOp::Sqrt),
    ] {
        bench.time(format_args!("{name} {dtype}"), n, two, |_| {
            unary::unary(device, op, &x.view()).map(drop)
        });
    }
    bench.time(format_args!("affine {dtype}"), n, two, |_| {
        affine::affine(device, &x.view(), 1.5, 0.5).map(drop)
    });
    let to = if dtype == DType::F32 {
        DType::F16
    } else {
        DType::F32
    };
    let cast_work = Work::Bytes((n * (dtype.size_in_bytes() + to.size_in_bytes())) as f64);
    bench.time(format_args!("cast {dtype} {to}"), n, cast_work, |_| {
        cast::cast(device, &x.view(), to).map(drop)
    });

    let condition = Tensor::new(
        binary::compare(device, binary::CompareOp::Lt, &x.view(), &y.view())?,
        DType::U8,
        &[n],
    );
    bench.time(
        format_args!("where {dtype}"),
        n,
        Work::Bytes(3.0 * tensor_bytes + n as f64),
        |_| ternary::where_cond(device, &condition.view(), &x.view(), &y.view()).map(drop),
    );
    bench.time(
        format_args!("lt {dtype}"),
        n,
        Work::Bytes(2.0 * tensor_bytes + n as f64),
        |_| binary::compare(device, binary::CompareOp::Lt, &x.view(), &y.view()).map(drop),
    );
    bench.time(format_args!("silu_mul {dtype}"), n, three, |_| {
        gated::gate_mul(device, gated::Gate::Silu, &x.view(), &y.view()).map(drop)
    });
    bench.time(
        format_args!("normal {dtype}"),
        n,
        Work::Bytes(tensor_bytes),
        |_| rand::normal(device, dtype, n, 0.0, 1.0).map(drop),
    );

    let side = 1 << (n.ilog2() / 2);
    let square = bench.random(dtype, &[side, n / side])?.transposed();
    bench.time(format_args!("copy transposed {dtype}"), n, two, |_| {
        copy::contiguous(device, &square.view()).map(drop)
    });

    let columns = COLUMNS.min(n);
    let rows = n / columns;
    let row = bench.random(dtype, &[columns])?.repeated(rows);
    let matrix = bench.random(dtype, &[rows, columns])?;
    bench.time(format_args!("add row {dtype}"), n, two, |_| {
        binary::binary(device, BinaryOp::Add, &matrix.view(), &row.view()).map(drop)
    });
    bench.time(
        format_args!("concatenate {dtype}"),
        n,
        Work::Bytes(4.0 * tensor_bytes),
        |_| {
            let both = device.alloc(2 * n * dtype.size_in_bytes())?;
            for (i, part) in [&matrix.buffer, &x.buffer].into_iter().enumerate() {
                let (to, start) = (2 * columns, i * columns);
                copy::copy2d(
                    device, dtype, part, &both, rows, columns, columns, to, 0, start,
                )?;
            }
            Ok(())
        },
    );
    Ok(())
}

fn rows(bench: &Bench, dtype: DType, n: usize) -> Result<()> {
    let device = bench.device;
    let columns = COLUMNS.min(n);
    let x = bench.random(dtype, &[n / columns, columns])?;
    let weight = bench.random(dtype, &[columns])?;
    let bytes = (n * dtype.size_in_bytes()) as f64;
    for (name, op) in [
        ("sum", ReduceOp::Sum),
        ("max", ReduceOp::Max),
        ("argmax", ReduceOp::ArgMax),
    ] {
        for (along, axes) in [("rows", &[1][..]), ("columns", &[0]), ("all", &[0, 1])] {
            if op == ReduceOp::ArgMax && along == "all" {
                continue;
            }
            bench.time(
                format_args!("{name} {along} {dtype}"),
                n,
                Work::Bytes(bytes),
                |_| reduce::reduce(device, op, &x.view(), axes).map(drop),
            );
        }
    }
    let two = Work::Bytes(2.0 * bytes);
    bench.time(format_args!("softmax {dtype}"), n, two, |_| {
        softmax::softmax_last_dim(device, &x.view()).map(drop)
    });
    bench.time(format_args!("rms_norm {dtype}"), n, two, |_| {
        norm::rms_norm(device, &x.view(), &weight.view(), 1e-5).map(drop)
    });
    bench.time(format_args!("layer_norm {dtype}"), n, two, |_| {
        norm::layer_norm(
            device,
            &x.view(),
            &weight.view(),
            Some(&weight.view()),
            1e-5,
        )
        .map(drop)
    });
    let (heads, time) = (columns / HEAD_SIZE, n / columns);
    let x = bench.random(dtype, &[1, heads, time, HEAD_SIZE])?;
    let cos = bench.random(dtype, &[time, HEAD_SIZE / 2])?;
    let sin = bench.random(dtype, &[time, HEAD_SIZE / 2])?;
    bench.time(format_args!("rope {dtype}"), n, two, |_| {
        rope::rope(device, &x.view(), &cos.view(), &sin.view()).map(drop)
    });
    Ok(())
}

fn indices(bench: &Bench, n: usize) -> Result<()> {
    let device = bench.device;
    let columns = COLUMNS.min(n);
    let rows = n / columns;
    for dtype in [DType::F32, DType::F16] {
        let table = bench.random(dtype, &[rows, columns])?;
        let ids = bench.indices(&[rows], rows)?;
        let work = Work::Bytes((2 * n * dtype.size_in_bytes()) as f64);
        bench.time(format_args!("index_select {dtype}"), n, work, |_| {
            indexing::index_select(device, &table.view(), &ids.view(), 0).map(drop)
        });
        bench.time(
            format_args!("index_add {dtype}"),
            n,
            Work::Bytes((4 * n * dtype.size_in_bytes()) as f64),
            |_| indexing::index_add(device, &table.view(), &ids.view(), &table.view(), 0).map(drop),
        );
    }
    let (from, to) = (
        bench.random(DType::F32, &[rows, columns])?,
        bench.random(DType::F32, &[rows, columns])?,
    );
    let ids = bench.indices(&[rows, columns], columns)?;
    bench.time("gather f32", n, Work::Bytes(12.0 * n as f64), |_| {
        indexing::gather(device, &from.view(), &ids.view(), 1).map(drop)
    });
    bench.time("scatter_add f32", n, Work::Bytes(16.0 * n as f64), |_| {
        indexing::scatter_add(device, &to.view(), &ids.view(), &from.view(), 1)
    });
    if n <= 1 << 20 {
        let x = bench.random(DType::F32, &[rows, columns])?;
        bench.time("argsort f32", n, Work::Bytes(8.0 * n as f64), |_| {
            sort::argsort(device, &x.view(), true).map(drop)
        });
    }
    Ok(())
}
