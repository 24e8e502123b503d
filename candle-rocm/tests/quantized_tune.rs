//! Crossovers that are measured: kept on disk, read by later processes, forgotten.

mod common;
mod isolated;

use candle_rocm::ops::quantized::{
    forget, linear, multiplies_floats, tune, Epilogue, Format, QuantizedMatrix,
};
use candle_rocm::{DType, Device, Error, View};
use common::{device, download, upload};
use half::bf16;
use std::path::{Path, PathBuf};

const FORMAT: Format = Format::Q4_0;
const CACHE: &str = "CANDLE_ROCM_CACHE_DIR";

/// A folder with nothing that was compiled, measured or verified. The simulator knows the machine code of what it has
/// compiled for others.
fn cache_of_its_own() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn in_child(name: &str, folder: &Path, body: impl FnOnce()) {
    isolated::in_child(name, &[(CACHE, folder.to_str().unwrap())], body);
}

/// Whether `columns` vectors of f32 go to rocBLAS.
fn as_floats(device: &Device, columns: usize) -> bool {
    let weights = device.alloc_zeroed(18).unwrap();
    let weights = QuantizedMatrix::new(FORMAT, &weights, 1, 32);
    multiplies_floats(device, &weights, columns, DType::F32).unwrap()
}

/// The one file of crossovers in the child's cache.
fn file() -> PathBuf {
    let folder = std::env::var_os(CACHE).unwrap();
    let mut found = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("products-") && name.ends_with(".tsv")
        });
    let path = found.next().expect("a file of results");
    assert!(found.next().is_none());
    path
}

#[test]
fn what_is_measured_counts_until_it_is_forgotten() {
    let name = "what_is_measured_counts_until_it_is_forgotten";
    let folder = cache_of_its_own();
    in_child(name, folder.path(), || {
        let device = device();
        let by_table = as_floats(&device, 512);
        let (crossover, timings) = tune(&device, FORMAT, (64, 256)).unwrap();
        let columns: Vec<usize> = timings.iter().map(|t| t.columns).collect();
        assert_eq!(columns, [16, 32, 64, 128, 256, 512]);
        assert!(timings
            .iter()
            .all(|t| !t.matmul.is_zero() && !t.bf16.is_zero()));
        for columns in columns {
            let floats = crossover.above.is_some_and(|most| columns > most);
            assert_eq!(as_floats(&device, columns), floats, "{columns}");
        }
        let text = std::fs::read_to_string(file()).unwrap();
        let above = crossover
            .above
            .map_or("never".to_string(), |n| n.to_string());
        assert!(text.ends_with(&format!("\nq4_0\t{above}\n")), "{text}");
        forget(&device).unwrap();
        assert_eq!(as_floats(&device, 512), by_table);
        forget(&device).unwrap();
    });
}

#[test]
fn later_processes_read_it() {
    let name = "later_processes_read_it";
    let folder = cache_of_its_own();
    in_child(name, folder.path(), || {
        let measured = std::env::var_os(CACHE).unwrap();
        let device = device();
        tune(&device, FORMAT, (64, 256)).unwrap();
        // What a measurement on another day would have left.
        let path = file();
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, _) = text.split_once('\n').unwrap();
        std::fs::write(&path, format!("{header}\nq4_0\t100\n")).unwrap();
        let environment = [(CACHE, measured.to_str().unwrap())];
        isolated::in_child("reads_what_another_left", &environment, || {});
    });
}

/// The later process of the test above.
#[test]
fn reads_what_another_left() {
    if isolated::is_child("reads_what_another_left") {
        let device = device();
        assert!(!as_floats(&device, 100));
        assert!(as_floats(&device, 101));
    }
}

/// 8-bit floats are compared with dequantized ones, which take vectors of 16 bits above the crossover.
#[test]
fn products_of_8_bit_floats_are_measured() {
    let name = "products_of_8_bit_floats_are_measured";
    let folder = cache_of_its_own();
    in_child(name, folder.path(), || {
        let measured = std::env::var_os(CACHE).unwrap();
        let (crossover, timings) = tune(&device(), Format::F8E4M3, (64, 256)).unwrap();
        assert!(timings
            .iter()
            .all(|t| !t.matmul.is_zero() && !t.bf16.is_zero()));
        let path = file();
        let text = std::fs::read_to_string(&path).unwrap();
        let above = crossover
            .above
            .map_or("never".to_string(), |n| n.to_string());
        assert!(text.ends_with(&format!("\nf8_e4m3\t{above}\n")), "{text}");
        let (header, _) = text.split_once('\n').unwrap();
        std::fs::write(&path, format!("{header}\nf8_e4m3\t8\n")).unwrap();
        let environment = [(CACHE, measured.to_str().unwrap())];
        isolated::in_child("multiplies_on_both_sides", &environment, || {});
    });
}

/// The later process of the test above.
#[test]
fn multiplies_on_both_sides() {
    if !isolated::is_child("multiplies_on_both_sides") {
        return;
    }
    let device = device();
    // Blocks of ones, times a power of two: exact on every path.
    let block = [&0.25f32.to_le_bytes()[..], &[0x38; 64]].concat();
    let weights = device.upload(&block.repeat(3 * 2)).unwrap();
    let weights = QuantizedMatrix::new(Format::F8E4M3, &weights, 3, 128);
    for columns in [8, 9, 40] {
        let (dims, strides) = ([columns, 128], [128, 1]);
        let x = vec![bf16::from_f32(0.5); columns * 128];
        let x = upload(&device, &x);
        let x = View::contiguous(&x, DType::BF16, &dims, &strides);
        let y = linear(&device, &weights, &x, &Epilogue::default()).unwrap();
        let want = vec![bf16::from_f32(16.0); columns * 3];
        assert_eq!(download::<bf16>(&device, &y), want);
    }
}

#[test]
fn only_weights_are_measured() {
    let error = tune(&device(), Format::F16, (64, 256)).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
