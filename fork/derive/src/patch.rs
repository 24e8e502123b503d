//! Changes of a text as patch files, each with its reason in the header.
//!
//! A patch file is what `git format-patch` writes: a subject, a blank line, the reason, a line `---`, then the
//! differences. `git am` and `git apply` take it in the published crate's folder. Hunks have one line of context, and
//! must match exactly but for their line numbers.

use std::path::{Path, PathBuf};

use diffy::patch_set::{FileOperation, ParseOptions, PatchSet};
use diffy::{DiffOptions, Hunk, Line};

use crate::error::{Error, Result};
use crate::files::files_below;

/// Lines of context around a change: as few as possible, since they are upstream's text.
const CONTEXT: usize = 1;

/// Whom a patch is from until somebody sends it upstream in their own name.
const FROM: &str = "candle-rocm <candle-rocm@users.noreply.invalid>";

/// What a patch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It mends a fault.
    Fix,
    /// It makes something faster; a line `Kind: speed` at the end of the reason says so.
    Speed,
}

/// One patch file.
#[derive(Debug, Clone)]
pub struct Patch {
    /// Where it lies.
    pub path: PathBuf,
    /// What it changes, in a few words: the subject.
    pub subject: String,
    /// What upstream does, and what it does with the patch. Paragraphs are separated by a blank line.
    pub reason: String,
    /// What it is for.
    pub kind: Kind,
    /// The text before the differences, as it is in the file.
    header: String,
    diffs: Vec<FileDiff>,
}

/// The differences of one file.
#[derive(Debug, Clone)]
struct FileDiff {
    file: String,
    text: String,
}

impl Patch {
    /// Reads a patch from its text; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Patch`] if it has no subject or no differences, or changes anything but the lines of files.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let failed = |message: &str| Error::patch(path, message);
        let start = match text.starts_with("diff --git ") {
            true => Some(0),
            false => text.find("\ndiff --git ").map(|newline| newline + 1),
        };
        let Some(start) = start else {
            return Err(failed("it has no line `diff --git a/FILE b/FILE`"));
        };
        let (header, differences) = text.split_at(start);
        let Header {
            subject,
            reason,
            kind,
        } = Header::parse(path, header)?;
        let mut diffs = Vec::new();
        for diff in PatchSet::parse(differences, ParseOptions::gitdiff()) {
            let diff = diff.map_err(|e| failed(&e.to_string()))?;
            let file =
                match diff.operation().strip_prefix(1) {
                    FileOperation::Modify { original, modified } if original == modified => {
                        original.into_owned()
                    }
                    _ => return Err(failed(
                        "it adds, removes or renames a file; files of our own belong in overlay/",
                    )),
                };
            let Some(lines) = diff.patch().as_text() else {
                return Err(failed("it changes a binary file"));
            };
            let text = lines.to_string();
            diffs.push(FileDiff { file, text });
        }
        Ok(Self {
            path: path.to_owned(),
            subject,
            reason,
            kind,
            header: header.to_owned(),
            diffs,
        })
    }

    /// A patch that makes `changes`, each `(file, before, after)`, with the header of a new patch.
    pub fn new(
        path: &Path,
        subject: &str,
        reason: &str,
        changes: &[(String, String, String)],
    ) -> Result<Self> {
        let header = format!("From: {FROM}\nSubject: [PATCH] {subject}\n\n{reason}\n---\n");
        Self::parse(path, &text_of(&header, changes))
    }

    /// The same patch with `changes` for its own.
    pub fn with_changes(&self, changes: &[(String, String, String)]) -> Result<Self> {
        Self::parse(&self.path, &text_of(&self.header, changes))
    }

    /// The text of the patch file.
    pub fn text(&self) -> String {
        let diffs = self
            .diffs
            .iter()
            .map(|diff| with_git_line(&diff.file, &diff.text));
        self.header.clone() + &diffs.collect::<String>()
    }

    /// Name of the patch file.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The files that it changes.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.diffs.iter().map(|diff| diff.file.as_str())
    }

    /// `text` of `file` with the patch applied; as it is if the patch does not change that file.
    ///
    /// # Errors
    /// [`Error::Hunk`] if a hunk matches nowhere, or at several places but not where it says: a build must not guess.
    pub fn apply(&self, file: &str, text: String) -> Result<String> {
        let mut of_file = self.diffs.iter().filter(|diff| diff.file == file);
        of_file.try_fold(text, |text, diff| {
            let patch = self.parsed(&diff.text)?;
            match self.misplaced(diff, &patch, &text).into_iter().next() {
                Some(error) => Err(error),
                None => diffy::apply(&text, &patch)
                    .map_err(|e| self.hunk_error(file, patch.hunks().len(), e.to_string())),
            }
        })
    }

    /// `text` of `file` with those hunks of the patch that match somewhere, each at the nearest place; and for each
    /// hunk that [`Self::apply`] would have refused, why. For somebody who looks at the outcome.
    ///
    /// # Errors
    /// [`Error::Patch`] if the patch cannot be read.
    pub fn apply_what_fits(&self, file: &str, mut text: String) -> Result<(String, Vec<Error>)> {
        let mut refused = Vec::new();
        for diff in self.diffs.iter().filter(|diff| diff.file == file) {
            refused.extend(self.misplaced(diff, &self.parsed(&diff.text)?, &text));
            let (names, hunks) = diff.text.split_once("\n@@ ").unwrap_or((&diff.text, ""));
            for hunk in hunks.split("\n@@ ") {
                let alone = format!("{names}\n@@ {hunk}\n");
                if let Ok(with_hunk) = diffy::apply(&text, &self.parsed(&alone)?) {
                    text = with_hunk;
                }
            }
        }
        Ok((text, refused))
    }

    fn parsed<'a>(&self, differences: &'a str) -> Result<diffy::Patch<'a, str>> {
        diffy::Patch::from_str(differences).map_err(|e| Error::patch(&self.path, &e.to_string()))
    }

    /// An error for each hunk whose place in `text` is not certain.
    fn misplaced(&self, diff: &FileDiff, patch: &diffy::Patch<'_, str>, text: &str) -> Vec<Error> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut errors = Vec::new();
        for (i, hunk) in patch.hunks().iter().enumerate() {
            let stated = hunk.old_range().start();
            let message = match Place::of(hunk, &lines) {
                Place::One => continue,
                Place::None => format!("its lines, stated to be at line {stated}, are not there"),
                Place::Several(places) => {
                    format!("its lines are not at line {stated}, but at lines {places:?}")
                }
            };
            errors.push(self.hunk_error(&diff.file, i + 1, message));
        }
        errors
    }

    fn hunk_error(&self, file: &str, hunk: usize, message: String) -> Error {
        Error::Hunk {
            patch: self.path.clone(),
            file: file.to_owned(),
            hunk,
            message,
        }
    }
}

/// Where the lines that a hunk keeps and takes out are.
enum Place {
    /// Where it says, or else at one place only.
    One,
    None,
    /// Elsewhere, at these lines.
    Several(Vec<usize>),
}

impl Place {
    fn of(hunk: &Hunk<'_, str>, lines: &[&str]) -> Self {
        let old = hunk.lines().iter().filter_map(|line| match line {
            Line::Context(line) | Line::Delete(line) => Some(*line),
            Line::Insert(_) => None,
        });
        let old: Vec<&str> = old.collect();
        if old.is_empty() {
            return Self::One;
        }
        let stated = hunk.old_range().start().saturating_sub(1);
        if lines.get(stated..stated + old.len()) == Some(&old) {
            return Self::One;
        }
        let found = lines
            .windows(old.len())
            .enumerate()
            .filter(|(_, window)| *window == old);
        let places: Vec<usize> = found.map(|(at, _)| at + 1).collect();
        match places.len() {
            0 => Self::None,
            1 => Self::One,
            _ => Self::Several(places),
        }
    }
}

fn with_git_line(file: &str, differences: &str) -> String {
    format!("diff --git a/{file} b/{file}\n{differences}")
}

/// A patch file's text: the header, and the differences of the files that differ.
fn text_of(header: &str, changes: &[(String, String, String)]) -> String {
    let mut text = header.to_owned();
    for (file, before, after) in changes.iter().filter(|(_, before, after)| before != after) {
        let mut options = DiffOptions::new();
        options
            .set_context_len(CONTEXT)
            .set_original_filename(format!("a/{file}"))
            .set_modified_filename(format!("b/{file}"));
        text.push_str(&with_git_line(
            file,
            &options.create_patch(before, after).to_string(),
        ));
    }
    text
}

/// What the lines before the differences say.
struct Header {
    subject: String,
    reason: String,
    kind: Kind,
}

impl Header {
    fn parse(path: &Path, header: &str) -> Result<Self> {
        let (fields, body) = header.split_once("\n\n").unwrap_or((header, ""));
        let mut lines = fields
            .lines()
            .skip_while(|line| !line.starts_with("Subject:"));
        let Some(first) = lines.next() else {
            return Err(Error::patch(path, "it has no line `Subject: [PATCH] …`"));
        };
        let folded = lines.take_while(|line| line.starts_with([' ', '\t']));
        let subject: Vec<&str> = std::iter::once(first.trim_start_matches("Subject:"))
            .chain(folded)
            .flat_map(str::split_whitespace)
            .collect();
        let subject = subject.join(" ");
        let subject = match subject
            .strip_prefix("[PATCH")
            .and_then(|rest| rest.split_once(']'))
        {
            Some((_, subject)) => subject.trim().to_owned(),
            None => subject,
        };
        // What follows `---` is for readers of the mail: the list of files.
        let body = body.split("\n---\n").next().unwrap_or_default();
        let body = if body.starts_with("---\n") { "" } else { body };
        let mut kind = Kind::Fix;
        let mut paragraphs = Vec::new();
        for paragraph in body.split("\n\n") {
            match paragraph.trim() {
                "" => {}
                "Kind: speed" => kind = Kind::Speed,
                text => paragraphs.push(text.split_whitespace().collect::<Vec<_>>().join(" ")),
            }
        }
        Ok(Self {
            subject,
            reason: paragraphs.join("\n\n"),
            kind,
        })
    }
}

/// The patches of a folder, in the order of their names.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The patches, first to last.
    pub patches: Vec<Patch>,
}

impl Series {
    /// Reads the `.patch` files of `folder`; none if there is no such folder.
    ///
    /// # Errors
    /// [`Error::Patch`] for one that is no patch file.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut patches = Vec::new();
        for path in files_below(folder)? {
            if path
                .extension()
                .is_some_and(|extension| extension == "patch")
            {
                let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
                patches.push(Patch::parse(&path, &text)?);
            }
        }
        Ok(Self { patches })
    }

    /// `text` of `file` with all patches applied in order.
    ///
    /// # Errors
    /// [`Error::Hunk`] for the first hunk that does not match.
    pub fn apply(&self, file: &str, text: String) -> Result<String> {
        self.patches
            .iter()
            .try_fold(text, |text, patch| patch.apply(file, text))
    }
}
