//! The paged cache of candle-rocm-flash-attn, on the GPU and on the CPU, against the textbook in f64: written in pieces
//! with the rotary embedding fused, then read in place.

use crate::{name, tensor, to_f64, Arrangement, Context, Report, Suite};
use candle_core::{DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::{
    Attend, CacheDType, CacheFormat, CacheShape, PagedBatch, PagedCache, PagedSequence, Rotary,
};

/// What there is here.
pub(super) const SUITES: &[Suite] = &[
    Suite::on_cpu("paged-on-the-cpu", on_the_cpu),
    Suite::unlisted("paged", on_the_gpu),
    Suite::on_cpu("paged-refusals", what_does_not_fit_is_refused),
];

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const SIZE: usize = 64;
const V_SIZE: usize = 32;
const PAIRS: usize = 16;
const BLOCK: usize = 8;
const SCALE: f32 = 0.2;

/// Lengths of two pieces of each sequence, and its blocks.
const SEQUENCES: [(usize, usize, [u32; 9]); 3] = [
    (40, 23, [7, 0, 25, 3, 11, 12, 2, 30, 9]),
    (5, 1, [8, 1, 0, 0, 0, 0, 0, 0, 0]),
    (16, 33, [20, 21, 5, 4, 6, 29, 31, 0, 0]),
];

struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

/// Tokens of all sequences, behind each other, of one piece.
fn inputs(device: &Device, dtype: DType, piece: u64, tokens: usize) -> Result<Inputs> {
    let make = |heads: usize, size: usize, seed| {
        let shape = [tokens, heads, size];
        let range = (-1.5, 1.5);
        tensor(
            device,
            dtype,
            &shape,
            Arrangement::Contiguous,
            seed + piece,
            range,
        )
    };
    Ok(Inputs {
        q: make(HEADS, SIZE, 10)?,
        k: make(KV_HEADS, SIZE, 20)?,
        v: make(KV_HEADS, V_SIZE, 30)?,
    })
}

fn rotary(device: &Device, interleaved: bool) -> Result<Rotary> {
    let table = |f: fn(f64) -> f64| -> Result<Tensor> {
        let values: Vec<f32> = (0..64 * PAIRS)
            .map(|i| f(angle(i / PAIRS, i % PAIRS)) as f32)
            .collect();
        Tensor::from_vec(values, (64, PAIRS), device)
    };
    Ok(Rotary {
        cos: table(f64::cos)?,
        sin: table(f64::sin)?,
        interleaved,
    })
}

fn angle(position: usize, pair: usize) -> f64 {
    position as f64 * 100f64.powf(-(pair as f64) / PAIRS as f64)
}

fn turned(x: &[f64], position: usize, interleaved: bool) -> Vec<f64> {
    let mut out = x.to_vec();
    for pair in 0..PAIRS {
        let (i, j) = if interleaved {
            (2 * pair, 2 * pair + 1)
        } else {
            (pair, pair + PAIRS)
        };
        let (sin, cos) = angle(position, pair).sin_cos();
        out[i] = x[i] * cos - x[j] * sin;
        out[j] = x[i] * sin + x[j] * cos;
    }
    out
}

/// What the second piece's rows are to give.
fn textbook(pieces: &[Inputs; 2], interleaved: bool, scores: &Attend) -> Result<Vec<f64>> {
    let sinks = scores.sinks.map(Tensor::to_vec1::<f32>).transpose()?;
    let values = |piece: &Inputs| -> Result<[Vec<f64>; 3]> {
        Ok([to_f64(&piece.q)?, to_f64(&piece.k)?, to_f64(&piece.v)?])
    };
    let pieces = [values(&pieces[0])?, values(&pieces[1])?];
    let mut out = Vec::new();
    let mut starts = [0, 0];
    for (first, second, _) in SEQUENCES {
        // The piece and the row of a position.
        let place = |position: usize| {
            if position < first {
                (0, starts[0] + position)
            } else {
                (1, starts[1] + position - first)
            }
        };
        for position in first..first + second {
            let (piece, row) = place(position);
            for head in 0..HEADS {
                let kv = head / (HEADS / KV_HEADS);
                let q = &pieces[piece][0][(row * HEADS + head) * SIZE..][..SIZE];
                let q = turned(q, position, interleaved);
                let window = scores.left.map_or(0, |left| position.saturating_sub(left));
                let chunk = scores.chunk.map_or(0, |chunk| position - position % chunk);
                let from = window.max(chunk);
                let weights: Vec<f64> = (from..=position)
                    .map(|j| {
                        let (piece, row) = place(j);
                        let k = &pieces[piece][1][(row * KV_HEADS + kv) * SIZE..][..SIZE];
                        let k = turned(k, j, interleaved);
                        let dot: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                        let score = dot * f64::from(SCALE);
                        scores
                            .softcap
                            .map_or(score, |cap| {
                                let cap = f64::from(cap);
                                cap * (score / cap).tanh()
                            })
                            .exp()
                    })
                    .collect();
                let sink = sinks.as_ref().map_or(0.0, |s| f64::from(s[head]).exp());
                let sum = sink + weights.iter().sum::<f64>();
                for i in 0..V_SIZE {
                    let weighted = weights.iter().enumerate().map(|(j, w)| {
                        let (piece, row) = place(from + j);
                        w * pieces[piece][2][(row * KV_HEADS + kv) * V_SIZE + i]
                    });
                    out.push(weighted.sum::<f64>() / sum);
                }
            }
        }
        starts = [starts[0] + first, starts[1] + second];
    }
    Ok(out)
}

fn compare(
    report: &mut Report,
    device: &Device,
    dtype: DType,
    stored: impl Into<CacheFormat>,
    limit: f64,
) -> Result<()> {
    let stored = stored.into();
    let lengths = [0, 1].map(|piece| {
        let of = |s: &(usize, usize, [u32; 9])| if piece == 0 { s.0 } else { s.1 };
        SEQUENCES.iter().map(of).sum::<usize>()
    });
    let sinks = Tensor::new(&[3f32, -1.0, 0.0, 9.0, 1.0, -50.0], device)?;
    let plain = Attend::new(SCALE);
    let bounded = Attend {
        left: Some(11),
        softcap: Some(2.0),
        ..plain
    };
    let sunk = Attend {
        chunk: Some(20),
        sinks: Some(&sinks),
        ..plain
    };
    for (interleaved, scores) in [(false, plain), (true, bounded), (false, sunk)] {
        let what = format!(
            "in {}, window {:?}, chunk {:?}, on {:?}",
            describe(stored),
            scores.left,
            scores.chunk,
            device.location()
        );
        let shape = CacheShape {
            blocks: 32,
            block_size: BLOCK,
            kv_heads: KV_HEADS,
            head_size: SIZE,
            v_head_size: V_SIZE,
        };
        let mut cache = PagedCache::new(shape, stored, device)?;
        let rotary = rotary(device, interleaved)?;
        let pieces = [
            inputs(device, dtype, 0, lengths[0])?,
            inputs(device, dtype, 1, lengths[1])?,
        ];
        let mut got = None;
        for (i, piece) in pieces.iter().enumerate() {
            let sequences: Vec<PagedSequence> = SEQUENCES
                .iter()
                .map(|(first, second, blocks)| PagedSequence {
                    blocks,
                    keys: if i == 0 { *first } else { first + second },
                    rows: if i == 0 { *first } else { *second },
                })
                .collect();
            let batch = PagedBatch::new(&sequences, BLOCK, device)?;
            let q = cache.write(Some(&piece.q), &piece.k, &piece.v, &batch, Some(&rotary))?;
            got = Some(cache.attend(&q.expect("queries were given"), &batch, &scores)?);
        }
        let want = textbook(&pieces, interleaved, &scores)?;
        let got = got.expect("two pieces");
        let want = Tensor::from_vec(want, got.shape(), &Device::Cpu);
        report.compare("paged attention", name(dtype), &what, limit, Ok(got), want);
    }
    Ok(())
}

fn describe(format: CacheFormat) -> String {
    let name = |dtype: CacheDType, turns: bool| match turns {
        true => format!("turned {dtype:?}"),
        false => format!("{dtype:?}"),
    };
    let keys = name(format.keys, format.turn_keys);
    match name(format.values, format.turn_values) {
        values if values == keys => keys,
        values => format!("{keys} and {values}"),
    }
}

/// Formats of fewer bits and pairs of them, and by how much they may be off.
fn packed() -> [(CacheFormat, f64); 8] {
    let format = |keys, values, turn_keys, turn_values| CacheFormat {
        keys,
        values,
        turn_keys,
        turn_values,
    };
    use CacheDType::*;
    [
        (format(Q4_0, Q4_0, true, true), 6e-2),
        (format(Q4_1, Q4_1, false, false), 4e-2),
        (format(Q5_0, Q5_1, true, false), 2e-2),
        (format(Q5_1, Q5_1, true, true), 2e-2),
        (format(Iq4Nl, F8, false, true), 6e-2),
        (format(F8, F8, false, false), 1e-2),
        (format(Q8_0, Q4_0, false, true), 2e-2),
        (format(F16, Q8_0, false, true), 2e-4),
    ]
}

fn every_dtype(report: &mut Report, device: &Device) -> Result<()> {
    compare(report, device, DType::F32, CacheDType::F32, 1e-9)?;
    compare(report, device, DType::F32, CacheDType::F16, 1e-6)?;
    compare(report, device, DType::F32, CacheDType::Q8_0, 2e-4)?;
    compare(report, device, DType::F16, CacheDType::F16, 1e-5)?;
    compare(report, device, DType::BF16, CacheDType::BF16, 5e-4)?;
    compare(report, device, DType::BF16, CacheDType::Q8_0, 5e-4)?;
    for (format, limit) in packed() {
        compare(report, device, DType::F32, format, limit)?;
    }
    Ok(())
}

fn on_the_cpu(_: &Context, report: &mut Report) -> Result<()> {
    every_dtype(report, &Device::Cpu)
}

fn on_the_gpu(context: &Context, report: &mut Report) -> Result<()> {
    every_dtype(report, &context.device)
}

fn what_does_not_fit_is_refused(_: &Context, _: &mut Report) -> Result<()> {
    let device = Device::Cpu;
    let shape = CacheShape {
        blocks: 2,
        block_size: BLOCK,
        kv_heads: KV_HEADS,
        head_size: 36,
        v_head_size: 32,
    };
    ensure!(PagedCache::new(shape, CacheDType::Q8_0, &device).is_err());
    ensure!(PagedCache::new(shape, CacheDType::Q4_0, &device).is_err());
    let latent = CacheShape {
        head_size: 64,
        ..shape
    };
    ensure!(PagedCache::latent(latent, CacheDType::Q8_0, &device).is_ok());
    ensure!(PagedCache::latent(latent, CacheDType::Q4_0, &device).is_err());
    let sequence = |blocks, keys, rows| {
        let sequence = PagedSequence { blocks, keys, rows };
        PagedBatch::new(&[sequence], BLOCK, &device)
    };
    ensure!(sequence(&[0], 9, 1).is_err());
    ensure!(sequence(&[0], 2, 3).is_err());
    ensure!(sequence(&[0], 2, 0).is_err());
    let mut cache = PagedCache::new(
        CacheShape {
            head_size: SIZE,
            ..shape
        },
        CacheDType::F32,
        &device,
    )?;
    let piece = inputs(&device, DType::F32, 0, 2)?;
    let beyond = sequence(&[2], 2, 2)?;
    ensure!(cache
        .write(None, &piece.k, &piece.v, &beyond, None)
        .is_err());
    let fits = sequence(&[1], 2, 2)?;
    cache.write(None, &piece.k, &piece.v, &fits, None)?;
    let plain = Attend::new(SCALE);
    ensure!(cache.attend(&piece.q, &fits, &plain).is_ok());
    let of_nothing = Attend {
        chunk: Some(0),
        ..plain
    };
    ensure!(cache.attend(&piece.q, &fits, &of_nothing).is_err());
    let few = Tensor::zeros(HEADS - 1, DType::F32, &device)?;
    let too_few = Attend {
        sinks: Some(&few),
        ..plain
    };
    ensure!(cache.attend(&piece.q, &fits, &too_few).is_err());
    let fewer = sequence(&[1], 1, 1)?;
    ensure!(cache.write(None, &piece.k, &piece.v, &fewer, None).is_err());
    Ok(())
}
