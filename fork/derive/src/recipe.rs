//! How one derived crate follows from the published one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;

use crate::edit::Edits;
use crate::error::{Error, Result};
use crate::files::{files_below, relative_name, remove_stale, write_if_changed};
use crate::mirror::{mirror, FileRules};
use crate::patch::Series;
use crate::{macros, upstream};

/// A named departure from upstream's text that no patch file can hold, because its text is put together from a table.
#[derive(Debug, Clone, Copy)]
pub struct Exception {
    /// File relative to the crate, for example `src/storage.rs`.
    pub file: &'static str,
    /// Why it is needed, in a few words; named when it does not match.
    pub name: &'static str,
    /// Text looked for; must occur exactly `count` times.
    pub find: &'static str,
    /// Text put in its place.
    pub replace: &'static str,
    /// Number of occurrences.
    pub count: usize,
}

/// How one derived crate follows from the published one, but for the files of its package: `patches/`, `departures/`
/// and `overlay/`.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Package name.
    pub name: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// Files and folders (by prefix) that belong to Metal or CUDA alone and are copied as they are.
    pub untouched: &'static [&'static str],
    /// Per file: identifiers that mention Metal and rightly have no twin.
    pub without_twin: &'static [(&'static str, &'static [&'static str])],
    /// Per file: bodies for arms under `cfg(feature = "metal")`.
    pub arm_bodies: &'static [(&'static str, &'static [&'static str])],
    /// Named departures that are put together from a table, after those of `departures/`.
    pub exceptions: &'static [Exception],
    /// `(file, name)` of exported macros that the crate itself uses by absolute path.
    pub exported_macros: &'static [(&'static str, &'static str)],
}

/// The two places where patch files are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// `patches/`, on upstream's text: what upstream could take, too.
    Upstream,
    /// `departures/`, on what the rule has made of that: what only this fork needs.
    Rule,
}

impl Stage {
    /// Both, in the order in which they are applied.
    pub const ALL: [Self; 2] = [Self::Upstream, Self::Rule];

    /// The folder of the patch files in a package.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Upstream => "patches",
            Self::Rule => "departures",
        }
    }

    /// The patch files of `package`.
    ///
    /// # Errors
    /// As for [`Series::read`].
    pub fn series(self, package: &Path) -> Result<Series> {
        Series::read(&package.join(self.folder()))
    }
}

impl Recipe {
    /// Runs the derivation from a build script: finds the crate, derives it into `OUT_DIR` and tells cargo what it
    /// depends on. Prints the error and exits with 1 if it fails.
    pub fn build(&self) {
        let var = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_default());
        let (out, package) = (var("OUT_DIR"), var("CARGO_MANIFEST_DIR"));
        println!("cargo:rerun-if-env-changed=CANDLE_UPSTREAM_DIR");
        for input in ["build.rs", "recipe.rs", "patches", "departures", "overlay"] {
            if package.join(input).exists() {
                println!("cargo:rerun-if-changed={}", package.join(input).display());
            }
        }
        let result = upstream::locate(self.name, self.version, &out).and_then(|dir| {
            self.derive(&dir, &package, &out)?;
            let note = out.join("upstream-path");
            write_if_changed(&note, dir.display().to_string().as_bytes())
        });
        if let Err(error) = result {
            eprintln!("error: deriving {} {}: {error}", self.name, self.version);
            std::process::exit(1);
        }
    }

    /// Derives the crate in `upstream`, with the patches, departures and overlay of `package`, into `out/src` and
    /// `out/tests`.
    ///
    /// # Errors
    /// Any of [`Error`]'s: a rule, patch or departure that does not match, a leftover, a file that cannot be read or
    /// written.
    pub fn derive(&self, upstream: &Path, package: &Path, out: &Path) -> Result<()> {
        let patches = Stage::Upstream.series(package)?;
        let departures = Stage::Rule.series(package)?;
        let mut written = BTreeSet::new();
        let mut leftovers = Vec::new();
        for (name, bytes) in sources(upstream)? {
            let derived = match String::from_utf8(bytes) {
                Ok(text) => {
                    let text =
                        self.after_rule(&name, patches.apply(&name, text)?, &mut leftovers)?;
                    let text = departures.apply(&name, text)?;
                    self.apply_exceptions(&name, text)?.into_bytes()
                }
                Err(binary) => binary.into_bytes(),
            };
            write_if_changed(&out.join(&name), &derived)?;
            written.insert(name);
        }
        if !leftovers.is_empty() {
            return Err(Error::Leftover { places: leftovers });
        }
        self.check_names_exist(&written)?;
        for patch in patches.patches.iter().chain(&departures.patches) {
            if let Some(file) = patch.files().find(|file| !written.contains(*file)) {
                let message = format!("{} {} has no file {file}", self.name, self.version);
                return Err(Error::patch(&patch.path, &message));
            }
        }
        let overlay = package.join("overlay");
        for path in files_below(&overlay)? {
            let relative = format!("src/{}", relative_name(&path, &overlay));
            let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
            write_if_changed(&out.join(&relative), &bytes)?;
            written.insert(relative);
        }
        remove_stale(out, &written)
    }

    /// The text files of the crate in `upstream` as the first patch of `stage` finds them.
    ///
    /// # Errors
    /// As for [`Self::derive`].
    pub fn texts_at(
        &self,
        stage: Stage,
        upstream: &Path,
        package: &Path,
    ) -> Result<BTreeMap<String, String>> {
        let patches = Stage::Upstream.series(package)?;
        let mut leftovers = Vec::new();
        let mut texts = BTreeMap::new();
        for (name, bytes) in sources(upstream)? {
            let Ok(text) = String::from_utf8(bytes) else {
                continue;
            };
            let text = match stage {
                Stage::Upstream => text,
                Stage::Rule => {
                    self.after_rule(&name, patches.apply(&name, text)?, &mut leftovers)?
                }
            };
            texts.insert(name, text);
        }
        match leftovers.is_empty() {
            true => Ok(texts),
            false => Err(Error::Leftover { places: leftovers }),
        }
    }

    /// What belongs to another back end alone, or is no Rust, has no twins.
    fn is_untouched(&self, file: &str) -> bool {
        !file.ends_with(".rs") || self.untouched.iter().any(|prefix| file.starts_with(prefix))
    }

    /// The text of a file with its twins, as something that can be included.
    fn after_rule(
        &self,
        name: &str,
        text: String,
        leftovers: &mut Vec<(String, usize, String)>,
    ) -> Result<String> {
        if self.is_untouched(name) {
            return Ok(text);
        }
        let parse_error = |line: usize, message: String| Error::Parse {
            file: name.into(),
            line,
            message,
        };
        let file = syn::parse_file(&text)
            .map_err(|e| parse_error(e.span().start().line, e.to_string()))?;
        let tokens = text.parse().map_err(|e: proc_macro2::LexError| {
            parse_error(e.span().start().line, e.to_string())
        })?;
        let is_test = name.starts_with("tests/");
        let rules = FileRules {
            arm_bodies: lookup(self.arm_bodies, name),
            without_twin: lookup(self.without_twin, name),
        };
        let mirrored = mirror(&text, &file, tokens, rules);
        // Tests speak of Metal in conditions and comments; only what they declare needs a twin.
        if !is_test {
            for line in mirrored.leftovers {
                let source = text.lines().nth(line - 1).unwrap_or_default();
                leftovers.push((name.into(), line, source.into()));
            }
        }
        for (ident, hits) in rules.without_twin.iter().zip(&mirrored.without_twin_hits) {
            self.expect(
                name,
                &format!("`{ident}` (without_twin)"),
                *hits,
                (*hits).max(1),
            )?;
        }
        let bodies = rules.arm_bodies.len();
        self.expect(name, "arm_bodies", mirrored.arm_bodies_used, bodies)?;

        let mut edits = mirrored.edits;
        for (_, macro_name) in self.exported_macros.iter().filter(|(f, _)| *f == name) {
            let found = macros::rename_exported(&file, macro_name, &mut edits);
            self.expect(name, &format!("exported macro {macro_name}"), found, 1)?;
        }
        if is_test {
            strip_inner_attributes(&file, &mut edits);
            point_at_derived_data(&file, &mut edits);
        } else if name == "src/lib.rs" {
            strip_inner_attributes(&file, &mut edits);
        }
        if mirrored.delegates {
            edits.insert(text.len(), "\n#[cfg(feature = \"rocm\")]\nmod rocm;\n");
        }
        Ok(edits.apply(&text))
    }

    fn apply_exceptions(&self, file: &str, mut text: String) -> Result<String> {
        for exception in self.exceptions.iter().filter(|e| e.file == file) {
            let found = text.matches(exception.find).count();
            self.expect(file, exception.name, found, exception.count)?;
            text = text.replace(exception.find, exception.replace);
        }
        Ok(text)
    }

    /// A recipe that speaks of a file which no longer exists has matched nothing.
    fn check_names_exist(&self, files: &BTreeSet<String>) -> Result<()> {
        let excepted = self.exceptions.iter().map(|e| e.file);
        let named = excepted
            .chain(self.without_twin.iter().map(|(f, _)| *f))
            .chain(self.arm_bodies.iter().map(|(f, _)| *f))
            .chain(self.exported_macros.iter().map(|(f, _)| *f));
        for name in named {
            self.expect(name, "the file", usize::from(files.contains(name)), 1)?;
        }
        for prefix in self.untouched {
            let found = files.iter().filter(|f| f.starts_with(prefix)).count();
            self.expect(prefix, "untouched", found, found.max(1))?;
        }
        Ok(())
    }

    fn expect(&self, file: &str, rule: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::Unmatched {
            file: file.into(),
            rule: rule.into(),
            found,
            expected,
            recipe: format!("fork/{}/recipe.rs", self.name),
        })
    }
}

/// The published files that are derived, by their name relative to the crate.
fn sources(upstream: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut sources = Vec::new();
    for folder in ["src", "tests"] {
        for path in files_below(&upstream.join(folder))? {
            let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
            sources.push((relative_name(&path, upstream), bytes));
        }
    }
    Ok(sources)
}

fn lookup(
    table: &'static [(&'static str, &'static [&'static str])],
    file: &str,
) -> &'static [&'static str] {
    table
        .iter()
        .find(|(f, _)| *f == file)
        .map_or(&[], |(_, v)| v)
}

/// An included file may carry neither inner attributes nor inner docs.
fn strip_inner_attributes(file: &syn::File, edits: &mut Edits) {
    for attr in &file.attrs {
        edits.replace(attr.span().byte_range(), "");
    }
}

/// Tests name their data relative to the package; point them at the derived copy.
fn point_at_derived_data(file: &syn::File, edits: &mut Edits) {
    struct Literals<'a>(&'a mut Edits);
    impl syn::visit::Visit<'_> for Literals<'_> {
        fn visit_lit_str(&mut self, lit: &syn::LitStr) {
            if lit.value().starts_with("tests/") {
                let path = format!("concat!(env!(\"OUT_DIR\"), \"/{}\")", lit.value());
                self.0.replace(lit.span().byte_range(), path);
            }
        }
    }
    syn::visit::Visit::visit_file(&mut Literals(edits), file);
}
