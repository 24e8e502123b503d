//! A text for the parser, each of whose lines knows where it comes from.

use super::preprocess::included;
use crate::model::{Include, Place};
use crate::source::Sources;
use std::collections::HashMap;
use std::path::Path;

/// A preprocessed or raw text with its places.
#[derive(Debug)]
pub(crate) struct Text {
    /// What the parser reads; it has no line markers.
    pub text: String,
    /// Where each line begins.
    starts: Vec<usize>,
    /// File (by number) and line, from 1, of each line.
    lines: Vec<(u32, u32)>,
    files: Vec<File>,
    /// Includes that the preprocessor followed.
    pub includes: Vec<Include>,
    pub problems: Vec<(Place, String)>,
    /// Whether macros are expanded.
    pub expanded: bool,
}

/// A file that lines come from.
#[derive(Debug)]
struct File {
    name: String,
    kind: FileKind,
    lines: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FileKind {
    /// Of the project.
    Own,
    /// An empty header in the place of one of CUDA or C++.
    StandIn,
    /// The preprocessor's own, or outside of the project.
    Foreign,
}

impl Text {
    /// A text that is its own original.
    pub(super) fn raw(name: &str, text: String) -> Self {
        let lines: Vec<String> = text.lines().map(String::from).collect();
        let mut this = Self::empty();
        this.lines = (0..lines.len().max(1))
            .map(|line| (0, line as u32 + 1))
            .collect();
        for (index, line) in lines.iter().enumerate() {
            if let Some((_, include)) = included(line) {
                this.includes.push(Include {
                    place: Place {
                        file: name.to_string(),
                        line: index + 1,
                        column: 1,
                    },
                    name: include.to_string(),
                    file: None,
                });
            }
        }
        this.files.push(File {
            name: name.to_string(),
            kind: FileKind::Own,
            lines,
        });
        this.text = text;
        this.index();
        this
    }

    fn empty() -> Self {
        Self {
            text: String::new(),
            starts: Vec::new(),
            lines: Vec::new(),
            files: Vec::new(),
            includes: Vec::new(),
            problems: Vec::new(),
            expanded: false,
        }
    }

    fn index(&mut self) {
        self.starts = std::iter::once(0)
            .chain(self.text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
    }

    /// Reads a preprocessor's output.
    pub(super) fn preprocessed(output: &str, sources: &Sources, stand_ins: &Path) -> Self {
        let mut this = Self::empty();
        this.expanded = true;
        this.text.reserve(output.len());
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut at: Option<(u32, u32)> = None;
        // Files that were entered and not left yet.
        let mut entered: Vec<u32> = Vec::new();
        for line in output.lines() {
            if let Some(marker) = Marker::parse(line) {
                let number = *numbers.entry(marker.file.clone()).or_insert_with(|| {
                    let file = File::open(&marker.file, sources, stand_ins);
                    if file.kind == FileKind::Foreign && !file.name.starts_with('<') {
                        let place = Place {
                            file: file.name.clone(),
                            line: 1,
                            column: 1,
                        };
                        let text = "outside of the project, or not readable: left out";
                        this.problems.push((place, text.to_string()));
                    }
                    this.files.push(file);
                    this.files.len() as u32 - 1
                });
                match marker.flag {
                    Flag::Enter => entered.push(number),
                    Flag::Leave => {
                        if let Some(left) = entered.pop() {
                            this.include(number, marker.line.saturating_sub(1), left);
                        }
                    }
                    Flag::None => {}
                }
                at = Some((number, marker.line));
                continue;
            }
            let Some((file, number)) = at else { continue };
            at = Some((file, number.saturating_add(1)));
            if this.files[file as usize].kind != FileKind::Own {
                continue;
            }
            this.text.push_str(line);
            this.text.push('\n');
            this.lines.push((file, number.max(1)));
        }
        this.index();
        this
    }

    /// Notes that a line included a file.
    fn include(&mut self, parent: u32, line: u32, file: u32) {
        let (parent, file) = (&self.files[parent as usize], &self.files[file as usize]);
        if parent.kind != FileKind::Own || file.name.starts_with('<') {
            return;
        }
        let text = parent.lines.get((line as usize).wrapping_sub(1));
        let name = text
            .and_then(|line| included(line))
            .map_or(file.name.as_str(), |(_, name)| name);
        self.includes.push(Include {
            place: Place {
                file: parent.name.clone(),
                line: line as usize,
                column: 1,
            },
            name: name.to_string(),
            file: (file.kind == FileKind::Own).then(|| file.name.clone()),
        });
    }

    fn line_of(&self, byte: usize) -> usize {
        self.starts
            .partition_point(|start| *start <= byte)
            .saturating_sub(1)
    }

    /// Where the token at a byte comes from; for what a macro made, where the macro is used.
    pub(crate) fn place(&self, byte: usize) -> Place {
        let index = self.line_of(byte);
        let (file, line) = *self
            .lines
            .get(index)
            .or(self.lines.last())
            .unwrap_or(&(0, 1));
        let Some(file) = self.files.get(file as usize) else {
            return Place {
                file: String::new(),
                line: 1,
                column: 1,
            };
        };
        let column = file
            .lines
            .get(line as usize - 1)
            .map_or(1, |original| self.column(index, byte, original));
        Place {
            file: file.name.clone(),
            line: line as usize,
            column,
        }
    }

    /// The column of a token in its original line: the same occurrence of it, or where the line's text begins.
    fn column(&self, index: usize, byte: usize, original: &str) -> usize {
        let start = self.starts[index];
        let end = self
            .starts
            .get(index + 1)
            .map_or(self.text.len(), |next| next - 1);
        let line = &self.text[start..end.max(start)];
        let offset = (byte - start).min(line.len());
        let token = word_at(line, offset);
        let before = occurrences(line, token)
            .take_while(|found| *found < offset)
            .count();
        let found: Vec<usize> = occurrences(original, token).take(before + 1).collect();
        let at = match (found.get(before).or(found.last()), token.is_empty()) {
            (Some(at), false) => *at,
            _ => original.len() - original.trim_start().len(),
        };
        original[..at].chars().count() + 1
    }

    /// Whether the original line of a byte says this word; what it does not say was made by a macro.
    pub(crate) fn says(&self, byte: usize, word: &str) -> bool {
        let (file, line) = *self.lines.get(self.line_of(byte)).unwrap_or(&(u32::MAX, 1));
        self.files
            .get(file as usize)
            .and_then(|file| file.lines.get(line as usize - 1))
            .is_some_and(|original| occurrences(original, word).next().is_some())
    }

    /// The original line of a byte.
    pub(crate) fn original(&self, byte: usize) -> &str {
        let (file, line) = *self.lines.get(self.line_of(byte)).unwrap_or(&(u32::MAX, 1));
        self.files
            .get(file as usize)
            .and_then(|file| file.lines.get(line as usize - 1))
            .map_or("", String::as_str)
    }

    /// Where a macro is defined, if one of the text's files defines it.
    pub(crate) fn definition(&self, name: &str) -> Option<Place> {
        self.files.iter().find_map(|file| {
            let line = file.lines.iter().position(|line| {
                let rest = line.trim_start().strip_prefix('#').map(str::trim_start);
                rest.and_then(|rest| rest.strip_prefix("define"))
                    .is_some_and(|rest| word_at(rest.trim_start(), 0) == name)
            })?;
            Some(Place {
                file: file.name.clone(),
                line: line + 1,
                column: 1,
            })
        })
    }
}

impl File {
    fn open(marker: &str, sources: &Sources, stand_ins: &Path) -> Self {
        let path = Path::new(marker);
        let foreign = |name: &str| Self {
            name: name.to_string(),
            kind: FileKind::Foreign,
            lines: Vec::new(),
        };
        // Stand-ins of names with `..` lie above their folder, in the same temporary one.
        let above = stand_ins.ancestors().nth(8).unwrap_or(stand_ins);
        if let Ok(name) = path.strip_prefix(stand_ins) {
            return Self {
                name: name.to_string_lossy().into_owned(),
                kind: FileKind::StandIn,
                lines: Vec::new(),
            };
        }
        if path.starts_with(above) {
            return Self {
                name: marker.to_string(),
                kind: FileKind::StandIn,
                lines: Vec::new(),
            };
        }
        let inside = path.strip_prefix(&sources.root).unwrap_or(path);
        if inside.is_absolute() || marker.starts_with('<') {
            return foreign(marker);
        }
        let name = normalised(&inside.to_string_lossy());
        match sources.read(&name) {
            Ok(text) => Self {
                lines: text.lines().map(String::from).collect(),
                kind: FileKind::Own,
                name,
            },
            Err(_) => foreign(&name),
        }
    }
}

#[derive(PartialEq)]
enum Flag {
    None,
    Enter,
    Leave,
}

/// `# 12 "file" 1`
struct Marker {
    line: u32,
    file: String,
    flag: Flag,
}

impl Marker {
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("# ")?;
        let (number, rest) = rest.split_once(' ')?;
        let number: u32 = number.parse().ok()?;
        let rest = rest.strip_prefix('"')?;
        let mut file = Vec::new();
        let mut bytes = rest.bytes().enumerate();
        let end = loop {
            match bytes.next()? {
                (_, b'\\') => match bytes.next()? {
                    // Bytes beyond ASCII are three octal digits.
                    (at, b'0'..=b'3') => {
                        let digits = rest.get(at..at + 3)?;
                        file.push(u8::from_str_radix(digits, 8).ok()?);
                        bytes.nth(1)?;
                    }
                    (_, byte) => file.push(byte),
                },
                (at, b'"') => break at,
                (_, byte) => file.push(byte),
            }
        };
        let file = String::from_utf8_lossy(&file).into_owned();
        let flags: Vec<&str> = rest[end + 1..].split_whitespace().collect();
        let flag = match (flags.contains(&"1"), flags.contains(&"2")) {
            (true, _) => Flag::Enter,
            (_, true) => Flag::Leave,
            _ => Flag::None,
        };
        Some(Self {
            line: number,
            file,
            flag,
        })
    }
}

/// A path without `.` and, where it can be, without `..`.
pub(super) fn normalised(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The word, or the single character, that begins at a byte.
fn word_at(line: &str, offset: usize) -> &str {
    let Some(rest) = line.get(offset..) else {
        return "";
    };
    let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    match length {
        0 => &rest[..rest.chars().next().map_or(0, char::len_utf8)],
        length => &rest[..length],
    }
}

/// Where a word stands in a line, not as a part of another.
fn occurrences<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_named = word.starts_with(is_word);
    line.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = line[..*at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            !word.is_empty()
                && !(is_named && (before.is_some_and(is_word) || after.is_some_and(is_word)))
        })
}
