use super::*;

fn rewritten(text: &str, launchers: &[&str], refused: &[&str]) -> Rewritten {
    let launchers = launchers.iter().map(|name| {
        (
            name.to_string(),
            Foreign::Launcher {
                unit: "unit".into(),
            },
        )
    });
    let refused = refused.iter().map(|name| {
        let reason = "k.cu:1: no".to_string();
        (name.to_string(), Foreign::Refused { reason })
    });
    let foreign = launchers.chain(refused).collect();
    let rewritten = rewrite(text, &foreign)
        .expect("Rust")
        .expect("something to do");
    if let Err(error) = syn::parse_file(&rewritten.text) {
        panic!("{error}\n{}", rewritten.text);
    }
    rewritten
}

#[test]
fn declarations_become_uses_of_launchers() {
    let text = "extern \"C\" {\n    pub(crate) fn run(x: *const c_void, n: c_int);\n    fn other(s: CUstream) -> u32;\n}\n";
    let rewritten = rewritten(text, &["run"], &["other"]);
    let head = "#![cfg_attr(feature = \"rocm\", allow(unused_imports))]\n\n#[cfg(not(feature = \"rocm\"))]\nextern";
    assert!(rewritten.text.starts_with(head), "{}", rewritten.text);
    assert!(rewritten
        .text
        .contains("#[cfg(feature = \"rocm\")]\npub(crate) use crate::rocm::unit::run;"));
    assert!(rewritten
        .text
        .contains("unsafe fn other(_0: impl Sized) -> crate::rocm::support::Result<u32>"));
    assert_eq!(
        rewritten.open,
        [(3, "`other` has no launcher: k.cu:1: no".to_string())]
    );
    let declared = declared(text);
    assert_eq!(declared[0].parameters, ["*const c_void", "c_int"]);
    assert_eq!(declared[1].result.as_deref(), Some("u32"));
}

#[test]
fn names_of_cuda_become_those_of_rocm() {
    let text = "\
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle::{CudaStorage, Storage};
/// Documentation.
fn f<T: candle::cuda_backend::CudaDType>(s: &Storage) -> Result<u64> {
    let s = match s { Storage::Cuda(s) => s, _ => candle::bail!(\"no cuda\") };
    let s = s.as_cuda_slice::<T>()?;
    unsafe { ffi::run(*s.device_ptr()) }
    Ok(0)
}
fn g() { unsafe { ffi::run(0) } }
fn untouched() -> bool { true }
";
    let rewritten = rewritten(text, &["run"], &[]);
    for expected in [
        "use crate::rocm::cuda::cudarc::driver::DevicePtr;",
        "use candle::{RocmStorage, Storage};",
        "fn f<T: crate::rocm::cuda::CudaDType>(s: &Storage) -> Result<u64> {",
        "match s { Storage::Rocm(s) => s, _ =>",
        "use crate::rocm::cuda::{Alloc as _, AsSlice as _};",
        "unsafe { ffi::run(*s.device_ptr())? }",
        "unsafe { ffi::run(0).unwrap_or_else(|error| panic!(\"{error}\")) }",
    ] {
        assert!(
            rewritten.text.contains(expected),
            "{expected}\n{}",
            rewritten.text
        );
    }
    assert_eq!(rewritten.text.matches("fn untouched").count(), 1);
    assert_eq!(rewritten.text.matches("/// Documentation.").count(), 2);
    assert_eq!(rewritten.open.len(), 1);
}

#[test]
fn methods_get_counterparts_of_their_own() {
    let text = "\
impl CustomOp1 for A {
    fn name(&self) -> &'static str { \"a\" }
    fn cuda_fwd(&self, x: &candle::CudaStorage) -> Result<candle::CudaStorage> { x.go() }
}
#[cfg(test)]
mod tests {
    #[test]
    fn t() { Device::new_cuda(0); }
}
";
    let rewritten = rewritten(text, &[], &[]);
    assert_eq!(rewritten.text.matches("fn name").count(), 1);
    assert!(rewritten.text.contains(
        "    #[cfg(feature = \"rocm\")]\n    fn rocm_fwd(&self, x: &candle::RocmStorage)"
    ));
    assert!(rewritten
        .text
        .contains("#[cfg(feature = \"rocm\")]\n    #[test]\n    fn t() { Device::new_rocm(0); }"));
}

#[test]
fn what_says_nothing_of_cuda_is_left() {
    assert!(rewrite("fn f() { cpu() }", &BTreeMap::new())
        .expect("Rust")
        .is_none());
    assert!(rewrite("fn f( {", &BTreeMap::new()).is_err());
}
