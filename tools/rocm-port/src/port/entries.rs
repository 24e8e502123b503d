//! Entries with C names, one for each instance of a kernel.

use super::types::{argument, substitute, word, Bindings};
use crate::model::{Argument, Kernel, PortedKernel};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block at most, on every GPU.
const MOST_THREADS: u32 = 1024;

/// Gives names to the instances of kernels and writes their entries into `source`.
pub(crate) fn append(
    source: &mut String,
    kernels: &[Kernel],
    taken: &mut BTreeSet<String>,
) -> Vec<PortedKernel> {
    let mut entries = Vec::new();
    for kernel in kernels {
        for template in &kernel.instances {
            // An instance that lacks an argument without a default cannot be named.
            let needed = kernel
                .template
                .iter()
                .filter(|p| p.default.is_none() && !p.kind.ends_with("..."))
                .count();
            if template.len() < needed {
                continue;
            }
            let entry = unique(&entry_name(&kernel.name, template), taken);
            let ported = entry_of(kernel, template, entry);
            write_entry(source, kernel, &ported);
            entries.push(ported);
        }
    }
    entries
}

/// `rocm_rotary_embedding_kernel_f32_true`.
fn entry_name(kernel: &str, template: &[String]) -> String {
    let mut name = format!("rocm_{}", kernel.rsplit("::").next().unwrap_or(kernel));
    for argument in template {
        let word = word(argument);
        if !word.is_empty() {
            name.push('_');
            name.push_str(&word);
        }
    }
    // Names of objects' symbols have no limit, names of files in caches do.
    name.truncate(180);
    name
}

fn unique(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut candidate = name.to_string();
    let mut number = 2;
    while !taken.insert(candidate.clone()) {
        candidate = format!("{name}_v{number}");
        number += 1;
    }
    candidate
}

fn entry_of(kernel: &Kernel, template: &[String], entry: String) -> PortedKernel {
    let defaults = kernel
        .template
        .iter()
        .enumerate()
        .map(|(index, parameter)| {
            let given = template.get(index).map(String::as_str);
            (
                parameter.name.as_str(),
                given.or(parameter.default.as_deref()).unwrap_or(""),
            )
        });
    let bindings: Vec<(&str, &str)> = defaults
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .collect();
    let arguments = kernel
        .parameters
        .iter()
        .enumerate()
        .map(|(index, parameter)| Argument {
            name: match parameter.name.as_str() {
                "" => format!("a{index}"),
                name => name.to_string(),
            },
            kind: argument(&parameter.kind, &bindings),
        });
    PortedKernel {
        entry,
        kernel: kernel.name.clone(),
        template: template.to_vec(),
        arguments: arguments.collect(),
        max_block: max_block(kernel.launch_bounds.as_deref(), &bindings),
    }
}

/// The first argument of `__launch_bounds__`, if it is a number.
fn max_block(bounds: Option<&str>, bindings: &Bindings) -> Option<u32> {
    let bounds = substitute(bounds?, bindings);
    let first = bounds.split(',').next()?;
    let value = super::number::evaluate(first)?;
    u32::try_from(value)
        .ok()
        .filter(|threads| (1..=MOST_THREADS).contains(threads))
}

fn write_entry(source: &mut String, kernel: &Kernel, ported: &PortedKernel) {
    let parts = kernel
        .name
        .split("::")
        .filter(|part| !part.is_empty() && !part.contains("anonymous"));
    let mut name = parts.collect::<Vec<_>>().join("::");
    if !kernel.template.is_empty() {
        let _ = write!(name, "<{}>", ported.template.join(", "));
    }
    let count = ported.arguments.len();
    let parameters: Vec<String> = (0..count)
        .map(|i| format!("port::argument<{i}, &{name}> a{i}"))
        .collect();
    let values: Vec<String> = (0..count).map(|i| format!("a{i}")).collect();
    let _ = write!(
        source,
        "extern \"C\" PORT_KERNEL({}) void {}({}) {{\n    {name}({});\n}}\n",
        ported.max_block.unwrap_or(MOST_THREADS),
        ported.entry,
        parameters.join(", "),
        values.join(", "),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ArgumentKind, Parameter, Place, TemplateParameter};

    fn kernel() -> Kernel {
        let template = |kind: &str, name: &str, default: Option<&str>| TemplateParameter {
            kind: kind.into(),
            name: name.into(),
            default: default.map(Into::into),
        };
        let parameter = |kind: &str, name: &str| Parameter {
            kind: kind.into(),
            name: name.into(),
        };
        Kernel {
            name: "vllm::k".into(),
            place: Place {
                file: "k.cu".into(),
                line: 1,
                column: 1,
            },
            last_line: 1,
            expansion: None,
            extern_c: false,
            template: vec![
                template("typename", "T", None),
                template("int", "N", Some("2 * 64")),
            ],
            parameters: vec![parameter("const T*", "x"), parameter("int", "")],
            launch_bounds: Some("N * 2, 1".into()),
            instances: vec![
                vec!["float".into()],
                vec!["__half".into(), "32".into()],
                vec!["half".into(), "32".into()],
                vec![],
            ],
            reaches: vec![],
        }
    }

    #[test]
    fn an_entry_for_each_instance() {
        let mut source = String::new();
        let entries = append(&mut source, &[kernel()], &mut BTreeSet::new());
        let names: Vec<&str> = entries.iter().map(|entry| entry.entry.as_str()).collect();
        assert_eq!(names, ["rocm_k_f32", "rocm_k_f16_32", "rocm_k_f16_32_v2"]);
        assert_eq!(entries[0].max_block, Some(256));
        assert_eq!(entries[1].max_block, Some(64));
        assert_eq!(entries[1].arguments[1].name, "a1");
        assert_eq!(
            entries[1].arguments[0].kind,
            ArgumentKind::Pointer {
                element: "__half".into(),
                constant: true
            }
        );
        assert!(source.starts_with(
            "extern \"C\" PORT_KERNEL(256) void rocm_k_f32(port::argument<0, &vllm::k<float>> a0, port::argument<1, &vllm::k<float>> a1) {\n    \
             vllm::k<float>(a0, a1);\n}\n"
        ));
    }
}
