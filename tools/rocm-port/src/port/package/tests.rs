use super::*;

const KERNEL: &str = "\
#include <cuda_fp16.h>
template <typename T> __global__ void scale(T* x, const float s, const int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = T(float(x[i]) * s);
}
extern \"C\" void run_scale(void* x, float s, int n, int dtype) {
  int blocks = (n + 255) / 256;
  if (dtype == 0) scale<float><<<blocks, 256>>>((float*)x, s, n);
  else scale<half><<<blocks, 256>>>((half*)x, s, n);
}
";
const LIB: &str = "\
//! A crate.
mod ffi { extern \"C\" { pub fn run_scale(x: *mut core::ffi::c_void, s: f32, n: i32, dtype: i32); } }
pub fn scale(x: u64) -> candle::Result<()> { unsafe { ffi::run_scale(x as *mut _, 2., 3, 0) }; Ok(()) }
";
const MANIFEST: &str = "\
[package]
name = \"scale\"
version = \"0.1.0\"
[dependencies]
candle = { version = \"0.*\", package = \"candle-core\", features = [\"cuda\"] }
";

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        files::write(&folder.path().join(name), text).expect("a file");
    }
    folder
}

fn options(place: Place) -> PackageOptions {
    PackageOptions {
        place,
        reading: parse::Options::default(),
        instances: Vec::new(),
        candle_rocm: None,
        source: "scale".into(),
    }
}

fn crate_of(kernel: &str) -> tempfile::TempDir {
    project(&[
        ("Cargo.toml", MANIFEST),
        ("src/lib.rs", LIB),
        ("kernels/scale.cu", kernel),
        ("build.rs", "fn main() {}\n"),
    ])
}

#[test]
fn a_crate_is_ported_and_verified() {
    let crate_ = crate_of(KERNEL);
    let sources = crate::source::open(&crate_.path().to_string_lossy()).expect("sources");
    let out = tempfile::tempdir().expect("a folder");
    let place = Place::Folder(out.path().join("ported"), false);
    let report = package(&sources, &options(place.clone())).expect("a port");
    assert_eq!(report.open, [] as [&str; 0]);
    assert_eq!(
        (
            report.units[0].kernels,
            report.units[0].launchers.as_slice()
        ),
        (2, &["run_scale".to_string()][..])
    );
    let read =
        |name: &str| std::fs::read_to_string(out.path().join("ported").join(name)).expect(name);
    assert!(read("src/lib.rs").contains("#[cfg(feature = \"rocm\")]\nmod rocm;"));
    assert!(
        read("src/rocm/scale.hip").contains("extern \"C\" PORT_KERNEL(1024) void rocm_scale_f16(")
    );
    assert!(!read("src/rocm/scale.hip").contains("<<<"));
    assert!(read("src/rocm/scale.rs").contains("rocm_scale_f32"));
    assert!(read("PORTING.md").contains("Nothing is left"));
    assert_eq!(read("kernels/scale.cu"), KERNEL);
    let unit: crate::model::PortedUnit =
        serde_json::from_str(&read("src/rocm/scale.json")).expect("a unit");
    assert_eq!(unit.kernels.len(), 2);
    let ported = out.path().join("ported");
    assert_eq!(verify(&sources, &ported).expect("files"), [] as [&str; 0]);
    // Again only if asked to.
    assert!(matches!(
        package(&sources, &options(place)),
        Err(PackageError::NotEmpty(_))
    ));
    let forced = Place::Folder(ported.clone(), true);
    assert!(package(&sources, &options(forced)).is_ok());
    std::fs::write(ported.join("kernels/scale.cu"), "changed").expect("a file");
    std::fs::remove_file(ported.join("build.rs")).expect("a file");
    let found = verify(&sources, &ported).expect("files");
    assert_eq!(
        found,
        [
            "kernels/scale.cu differs without the feature rocm",
            "build.rs is missing"
        ]
    );
}

#[test]
fn what_cannot_be_ported_is_told() {
    let crate_ =
        crate_of(&KERNEL.replace("int blocks =", "int blocks; cudaMalloc(&x, 4); blocks ="));
    let sources = crate::source::open(&crate_.path().to_string_lossy()).expect("sources");
    let out = tempfile::tempdir().expect("a folder");
    let report = package(
        &sources,
        &options(Place::Folder(out.path().join("p"), false)),
    )
    .expect("a port");
    let text = report.open.join("\n");
    assert!(
        text.contains("kernels/scale.cu:7: ") && text.contains("cudaMalloc"),
        "{text}"
    );
    let lib = std::fs::read_to_string(out.path().join("p/src/lib.rs")).expect("the library");
    assert!(
        lib.contains("run_scale was not ported, see PORTING.md"),
        "{lib}"
    );
}

#[test]
fn nothing_is_written_where_it_should_not() {
    let crate_ = crate_of(KERNEL);
    let sources = crate::source::open(&crate_.path().to_string_lossy()).expect("sources");
    let inside = Place::Folder(crate_.path().join("out"), false);
    assert!(matches!(
        package(&sources, &options(inside)),
        Err(PackageError::Inside(_))
    ));
    assert!(matches!(
        package(&sources, &options(Place::InPlace)),
        Err(PackageError::NotClean(_))
    ));
    let empty = project(&[("Cargo.toml", MANIFEST), ("src/lib.rs", "")]);
    let sources = crate::source::open(&empty.path().to_string_lossy()).expect("sources");
    assert!(matches!(
        package(&sources, &options(Place::InPlace)),
        Err(PackageError::NoKernels)
    ));
}
