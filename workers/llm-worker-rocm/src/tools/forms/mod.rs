//! How families write calls: one row each, and how a chat template tells which.

mod marks;
mod table;

pub(super) use marks::{eat, follow, pieces, starts_piece, Follow, Piece};
pub use table::FORMS;

/// How one family writes calls; a row of [`FORMS`].
///
/// Marks are written as they stand here, except that a NUL is white space that may be there and is not written, and
/// `{n}` is a number. Where they are read, white space in them stands for any white space, or none.
#[derive(Debug)]
pub struct CallForm {
    /// The name that `--tool-format` takes.
    pub name: &'static str,
    /// Who writes it.
    pub families: &'static str,
    /// What a chat template says that teaches it: all words of one of the lists.
    signs: &'static [&'static [&'static str]],
    /// Around all calls of an answer.
    pub(super) section: Around,
    /// Around each call.
    pub(super) call: Around,
    /// Between two calls.
    pub(super) between: &'static str,
    /// What also begins a call: read, and written by no forced call.
    pub(super) also: &'static [&'static str],
    /// What stands in a call.
    pub(super) body: Body,
    /// Marks around an answer's text that are none of it; `{tool}` stands for any tool's name.
    pub(super) silent: &'static [&'static str],
    /// Marks that may be control tokens of the vocabulary.
    pub(super) tokens: &'static [&'static str],
    /// What calls are named.
    pub(super) ids: Ids,
    /// A call is one only if it names a known function: what begins it may begin ordinary text as well.
    pub(super) known_only: bool,
    /// An answer has one call.
    pub(super) single: bool,
    /// Forms that the same models are seen to write.
    pub(super) relatives: &'static [&'static str],
}

/// Two marks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// What stands in a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    /// A JSON object with the name and the arguments; a form may put a running number first.
    Object {
        /// The key of the number, if there is one.
        number: Option<&'static str>,
        name: &'static str,
        arguments: &'static str,
    },
    /// The name, then the arguments as a JSON object. Of several ways the first is written, all are read; `{name}` and
    /// `{id}` stand for themselves.
    Json { heads: &'static [&'static str] },
    /// Parameters one by one, each with its key; texts as they are, other values as JSON.
    Tagged(Tags),
    /// `NAME(KEY=VALUE, …)` with Python's literals.
    Python,
    /// `NAME{KEY:VALUE, …}` with texts between marks of their own.
    Braces {
        /// Around texts.
        quote: &'static str,
    },
    /// An element for each parameter, named after it, and elements in it for objects and lists.
    Elements {
        /// Before each tag.
        prefix: &'static str,
    },
}

/// The marks of [`Body::Tagged`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Tags {
    /// After the function's name.
    pub(super) after_name: &'static str,
    /// Before a key.
    pub(super) key_open: &'static str,
    /// After it.
    pub(super) key_end: &'static str,
    /// What is said of the value's type.
    pub(super) attribute: Attribute,
    /// Before a value; white space at its end belongs to the mark once.
    pub(super) value_open: &'static str,
    /// After it; white space at its beginning belongs to the mark once.
    pub(super) value_close: &'static str,
}

/// What is said of a value's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attribute {
    /// Nothing.
    None,
    /// ` string="true"` for texts, ` string="false"` for JSON.
    IsString,
    /// ` type="string"` for texts, other types' names for JSON.
    Type,
}

/// What calls are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    /// Nine letters and digits, as Mistral's templates need them and all others take them.
    Letters,
    /// `functions.NAME:INDEX`, from which Kimi's template takes the function's name.
    Numbered,
}

const NOTHING: Around = Around {
    open: "",
    close: "",
};

impl CallForm {
    /// The form of a name that `--tool-format` takes.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMS.iter().find(|form| form.name == name)
    }

    /// The names that `--tool-format` takes.
    pub fn names() -> Vec<&'static str> {
        FORMS.iter().map(|form| form.name).collect()
    }

    /// The form of templates that teach none of their own: tools are described in it, so calls come in it.
    pub fn common() -> &'static Self {
        &table::HERMES
    }

    /// The form that a template teaches.
    pub(super) fn of_source(source: &str) -> &'static Self {
        let told = |form: &&Self| {
            let lists = form.signs.iter();
            lists
                .clone()
                .any(|words| words.iter().all(|word| source.contains(word)))
        };
        FORMS.iter().find(told).unwrap_or(Self::common())
    }

    /// Everything that may begin a call.
    pub(super) fn openings(&self) -> impl Iterator<Item = (&'static str, Opening)> + '_ {
        let section = [(self.section.open, Opening::Section)];
        let call = [(self.call.open, Opening::Call)];
        let also = self.also.iter().map(|mark| (*mark, Opening::Call));
        let all = section.into_iter().chain(call).chain(also);
        // Marks that are ordinary characters begin nothing but at an answer's start.
        all.filter(|(mark, _)| pieces(mark).any(|piece| !is_plain(piece)))
    }

    /// Whether a call may begin an answer without a mark, with this character.
    pub(super) fn begins_bare(&self, c: char) -> bool {
        self.openings().next().is_none_or(|_| self.known_only)
            && match self.body {
                Body::Object { .. } => c == '{',
                Body::Python => c == '[',
                _ => false,
            }
    }
}

/// What a mark begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// All calls.
    Section,
    /// One call.
    Call,
}

fn is_plain(piece: Piece) -> bool {
    match piece {
        Piece::Text(text) => matches!(text, "{" | "[" | "{\""),
        Piece::Space | Piece::Number => true,
    }
}

impl PartialEq for CallForm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CallForm {}
