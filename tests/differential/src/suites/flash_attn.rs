//! The functions of candle-rocm-flash-attn, on the GPU and on the CPU, against the textbook in f64.

use crate::{error_of, name, tensor, to_f64, Arrangement, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_rocm_flash_attn as flash;

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::listed("flash_attn", every_function),
    Suite::unlisted("flash-attn-refusals", what_is_refused),
];

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 24;
const SCALE: f32 = 0.3;
const BLOCK: usize = 4;

/// What a function is told besides tensors.
#[derive(Clone, Default)]
struct Options {
    left: Option<usize>,
    right: Option<usize>,
    alibi: bool,
    softcap: Option<f32>,
    prefix: Option<[i64; 2]>,
}

/// Rows and keys of each sequence.
type Lengths = Vec<(usize, usize)>;

/// Row-major results of all sequences, `[rows of all, heads, size]`.
fn textbook(q: &[f64], k: &[f64], v: &[f64], lengths: &Lengths, options: &Options) -> Vec<f64> {
    let slope = |head: usize| 0.5f64.powi(head as i32 + 1);
    let mut out = Vec::new();
    let (mut first_row, mut first_key) = (0, 0);
    for &(rows, keys) in lengths {
        for (row, head) in (0..rows).flat_map(|row| (0..HEADS).map(move |head| (row, head))) {
            let p = row as i64 + keys as i64 - rows as i64;
            let at = |key: usize| ((first_key + key) * KV_HEADS + head / (HEADS / KV_HEADS)) * SIZE;
            let q = &q[((first_row + row) * HEADS + head) * SIZE..][..SIZE];
            let mut weights = Vec::new();
            for key in 0..keys {
                let j = key as i64;
                let inside =
                    |[from, to]: [i64; 2]| (from..to).contains(&p) && (from..to).contains(&j);
                let seen = options.left.is_none_or(|left| j >= p - left as i64)
                    && options.right.is_none_or(|right| j <= p + right as i64);
                if !seen && !options.prefix.is_some_and(inside) {
                    continue;
                }
                let dot: f64 = q.iter().zip(&k[at(key)..]).map(|(a, b)| a * b).sum();
                let mut score = dot * f64::from(SCALE);
                if let Some(cap) = options.softcap.map(f64::from) {
                    score = cap * (score / cap).tanh();
                }
                if options.alibi {
                    score -= slope(head) * (p - j).abs() as f64;
                }
                weights.push((key, score.exp()));
            }
            let sum: f64 = weights.iter().map(|w| w.1).sum();
            for column in 0..SIZE {
                out.push(
                    weights
                        .iter()
                        .map(|(key, w)| w / sum * v[at(*key) + column])
                        .sum(),
                );
            }
        }
        first_row += rows;
        first_key += keys;
    }
    out
}

/// Tensors on a device: packed, padded to one length, and in blocks.
struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor,
    rows: Tensor,
    keys: Tensor,
    max_rows: usize,
    max_keys: usize,
}

impl Inputs {
    fn new(
        device: &Device,
        dtype: DType,
        arrangement: Arrangement,
        lengths: &Lengths,
    ) -> Result<Self> {
        let total = |of: fn(&(usize, usize)) -> usize| lengths.iter().map(of).sum::<usize>();
        let part = |length, heads, seed| {
            tensor(
                device,
                dtype,
                &[length, heads, SIZE],
                arrangement,
                seed,
                (-2., 2.),
            )
        };
        let sums = |of: fn(&(usize, usize)) -> usize| {
            let mut sums = vec![0u32];
            for length in lengths {
                sums.push(sums[sums.len() - 1] + of(length) as u32);
            }
            Tensor::new(sums, device)
        };
        let slopes: Vec<f32> = (0..HEADS)
            .map(|head| 0.5f32.powi(head as i32 + 1))
            .collect();
        Ok(Inputs {
            q: part(total(|l| l.0), HEADS, 1)?,
            k: part(total(|l| l.1), KV_HEADS, 2)?,
            v: part(total(|l| l.1), KV_HEADS, 3)?,
            slopes: Tensor::new(slopes, device)?,
            rows: sums(|l| l.0)?,
            keys: sums(|l| l.1)?,
            max_rows: lengths.iter().map(|l| l.0).max().unwrap_or(0),
            max_keys: lengths.iter().map(|l| l.1).max().unwrap_or(0),
        })
    }

    /// As sequences of one length.
    fn batched(&self) -> Result<[Tensor; 3]> {
        let split = |t: &Tensor, length: usize| {
            let heads = t.dim(1)?;
            t.reshape((t.dim(0)? / length, length, heads, SIZE))
        };
        Ok([
            split(&self.q, self.max_rows)?,
            split(&self.k, self.max_keys)?,
            split(&self.v, self.max_keys)?,
        ])
    }

    /// Keys, values and block table of a cache whose blocks are in reverse order.
    fn paged(&self, lengths: &Lengths) -> Result<[Tensor; 3]> {
        let device = self.q.device();
        let width = self.max_keys.div_ceil(BLOCK);
        let blocks = width * lengths.len();
        let cache = |t: &Tensor| -> Result<Tensor> {
            let mut first = 0;
            let mut parts = Vec::new();
            for &(_, keys) in lengths {
                let part = t.narrow(0, first, keys)?;
                let pad = width * BLOCK - keys;
                let part = part.pad_with_zeros(0, 0, pad)?;
                parts.push(part.reshape((width, BLOCK, KV_HEADS, SIZE))?);
                first += keys;
            }
            let order: Vec<u32> = (0..blocks as u32).rev().collect();
            Tensor::cat(&parts, 0)?.index_select(&Tensor::new(order, device)?, 0)
        };
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        Ok([
            cache(&self.k)?,
            cache(&self.v)?,
            Tensor::from_vec(table, (lengths.len(), width), device)?,
        ])
    }
}

type Call = fn(&Inputs, &Lengths) -> Result<Tensor>;

fn batched_functions() -> Vec<(&'static str, Options, Call)> {
    let causal = Options {
        right: Some(0),
        ..Options::default()
    };
    let window = Options {
        left: Some(3),
        right: Some(1),
        ..Options::default()
    };
    let alibi = |options: &Options| Options {
        alibi: true,
        ..options.clone()
    };
    let capped = Options {
        softcap: Some(1.5),
        ..alibi(&window)
    };
    vec![
        ("flash_attn", Options::default(), |i, _| {
            let [q, k, v] = i.batched()?;
            flash::flash_attn(&q, &k, &v, SCALE, false)
        }),
        ("flash_attn", causal.clone(), |i, _| {
            let [q, k, v] = i.batched()?;
            flash::flash_attn(&q, &k, &v, SCALE, true)
        }),
        ("flash_attn_windowed", window.clone(), |i, _| {
            let [q, k, v] = i.batched()?;
            flash::flash_attn_windowed(&q, &k, &v, SCALE, Some(3), Some(1))
        }),
        ("flash_attn_alibi", alibi(&causal), |i, _| {
            let [q, k, v] = i.batched()?;
            flash::flash_attn_alibi(&q, &k, &v, &i.slopes, SCALE, true)
        }),
        ("flash_attn_alibi_windowed", alibi(&window), |i, _| {
            let [q, k, v] = i.batched()?;
            flash::flash_attn_alibi_windowed(&q, &k, &v, &i.slopes, SCALE, Some(3), Some(1))
        }),
        ("flash_attn_alibi_windowed_softcap", capped, |i, _| {
            let [q, k, v] = i.batched()?;
            let slopes = Some(&i.slopes);
            let (left, right) = (Some(3), Some(1));
            flash::flash_attn_alibi_windowed_softcap(&q, &k, &v, slopes, SCALE, left, right, 1.5)
        }),
    ]
}

fn packed_functions() -> Vec<(&'static str, Options, Call)> {
    let causal = Options {
        right: Some(0),
        ..Options::default()
    };
    let left = Options {
        left: Some(2),
        ..Options::default()
    };
    let alibi = |options: &Options| Options {
        alibi: true,
        ..options.clone()
    };
    let capped = Options {
        softcap: Some(1.5),
        ..causal.clone()
    };
    let paged = Options {
        left: Some(2),
        right: Some(0),
        softcap: Some(2.),
        prefix: Some([1, 5]),
        ..Options::default()
    };
    vec![
        ("flash_attn_varlen", Options::default(), |i, _| {
            flash::flash_attn_varlen(
                &i.q, &i.k, &i.v, &i.rows, &i.keys, i.max_rows, i.max_keys, SCALE, false,
            )
        }),
        ("flash_attn_varlen_windowed", left, |i, _| {
            flash::flash_attn_varlen_windowed(
                &i.q,
                &i.k,
                &i.v,
                &i.rows,
                &i.keys,
                i.max_rows,
                i.max_keys,
                SCALE,
                Some(2),
                None,
            )
        }),
        ("flash_attn_varlen_alibi", alibi(&causal), |i, _| {
            flash::flash_attn_varlen_alibi(
                &i.q, &i.k, &i.v, &i.slopes, &i.rows, &i.keys, i.max_rows, i.max_keys, SCALE, true,
            )
        }),
        (
            "flash_attn_varlen_alibi_windowed",
            alibi(&causal),
            |i, _| {
                flash::flash_attn_varlen_alibi_windowed(
                    &i.q,
                    &i.k,
                    &i.v,
                    &i.slopes,
                    &i.rows,
                    &i.keys,
                    i.max_rows,
                    i.max_keys,
                    SCALE,
                    None,
                    Some(0),
                )
            },
        ),
        (
            "flash_attn_varlen_alibi_windowed_softcap",
            capped,
            |i, _| {
                flash::flash_attn_varlen_alibi_windowed_softcap(
                    &i.q,
                    &i.k,
                    &i.v,
                    None,
                    &i.rows,
                    &i.keys,
                    i.max_rows,
                    i.max_keys,
                    SCALE,
                    None,
                    Some(0),
                    1.5,
                )
            },
        ),
        ("flash_attn_varlen_paged_windowed", paged, |i, lengths| {
            let [k, v, table] = i.paged(lengths)?;
            let ranges = [1i32, 5].repeat(lengths.len());
            let prefix = Tensor::from_vec(ranges, (lengths.len(), 1, 2), i.q.device())?;
            flash::flash_attn_varlen_paged_windowed(
                &i.q,
                &k,
                &v,
                &i.rows,
                &i.keys,
                &table,
                Some(&prefix),
                i.max_rows,
                i.max_keys,
                SCALE,
                Some(2),
                Some(0),
                BLOCK,
                Some(2.),
            )
        }),
    ]
}

fn every_function(context: &Context, report: &mut Report) -> Result<()> {
    let devices = [("rocm", context.device.clone()), ("cpu", Device::Cpu)];
    let problems: [(Lengths, _); 3] = [
        (vec![(5, 9); 2], batched_functions()),
        (vec![(20, 9); 2], batched_functions()),
        (vec![(3, 11), (40, 40)], packed_functions()),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (lengths, functions) in &problems {
            for (function, options, call) in functions {
                for &arrangement in
                    context.first(1, &[Arrangement::Contiguous, Arrangement::Narrowed])
                {
                    let want =
                        Inputs::new(&Device::Cpu, dtype, arrangement, lengths).and_then(|i| {
                            let [q, k, v] = [to_f64(&i.q)?, to_f64(&i.k)?, to_f64(&i.v)?];
                            let out = textbook(&q, &k, &v, lengths, options);
                            Tensor::from_vec(out, i.q.shape(), &Device::Cpu)
                        });
                    for (place, device) in &devices {
                        let got = Inputs::new(device, dtype, arrangement, lengths)
                            .and_then(|i| call(&i, lengths)?.reshape(i.q.shape()));
                        let want = want.as_ref().map(Tensor::clone);
                        let want = want.map_err(|e| candle_core::Error::Msg(e.to_string()));
                        let what = format!("{place} {lengths:?} {arrangement:?}");
                        report.compare(function, name(dtype), &what, 5e-4, got, want);
                    }
                }
            }
        }
    }
    Ok(())
}

fn what_is_refused(context: &Context, _: &mut Report) -> Result<()> {
    for device in [context.device.clone(), Device::Cpu] {
        let make = |dims: &[usize], dtype| Tensor::ones(dims, dtype, &device);
        let q = make(&[1, 3, 4, 16], DType::F16)?;
        let attend = |q: &Tensor, k: &Tensor| flash::flash_attn(q, k, k, 1., false);
        let text = |result: Result<Tensor>| error_of(result, "what is refused");
        ensure!(attend(&q, &q).is_ok());
        ensure!(text(attend(
            &make(&[1, 3, 4, 12], DType::F16)?,
            &make(&[1, 3, 4, 12], DType::F16)?
        ))?
        .contains("multiple of 8"));
        ensure!(text(attend(
            &make(&[1, 3, 1, 520], DType::F16)?,
            &make(&[1, 3, 1, 520], DType::F16)?
        ))?
        .contains("512"));
        ensure!(text(attend(&q.to_dtype(DType::F64)?, &q.to_dtype(DType::F64)?))?.contains("f16"));
        ensure!(text(attend(&q, &make(&[1, 3, 4, 16], DType::BF16)?))?.contains("one dtype"));
        ensure!(attend(&q, &make(&[1, 3, 3, 16], DType::F16)?).is_err());
        ensure!(attend(&q, &make(&[2, 3, 4, 16], DType::F16)?).is_err());
        let slopes = make(&[3], DType::F32)?;
        ensure!(flash::flash_attn_alibi(&q, &q, &q, &slopes, 1., false).is_err());
        // A cache has no gradient, and backward says so.
        let var = Var::from_tensor(&make(&[3, 4, 16], DType::F32)?)?;
        let cache = make(&[2, 4, 4, 16], DType::F32)?;
        let (starts, table) = (
            Tensor::new(&[0u32, 3], &device)?,
            Tensor::new(&[[1u32]], &device)?,
        );
        let (q, none) = (var.as_tensor(), None);
        let out = flash::flash_attn_varlen_paged_windowed(
            q, &cache, &cache, &starts, &starts, &table, none, 3, 3, 1., None, None, 4, None,
        )?;
        let error = error_of(out.sum_all()?.backward(), "a gradient")?;
        ensure!(error.contains("paged cache"), "{error}");
    }
    Ok(())
}
