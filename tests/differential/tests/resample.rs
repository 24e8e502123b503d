//! Pooling, upsampling and sorting, in every dtype and arrangement.

use candle_core::{DType, Device, Result, Tensor};
use differential::{name, rocm, tensor, widen, Arrangement, Report, DTYPES};

const LIMIT: f64 = 1e-7;

type Op = fn(&Tensor) -> Result<Tensor>;

/// The oracle of a float operation: in f64 on the CPU, rounded once. The CPU gets a contiguous tensor, as some of its
/// operations ask for.
fn on_cpu(x: &Tensor, op: Op) -> Result<Tensor> {
    let x = x.contiguous()?;
    if x.dtype().is_int() {
        return op(&x);
    }
    let y = op(&widen(&x)?)?;
    // Indices stay what they are.
    match y.dtype() {
        DType::U32 => Ok(y),
        _ => y.to_dtype(x.dtype()),
    }
}

fn compare(report: &mut Report, op: &str, f: Op, dtype: DType, shapes: &[&[usize]]) {
    let device = rocm();
    for (seed, shape) in shapes.iter().enumerate() {
        for arrangement in Arrangement::ALL {
            let make =
                |device: &Device| tensor(device, dtype, shape, arrangement, seed as u64, (0., 99.));
            report.compare(
                op,
                name(dtype),
                &format!("{shape:?} {arrangement:?}"),
                if dtype.is_int() { 0. } else { LIMIT },
                make(&device).and_then(|x| f(&x)),
                make(&Device::Cpu).and_then(|x| on_cpu(&x, f)),
            );
        }
    }
}

const IMAGES: [&[usize]; 3] = [&[1, 1, 3, 5], &[2, 3, 8, 6], &[3, 2, 17, 33]];

#[test]
fn pool() {
    let mut report = Report::default();
    let largest: [Op; 2] = [
        |x| x.max_pool2d(2),
        |x| x.max_pool2d_with_stride((3, 2), (1, 3)),
    ];
    let mean: [Op; 2] = [
        |x| x.avg_pool2d(2),
        |x| x.avg_pool2d_with_stride((3, 2), (1, 3)),
    ];
    for dtype in DTYPES {
        for f in largest {
            compare(&mut report, "max_pool2d", f, dtype, &IMAGES);
        }
        for f in mean {
            compare(&mut report, "avg_pool2d", f, dtype, &IMAGES);
        }
    }
    report.finish("pool");
}

#[test]
fn upsample() {
    let mut report = Report::default();
    let bilinear: [Op; 4] = [
        |x| x.upsample_bilinear2d(7, 12, false),
        |x| x.upsample_bilinear2d(7, 12, true),
        |x| x.upsample_bilinear2d(1, 40, true),
        |x| x.upsample_bilinear2d_with_scale(1.7, 0.6, false),
    ];
    for dtype in DTYPES {
        let f: Op = |x| x.upsample_nearest1d(11);
        let rows: [&[usize]; 2] = [&[1, 1, 4], &[2, 3, 17]];
        compare(&mut report, "upsample_nearest1d", f, dtype, &rows);
        let f: Op = |x| x.upsample_nearest2d(7, 12);
        compare(&mut report, "upsample_nearest2d", f, dtype, &IMAGES);
        for f in bilinear {
            compare(&mut report, "upsample_bilinear2d", f, dtype, &IMAGES);
        }
    }
    report.finish("upsample");
}

#[test]
fn sort() {
    let mut report = Report::default();
    let shapes: [&[usize]; 4] = [&[1], &[5, 7], &[3, 4, 33], &[2, 5000]];
    // candle itself asks for contiguous tensors.
    let ops: [(&str, Op); 4] = [
        ("argsort", |x| x.contiguous()?.arg_sort_last_dim(true)),
        ("argsort", |x| x.contiguous()?.arg_sort_last_dim(false)),
        ("sort", |x| Ok(x.contiguous()?.sort_last_dim(true)?.0)),
        ("sort", |x| Ok(x.contiguous()?.sort_last_dim(false)?.0)),
    ];
    for dtype in DTYPES {
        for (op, f) in ops {
            compare(&mut report, op, f, dtype, &shapes);
        }
    }
    report.finish("sort");
}
