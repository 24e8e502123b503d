//! Objects that are not what they should be are refused when they are loaded.

mod common;
mod isolated;

use candle_rocm::compile::HiprtcCompiler;
use candle_rocm::{ops, DType, Device, Error, Family, Scalar, View};
use candle_rocm_kernels::{Cache, CompileError, CompileRequest, Compiler};
use isolated::{in_child, is_child};

const GFX1100: &[u8] = include_bytes!("../../code-object/tests/fixtures/gfx1100.elf");

/// Gives an object in the name of hiprtc.
struct Forger {
    id: String,
    object: Vec<u8>,
}

impl Compiler for Forger {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn compile(&self, _: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        Ok(self.object.clone())
    }
}

/// The error of filling a buffer with an object in the cache that was not compiled from the source.
fn error_with(name: &str, arch: &str, object: Vec<u8>, check: impl FnOnce(&str)) {
    let folder = (!is_child(name)).then(|| tempfile::tempdir().unwrap());
    let path = folder
        .as_ref()
        .map(|folder| folder.path().to_string_lossy().into_owned());
    let environment = [
        ("CANDLE_ROCM_CACHE_DIR", path.as_deref().unwrap_or_default()),
        ("HIP_SIM_ARCH", arch),
    ];
    in_child(name, &environment, || {
        let device = common::device();
        let compiler = Forger {
            id: HiprtcCompiler::new().unwrap().id(),
            object,
        };
        let request = CompileRequest {
            name: Family::Fill.file_name(),
            source: Family::Fill.source(),
            arch: &device.properties().full_arch,
            options: &[],
        };
        Cache::from_env()
            .get_or_compile(&compiler, &request)
            .unwrap();
        match fill(&device) {
            Err(Error::Compile { kernel, reason, .. }) => {
                assert_eq!(kernel, "fill_f32");
                check(&reason);
            }
            other => panic!("{other:?}"),
        }
        // What is refused is refused again, and nothing else is.
        assert!(fill(&device).is_err());
        assert!(device.upload(&[1, 2, 3]).is_ok());
    });
}

fn fill(device: &Device) -> candle_rocm::Result<()> {
    let buffer = device.alloc(64)?;
    let view = View::contiguous(&buffer, DType::F32, &[16], &[1]);
    ops::fill::fill(device, &view, Scalar::F32(1.))
}

#[test]
fn for_another_gpu() {
    error_with("for_another_gpu", "gfx942", GFX1100.to_vec(), |reason| {
        assert!(
            reason.contains("gfx1100") && reason.contains("gfx942"),
            "{reason}"
        );
    });
}

#[test]
fn cut_off() {
    let half = GFX1100[..GFX1100.len() / 2].to_vec();
    error_with("cut_off", "gfx1100", half, |reason| {
        assert!(reason.contains("cannot be read"), "{reason}");
    });
}

#[test]
fn with_other_arguments() {
    // A kernel with a name of the same length, which takes an address and a number of 4 bytes.
    let mut object = GFX1100.to_vec();
    let (from, to) = (b"scramble", b"fill_f32");
    while let Some(at) = object.windows(from.len()).position(|bytes| bytes == from) {
        object[at..at + to.len()].copy_from_slice(to);
    }
    error_with("with_other_arguments", "gfx1100", object, |reason| {
        assert!(
            reason.contains("[8, 4]") && reason.contains("[8, 8, 4]"),
            "{reason}"
        );
    });
}

#[test]
fn without_the_kernel() {
    error_with(
        "without_the_kernel",
        "gfx1100",
        GFX1100.to_vec(),
        |reason| {
            assert!(reason.contains("no such kernel"), "{reason}");
        },
    );
}
