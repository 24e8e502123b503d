//! Jinja as the Python package Jinja2 has it, in the dialect of Hugging Face's transformers: trimmed blocks, loop
//! controls, `{% generation %}`, `tojson` as Python writes JSON, `strftime_now` and `raise_exception`.
//!
//! Chat templates are programs for Jinja2 over Python's values: they use methods of `str` and `dict`, `%` on texts,
//! Python's order of keys and its way to print numbers, and tests that know text from lists. A template comes with a
//! model, so it is not trusted either: [`Template::render`] bounds its steps, memory and depth.
//!
//! Texts remember which parts came from outside ([`Rendered::input`]).
//!
//! What differs from Jinja2 3.1 in transformers' sandbox, and why:
//!
//! | Here | There | Reason |
//! |---|---|---|
//! | `append`, `update` and other methods that change a value | refused by the sandbox | templates in use call them (Kimi K2), and here they reach nothing beyond the rendering |
//! | `safe`, `escape`: plain text | marked as HTML, which `+` then escapes | a prompt is no HTML; that a template's JSON becomes `&#34;` there is an accident |
//! | `{% autoescape %}`, `include`, `import`, `extends`: errors | known | the first is for HTML, the others for more than one template |
//! | `urlize`, `lipsum`: absent | known | for HTML pages |
//! | `pprint`: one line | broken at 80 columns | for people |
//! | `tojson` of what `map`, `items` and the like give: a list | an error | templates written for other engines rely on it |
//! | `encode`: the text | bytes | there are no bytes |
//! | integers of 128 bits, an error beyond | unbounded | bounded memory |
//! | fuel, depth and size are limited | unbounded time | templates are not trusted |
//! | `isprintable`, `isdigit`, `casefold` by the standard library and short lists | by Unicode's tables | rare characters only |

mod ast;
mod checks;
mod error;
mod filters;
mod format;
mod interpreter;
mod json;
mod lexer;
mod methods;
mod number;
mod operators;
mod parser;
mod repr;
mod text;
mod value;

pub use error::{Error, ErrorKind};

use serde_json::Value as Json;
use std::ops::Range;

/// Stack of the thread that a template is compiled and rendered in; with the limits of depth, a small part is used.
const STACK_BYTES: usize = 64 << 20;

/// What [`Template::render`] may spend. Real templates take thousandths of it; using it up takes about a second.
pub const FUEL: usize = 200_000_000;

/// A variable of a rendering.
#[derive(Debug, Clone, Copy)]
pub struct Variable<'v> {
    /// Its name.
    pub name: &'v str,
    /// Its value.
    pub value: &'v Json,
    /// Whether its texts came from outside, as messages do.
    pub input: bool,
}

/// What a template made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of it, in order, that came from variables from outside.
    pub input: Vec<Range<usize>>,
}

impl Rendered {
    /// Adds text from outside to the end.
    pub fn push_input(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        if !text.is_empty() {
            self.input.push(start..self.text.len());
        }
    }
}

/// A compiled template.
#[derive(Debug)]
pub struct Template {
    nodes: Vec<ast::Node>,
}

impl Template {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`Error`] with the line for a text that is not Jinja or too deeply nested.
    pub fn new(source: &str) -> Result<Self, Error> {
        let nodes = on_large_stack(|| parser::parse(source))?;
        Ok(Self { nodes })
    }

    /// Renders it.
    ///
    /// # Errors
    /// [`Error`] with the line if an operation fails as it would in Python, the template raises one, or it goes beyond
    /// the limits.
    pub fn render(&self, variables: &[Variable]) -> Result<Rendered, Error> {
        self.render_within(variables, FUEL)
    }

    /// Renders it with an amount of fuel: units of about a byte that is written or compared, besides those that the
    /// size of the variables allows.
    ///
    /// # Errors
    /// See [`Self::render`].
    pub fn render_within(&self, variables: &[Variable], fuel: usize) -> Result<Rendered, Error> {
        on_large_stack(|| interpreter::render(&self.nodes, variables, fuel))
    }
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".to_string())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|e| Error::limit(format!("no thread for the template: {e}")))?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests;
