//! Finding libraries, with small ones built for the purpose.

mod isolated;

use candle_rocm::compile::HiprtcCompiler;
use candle_rocm::sys::hip::Hip;
use candle_rocm::sys::hiprtc::Hiprtc;
use candle_rocm::sys::rocblas::RocBlas;
use candle_rocm::sys::{symbols, LoadError, RuntimeInUse, Search, Symbol};
use candle_rocm_kernels::Compiler;
use isolated::{in_child, is_child};
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("loader-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Builds a library of functions that return 0, without those that are `lacking`.
    fn library(&self, file: &str, symbols: &[Symbol], lacking: &[&str]) -> PathBuf {
        self.linked(file, symbols, lacking, None)
    }

    /// The same, which brings another library of its folder with it.
    fn linked(
        &self,
        file: &str,
        symbols: &[Symbol],
        lacking: &[&str],
        with: Option<&str>,
    ) -> PathBuf {
        let source: String = symbols
            .iter()
            .filter(|symbol| !lacking.contains(&symbol.name))
            .map(|symbol| format!("int {}(void) {{ return 0; }}\n", symbol.name))
            .collect();
        let c_file = self.0.join(format!("{file}.c"));
        fs::write(&c_file, source).unwrap();
        let library = self.0.join(file);
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,--no-as-needed"])
            .args([
                format!("-Wl,-soname,{file}"),
                format!("-Wl,-rpath,{}", self.0.display()),
            ])
            .arg("-o")
            .args([&library, &c_file])
            .args(with.map(|with| self.0.join(with)))
            .status()
            .expect("a C compiler");
        assert!(built.success());
        library
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn only(folder: &Folder) -> Search {
    Search::only([folder.0.clone()])
}

#[test]
fn a_missing_symbol_is_named_with_its_library_and_other_libraries_still_load() {
    let folder = Folder::new("missing-symbol");
    let broken = folder.library("libamdhip64.so.6", Hip::SYMBOLS, &["hipMemcpyAsync"]);
    folder.library("libhiprtc.so.7", Hiprtc::SYMBOLS, &[]);
    let error = Hip::open(&only(&folder)).unwrap_err();
    assert!(
        matches!(&error, LoadError::MissingSymbol { path, symbol: "hipMemcpyAsync", .. } if *path == broken),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("libamdhip64.so.6") && text.contains("hipMemcpyAsync"),
        "{text}"
    );
    assert!(Hiprtc::open(&only(&folder)).is_ok());
    assert!(matches!(
        RocBlas::open(&only(&folder)),
        Err(LoadError::NotFound { .. })
    ));
}

#[test]
fn a_missing_optional_symbol_does_not_stop_a_library() {
    let folder = Folder::new("optional");
    folder.library("libamdhip64.so.7", Hip::SYMBOLS, &["hipGraphLaunch"]);
    let hip = Hip::open(&only(&folder)).unwrap();
    assert!(hip.functions.hipGraphLaunch.is_none());
    assert!(hip.functions.hipGraphDestroy.is_some());
}

#[test]
fn newer_names_are_preferred_and_a_folder_named_by_the_user_decides() {
    let (first, second) = (Folder::new("first"), Folder::new("second"));
    first.library("libamdhip64.so.6", Hip::SYMBOLS, &[]);
    let newest = first.library("libamdhip64.so.7", Hip::SYMBOLS, &[]);
    second.library("libamdhip64.so.7", Hip::SYMBOLS, &[]);
    let both = Search::only([first.0.clone(), second.0.clone()]);
    assert_eq!(Hip::open(&both).unwrap().path, newest);
    // A library of the user's choice that is unusable is not silently replaced.
    first.library("libamdhip64.so.7", Hip::SYMBOLS, &["hipMalloc"]);
    assert!(matches!(
        Hip::open(&both),
        Err(LoadError::MissingSymbol {
            symbol: "hipMalloc",
            ..
        })
    ));
}

#[test]
fn an_unusable_library_of_the_system_is_passed_over_and_remembered() {
    let (old, good) = (Folder::new("old"), Folder::new("good"));
    let unusable = old.library("libamdhip64.so.6", Hip::SYMBOLS, &["hipMalloc"]);
    let usable = good.library("libamdhip64.so.7", Hip::SYMBOLS, &[]);
    let search = Search {
        fallback: vec![old.0.clone(), good.0.clone()],
        ..Search::default()
    };
    let loaded = Hip::open(&search).unwrap();
    assert_eq!(loaded.path, usable);
    let passed = loaded.tried.iter().find(|attempt| attempt.path == unusable);
    assert!(passed.unwrap().reason.contains("hipMalloc"));
}

#[test]
fn a_file_that_is_no_library_is_reported_with_the_loaders_reason() {
    let folder = Folder::new("garbage");
    let path = folder.0.join("libamdhip64.so.7");
    fs::write(&path, "not a library").unwrap();
    let error = Hip::open(&only(&folder)).unwrap_err();
    let tried = error.tried().iter().find(|a| a.path == path).unwrap();
    assert!(!tried.reason.contains("no such file"), "{}", tried.reason);
    assert!(error.to_string().contains(&tried.reason));
}

#[test]
fn an_absent_library_lists_where_it_was_looked_for_and_what_to_install() {
    let search = Search::only([PathBuf::from("/nonexistent/lib")]);
    let error = Hip::open(&search).unwrap_err();
    let folder = Path::new("/nonexistent/lib");
    let tried: Vec<PathBuf> = error.tried().iter().map(|a| a.path.clone()).collect();
    let expected: Vec<PathBuf> = Hip::SONAMES
        .files(None)
        .iter()
        .map(|f| folder.join(f))
        .collect();
    assert_eq!(tried, expected);
    let text = error.to_string();
    assert!(
        text.contains("/nonexistent/lib") && text.contains("ROCM_PATH"),
        "{text}"
    );
}

const KFD: &[(&str, &str)] = &[("CANDLE_ROCM_RUNTIME", "kfd")];

#[test]
fn a_program_uses_its_own_runtime_where_that_is_chosen() {
    extern "C" fn success() -> i32 {
        0
    }
    fn own(name: &str) -> Option<*const c_void> {
        (name != "hipGraphLaunch").then_some(success as *const c_void)
    }
    let of_process = || {
        // SAFETY: none of the functions is called here but one that takes and gives what its own does.
        unsafe { candle_rocm::sys::provide(own) };
        Hip::get()
    };
    let name = "a_program_uses_its_own_runtime_where_that_is_chosen";
    in_child(name, KFD, || {
        let hip = of_process().unwrap();
        // SAFETY: it takes nothing.
        assert_eq!(unsafe { (hip.functions.hipGetLastError)() }, 0);
        assert!(hip.functions.hipGraphLaunch.is_none());
        assert_eq!(hip.path, Path::new("(in this program)"));
        assert!(Hiprtc::get().is_ok());
        // It would bring AMD's runtime with it.
        let refused = RocBlas::get().unwrap_err();
        assert!(matches!(refused, LoadError::NotBuiltIn { .. }));
        assert!(refused.to_string().contains("librocblas"));
        // Its version is no release of ROCm, which has issues of its own.
        assert_eq!(candle_rocm::known_issues::Versions::read().rocm, None);
    });
}

#[test]
fn a_program_without_a_runtime_of_its_own_says_how_to_get_one() {
    let name = "a_program_without_a_runtime_of_its_own_says_how_to_get_one";
    in_child(name, KFD, || {
        let nowhere = Search::only([PathBuf::from("/nonexistent/lib")]);
        let text = Hip::open(&nowhere).unwrap_err().to_string();
        let told = ["--features kfd", "hip-on-kfd install", "/nonexistent/lib"];
        assert!(told.iter().all(|part| text.contains(part)), "{text}");
    });
}

#[test]
fn every_symbol_is_listed_once() {
    let all = symbols();
    for library in [
        "libamdhip64",
        "libhiprtc",
        "librocblas",
        "libMIOpen",
        "librccl",
    ] {
        assert!(all.iter().any(|s| s.library == library && s.required));
    }
    let mut names: Vec<&str> = all.iter().map(|symbol| symbol.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
}

#[test]
fn what_works_on_the_runtime_is_of_its_release() {
    let folder = Folder::new("suiting");
    for file in ["librocblas.so.4", "librocblas.so.5"] {
        folder.library(file, RocBlas::SYMBOLS, &[]);
    }
    for (major, expected) in [
        (Some(6), "librocblas.so.4"),
        (Some(7), "librocblas.so.5"),
        (None, "librocblas.so.5"),
    ] {
        let runtime = |folder: &Path| {
            Some(RuntimeInUse {
                major,
                folder: folder.to_path_buf(),
            })
        };
        let mut search = only(&folder);
        search.runtime = runtime(Path::new("/nonexistent"));
        let loaded = RocBlas::open(&search).unwrap();
        assert_eq!(loaded.path, folder.0.join(expected), "{major:?}");
        // The runtime's own folder goes before others that the user did not name.
        let other = Folder::new("suiting-other");
        other.library(expected, RocBlas::SYMBOLS, &[]);
        let search = Search {
            fallback: vec![other.0.clone()],
            runtime: runtime(&folder.0),
            ..Search::default()
        };
        let loaded = RocBlas::open(&search).unwrap();
        assert_eq!(loaded.path, folder.0.join(expected), "{major:?}");
    }
}

#[test]
fn the_runtime_of_the_process_decides_which_rocblas_is_taken() {
    let name = "the_runtime_of_the_process_decides_which_rocblas_is_taken";
    let rocm = Folder::new("of-process");
    let folder = rocm.0.join("lib");
    if !is_child(name) {
        // The stand-in does not tell its version, so its name does.
        rocm.library("libamdhip64.so.6", Hip::SYMBOLS, &[]);
        for file in ["librocblas.so.4", "librocblas.so.5"] {
            rocm.library(file, RocBlas::SYMBOLS, &[]);
        }
        std::os::unix::fs::symlink(&rocm.0, &folder).unwrap();
    }
    let path = rocm.0.to_str().unwrap().to_string();
    in_child(name, &[("ROCM_PATH", &path), ("HIP_PATH", "")], || {
        let loaded = RocBlas::get().unwrap();
        assert!(loaded.path.ends_with("librocblas.so.4"), "{loaded:?}");
    });
}

#[test]
fn a_library_that_brings_a_second_runtime_is_refused() {
    let name = "a_library_that_brings_a_second_runtime_is_refused";
    in_child(name, &[], || {
        let (six, seven) = (Folder::new("six"), Folder::new("seven"));
        let first = six.library("libamdhip64.so.6", Hip::SYMBOLS, &[]);
        let second = seven.library("libamdhip64.so.7", Hip::SYMBOLS, &[]);
        let with = Some("libamdhip64.so.7");
        let rocblas = seven.linked("librocblas.so.5", RocBlas::SYMBOLS, &[], with);
        // With its own runtime it is fine.
        let own = Hip::open(&only(&seven)).unwrap();
        drop(RocBlas::open(&only(&seven)).unwrap());
        drop(own);
        let _hip = Hip::open(&only(&six)).unwrap();
        let error = RocBlas::open(&only(&seven)).unwrap_err();
        let text = error.to_string();
        let LoadError::TwoRuntimes { path, runtimes } = error else {
            panic!("{error:?}");
        };
        assert_eq!(path, rocblas);
        let mut expected = [first, second];
        expected.sort();
        assert_eq!(runtimes, expected);
        for path in expected {
            assert!(text.contains(path.to_str().unwrap()), "{text}");
        }
        assert!(text.contains("ROCM_PATH"), "{text}");
    });
}

#[test]
fn the_compiler_is_another_when_a_library_of_it_is() {
    let name = "the_compiler_is_another_when_a_library_of_it_is";
    let rocm = Folder::new("comgr");
    let comgr = "libamd_comgr.so.3";
    if !is_child(name) {
        rocm.library(comgr, &[], &[]);
        rocm.linked("libhiprtc.so.7", Hiprtc::SYMBOLS, &[], Some(comgr));
        std::os::unix::fs::symlink(&rocm.0, rocm.0.join("lib")).unwrap();
    }
    let path = rocm.0.to_str().unwrap().to_string();
    in_child(name, &[("ROCM_PATH", &path), ("HIP_PATH", "")], || {
        let root = PathBuf::from(std::env::var("ROCM_PATH").unwrap());
        let id = || HiprtcCompiler::new().unwrap().id();
        let before = id();
        assert_eq!(before, id());
        let file = fs::File::options()
            .append(true)
            .open(root.join(comgr))
            .unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_ne!(before, id());
    });
}
