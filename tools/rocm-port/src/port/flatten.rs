//! One text of a `.cu` file: its local headers in the places of their includes, system headers mapped.

use super::headers::{self, System};
use super::lexer::{directive, tokens, Kind, Token};
use super::PortError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Includes inside of includes.
const MAX_DEPTH: usize = 64;
/// Bytes of one file, and of the whole text.
const MAX_FILE: u64 = 16 << 20;
const MAX_TEXT: usize = 64 << 20;

/// A flattened file.
#[derive(Debug)]
pub(crate) struct Flat {
    /// With `#line` before and after each header.
    pub text: String,
    /// Headers of candle-rocm-kernels that the unit needs besides `port/cuda.h`.
    pub shims: BTreeSet<&'static str>,
    /// What was left out and may be missed.
    pub problems: Vec<String>,
}

/// Flattens `file`, a path relative to `root` with `/`. `folders` are relative, too: where a build script tells the
/// compiler to look.
///
/// A header of the project that is not there, a cycle without a guard, and files that are too large are errors.
pub(crate) fn flatten(root: &Path, folders: &[String], file: &str) -> Result<Flat, PortError> {
    let canonical = fs::canonicalize(root).map_err(|error| PortError::Read {
        path: root.to_path_buf(),
        error,
    })?;
    let mut state = State {
        root: canonical,
        folders,
        read: BTreeMap::new(),
        done: BTreeSet::new(),
        open: Vec::new(),
        flat: Flat {
            text: String::new(),
            shims: BTreeSet::new(),
            problems: Vec::new(),
        },
    };
    let file = clean(file).ok_or_else(|| PortError::Outside(file.to_string()))?;
    let text = state.text(&file)?;
    state.splice(&file, &text, 0)?;
    Ok(state.flat)
}

struct State<'a> {
    root: PathBuf,
    folders: &'a [String],
    read: BTreeMap<String, String>,
    /// Files that stand in the text under no condition, and need not come again.
    done: BTreeSet<String>,
    open: Vec<String>,
    flat: Flat,
}

impl State<'_> {
    /// The text of a file of the project, read once.
    fn text(&mut self, file: &str) -> Result<String, PortError> {
        if let Some(text) = self.read.get(file) {
            return Ok(text.clone());
        }
        let path = self.root.join(file);
        let failed = |error| PortError::Read {
            path: path.clone(),
            error,
        };
        let real = fs::canonicalize(&path).map_err(failed)?;
        if !real.starts_with(&self.root) {
            return Err(PortError::Outside(file.to_string()));
        }
        let opened = fs::File::open(&real).map_err(failed)?;
        if !opened.metadata().map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("this is not a file")));
        }
        let mut bytes = Vec::new();
        opened
            .take(MAX_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(PortError::TooLarge(file.to_string()));
        }
        let text = String::from_utf8(bytes).unwrap_or_else(|error| {
            let problem = format!("{file}: what is not UTF-8 in it was replaced");
            self.flat.problems.push(problem);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        });
        // A byte order mark is no token of C++, and a zero byte ends a source that is handed to hiprtc.
        let text = text.trim_start_matches('\u{feff}').replace('\0', " ");
        self.read.insert(file.to_string(), text.clone());
        Ok(text)
    }

    fn splice(&mut self, file: &str, text: &str, outer: usize) -> Result<(), PortError> {
        let tokens = tokens(text);
        let guard = guard(text, &tokens);
        let once = tokens.iter().any(|token| is_once(text, token));
        self.open.push(file.to_string());
        let _ = writeln!(self.flat.text, "#line 1 \"{file}\"");
        let (mut at, mut depth) = (0, 0usize);
        for (index, token) in tokens.iter().enumerate() {
            if token.kind != Kind::Directive {
                continue;
            }
            let (name, rest) = directive(token.text(text));
            match name {
                "if" | "ifdef" | "ifndef" if Some(index) != guard => depth += 1,
                "endif" => depth = depth.saturating_sub(1),
                "pragma" if rest == "once" => {
                    self.flat.text.push_str(&text[at..token.start]);
                    at = token.end;
                }
                "include" | "include_next" => {
                    self.flat.text.push_str(&text[at..token.start]);
                    at = token.end;
                    let line = text[..token.start].matches('\n').count() + 1;
                    let lines = text[token.range()].matches('\n').count() + 1;
                    let before = self.flat.text.len();
                    self.include(file, line, rest, outer + depth)?;
                    if self.flat.text.len() > before {
                        // The newline after the directive ends this line, too.
                        let _ = write!(self.flat.text, "#line {} \"{file}\"", line + lines);
                    } else {
                        self.flat.text.push_str(&"\n".repeat(lines - 1));
                    }
                }
                _ => {}
            }
            if self.flat.text.len() > MAX_TEXT {
                return Err(PortError::TooLarge(file.to_string()));
            }
        }
        self.flat.text.push_str(&text[at..]);
        if !self.flat.text.ends_with('\n') {
            self.flat.text.push('\n');
        }
        self.open.pop();
        if outer == 0 && (once || guard.is_some()) {
            self.done.insert(file.to_string());
        }
        Ok(())
    }

    /// Puts what an include means into the text, with a newline at the end if it is anything.
    fn include(
        &mut self,
        file: &str,
        line: usize,
        what: &str,
        depth: usize,
    ) -> Result<(), PortError> {
        let place = format!("{file}:{line}");
        let quoted = what.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let angled = what.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let Some((name, _)) = quoted.or(angled) else {
            let problem = format!("{place}: #include {what} is made by a macro and was left out");
            self.flat.problems.push(problem);
            return Ok(());
        };
        if let Some(found) = self.find(file, name, quoted.is_some()) {
            return self.header(&place, &found, depth);
        }
        match headers::system(name) {
            Some(System::Nothing) => {}
            Some(System::Shim(header)) => {
                self.flat.shims.insert(header);
            }
            Some(System::Missing(library)) => {
                let problem = format!("{place}: {name} is of {library}, which has no shim; what uses it is to be done by hand");
                self.flat.problems.push(problem);
            }
            // Under a condition it may be for another compiler, which only the compiler can tell.
            None if depth > 0 => {
                let _ = writeln!(
                    self.flat.text,
                    "#error \"{place}: {name} is not in the project\""
                );
            }
            None => {
                return Err(PortError::NoHeader {
                    place,
                    name: name.to_string(),
                })
            }
        }
        Ok(())
    }

    fn header(&mut self, place: &str, file: &str, depth: usize) -> Result<(), PortError> {
        if self.done.contains(file) {
            return Ok(());
        }
        let text = self.text(file)?;
        let tokens = tokens(&text);
        let guarded = guard(&text, &tokens).is_some();
        let once = tokens.iter().any(|token| is_once(&text, token));
        if self.open.iter().any(|open| open == file) {
            // The compiler would skip it, as it has begun.
            if guarded || once {
                return Ok(());
            }
            return Err(PortError::Cycle {
                place: place.to_string(),
                name: file.to_string(),
            });
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(PortError::TooDeep(place.to_string()));
        }
        // Under a condition it may come again, so that a guard of ours must do what `#pragma once` did.
        let own_guard = once && !guarded && depth > 0;
        let word: String = file
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        if own_guard {
            let _ = write!(
                self.flat.text,
                "#ifndef PORT_ONCE_{word}\n#define PORT_ONCE_{word}\n"
            );
        }
        self.splice(file, &text, depth)?;
        if own_guard {
            self.flat.text.push_str("#endif\n");
        }
        Ok(())
    }

    /// The file of the project that an include means: beside the including file, in a folder of the build script, at
    /// the root.
    fn find(&self, file: &str, name: &str, quoted: bool) -> Option<String> {
        let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let beside = quoted.then_some(beside);
        let folders = self.folders.iter().map(String::as_str);
        let root = quoted.then_some("");
        beside
            .into_iter()
            .chain(folders)
            .chain(root)
            .filter_map(|folder| clean(&format!("{folder}/{name}")))
            .find(|path| self.root.join(path).is_file())
    }
}

/// A relative path without `.` and `..`; none if it leads out of its root.
pub(crate) fn clean(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in Path::new(path.trim_start_matches('/')).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

fn is_once(text: &str, token: &Token) -> bool {
    token.kind == Kind::Directive && directive(token.text(text)) == ("pragma", "once")
}

/// The index of the `#ifndef` that guards the whole file, if there is one.
fn guard(text: &str, tokens: &[Token]) -> Option<usize> {
    let named = |index: usize| {
        let token = tokens.get(index)?;
        (token.kind == Kind::Directive).then(|| directive(token.text(text)))
    };
    let first = usize::from(named(0) == Some(("pragma", "once")));
    let (open, name) = named(first)?;
    let word = |text: &str| text.split_whitespace().next().map(str::to_string);
    let (define, what) = named(first + 1)?;
    if open != "ifndef" || define != "define" || word(name) != word(what) {
        return None;
    }
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(first) {
        if token.kind != Kind::Directive {
            continue;
        }
        match directive(token.text(text)).0 {
            "if" | "ifdef" | "ifndef" => depth += 1,
            "endif" => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return (index + 1 == tokens.len()).then_some(first);
                }
            }
            "else" | "elif" if depth == 1 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        folder
    }

    fn flat(files: &[(&str, &str)], folders: &[&str]) -> Result<Flat, PortError> {
        let folders: Vec<String> = folders.iter().map(|folder| folder.to_string()).collect();
        flatten(project(files).path(), &folders, "k/a.cu")
    }

    #[test]
    fn headers_stand_where_they_were_included() {
        let files = [
            ("k/a.cu", "#include <cub/cub.cuh>\n#include \"b.h\"\n#include \"b.h\"\n#include <d.h>\nint a;\n"),
            ("k/b.h", "#pragma once\n#include \"../c.h\"\nint b;"),
            ("c.h", "int c;\n"),
            ("inc/d.h", "int d;\n"),
        ];
        let flat = flat(&files, &["inc"]).expect("it is flat");
        assert_eq!(
            flat.text,
            "#line 1 \"k/a.cu\"\n\n#line 1 \"k/b.h\"\n\n#line 1 \"c.h\"\nint c;\n#line 3 \"k/b.h\"\nint b;\n\
             #line 3 \"k/a.cu\"\n\n#line 1 \"inc/d.h\"\nint d;\n#line 5 \"k/a.cu\"\nint a;\n"
        );
        assert_eq!(flat.shims.into_iter().collect::<Vec<_>>(), ["port/cub.h"]);
    }

    #[test]
    fn lists_come_as_often_as_they_are_included() {
        let files = [
            ("k/a.cu", "#include \"x.h\"\n#include \"x.h\"\n"),
            ("k/x.h", "X(1)\n"),
        ];
        assert_eq!(
            flat(&files, &[])
                .expect("it is flat")
                .text
                .matches("X(1)")
                .count(),
            2
        );
    }

    #[test]
    fn a_header_under_a_condition_may_come_again() {
        let files = [
            (
                "k/a.cu",
                "#ifdef A\n#include \"b.h\"\n#endif\n#include \"b.h\"\n",
            ),
            ("k/b.h", "#pragma once\nint b;\n"),
        ];
        let text = flat(&files, &[]).expect("it is flat").text;
        assert_eq!(text.matches("int b;").count(), 2);
        assert_eq!(text.matches("#ifndef PORT_ONCE_k_b_h").count(), 1);
        let files = [
            ("k/a.cu", "#include \"b.h\"\n#include \"b.h\"\n"),
            (
                "k/b.h",
                "#ifndef B\n#define B\n#include \"c.h\"\n#endif // B\n",
            ),
            ("k/c.h", "#pragma once\nint c;\n"),
        ];
        assert_eq!(
            flat(&files, &[])
                .expect("it is flat")
                .text
                .matches("int c;")
                .count(),
            1
        );
    }

    #[test]
    fn what_is_missing_or_endless_is_an_error() {
        let no_header = flat(&[("k/a.cu", "\n#include \"no.h\"\n")], &[]);
        assert!(matches!(no_header, Err(PortError::NoHeader { place, .. }) if place == "k/a.cu:2"));
        let conditional = flat(&[("k/a.cu", "#if A\n#include \"no.h\"\n#endif\n")], &[]);
        assert!(conditional
            .expect("only the compiler knows")
            .text
            .contains("#error"));
        let cycle = flat(&[("k/a.cu", "#include \"a.cu\"\n")], &[]);
        assert!(matches!(cycle, Err(PortError::Cycle { .. })));
        let guarded = [
            ("k/a.cu", "#include \"b.h\"\n"),
            ("k/b.h", "#pragma once\n#include \"b.h\"\n"),
        ];
        assert!(flat(&guarded, &[]).is_ok());
        let out = flat(&[("k/a.cu", "#include \"../../etc/passwd\"\n")], &[]);
        assert!(matches!(out, Err(PortError::NoHeader { .. })));
        let library = flat(&[("k/a.cu", "#include <cutlass/a.h>\n")], &[]).expect("a problem only");
        assert_eq!(library.problems.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_do_not_lead_out() {
        let secret = project(&[("secret.h", "int secret;\n")]);
        let folder = project(&[("k/a.cu", "#include \"b.h\"\n")]);
        std::os::unix::fs::symlink(secret.path().join("secret.h"), folder.path().join("k/b.h"))
            .expect("a link");
        let result = flatten(folder.path(), &[], "k/a.cu");
        assert!(matches!(result, Err(PortError::Outside(file)) if file == "k/b.h"));
    }
}
