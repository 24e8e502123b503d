//! Reading the files of a project, each for the architecture that suits it.

use super::preprocess::Preprocessor;
use super::{parse, prepare, tree, Options, Parsed, Text};
use crate::model::{BuildScript, Project, SourceFile};
use crate::source::{Error, Sources};
use std::collections::BTreeSet;

/// The architecture that is tried for files with matrix instructions: the first with `__dp4a`, and before any of those.
pub const PLAIN_ARCH: u32 = 610;

/// Instructions that need NVIDIA's matrix units, by a part of their names.
const MATRIX: &[&str] = &["mma.", "ldmatrix", "movmatrix", "wgmma", "tcgen05"];

/// Reads the files of a project.
///
/// # Errors
/// If a file cannot be read, or there is no room for the stand-ins of headers.
pub fn project(sources: &Sources, options: &Options) -> Result<Project, Error> {
    let mut files = Vec::new();
    let project = each(sources, options, |parsed| files.push(parsed.file))?;
    Ok(Project { files, ..project })
}

/// Reads the files of a project, one after the other, and hands each on with its tree; the answer has no files.
pub(crate) fn each(
    sources: &Sources,
    options: &Options,
    mut take: impl FnMut(Parsed),
) -> Result<Project, Error> {
    let mut project = Project {
        root: sources.root.clone(),
        package: sources.package.clone(),
        files: Vec::new(),
        builds: sources.builds(),
        rust: sources.rust_uses(),
    };
    let reader = Reader::new(sources, &project.builds, options)?;
    let mut included: BTreeSet<String> = BTreeSet::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    let headers = sources.headers.iter().map(|name| (name, true));
    let cuda = sources.cuda.iter().map(|name| (name, false));
    for (name, is_header) in cuda.chain(headers) {
        // Kernels in headers that no file includes, such as sources that another tool compiles.
        let has_kernels = |text: String| prepare::count_kernels(&text) > 0;
        if is_header
            && (sources.single
                || included.contains(name)
                || !sources.read(name).is_ok_and(has_kernels))
        {
            continue;
        }
        let parsed = reader.file(name)?;
        let files = parsed.file.includes.iter();
        included.extend(files.filter_map(|include| include.file.clone()));
        let definitions = parsed.definitions.iter();
        names.extend(definitions.map(|definition| definition.name.clone()));
        take(parsed);
    }
    // Of the foreign functions, those that CUDA defines.
    project
        .rust
        .retain(|found| match found.what.strip_prefix("extern fn ") {
            Some(function) => names.contains(function),
            None => true,
        });
    Ok(project)
}

/// Reads one file.
///
/// # Errors
/// If it cannot be read.
pub fn file(sources: &Sources, name: &str, options: &Options) -> Result<SourceFile, Error> {
    let reader = Reader::new(sources, &sources.builds(), options)?;
    Ok(reader.file(name)?.file)
}

/// The preprocessed text of a file, as it is when it is read for [`SourceFile::cuda_arch`].
///
/// # Errors
/// If it cannot be read.
pub(crate) fn text(sources: &Sources, options: &Options, name: &str) -> Result<Text, Error> {
    let reader = Reader::new(sources, &sources.builds(), options)?;
    Ok(reader.file(name)?.text)
}

/// Reads files of a project with the same options.
struct Reader<'a> {
    sources: &'a Sources,
    options: &'a Options,
    preprocessor: Preprocessor,
}

impl<'a> Reader<'a> {
    fn new(
        sources: &'a Sources,
        builds: &[BuildScript],
        options: &'a Options,
    ) -> Result<Self, Error> {
        let preprocessor =
            Preprocessor::new(sources, builds, options).map_err(|error| Error::Io {
                path: std::env::temp_dir(),
                error,
            })?;
        Ok(Self {
            sources,
            options,
            preprocessor,
        })
    }

    fn at(&self, name: &str, arch: u32) -> Result<Parsed, Error> {
        let mut parsed = parse(self.preprocessor.file(self.sources, name, arch)?, name);
        parsed.file.cuda_arch = arch;
        Ok(parsed)
    }

    fn file(&self, name: &str) -> Result<Parsed, Error> {
        let mut said = self.options.cuda_arch_of.iter();
        if let Some((_, arch)) = said.find(|(pattern, _)| fits(pattern, name)) {
            return self.at(name, *arch);
        }
        let arch = self.options.cuda_arch;
        let parsed = self.at(name, arch)?;
        let matrix = parsed.kernels_with_matrix();
        if !self.options.avoid_matrix || arch <= PLAIN_ARCH || matrix.is_empty() {
            return Ok(parsed);
        }
        let plain = self.at(name, PLAIN_ARCH)?;
        // Kernels that only say that they need a newer GPU are no way around matrix instructions.
        let same = matrix.iter().all(|index| {
            let (name, size) = parsed.size(*index);
            let mut kernels = plain.kernels.iter().map(|index| plain.size(*index));
            kernels.any(|(plain, left)| plain == name && left * 3 > size)
        });
        if !same || !plain.kernels_with_matrix().is_empty() {
            return Ok(parsed);
        }
        Ok(plain)
    }
}

/// Whether a path fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, path: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else {
        return pattern == path;
    };
    let Some(mut left) = path
        .strip_prefix(first)
        .and_then(|rest| rest.strip_suffix(last))
    else {
        return false;
    };
    for part in middle {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    true
}

impl Parsed {
    /// Kernels that reach an `asm` with a matrix instruction of NVIDIA, by definition.
    fn kernels_with_matrix(&self) -> Vec<usize> {
        let mut with: BTreeSet<usize> = BTreeSet::new();
        tree::walk(self.tree.root_node(), |node| {
            let code = tree::text(node, &self.source);
            if node.kind() == "gnu_asm_expression" && MATRIX.iter().any(|name| code.contains(name))
            {
                let at = node.start_byte();
                let around = |index: &usize| self.definitions[*index].range.contains(&at);
                with.extend((0..self.definitions.len()).filter(around));
            }
            true
        });
        let reached =
            |index: &usize| with.contains(index) || !self.reaches[*index].is_disjoint(&with);
        self.kernels.iter().copied().filter(reached).collect()
    }

    /// A definition's name, and the bytes of it and of all that it reaches.
    fn size(&self, index: usize) -> (&str, usize) {
        let reached = self.reaches[index].iter();
        let bytes: usize = reached
            .map(|reached| self.definitions[*reached].range.len())
            .sum();
        let own = &self.definitions[index];
        (&own.name, own.range.len() + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_of_paths() {
        for (pattern, path, expected) in [
            ("src/a.cu", "src/a.cu", true),
            ("src/*", "src/a/b.cu", true),
            ("*mmq*.cu", "src/mmq_1.cu", true),
            ("*.cu", "a.cuh", false),
            ("a*a", "a", false),
            ("b*", "ab", false),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }
}
