//! The text of launchers: signatures, conversions of what comes in, arguments.

use super::program::HostFunction;
use super::translate::Body;
use super::value::{identifier, CType, Value};
use crate::model::{ArgumentKind, PortedKernel};
use std::fmt::Write;

/// A C function as the crate's Rust declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub name: String,
    /// Types of its parameters, as Rust text.
    pub parameters: Vec<String>,
    /// What it gives back, as Rust text.
    pub result: Option<String>,
}

/// A host function.
pub(super) fn function(
    name: &str,
    function: &HostFunction,
    body: &Body,
    declared: Option<&Declared>,
) -> String {
    let mut signature = Vec::new();
    let mut head = String::new();
    let public = function.extern_c || declared.is_some() || function.template.is_empty();
    for (at, (parameter, kind)) in body.parameters.iter().enumerate() {
        let theirs = declared
            .and_then(|known| known.parameters.get(at))
            .filter(|kind| is_plain(kind));
        match (theirs, kind.rust(), kind) {
            (Some(theirs), Some(ours), _) => {
                signature.push(format!("{parameter}: {theirs}"));
                let converted = match (kind, theirs.as_str()) {
                    (_, theirs) if theirs == ours => continue,
                    (CType::Bool, _) => format!("{parameter} != 0"),
                    _ => format!("{parameter} as {ours}"),
                };
                let _ = writeln!(head, "    let {parameter} = {converted};");
            }
            (None, _, CType::Pointer(_)) if public => {
                signature.push(format!("{parameter}: impl Address"));
                let _ = writeln!(head, "    let {parameter} = {parameter}.address()?;");
            }
            (None, Some(ours), _) => signature.push(format!("{parameter}: {ours}")),
            // Numbers of 8 and 16 bits and structures go through as they are.
            (_, None, CType::Number(number)) => {
                let bits = if number.starts_with("f8") {
                    "u8"
                } else {
                    "u16"
                };
                signature.push(format!("{parameter}: {bits}"));
            }
            (_, None, _) => signature.push(format!("{parameter}: impl Copy")),
        }
    }
    let ours = body.result.as_ref().and_then(CType::rust);
    let theirs = declared
        .and_then(|known| known.result.clone())
        .filter(|kind| is_plain(kind));
    let mut text = body.text.clone();
    let mut result = ours.clone().unwrap_or_else(|| "()".into());
    if let (Some(ours), Some(theirs)) = (ours, theirs.filter(|theirs| *theirs != result)) {
        // What Rust declares is what its callers expect.
        text = format!("    let result: {ours} = (|| -> Result<{ours}> {{\n{text}    }})()?;\n    Ok(result as {theirs})\n");
        result = theirs;
    } else if body.result.is_none() {
        text.push_str("    Ok(())\n");
    } else if !text
        .trim_end()
        .lines()
        .last()
        .is_some_and(|line| line.starts_with("    return "))
    {
        text.push_str("    Err(failed(\"the function ends without a value\"))\n");
    }
    format!(
        "\n/// `{}` of the CUDA file.\n///\n/// # Safety\n/// Addresses are of memory on the current device, as large as the \
         kernels need it.\n///\n/// # Errors\n/// No current device, an impossible launch, or a kernel that does not \
         compile.\npub unsafe fn {name}({}) -> Result<{result}> {{\n{head}{text}}}\n",
        function.name,
        signature.join(", "),
    )
}

/// Whether a Rust type means the same without the crate's own names: numbers, and addresses of them.
pub(crate) fn is_plain(kind: &str) -> bool {
    let mut rest = kind.trim();
    while let Some(inner) = rest
        .strip_prefix("*const ")
        .or_else(|| rest.strip_prefix("*mut "))
    {
        rest = inner.trim();
    }
    let last = rest.rsplit("::").next().unwrap_or(rest).trim();
    let numbers = [
        "bool", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "usize",
        "isize",
    ];
    let of_c = last.starts_with("c_")
        && (rest == last || rest.starts_with("core") || rest.starts_with("std"));
    numbers.contains(&rest) || of_c
}

/// Floats that Rust's own types lack, as their bits.
fn bits(scalar: &str) -> Option<&'static str> {
    match scalar {
        "f16" | "bf16" => Some("u16"),
        "f8_e4m3" | "f8_e5m2" => Some("u8"),
        _ => None,
    }
}

/// The function of one entry.
pub(super) fn entry(entry: &PortedKernel) -> String {
    let mut signature: Vec<String> = ["grid: [u32; 3]", "block: [u32; 3]", "shared_bytes: u32"]
        .map(String::from)
        .into();
    let mut generics = Vec::new();
    let (mut head, mut args, mut note) = (
        String::new(),
        String::from("    let args = Args::new()"),
        "",
    );
    for (at, given) in entry.arguments.iter().enumerate() {
        let mut name = identifier(&given.name);
        if matches!(name.as_str(), "grid" | "block" | "shared_bytes" | "args") {
            name.push('_');
        }
        let kind = match &given.kind {
            ArgumentKind::Pointer { element, .. } => {
                signature.push(format!("{name}: impl Address"));
                let _ = writeln!(head, "    let {name} = {name}.address()?;");
                CType::Pointer(element.clone())
            }
            ArgumentKind::Scalar(scalar) => {
                if bits(scalar).is_some() {
                    note = " Floats of 8 and 16 bits are passed as their bits.";
                }
                let rust = bits(scalar).unwrap_or(scalar);
                signature.push(format!("{name}: {rust}"));
                if rust == "bool" {
                    CType::Bool
                } else {
                    CType::number(rust)
                }
            }
            ArgumentKind::Structure(structure) => {
                generics.push(format!("A{at}: Copy"));
                signature.push(format!("{name}: A{at}"));
                CType::Other(structure.clone())
            }
        };
        let _ = write!(args, "\n        {}", argument(&Value::new(name, kind)));
    }
    let generics = if generics.is_empty() {
        String::new()
    } else {
        format!("<{}>", generics.join(", "))
    };
    let template = match entry.template.is_empty() {
        true => String::new(),
        false => format!("<{}>", entry.template.join(", ")),
    };
    format!(
        "\n/// The kernel `{}{template}`.{note}\n///\n/// # Safety\n/// Addresses are of memory as large as the kernel \
         needs it with this grid and block; structures are laid out as in C++.\n///\n/// # Errors\n/// No current device, \
         an impossible launch, or a kernel that does not compile.\npub unsafe fn {}{generics}({}) -> Result<()> {{\n\
         {head}{args};\n    // SAFETY: that the arguments are the kernel's is the caller's promise.\n    unsafe {{ \
         launch(SOURCE, \"{}\", grid, block, shared_bytes, &args) }}\n}}\n",
        entry.kernel,
        entry.entry,
        signature.join(", "),
        entry.entry,
    )
}

/// The method of `Args` for a value.
pub(super) fn argument(value: &Value) -> String {
    let text = &value.text;
    match &value.kind {
        CType::Number(name)
            if matches!(name.as_str(), "u32" | "i32" | "u64" | "i64" | "f32" | "f64") =>
        {
            format!(".{name}({text})")
        }
        CType::Number(name) if value.constant.is_some() => format!(".value(&({text} as {name}))"),
        CType::Pointer(_) if text == "core::ptr::null()" => {
            ".value(&core::ptr::null::<c_void>())".into()
        }
        _ if text.chars().all(|c| c.is_alphanumeric() || c == '_') => format!(".value(&{text})"),
        _ => format!(".value(&({text}))"),
    }
}
