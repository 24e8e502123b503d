//! Verification: checks reach the kernels that they are for, find nothing where nothing is wrong, and find every fault
//! that hip-sim injects, whose place the next form, tier or library then takes.

mod common;
mod isolated;

use candle_rocm::config::{Config, Mode, Verify};
use candle_rocm::ops::attention::{attention, Attention};
use candle_rocm::ops::conv::{conv2d, Conv};
use candle_rocm::ops::quantized::{linear, Epilogue, Format, QuantizedMatrix};
use candle_rocm::ops::reduce::{reduce, ReduceOp};
use candle_rocm::ops::softmax::softmax_last_dim;
use candle_rocm::verify::{on_warning, switched_off, try_kernel, Verification};
use candle_rocm::{blas, ops, DeclaredKernel, Device, Only, View};
use common::{assert_close, device, download, row_major, upload, Element, Rng};
use half::f16;
use hip_sim::client::Client;
use isolated::{in_child, is_child};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

fn exists_on(device: &Device, kernel: &DeclaredKernel) -> bool {
    let properties = device.properties();
    match kernel.only {
        None => true,
        Some(Only::Wave32) => properties.wave_size == 32,
        Some(Only::Matrix) => properties.arch.generation().matrix().is_some(),
        Some(Only::Float8) => properties.arch.has_float8(),
        Some(Only::Mx) => properties.arch.has_mx(),
    }
}

/// Parts of sums of small floats are joined along rows, so nobody launches these unless that is switched off.
const NOT_LAUNCHED: [&str; 3] = ["sum_f32_f16", "sum_f32_bf16", "sum_f32_f8e4m3"];

/// Of the families whose names begin so, or with `CANDLE_ROCM_TEST_FAMILIES=NAME,…` of those among them that begin with
/// one of these: on an emulator of a GPU a family alone can take minutes. Names each kernel before it is tried, which
/// `--nocapture` shows, and at the end how many of each family were.
fn try_families(families: &[&str]) {
    let asked = std::env::var("CANDLE_ROCM_TEST_FAMILIES").unwrap_or_default();
    let asked: Vec<&str> = asked.split(',').filter(|name| !name.is_empty()).collect();
    let begins = |file: &str, names: &[&str]| names.iter().any(|name| file.starts_with(name));
    let wanted = |file: &str| begins(file, families) && (asked.is_empty() || begins(file, &asked));
    let device = device();
    let verifies = device.config().verify != Verify::Off;
    let mut tried = BTreeMap::new();
    let mut failures = Vec::new();
    for kernel in ops::kernels() {
        let file = kernel.family.file_name();
        if !exists_on(&device, &kernel) || !wanted(file) {
            continue;
        }
        eprintln!("{file}: {}", kernel.name);
        let failure = match try_kernel(&device, &kernel) {
            Ok(None) => continue,
            Ok(Some(result)) => {
                // What was verified by the way of another is launched without being asked for again. Where nothing is
                // verified, that is not known.
                let verified = device.verification().verified;
                let launched =
                    result.launched || verified.iter().any(|n| n.ends_with(&kernel.name));
                let expected = !NOT_LAUNCHED.contains(&kernel.name.as_str());
                let right = result.wrong.is_none() && (launched == expected || !verifies);
                (!right).then(|| format!("{}: {result:?}", kernel.name))
            }
            Err(error) => Some(format!("{}: {error}", kernel.name)),
        };
        if let Some(failure) = failure {
            eprintln!("{failure}");
            failures.push(failure);
        }
        *tried.entry(file).or_insert(0) += 1;
    }
    let all = failures.join("\n");
    assert!(failures.is_empty(), "of {tried:?} checks wrong:\n{all}");
    assert!(!tried.is_empty() || !asked.is_empty());
    eprintln!("right: {tried:?}");
    assert_eq!(switched_off(), Vec::<String>::new());
}

/// Families whose checks are tried together: each is in one of these.
const ROWS: &[&str] = &[
    "softmax",
    "norm",
    "group_norm",
    "rope",
    "gated",
    "epilogue",
    "sampling",
    "sort",
];
const ELEMENTS: &[&str] = &["affine", "unary", "binary", "cast"];
const REDUCTIONS: &[&str] = &[
    "reduce",
    "scan",
    "indexing",
    "conv",
    "causal_conv",
    "delta_rule",
    "state_space",
];
const ATTENTION: &[&str] = &["attention"];
const PRODUCTS: &[&str] = &[
    "matmul",
    "moe/router",
    "moe/rows",
    "moe/gate",
    "quantized/activations",
];
const QUANTIZED_PRODUCTS: &[&str] = &[
    "quantized/matvec_small",
    "quantized/matvec_k",
    "quantized/matvec_codebook",
    "quantized/matvec_levels",
    "quantized/matmul_small",
    "quantized/matmul_k",
    "quantized/matmul_codebook",
    "quantized/matmul_levels",
    "quantized/matmul_halves",
    "moe/quantized",
];
const EIGHT_BIT_FLOATS: &[&str] = &[
    "quantized/matvec_f8",
    "quantized/matmul_f8",
    "quantized/matmul_float8",
    "quantized/matmul_mx",
    "moe/f8",
];

#[test]
fn checks_of_rows_launch_their_kernels_and_find_them_right() {
    try_families(ROWS);
}

#[test]
fn checks_of_elements_launch_their_kernels_and_find_them_right() {
    try_families(ELEMENTS);
}

#[test]
fn checks_of_reductions_launch_their_kernels_and_find_them_right() {
    try_families(REDUCTIONS);
}

#[test]
fn checks_of_attention_launch_their_kernels_and_find_them_right() {
    try_families(ATTENTION);
}

#[test]
fn checks_of_products_launch_their_kernels_and_find_them_right() {
    try_families(PRODUCTS);
}

#[test]
fn checks_of_quantized_products_launch_their_kernels_and_find_them_right() {
    try_families(QUANTIZED_PRODUCTS);
}

#[test]
fn checks_of_8_bit_floats_launch_their_kernels_and_find_them_right() {
    try_families(EIGHT_BIT_FLOATS);
}

#[test]
fn a_family_in_no_test_has_no_check() {
    let device = device();
    let tests = [
        ROWS,
        ELEMENTS,
        REDUCTIONS,
        ATTENTION,
        PRODUCTS,
        QUANTIZED_PRODUCTS,
        EIGHT_BIT_FLOATS,
    ]
    .concat();
    for kernel in ops::kernels() {
        let file = kernel.family.file_name();
        if tests.iter().any(|name| file.starts_with(name)) || !exists_on(&device, &kernel) {
            continue;
        }
        let outcome = try_kernel(&device, &kernel);
        assert!(
            matches!(outcome, Ok(None)),
            "{file} is in none: {outcome:?}"
        );
    }
}

/// A folder with the objects that the tests have compiled so far, without what they found.
struct Cache(tempfile::TempDir);

impl Cache {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for object in objects(&shared_cache()) {
            let link = folder.path().join(object.file_name().unwrap());
            std::os::unix::fs::symlink(&object, link).unwrap();
        }
        Cache(folder)
    }

    fn results(&self) -> Vec<std::path::PathBuf> {
        let all = std::fs::read_dir(self.0.path()).unwrap();
        let paths = all.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|e| e == "txt"))
            .collect()
    }
}

impl Drop for Cache {
    /// What was compiled is of use to the next one.
    fn drop(&mut self) {
        let to = shared_cache();
        for object in objects(self.0.path()) {
            let path = to.join(object.file_name().unwrap());
            if !object.is_symlink() && !path.exists() {
                let part = path.with_extension(format!("{}.part", std::process::id()));
                let copied = std::fs::copy(&object, &part).is_ok();
                assert!(
                    copied && std::fs::rename(&part, &path).is_ok() || std::thread::panicking()
                );
            }
        }
    }
}

fn shared_cache() -> std::path::PathBuf {
    let folder = std::env::var_os("CANDLE_ROCM_CACHE_DIR").map(std::path::PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn objects(folder: &Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(folder).unwrap();
    let paths = all.map(|entry| entry.unwrap().path());
    let is_object = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "co");
    paths.filter(is_object).collect()
}

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs `work` in a process whose simulator has a fault, and again in another, which does not look for it any more:
/// both get what is right, know what is switched off, and warn of it.
fn with_fault(test: &str, fault: &str, what: &str, work: fn(&Device)) {
    let body = || {
        let device = device();
        let remembered = std::env::var_os("REMEMBERED").is_some();
        let has = |v: &Verification| v.switched_off.iter().any(|off| off.name.contains(what));
        assert_eq!(has(&device.verification()), remembered);
        on_warning(|text| WARNINGS.lock().unwrap().push(text.to_string()));
        work(&device);
        let verification = device.verification();
        assert!(
            has(&verification),
            "{what} in {:?}",
            verification.switched_off
        );
        let warnings = WARNINGS.lock().unwrap().clone();
        assert!(
            warnings.iter().any(|text| text.contains(what)),
            "{warnings:?}"
        );
        assert!(switched_off().iter().any(|text| text.contains(what)));
    };
    if is_child(test) {
        return body();
    }
    drop(device());
    if Client::find().is_none() {
        return; // on a GPU
    }
    let cache = Cache::new();
    let folder = cache.0.path().to_str().unwrap().to_string();
    let environment = [
        ("HIP_SIM_WRONG", fault),
        ("CANDLE_ROCM_CACHE_DIR", &folder),
        ("CANDLE_ROCM_VERIFY", "first"),
    ];
    in_child(test, &environment, body);
    assert_eq!(cache.results().len(), 1);
    let again: Vec<_> = environment
        .into_iter()
        .chain([("REMEMBERED", "1")])
        .collect();
    in_child(test, &again, body);
}

fn view<'a, T: Element>(
    buffer: &'a candle_rocm::Buffer,
    dims: &'a [usize],
    strides: &'a [usize],
) -> View<'a> {
    View::contiguous(buffer, T::DTYPE, dims, strides)
}

/// Softmax of short rows and long ones, which waves and blocks reduce.
fn softmax_is_right(device: &Device) {
    for dims in [[9, 45], [3, 5003]] {
        let values: Vec<f32> = Rng::new(3).vec(dims[0] * dims[1], -4.0, 4.0);
        let x = upload(device, &values);
        let out = softmax_last_dim(device, &view::<f32>(&x, &dims, &row_major(&dims))).unwrap();
        let mut want = Vec::new();
        for row in values.chunks(dims[1]) {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            want.extend(row.iter().map(|x| f64::from(*x).exp() / sum));
        }
        assert_close(&download::<f32>(device, &out), &want, 1e-9, "softmax");
    }
}

/// Attention of many rows, which matrix instructions compute where there are any.
fn attention_is_right(device: &Device) {
    let (rows, keys, heads, width) = (37, 53, 2, 64);
    let (q_dims, k_dims) = ([1, rows, heads, width], [1, keys, heads, width]);
    let mut rng = Rng::new(5);
    let q: Vec<f16> = rng.vec(rows * heads * width, -1.0, 1.0);
    let k: Vec<f16> = rng.vec(keys * heads * width, -1.0, 1.0);
    let v: Vec<f16> = rng.vec(keys * heads * width, -1.0, 1.0);
    let buffers = [&q, &k, &v].map(|values| upload(device, values));
    let (q_strides, k_strides) = (row_major(&q_dims), row_major(&k_dims));
    let a = Attention::new(
        view::<f16>(&buffers[0], &q_dims, &q_strides),
        view::<f16>(&buffers[1], &k_dims, &k_strides),
        view::<f16>(&buffers[2], &k_dims, &k_strides),
        0.125,
    );
    let out = attention(device, &a).unwrap().out;
    let mut want = vec![0.0; rows * heads * width];
    for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
        let line = |of: usize| (of * heads + head) * width;
        let score = |key: usize| -> f64 {
            let pairs = (0..width).map(|i| q[line(row) + i].to_f64() * k[line(key) + i].to_f64());
            (pairs.sum::<f64>() * 0.125).exp()
        };
        let weights: Vec<f64> = (0..keys).map(score).collect();
        let sum: f64 = weights.iter().sum();
        for (key, weight) in weights.iter().enumerate() {
            for i in 0..width {
                want[line(row) + i] += weight / sum * v[line(key) + i].to_f64();
            }
        }
    }
    assert_close(&download::<f16>(device, &out), &want, 1e-4, "attention");
}

/// Vectors times a matrix in Q8_0, by all paths that so many of them take.
fn quantized_is_right(device: &Device, columns: usize) {
    let (rows, k) = (75, 256);
    let blocks: Vec<u8> = (0..rows * k / 32)
        .flat_map(|block| {
            let scale = f16::from_f64(0.01 + block as f64 / 1e5).to_le_bytes();
            let quants = (0..32).map(move |i| ((block * 31 + i * 7) % 255) as u8);
            scale.into_iter().chain(quants)
        })
        .collect();
    let weights: Vec<f64> = (blocks.chunks(34))
        .flat_map(|block| {
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f64();
            block[2..].iter().map(move |q| f64::from(*q as i8) * scale)
        })
        .collect();
    let buffer = device.upload(&blocks).unwrap();
    let x: Vec<f32> = Rng::new(7).vec(columns * k, -1.0, 1.0);
    let xs = upload(device, &x);
    let dims = [columns, k];
    let matrix = QuantizedMatrix::new(Format::Q8_0, &buffer, rows, k);
    let strides = row_major(&dims);
    let x_view = view::<f32>(&xs, &dims, &strides);
    let out = linear(device, &matrix, &x_view, &Epilogue::default()).unwrap();
    let want: Vec<f64> = (0..columns * rows)
        .map(|i| {
            let (x, w) = (&x[i / rows * k..][..k], &weights[i % rows * k..][..k]);
            x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum()
        })
        .collect();
    assert_close(
        &download::<f32>(device, &out),
        &want,
        1e-4,
        "quantized product",
    );
}

/// Vectors times a matrix of 8-bit floats, of which every second one is 1 and the others are -1/2.
fn floats_are_right(device: &Device, columns: usize) {
    let (rows, k) = (75, 256);
    let scale = |block: usize| 0.01 + block as f32 / 1e5;
    let blocks: Vec<u8> = (0..rows * k / 64)
        .flat_map(|block| {
            let elements = (0..64).map(|i| if i % 2 == 0 { 0x38 } else { 0xb0 });
            scale(block).to_le_bytes().into_iter().chain(elements)
        })
        .collect();
    let buffer = device.upload(&blocks).unwrap();
    let x: Vec<f32> = Rng::new(8).vec(columns * k, -1.0, 1.0);
    let xs = upload(device, &x);
    let dims = [columns, k];
    let matrix = QuantizedMatrix::new(Format::F8E4M3, &buffer, rows, k);
    let strides = row_major(&dims);
    let x_view = view::<f32>(&xs, &dims, &strides);
    let out = linear(device, &matrix, &x_view, &Epilogue::default()).unwrap();
    let of = |row: usize, i: usize| f64::from(scale((row * k + i) / 64));
    let want: Vec<f64> = (0..columns * rows)
        .map(|at| {
            let (row, x) = (at % rows, &x[at / rows * k..][..k]);
            let term = |(i, x): (usize, &f32)| {
                f64::from(*x) * of(row, i) * if i % 2 == 0 { 1.0 } else { -0.5 }
            };
            x.iter().enumerate().map(term).sum()
        })
        .collect();
    let got = download::<f32>(device, &out);
    assert_close(&got, &want, 1e-8, "product of 8-bit floats");
}

#[test]
fn lanes_that_read_their_neighbours_go_through_lds() {
    let test = "lanes_that_read_their_neighbours_go_through_lds";
    with_fault(test, "flipped-lane", "instructions/lanes", |device| {
        softmax_is_right(device);
    });
}

#[test]
fn shared_memory_without_order_gets_barriers() {
    let test = "shared_memory_without_order_gets_barriers";
    with_fault(test, "stale-lds", "instructions/lds", |device| {
        // Few rows to many keys, whose parts waves exchange through shared memory.
        let mut rng = Rng::new(5);
        let (keys, width) = (700, 64);
        let q: Vec<f32> = rng.vec(width, -1.0, 1.0);
        let k: Vec<f32> = rng.vec(keys * width, -1.0, 1.0);
        let (qs, ks) = (upload(device, &q), upload(device, &k));
        let (q_dims, k_dims) = ([1, 1, 1, width], [1, keys, 1, width]);
        let (q_strides, k_strides) = (row_major(&q_dims), row_major(&k_dims));
        let of_keys = view::<f32>(&ks, &k_dims, &k_strides);
        let a = Attention::new(view::<f32>(&qs, &q_dims, &q_strides), of_keys, of_keys, 0.1);
        let out = attention(device, &a).unwrap().out;
        let score = |key: usize| -> f64 {
            let pairs = (0..width).map(|i| f64::from(q[i]) * f64::from(k[key * width + i]));
            (pairs.sum::<f64>() * 0.1).exp()
        };
        let weights: Vec<f64> = (0..keys).map(score).collect();
        let sum: f64 = weights.iter().sum();
        let want: Vec<f64> = (0..width)
            .map(|i| {
                let terms = (0..keys).map(|key| weights[key] / sum * f64::from(k[key * width + i]));
                terms.sum()
            })
            .collect();
        assert_close(&download::<f32>(device, &out), &want, 1e-7, "attention");
    });
}

#[test]
fn matrices_in_another_layout_are_not_used() {
    let test = "matrices_in_another_layout_are_not_used";
    with_fault(test, "matrix-layout", "instructions/matrix", |device| {
        attention_is_right(device);
        quantized_is_right(device, 40);
        floats_are_right(device, 40);
    });
}

#[test]
fn a_tier_that_is_wrong_leaves_attention_to_the_next() {
    let test = "a_tier_that_is_wrong_leaves_attention_to_the_next";
    let what = "attention/matrix_f16/attention_matrix_f16_64";
    with_fault(
        test,
        "kernel:attention_matrix_f16_64",
        what,
        attention_is_right,
    );
}

#[test]
fn a_quantized_product_that_is_wrong_is_made_in_another_way() {
    let test = "a_quantized_product_that_is_wrong_is_made_in_another_way";
    let what = "quantized/matvec_small/matvec_q8_0_1";
    with_fault(test, "kernel:mat*_q8_0*", what, |device| {
        quantized_is_right(device, 1);
        quantized_is_right(device, 40);
        let off = device.verification().switched_off;
        assert!(
            off.iter().any(|off| off.name.ends_with("matmul_wide_q8_0")),
            "{off:?}"
        );
    });
}

#[test]
fn a_product_of_8_bit_floats_that_is_wrong_is_made_in_another_way() {
    let test = "a_product_of_8_bit_floats_that_is_wrong_is_made_in_another_way";
    let what = "quantized/matvec_f8/matvec_f8_e4m3_f32_1";
    with_fault(test, "kernel:mat*_f8_e4m3*", what, |device| {
        floats_are_right(device, 1);
        floats_are_right(device, 40);
        let off = device.verification().switched_off;
        let name = "matmul_wide_f8_e4m3_f32";
        assert!(off.iter().any(|off| off.name.ends_with(name)), "{off:?}");
    });
}

#[test]
fn sums_in_packs_that_are_wrong_are_made_element_by_element() {
    let test = "sums_in_packs_that_are_wrong_are_made_element_by_element";
    with_fault(
        test,
        "kernel:sum_rows_f32",
        "reduce_packs/sum_rows_f32",
        |device| {
            let dims = [600, 75];
            let values: Vec<f32> = Rng::new(9).vec(dims[0] * dims[1], -1.0, 2.0);
            let x = upload(device, &values);
            let x = view::<f32>(&x, &dims, &[75, 1]);
            let out = reduce(device, ReduceOp::Sum, &x, &[1]).unwrap();
            let rows = values.chunks(dims[1]);
            let want: Vec<f64> = rows
                .map(|row| row.iter().map(|x| f64::from(*x)).sum())
                .collect();
            assert_close(&download::<f32>(device, &out), &want, 1e-9, "sums");
        },
    );
}

#[test]
fn a_kernel_that_nothing_replaces_is_refused() {
    let test = "a_kernel_that_nothing_replaces_is_refused";
    with_fault(
        test,
        "kernel:softmax_wave_f32",
        "softmax/softmax_wave_f32",
        |device| {
            let x = upload(device, &[1f32; 90]);
            let error = softmax_last_dim(device, &view::<f32>(&x, &[2, 45], &[45, 1])).unwrap_err();
            assert!(error.is_switched_off(), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("softmax_wave_f32") && text.contains("wrong"),
                "{text}"
            );
        },
    );
}

#[test]
fn products_that_rocblas_gets_wrong_are_made_by_own_kernels() {
    let test = "products_that_rocblas_gets_wrong_are_made_by_own_kernels";
    with_fault(test, "blas:f32:tn", "rocblas/f32 tn", |device| {
        let (m, n, k) = (33, 21, 50);
        let mut rng = Rng::new(11);
        let a: Vec<f32> = rng.vec(m * k, -1.0, 1.0);
        let b: Vec<f32> = rng.vec(k * n, -1.0, 1.0);
        let (x, y) = (upload(device, &a), upload(device, &b));
        // The right operand lies column by column: the first one of rocBLAS, transposed.
        let (a_dims, b_dims) = ([m, k], [k, n]);
        let lhs = view::<f32>(&x, &a_dims, &[50, 1]);
        let rhs = view::<f32>(&y, &b_dims, &[1, 50]);
        let out = blas::matmul(device, f32::DTYPE, (1, m, n, k), &lhs, &rhs).unwrap();
        let want: Vec<f64> = (0..m * n)
            .map(|i| {
                let (a, b) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
                a.iter()
                    .zip(b)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum()
            })
            .collect();
        assert_close(&download::<f32>(device, &out), &want, 1e-9, "product");
        let off = device.verification().switched_off;
        assert_eq!(off.len(), 1, "{off:?}");
    });
}

#[test]
fn solvers_of_miopen_that_are_wrong_are_passed_over() {
    let test = "solvers_of_miopen_that_are_wrong_are_passed_over";
    with_fault(test, "miopen:f32", "miopen/f32 forward solver", |device| {
        // For RDNA this MIOpen has nothing that is worth it before it has measured.
        for miopen in [Mode::Tune, Mode::Fast] {
            let config = Config {
                miopen,
                ..*device.config()
            };
            convolution_is_right(Device::with_config(device.ordinal(), config).unwrap());
        }
    });
}

fn convolution_is_right(device: Device) {
    let (x_dims, w_dims) = ([1, 16, 12, 12], [24, 16, 3, 3]);
    let mut rng = Rng::new(13);
    let a: Vec<f32> = rng.vec(16 * 144, -1.0, 1.0);
    let w: Vec<f32> = rng.vec(24 * 16 * 9, -1.0, 1.0);
    let (x, kernel) = (upload(&device, &a), upload(&device, &w));
    let (x_strides, w_strides) = (row_major(&x_dims), row_major(&w_dims));
    let xs = view::<f32>(&x, &x_dims, &x_strides);
    let ws = view::<f32>(&kernel, &w_dims, &w_strides);
    let want: Vec<f64> = (0..24 * 100)
        .map(|i| {
            let (channel, y, column) = (i / 100, i / 10 % 10, i % 10);
            let tap = |t: usize| {
                let (c, ky, kx) = (t / 9, t / 3 % 3, t % 3);
                let x = a[(c * 12 + y + ky) * 12 + column + kx];
                f64::from(x) * f64::from(w[channel * 144 + t])
            };
            (0..144).map(tap).sum()
        })
        .collect();
    let out = conv2d(&device, &xs, &ws, Conv::default()).unwrap();
    assert_close(&download::<f32>(&device, &out), &want, 1e-9, "convolution");
}

/// What was found is not looked for again, unless that is asked for, or the file is damaged.
#[test]
fn results_are_remembered_until_they_are_damaged() {
    let test = "results_are_remembered_until_they_are_damaged";
    let body = || {
        let device = device();
        let before = device.verification().verified.len();
        softmax_is_right(&device);
        let after = device.verification();
        assert_eq!(after.switched_off, []);
        let expected = std::env::var("EXPECTED").unwrap();
        let (before_is_empty, after_is_empty) = (before == 0, after.verified.is_empty());
        let got = match (before_is_empty, after_is_empty) {
            (true, true) => "nothing",
            (true, false) => "verified",
            (false, _) => "remembered",
        };
        assert_eq!(got, expected, "{:?}", device.config().verify);
        assert_eq!(after_is_empty, device.config().verify == Verify::Off);
    };
    if is_child(test) {
        return body();
    }
    drop(device());
    let cache = Cache::new();
    let folder = cache.0.path().to_str().unwrap().to_string();
    let run = |mode: &str, expected: &str| {
        let environment = [
            ("CANDLE_ROCM_CACHE_DIR", folder.as_str()),
            ("CANDLE_ROCM_VERIFY", mode),
            ("EXPECTED", expected),
        ];
        in_child(test, &environment, body);
    };
    run("off", "nothing");
    assert_eq!(cache.results().len(), 0);
    run("first", "verified");
    run("first", "remembered");
    run("always", "verified");
    run("off", "nothing");
    let file = cache.results().remove(0);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("right", "off")).unwrap();
    run("first", "verified");
    run("first", "remembered");
}
