//! What an answer may change, and what its device code may consist of.
//!
//! An answer is a whole new text of the kernel file, compared with the one before it:
//!
//! 1. Everything but device code stays ([`items`]): directives, types, variables, host functions, heads of kernels,
//!    entries. So no include, no macro that hides a call, no condition on the target can come in.
//! 2. What is new in device code consists of what is allowed ([`names`], [`tree`]): statements and expressions that
//!    compute, functions of CUDA and HIP, names that the answer itself declares. The file is compiled for the host by
//!    the simulator, where everything else could reach the machine.
//! 3. A kernel keeps a body, which uses the parameters that it used.
//!
//! What computes wrongly is not looked for here: the checks run on other inputs each time.

mod items;
mod names;
mod tree;

pub(crate) use items::{items, Part, Piece};
pub use names::ADDED;

use crate::repair::lexer::{line_of, tokens, Kind, Token};
use items::unfolded;
use std::collections::{BTreeSet, HashMap, HashSet};

#[cfg(test)]
mod tests;

/// Bytes that an answer may add to a file.
const MAX_GROWTH: usize = 64 << 10;
/// Numbers that it may add: more would be a table, such as one of expected results.
const MAX_NUMBERS: usize = 128;

/// Why an answer is refused, in words that the model is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct Refusal {
    /// Line of the new text, from 1.
    pub line: usize,
    /// What is not allowed.
    pub reason: Reason,
}

/// What is not allowed about an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text has grown too much.
    #[error("the file has grown by {0} bytes, at most {MAX_GROWTH} are allowed")]
    Grown(usize),
    /// So many new numbers are a table.
    #[error("{0} numbers are new, at most {MAX_NUMBERS} are allowed: results are to be computed, not listed")]
    Numbers(usize),
    /// Something outside of device code is not what it was.
    #[error(
        "only bodies of kernels and device functions may change, but {found:?} stands where {expected:?} was \
         (directives, types, variables, host code, heads of kernels and entries stay as they are)"
    )]
    Frame {
        /// What stood there.
        expected: String,
        /// What stands there now.
        found: String,
    },
    /// Text that compilers read otherwise than it looks.
    #[error(
        "{0:?} is read otherwise than it looks (joined lines, digraphs, letters beyond ASCII)"
    )]
    Odd(String),
    /// A word that does more than compute.
    #[error("{0:?} may not be added to device code")]
    Word(String),
    /// A question for what the file is compiled for.
    #[error("{0:?} asks what the file is compiled for: the same text has to work everywhere")]
    Target(String),
    /// A string that was not there.
    #[error("the string {0} is new; kernels need none")]
    Text(String),
    /// A name that is neither declared nor known to be harmless.
    #[error("{0:?} is neither declared in the file nor a known name of device code")]
    Unknown(String),
    /// A call of something that is not known to be harmless.
    #[error(
        "{0:?} may not be called: allowed are functions that the file calls already, functions of CUDA that compute, \
         and new __device__ functions whose names begin with {ADDED}"
    )]
    Call(String),
    /// A name that hides one of CUDA or of the compiler.
    #[error("{0:?} may not be declared anew")]
    Reserved(String),
    /// A new function or constant without the agreed beginning of its name.
    #[error("the name of the new function {0:?} has to begin with {ADDED}")]
    Added(String),
    /// A kind of syntax that is not on the list.
    #[error("{kind} is not allowed in device code: {text:?}")]
    Syntax {
        /// The grammar's name for it.
        kind: String,
        /// Its first characters.
        text: String,
    },
    /// The changed code does not parse.
    #[error("this does not parse: {0:?}")]
    Broken(String),
    /// The kernel is left without a body.
    #[error("the body of {0} is empty")]
    Empty(String),
    /// The kernel does not use what it used.
    #[error("{function} does not use its parameter {parameter} any more")]
    Unused {
        /// The function.
        function: String,
        /// The parameter.
        parameter: String,
    },
}

impl Reason {
    fn at(self, text: &str, place: usize) -> Refusal {
        Refusal {
            line: line_of(text, place),
            reason: self,
        }
    }
}

/// Compares an answer's text with the one that it changes.
///
/// # Errors
/// The first thing that is not allowed.
pub fn guard(old: &str, new: &str) -> Result<(), Refusal> {
    let grown = new.len().saturating_sub(old.len());
    if grown > MAX_GROWTH {
        return Err(Reason::Grown(grown).at(new, 0));
    }
    targets(old, new)?;
    let (before, after) = (Words::of(old), Words::of(new));
    before.restrict(&after, new)?;
    compare(old, new, 0, new, &before)
}

/// Texts that may not appear more often, wherever they stand.
fn targets(old: &str, new: &str) -> Result<(), Refusal> {
    for text in names::TARGET {
        let more = new.matches(text).count() > old.matches(text).count();
        if let (true, Some(place)) = (more, new.rfind(text)) {
            return Err(Reason::Target(text.to_string()).at(new, place));
        }
    }
    Ok(())
}

/// The words of a whole file, those of directives and macros among them.
#[derive(Default)]
pub(crate) struct Words {
    /// How often each restricted word, odd token and string stands there, and where the last one does.
    counted: HashMap<String, (Kind, usize, usize)>,
    pub(crate) words: HashSet<String>,
    numbers: usize,
    /// What is called, or has parameters.
    pub(crate) calls: HashSet<String>,
}

impl Words {
    fn of(text: &str) -> Words {
        let mut found = Words::default();
        found.read(&tokens(text), 0);
        found
    }

    fn read(&mut self, tokens: &[Token], offset: usize) {
        for (at, token) in tokens.iter().enumerate() {
            let counted = match token.kind {
                Kind::Directive => {
                    let plain = unfolded(token.text);
                    self.read(
                        &crate::repair::lexer::tokens(&plain[1..]),
                        offset + token.start + 1,
                    );
                    false
                }
                Kind::Word => {
                    self.words.insert(token.text.to_string());
                    if is_called(&tokens[at + 1..]) {
                        self.calls.insert(token.text.to_string());
                    }
                    names::RESTRICTED.contains(&token.text)
                }
                Kind::Odd => true,
                Kind::Literal => !token.text.starts_with('\''),
                Kind::Number => {
                    self.numbers += 1;
                    false
                }
                Kind::Sign => false,
            };
            if counted {
                let place = offset + token.start;
                let entry = self.counted.entry(token.text.to_string());
                let entry = entry.or_insert((token.kind, 0, place));
                *entry = (token.kind, entry.1 + 1, place);
            }
        }
    }

    /// Whether `after` has nothing more of what is counted.
    fn restrict(&self, after: &Words, new: &str) -> Result<(), Refusal> {
        let mut more: Vec<_> = after
            .counted
            .iter()
            .filter(|(text, (kind, count, _))| {
                let before = self.counted.get(*text).map_or(0, |(_, count, _)| *count);
                // A string may be used again.
                *count > before && (*kind != Kind::Literal || before == 0)
            })
            .collect();
        more.sort_by_key(|(_, (_, _, place))| *place);
        let numbers = after.numbers.saturating_sub(self.numbers);
        let Some((text, (kind, _, place))) = more.first() else {
            return match numbers > MAX_NUMBERS {
                true => Err(Reason::Numbers(numbers).at(new, 0)),
                false => Ok(()),
            };
        };
        let shown: String = text.chars().take(80).collect();
        let reason = match kind {
            Kind::Odd => Reason::Odd(shown),
            Kind::Literal => Reason::Text(shown),
            _ => Reason::Word(shown),
        };
        Err(reason.at(new, *place))
    }
}

/// Whether what follows a word makes it a call: arguments, perhaps behind those of a template.
fn is_called(behind: &[Token]) -> bool {
    match behind.first() {
        Some(token) if token.is("(") => true,
        Some(token) if token.is("<") => {
            let inside = behind.iter().take(24);
            let end = inside
                .take_while(|t| ![";", "{", "}"].contains(&t.text))
                .position(|t| t.is(">"));
            end.is_some_and(|end| behind.get(end + 1).is_some_and(|t| t.is("(")))
        }
        _ => false,
    }
}

/// Compares two files, or what a macro stands for in them. `offset` leads from `new` to a place in `file`.
fn compare(old: &str, new: &str, offset: usize, file: &str, before: &Words) -> Result<(), Refusal> {
    let (was, is) = (items(old), items(new));
    frames(&was.frame, &is.frame, new.len()).map_err(|(place, expected, found)| {
        Reason::Frame { expected, found }.at(file, offset + place)
    })?;
    let texts: HashSet<(&str, &str)> = was
        .pieces
        .iter()
        .map(|p| (p.key.as_str(), &old[p.start..p.end]))
        .collect();
    let old_names: BTreeSet<&str> = was.pieces.iter().map(|p| p.name.as_str()).collect();
    // Kernels of the same head (in different branches of a condition) are compared in their order.
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for piece in &is.pieces {
        let index = seen.entry(piece.key.as_str()).or_default();
        let same = |p: &&Piece| p.part == piece.part && p.key == piece.key;
        let previous = was.pieces.iter().filter(same).nth(*index);
        *index += 1;
        let text = &new[piece.start..piece.end];
        if texts.contains(&(piece.key.as_str(), text)) && previous.is_some() {
            continue;
        }
        let was = previous.map(|p| &old[p.body..p.end]);
        let place = |at: usize| offset + piece.body + at;
        match piece.part {
            Part::Macro => {
                let (was, is) = (
                    unfolded(was.unwrap_or("")),
                    unfolded(&new[piece.body..piece.end]),
                );
                match items(&is).pieces.is_empty() {
                    true => tree::fragment(&was, &is, before)
                        .map_err(|(at, reason)| reason.at(file, place(at)))?,
                    false => compare(&was, &is, place(0), file, before)?,
                }
            }
            Part::Body | Part::Function | Part::Constant => {
                let known = old_names.contains(piece.name.as_str());
                if previous.is_none() && !known && !piece.name.starts_with(ADDED) {
                    let at = offset + piece.start;
                    return Err(Reason::Added(piece.name.clone()).at(file, at));
                }
                keeps_its_work(piece, was, &new[piece.body..piece.end])
                    .map_err(|reason| reason.at(file, place(0)))?;
                tree::piece(piece, was.unwrap_or(""), new, before)
                    .map_err(|(at, reason)| reason.at(file, offset + at))?;
            }
        }
    }
    Ok(())
}

/// The first difference of two frames: its place in the new text, and both sides with a few words.
fn frames(
    old: &[(String, usize)],
    new: &[(String, usize)],
    length: usize,
) -> Result<(), (usize, String, String)> {
    let same = old.iter().zip(new).take_while(|(a, b)| a.0 == b.0).count();
    if same == old.len() && same == new.len() {
        return Ok(());
    }
    let shown = |frame: &[(String, usize)]| -> String {
        let words: Vec<&str> = frame[same..]
            .iter()
            .take(8)
            .map(|(w, _)| w.as_str())
            .collect();
        words.join(" ").chars().take(160).collect()
    };
    let place = new.get(same).map_or(length, |(_, at)| *at);
    Err((place, shown(old), shown(new)))
}

/// Whether a function that has to stay still does something with what it is given.
fn keeps_its_work(piece: &Piece, was: Option<&str>, is: &str) -> Result<(), Reason> {
    let Some(was) = was.filter(|_| piece.part == Part::Body) else {
        return Ok(());
    };
    let words = |text: &str| -> HashSet<String> {
        let tokens = tokens(text);
        // The x of threadIdx.x is no parameter.
        let member = |at: usize| at > 0 && tokens[at - 1].is(".");
        let words = tokens
            .iter()
            .enumerate()
            .filter(|(at, t)| t.kind == Kind::Word && !member(*at));
        words.map(|(_, t)| t.text.to_string()).collect()
    };
    let (was, is) = (words(was), words(is));
    if is.is_empty() && !was.is_empty() {
        return Err(Reason::Empty(piece.name.clone()));
    }
    let lost = |p: &&String| was.contains(*p) && !is.contains(*p);
    match piece.parameters.iter().find(lost) {
        Some(parameter) => Err(Reason::Unused {
            function: piece.name.clone(),
            parameter: parameter.clone(),
        }),
        None => Ok(()),
    }
}
