//! hipBLASLt in place of our own kernels: where it is asked for, and what becomes of it when it is wrong, slow, or not
//! there.

mod common;
mod installation;
mod isolated;

use candle_rocm::blas::{forget_scaled, scaled_matmul, tune_scaled};
use candle_rocm::config::{Config, ScaledMultiplier};
use candle_rocm::ops::scaled::Scales;
use candle_rocm::{DType, Device, Error};
use common::{download, HostTensor, Layout, Rng};
use float8::F8E4M3;
use half::bf16;
use hip_sim::client::Client;
use installation::rocm_without;
use isolated::{in_child, is_child};

/// A product with its operands on the host.
struct Case {
    a: HostTensor<F8E4M3>,
    b: HostTensor<F8E4M3>,
    scale_a: HostTensor<f32>,
    scale_b: HostTensor<f32>,
    bias: Option<HostTensor<bf16>>,
    by_rows: bool,
}

impl Case {
    fn new([m, n, k]: [usize; 3], layout: Layout, by_rows: bool, has_bias: bool) -> Self {
        let floats = |seed, dims: &[usize]| {
            HostTensor::with_layout(dims, layout, |count| Rng::new(seed).vec(count, -4.0, 4.0))
        };
        let scales = |seed, count| {
            let count = if by_rows { count } else { 1 };
            HostTensor::contiguous(Rng::new(seed).vec(count, 0.1, 2.0), &[count])
        };
        let mut a = floats(1, &[m, k]);
        // What FNUZ lacks, and what it has other bits for.
        let at = a.positions();
        a.storage[at[0]] = F8E4M3::from_bits(0x80);
        a.storage[at[1]] = F8E4M3::from_f32(448.0);
        Case {
            a,
            b: floats(2, &[n, k]),
            scale_a: scales(3, m),
            scale_b: scales(4, n),
            bias: has_bias.then(|| HostTensor::contiguous(Rng::new(5).vec(n, -9.0, 9.0), &[n])),
            by_rows,
        }
    }

    fn multiply(&self, device: &Device) -> candle_rocm::Result<Vec<bf16>> {
        let (a, b) = (self.a.upload(device), self.b.upload(device));
        let (scale_a, scale_b) = (self.scale_a.upload(device), self.scale_b.upload(device));
        let bias = self.bias.as_ref().map(|bias| bias.upload(device));
        let bias = (self.bias.as_ref().zip(bias.as_ref())).map(|(host, buffer)| host.view(buffer));
        let kind = if self.by_rows {
            Scales::Rows
        } else {
            Scales::Tensor
        };
        let scales = [
            kind(self.scale_a.view(&scale_a)),
            kind(self.scale_b.view(&scale_b)),
        ];
        let got = scaled_matmul(
            device,
            &self.a.view(&a),
            &self.b.view(&b),
            &scales[0],
            &scales[1],
            bias.as_ref(),
            DType::BF16,
        )?;
        Ok(download(device, &got))
    }

    fn check(&self, device: &Device, what: &str) {
        let got = self.multiply(device).unwrap();
        let values = |t: &HostTensor<F8E4M3>| -> Vec<f64> {
            t.values().iter().map(|v| v.to_f64()).collect()
        };
        let (a, b) = (values(&self.a), values(&self.b));
        let [m, k] = self.a.dims[..] else { panic!() };
        let n = self.b.dims[0];
        let scale = |t: &HostTensor<f32>, i: usize| f64::from(t.storage[i % t.storage.len()]);
        for (i, got) in got.iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let sum: f64 = (0..k).map(|l| a[row * k + l] * b[column * k + l]).sum();
            let magnitude: f64 = (0..k)
                .map(|l| (a[row * k + l] * b[column * k + l]).abs())
                .sum();
            let scales = scale(&self.scale_a, row) * scale(&self.scale_b, column);
            let bias = (self.bias.as_ref()).map_or(0.0, |bias| bias.storage[column].to_f64());
            let want = sum * scales + bias;
            let bound = want.abs() / 256.0 + magnitude * scales * 1e-6;
            let distance = (got.to_f64() - want).abs();
            assert!(
                distance <= bound,
                "{what}: {i} is {got} instead of {want}, of {m} x {n}"
            );
        }
    }
}

const SIZES: [usize; 3] = [48, 32, 80];

fn with(scaled: Option<ScaledMultiplier>) -> Device {
    let config = Config {
        scaled,
        ..Config::from_env().unwrap()
    };
    Device::with_config(0, config).unwrap()
}

fn forced() -> Device {
    with(Some(ScaledMultiplier::Hipblaslt))
}

/// Products of hipBLASLt in what is done; our own kernels are none of the library's.
fn products_of_library(run: impl FnOnce()) -> u64 {
    let client = Client::find().expect("hip-sim");
    let before = client.counters().gemms;
    run();
    client.counters().gemms - before
}

const NEW_CACHE: &str = "CANDLE_ROCM_CACHE_DIR";

/// A folder with nothing that was compiled, measured or verified. The simulator knows the machine code of what it has
/// compiled for others.
fn cache_of_its_own() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn it_multiplies_where_it_is_asked_to() {
    let name = "it_multiplies_where_it_is_asked_to";
    // FNUZ and OCP; scales of rows need what ROCm 7 has.
    for arch in ["gfx942", "gfx950", "gfx1201"] {
        in_child(name, &[("HIP_SIM_ARCH", arch)], || {
            let device = forced();
            for layout in [Layout::Contiguous, Layout::Transposed, Layout::Narrowed] {
                for (by_rows, has_bias) in [(false, false), (true, false), (true, true)] {
                    let case = Case::new(SIZES, layout, by_rows, has_bias);
                    let what = format!("{layout:?} rows {by_rows} bias {has_bias}");
                    case.check(&device, &what);
                    let products = products_of_library(|| case.check(&device, &what));
                    assert_eq!(products, 1, "{what}");
                }
            }
        });
    }
}

#[test]
fn what_it_does_not_take_is_our_own_kernels() {
    let device = forced();
    for sizes in [[47, 32, 80], [48, 33, 80], [48, 32, 72]] {
        let case = Case::new(sizes, Layout::Contiguous, true, true);
        let products = products_of_library(|| case.check(&device, "odd sizes"));
        assert_eq!(products, 0, "{sizes:?}");
    }
    let ours = with(Some(ScaledMultiplier::Own));
    let case = Case::new(SIZES, Layout::Contiguous, false, false);
    for device in [ours, with(None)] {
        let products = products_of_library(|| case.check(&device, "not asked for"));
        assert_eq!(products, 0);
    }
}

#[test]
fn gpus_without_instructions_for_it_do_not_use_it() {
    let name = "gpus_without_instructions_for_it_do_not_use_it";
    in_child(name, &[("HIP_SIM_ARCH", "gfx1100")], || {
        let device = forced();
        let case = Case::new(SIZES, Layout::Contiguous, true, false);
        let products = products_of_library(|| case.check(&device, "gfx1100"));
        assert_eq!(products, 0);
        assert!(tune_scaled(&device, (64, 64)).unwrap().is_empty());
    });
}

#[test]
fn wrong_results_are_found_and_not_used() {
    let name = "wrong_results_are_found_and_not_used";
    let cache = cache_of_its_own();
    let environment = [
        (NEW_CACHE, cache.path().to_str().unwrap()),
        ("HIP_SIM_ARCH", "gfx942"),
        ("HIP_SIM_WRONG", "hipblaslt"),
    ];
    in_child(name, &environment, || {
        let device = forced();
        let case = Case::new(SIZES, Layout::Contiguous, true, false);
        let compared = products_of_library(|| case.check(&device, "wrong"));
        assert_eq!(compared, 1);
        let products = products_of_library(|| case.check(&device, "wrong, and known to be"));
        assert_eq!(products, 0);
        let off = candle_rocm::verify::switched_off();
        let is_told = |off: &String| off.contains("hipblaslt/f8e4m3 to bf16");
        assert!(off.iter().any(is_told), "{off:?}");
    });
}

#[test]
fn without_the_library_only_who_insists_is_refused() {
    let name = "without_the_library_only_who_insists_is_refused";
    let rocm = rocm_without("hipblaslt");
    in_child(
        name,
        &[("ROCM_PATH", rocm.path().to_str().unwrap())],
        || {
            let case = Case::new(SIZES, Layout::Contiguous, true, false);
            let error = case.multiply(&forced()).unwrap_err();
            let is_named = error.to_string().contains("libhipblaslt");
            assert!(matches!(error, Error::Load(_)) && is_named, "{error:?}");
            case.check(&with(None), "without the library");
            assert!(tune_scaled(&with(None), (64, 64)).unwrap().is_empty());
        },
    );
}

#[test]
fn what_was_found_faster_is_taken_and_remembered() {
    let name = "what_was_found_faster_is_taken_and_remembered";
    let cache = cache_of_its_own();
    let environment = [
        ("HIP_SIM_ARCH", "gfx942"),
        ("HIP_SIM_WRONG", "kernel-slow:scaled_matrix_*:50"),
        (NEW_CACHE, cache.path().to_str().unwrap()),
    ];
    in_child(name, &environment, || {
        let device = with(None);
        let case = Case::new([64, 64, 80], Layout::Contiguous, true, false);
        let timings = tune_scaled(&device, (64, 64)).unwrap();
        let classes: Vec<_> = timings.iter().map(|t| t.class.as_str()).collect();
        let all = ["tensors narrow", "tensors wide", "rows narrow", "rows wide"];
        assert_eq!(classes, all);
        for timing in &timings {
            let faster = timing.hipblaslt.as_ref().unwrap() < &timing.own;
            let taken = timing.taken == ScaledMultiplier::Hipblaslt;
            assert!(faster == taken, "{timing:?}");
        }
        assert!(
            timings[3].taken == ScaledMultiplier::Hipblaslt,
            "{timings:?}"
        );
        case.check(&device, "compared");
        assert_eq!(products_of_library(|| case.check(&device, "faster")), 1);
        forget_scaled(&device).unwrap();
        assert_eq!(products_of_library(|| case.check(&device, "forgotten")), 0);
    });
}

#[test]
fn a_slow_library_is_not_taken() {
    let name = "a_slow_library_is_not_taken";
    let cache = cache_of_its_own();
    let environment = [
        ("HIP_SIM_ARCH", "gfx942"),
        ("HIP_SIM_WRONG", "hipblaslt-slow:1500"),
        (NEW_CACHE, cache.path().to_str().unwrap()),
    ];
    in_child(name, &environment, || {
        let device = with(None);
        let timings = tune_scaled(&device, (32, 32)).unwrap();
        assert_eq!(timings.len(), 4);
        for timing in &timings {
            assert_eq!(timing.taken, ScaledMultiplier::Own, "{timing:?}");
        }
        let case = Case::new(SIZES, Layout::Contiguous, true, false);
        assert_eq!(products_of_library(|| case.check(&device, "slow")), 0);
    });
}

/// It is written down before, so that the next process does not try.
#[test]
fn a_library_that_ends_the_process_does_so_once() {
    let name = "a_library_that_ends_the_process_does_so_once";
    let cache = cache_of_its_own();
    let folder = (NEW_CACHE, cache.path().to_str().unwrap());
    let fault = ("HIP_SIM_WRONG", "hipblaslt-exit");
    let arch = ("HIP_SIM_ARCH", "gfx942");
    let ends = || in_child(name, &[arch, folder, fault], tune_and_end);
    if is_child(name) && std::env::var_os(fault.0).is_some() {
        return ends();
    }
    if !is_child(name) {
        let ended = std::panic::catch_unwind(ends);
        assert!(ended.is_err(), "the library was not asked");
    }
    in_child(name, &[arch, folder], || {
        let folder = std::env::var_os(NEW_CACHE).unwrap();
        let files = std::fs::read_dir(folder).unwrap();
        let mut texts = files.filter_map(|file| {
            let path = file.unwrap().path();
            let is_wanted = path.file_name()?.to_str()?.starts_with("scaled-");
            is_wanted.then(|| std::fs::read_to_string(path).unwrap())
        });
        let text = texts.next().expect("what was tried");
        assert!(text.ends_with("\ntensors narrow\town\n"), "{text}");
        let case = Case::new(SIZES, Layout::Contiguous, false, false);
        let device = with(None);
        assert_eq!(products_of_library(|| case.check(&device, "next")), 0);
    });
}

fn tune_and_end() {
    let timings = tune_scaled(&with(None), (32, 32));
    panic!("the process did not end: {timings:?}");
}
