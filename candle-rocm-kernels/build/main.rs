//! Splices the kernel sources, and with `CANDLE_ROCM_ARCHS` compiles them into the binary.

mod ck;
#[path = "../src/clang.rs"]
#[allow(dead_code)]
mod clang;
#[path = "../src/compiler.rs"]
mod compiler;
#[path = "../src/family.rs"]
mod family;
#[path = "../src/ck.rs"]
#[allow(dead_code)]
mod instances;
#[path = "../src/shared/mod.rs"]
#[allow(dead_code, unused_imports)]
mod shared;
#[path = "../src/splice.rs"]
mod splice;
#[path = "../src/target.rs"]
mod target;
#[path = "../src/variables.rs"]
#[allow(dead_code)]
mod variables;

use compiler::{CompileError, CompileRequest, Compiler};
use family::Family;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// The name in `CANDLE_ROCM_ARCHS` of [`target::COMMON`].
const COMMON_NAME: &str = "common";
/// How hard objects are compressed, from 0 to 10; they become less than a quarter.
const COMPRESSION_LEVEL: u8 = 9;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() {
    if let Err(error) = build() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), Error> {
    for variable in [variables::ARCHS, variables::CLANG] {
        println!("cargo::rerun-if-env-changed={}", variable.name);
    }
    println!("cargo::rerun-if-changed=hip");
    println!("cargo::rerun-if-changed=build");

    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let hip = manifest.join("hip");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let headers = read_headers(&hip)?;
    let sources = Family::ALL
        .iter()
        .map(|family| translation_unit(&hip, &headers, *family))
        .collect::<Result<Vec<_>, _>>()?;
    let archs = variables::ARCHS.text().unwrap_or_default();
    let archs: BTreeSet<&str> = archs
        .split(',')
        .map(str::trim)
        .filter(|arch| !arch.is_empty())
        .flat_map(|arch| match arch {
            COMMON_NAME => target::COMMON.to_vec(),
            arch => vec![arch],
        })
        .collect();
    let objects = compile_all(&sources, &archs, &out)?;
    let ck = ck::compile(&manifest, &out, &archs)?;
    std::fs::write(
        out.join("embedded.rs"),
        embedded_table(&headers, &sources, &archs, &objects, &ck)?,
    )?;
    Ok(())
}

/// Every `.h` below `hip`, by its path relative to it, and those that are made. Every `.hip` must be a family's.
fn read_headers(hip: &Path) -> Result<BTreeMap<String, String>, Error> {
    let made = ggml_formats::headers();
    let made = made.map(|(name, text)| (format!("quantized/{name}"), text));
    let mut headers = BTreeMap::from(made);
    headers.extend(
        shared::headers()
            .into_iter()
            .map(|(name, text)| (name.to_string(), text)),
    );
    let mut directories = vec![hip.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .map_err(|error| format!("cannot list {}: {error}", directory.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let name = path.strip_prefix(hip)?.to_string_lossy().replace('\\', "/");
            if name.ends_with(".h") {
                headers.insert(name, std::fs::read_to_string(&path)?);
            } else if name.ends_with(".hip") && !Family::ALL.iter().any(|f| f.file_name() == name) {
                return Err(
                    format!("hip/{name} is no family's; add a line to src/family.rs").into(),
                );
            }
        }
    }
    Ok(headers)
}

fn translation_unit(
    hip: &Path,
    headers: &BTreeMap<String, String>,
    family: Family,
) -> Result<String, Error> {
    let name = family.file_name();
    let path = hip.join(name);
    let source = std::fs::read_to_string(&path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(splice::splice(name, &source, &|header| {
        headers.get(header).map(String::as_str)
    })?)
}

/// Compiles every family for every arch on all cores; gives `(family, arch, file)`.
fn compile_all<'a>(
    sources: &[String],
    archs: &BTreeSet<&'a str>,
    out: &Path,
) -> Result<Vec<(Family, &'a str, PathBuf)>, Error> {
    if archs.is_empty() {
        return Ok(Vec::new());
    }
    let clang = clang::Clang::find().map_err(|error| {
        format!("CANDLE_ROCM_ARCHS asks for code objects at build time, but {error}; or unset CANDLE_ROCM_ARCHS to compile on the user's machine")
    })?;
    let jobs: Vec<(Family, &str)> = archs
        .iter()
        .flat_map(|arch| Family::ALL.iter().map(move |family| (*family, *arch)))
        .collect();
    let mut objects = on_all_cores(&jobs, |(family, arch)| {
        let object = compile(&clang, &sources[*family as usize], *family, arch, out)?;
        Ok((*family, *arch, object))
    })?;
    objects.sort();
    Ok(objects)
}

/// The results of all jobs, in any order, or the first error.
fn on_all_cores<Job: Sync, Done: Send>(
    jobs: &[Job],
    run: impl Fn(&Job) -> Result<Done, Error> + Sync,
) -> Result<Vec<Done>, Error> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run(job);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    done.push(result);
                }
            });
        }
    });
    let done = done.into_inner();
    done.unwrap_or_else(|poisoned| poisoned.into_inner())
        .into_iter()
        .collect()
}

fn compile(
    clang: &clang::Clang,
    source: &str,
    family: Family,
    arch: &str,
    out: &Path,
) -> Result<PathBuf, CompileError> {
    let name = family.file_name();
    let object = clang.compile(&CompileRequest {
        name,
        source,
        arch,
        options: &[],
    })?;
    let file = format!("{name}.{arch}.co").replace(['/', ':'], "_");
    let path = out.join(file);
    match write_compressed(&path, &object) {
        Ok(()) => Ok(path),
        Err(error) => Err(CompileError::Io {
            action: "write",
            path,
            error,
        }),
    }
}

/// FNV-1a of the sources: tells versions of them apart.
fn digest(sources: &[String]) -> u64 {
    let bytes = sources.iter().flat_map(|source| source.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Writes an object as `src/embedded.rs` takes it.
fn write_compressed(path: &Path, object: &[u8]) -> std::io::Result<()> {
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(object, COMPRESSION_LEVEL);
    std::fs::write(path, compressed)
}

fn embedded_table(
    headers: &BTreeMap<String, String>,
    sources: &[String],
    archs: &BTreeSet<&str>,
    objects: &[(Family, &str, PathBuf)],
    ck: &[ck::Object],
) -> Result<String, std::fmt::Error> {
    let mut table = String::new();
    writeln!(table, "static HEADERS: &[Header] = &[")?;
    for (name, text) in headers {
        writeln!(table, "    ({name:?}, {text:?}),")?;
    }
    writeln!(table, "];\nstatic SOURCES: &[&str] = &[")?;
    for source in sources {
        writeln!(table, "    {source:?},")?;
    }
    writeln!(
        table,
        "];\nstatic SOURCES_DIGEST: u64 = {:#018x};\nstatic ARCHS: &[&str] = &[",
        digest(sources)
    )?;
    for arch in archs {
        writeln!(table, "    {arch:?},")?;
    }
    let count = objects.len();
    writeln!(table, "];\nstatic OBJECTS: [FamilyObject; {count}] = [")?;
    for (family, arch, path) in objects {
        writeln!(
            table,
            "    Object::new(Family::{family:?}, {arch:?}, include_bytes!({path:?})),"
        )?;
    }
    let count = ck.len();
    writeln!(table, "];\nstatic CK_OBJECTS: [CkObject; {count}] = [")?;
    for (kernel, arch, path) in ck {
        writeln!(
            table,
            "    Object::new({kernel:?}, {arch:?}, include_bytes!({path:?})),"
        )?;
    }
    writeln!(table, "];")?;
    Ok(table)
}
