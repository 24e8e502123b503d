//! Host functions in Rust: what names mean, parameters, and the list of functions that are needed.

use super::program::{HostFunction, Program};
use super::value::{identifier, CType, Value};
use crate::model::{ArgumentKind, PortedUnit};
use crate::parse::tree::{field, walk};
use crate::port::types;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use tree_sitter::Node;

/// Why a host function has no launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Where, in bytes of the preprocessed text.
    pub byte: usize,
    pub reason: String,
}

/// What a name means inside of a function.
#[derive(Clone, Debug)]
pub(super) enum Local<'t> {
    Value(Value),
    Lambda(Node<'t>),
    /// A kernel with its template arguments.
    Kernel(String, Vec<String>),
}

/// Functions that others call, and their names in Rust.
#[derive(Debug, Default)]
pub(super) struct Plan {
    names: BTreeMap<(usize, Vec<String>), String>,
    pub open: Vec<(usize, Vec<String>)>,
}

impl Plan {
    /// The Rust name of a function with template arguments; it is translated later if it is new.
    pub fn name_of(
        &mut self,
        index: usize,
        function: &HostFunction,
        template: &[String],
    ) -> String {
        let key = (index, template.to_vec());
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let mut base = identifier(&function.name);
        for argument in template {
            let _ = write!(base, "_{}", types::word(argument));
        }
        // Overloads have one name in C++.
        let mut name = base.clone();
        let mut number = 2;
        while self.names.values().any(|taken| *taken == name) {
            name = format!("{base}_{number}");
            number += 1;
        }
        self.names.insert(key.clone(), name.clone());
        self.open.push(key);
        name
    }
}

/// Names of a template's parameters with arguments.
pub(super) fn bindings(function: &HostFunction, template: &[String]) -> Vec<(String, String)> {
    let names = function
        .template
        .iter()
        .map(|parameter| parameter.name.clone());
    names.zip(template.iter().cloned()).collect()
}

/// Translates one function.
pub(super) struct Translator<'p, 't> {
    source: &'t str,
    pub program: &'p Program<'t>,
    pub unit: &'p PortedUnit,
    pub plan: &'p mut Plan,
    pub scopes: Vec<Scope<'t>>,
    /// Names that the function changes.
    pub assigned: BTreeSet<&'t str>,
    pub result: Option<CType>,
    pub out: String,
    pub indent: usize,
    pub depth: usize,
    /// Labels of the lambdas that are being written.
    pub labels: Vec<usize>,
    pub label_count: usize,
}

/// The names of a block.
#[derive(Debug, Default)]
pub(super) struct Scope<'t> {
    pub locals: BTreeMap<String, Local<'t>>,
    /// Type aliases and template parameters.
    pub types: Vec<(String, String)>,
}

/// A translated function.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub parameters: Vec<(String, CType)>,
    pub result: Option<CType>,
    pub text: String,
}

impl<'p, 't> Translator<'p, 't> {
    pub fn new(
        source: &'t str,
        program: &'p Program<'t>,
        unit: &'p PortedUnit,
        plan: &'p mut Plan,
    ) -> Self {
        Translator {
            source,
            program,
            unit,
            plan,
            scopes: vec![Scope::default()],
            assigned: BTreeSet::new(),
            result: None,
            out: String::new(),
            indent: 1,
            depth: 0,
            labels: Vec::new(),
            label_count: 0,
        }
    }

    pub(super) fn text(&self, node: Node<'t>) -> &'t str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    /// A node's text on one line, cut.
    pub(super) fn short(&self, node: Node<'t>) -> String {
        let line = crate::parse::tree::line(node, self.source);
        match line.char_indices().nth(60) {
            Some((at, _)) => format!("{}…", &line[..at]),
            None => line,
        }
    }

    pub(super) fn refuse(&self, node: Node<'t>, reason: &str) -> Refusal {
        Refusal {
            byte: node.start_byte(),
            reason: reason.to_string(),
        }
    }

    pub(super) fn local(&self, name: &str) -> Option<&Local<'t>> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.locals.get(name))
    }

    /// What a name of a template parameter or of a type alias stands for.
    pub(super) fn bound(&self, name: &str) -> Option<&str> {
        let mut found = self
            .scopes
            .iter()
            .rev()
            .flat_map(|scope| scope.types.iter().rev());
        let found = found.find(|(bound, _)| bound == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A type's text with aliases and template parameters replaced.
    pub(super) fn resolve(&self, text: &str) -> String {
        let mut text = text.trim().to_string();
        let inner = self
            .scopes
            .iter()
            .rev()
            .flat_map(|scope| scope.types.iter().rev());
        let pairs = inner.chain(&self.program.aliases);
        let pairs = pairs.map(|(name, kind)| (name.as_str(), kind.as_str()));
        let bindings: Vec<(&str, &str)> = pairs.filter(|(name, kind)| name != kind).collect();
        // An alias may stand for another.
        for _ in 0..8 {
            let next = types::substitute(&text, &bindings);
            if next == text || next.len() > 10_000 {
                break;
            }
            text = next;
        }
        text
    }

    /// The type that a text names.
    pub(super) fn kind(&self, text: &str) -> CType {
        let text = self.resolve(text);
        match types::argument(&text, &[]) {
            ArgumentKind::Pointer { element, .. } => CType::Pointer(element),
            ArgumentKind::Scalar(name) if name == "bool" => CType::Bool,
            ArgumentKind::Scalar(name) => CType::Number(name),
            ArgumentKind::Structure(name) => match super::basename(&name) {
                "dim3" => CType::Dim3,
                "cudaError_t" | "CUresult" | "cudaError" => CType::number("i32"),
                "cudaStream_t" | "CUstream" | "cudaEvent_t" => CType::Opaque,
                last if self.program.enumerations.iter().any(|known| known == last) => {
                    CType::number("i32")
                }
                _ => CType::Other(name),
            },
        }
    }

    pub(super) fn kind_with(&self, text: &str, bindings: &[(String, String)]) -> CType {
        let pairs = bindings
            .iter()
            .map(|(name, kind)| (name.as_str(), kind.as_str()));
        let pairs: Vec<(&str, &str)> = pairs.collect();
        self.kind(&types::substitute(text, &pairs))
    }

    /// What a function gives back; none for nothing.
    pub(super) fn result_of(&self, index: usize, bindings: &[(String, String)]) -> Option<CType> {
        let function = &self.program.functions[index];
        (function.result.trim() != "void").then(|| self.kind_with(&function.result, bindings))
    }

    /// The body of a function, with its parameters' names and types.
    pub fn function(mut self, index: usize, template: &[String]) -> Result<Body, Refusal> {
        let program = self.program;
        let function = &program.functions[index];
        let bindings = bindings(function, template);
        self.result = self.result_of(index, &bindings);
        if let Some(scope) = self.scopes.last_mut() {
            scope.types = bindings;
        }
        self.find_assigned(function.body);
        let mut parameters = Vec::new();
        for (at, parameter) in function.parameters.iter().enumerate() {
            let kind = self.kind(&parameter.kind);
            if parameter.kind.contains('&') && !parameter.kind.contains("const") {
                let reason = format!("`{}` is taken by reference", parameter.name);
                return Err(self.refuse(function.body, &reason));
            }
            let name = match parameter.name.as_str() {
                "" => format!("a{at}"),
                name => identifier(name),
            };
            if self.assigned.contains(parameter.name.as_str()) {
                self.line(&format!("let mut {name} = {name};"));
            }
            let value = Value::new(name.clone(), kind.clone());
            self.declare(&parameter.name, Local::Value(value));
            parameters.push((name, kind));
        }
        self.statement(function.body, true)?;
        if self
            .result
            .as_ref()
            .is_some_and(|result| result.rust().is_none())
        {
            return Err(self.refuse(function.body, "it gives back what Rust has no type for"));
        }
        Ok(Body {
            parameters,
            result: self.result,
            text: self.out,
        })
    }

    fn find_assigned(&mut self, body: Node<'t>) {
        let source = self.source;
        let assigned = &mut self.assigned;
        walk(body, |node| {
            let changed = match node.kind() {
                "assignment_expression" => field(node, "left"),
                // The address is taken for a result.
                "update_expression" | "pointer_expression" => field(node, "argument"),
                _ => None,
            };
            if let Some(name) = changed {
                let text = source.get(name.byte_range()).unwrap_or_default();
                assigned.insert(text.split('.').next().unwrap_or(text).trim());
            }
            true
        });
    }

    pub(super) fn declare(&mut self, name: &str, local: Local<'t>) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.locals.insert(name.to_string(), local);
        }
    }

    /// Writes lines at the present indentation.
    pub(super) fn line(&mut self, text: &str) {
        for line in text.lines() {
            for _ in 0..self.indent {
                self.out.push_str("    ");
            }
            self.out.push_str(line);
            self.out.push('\n');
        }
    }
}
