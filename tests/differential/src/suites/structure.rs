//! Reductions, indexing, copies, matrix products, layers and random numbers.

use crate::{error_of, name, tensor, widen, Arrangement, Context, Report, Suite, DTYPES, FLOATS};
use candle_core::{DType, Device, IndexOp, Result, Tensor, D};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("reduce", reductions),
    Suite::unlisted("argmin-and-argmax", argmin_and_argmax_give_u32),
    Suite::listed("indexing", indexing),
    Suite::unlisted("offsets-of-views", offsets_of_views_count_elements),
    Suite::unlisted(
        "index-out-of-range",
        index_out_of_range_is_a_typed_error_and_the_device_goes_on,
    ),
    Suite::listed("copy", copies),
    Suite::listed("matmul", matrix_products),
    Suite::listed("layers", layers),
    Suite::listed("rand", random_numbers),
    Suite::unlisted("copies-between-devices", copies_between_devices),
    Suite::unlisted("round-trip", every_float_dtype_survives_the_round_trip),
];

const SHAPES: [&[usize]; 3] = [&[1, 1, 1], &[4, 7, 5], &[3, 65, 130]];

fn reductions(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        for &shape in context.pick(&SHAPES[1..2], &SHAPES) {
            for &arrangement in context.arrangements() {
                let range = if dtype.is_int() { (0., 9.) } else { (-2., 2.) };
                let make = |device: &Device| tensor(device, dtype, shape, arrangement, 11, range);
                for axes in [&[0usize][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
                    let got = make(&rocm).and_then(|t| t.sum(axes));
                    let want = make(&Device::Cpu).and_then(|t| match dtype.is_int() {
                        // Integers wrap; the CPU's debug build would panic instead.
                        true => t.to_dtype(DType::I64)?.sum(axes)?.to_dtype(dtype),
                        false => widen(&t)?.sum(axes)?.to_dtype(dtype),
                    });
                    let what = format!("{shape:?} {arrangement:?} {axes:?}");
                    report.compare("sum", name(dtype), &what, 1e-7, got, want);
                }
                for axis in 0..3 {
                    let what = format!("{shape:?} {arrangement:?} {axis}");
                    type Reduction = fn(&Tensor, usize) -> Result<Tensor>;
                    let ops: [(&str, Reduction); 4] = [
                        ("min", |t, a| t.min(a)),
                        ("max", |t, a| t.max(a)),
                        ("argmin", |t, a| t.argmin(a)),
                        ("argmax", |t, a| t.argmax(a)),
                    ];
                    for (op, f) in ops {
                        let got = make(&rocm).and_then(|t| f(&t, axis));
                        let want = make(&Device::Cpu).and_then(|t| f(&t, axis));
                        report.compare(op, name(dtype), &what, 0., got, want);
                    }
                }
            }
        }
    }
    Ok(())
}

fn argmin_and_argmax_give_u32(context: &Context, _: &mut Report) -> Result<()> {
    let t = Tensor::new(&[3f32, 1., 2.], &context.device)?;
    ensure_eq!(t.argmin(0)?.dtype(), DType::U32);
    ensure_eq!(t.argmax(0)?.dtype(), DType::U32);
    Ok(())
}

fn indexing(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        for ids in [DType::U8, DType::U32, DType::I64] {
            for &arrangement in context.arrangements() {
                let what = format!("{} {arrangement:?}", name(ids));
                let source =
                    |device: &Device| tensor(device, dtype, &[5, 6, 4], arrangement, 21, (0., 9.));
                let index = |device: &Device, dims: &[usize], below: f64| {
                    tensor(
                        device,
                        ids,
                        dims,
                        Arrangement::Contiguous,
                        22,
                        (0., below - 0.01),
                    )
                };
                for dim in 0..3 {
                    let below = [5., 6., 4.][dim];
                    let select =
                        |t: Tensor, d: &Device| t.index_select(&index(d, &[7], below)?, dim);
                    let got = source(&rocm).and_then(|t| select(t, &rocm));
                    // The CPU takes contiguous sources only.
                    let want =
                        source(&Device::Cpu).and_then(|t| select(t.contiguous()?, &Device::Cpu));
                    report.compare("index_select", name(dtype), &what, 0., got, want);
                    let f = |d: &Device| {
                        source(d)?
                            .contiguous()?
                            .gather(&index(d, &[5, 6, 4], below)?, dim)
                    };
                    report.compare("gather", name(dtype), &what, 0., f(&rocm), f(&Device::Cpu));
                    let dims = [5, 6, 4];
                    let fresh = |d: &Device, seed| {
                        tensor(d, dtype, &dims, Arrangement::Contiguous, seed, (0., 3.))
                    };
                    // Every index is hit once, so that the order of writes does not matter.
                    let permutation = |d: &Device| -> Result<Tensor> {
                        let size = dims[dim];
                        let order: Vec<u32> = (0..size as u32)
                            .map(|i| (i * 3 + 1) % size as u32)
                            .collect();
                        let order = if size == 6 {
                            vec![4u32, 2, 0, 5, 1, 3]
                        } else {
                            order
                        };
                        let mut shape = [1; 3];
                        shape[dim] = size;
                        Tensor::from_vec(order, &shape, d)?
                            .broadcast_as(&dims)?
                            .contiguous()?
                            .to_dtype(ids)
                    };
                    let f =
                        |d: &Device| fresh(d, 23)?.scatter(&permutation(d)?, &fresh(d, 24)?, dim);
                    report.compare("scatter", name(dtype), &what, 0., f(&rocm), f(&Device::Cpu));
                    // Small whole numbers: sums are exact in every dtype, in any order.
                    let whole = |d: &Device, seed| -> Result<Tensor> {
                        fresh(&Device::Cpu, seed)?
                            .to_dtype(DType::U8)?
                            .to_dtype(dtype)?
                            .to_device(d)
                    };
                    let f = |d: &Device| {
                        whole(d, 25)?.scatter_add(&index(d, &dims, below)?, &whole(d, 26)?, dim)
                    };
                    report.compare(
                        "scatter_add",
                        name(dtype),
                        &what,
                        0.,
                        f(&rocm),
                        f(&Device::Cpu),
                    );
                    let f = |d: &Device| {
                        whole(d, 25)?.index_add(
                            &index(d, &[dims[dim]], below)?,
                            &whole(d, 26)?,
                            dim,
                        )
                    };
                    report.compare(
                        "index_add",
                        name(dtype),
                        &what,
                        0.,
                        f(&rocm),
                        f(&Device::Cpu),
                    );
                }
            }
        }
    }
    Ok(())
}

/// The source of `index_add` starts inside a larger tensor: its offset must count once, and in elements.
fn offsets_of_views_count_elements(context: &Context, _: &mut Report) -> Result<()> {
    let f = |d: &Device| -> Result<Vec<f32>> {
        let source = Tensor::arange(0f32, 24., d)?
            .reshape((6, 4))?
            .narrow(0, 3, 2)?;
        let base = Tensor::zeros((5, 4), DType::F32, d)?;
        let ids = Tensor::new(&[9u32, 4, 1], d)?.narrow(0, 1, 2)?;
        base.index_add(&ids, &source, 0)?.flatten_all()?.to_vec1()
    };
    ensure_eq!(f(&context.device)?, f(&Device::Cpu)?);
    Ok(())
}

fn index_out_of_range_is_a_typed_error_and_the_device_goes_on(
    context: &Context,
    _: &mut Report,
) -> Result<()> {
    // A device of its own: the error belongs to whoever waits next, and other tests wait at the same time.
    let device = context.another_stream()?;
    let table = Tensor::arange(0f32, 6., &device)?.reshape((3, 2))?;
    let bad = table.index_select(&Tensor::new(&[0u32, 7], &device)?, 0);
    let error = error_of(bad.and_then(|t| t.to_vec2::<f32>()), "row 7 of 3")?;
    ensure!(error.contains('7') && error.contains("index"), "{error}");
    ensure_eq!(table.i(1)?.to_vec1::<f32>()?, [2., 3.]);
    Ok(())
}

fn copies(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in DTYPES {
        let shapes: [&[usize]; 5] = [&[33, 65], &[2, 3, 4, 5], &[0, 4], &[1, 1], &[3, 40, 70]];
        for &shape in context.first(2, &shapes) {
            for &arrangement in context.arrangements() {
                let make = |d: &Device| tensor(d, dtype, shape, arrangement, 31, (0., 100.));
                let what = format!("{shape:?} {arrangement:?}");
                let f = |d: &Device| make(d)?.force_contiguous();
                report.compare("copy", name(dtype), &what, 0., f(&rocm), f(&Device::Cpu));
                for dim in 0..2 {
                    let f = |d: &Device| Tensor::cat(&[make(d)?, make(d)?], dim);
                    report.compare("cat", name(dtype), &what, 0., f(&rocm), f(&Device::Cpu));
                }
            }
        }
    }
    Ok(())
}

fn matrix_products(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let sizes = [
            (5, 7, 3),
            (31, 65, 129),
            (1, 33, 17),
            (16, 1, 40),
            (1, 1, 1),
            (3, 4, 0),
            (0, 4, 3),
        ];
        for &(m, n, k) in context.first(3, &sizes) {
            for a in [
                Arrangement::Contiguous,
                Arrangement::Transposed,
                Arrangement::Narrowed,
            ] {
                for b in [
                    Arrangement::Contiguous,
                    Arrangement::Transposed,
                    Arrangement::Narrowed,
                ] {
                    let make = |d: &Device| -> Result<(Tensor, Tensor)> {
                        let lhs = tensor(d, dtype, &[m, k], a, 41, (-1., 1.))?;
                        Ok((lhs, tensor(d, dtype, &[k, n], b, 42, (-1., 1.))?))
                    };
                    let got = make(&rocm).and_then(|(x, y)| x.matmul(&y));
                    let want = make(&Device::Cpu).and_then(|(x, y)| {
                        widen(&x)?
                            .contiguous()?
                            .matmul(&widen(&y)?.contiguous()?)?
                            .to_dtype(dtype)
                    });
                    let what = format!("{m}x{k}x{n} {a:?} {b:?}");
                    report.compare("matmul", name(dtype), &what, 5e-4, got, want);
                }
            }
        }
        for (lhs, rhs) in [
            (&[3usize, 4, 5][..], &[3usize, 5, 6][..]),
            (&[2, 3, 4, 5], &[1, 1, 5, 6]),
            (&[1, 3, 4, 5], &[2, 1, 5, 6]),
        ] {
            let make = |d: &Device| -> Result<(Tensor, Tensor)> {
                let x = tensor(d, dtype, lhs, Arrangement::Contiguous, 43, (-1., 1.))?;
                Ok((
                    x,
                    tensor(d, dtype, rhs, Arrangement::Contiguous, 44, (-1., 1.))?,
                ))
            };
            let got = make(&rocm).and_then(|(x, y)| x.broadcast_matmul(&y));
            let want = make(&Device::Cpu)
                .and_then(|(x, y)| widen(&x)?.broadcast_matmul(&widen(&y)?)?.to_dtype(dtype));
            report.compare(
                "matmul",
                name(dtype),
                &format!("{lhs:?} {rhs:?}"),
                5e-4,
                got,
                want,
            );
        }
        // Batches whose matrices are transposed views, as attention makes them.
        let make = |d: &Device| -> Result<(Tensor, Tensor)> {
            let q = tensor(
                d,
                dtype,
                &[2, 6, 3, 8],
                Arrangement::Contiguous,
                45,
                (-1., 1.),
            )?
            .transpose(1, 2)?;
            let k = tensor(
                d,
                dtype,
                &[2, 6, 3, 8],
                Arrangement::Contiguous,
                46,
                (-1., 1.),
            )?
            .transpose(1, 2)?;
            Ok((q, k.t()?))
        };
        let got = make(&rocm).and_then(|(x, y)| x.matmul(&y));
        let want = make(&Device::Cpu).and_then(|(x, y)| {
            widen(&x)?
                .contiguous()?
                .matmul(&widen(&y)?.contiguous()?)?
                .to_dtype(dtype)
        });
        report.compare("matmul", name(dtype), "attention", 5e-4, got, want);
    }
    Ok(())
}

fn layers(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let sizes = [(3, 33), (2, 576), (4, 64), (1, 1), (3, 1500), (1, 5000)];
        for &(rows, width) in context.first(2, &sizes) {
            for &arrangement in context.arrangements() {
                let make =
                    |d: &Device| tensor(d, dtype, &[rows, 2, width], arrangement, 51, (-3., 3.));
                let param = |d: &Device, seed| {
                    tensor(d, dtype, &[width], Arrangement::Contiguous, seed, (-1., 1.))
                };
                let what = format!("{rows}x{width} {arrangement:?}");
                let narrow = |t: Tensor| t.to_dtype(dtype);

                let got =
                    make(&rocm).and_then(|t| candle_nn::ops::softmax_last_dim(&t.contiguous()?));
                let want = make(&Device::Cpu)
                    .and_then(|t| narrow(candle_nn::ops::softmax(&widen(&t)?, D::Minus1)?));
                report.compare("softmax_last_dim", name(dtype), &what, 1e-6, got, want);

                let got = make(&rocm).and_then(|t| candle_nn::ops::sigmoid(&t));
                let want =
                    make(&Device::Cpu).and_then(|t| narrow(candle_nn::ops::sigmoid(&widen(&t)?)?));
                report.compare("sigmoid", name(dtype), &what, 1e-6, got, want);

                let got = make(&rocm).and_then(|t| {
                    candle_nn::ops::rms_norm(&t.contiguous()?, &param(&rocm, 52)?, 1e-5)
                });
                let want = make(&Device::Cpu).and_then(|t| {
                    let t = widen(&t)?;
                    let scale = ((t.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?).sqrt()?;
                    narrow(
                        t.broadcast_div(&scale)?
                            .broadcast_mul(&widen(&param(&Device::Cpu, 52)?)?)?,
                    )
                });
                report.compare("rms_norm", name(dtype), &what, 1e-6, got, want);

                let got = make(&rocm).and_then(|t| {
                    candle_nn::ops::layer_norm(
                        &t.contiguous()?,
                        &param(&rocm, 52)?,
                        &param(&rocm, 53)?,
                        1e-5,
                    )
                });
                let want = make(&Device::Cpu).and_then(|t| {
                    let t = widen(&t)?;
                    let t = t.broadcast_sub(&t.mean_keepdim(D::Minus1)?)?;
                    let scale = ((t.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?).sqrt()?;
                    let t = t
                        .broadcast_div(&scale)?
                        .broadcast_mul(&widen(&param(&Device::Cpu, 52)?)?)?;
                    narrow(t.broadcast_add(&widen(&param(&Device::Cpu, 53)?)?)?)
                });
                report.compare("layer_norm", name(dtype), &what, 1e-6, got, want);
            }
        }
        type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
        let ropes: [(&str, Rope, [usize; 4]); 3] = [
            ("rope", candle_nn::rotary_emb::rope, [2, 3, 5, 16]),
            ("rope_i", candle_nn::rotary_emb::rope_i, [2, 3, 5, 16]),
            ("rope_thd", candle_nn::rotary_emb::rope_thd, [2, 5, 3, 16]),
        ];
        for (op, rope, shape) in ropes {
            for batched in [false, true] {
                let f = |d: &Device, dtype| {
                    let angles: &[usize] = if batched { &[2, 5, 8] } else { &[5, 8] };
                    let x = tensor(
                        &Device::Cpu,
                        DType::BF16,
                        &shape,
                        Arrangement::Contiguous,
                        54,
                        (-1., 1.),
                    )?;
                    let part = |seed| {
                        tensor(
                            &Device::Cpu,
                            DType::BF16,
                            angles,
                            Arrangement::Contiguous,
                            seed,
                            (-1., 1.),
                        )
                    };
                    let [x, cos, sin] = [x, part(55)?, part(56)?]
                        .map(|t| t.to_dtype(dtype).and_then(|t| t.to_device(d)));
                    rope(&x?, &cos?, &sin?)
                };
                let want = f(&Device::Cpu, DType::F32).and_then(|t| t.to_dtype(dtype));
                // f16 and bf16 round each product.
                let limit = if dtype == DType::F32 { 1e-7 } else { 1e-4 };
                report.compare(
                    op,
                    name(dtype),
                    &format!("batched {batched}"),
                    limit,
                    f(&rocm, dtype),
                    want,
                );
            }
        }
    }
    Ok(())
}

fn random_numbers(context: &Context, report: &mut Report) -> Result<()> {
    let device = context.device.clone();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for count in [1usize, 7, 10_001] {
            device.set_seed(42)?;
            let uniform = Tensor::rand(0f32, 1., count, &device)?.to_dtype(dtype)?;
            let normal = Tensor::randn(0f32, 1., count, &device)?;
            device.set_seed(42)?;
            let again = Tensor::rand(0f32, 1., count, &device)?.to_dtype(dtype);
            let mean = uniform
                .to_dtype(DType::F64)?
                .mean_all()?
                .to_scalar::<f64>()?;
            let spread = normal.sqr()?.mean_all()?.to_scalar::<f32>()?;
            if count > 10_000 {
                ensure!((mean - 0.5).abs() < 0.02, "mean {mean}");
                ensure!((spread - 1.).abs() < 0.05, "variance {spread}");
            }
            report.compare(
                "rand",
                name(dtype),
                &format!("{count}"),
                0.,
                Ok(uniform),
                again,
            );
        }
    }
    Ok(())
}

fn copies_between_devices(context: &Context, _: &mut Report) -> Result<()> {
    let first = context.device.clone();
    let second = context.another_stream()?;
    ensure!(!first.same_device(&second));
    let there = Tensor::arange(0f32, 1000., &first)?
        .affine(2., 1.)?
        .to_device(&second)?;
    let back = there
        .affine(0.5, -0.5)?
        .to_device(&first)?
        .to_device(&Device::Cpu)?;
    ensure_eq!(
        back.to_vec1::<f32>()?,
        Tensor::arange(0f32, 1000., &Device::Cpu)?.to_vec1::<f32>()?
    );
    // Tensors of different streams do not meet by accident.
    let outcome = there.add(&Tensor::arange(0f32, 1000., &first)?);
    let error = error_of(outcome, "an operation on two streams")?;
    ensure!(error.contains("device mismatch"), "{error}");
    Ok(())
}

fn every_float_dtype_survives_the_round_trip(context: &Context, _: &mut Report) -> Result<()> {
    for dtype in FLOATS {
        let t = tensor(
            &Device::Cpu,
            dtype,
            &[3, 5],
            Arrangement::Contiguous,
            71,
            (-9., 9.),
        )?;
        let back = t.to_device(&context.device)?.to_device(&Device::Cpu)?;
        ensure_eq!(crate::to_f64(&back)?, crate::to_f64(&t)?);
    }
    Ok(())
}
