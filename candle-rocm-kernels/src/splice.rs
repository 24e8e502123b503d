//! Splicing local headers into a source, so that a compiler sees one text and searches no directory.

use std::collections::BTreeSet;

/// Why a source could not be made into one translation unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpliceError {
    /// A quoted include names a file that this crate does not have.
    #[error(
        "{file}:{line}: there is no local header {include:?}; kernels may include \"device.h\" and this crate's own headers only"
    )]
    UnknownHeader {
        /// The file that includes.
        file: String,
        /// The line of the include, from 1.
        line: usize,
        /// The name in quotes.
        include: String,
    },
}

/// Replaces each `#include "…"` line by the header's text, every header once, and leaves `#line`
/// directives so that diagnostics name the file that a developer edits.
///
/// An include is looked up beside the including file first, then at the root. `header` maps a path
/// relative to the root to its text.
pub fn splice<'a>(
    file: &str,
    source: &str,
    header: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<String, SpliceError> {
    let mut unit = String::with_capacity(source.len() * 2);
    splice_into(&mut unit, &mut BTreeSet::new(), file, source, header)?;
    Ok(unit)
}

fn splice_into<'a>(
    unit: &mut String,
    seen: &mut BTreeSet<String>,
    file: &str,
    source: &str,
    header: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<(), SpliceError> {
    use std::fmt::Write;

    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    // Writing to a String cannot fail.
    let _ = writeln!(unit, "#line 1 \"{file}\"");
    for (index, line) in source.lines().enumerate() {
        let Some(include) = local_include(line) else {
            // A header's own guard means nothing, and warns, once it is part of the main file.
            if line.trim() != "#pragma once" {
                unit.push_str(line);
            }
            unit.push('\n');
            continue;
        };
        let beside = if directory.is_empty() {
            include.to_string()
        } else {
            format!("{directory}/{include}")
        };
        let found = [beside.as_str(), include]
            .into_iter()
            .find_map(|path| Some((path.to_string(), header(path)?)));
        let Some((path, text)) = found else {
            return Err(SpliceError::UnknownHeader {
                file: file.to_string(),
                line: index + 1,
                include: include.to_string(),
            });
        };
        if seen.insert(path.clone()) {
            splice_into(unit, seen, &path, text, header)?;
        }
        let _ = writeln!(unit, "#line {} \"{file}\"", index + 2);
    }
    Ok(())
}

/// The name in quotes, if the line is a local include.
fn local_include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?
        .split_once('"')
        .map(|(name, _)| name)
}
