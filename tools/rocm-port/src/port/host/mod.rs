//! Launchers: host functions of a `.cu` file as Rust functions that launch a unit's entries.
//!
//! A host function is translated as a whole, so that grids, blocks, shared memory and the choice of the kernel are
//! computed as its text does. One that does more than that is refused with the place and the reason; each entry has a
//! function of its own besides, to which the caller says the grid.

mod expression;
mod launch;
mod program;
mod statement;
mod translate;
mod value;
mod write;

pub(crate) use translate::Refusal;
pub(crate) use write::{is_plain, Declared};

use crate::model::{ArgumentKind, PortedUnit};
use program::Program;
use std::fmt::Write;
use std::ops::Range;
use translate::{Plan, Translator};
use value::{CType, Value};

/// Launchers of a unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launchers {
    /// The text of the Rust module.
    pub source: String,
    /// Host functions that it has.
    pub functions: Vec<String>,
    /// Host functions that it lacks, and why.
    pub refused: Vec<(String, Refusal)>,
}

/// Most functions that one unit may need, over all template arguments.
const MOST_FUNCTIONS: usize = 10_000;

/// Writes the launchers of a unit. `text` is the preprocessed file, `path` its name, `unit_file` what `include_str!`
/// finds the unit by, and `declared` the C functions that Rust knows.
pub(crate) fn launchers(
    text: &str,
    path: &str,
    unit: &PortedUnit,
    unit_file: &str,
    declared: &[Declared],
) -> Launchers {
    let mut launchers = Launchers::default();
    let _ = write!(
        launchers.source,
        "//! Launchers of the kernels of `{path}`, written by rocm-port.\n\
         //!\n\
         //! They compute grids and choose kernels as the host functions of that file do. Launches go to the stream of\n\
         //! the current device, see `support::bind`; what a function takes as a stream is not used.\n\n\
         // Written from C++, of which not everything is needed here.\n\
         #![allow(dead_code, unused_imports, unused_mut, unused_variables, unused_assignments, clippy::all)]\n\n\
         use super::support::{{compute_units, divided, failed, launch, Address, Args, Result}};\n\
         use core::ffi::*;\n\n\
         /// Device code for AMD GPUs: compiled when it is first launched, and kept on disk.\n\
         pub const SOURCE: &str = include_str!(\"{unit_file}\");\n"
    );
    if let Some(tree) = crate::parse::tree::parse(text) {
        let program = Program::of(tree.root_node(), text);
        host_functions(&mut launchers, text, &program, unit, declared);
    }
    for entry in &unit.kernels {
        launchers.source.push_str(&write::entry(entry));
    }
    launchers
}

/// Translates the functions that Rust may call, and those that they call.
fn host_functions(
    launchers: &mut Launchers,
    text: &str,
    program: &Program,
    unit: &PortedUnit,
    declared: &[Declared],
) {
    let mut plan = Plan::default();
    let exported = |name: &str| declared.iter().any(|known| known.name == name);
    let c_names = program
        .functions
        .iter()
        .any(|function| function.extern_c && !function.device);
    let launching = launching(text, program);
    for (index, function) in program.functions.iter().enumerate() {
        let launches = launching.contains(&function.name.as_str());
        let wanted = (function.extern_c || !c_names) && launches;
        if !function.device && function.template.is_empty() && (wanted || exported(&function.name))
        {
            plan.name_of(index, function, &[]);
        }
    }
    let mut done = 0;
    while let Some((index, template)) = plan.open.pop() {
        done += 1;
        if done > MOST_FUNCTIONS {
            return;
        }
        let function = &program.functions[index];
        let name = plan.name_of(index, function, &template);
        match Translator::new(text, program, unit, &mut plan).function(index, &template) {
            Ok(body) => {
                let known = declared.iter().find(|known| known.name == name);
                launchers
                    .source
                    .push_str(&write::function(&name, function, &body, known));
                launchers.functions.push(name);
            }
            Err(refusal) => launchers.refused.push((name, refusal)),
        }
    }
    // What calls a refused function is refused, too: its text would not compile.
    while let Some((index, called)) = calls_refused(launchers) {
        let name = launchers.functions.remove(index);
        if let Some(range) = function_range(&launchers.source, &name) {
            launchers.source.replace_range(range, "");
        }
        let reason = format!("it calls `{called}`, which has no launcher");
        launchers.refused.push((name, Refusal { byte: 0, reason }));
    }
}

/// Names of functions that launch, themselves or through others.
fn launching<'p>(text: &str, program: &'p Program) -> Vec<&'p str> {
    let mut names: Vec<&str> = Vec::new();
    let words: Vec<Vec<&str>> = program
        .functions
        .iter()
        .map(|function| {
            let body = text.get(function.body.byte_range()).unwrap_or_default();
            let tokens = crate::port::lexer::tokens(body);
            tokens.iter().map(|token| token.text(body)).collect()
        })
        .collect();
    loop {
        let before = names.len();
        for (function, words) in program.functions.iter().zip(&words) {
            let known = names.contains(&function.name.as_str());
            if !known
                && !function.device
                && (function.launches || words.iter().any(|word| names.contains(word)))
            {
                names.push(&function.name);
            }
        }
        if names.len() == before {
            return names;
        }
    }
}

/// The text of a function with its documentation.
fn function_range(source: &str, name: &str) -> Option<Range<usize>> {
    let at = source.find(&format!("pub unsafe fn {name}("))?;
    let start = source[..at].rfind("\n\n")? + 1;
    let end = source[at..].find("\n}\n")?;
    Some(start..at + end + 3)
}

/// A function that calls a refused one, by its place among the functions.
fn calls_refused(launchers: &Launchers) -> Option<(usize, String)> {
    launchers
        .functions
        .iter()
        .enumerate()
        .find_map(|(index, name)| {
            let body = &launchers.source[function_range(&launchers.source, name)?];
            let calls = |called: &str| {
                body.match_indices(&format!("{called}(")).any(|(at, _)| {
                    let before = body[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
                })
            };
            let called = launchers.refused.iter().find(|(refused, _)| calls(refused));
            called.map(|(called, _)| (index, called.clone()))
        })
}

/// A name without its namespaces.
fn basename(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// The method of `Args` that passes a value as a kernel's argument; none if it cannot be passed.
fn pass(kind: &ArgumentKind, value: &Value) -> Option<String> {
    match (kind, &value.kind) {
        (ArgumentKind::Pointer { element, .. }, _) => {
            let value = value.convert(&CType::Pointer(element.clone()))?;
            Some(write::argument(&value))
        }
        (ArgumentKind::Scalar(scalar), CType::Number(number)) if scalar == number => {
            Some(write::argument(value))
        }
        (ArgumentKind::Scalar(scalar), _) => {
            let kind = if scalar == "bool" {
                CType::Bool
            } else {
                CType::number(scalar)
            };
            Some(write::argument(&value.convert(&kind)?))
        }
        (ArgumentKind::Structure(name), CType::Other(given)) if name == given => {
            Some(write::argument(value))
        }
        // Enumerations are numbers here.
        (ArgumentKind::Structure(_), CType::Number(number)) if number == "i32" => {
            Some(write::argument(value))
        }
        _ => None,
    }
}

/// The C++ name of a number.
fn cpp_name(number: &str) -> String {
    let name = match number {
        "i8" => "int8_t",
        "u8" => "uint8_t",
        "i16" => "int16_t",
        "u16" => "uint16_t",
        "i32" => "int",
        "u32" => "unsigned",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "f32" => "float",
        "f64" => "double",
        "f16" => "__half",
        "bf16" => "__nv_bfloat16",
        other => other,
    };
    name.to_string()
}

#[cfg(test)]
mod tests;
