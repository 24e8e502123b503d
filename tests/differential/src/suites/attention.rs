//! candle-nn's scaled dot product attention against the textbook in f64.

use crate::{name, tensor, widen, Arrangement, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor, D};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[Suite::listed("attention", sdpa)];

struct Case {
    heads: usize,
    kv_heads: usize,
    rows: usize,
    columns: usize,
    width: usize,
    causal: bool,
    mask: bool,
    cap: f32,
}

const PLAIN: Case = Case {
    heads: 3,
    kv_heads: 3,
    rows: 5,
    columns: 7,
    width: 16,
    causal: false,
    mask: false,
    cap: 1.,
};

/// softmax(cap tanh(q kᵀ scale / cap) + mask) v, with keys and values repeated for the heads that share them.
fn textbook(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    case: &Case,
    scale: f64,
) -> Result<Tensor> {
    let (b, _, s, d) = k.dims4()?;
    let group = case.heads / case.kv_heads;
    let repeat = |t: &Tensor| {
        t.unsqueeze(2)?
            .broadcast_as((b, case.kv_heads, group, s, d))?
            .contiguous()?
            .reshape((b, case.heads, s, d))
    };
    let (k, v) = (repeat(&k.contiguous()?)?, repeat(&v.contiguous()?)?);
    let mut scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale)?;
    let cap = f64::from(case.cap);
    if cap != 1. {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    if case.causal {
        let (rows, columns) = (case.rows, case.columns);
        let hidden = |i: usize| i % columns > i / columns + columns - rows;
        let values: Vec<f64> = (0..rows * columns)
            .map(|i| if hidden(i) { f64::NEG_INFINITY } else { 0. })
            .collect();
        scores = scores.broadcast_add(&Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)?;
    }
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)
}

fn sdpa(context: &Context, report: &mut Report) -> Result<()> {
    let cases = [
        PLAIN,
        Case { rows: 1, ..PLAIN },
        Case {
            heads: 6,
            kv_heads: 2,
            ..PLAIN
        },
        Case {
            heads: 4,
            kv_heads: 1,
            rows: 1,
            columns: 33,
            width: 80,
            ..PLAIN
        },
        Case {
            causal: true,
            ..PLAIN
        },
        Case {
            causal: true,
            rows: 7,
            heads: 6,
            ..PLAIN
        },
        Case {
            mask: true,
            ..PLAIN
        },
        Case { cap: 30., ..PLAIN },
    ];
    let rocm = context.device.clone();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for case in &cases {
            for arrangement in [Arrangement::Contiguous, Arrangement::Narrowed] {
                let scale = 1. / (case.width as f64).sqrt();
                let make = |d: &Device| -> Result<[Tensor; 4]> {
                    let part = |heads, length, seed| {
                        tensor(
                            d,
                            dtype,
                            &[2, heads, length, case.width],
                            arrangement,
                            seed,
                            (-2., 2.),
                        )
                    };
                    let (q, k, v) = (
                        part(case.heads, case.rows, 1)?,
                        part(case.kv_heads, case.columns, 2)?,
                        part(case.kv_heads, case.columns, 3)?,
                    );
                    let mask = [1, 1, case.rows, case.columns];
                    Ok([
                        q,
                        k,
                        v,
                        tensor(d, dtype, &mask, Arrangement::Contiguous, 4, (-3., 0.))?,
                    ])
                };
                let got = make(&rocm).and_then(|[q, k, v, m]| {
                    let mask = case.mask.then_some(&m);
                    candle_nn::ops::sdpa(&q, &k, &v, mask, case.causal, scale as f32, case.cap)
                });
                let want = make(&Device::Cpu).and_then(|parts| {
                    let [q, k, v, m] = parts.map(|t| widen(&t));
                    let m = m?;
                    textbook(&q?, &k?, &v?, case.mask.then_some(&m), case, scale)?.to_dtype(dtype)
                });
                let what = format!(
                    "{}/{} {}x{} causal {} mask {} cap {} {arrangement:?}",
                    case.heads,
                    case.kv_heads,
                    case.rows,
                    case.columns,
                    case.causal,
                    case.mask,
                    case.cap
                );
                report.compare("sdpa", name(dtype), &what, 5e-4, got, want);
            }
        }
    }
    Ok(())
}
