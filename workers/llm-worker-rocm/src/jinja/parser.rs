//! Tokens to a tree: statements. Expressions are in [`expression`].

mod expression;

use super::ast::{Expr, ExprKind, FilterCall, For, Macro, Node, NodeKind, Target};
use super::error::{Error, Result};
use super::lexer::{tokens, Kind, Token};
use super::text::Text;

/// Deepest nesting of statements.
const MAX_NESTING: usize = 100;
/// Deepest nesting of brackets and signs in an expression.
const MAX_BRACKETS: usize = 100;

/// Parses a template.
///
/// # Errors
/// [`Error`] with the line at fault.
pub(super) fn parse(source: &str) -> Result<Vec<Node>> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        nesting: 0,
        brackets: 0,
        loops: 0,
        seen: Seen::default(),
    };
    let nodes = parser.body(&[])?;
    match parser.peek() {
        Kind::End => Ok(nodes),
        other => {
            let tag = format!("unexpected {}", describe(other));
            parser.fault(tag)
        }
    }
}

/// Names that a macro's body uses.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    varargs: bool,
    kwargs: bool,
    caller: bool,
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    brackets: usize,
    /// Loops around, within the same macro.
    loops: usize,
    seen: Seen,
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Data(_) => "text".to_string(),
        Kind::PrintBegin => "{{".to_string(),
        Kind::PrintEnd => "}}".to_string(),
        Kind::BlockBegin => "{%".to_string(),
        Kind::BlockEnd => "%}".to_string(),
        Kind::Name(name) => format!("'{name}'"),
        Kind::Str(text) => format!("the text {text:?}"),
        Kind::Int(value) => value.to_string(),
        Kind::Float(value) => value.to_string(),
        Kind::Op(op) => format!("'{op}'"),
        Kind::End => "end of the template".to_string(),
    }
}

impl Parser {
    fn peek(&self) -> &Kind {
        self.ahead(0)
    }

    fn ahead(&self, by: usize) -> &Kind {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + by).min(last)].kind
    }

    fn line(&self) -> usize {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Kind {
        let kind = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        kind
    }

    fn fault<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::syntax(message, self.line()))
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Kind::Op(o) if *o == op)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Kind::Name(n) if n == name)
    }

    fn take_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.take_op(op) {
            return Ok(());
        }
        self.fault(format!("expected '{op}', not {}", describe(self.peek())))
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Kind::Name(_) => match self.next() {
                Kind::Name(name) => Ok(name),
                _ => self.fault("expected a name"),
            },
            other => self.fault(format!("expected a name, not {}", describe(other))),
        }
    }

    fn block_end(&mut self) -> Result<()> {
        match self.peek() {
            Kind::BlockEnd => {
                self.next();
                Ok(())
            }
            other => self.fault(format!(
                "expected the end of the tag, not {}",
                describe(other)
            )),
        }
    }

    /// Nodes up to the block tag with one of these names, which is left to be read.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Node>> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Error::limit("blocks are nested too deeply").at(self.line()));
        }
        let mut nodes = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.peek() {
                Kind::Data(_) => match self.next() {
                    Kind::Data(text) => NodeKind::Data(Text::own(text)),
                    _ => continue,
                },
                Kind::PrintBegin => {
                    self.next();
                    let value = self.tuple(true, &[])?;
                    match self.next() {
                        Kind::PrintEnd => NodeKind::Print(value),
                        other => {
                            let reason = format!("expected '}}}}', not {}", describe(&other));
                            return Err(Error::syntax(reason, line));
                        }
                    }
                }
                Kind::BlockBegin => {
                    if let Kind::Name(name) = self.ahead(1) {
                        if ends.contains(&name.as_str()) {
                            break;
                        }
                    }
                    self.next();
                    self.statement()?
                }
                _ => {
                    if !ends.is_empty() {
                        return self.fault(format!("expected {{% {} %}}", ends.join(" %} or {% ")));
                    }
                    break;
                }
            };
            nodes.push(Node { kind, line });
        }
        self.nesting -= 1;
        Ok(nodes)
    }

    /// A body with its end tag.
    fn closed(&mut self, end: &str) -> Result<Vec<Node>> {
        self.block_end()?;
        let body = self.body(&[end])?;
        self.end_tag()?;
        Ok(body)
    }

    /// The tag that [`Self::body`] stopped at, which has nothing but a name.
    fn end_tag(&mut self) -> Result<()> {
        self.next();
        self.name()?;
        self.block_end()
    }

    fn statement(&mut self) -> Result<NodeKind> {
        let name = self.name()?;
        Ok(match name.as_str() {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "macro" => NodeKind::Macro(Box::new(self.macro_statement()?)),
            "call" => self.call_statement()?,
            "filter" => {
                let filters = self.filter_names()?;
                NodeKind::Filter(filters, self.closed("endfilter")?)
            }
            "with" => self.with_statement()?,
            // What a training loss looks at; a prompt needs what is in it only. It has variables of its own.
            "generation" => NodeKind::With(Vec::new(), self.closed("endgeneration")?),
            "block" => {
                let name = self.name()?;
                while !matches!(self.peek(), Kind::BlockEnd | Kind::End) {
                    self.next();
                }
                self.block_end()?;
                let body = self.body(&["endblock"])?;
                self.next();
                self.next();
                self.take_name(&name);
                self.block_end()?;
                NodeKind::With(Vec::new(), body)
            }
            "print" => {
                let value = self.tuple(true, &[])?;
                self.block_end()?;
                NodeKind::Print(value)
            }
            "break" | "continue" if self.loops == 0 => {
                return self.fault(format!("'{name}' outside of a loop"));
            }
            "break" => {
                self.block_end()?;
                NodeKind::Break
            }
            "continue" => {
                self.block_end()?;
                NodeKind::Continue
            }
            "include" | "import" | "from" | "extends" => {
                return self.fault(format!(
                    "{{% {name} %}} is not supported: a chat template has no other templates"
                ));
            }
            "autoescape" => {
                return self.fault("{% autoescape %} is not supported: a prompt is not HTML")
            }
            other => return self.fault(format!("unknown tag '{other}'")),
        })
    }

    fn if_statement(&mut self) -> Result<NodeKind> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.tuple(false, &[])?;
            self.block_end()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            self.next();
            match self.name()?.as_str() {
                "elif" => continue,
                "else" => {
                    otherwise = self.closed("endif")?;
                    break;
                }
                _ => {
                    self.block_end()?;
                    break;
                }
            }
        }
        Ok(NodeKind::If {
            branches,
            otherwise,
        })
    }

    fn for_statement(&mut self) -> Result<NodeKind> {
        let target = self.target(&["in"])?;
        if !self.take_name("in") {
            return self.fault("expected 'in'");
        }
        let items = self.tuple(false, &["recursive"])?;
        let condition = match self.take_name("if") {
            true => Some(self.expression()?),
            false => None,
        };
        let recursive = self.take_name("recursive");
        self.block_end()?;
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        self.next();
        let otherwise = match self.name()?.as_str() {
            "else" => self.closed("endfor")?,
            _ => {
                self.block_end()?;
                Vec::new()
            }
        };
        Ok(NodeKind::For(Box::new(For {
            target,
            items,
            condition,
            recursive,
            body,
            otherwise,
        })))
    }

    /// Names, or tuples of them, up to one of the given names or the end of the tag.
    fn target(&mut self, ends: &[&str]) -> Result<Target> {
        let mut parts = Vec::new();
        let mut tuple = false;
        loop {
            let end = match self.peek() {
                Kind::Name(name) => ends.contains(&name.as_str()),
                Kind::Op(op) => matches!(*op, "=" | ")" | "|"),
                Kind::BlockEnd | Kind::End => true,
                _ => false,
            };
            if end {
                break;
            }
            if self.take_op("(") {
                self.enter()?;
                let inner = self.target(&[])?;
                self.brackets -= 1;
                self.expect_op(")")?;
                parts.push(inner);
            } else {
                let name = self.name()?;
                if matches!(
                    name.as_str(),
                    "true" | "false" | "none" | "True" | "False" | "None"
                ) {
                    return self.fault(format!("'{name}' cannot be assigned to"));
                }
                parts.push(match self.take_op(".") {
                    true => Target::Attribute(name, self.name()?),
                    false => Target::Name(name),
                });
            }
            if !self.take_op(",") {
                break;
            }
            tuple = true;
        }
        match parts.pop() {
            None => self.fault("expected a name to assign to"),
            Some(one) if parts.is_empty() && !tuple => Ok(one),
            Some(last) => {
                parts.push(last);
                Ok(Target::Tuple(parts))
            }
        }
    }

    fn set_statement(&mut self) -> Result<NodeKind> {
        let target = self.target(&[])?;
        if self.take_op("=") {
            let value = self.tuple(true, &[])?;
            self.block_end()?;
            return Ok(NodeKind::Set(target, value));
        }
        let mut filters = Vec::new();
        while self.take_op("|") {
            filters.push(self.filter_call()?);
        }
        Ok(NodeKind::SetBlock(target, filters, self.closed("endset")?))
    }

    /// `upper | trim` of a filter block.
    fn filter_names(&mut self) -> Result<Vec<FilterCall>> {
        let mut filters = vec![self.filter_call()?];
        while self.take_op("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    fn with_statement(&mut self) -> Result<NodeKind> {
        let mut variables = Vec::new();
        while !matches!(self.peek(), Kind::BlockEnd | Kind::End) {
            if !variables.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[])?;
            self.expect_op("=")?;
            variables.push((target, self.expression()?));
        }
        Ok(NodeKind::With(variables, self.closed("endwith")?))
    }

    fn macro_statement(&mut self) -> Result<Macro> {
        let name = self.name()?;
        self.macro_body(name, "endmacro")
    }

    /// Parameters, if there are any, and the body.
    fn macro_body(&mut self, name: String, end: &str) -> Result<Macro> {
        let mut parameters: Vec<(String, Option<Expr>)> = Vec::new();
        if self.take_op("(") {
            while !self.is_op(")") {
                if !parameters.is_empty() {
                    self.expect_op(",")?;
                }
                let parameter = self.name()?;
                let default = match self.take_op("=") {
                    true => Some(self.expression()?),
                    false if parameters.last().is_some_and(|(_, d)| d.is_some()) => {
                        return self.fault("a parameter without default after one with");
                    }
                    false => None,
                };
                parameters.push((parameter, default));
            }
            self.expect_op(")")?;
        } else if end == "endmacro" {
            return self.fault("expected '('");
        }
        let outer = (
            std::mem::take(&mut self.seen),
            std::mem::take(&mut self.loops),
        );
        let body = self.closed(end)?;
        let seen = self.seen;
        (self.seen, self.loops) = outer;
        Ok(Macro {
            name,
            parameters,
            body,
            takes_more: (seen.varargs, seen.kwargs),
            takes_caller: seen.caller,
        })
    }

    fn call_statement(&mut self) -> Result<NodeKind> {
        // The caller's parameters come before the call that it is given to.
        let start = self.at;
        let mut depth = 0;
        if self.is_op("(") {
            loop {
                match self.next() {
                    Kind::Op("(") => depth += 1,
                    Kind::Op(")") => {
                        depth -= 1;
                        if depth == 0 {
                            break;
                        }
                    }
                    Kind::BlockEnd | Kind::End => return self.fault("expected ')'"),
                    _ => {}
                }
            }
        }
        let parameters = self.tokens[start..self.at].to_vec();
        let call = self.expression()?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return self.fault("expected a call");
        }
        // The body's parser sees the parameters, then the rest.
        self.tokens.splice(self.at..self.at, parameters);
        let caller = self.macro_body("caller".to_string(), "endcall")?;
        Ok(NodeKind::Call(call, Box::new(caller)))
    }
}
