//! Compiles every kernel family with clang for the archs given, through the cache.
//!
//!     compile-kernels --output DIR ARCH...
//!
//! Writes `DIR/<arch>/<family>.co` and exits non-zero if a family does not compile.

use candle_rocm_kernels::{Cache, Clang, CompileRequest, Compiler, Family, Storage};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const USAGE: &str = "usage: compile-kernels --output DIR ARCH...";

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compile-kernels: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Error> {
    let (output, archs) = arguments(std::env::args().skip(1))?;
    let clang = Clang::find()?;
    let cache = Cache::from_env();
    if let Storage::None(reason) = cache.storage() {
        eprintln!("compile-kernels: compiling without a cache: {reason}");
    }
    let jobs: Vec<(&str, Family)> = archs
        .iter()
        .flat_map(|arch| {
            Family::ALL
                .iter()
                .map(move |family| (arch.as_str(), *family))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((arch, family)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = compile(&cache, &clang, *family, arch, &output) {
                        eprintln!("compile-kernels: {error}");
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    println!(
        "{} compiled with {}, {} from the cache",
        stats.compiled,
        clang.id(),
        stats.hits
    );
    Ok(!failed.into_inner())
}

fn arguments(mut args: impl Iterator<Item = String>) -> Result<(PathBuf, Vec<String>), Error> {
    let mut output = None;
    let mut archs = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--output" {
            output = args.next();
        } else if arg.starts_with('-') {
            return Err(format!("unknown option {arg}; {USAGE}").into());
        } else {
            archs.push(arg);
        }
    }
    match output {
        Some(output) if !archs.is_empty() => Ok((output.into(), archs)),
        _ => Err(USAGE.into()),
    }
}

fn compile(
    cache: &Cache,
    clang: &Clang,
    family: Family,
    arch: &str,
    output: &Path,
) -> Result<(), Error> {
    let object = cache.get_or_compile(
        clang,
        &CompileRequest {
            name: family.file_name(),
            source: family.source(),
            arch,
            options: &[],
        },
    )?;
    let path = output
        .join(arch)
        .join(Path::new(family.file_name()).with_extension("co"));
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(&path, object)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(())
}
