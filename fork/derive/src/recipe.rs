//! How one derived crate follows from the published one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;

use crate::edit::Edits;
use crate::error::{Error, Result};
use crate::mirror::{mirror, FileRules};
use crate::strip::without_rocm;
use crate::{macros, upstream};

/// One replacement in upstream's text.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// File relative to the crate, for example `src/storage.rs`.
    pub file: &'static str,
    /// Text looked for; must occur exactly `count` times.
    pub find: &'static str,
    /// Text put in its place.
    pub replace: &'static str,
    /// Number of occurrences.
    pub count: usize,
}

/// A fault of upstream that the derived crate does not have. It is mended before anything else, with the feature `rocm` or without.
#[derive(Debug, Clone, Copy)]
pub struct Fix {
    /// What is mended, in a few words; named when an edit does not match.
    pub name: &'static str,
    /// What upstream does wrong and what the derived crate does instead, for the crate's `FIXES.md`.
    pub reason: &'static str,
    /// How.
    pub edits: &'static [Edit],
}

/// A named departure from upstream's text where the rule does not suffice. Faults of upstream are mended by a [`Fix`].
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

/// How one derived crate follows from the published one.
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
    /// Faults of upstream that are mended.
    pub fixes: &'static [Fix],
    /// Named departures.
    pub exceptions: &'static [Exception],
    /// `(file, name)` of exported macros that the crate itself uses by absolute path.
    pub exported_macros: &'static [(&'static str, &'static str)],
}

impl Recipe {
    /// Runs the derivation from a build script: finds the crate, derives it into `OUT_DIR` and tells cargo what it depends on.
    /// Prints the error and exits with 1 if it fails.
    pub fn build(&self) {
        let var = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_default());
        let (out, package) = (var("OUT_DIR"), var("CARGO_MANIFEST_DIR"));
        println!("cargo:rerun-if-env-changed=CANDLE_UPSTREAM_DIR");
        for input in ["build.rs", "recipe.rs", "fixes.rs", "overlay"] {
            if package.join(input).exists() {
                println!("cargo:rerun-if-changed={}", package.join(input).display());
            }
        }
        let result = upstream::locate(self.name, self.version, &out).and_then(|dir| {
            self.derive(&dir, &package.join("overlay"), &out)?;
            let note = out.join("upstream-path");
            write_if_changed(&note, dir.display().to_string().as_bytes())
        });
        if let Err(error) = result {
            eprintln!("error: deriving {} {}: {error}", self.name, self.version);
            std::process::exit(1);
        }
    }

    /// Derives the crate in `upstream`, with our files from `overlay`, into `out/src` and `out/tests`.
    pub fn derive(&self, upstream: &Path, overlay: &Path, out: &Path) -> Result<()> {
        let mut written = BTreeSet::new();
        let mut leftovers = Vec::new();
        for folder in ["src", "tests"] {
            for path in files_below(&upstream.join(folder))? {
                let relative = relative_name(&path, upstream);
                let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
                let derived = match String::from_utf8(bytes) {
                    Ok(text) if relative.ends_with(".rs") && !self.is_untouched(&relative) => {
                        let text = self.apply_fixes(&relative, text)?;
                        self.derive_file(&relative, &text, &mut leftovers)?
                            .into_bytes()
                    }
                    // What belongs to another back end alone has no twins.
                    Ok(text) => self.apply_exceptions(&relative, text)?.into_bytes(),
                    Err(binary) => binary.into_bytes(),
                };
                written.insert(relative.clone());
                write_if_changed(&out.join(&relative), &derived)?;
            }
        }
        if !leftovers.is_empty() {
            return Err(Error::Leftover { places: leftovers });
        }
        self.check_names_exist(&written)?;
        if overlay.is_dir() {
            for path in files_below(overlay)? {
                let relative = format!("src/{}", relative_name(&path, overlay));
                let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
                write_if_changed(&out.join(&relative), &bytes)?;
                written.insert(relative);
            }
        }
        remove_stale(out, &written)
    }

    /// Files of `derived` that are not upstream's with the fixes applied once everything gated by `cfg(feature = "rocm")` is
    /// removed and the named departures are undone. Tests demand that there are none.
    pub fn differences(&self, upstream: &Path, derived: &Path) -> Result<Vec<String>> {
        let mut differing = Vec::new();
        for path in files_below(&upstream.join("src"))? {
            let name = relative_name(&path, upstream);
            let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::io(path));
            let original = self.apply_fixes(&name, read(&path)?)?;
            let mut text = read(&derived.join(&name))?;
            for exception in self.exceptions.iter().rev().filter(|e| e.file == name) {
                text = text.replace(exception.replace, exception.find);
            }
            for (_, exported) in self.exported_macros.iter().filter(|(f, _)| *f == name) {
                text = macros::undo_rename(&text, exported);
            }
            let same = text == original
                || match (without_rocm(&text), without_rocm(&original)) {
                    (Ok(text), Ok(original)) => text == original,
                    _ => false,
                };
            if !same {
                differing.push(name);
            }
        }
        Ok(differing)
    }

    /// The list of mended faults, as the crate's `FIXES.md` holds it.
    pub fn fixes_page(&self) -> String {
        let mut page = format!(
            "# Faults of {} {} that are mended here\n\n\
             With the feature `rocm` or without. Written by the derivation from `fixes.rs`; `tests/fork.rs` compares it.\n",
            self.name, self.version
        );
        for fix in self.fixes {
            let mut files: Vec<_> = fix.edits.iter().map(|e| format!("`{}`", e.file)).collect();
            files.dedup();
            page.push_str(&format!(
                "\n## {}\n\n{}\n\nIn {}.\n",
                fix.name,
                fix.reason,
                files.join(", ")
            ));
        }
        page
    }

    fn is_untouched(&self, file: &str) -> bool {
        self.untouched.iter().any(|prefix| file.starts_with(prefix))
    }

    fn derive_file(
        &self,
        name: &str,
        text: &str,
        leftovers: &mut Vec<(String, usize, String)>,
    ) -> Result<String> {
        let parse_error = |line: usize, message: String| Error::Parse {
            file: name.into(),
            line,
            message,
        };
        let file =
            syn::parse_file(text).map_err(|e| parse_error(e.span().start().line, e.to_string()))?;
        let tokens = text.parse().map_err(|e: proc_macro2::LexError| {
            parse_error(e.span().start().line, e.to_string())
        })?;
        let is_test = name.starts_with("tests/");
        let rules = FileRules {
            arm_bodies: lookup(self.arm_bodies, name),
            without_twin: lookup(self.without_twin, name),
        };
        let mirrored = mirror(text, &file, tokens, rules);
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
        self.apply_exceptions(name, edits.apply(text))
    }

    fn apply_fixes(&self, file: &str, mut text: String) -> Result<String> {
        for fix in self.fixes {
            for edit in fix.edits.iter().filter(|e| e.file == file) {
                let found = text.matches(edit.find).count();
                self.expect(file, fix.name, found, edit.count)?;
                text = text.replace(edit.find, edit.replace);
            }
        }
        Ok(text)
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
        let fixed = self.fixes.iter().flat_map(|f| f.edits).map(|e| e.file);
        let named = fixed
            .chain(self.exceptions.iter().map(|e| e.file))
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

fn relative_name(path: &Path, base: &Path) -> String {
    let relative = path.strip_prefix(base).unwrap_or(path);
    let parts: Vec<_> = relative.iter().map(|p| p.to_string_lossy()).collect();
    parts.join("/")
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !dir.is_dir() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Leaves the file's time stamp alone if nothing changed, so that nothing is rebuilt for nothing.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
    std::fs::write(path, bytes).map_err(Error::io(path))
}

fn remove_stale(out: &Path, keep: &BTreeSet<String>) -> Result<()> {
    for folder in ["src", "tests"] {
        for path in files_below(&out.join(folder))? {
            if !keep.contains(&relative_name(&path, out)) {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
            }
        }
    }
    Ok(())
}
