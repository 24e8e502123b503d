//! The unit of a `.cu` file.

use super::{asm, entries, flatten, lexer, strip, PortError};
use crate::model::{PortedUnit, Project, SourceFile};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::str::FromStr;

/// A kernel with template arguments that no host code of the project names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The kernel, with its namespaces or without.
    pub kernel: String,
    /// Its template arguments, as C++ text.
    pub template: Vec<String>,
}

impl FromStr for Instance {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        let wrong = || PortError::NoInstance(text.to_string());
        let tokens = lexer::tokens(text);
        let open = tokens.iter().position(|token| token.is(text, "<"));
        let name_end = open.map_or(text.len(), |open| tokens[open].start);
        let kernel = text[..name_end].trim().to_string();
        let mut template = Vec::new();
        if let Some(open) = open {
            let last = tokens
                .last()
                .filter(|last| last.is(text, ">"))
                .ok_or_else(wrong)?;
            let mut brackets = Vec::new();
            let mut from = tokens[open].end;
            for token in &tokens[open + 1..tokens.len() - 1] {
                match token.text(text) {
                    // In parentheses they compare.
                    "<" | ">" if brackets.last().is_some_and(|open| *open != "<") => {}
                    bracket @ ("<" | "(" | "{" | "[") => brackets.push(bracket),
                    ">" | ")" | "}" | "]" => {
                        brackets.pop().ok_or_else(wrong)?;
                    }
                    "," if brackets.is_empty() => {
                        template.push(text[from..token.start].trim().to_string());
                        from = token.end;
                    }
                    _ => {}
                }
            }
            let rest = text[from..last.start].trim();
            if !rest.is_empty() {
                template.push(rest.to_string());
            }
        }
        let named = kernel
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
        if kernel.is_empty() || !named || template.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Instance { kernel, template })
    }
}

impl Instance {
    /// Whether this is a name of the kernel, with its namespaces or without.
    fn names(&self, kernel: &str) -> bool {
        let before = kernel.strip_suffix(&self.kernel);
        before.is_some_and(|before| before.is_empty() || before.ends_with("::"))
    }

    /// Whether the file has the kernel.
    pub(super) fn is_of(&self, file: &SourceFile) -> bool {
        file.kernels.iter().any(|kernel| self.names(&kernel.name))
    }

    /// Whether the kernel with these arguments is meant.
    fn means(&self, kernel: &str, template: &[String]) -> bool {
        self.names(kernel) && (self.template.is_empty() || self.template == template)
    }
}

/// How a unit is made.
#[derive(Clone, Debug, Default)]
pub struct UnitOptions {
    /// The value of `__CUDA_ARCH__`: the one that the file was read for if not said.
    pub cuda_arch: Option<u32>,
    /// Macros of the command line, `NAME` or `NAME=VALUE`, after those of the build script.
    pub defines: Vec<String>,
    /// Folders for includes, relative to the project's root, after those of the build script.
    pub includes: Vec<String>,
    /// Instances to add to those of the host code.
    pub instances: Vec<Instance>,
    /// Only these get entries, if any are named; one without template arguments means all of its kernel.
    pub only: Vec<Instance>,
}

/// A unit, and what happened to its text.
#[derive(Clone, Debug)]
pub struct Ported {
    /// What `check` and the launchers take.
    pub unit: PortedUnit,
    /// Host functions and types that were taken out.
    pub host: Vec<String>,
    /// Changes of device code, as a unified diff; empty if its text is as it was.
    pub edits: String,
    /// What was left out and may be missed.
    pub problems: Vec<String>,
}

/// Makes the unit of a file of the project.
///
/// # Errors
/// A file that is not there or is outside of the project, headers that cannot be found or include each other without
/// end, and instances of kernels that the file does not have.
pub fn unit(project: &Project, file: &str, options: &UnitOptions) -> Result<Ported, PortError> {
    let source = project.files.iter().find(|source| source.path == file);
    let source = source.ok_or_else(|| PortError::NoFile(file.to_string()))?;
    let mut kernels = source.kernels.clone();
    for instance in &options.instances {
        let mut named = kernels
            .iter_mut()
            .filter(|kernel| instance.names(&kernel.name))
            .peekable();
        if named.peek().is_none() {
            return Err(PortError::NoInstance(instance.kernel.clone()));
        }
        for kernel in named {
            if !kernel.instances.contains(&instance.template) {
                kernel.instances.push(instance.template.clone());
            }
        }
    }
    if !options.only.is_empty() {
        for kernel in &mut kernels {
            let name = &kernel.name;
            let wanted = |template: &Vec<String>| {
                let mut only = options.only.iter();
                only.any(|only| only.means(name, template))
            };
            kernel.instances.retain(wanted);
        }
    }
    let build = BuildOptions::of(project);
    let folders = [build.includes, options.includes.clone()].concat();
    let mut flat = flatten::flatten(&project.root, &folders, file)?;
    let stripped = strip::strip(&flat.text);
    let rewritten = asm::rewrite(&stripped.text);
    let mut text = String::new();
    let arch = options.cuda_arch.unwrap_or(source.cuda_arch);
    let _ = writeln!(text, "#define PORT_CUDA_ARCH {arch}");
    text.push_str("#include \"port/cuda.h\"\n");
    for shim in &flat.shims {
        let _ = writeln!(text, "#include \"{shim}\"");
    }
    if rewritten.calls {
        text.push_str("#include \"port/ptx.h\"\n");
    }
    for define in build.defines.iter().chain(&options.defines) {
        let (name, value) = define.split_once('=').unwrap_or((define, "1"));
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str("PORT_BEGIN\n");
    text.push_str(&rewritten.text);
    let path = std::path::Path::new(file);
    let name = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or(file);
    let _ = writeln!(text, "#line 1 \"{name}.entries\"");
    let mut taken = BTreeSet::new();
    let kernels = entries::append(&mut text, &kernels, &mut taken);
    text.push_str("PORT_END\n");
    flat.problems.extend(rewritten.problems);
    if options.only.is_empty() {
        flat.problems.extend(instances_missing(source, &kernels));
    }
    let edits = if rewritten.text == stripped.text {
        String::new()
    } else {
        diffy::create_patch(&stripped.text, &rewritten.text).to_string()
    };
    Ok(Ported {
        unit: PortedUnit {
            name: name.to_string(),
            source: text,
            kernels,
        },
        host: stripped.host,
        edits,
        problems: flat.problems,
    })
}

/// Kernels that have no entry.
fn instances_missing<'a>(
    source: &'a SourceFile,
    entries: &'a [crate::model::PortedKernel],
) -> impl Iterator<Item = String> + 'a {
    let without = source
        .kernels
        .iter()
        .filter(|kernel| !entries.iter().any(|entry| entry.kernel == kernel.name));
    without.map(|kernel| {
        format!(
            "{}:{}: {} is launched nowhere with template arguments that are known; name them with --instance",
            kernel.place.file, kernel.place.line, kernel.name
        )
    })
}

/// What build scripts hand to the compiler.
#[derive(Default)]
struct BuildOptions {
    defines: Vec<String>,
    includes: Vec<String>,
}

impl BuildOptions {
    fn of(project: &Project) -> Self {
        let mut found = BuildOptions::default();
        for option in project.builds.iter().flat_map(|build| &build.options) {
            if let Some(define) = option.strip_prefix("-D").filter(|define| is_define(define)) {
                found.defines.push(define.to_string());
            } else if let Some(folder) = option.strip_prefix("-I").and_then(flatten::clean) {
                found.includes.push(folder);
            }
        }
        found
    }
}

/// Whether this is `NAME` or `NAME=VALUE` on one line.
fn is_define(define: &str) -> bool {
    let name = define.split('=').next().unwrap_or_default();
    let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    word && name.starts_with(|c: char| !c.is_ascii_digit()) && !define.contains(['\n', '\r'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_read() {
        let instance = |kernel: &str, template: &[&str]| Instance {
            kernel: kernel.into(),
            template: template
                .iter()
                .map(|argument| argument.to_string())
                .collect(),
        };
        assert_eq!("k".parse::<Instance>().ok(), Some(instance("k", &[])));
        assert_eq!(
            "ns::k<float, Op<int, 2>, (1 > 2)>".parse::<Instance>().ok(),
            Some(instance("ns::k", &["float", "Op<int, 2>", "(1 > 2)"]))
        );
        for wrong in ["", "<float>", "k<float", "k<,>", "k(1)", "k>"] {
            assert!(wrong.parse::<Instance>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn defines_are_words() {
        assert!(is_define("A") && is_define("A=1") && is_define("_A=b c"));
        assert!(
            !is_define("")
                && !is_define("1A")
                && !is_define("A(x)=x")
                && !is_define("A=1\n#include <x>")
        );
    }
}
