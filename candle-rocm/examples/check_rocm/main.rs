//! Compares this crate with an installed ROCm, no GPU needed; `scripts/check-rocm` runs it in chroots.
//!
//! * `symbols`: looks up every function of the `sys` layer in the libraries that the product would open.
//! * `abi`: prints a C++ file that compiles against ROCm's headers only if every size, offset, value and
//!   signature of the `sys` layer is theirs.
//! * `descriptors`: sets MIOpen's descriptors and reads them back.
//! * `kernels ARCH…`: compiles every kernel family with hiprtc for the archs that it knows.
//! * `probe ARCH`: succeeds if hiprtc knows the arch.
//!
//! `symbols`, `descriptors` and `kernels` end with one line `counts: …` and fail if anything is amiss.

mod descriptors;

use candle_rocm::compile::HiprtcCompiler;
use candle_rocm::sys::{self, Fact, Search};
use candle_rocm_kernels::{CompileRequest, Compiler, Family};
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A `sys` module's source and the header that declares what it names.
const MODULES: &[(&str, &str)] = &[
    (
        "hip/hip_runtime_api.h",
        include_str!("../../src/sys/hip.rs"),
    ),
    ("hip/hiprtc.h", include_str!("../../src/sys/hiprtc.rs")),
    (
        "rocblas/rocblas.h",
        include_str!("../../src/sys/rocblas.rs"),
    ),
    ("miopen/miopen.h", include_str!("../../src/sys/miopen.rs")),
    ("rccl/rccl.h", include_str!("../../src/sys/rccl.rs")),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((part, [])) if part == "symbols" => symbols(),
        Some((part, [])) if part == "abi" => abi().map(|text| print!("{text}")),
        Some((part, [])) if part == "descriptors" => descriptors::run(),
        Some((part, [arch])) if part == "probe" => probe(arch),
        Some((part, archs)) if part == "kernels" && !archs.is_empty() => kernels(archs),
        _ => Err(
            "usage: check_rocm symbols | abi | descriptors | kernels ARCH... | probe ARCH"
                .to_string(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("check_rocm: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Looks every symbol up by itself, so that all missing ones are named and not just the first.
fn symbols() -> Result<(), String> {
    let search = Search::from_env();
    let opened = [
        (
            "libamdhip64",
            sys::hip::Hip::SONAMES.files(None),
            sys::hip::Hip::open(&search).map(|l| l.path),
        ),
        (
            "libhiprtc",
            sys::hiprtc::Hiprtc::SONAMES.files(None),
            sys::hiprtc::Hiprtc::open(&search).map(|l| l.path),
        ),
        (
            "librocblas",
            sys::rocblas::RocBlas::SONAMES.files(None),
            sys::rocblas::RocBlas::open(&search).map(|l| l.path),
        ),
        (
            "libMIOpen",
            sys::miopen::MiOpen::SONAMES.files(None),
            sys::miopen::MiOpen::open(&search).map(|l| l.path),
        ),
        (
            "librccl",
            sys::rccl::Rccl::SONAMES.files(None),
            sys::rccl::Rccl::open(&search).map(|l| l.path),
        ),
    ];
    let all = checked_symbols();
    let mut missing = 0;
    let mut refused = 0;
    for (stem, files, opened) in opened {
        // SAFETY: opening a library runs its initialisers; these are ROCm's, which the product opens as well.
        let library = files
            .iter()
            .find_map(|file| unsafe { libloading::Library::new(file).ok() });
        let Some(library) = library else {
            return Err(format!("none of {files:?} can be opened"));
        };
        match opened {
            Ok(path) => println!("{stem}: the product opens {}", path.display()),
            Err(error) => {
                refused += 1;
                println!("{stem}: the product refuses it: {error}");
            }
        }
        for symbol in all.iter().filter(|symbol| symbol.library == stem) {
            // SAFETY: the address is only tested for presence, never called through.
            let found = unsafe { library.get::<*const ()>(symbol.name.as_bytes()) }.is_ok();
            if !found {
                missing += 1;
                let kind = if symbol.required {
                    "required"
                } else {
                    "optional"
                };
                println!("{stem}: {kind} function {} is missing", symbol.name);
            }
        }
    }
    println!("counts: {} symbols, {missing} missing", all.len());
    if missing + refused > 0 {
        return Err("the libraries do not offer what the sys layer looks up".to_string());
    }
    Ok(())
}

fn request<'a>(name: &'a str, source: &'a str, arch: &'a str) -> CompileRequest<'a> {
    CompileRequest {
        name,
        source,
        arch,
        options: &[],
    }
}

fn hiprtc() -> Result<HiprtcCompiler, String> {
    HiprtcCompiler::new().map_err(|error| error.to_string())
}

/// Compiles an empty kernel.
fn probe(arch: &str) -> Result<(), String> {
    let source = "extern \"C\" __global__ void probe() {}";
    let compiled = hiprtc()?.compile(&request("probe.hip", source, arch));
    compiled.map(|_| ()).map_err(|error| error.to_string())
}

/// Whether hiprtc knows the arch, asked in a process of its own: that of ROCm 6.4 aborts on an unknown one.
fn is_known(arch: &str) -> bool {
    std::env::args().next().is_some_and(|program| {
        Command::new(program)
            .args(["probe", arch])
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

/// Compiles every family for each arch that a probe kernel compiles for.
fn kernels(archs: &[String]) -> Result<(), String> {
    let compiler = hiprtc()?;
    println!("compiler: {}", compiler.id());
    let (known, unknown): (Vec<_>, Vec<_>) = archs.iter().partition(|arch| is_known(arch));
    let mut failed = 0;
    for arch in &known {
        let start = Instant::now();
        for family in Family::ALL {
            let compiled = compiler.compile(&request(family.file_name(), family.source(), arch));
            if let Err(error) = compiled {
                failed += 1;
                println!("{} for {arch}: {error}", family.file_name());
            }
        }
        println!("{arch}: {:.1} s", start.elapsed().as_secs_f64());
    }
    let names = |archs: &[&String]| {
        archs
            .iter()
            .map(|a| a.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    };
    println!("archs: {}", names(&known));
    println!("unknown archs: {}", names(&unknown));
    println!(
        "counts: {} families, {} archs, {failed} of {} compilations failed",
        Family::ALL.len(),
        known.len(),
        Family::ALL.len() * known.len()
    );
    if failed > 0 || known.is_empty() {
        return Err("hiprtc does not compile every kernel family".to_string());
    }
    Ok(())
}

/// The C++ file; its last line is a comment with the counts.
fn abi() -> Result<String, String> {
    let facts = all_facts();
    let signatures = signatures()?;
    let mut text = String::from(PRELUDE);
    let headers: BTreeSet<&str> = MODULES.iter().map(|(header, _)| *header).collect();
    for header in headers {
        text += &format!("#include <{header}>\n");
    }
    text += KINDS;
    for fact in &facts {
        let (expression, value) = match fact {
            Fact::Size { of, bytes, .. } => (format!("sizeof({of})"), *bytes as i64),
            Fact::Offset {
                of, field, bytes, ..
            } => (format!("offsetof({of}, {field})"), *bytes as i64),
            Fact::Value { name, value, .. } => ((*name).to_string(), *value),
        };
        text += &format!("static_assert({expression} == {value});\n");
    }
    for (name, kinds) in &signatures {
        text += &format!(
            "static_assert(Signature<decltype({name})>::is<{}>(), \"{name}\");\n",
            kinds.join(", ")
        );
    }
    text += &format!(
        "// counts: {} sizes, offsets and values, {} signatures\n",
        facts.len(),
        signatures.len()
    );
    Ok(text)
}

const PRELUDE: &str = "\
#define __HIP_PLATFORM_AMD__
#define __HIP_DISABLE_CPP_FUNCTIONS__ // template overloads would make decltype ambiguous
#include <cstddef>
#include <type_traits>
";

/// What matters of a type that is passed by value: its register class and size.
const KINDS: &str = "
enum Kind { Pointer, Bool, Int4, Int8, Float4, Float8, Other };
template <class T> constexpr Kind kind() {
    if (std::is_pointer_v<T>) return Pointer;
    if (std::is_same_v<T, bool>) return Bool;
    if (std::is_floating_point_v<T>) return sizeof(T) == 4 ? Float4 : Float8;
    if (std::is_integral_v<T> || std::is_enum_v<T>) return sizeof(T) == 4 ? Int4 : sizeof(T) == 8 ? Int8 : Other;
    return Other;
}
template <class F> struct Signature;
template <class R, class... A> struct Signature<R(A...)> {
    template <Kind result, Kind... arguments> static constexpr bool is() {
        if constexpr (sizeof...(arguments) == sizeof...(A))
            return kind<R>() == result && ((kind<A>() == arguments) && ...);
        else
            return false;
    }
};
";

/// The table of the `sys` layer, plus every constant whose doc comment opens with a C name.
fn all_facts() -> Vec<Fact> {
    let mut facts = sys::facts();
    let mut named: BTreeSet<&str> = facts
        .iter()
        .filter_map(|fact| match fact {
            Fact::Value { name, .. } => Some(*name),
            _ => None,
        })
        .collect();
    for (header, source) in MODULES {
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        for pair in lines.windows(2) {
            let Some((name, value)) = documented_constant(pair[0], pair[1]) else {
                continue;
            };
            if named.insert(name) {
                facts.push(Fact::Value {
                    header,
                    name,
                    value,
                });
            }
        }
    }
    facts
}

/// The C name and value in `` /// `name`… `` and `pub const X: T = value;`.
fn documented_constant(doc: &'static str, item: &'static str) -> Option<(&'static str, i64)> {
    let (name, _) = doc.strip_prefix("/// `")?.split_once('`')?;
    let (_, value) = item
        .strip_prefix("pub const ")?
        .strip_suffix(';')?
        .split_once(" = ")?;
    Some((name, value.parse().ok()?))
}

/// The symbols of the libraries that every suite of Debian's has. hipBLASLt, which nothing needs, is not among them.
fn checked_symbols() -> Vec<sys::Symbol> {
    let mut symbols = sys::symbols();
    symbols.retain(|symbol| symbol.library != sys::hipblaslt::HipBlasLt::SONAMES.stem);
    symbols
}

/// Result and argument kinds of every symbol, from the declarations in the `sys` modules.
fn signatures() -> Result<Vec<(&'static str, Vec<&'static str>)>, String> {
    let aliases: BTreeMap<&str, &str> = MODULES
        .iter()
        .flat_map(|(_, source)| source.lines())
        .filter_map(|line| {
            line.trim()
                .strip_prefix("pub type ")?
                .strip_suffix(';')?
                .split_once(" = ")
        })
        .collect();
    checked_symbols()
        .iter()
        .map(|symbol| {
            let name = symbol.name;
            let opening = format!("fn {name}(");
            let declaration = MODULES
                .iter()
                .find_map(|(_, source)| source.split_once(&opening))
                .and_then(|(_, rest)| rest.split_once(';'))
                .and_then(|(text, _)| text.split_once(')'));
            let Some((arguments, result)) = declaration else {
                return Err(format!("no declaration of {name} in src/sys"));
            };
            let result = result.trim().trim_start_matches("->").trim();
            let arguments = arguments
                .split(',')
                .map(str::trim)
                .filter(|argument| !argument.is_empty())
                .map(|argument| argument.split_once(':').map_or("", |(_, of)| of.trim()));
            let kinds = std::iter::once(result)
                .chain(arguments)
                .map(|of| kind(of, &aliases).ok_or_else(|| format!("{name}: what is {of:?} in C?")))
                .collect::<Result<_, _>>()?;
            Ok((name, kinds))
        })
        .collect()
}

/// The C++ `Kind` of a Rust type.
fn kind(of: &str, aliases: &BTreeMap<&str, &str>) -> Option<&'static str> {
    match of {
        pointer if pointer.starts_with('*') => Some("Pointer"),
        "bool" => Some("Bool"),
        "c_int" | "c_uint" | "i32" | "u32" => Some("Int4"),
        "usize" | "i64" | "u64" => Some("Int8"),
        "f32" => Some("Float4"),
        // A structure by value; its size is a fact.
        "UniqueId" => Some("Other"),
        "f64" => Some("Float8"),
        alias => aliases.get(alias).and_then(|of| kind(of, aliases)),
    }
}
