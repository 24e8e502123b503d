//! Products of rows with the matrices of their experts against f64 on the host.

mod common;

use candle_rocm::ops::moe::{moe_gemm, moe_gemm_with, MoeKernel, Routing};
use candle_rocm::{Device, Error};
use common::*;
use half::{bf16, f16};

const LIMIT: f64 = 5e-4;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Rows of x and slots of each.
    rows: usize,
    per_row: usize,
    experts: usize,
    n: usize,
    k: usize,
    /// Experts that rows are routed to; fewer than there are makes long runs.
    used: usize,
}

/// Slots and experts, sorted by expert.
fn route(rng: &mut Rng, case: &Case) -> (Vec<u32>, Vec<u32>) {
    let slots = case.rows * case.per_row;
    let mut pairs: Vec<(u32, u32)> = (0..slots)
        .map(|slot| (rng.below(case.used) as u32, slot as u32))
        .collect();
    pairs.sort();
    pairs
        .into_iter()
        .map(|(expert, slot)| (slot, expert))
        .unzip()
}

fn check<T: Element>(device: &Device, case: Case) {
    let mut rng = Rng::new(5);
    let slots = case.rows * case.per_row;
    let (slot_of, expert_of) = route(&mut rng, &case);
    let x = HostTensor::<T>::with_layout(&[case.rows, case.k], Layout::Narrowed, |n| {
        rng.vec(n, -1.0, 1.0)
    });
    // An odd offset: no address is aligned.
    let weights =
        HostTensor::<T>::with_layout(&[case.experts, case.n, case.k], Layout::Offset, |n| {
            rng.vec(n, -1.0, 1.0)
        });
    let scale = HostTensor::<f32>::with_layout(&[case.rows, case.per_row], Layout::Offset, |n| {
        rng.vec(n, 0.0, 1.0)
    });
    let slot_tensor = HostTensor::contiguous(slot_of.clone(), &[slots]);
    let expert_tensor = HostTensor::<u32>::with_layout(&[slots], Layout::Offset, |n| {
        [vec![0; n - slots], expert_of.clone()].concat()
    });
    let (xb, wb, cb) = (
        x.upload(device),
        weights.upload(device),
        scale.upload(device),
    );
    let (sb, eb) = (slot_tensor.upload(device), expert_tensor.upload(device));
    let (xs, ws, factors) = (x.values(), weights.values(), scale.values());
    let (slots_view, experts_view, scale_view) = (
        slot_tensor.view(&sb),
        expert_tensor.view(&eb),
        scale.view(&cb),
    );
    for kernel in [MoeKernel::Matvec, MoeKernel::Matmul] {
        for scaled in [false, true] {
            let mut want = vec![0.0; slots * case.n];
            for (&slot, &expert) in slot_of.iter().zip(&expert_of) {
                let (slot, expert) = (slot as usize, expert as usize);
                for j in 0..case.n {
                    let row = &xs[slot / case.per_row * case.k..][..case.k];
                    let column = &ws[(expert * case.n + j) * case.k..][..case.k];
                    let dot: f64 = row
                        .iter()
                        .zip(column)
                        .map(|(a, b)| a.to_f64() * b.to_f64())
                        .sum();
                    let factor = if scaled {
                        f64::from(factors[slot])
                    } else {
                        1.0
                    };
                    want[slot * case.n + j] = dot * factor;
                }
            }
            let routing = Routing {
                slots: &slots_view,
                experts: &experts_view,
                scale: scaled.then_some(&scale_view),
            };
            let got =
                moe_gemm_with(device, kernel, &x.view(&xb), &weights.view(&wb), routing).unwrap();
            let what = format!("{kernel:?} {} {case:?} scaled {scaled}", T::DTYPE);
            assert_close(&download::<T>(device, &got), &want, LIMIT, &what);
        }
    }
}

#[test]
fn both_kernels() {
    let device = device();
    let case = |rows, per_row, experts, n, k, used| Case {
        rows,
        per_row,
        experts,
        n,
        k,
        used,
    };
    for case in [
        case(1, 1, 1, 1, 1, 1),
        case(1, 2, 4, 5, 33, 4),
        case(3, 4, 16, 70, 64, 16),
        // Runs that begin and end inside tiles, and one longer than a tile.
        case(40, 2, 5, 65, 47, 5),
        case(70, 1, 3, 9, 40, 2),
    ] {
        check::<f16>(&device, case);
        check::<bf16>(&device, case);
        check::<f32>(&device, case);
    }
}

#[test]
fn a_slot_or_expert_that_does_not_exist_is_an_error() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 2 * 4], &[2, 4]);
    let weights = HostTensor::contiguous(vec![1f32; 3 * 5 * 4], &[3, 5, 4]);
    let (xb, wb) = (x.upload(&device), weights.upload(&device));
    for (slot_of, expert_of, bad, size) in [([0u32, 1], [0u32, 3], 3, 3), ([0, 2], [0, 1], 2, 2)] {
        for kernel in [MoeKernel::Matvec, MoeKernel::Matmul] {
            let slots = HostTensor::contiguous(slot_of.to_vec(), &[2]);
            let experts = HostTensor::contiguous(expert_of.to_vec(), &[2]);
            let (sb, eb) = (slots.upload(&device), experts.upload(&device));
            let (slots, experts) = (slots.view(&sb), experts.view(&eb));
            let routing = Routing {
                slots: &slots,
                experts: &experts,
                scale: None,
            };
            moe_gemm_with(&device, kernel, &x.view(&xb), &weights.view(&wb), routing).unwrap();
            match device.synchronize() {
                Err(Error::IndexOutOfRange {
                    op,
                    index,
                    size: limit,
                }) => {
                    assert_eq!((op, index, limit), ("moe-gemm", bad, size));
                }
                other => panic!("{kernel:?} {slot_of:?} {expert_of:?}: {other:?}"),
            }
            device.synchronize().unwrap();
        }
    }
}

#[test]
fn nothing_and_what_is_refused() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 8], &[2, 4]);
    let nothing = HostTensor::<f32>::contiguous(vec![], &[0, 4]);
    let weights = HostTensor::contiguous(vec![1f32; 60], &[3, 5, 4]);
    let narrow = HostTensor::contiguous(vec![1f32; 45], &[3, 5, 3]);
    let three = HostTensor::contiguous(vec![0u32; 3], &[3]);
    let four = HostTensor::contiguous(vec![0u32; 4], &[4]);
    let none = HostTensor::<u32>::contiguous(vec![], &[0]);
    let (xb, nb, wb, rb) = (
        x.upload(&device),
        nothing.upload(&device),
        weights.upload(&device),
        narrow.upload(&device),
    );
    let (tb, fb, eb) = (
        three.upload(&device),
        four.upload(&device),
        none.upload(&device),
    );
    let (x, nothing, weights, narrow) = (
        x.view(&xb),
        nothing.view(&nb),
        weights.view(&wb),
        narrow.view(&rb),
    );
    let (three, four, none) = (three.view(&tb), four.view(&fb), none.view(&eb));
    let routing = |slots, experts| Routing {
        slots,
        experts,
        scale: None,
    };
    assert!(moe_gemm(&device, &nothing, &weights, routing(&none, &none))
        .unwrap()
        .is_empty());
    assert!(matches!(
        moe_gemm(&device, &x, &narrow, routing(&four, &four)),
        Err(Error::ShapeMismatch { .. })
    ));
    // Three slots cannot belong to two rows.
    assert!(matches!(
        moe_gemm(&device, &x, &weights, routing(&three, &three)),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        moe_gemm(&device, &x, &weights, routing(&four, &three)),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        moe_gemm(&device, &x, &weights, routing(&x, &four)),
        Err(Error::ShapeMismatch { .. }) | Err(Error::DTypeMismatch { .. })
    ));
}

#[test]
fn the_kernel_follows_from_the_shapes() {
    assert_eq!(MoeKernel::for_slots(8, 128), MoeKernel::Matvec);
    assert_eq!(MoeKernel::for_slots(16, 8), MoeKernel::Matvec);
    assert_eq!(MoeKernel::for_slots(17, 8), MoeKernel::Matmul);
    assert_eq!(MoeKernel::for_slots(4096, 128), MoeKernel::Matmul);
}
