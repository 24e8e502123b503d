//! The cache compiles once, survives damage, and keys on everything that an object depends on.

use candle_rocm_kernels::{
    Cache, CacheStats, Clang, CompileError, CompileRequest, Compiler, Family, Storage,
};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

/// "Compiles" by echoing its request, slowly enough for others to collide with it.
struct Echo {
    id: &'static str,
    runs: AtomicUsize,
}

impl Echo {
    fn new(id: &'static str) -> Self {
        Self {
            id,
            runs: AtomicUsize::new(0),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Compiler for Echo {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        Ok(format!("{}|{}", request.arch, request.source).into_bytes())
    }
}

const REQUEST: CompileRequest = CompileRequest {
    name: "fill.hip",
    source: "source text",
    arch: "gfx942",
    options: &[],
};
const OBJECT: &[u8] = b"gfx942|source text";

fn in_directory(directory: &Path) -> Cache {
    Cache::new(Storage::Directory(directory.to_path_buf()))
}

/// Applies `damage` to a stored entry and expects a recompilation that repairs it.
fn expect_repair(damage: impl Fn(&mut Vec<u8>)) {
    let directory = tempfile::tempdir().unwrap();
    let cache = in_directory(directory.path());
    let compiler = Echo::new("echo 1");
    cache.get_or_compile(&compiler, &REQUEST).unwrap();
    let path = cache.entry_path(&compiler, &REQUEST).unwrap();

    let mut entry = std::fs::read(&path).unwrap();
    damage(&mut entry);
    std::fs::write(&path, entry).unwrap();

    assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
    assert_eq!(compiler.runs(), 2, "the damaged entry was used");
    assert!(cache.stats().corrupt > 0);
    assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
    assert_eq!(compiler.runs(), 2, "the entry was not repaired");
}

#[test]
fn a_second_request_and_a_second_cache_hit() {
    let directory = tempfile::tempdir().unwrap();
    let compiler = Echo::new("echo 1");
    for expected in [
        CacheStats {
            compiled: 1,
            ..Default::default()
        },
        CacheStats {
            hits: 1,
            ..Default::default()
        },
    ] {
        let cache = in_directory(directory.path());
        assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
        assert_eq!(cache.stats(), expected);
    }
}

#[test]
fn damaged_entries_are_recompiled() {
    expect_repair(|entry| *entry.last_mut().unwrap() ^= 1);
    expect_repair(|entry| entry[0] ^= 1);
    expect_repair(|entry| entry[8] ^= 1);
    expect_repair(|entry| entry[20] ^= 1);
    expect_repair(|entry| entry.truncate(entry.len() - 1));
    expect_repair(|entry| entry.truncate(12));
    expect_repair(Vec::clear);
    expect_repair(|entry| entry.push(0));
}

#[test]
fn a_leftover_temporary_file_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let cache = in_directory(directory.path());
    let compiler = Echo::new("echo 1");
    let path = cache.entry_path(&compiler, &REQUEST).unwrap();
    std::fs::write(path.with_extension("tmp"), b"half an ent").unwrap();
    assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
    assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
    assert_eq!(compiler.runs(), 1);
    assert!(!path.with_extension("tmp").exists());
}

#[test]
fn the_key_covers_source_arch_options_and_compiler() {
    let directory = tempfile::tempdir().unwrap();
    let cache = in_directory(directory.path());
    let option = ["-DA=1".to_string()];
    let split = ["-DA".to_string(), "=1".to_string()];
    let variants = [
        REQUEST,
        CompileRequest {
            source: "source text ",
            ..REQUEST
        },
        CompileRequest {
            arch: "gfx942:xnack-",
            ..REQUEST
        },
        CompileRequest {
            arch: "gfx1100",
            ..REQUEST
        },
        CompileRequest {
            options: &option,
            ..REQUEST
        },
        CompileRequest {
            options: &split,
            ..REQUEST
        },
    ];
    let compilers = [Echo::new("echo 1"), Echo::new("echo 2")];
    for round in 0..2 {
        for compiler in &compilers {
            for request in &variants {
                let object = cache.get_or_compile(compiler, request).unwrap();
                assert_eq!(object, Echo::new("").compile(request).unwrap());
            }
            assert_eq!(compiler.runs(), variants.len(), "round {round}");
        }
    }
}

#[test]
fn threads_that_miss_together_compile_once() {
    let directory = tempfile::tempdir().unwrap();
    let compiler = Echo::new("echo 1");
    let threads = 8;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // One cache each: nothing but the disk is shared.
                let cache = in_directory(directory.path());
                barrier.wait();
                assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
            });
        }
    });
    assert_eq!(compiler.runs(), 1);
}

#[test]
fn an_unusable_directory_means_compiling_every_time() {
    let directory = tempfile::tempdir().unwrap();
    // A file where the directory should be: refused for every user, root included.
    let occupied = directory.path().join("occupied");
    std::fs::write(&occupied, b"").unwrap();
    let cache = in_directory(&occupied);
    let compiler = Echo::new("echo 1");
    for runs in 1..=2 {
        assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
        assert_eq!(compiler.runs(), runs);
    }
    assert_eq!(cache.stats().not_stored, 2);
}

#[test]
fn an_entry_that_cannot_be_written_is_returned_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let cache = in_directory(directory.path());
    let compiler = Echo::new("echo 1");
    let path = cache.entry_path(&compiler, &REQUEST).unwrap();
    std::fs::create_dir(path.with_extension("tmp")).unwrap();
    assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
    assert_eq!(cache.stats().not_stored, 1);
}

#[test]
#[cfg(unix)]
fn a_read_only_directory_still_serves_its_entries() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let compiler = Echo::new("echo 1");
    let cache = in_directory(directory.path());
    cache.get_or_compile(&compiler, &REQUEST).unwrap();
    let lock = cache
        .entry_path(&compiler, &REQUEST)
        .unwrap()
        .with_extension("lock");
    std::fs::remove_file(&lock).unwrap();
    let permissions = std::fs::metadata(directory.path()).unwrap().permissions();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o500)).unwrap();
    let object = cache.get_or_compile(&compiler, &REQUEST);
    std::fs::set_permissions(directory.path(), permissions).unwrap();
    assert_eq!(object.unwrap(), OBJECT);
    assert_eq!(compiler.runs(), 1);
    assert!(!lock.exists(), "a hit takes no lock");
}

#[test]
fn no_storage_compiles_every_time() {
    let cache = Cache::new(Storage::None("not wanted".into()));
    let compiler = Echo::new("echo 1");
    assert_eq!(cache.entry_path(&compiler, &REQUEST), None);
    for runs in 1..=2 {
        assert_eq!(cache.get_or_compile(&compiler, &REQUEST).unwrap(), OBJECT);
        assert_eq!(compiler.runs(), runs);
    }
}

#[test]
fn a_failed_compilation_stores_nothing() {
    struct Rejects;
    impl Compiler for Rejects {
        fn id(&self) -> String {
            "rejects".into()
        }
        fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
            Err(CompileError::Failed {
                compiler: self.id(),
                name: request.name.into(),
                arch: request.arch.into(),
                log: "line 1".into(),
            })
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let cache = in_directory(directory.path());
    let error = cache.get_or_compile(&Rejects, &REQUEST).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rejects could not compile fill.hip for gfx942:\nline 1"
    );
    assert!(!cache.entry_path(&Rejects, &REQUEST).unwrap().exists());
}

/// Held from writing a program until it has been run: a process that another test forks in between
/// would inherit the open file, and running it would fail with "text file busy".
static PROGRAMS: Mutex<()> = Mutex::new(());

/// A compiler of `script` text, which gets clang's arguments and the source on its standard input.
#[cfg(unix)]
fn scripted_compiler(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;

    let text =
        format!("#!/bin/sh\nif [ \"$1\" = --version ]; then echo scripted 1; exit; fi\n{script}\n");
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
#[cfg(unix)]
fn processes_that_miss_together_compile_once() {
    let _programs = PROGRAMS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let compiler = directory.path().join("compiler");
    let runs = directory.path().join("runs");
    scripted_compiler(
        &compiler,
        &format!(
            "cat > /dev/null; echo run >> '{}'; sleep 0.05; echo object",
            runs.display()
        ),
    );
    let processes: Vec<_> = (0..4)
        .map(|index| {
            Command::new(env!("CARGO_BIN_EXE_compile-kernels"))
                .env("CANDLE_ROCM_CLANG", &compiler)
                .env("CANDLE_ROCM_CACHE_DIR", directory.path().join("cache"))
                .arg("--output")
                .arg(directory.path().join(index.to_string()))
                .arg("gfx942")
                .spawn()
                .unwrap()
        })
        .collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let runs = std::fs::read_to_string(&runs).unwrap().lines().count();
    assert_eq!(runs, Family::ALL.len());
    for index in 0..4 {
        let object = directory
            .path()
            .join(format!("{index}/gfx942/quantized/dequantize.co"));
        assert_eq!(std::fs::read(object).unwrap(), b"object\n");
    }
}

#[test]
#[cfg(unix)]
fn clang_reports_its_log() {
    let _programs = PROGRAMS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("compiler");
    // Exits without reading: a source larger than a pipe's buffer meets a closed pipe.
    scripted_compiler(&path, "echo 'bad arch' >&2; exit 1");
    let clang = Clang::at(&path).unwrap();
    assert_eq!(clang.id(), "scripted 1");
    let source = "x".repeat(1 << 20);
    let error = clang.compile(&CompileRequest {
        source: &source,
        ..REQUEST
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("bad arch"), "{error}");
}

#[test]
fn a_missing_clang_says_so() {
    let _programs = PROGRAMS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let error = Clang::at(Path::new("no-such-clang")).unwrap_err();
    assert!(matches!(error, CompileError::Unavailable { .. }));
    assert!(error.to_string().contains("no-such-clang"), "{error}");
}
