//! Compiles kernel families with clang for the archs given, through the cache.
//!
//!     compile-kernels --output DIR [--family NAME]... ARCH...
//!     compile-kernels --fingerprint ARCH...
//!
//! Writes `DIR/<arch>/<family>.co`, of every family unless some are named, and exits non-zero if one does not compile;
//! or prints a line for each family, its name and the SHA-256 of everything that decides what its objects become, but
//! for the compiler's version: archs, options, and the family's name and source.

use candle_rocm_kernels::{options_for, Cache, Clang, CompileRequest, Compiler, Family};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const USAGE: &str =
    "usage: compile-kernels --output DIR [--family NAME]... ARCH... | --fingerprint ARCH...";

enum Task {
    Compile {
        output: PathBuf,
        families: Vec<Family>,
    },
    Fingerprint,
}

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
    let (task, archs) = arguments(std::env::args().skip(1))?;
    let (output, families) = match task {
        Task::Compile { output, families } => (output, families),
        Task::Fingerprint => {
            for &family in Family::ALL {
                println!("{} {}", name(family), fingerprint(family, &archs));
            }
            return Ok(true);
        }
    };
    let clang = Clang::find()?;
    let cache = Cache::from_env();
    if let Some(reason) = cache.refusal() {
        eprintln!("compile-kernels: compiling without a cache: {reason}");
    }
    let jobs: Vec<(&str, Family)> = archs
        .iter()
        .flat_map(|arch| families.iter().map(move |family| (arch.as_str(), *family)))
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

fn arguments(mut args: impl Iterator<Item = String>) -> Result<(Task, Vec<String>), Error> {
    let (mut output, mut prints) = (None, false);
    let (mut families, mut archs) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--output" => output = args.next().map(PathBuf::from),
            "--fingerprint" => prints = true,
            "--family" => {
                let wanted = args.next().ok_or(USAGE)?;
                let found = Family::ALL.iter().find(|family| name(**family) == wanted);
                families.push(*found.ok_or_else(|| format!("no family is called {wanted}"))?);
            }
            _ if arg.starts_with('-') => {
                return Err(format!("unknown option {arg}; {USAGE}").into())
            }
            _ => archs.push(arg),
        }
    }
    if families.is_empty() {
        families = Family::ALL.to_vec();
    }
    let task = match output {
        Some(output) if !prints => Task::Compile { output, families },
        None if prints => Task::Fingerprint,
        _ => return Err(USAGE.into()),
    };
    match archs.is_empty() {
        false => Ok((task, archs)),
        true => Err(USAGE.into()),
    }
}

/// What the family's objects are called.
fn name(family: Family) -> &'static str {
    family.file_name().trim_end_matches(".hip")
}

fn fingerprint(family: Family, archs: &[String]) -> String {
    let mut digest = Sha256::new();
    let mut field = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    for arch in archs {
        field(arch);
        options_for(arch).for_each(&mut field);
    }
    field(family.file_name());
    field(family.source());
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
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
