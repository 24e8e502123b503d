//! Views with offsets through every family of operations: each operand lies inside a larger tensor, in one of several
//! ways, and the result must be that of the CPU on compact copies. An offset that is lost, counted twice or taken for
//! bytes shows at once.

use crate::{values, Context, Report, Suite};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{fused, ops, rotary_emb, Activation};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[Suite::listed(
    "views",
    every_family_takes_views_with_offsets,
)];

/// How an operand lies inside its storage.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Dense, behind five other elements.
    Behind,
    /// Dense, the second of three of its kind.
    Second,
    /// A window: two steps into every dimension of a larger tensor.
    Window,
    /// A window of a tensor whose last two dimensions are swapped.
    Turned,
}

const DENSE: &[Place] = &[Place::Behind, Place::Second];
const ANY: &[Place] = &[Place::Behind, Place::Second, Place::Window, Place::Turned];

#[derive(Clone, Copy)]
enum Operand {
    /// Floats in [-2, 2).
    Float(&'static [usize]),
    /// Floats in [0.5, 2).
    Positive(&'static [usize]),
    /// u32 below a bound.
    Ids(&'static [usize], u32),
}
use Operand::{Float, Ids, Positive};

impl Operand {
    fn make(self, device: &Device, dtype: DType, place: Place, seed: u64) -> Result<Tensor> {
        let (shape, dtype, low, high) = match self {
            Float(shape) => (shape, dtype, -2., 2.),
            Positive(shape) => (shape, dtype, 0.5, 2.),
            Ids(shape, below) => (shape, DType::U32, 0., f64::from(below) - 0.01),
        };
        let make = |dims: &[usize]| {
            let numbers = values(dims.iter().product(), seed, low, high);
            let tensor = Tensor::from_vec(numbers, dims, &Device::Cpu)?;
            tensor.to_dtype(dtype)?.to_device(device)
        };
        let window = |mut tensor: Tensor, shape: &[usize]| {
            for (dim, &size) in shape.iter().enumerate() {
                tensor = tensor.narrow(dim, 2, size)?;
            }
            Ok(tensor)
        };
        let count: usize = shape.iter().product();
        let larger = |shape: &[usize]| shape.iter().map(|d| d + 3).collect::<Vec<_>>();
        match place {
            Place::Behind => make(&[count + 9])?.narrow(0, 5, count)?.reshape(shape),
            Place::Second => make(&[&[3], shape].concat())?.get(1),
            Place::Window => window(make(&larger(shape))?, shape),
            Place::Turned => {
                let mut swapped = shape.to_vec();
                let last = shape.len() - 1;
                swapped.swap(last.saturating_sub(1), last);
                window(make(&larger(&swapped))?, &swapped)?.transpose(last.saturating_sub(1), last)
            }
        }
    }
}

struct Op {
    name: &'static str,
    operands: &'static [Operand],
    /// What candle's own functions let through.
    places: &'static [Place],
    run: fn(&[Tensor]) -> Result<Tensor>,
}

const fn op(
    name: &'static str,
    operands: &'static [Operand],
    places: &'static [Place],
    run: fn(&[Tensor]) -> Result<Tensor>,
) -> Op {
    Op {
        name,
        operands,
        places,
        run,
    }
}

const X: Operand = Float(&[3, 4, 6]);
const IMAGE: Operand = Float(&[2, 3, 6, 8]);
const HEADS: Operand = Float(&[2, 3, 5, 8]);

/// Every family of the device layer.
const OPS: &[Op] = &[
    op("affine", &[X], ANY, |t| t[0].affine(2., 1.)),
    op("powf", &[Positive(&[3, 4, 6])], ANY, |t| t[0].powf(1.5)),
    op("elu", &[X], ANY, |t| t[0].elu(0.7)),
    op("unary", &[X], ANY, |t| t[0].gelu_erf()),
    op("sigmoid", &[X], ANY, |t| ops::sigmoid(&t[0])),
    op("binary", &[X, X], ANY, |t| &t[0] - &t[1]),
    op("broadcast binary", &[X, Float(&[4, 1])], ANY, |t| {
        t[0].broadcast_mul(&t[1])
    }),
    op("compare", &[X, X], ANY, |t| t[0].lt(&t[1])),
    op("cast", &[X], ANY, |t| t[0].to_dtype(DType::F64)),
    op("where_cond", &[Ids(&[3, 4, 6], 2), X, X], ANY, |t| {
        t[0].where_cond(&t[1], &t[2])
    }),
    op("sum", &[X], ANY, |t| t[0].sum((0, 2))),
    op("max", &[X], ANY, |t| t[0].max(1)),
    op("argmin", &[X], ANY, |t| t[0].argmin(2)),
    op("index_select", &[X, Ids(&[5], 4)], ANY, |t| {
        t[0].index_select(&t[1], 1)
    }),
    op("gather", &[X, Ids(&[3, 2, 6], 4)], ANY, |t| {
        t[0].gather(&t[1], 1)
    }),
    op(
        "scatter_add",
        &[X, Ids(&[3, 2, 6], 4), Float(&[3, 2, 6])],
        ANY,
        |t| t[0].scatter_add(&t[1], &t[2], 1),
    ),
    op(
        "index_add",
        &[X, Ids(&[5], 4), Float(&[3, 5, 6])],
        ANY,
        |t| t[0].index_add(&t[1], &t[2], 1),
    ),
    op("contiguous", &[X], ANY, |t| t[0].force_contiguous()),
    op("cat", &[X, Float(&[3, 2, 6])], ANY, |t| Tensor::cat(t, 1)),
    op("slice_set", &[X, Float(&[3, 2, 6])], DENSE, |t| {
        let target = t[0].force_contiguous()?;
        target.slice_set(&t[1], 1, 1)?;
        Ok(target)
    }),
    op("const_set", &[X], DENSE, |t| {
        let target = t[0].force_contiguous()?;
        target
            .narrow(1, 1, 2)?
            .const_set(candle_core::scalar::Scalar::one(t[0].dtype()))?;
        Ok(target)
    }),
    op(
        "matmul",
        &[Float(&[2, 4, 5]), Float(&[2, 5, 6])],
        ANY,
        |t| t[0].matmul(&t[1]),
    ),
    op(
        "conv1d",
        &[Float(&[2, 4, 9]), Float(&[6, 2, 3])],
        ANY,
        |t| t[0].conv1d(&t[1], 1, 1, 1, 2),
    ),
    op("conv2d", &[IMAGE, Float(&[4, 3, 3, 2])], ANY, |t| {
        t[0].conv2d(&t[1], 1, 2, 1, 1)
    }),
    op(
        "conv_transpose1d",
        &[Float(&[1, 4, 5]), Float(&[4, 3, 3])],
        ANY,
        |t| t[0].conv_transpose1d(&t[1], 1, 0, 2, 1, 1),
    ),
    op(
        "conv_transpose2d",
        &[Float(&[1, 3, 4, 5]), Float(&[3, 2, 3, 3])],
        ANY,
        |t| t[0].conv_transpose2d(&t[1], 1, 0, 2, 1),
    ),
    op("avg_pool2d", &[IMAGE], ANY, |t| t[0].avg_pool2d((2, 3))),
    op("max_pool2d", &[IMAGE], ANY, |t| {
        t[0].max_pool2d_with_stride((3, 2), (1, 2))
    }),
    op("upsample_nearest1d", &[Float(&[2, 3, 5])], ANY, |t| {
        t[0].upsample_nearest1d(7)
    }),
    op("upsample_nearest2d", &[IMAGE], ANY, |t| {
        t[0].upsample_nearest2d(9, 5)
    }),
    op("upsample_bilinear2d", &[IMAGE], ANY, |t| {
        t[0].upsample_bilinear2d(9, 5, false)
    }),
    op("arg_sort", &[X], DENSE, |t| t[0].arg_sort_last_dim(true)),
    op("softmax_last_dim", &[X], DENSE, |t| {
        ops::softmax_last_dim(&t[0])
    }),
    op("rms_norm", &[X, Float(&[6])], DENSE, |t| {
        ops::rms_norm(&t[0], &t[1], 1e-5)
    }),
    op("layer_norm", &[X, Float(&[6]), Float(&[6])], DENSE, |t| {
        ops::layer_norm(&t[0], &t[1], &t[2], 1e-5)
    }),
    op(
        "rope",
        &[HEADS, Float(&[5, 4]), Float(&[5, 4])],
        DENSE,
        |t| rotary_emb::rope(&t[0], &t[1], &t[2]),
    ),
    op(
        "rope_i",
        &[HEADS, Float(&[5, 4]), Float(&[5, 4])],
        DENSE,
        |t| rotary_emb::rope_i(&t[0], &t[1], &t[2]),
    ),
    op(
        "rope_thd",
        &[Float(&[2, 5, 3, 8]), Float(&[5, 4]), Float(&[5, 4])],
        DENSE,
        |t| rotary_emb::rope_thd(&t[0], &t[1], &t[2]),
    ),
    op("sdpa", &[HEADS, HEADS, HEADS], ANY, |t| {
        // Written out for the CPU.
        if t[0].device().is_cpu() {
            let scores = (t[0].matmul(&t[1].t()?)? * 0.3)?;
            return ops::softmax(&scores, 3)?.matmul(&t[2]);
        }
        ops::sdpa(&t[0], &t[1], &t[2], None, false, 0.3, 1.)
    }),
    op("add_rms_norm", &[X, X, Float(&[6])], ANY, |t| {
        Ok(fused::add_rms_norm(&t[0], &t[1], &t[2], 1e-5)?.1)
    }),
    op(
        "add_layer_norm",
        &[X, X, Float(&[6]), Float(&[6])],
        ANY,
        |t| Ok(fused::add_layer_norm(&t[0], &t[1], &t[2], Some(&t[3]), 1e-5)?.1),
    ),
    op("gate_mul", &[X, X], ANY, |t| {
        fused::gate_mul(Activation::Silu, &t[0], &t[1])
    }),
    op(
        "moe_gemm",
        &[Float(&[3, 8]), Float(&[2, 5, 8]), Ids(&[3], 2)],
        DENSE,
        |t| {
            let slots = Tensor::new(&[9u32, 2, 0, 1], t[0].device())?.narrow(0, 1, 3)?;
            candle_nn::moe::moe_gemm(&t[0], &t[1], &None, &slots, &t[2], 1, false)
        },
    ),
    op("quantized matmul", &[Float(&[3, 32])], DENSE, |t| {
        let weights = Tensor::from_vec(values(7 * 32, 9, -1., 1.), (7, 32), &Device::Cpu)?;
        let weights = QTensor::quantize_onto(
            &weights.to_dtype(DType::F32)?,
            GgmlDType::Q8_0,
            t[0].device(),
        )?;
        let result = QMatMul::from_qtensor(weights)?.forward(&t[0].to_dtype(DType::F32)?)?;
        result.to_dtype(t[0].dtype())
    }),
];

fn every_family_takes_views_with_offsets(context: &Context, report: &mut Report) -> Result<()> {
    let rocm = context.device.clone();
    for op in OPS {
        // 4 and 2 bytes: an offset taken for bytes would be wrong by different factors.
        for dtype in [DType::F32, DType::F16] {
            for place in context.first(3, op.places) {
                let make = |device: &Device| -> Result<Vec<Tensor>> {
                    let operands = op.operands.iter().zip(1..);
                    operands
                        .map(|(operand, seed)| operand.make(device, dtype, *place, seed))
                        .collect()
                };
                let got = make(&rocm).and_then(|operands| {
                    ensure!(operands.iter().all(|t| t.layout().start_offset() > 0));
                    (op.run)(&operands)
                });
                // On compact copies, in f32: the CPU rounds f16 after every step.
                let want = make(&Device::Cpu).and_then(|operands| {
                    let compact: Result<Vec<Tensor>> = operands
                        .iter()
                        .map(|t| {
                            let t = t.force_contiguous()?;
                            if t.dtype() == DType::F16 {
                                t.to_dtype(DType::F32)
                            } else {
                                Ok(t)
                            }
                        })
                        .collect();
                    (op.run)(&compact?)
                });
                let want = want.and_then(|want| {
                    let same = got.as_ref().map_or(want.dtype(), Tensor::dtype);
                    want.to_dtype(same)
                });
                let limit = match (op.name, dtype) {
                    ("quantized matmul" | "sdpa" | "matmul" | "moe_gemm", _) => 5e-4,
                    (_, DType::F16) => 1e-5,
                    _ => 1e-6,
                };
                report.compare(
                    op.name,
                    dtype.as_str(),
                    &format!("{place:?}"),
                    limit,
                    got,
                    want,
                );
            }
        }
    }
    Ok(())
}
