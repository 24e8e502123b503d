//! Attention on every tier against the textbook in f64.

mod attention_oracle;
mod common;

use attention_oracle::{rows_first, run, textbook, Case, Extras, Outcome, Values};
use candle_rocm::ops::attention::{
    attention, attention_on, Attention, Lengths, Order, Tier, Window, SCORE_BYTES,
};
use candle_rocm::{Device, Error};
use common::{assert_close, device, download, Element, HostTensor, Layout};
use half::{bf16, f16};

const NMSE_LIMIT: f64 = 5e-4;
const TIERS: [Tier; 2] = [Tier::Tiled, Tier::Naive];

/// Runs sequences of one length.
fn fixed<T: Element>(
    device: &Device,
    case: &Case,
    values: &Values<T>,
    tier: Tier,
    score_bytes: usize,
) -> Outcome {
    let batch = case.rows.len();
    let tensor = |values: &[T], length: usize, heads, width| {
        HostTensor::contiguous(values.to_vec(), &[batch, length, heads, width])
    };
    let q = tensor(&values.q, case.rows[0], case.heads, case.width);
    let k = tensor(&values.k, case.keys[0], case.kv_heads, case.width);
    let v = tensor(&values.v, case.keys[0], case.kv_heads, case.v_width);
    let mask_dims = [batch, case.heads, case.rows[0], case.keys[0]];
    let mask = (case.mask).then(|| HostTensor::contiguous(values.mask.clone(), &mask_dims));
    let extras = Extras::new(case);
    let (qb, kb, vb) = (q.upload(device), k.upload(device), v.upload(device));
    let (sb, pb) = (extras.slopes.upload(device), extras.prefix.upload(device));
    let mb = mask.as_ref().map(|mask| mask.upload(device));
    let mut problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
    problem.alibi = case.alibi.then(|| extras.slopes.view(&sb));
    problem.prefix = (!case.prefix.is_empty()).then(|| extras.prefix.view(&pb));
    problem.mask = mask
        .as_ref()
        .zip(mb.as_ref())
        .map(|(mask, buffer)| mask.view(buffer));
    run(device, case, tier, score_bytes, problem, Lengths::Fixed)
}

/// Compares result and log-sum-exp with the textbook.
fn compare<T: Element>(device: &Device, case: &Case, values: &Values<T>, got: Outcome, what: &str) {
    let what = format!("{} {case:?} {what}", T::DTYPE);
    let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
    let (want, want_lse) = textbook(case, values);
    let mut out = download::<T>(device, &got.out);
    let batch = case.rows.len();
    if case.order == Order::HeadsRows {
        out = rows_first(&out, batch, case.heads, case.v_width);
    }
    assert_close(&out, &want, NMSE_LIMIT, &what);
    let lse = download::<f32>(device, &got.log_sum_exp.expect("asked for"));
    assert_close(
        &rows_first(&lse, batch, case.heads, 1),
        &want_lse,
        1e-5,
        &what,
    );
}

fn check<T: Element>(device: &Device, case: &Case) {
    let values = Values::<T>::random(case, 7);
    for tier in TIERS {
        // The small limit makes the naive tier go through its rows in chunks.
        let score_bytes = if tier == Tier::Naive {
            1 << 12
        } else {
            SCORE_BYTES
        };
        let got = fixed(device, case, &values, tier, score_bytes);
        compare(device, case, &values, got, &tier.to_string());
    }
}

/// Little enough work for an emulator of the hardware, and without rocBLAS.
#[test]
fn tiny() {
    let device = device();
    for rows in [1, 3, 20] {
        let case = Case {
            softcap: Some(3.0),
            alibi: true,
            ..Case::new(rows, 21, 24)
                .heads(4, 2)
                .window(Some(15), Some(0))
        };
        let values = Values::<f16>::random(&case, 7);
        let got = fixed(&device, &case, &values, Tier::Tiled, SCORE_BYTES);
        compare(&device, &case, &values, got, "tiny");
    }
}

#[test]
fn head_sizes() {
    let device = device();
    for width in [8, 40, 64, 72, 80, 96, 128, 160, 192, 256, 512] {
        for rows in [1, 65] {
            let case = Case::new(rows, 67, width);
            check::<f16>(&device, &case);
            if width % 64 != 0 || width == 512 {
                check::<bf16>(&device, &case);
                check::<f32>(&device, &case);
            }
        }
    }
}

#[test]
fn grouped_heads() {
    let device = device();
    for (heads, kv_heads) in [(4, 2), (6, 2), (8, 1), (5, 1)] {
        for rows in [1, 3, 40] {
            let case = Case::new(rows, 70, 32).heads(heads, kv_heads).causal();
            check::<f16>(&device, &case);
            check::<f32>(&device, &case);
        }
    }
}

#[test]
fn values_of_another_size() {
    let device = device();
    for (width, v_width) in [(192, 128), (64, 128), (24, 512)] {
        for rows in [2, 30] {
            let case = Case {
                v_width,
                ..Case::new(rows, 40, width)
            };
            check::<bf16>(&device, &case);
        }
    }
}

#[test]
fn windows() {
    let device = device();
    let windows = [
        (None, Some(0)),
        (Some(5), Some(0)),
        (Some(0), Some(3)),
        (Some(70), None),
        (None, Some(2)),
        (Some(0), Some(0)),
    ];
    for (left, right) in windows {
        for (rows, keys) in [(1, 150), (3, 3), (4, 2), (70, 140), (140, 70), (70, 70)] {
            let case = Case::new(rows, keys, 16).heads(4, 2).window(left, right);
            check::<f32>(&device, &case);
        }
    }
}

#[test]
fn biases() {
    let device = device();
    for (rows, keys) in [(1, 90), (4, 9), (66, 130)] {
        let plain = Case::new(rows, keys, 16).heads(4, 2);
        let cases = [
            Case {
                softcap: Some(0.7),
                scale: 1.0,
                ..plain.clone()
            },
            Case {
                alibi: true,
                ..plain.clone()
            },
            Case {
                alibi: true,
                softcap: Some(3.0),
                ..plain.clone().window(Some(7), Some(0))
            },
            Case {
                mask: true,
                ..plain.clone()
            },
            Case {
                mask: true,
                order: Order::HeadsRows,
                ..plain.clone().causal()
            },
            Case {
                prefix: vec![[1, 4], [5, 5], [keys as i32 - 3, keys as i32]],
                ..plain.clone().window(Some(2), Some(0))
            },
        ];
        for case in &cases {
            check::<f32>(&device, case);
            check::<bf16>(&device, case);
        }
    }
}

#[test]
fn naive_in_f64() {
    let device = device();
    let case = Case {
        alibi: true,
        mask: true,
        softcap: Some(4.0),
        ..Case::new(5, 33, 13).heads(6, 3).causal()
    };
    let values = Values::<f64>::random(&case, 3);
    let got = fixed(&device, &case, &values, Tier::Naive, SCORE_BYTES).unwrap();
    let (want, _) = textbook(&case, &values);
    assert_close(&download::<f64>(&device, &got.out), &want, 1e-24, "f64");
    // Only this tier has head sizes that are no multiple of 8.
    assert!(matches!(
        fixed(
            &device,
            &case,
            &Values::<f32>::random(&case, 3),
            Tier::Tiled,
            SCORE_BYTES
        ),
        Err(Error::InvalidArgument { .. })
    ));
}

/// Layouts that are read in place, and ones that are copied first.
#[test]
fn strided_operands() {
    let device = device();
    let case = Case::new(20, 30, 16).heads(3, 3);
    let (batch, heads, width) = (2, 3, 16);
    for layout in Layout::ALL {
        for rows in [2, 20] {
            let tensor = |length, seed| {
                HostTensor::<f16>::with_layout(&[batch, length, heads, width], layout, |n| {
                    common::Rng::new(seed).vec(n, -1.0, 1.0)
                })
            };
            let (q, k, v) = (tensor(rows, 1), tensor(30, 2), tensor(30, 3));
            let values = Values {
                q: q.values(),
                k: k.values(),
                v: v.values(),
                mask: Vec::new(),
            };
            let case = Case {
                rows: vec![rows; 2],
                ..case.clone()
            };
            let (qb, kb, vb) = (q.upload(&device), k.upload(&device), v.upload(&device));
            for tier in TIERS {
                let problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
                let got = run(&device, &case, tier, SCORE_BYTES, problem, Lengths::Fixed);
                compare(&device, &case, &values, got, &format!("{tier} {layout:?}"));
            }
        }
    }
}

#[test]
fn packed_sequences() {
    let device = device();
    let lengths = [
        (vec![1, 1, 1], vec![130, 7, 64]),
        (vec![3, 0, 70], vec![5, 9, 70]),
        (vec![66, 4], vec![0, 68]),
    ];
    for (rows, keys) in lengths {
        for order in [Order::RowsHeads, Order::HeadsRows] {
            let case = Case {
                rows: rows.clone(),
                keys: keys.clone(),
                alibi: true,
                order,
                ..Case::new(1, 1, 24).heads(4, 2).causal()
            };
            packed::<f16>(&device, &case);
            packed::<f32>(&device, &case);
        }
    }
}

fn packed<T: Element>(device: &Device, case: &Case) {
    let values = Values::<T>::random(case, 11);
    let q = HostTensor::contiguous(values.q.clone(), &case.q_dims());
    let k = HostTensor::contiguous(values.k.clone(), &case.k_dims());
    let v = HostTensor::contiguous(values.v.clone(), &case.v_dims());
    let extras = Extras::new(case);
    let (qb, kb, vb) = (q.upload(device), k.upload(device), v.upload(device));
    let (sb, rb, cb) = (
        extras.slopes.upload(device),
        extras.cu_rows.upload(device),
        extras.cu_keys.upload(device),
    );
    let lengths = Lengths::Packed {
        cu_rows: extras.cu_rows.view(&rb),
        cu_keys: extras.cu_keys.view(&cb),
        max_rows: *case.rows.iter().max().unwrap(),
        max_keys: *case.keys.iter().max().unwrap(),
    };
    for tier in TIERS {
        let mut problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
        problem.alibi = Some(extras.slopes.view(&sb));
        let got = run(device, case, tier, SCORE_BYTES, problem, lengths);
        let what = format!("{} {case:?} {tier}", T::DTYPE);
        let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (want, want_lse) = textbook(case, &values);
        let mut out = download::<T>(device, &got.out);
        if case.order == Order::HeadsRows {
            out = rows_first(&out, 1, case.heads, case.v_width);
        }
        assert_close(&out, &want, NMSE_LIMIT, &what);
        let lse = download::<f32>(device, &got.log_sum_exp.expect("asked for"));
        assert_close(&rows_first(&lse, 1, case.heads, 1), &want_lse, 1e-5, &what);
    }
}

/// NaN and infinities in what is visible come out as in the formula, wherever they stand.
#[test]
fn not_finite() {
    let device = device();
    for rows in [2, 20] {
        let case = Case::new(rows, 80, 16).heads(2, 1);
        for (index, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30]
            .into_iter()
            .enumerate()
        {
            let mut in_q = Values::<f32>::random(&case, 5);
            in_q.q[17 * index] = value;
            let mut in_k = Values::<f32>::random(&case, 5);
            in_k.k[(16 * 33 + 5) * (1 + index % 2)] = value;
            let mut in_v = Values::<f32>::random(&case, 5);
            in_v.v[16 * (41 + index)] = value;
            for values in [in_q, in_k, in_v] {
                for tier in TIERS {
                    let got = fixed(&device, &case, &values, tier, SCORE_BYTES).unwrap();
                    let (want, _) = textbook(&case, &values);
                    // Beyond the range of f32 the formula in f64 is no guide.
                    let want = want
                        .iter()
                        .map(|&x| f64::from(x as f32))
                        .collect::<Vec<_>>();
                    let what = format!("{value} on {tier}, {rows} rows");
                    assert_close(
                        &download::<f32>(&device, &got.out),
                        &want,
                        NMSE_LIMIT,
                        &what,
                    );
                }
            }
        }
    }
}

#[test]
fn no_rows_no_keys() {
    let device = device();
    for (rows, keys) in [(0, 5), (0, 0), (3, 0), (40, 0)] {
        let case = Case::new(rows, keys, 16);
        check::<f32>(&device, &case);
        check::<f16>(&device, &case);
    }
}

/// Twice the length takes twice the memory on the tiled tier, and the naive one stays within its bound.
#[test]
fn memory_is_linear() {
    let peak = |rows: usize, heads: usize, tier| {
        let case = Case {
            rows: vec![rows],
            keys: vec![rows],
            ..Case::new(0, 0, 16).heads(heads, 1).causal()
        };
        let values = Values {
            q: vec![f16::ONE; rows * heads * 16],
            k: vec![f16::ONE; rows * 16],
            v: vec![f16::ONE; rows * 16],
            mask: Vec::new(),
        };
        let device = Device::with_new_stream(0).unwrap();
        let got = fixed(&device, &case, &values, tier, 1 << 20).unwrap();
        device.synchronize().unwrap();
        drop(got);
        device.memory_stats().peak_bytes
    };
    let (short, long) = (peak(1024, 1, Tier::Tiled), peak(2048, 1, Tier::Tiled));
    assert!(long <= 2 * short + (64 << 10), "{short} and {long} bytes");
    let naive = peak(1024, 1, Tier::Naive);
    assert!(naive < 3 << 20, "{naive} bytes");
}

#[test]
fn what_is_refused() {
    let device = device();
    let tensor =
        |dims: &[usize]| HostTensor::contiguous(vec![f16::ONE; dims.iter().product()], dims);
    let q = tensor(&[1, 3, 4, 16]);
    let k = tensor(&[1, 5, 2, 16]);
    let odd = tensor(&[1, 5, 3, 16]);
    let longer = tensor(&[1, 6, 2, 16]);
    let wide = HostTensor::contiguous(vec![1f32; 160], &[1, 5, 2, 16]);
    let ints = HostTensor::contiguous(vec![1u32; 192], &[1, 3, 4, 16]);
    let (qb, kb, ob, lb) = (
        q.upload(&device),
        k.upload(&device),
        odd.upload(&device),
        longer.upload(&device),
    );
    let (wb, ib) = (wide.upload(&device), ints.upload(&device));
    let (q, k) = (q.view(&qb), k.view(&kb));
    let attend = |problem: Attention| attention_on(&device, &problem, Tier::Tiled, SCORE_BYTES);
    assert!(attend(Attention::new(q, k, k, 1.0)).is_ok());
    let ints = Attention::new(ints.view(&ib), k, k, 1.0);
    assert!(matches!(attend(ints), Err(Error::UnsupportedDType { .. })));
    let mixed = Attention::new(q, k, wide.view(&wb), 1.0);
    assert!(matches!(attend(mixed), Err(Error::DTypeMismatch { .. })));
    let lengths = Attention::new(q, k, longer.view(&lb), 1.0);
    assert!(matches!(attend(lengths), Err(Error::ShapeMismatch { .. })));
    let heads = Attention::new(q, odd.view(&ob), odd.view(&ob), 1.0);
    assert!(matches!(attend(heads), Err(Error::InvalidArgument { .. })));
    let huge = Attention {
        window: Window {
            left: Some(1 << 40),
            right: None,
        },
        ..Attention::new(q, k, k, 1.0)
    };
    assert!(matches!(attend(huge), Err(Error::TooLarge { .. })));
    let mask = Attention {
        mask: Some(q),
        ..Attention::new(q, k, k, 1.0)
    };
    assert!(matches!(attend(mask), Err(Error::ShapeMismatch { .. })));
    let scales = Attention {
        scales: Some((k, k)),
        ..Attention::new(q, k, k, 1.0)
    };
    assert!(matches!(attend(scales), Err(Error::InvalidArgument { .. })));
}

/// The other tests name their tier, so the variable does not reach them.
#[test]
fn the_variable() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f64; 3 * 13], &[1, 3, 1, 13]);
    let xb = x.upload(&device);
    let x = x.view(&xb);
    let with = |value: &str| {
        std::env::set_var("CANDLE_ROCM_ATTENTION", value);
        let result = attention(&device, &Attention::new(x, x, x, 1.0));
        std::env::remove_var("CANDLE_ROCM_ATTENTION");
        result
    };
    let error = with("quick").unwrap_err().to_string();
    assert!(
        error.contains("quick") && error.contains("naive"),
        "{error}"
    );
    let error = with("tiled").unwrap_err().to_string();
    assert!(error.contains("f64"), "{error}");
    let got = with("naive").unwrap();
    assert_close(
        &download::<f64>(&device, &got.out),
        &[1.0; 39],
        1e-24,
        "naive",
    );
}
