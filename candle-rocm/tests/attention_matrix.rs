//! Attention by matrix instructions: what its tiles, padding and packing of rows could get wrong. Semantics in full are
//! in attention.rs.

mod attention_oracle;
mod common;
mod isolated;

use attention_oracle::layouts::{fixed, packed, paged};
use attention_oracle::{compare, is_for_matrix, Case, Outcome, Values, WIDEST_OF_MATRIX};
use candle_rocm::ops::attention::{attention, attention_on, Attention, Order, Tier, SCORE_BYTES};
use candle_rocm::{Device, Error, View};
use common::{assert_exact, device, download, upload, Element, HostTensor, Layout, Rng};
use half::{bf16, f16};

/// Whether the arch has the instructions; without them the tier must say so.
fn is_available(device: &Device) -> bool {
    is_for_matrix::<f16>(device, &Case::new(1, 1, 64))
}

/// Runs a case in both formats with `run`, and compares; `batch` as of [`compare`].
fn check(case: Case, batch: usize, run: impl Runs) {
    let device = device();
    check_in::<f16>(&device, &case, batch, &run);
    check_in::<bf16>(&device, &case, batch, &run);
}

/// A way to lay a case out.
trait Runs {
    fn run<T: Element>(&self, device: &Device, case: &Case, values: &Values<T>) -> Outcome;
}

struct Fixed;
struct Packed;
struct Paged(usize);

impl Runs for Fixed {
    fn run<T: Element>(&self, device: &Device, case: &Case, values: &Values<T>) -> Outcome {
        fixed(device, case, values, Tier::Matrix, SCORE_BYTES)
    }
}

impl Runs for Packed {
    fn run<T: Element>(&self, device: &Device, case: &Case, values: &Values<T>) -> Outcome {
        packed(device, case, values, Tier::Matrix)
    }
}

impl Runs for Paged {
    fn run<T: Element>(&self, device: &Device, case: &Case, values: &Values<T>) -> Outcome {
        paged(device, case, values, Tier::Matrix, self.0)
    }
}

fn check_in<T: Element>(device: &Device, case: &Case, batch: usize, run: &impl Runs) {
    let values = Values::<T>::random(case, 9);
    let got = run.run(device, case, &values);
    if is_available(device) {
        compare(device, case, &values, batch, got, "matrix");
    } else {
        let text = got.unwrap_err().to_string();
        assert!(text.contains("no matrix instructions"), "{text}");
    }
}

/// One sequence.
fn single(rows: usize, keys: usize, heads: usize, kv_heads: usize, width: usize) -> Case {
    Case {
        rows: vec![rows],
        keys: vec![keys],
        ..Case::new(rows, keys, width).heads(heads, kv_heads)
    }
}

#[test]
fn every_width_and_its_padding() {
    for width in [8, 40, 64, 80, 96, 128, 160, 192, 256] {
        check(single(21, 37, 1, 1, width), 1, Fixed);
    }
}

/// HIP reports the generic processor where ROCm runs code objects of it; it has gfx942's instructions.
#[test]
fn the_generic_processor_has_the_instructions_of_its_members() {
    let name = "the_generic_processor_has_the_instructions_of_its_members";
    let environment = [("HIP_SIM_ARCH", "gfx9-4-generic"), ("HIP_SIM_DEVICES", "1")];
    isolated::in_child(name, &environment, || {
        let device = device();
        assert_eq!(device.properties().arch, "gfx9-4-generic");
        let case = single(21, 37, 1, 1, 64);
        let values = Values::<f16>::random(&case, 9);
        let got = Fixed.run(&device, &case, &values);
        compare(&device, &case, &values, 1, got, "matrix");
    });
}

#[test]
fn causal_tiles_and_more_keys_than_rows() {
    check(single(150, 150, 1, 1, 64).causal(), 1, Fixed);
    check(single(70, 133, 2, 2, 128).causal(), 1, Fixed);
    check(single(70, 133, 2, 1, 256).causal(), 1, Fixed);
    // The first rows see nothing.
    check(single(50, 20, 1, 1, 64).causal(), 1, Fixed);
}

#[test]
fn windows_skip_tiles_on_both_sides() {
    let case = single(140, 200, 1, 1, 64);
    check(case.window(Some(33), Some(5)), 1, Fixed);
    let case = single(140, 200, 1, 1, 128);
    check(case.window(Some(0), Some(0)), 1, Fixed);
}

#[test]
fn groups_share_tiles() {
    for (heads, kv_heads) in [(4, 1), (6, 2), (5, 1)] {
        check(single(33, 65, heads, kv_heads, 64).causal(), 1, Fixed);
    }
}

#[test]
fn scores_with_softcap_alibi_and_mask() {
    let mut case = single(40, 70, 4, 2, 96);
    case.softcap = Some(3.0);
    check(case.clone(), 1, Fixed);
    case.alibi = true;
    check(case.clone().causal(), 1, Fixed);
    case.mask = true;
    check(case, 1, Fixed);
}

#[test]
fn sinks_and_chunks() {
    let mut case = single(70, 133, 4, 2, 64).causal();
    case.sinks = true;
    check(case.clone(), 1, Fixed);
    case.chunk = Some(50);
    check(case.clone(), 1, Fixed);
    case.chunk = Some(16);
    case.width = 128;
    case.v_width = 128;
    check(case, 1, Paged(16));
}

#[test]
fn packed_and_paged_sequences() {
    let case = |width| Case {
        rows: vec![40, 1, 0, 17],
        keys: vec![40, 90, 5, 33],
        ..Case::new(1, 1, width).heads(4, 2).causal()
    };
    check(case(64), 1, Packed);
    check(case(128), 1, Paged(16));
    check(case(192), 1, Paged(16));
}

#[test]
fn the_tier_says_what_it_lacks() {
    let device = device();
    let buffer = upload(&device, &vec![f16::ONE; 512]);
    let view = |dims: &'static [usize; 4], strides: &'static [usize; 4]| {
        View::contiguous(&buffer, f16::DTYPE, dims, strides)
    };
    let wide = view(&[1, 1, 1, 264], &[264, 264, 264, 1]);
    let mut problem = Attention::new(wide, wide, wide, 1.0);
    problem.order = Order::HeadsRows;
    let error = attention_on(&device, &problem, Tier::Matrix, 0).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    let text = error.to_string();
    if is_available(&device) {
        let expected = format!("head sizes end at {}, before 264", WIDEST_OF_MATRIX);
        assert!(text.contains(&expected), "{text}");
    }
}

/// Of many rows the result is that of rounded queries where matrix instructions exist; of few rows, and elsewhere, that
/// of queries as they are.
#[test]
fn queries_rounded_to_the_keys() {
    let device = device();
    let mut rng = Rng::new(4);
    let (heads, kv_heads, width, keys) = (4, 2, 64, 50);
    let mut random = |dims: &[usize]| {
        HostTensor::<f32>::with_layout(dims, Layout::Contiguous, |n| rng.vec(n, -1.0, 1.0))
    };
    let kv = [(); 2].map(|()| random(&[1, keys, kv_heads, width]));
    let halves = |x: &HostTensor<f32>| -> HostTensor<f16> {
        let values = x.values().into_iter().map(f16::from_f32).collect();
        HostTensor::contiguous(values, &x.dims)
    };
    let [k, v] = kv.map(|x| halves(&x));
    let buffers = [k.upload(&device), v.upload(&device)];
    for rows in [1, 40] {
        let q = random(&[1, rows, heads, width]);
        let rounded = halves(&q);
        let (q_buffer, rounded_buffer) = (q.upload(&device), rounded.upload(&device));
        let run = |q: View, may_round| {
            let (k, v) = (k.view(&buffers[0]), v.view(&buffers[1]));
            let problem = Attention {
                may_round,
                ..Attention::new(q, k, v, 0.125)
            };
            attention(&device, &problem).unwrap().out
        };
        let got = download::<f32>(&device, &run(q.view(&q_buffer), true));
        let want = if rows > 1 && is_available(&device) {
            let out = download::<f16>(&device, &run(rounded.view(&rounded_buffer), false));
            out.into_iter().map(f16::to_f32).collect()
        } else {
            download::<f32>(&device, &run(q.view(&q_buffer), false))
        };
        assert_exact(&got, &want, &format!("{rows} rows"));
    }
}
