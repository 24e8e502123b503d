//! Pooling, upsampling and sorting, in every dtype and arrangement.

use crate::{name, tensor, widen, Context, Report, Suite, DTYPES};
use candle_core::{DType, Device, Result, Tensor};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("pool", pool),
    Suite::listed("upsample", upsample),
    Suite::listed("sort", sort),
];

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

fn compare(
    context: &Context,
    report: &mut Report,
    op: &str,
    f: Op,
    dtype: DType,
    shapes: &[&[usize]],
) {
    for (seed, shape) in context.first(2, shapes).iter().enumerate() {
        for &arrangement in context.arrangements() {
            let make =
                |device: &Device| tensor(device, dtype, shape, arrangement, seed as u64, (0., 99.));
            report.compare(
                op,
                name(dtype),
                &format!("{shape:?} {arrangement:?}"),
                if dtype.is_int() { 0. } else { LIMIT },
                make(&context.device).and_then(|x| f(&x)),
                make(&Device::Cpu).and_then(|x| on_cpu(&x, f)),
            );
        }
    }
}

const IMAGES: [&[usize]; 3] = [&[1, 1, 3, 5], &[2, 3, 8, 6], &[3, 2, 17, 33]];

fn pool(context: &Context, report: &mut Report) -> Result<()> {
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
            compare(context, report, "max_pool2d", f, dtype, &IMAGES);
        }
        for f in mean {
            compare(context, report, "avg_pool2d", f, dtype, &IMAGES);
        }
    }
    Ok(())
}

fn upsample(context: &Context, report: &mut Report) -> Result<()> {
    let bilinear: [Op; 4] = [
        |x| x.upsample_bilinear2d(7, 12, false),
        |x| x.upsample_bilinear2d(7, 12, true),
        |x| x.upsample_bilinear2d(1, 40, true),
        |x| x.upsample_bilinear2d_with_scale(1.7, 0.6, false),
    ];
    for dtype in DTYPES {
        let f: Op = |x| x.upsample_nearest1d(11);
        let rows: [&[usize]; 2] = [&[1, 1, 4], &[2, 3, 17]];
        compare(context, report, "upsample_nearest1d", f, dtype, &rows);
        let f: Op = |x| x.upsample_nearest2d(7, 12);
        compare(context, report, "upsample_nearest2d", f, dtype, &IMAGES);
        for f in bilinear {
            compare(context, report, "upsample_bilinear2d", f, dtype, &IMAGES);
        }
    }
    Ok(())
}

fn sort(context: &Context, report: &mut Report) -> Result<()> {
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
            compare(context, report, op, f, dtype, &shapes);
        }
    }
    Ok(())
}
