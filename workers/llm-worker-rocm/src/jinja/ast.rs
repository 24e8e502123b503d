//! A template as a tree.

use super::error::{Error, Result};
use super::text::Text;

/// Deepest tree of an expression: more than any template has, and little enough for the stack of a thread.
const MAX_DEPTH: u16 = 400;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Data(Text),
    Print(Expr),
    If {
        /// Conditions with their bodies, in order.
        branches: Vec<(Expr, Vec<Node>)>,
        otherwise: Vec<Node>,
    },
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<FilterCall>, Vec<Node>),
    Macro(Box<Macro>),
    /// `{% call(…) f(…) %}`: the body is a macro by the name `caller`.
    Call(Expr, Box<Macro>),
    Filter(Vec<FilterCall>, Vec<Node>),
    /// A body with variables of its own.
    With(Vec<(Target, Expr)>, Vec<Node>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    /// Parameters with their defaults.
    pub(super) parameters: Vec<(String, Option<Expr>)>,
    pub(super) body: Vec<Node>,
    /// Whether the body uses `varargs` and `kwargs`, and so takes more arguments than it names.
    pub(super) takes_more: (bool, bool),
    /// Whether the body uses `caller`.
    pub(super) takes_caller: bool,
}

/// What a value is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    Tuple(Vec<Target>),
}

/// `| name(…)` without the value that it is applied to.
#[derive(Debug)]
pub(super) struct FilterCall {
    pub(super) name: String,
    pub(super) arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
    /// `*list`
    pub(super) spread: Option<Expr>,
    /// `**mapping`
    pub(super) spread_named: Option<Expr>,
}

#[derive(Debug)]
pub(super) struct Expr {
    pub(super) kind: ExprKind,
    depth: u16,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, String),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Box<Arguments>),
    Filter(Box<Expr>, Box<FilterCall>),
    Test(Box<Expr>, Box<FilterCall>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// A chain such as `1 < x <= 3`.
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Condition, then, else.
    If(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

impl Binary {
    /// Its spelling.
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::FloorDivide => "//",
            Self::Modulo => "%",
            Self::Power => "**",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

impl Expr {
    /// # Errors
    /// [`Error`] of a limit if the tree is too deep.
    pub(super) fn new(kind: ExprKind) -> Result<Self> {
        let depth = kind.depth_of_children() + 1;
        if depth > MAX_DEPTH {
            return Err(Error::limit("an expression is nested too deeply"));
        }
        Ok(Self { kind, depth })
    }
}

impl Arguments {
    fn depth(&self) -> u16 {
        let named = self.named.iter().map(|(_, e)| e);
        let spread = self.spread.iter().chain(&self.spread_named);
        deepest(self.positional.iter().chain(named).chain(spread))
    }
}

fn deepest<'a>(expressions: impl Iterator<Item = &'a Expr>) -> u16 {
    expressions.map(|e| e.depth).max().unwrap_or(0)
}

impl ExprKind {
    fn depth_of_children(&self) -> u16 {
        match self {
            Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Float(_)
            | Self::Str(_)
            | Self::Name(_) => 0,
            Self::List(items) | Self::Tuple(items) | Self::Concat(items) => deepest(items.iter()),
            Self::Dict(items) => deepest(items.iter().flat_map(|(k, v)| [k, v])),
            Self::Attribute(e, _) | Self::Not(e) | Self::Negative(e) | Self::Positive(e) => e.depth,
            Self::Item(a, b) | Self::Binary(_, a, b) | Self::And(a, b) | Self::Or(a, b) => {
                a.depth.max(b.depth)
            }
            Self::Slice(e, bounds) => {
                let bounds = bounds.iter().flatten().map(|b| b.as_ref());
                e.depth.max(deepest(bounds))
            }
            Self::Call(e, arguments) => e.depth.max(arguments.depth()),
            Self::Filter(e, call) | Self::Test(e, call) => e.depth.max(call.arguments.depth()),
            Self::Compare(first, rest) => first.depth.max(deepest(rest.iter().map(|(_, e)| e))),
            Self::If(a, b, c) => {
                let c = c.as_ref().map_or(0, |c| c.depth);
                a.depth.max(b.depth).max(c)
            }
        }
    }
}
