//! Attention on every tier against the textbook in f64.

mod attention_oracle;
mod common;

use attention_oracle::layouts::{fixed, packed};
use attention_oracle::{compare, is_for_matrix, run, textbook, Case, Values, NMSE_LIMIT};
use candle_rocm::ops::attention::{
    attention, attention_on, Attention, Lengths, Order, Tier, Window, SCORE_BYTES,
};
use candle_rocm::ops::quantized::QuantizedActivations;
use candle_rocm::{DType, Device, Error, View};
use candle_rocm_kernels::{embedded_ck, CkInstance};
use common::{assert_close, device, download, row_major, upload, Element, HostTensor, Layout};
use half::{bf16, f16};

const TIERS: [Tier; 3] = [Tier::Matrix, Tier::Tiled, Tier::Naive];

/// The tiers that have to compute a case of `T`.
fn tiers<T: Element>(device: &Device, case: &Case) -> impl Iterator<Item = Tier> {
    let matrix = is_for_matrix::<T>(device, case);
    TIERS
        .into_iter()
        .filter(move |tier| matrix || *tier != Tier::Matrix)
}

fn check<T: Element>(device: &Device, case: &Case) {
    let values = Values::<T>::random(case, 7);
    for tier in tiers::<T>(device, case) {
        // The small limit makes the naive tier go through its rows in chunks.
        let score_bytes = if tier == Tier::Naive {
            1 << 12
        } else {
            SCORE_BYTES
        };
        let got = fixed(device, case, &values, tier, score_bytes);
        compare(
            device,
            case,
            &values,
            case.rows.len(),
            got,
            &tier.to_string(),
        );
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
        compare(&device, &case, &values, 2, got, "tiny");
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
fn sinks_and_chunks() {
    let device = device();
    for (rows, keys) in [(1, 150), (3, 40), (70, 140), (30, 20)] {
        let plain = Case::new(rows, keys, 16).heads(4, 2).causal();
        for (sinks, chunk, softcap) in [
            (true, None, None),
            (false, Some(9), None),
            (true, Some(64), Some(3.0)),
        ] {
            let case = Case {
                sinks,
                chunk,
                softcap,
                ..plain.clone()
            };
            check::<f16>(&device, &case);
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
            for tier in tiers::<f16>(&device, &case) {
                let problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
                let got = run(&device, &case, tier, SCORE_BYTES, problem, Lengths::Fixed);
                compare(
                    &device,
                    &case,
                    &values,
                    2,
                    got,
                    &format!("{tier} {layout:?}"),
                );
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
            check_packed::<f16>(&device, &case);
            check_packed::<f32>(&device, &case);
        }
    }
}

fn check_packed<T: Element>(device: &Device, case: &Case) {
    let values = Values::<T>::random(case, 11);
    for tier in tiers::<T>(device, case) {
        let got = packed(device, case, &values, tier);
        compare(device, case, &values, 1, got, &format!("packed {tier}"));
    }
}

/// NaN and infinities in what is visible come out as in the formula, wherever they stand.
/// Of f32, split or not, by tiles, and with rounded queries: what quantizing the result gives, padding included.
#[test]
fn in_8_bits() {
    let device = device();
    let cases = [
        Case::new(1, 40, 64).heads(3, 3),
        Case::new(2, 300, 128).heads(4, 2),
        Case::new(1, 700, 96).heads(5, 1),
        Case::new(1, 300, 24).heads(4, 2),
        Case::new(40, 50, 32).heads(3, 3),
    ];
    for case in cases {
        let values = Values::<f32>::random(&case, 5);
        let dims = |heads: usize, keys: usize| [2, keys, heads, case.width];
        let q = HostTensor::contiguous(values.q.clone(), &dims(case.heads, case.rows[0]));
        let [qb, kb, vb, k16, v16] = [
            upload(&device, &values.q),
            upload(&device, &values.k),
            upload(&device, &values.v),
            upload(&device, &halves(&values.k)),
            upload(&device, &halves(&values.v)),
        ];
        let kv_dims = dims(case.kv_heads, case.keys[0]);
        let strides = row_major(&kv_dims);
        let view = |buffer, dtype| View::contiguous(buffer, dtype, &kv_dims, &strides);
        let pairs = [
            (view(&kb, DType::F32), view(&vb, DType::F32)),
            (view(&k16, DType::F16), view(&v16, DType::F16)),
        ];
        for (k, v) in pairs {
            let problem = Attention {
                may_round: true,
                quantized: true,
                ..Attention::new(q.view(&qb), k, v, case.scale)
            };
            let got = attention(&device, &problem).unwrap();
            let dims = [2 * case.rows[0], case.heads * case.width];
            let strides = row_major(&dims);
            let out = View::contiguous(&got.out, DType::F32, &dims, &strides);
            let want = QuantizedActivations::quantize(&device, &out).unwrap();
            let quantized = got.quantized.unwrap();
            assert_eq!(
                (quantized.columns(), quantized.vector_len()),
                (dims[0], dims[1])
            );
            let bytes = |q: &QuantizedActivations| download::<u8>(&device, q.buffer());
            assert!(bytes(&quantized) == bytes(&want), "{case:?} {}", k.dtype);
            let problem = Attention {
                order: Order::HeadsRows,
                ..problem
            };
            let error = attention(&device, &problem).err().unwrap();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        }
    }
}

fn halves(values: &[f32]) -> Vec<f16> {
    values.iter().map(|x| f16::from_f32(*x)).collect()
}

#[test]
fn not_finite() {
    let device = device();
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for rows in [2, 20] {
        let case = Case::new(rows, 80, 16).heads(2, 1);
        with_special::<f32>(
            &device,
            &case,
            &[special.as_slice(), &[1e30, -1e30]].concat(),
        );
        with_special::<f16>(&device, &case, &[special.as_slice(), &[6e4, -6e4]].concat());
        with_special::<bf16>(
            &device,
            &case,
            &[special.as_slice(), &[1e30, -1e30]].concat(),
        );
    }
}

fn with_special<T: Element>(device: &Device, case: &Case, special: &[f64]) {
    for (index, &value) in special.iter().enumerate() {
        let special = T::from_f64(value);
        let mut in_q = Values::<T>::random(case, 5);
        in_q.q[17 * index] = special;
        let mut in_k = Values::<T>::random(case, 5);
        in_k.k[(16 * 33 + 5) * (1 + index % 2)] = special;
        let mut in_v = Values::<T>::random(case, 5);
        in_v.v[16 * (41 + index)] = special;
        for values in [in_q, in_k, in_v] {
            for tier in tiers::<T>(device, case) {
                let got = fixed(device, case, &values, tier, SCORE_BYTES).unwrap();
                let (want, _) = textbook(case, &values);
                // Beyond the range of the dtype the formula in f64 is no guide.
                let want: Vec<f64> = want.iter().map(|&x| T::from_f64(x).to_f64()).collect();
                let what = format!("{value} in {} on {tier}, {} rows", T::DTYPE, case.rows[0]);
                assert_close(&download::<T>(device, &got.out), &want, NMSE_LIMIT, &what);
            }
        }
    }
}

/// Every instance of Composable Kernel, where the build has made them (feature `ck`); otherwise the tier says why not.
#[test]
fn composable_kernel() {
    let device = device();
    let arch = device.properties().full_arch.as_str();
    let is_built = CkInstance::all().all(|instance| embedded_ck(instance, arch).is_some());
    if !is_built {
        println!("skipped but for what is refused: the build has no instances of Composable Kernel for {arch}");
        let case = Case::new(40, 70, 64);
        let values = Values::<f16>::random(&case, 3);
        let error = fixed(&device, &case, &values, Tier::Ck, SCORE_BYTES).unwrap_err();
        assert!(error.to_string().contains("built"), "{error}");
    }
    for width in CkInstance::HEADS.map(|width| width as usize) {
        for case in [
            Case::new(40, 70, width).heads(4, 2),
            Case::new(70, 70, width).causal(),
            // The first rows see nothing.
            Case::new(50, 20, width).causal(),
        ] {
            if is_built {
                check_composable_kernel::<f16>(&device, &case);
                check_composable_kernel::<bf16>(&device, &case);
            }
        }
    }
    // Never a wrong answer.
    for case in [
        Case::new(20, 20, 96),
        Case::new(20, 20, 64).window(Some(3), Some(0)),
        Case {
            alibi: true,
            ..Case::new(20, 20, 64)
        },
        Case {
            softcap: Some(2.0),
            ..Case::new(20, 20, 128)
        },
    ] {
        let values = Values::<f16>::random(&case, 3);
        let error = fixed(&device, &case, &values, Tier::Ck, SCORE_BYTES).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
}

fn check_composable_kernel<T: Element>(device: &Device, case: &Case) {
    let values = Values::<T>::random(case, 3);
    let got = fixed(device, case, &values, Tier::Ck, SCORE_BYTES);
    compare(device, case, &values, 2, got, "ck");
    let lengths = Case {
        rows: vec![20, case.rows[0], 1],
        keys: vec![33, case.keys[0], 0],
        ..case.clone()
    };
    let values = Values::<T>::random(&lengths, 3);
    let got = packed(device, &lengths, &values, Tier::Ck);
    compare(device, &lengths, &values, 1, got, "ck, packed");
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
        let device = Device::new(0).unwrap();
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
    /// What a device that is made while the variable has the value computes of queries, keys and values of ones.
    fn with<T: Element>(value: &str, dims: &[usize]) -> candle_rocm::Result<Vec<T>> {
        std::env::set_var("CANDLE_ROCM_ATTENTION", value);
        let device = Device::new(0);
        std::env::remove_var("CANDLE_ROCM_ATTENTION");
        let device = device?;
        let ones = vec![T::from_f64(1.0); dims.iter().product()];
        let x = HostTensor::contiguous(ones, dims);
        let buffer = x.upload(&device);
        let x = x.view(&buffer);
        let got = attention(&device, &Attention::new(x, x, x, 1.0))?;
        Ok(download::<T>(&device, &got.out))
    }
    let x = [1, 3, 1, 13];
    let refused = |value| with::<f64>(value, &x).unwrap_err().to_string();
    let error = refused("quick");
    assert!(
        error.contains("quick") && error.contains("naive"),
        "{error}"
    );
    for (tier, reason) in [("ck", "f16"), ("matrix", ""), ("tiled", "f64")] {
        let error = refused(tier);
        let named = error.contains(&format!("{tier} tier"));
        assert!(named && error.contains(reason), "{error}");
    }
    let got = with::<f64>("naive", &x).unwrap();
    assert_close(&got, &[1.0; 39], 1e-24, "naive");
    // Values of 1 give 1 wherever a tier takes the problem.
    for tier in Tier::ALL {
        match with::<f16>(tier.as_str(), &[1, 20, 1, 64]) {
            Ok(got) => assert_close(&got, &[1.0; 20 * 64], 1e-6, tier.as_str()),
            Err(error) => assert!(matches!(tier, Tier::Ck | Tier::Matrix), "{error}"),
        }
    }
}
