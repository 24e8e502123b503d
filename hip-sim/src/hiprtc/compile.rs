//! Driving the host C++ compiler.

use super::objects;
use super::translate::translate;
use crate::arch::Arch;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

const PRELUDE: &str = include_str!("prelude.hpp");
const CHECKS: &str = include_str!("checks.hpp");
const PLAIN: &str = include_str!("plain.hpp");

// Files of a compilation's folder.
const SOURCE: &str = "source.hip";
const TRANSLATED: &str = "translated.cpp";
const OBJECT: &str = "translated.o";

/// Headers that plain HIP sources include and whose content the prelude already gives.
const EMPTY_HEADERS: &[&str] = &["hip/hip_runtime.h", "hip/hip_runtime_api.h"];

/// The option of sources that read memory of one type as another, as CUDA's do.
pub(super) const NO_STRICT_ALIASING: &str = "-fno-strict-aliasing";

/// A source with its options.
pub(crate) struct Request<'a> {
    pub name: &'a str,
    pub source: &'a str,
    /// Include name and text.
    pub headers: &'a [(String, String)],
    pub arch: &'a Arch,
    /// `-std=`, `-D`, `-U` and `-I` options for the compiler, and [`NO_STRICT_ALIASING`].
    pub options: &'a [String],
    pub check: bool,
}

/// A folder for one compilation; gone when dropped.
struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new() -> Result<Workspace, String> {
        let made = tempfile::Builder::new().prefix("hip-sim-").tempdir();
        made.map(Workspace)
            .map_err(|e| format!("hip-sim: cannot create a temporary folder: {e}"))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.0.path().join(name);
        let parent = path.parent().unwrap_or(self.0.path());
        let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text));
        written
            .map(|()| path)
            .map_err(|e| format!("hip-sim: cannot write {name}: {e}"))
    }
}

/// Compiles HIP source into a code object, or returns the compiler's messages.
pub(crate) fn compile(request: &Request) -> Result<Vec<u8>, String> {
    let work = Workspace::new()?;
    let wave = request.arch.wave();
    let plain = if request.source.contains("__HIP_SIM__") {
        ""
    } else {
        PLAIN
    };
    work.write(
        "prelude.hpp",
        &format!(
            "{}#define HIP_SIM_WAVE {wave}\n#line 1 \"hip-sim prelude\"\n{PRELUDE}{plain}",
            request.arch.macros()
        ),
    )?;
    for name in EMPTY_HEADERS {
        work.write(&format!("include/{name}"), "")?;
    }
    for (name, text) in request.headers {
        if Path::new(name)
            .components()
            .any(|c| !matches!(c, std::path::Component::Normal(_)))
        {
            return Err(format!("header name {name:?} is not a relative path"));
        }
        work.write(&format!("include/{name}"), text)?;
    }
    let name = request.name.replace(['\\', '"', '\n'], "_");
    work.write(SOURCE, &format!("#line 1 \"{name}\"\n{}", request.source))?;
    let mut preprocess = compiler();
    // Names within the folder: the text does not tell where it was made, so that the next one is the same.
    preprocess
        .args(["-E", "-x", "c++", "-std=c++17", "-include", "prelude.hpp"])
        .args(request.options)
        .args(["-I", "include", SOURCE]);
    let text = run(&mut preprocess, &work)?;
    let text = String::from_utf8(text).map_err(|_| format!("{name}: the source is not UTF-8"))?;
    let translated = translate(&text, wave).map_err(|e| format!("{name}: error: {e}"))?;
    // The source that the object carries says it, for its checked form.
    let translated = match request.options.iter().any(|o| o == NO_STRICT_ALIASING) {
        true => format!("// {NO_STRICT_ALIASING}\n{translated}"),
        false => translated,
    };
    keep(&name, &translated);
    let standard: Vec<&String> = request
        .options
        .iter()
        .filter(|o| o.starts_with("-std="))
        .collect();
    build(
        &work,
        &translated,
        request.arch.name(),
        &standard,
        request.check,
    )
}

/// Compiles a translated source, as a code object carries it, again with checks.
pub(crate) fn with_checks(source: &[u8], arch: &str) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(source).map_err(|e| e.to_string())?;
    build(&Workspace::new()?, text, arch, &[], true)
}

/// The code object of a translated source: its machine code, which [`objects`] keeps for whoever asks for the same
/// again, linked with what differs between those who share it.
fn build(
    work: &Workspace,
    translated: &str,
    arch: &str,
    standard: &[&String],
    check: bool,
) -> Result<Vec<u8>, String> {
    work.write(TRANSLATED, translated)?;
    let mut compile = compiler();
    compile.args([
        "-c",
        "-x",
        "c++",
        "-std=c++17",
        // What is called for every access takes longest then.
        if check { "-O1" } else { "-O2" },
        "-fPIC",
        "-w",
        "-ffp-contract=off",
        "-fno-exceptions",
        "-fno-rtti",
        // Objects with a template in common would share its thread-local variables. The first access to another
        // object's, in the middle of a kernel, goes through _dl_tlsdesc_dynamic, which spoils vector registers before
        // glibc 2.40.
        "-fno-gnu-unique",
    ]);
    compile
        .args(standard)
        .arg(format!("-DHIP_SIM_CHECKED={}", check as u32));
    if cfg!(target_arch = "x86_64") {
        compile.arg("-mtls-dialect=gnu2");
    }
    if translated
        .strip_prefix("// ")
        .is_some_and(|t| t.starts_with(NO_STRICT_ALIASING))
    {
        // nvcc and clang also take a name in a class that means another thing before it.
        compile.args([NO_STRICT_ALIASING, "-fpermissive"]);
    }
    if check {
        compile.arg("-fsanitize=kernel-address");
        for limit in [
            "asan-instrumentation-with-call-threshold=0",
            "asan-stack=0",
            "asan-globals=0",
        ] {
            compile.args(["--param", limit]);
        }
    }
    let kept = objects::Kept::of(&compile, check.then_some(CHECKS), translated);
    if !kept.copy_to(&work.0.path().join(OBJECT)) {
        let unit = match check {
            true => {
                let unit = format!("#include \"{TRANSLATED}\"\n{CHECKS}");
                work.write("checked.cpp", &unit)?;
                "checked.cpp"
            }
            false => TRANSLATED,
        };
        run(compile.args([unit, "-o", OBJECT]), work)?;
        kept.keep(&work.0.path().join(OBJECT));
    }
    // The object carries its source and for which arch it is; the symbols are local to the object.
    let embed = format!(
        ".section .rodata.hip_sim,\"a\"\n.global hip_sim_source\n.hidden hip_sim_source\nhip_sim_source:\n\
         .incbin \"{TRANSLATED}\"\n.global hip_sim_source_end\n.hidden hip_sim_source_end\nhip_sim_source_end:\n\
         .byte 0\n.global hip_sim_arch\n.hidden hip_sim_arch\nhip_sim_arch:\n.asciz \"{arch}\"\n\
         .section .note.GNU-stack,\"\"\n"
    );
    work.write("embed.s", &embed)?;
    let library = work.0.path().join("module.so");
    let mut link = compiler();
    link.args(["-shared", "-Wl,-Bsymbolic", "-x", "none"])
        .args([OBJECT, "embed.s", "-o"])
        .arg(&library);
    run(&mut link, work)?;
    std::fs::read(&library).map_err(|e| format!("hip-sim: the linker wrote nothing: {e}"))
}

pub(super) fn compiler_name() -> OsString {
    std::env::var_os("HIP_SIM_CXX").unwrap_or_else(|| "c++".into())
}

pub(super) fn compiler() -> Command {
    let mut command = Command::new(compiler_name());
    command.env("LC_ALL", "C");
    command
}

/// Runs a compiler step; its messages are the error.
fn run(command: &mut Command, work: &Workspace) -> Result<Vec<u8>, String> {
    let output = command.current_dir(work.0.path()).output().map_err(|e| {
        let program = command.get_program().to_string_lossy().into_owned();
        format!(
            "hip-sim: cannot run the C++ compiler {program}: {e}; install g++ or set HIP_SIM_CXX"
        )
    })?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Keeps a translated source in the folder `HIP_SIM_KEEP`.
fn keep(name: &str, translated: &str) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = std::env::var_os("HIP_SIM_KEEP") else {
        return;
    };
    let stem: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(&folder).join(format!("{stem}-{}-{number}.cpp", std::process::id()));
    if let Err(e) = std::fs::write(&path, translated) {
        eprintln!(
            "hip-sim: HIP_SIM_KEEP: cannot write {}: {e}",
            path.display()
        );
    }
}
