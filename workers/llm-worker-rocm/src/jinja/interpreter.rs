//! Runs a template: statements here, expressions in [`expression`], calls in [`calls`].

mod access;
mod calls;
mod expression;

pub(super) use calls::Args;

use super::ast::{FilterCall, For, Macro, Node, NodeKind, Target};
use super::error::{Error, Result};
use super::text::{Text, TextBuilder};
use super::value::{Dict, Heap, Key, Loop, Object, Value};
use super::{Rendered, Variable};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::rc::Rc;

/// Further units for each byte of the variables.
const FUEL_PER_BYTE: usize = 64;
/// Units of one step of a template.
const STEP: usize = 20;
/// Deepest evaluation, through expressions, statements, macros and recursive loops.
const MAX_DEPTH: usize = 1500;

/// Renders a template's nodes with an amount of fuel.
pub(super) fn render(nodes: &[Node], variables: &[Variable], fuel: usize) -> Result<Rendered> {
    let mut interpreter = Interpreter {
        heap: Heap::default(),
        scopes: Vec::new(),
        kept: 0,
        context: HashMap::new(),
        fuel,
        depth: 0,
    };
    for variable in variables {
        let mut bytes = 0;
        let value = interpreter.import(variable.value, variable.input, &mut bytes)?;
        interpreter.fuel = interpreter.fuel.saturating_add(bytes * FUEL_PER_BYTE);
        interpreter.context.insert(variable.name.to_string(), value);
    }
    let root = interpreter.push_scope(None);
    let mut out = TextBuilder::default();
    interpreter.run(nodes, root, &mut out)?;
    let (text, input) = out.into_parts();
    Ok(Rendered { text, input })
}

/// The state of one rendering.
pub(super) struct Interpreter<'t> {
    pub(super) heap: Heap<'t>,
    scopes: Vec<Scope<'t>>,
    /// Scopes that macros may still refer to.
    kept: usize,
    context: HashMap<String, Value>,
    fuel: usize,
    depth: usize,
}

#[derive(Default)]
struct Scope<'t> {
    variables: HashMap<&'t str, Value>,
    parent: Option<usize>,
}

/// How a body ended.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interpreter<'t> {
    /// Takes some of the fuel.
    ///
    /// # Errors
    /// [`Error`] of a limit if there is none left.
    pub(super) fn spend(&mut self, units: usize) -> Result<()> {
        match self.fuel.checked_sub(units) {
            Some(rest) => {
                self.fuel = rest;
                Ok(())
            }
            None => Err(Error::limit(
                "the template's fuel is used up: it takes too long or writes too much",
            )),
        }
    }

    /// Runs something one level deeper.
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.spend(STEP)?;
        if self.depth >= MAX_DEPTH {
            return Err(Error::limit("the template calls itself too deeply"));
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    pub(super) fn list(&mut self, items: Vec<Value>) -> Result<Value> {
        self.spend(64 + items.len() * 48)?;
        Ok(self.heap.add(Object::List(items)))
    }

    pub(super) fn tuple(&mut self, items: Vec<Value>) -> Result<Value> {
        self.spend(64 + items.len() * 48)?;
        Ok(self.heap.add(Object::Tuple(items)))
    }

    pub(super) fn dict(&mut self, dict: Dict) -> Result<Value> {
        self.spend(64 + dict.len() * 200)?;
        Ok(self.heap.add(Object::Dict(dict)))
    }

    /// A value that gives each of the items once.
    pub(super) fn iterator(&mut self, name: &'static str, items: Vec<Value>) -> Result<Value> {
        self.spend(64 + items.len() * 48)?;
        Ok(self.heap.add(Object::Iterator(name, items.into())))
    }

    /// JSON as values; adds its size.
    fn import(&mut self, json: &Json, input: bool, bytes: &mut usize) -> Result<Value> {
        let text = |text: &str| match input {
            true => Text::input(text),
            false => Text::own(text),
        };
        *bytes += 8;
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Value::Int(value.into()),
                (_, Some(value)) => Value::Int(value.into()),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(value) => {
                *bytes += value.len();
                Value::Str(text(value))
            }
            Json::Array(items) => {
                let items = items.iter().map(|item| self.import(item, input, bytes));
                let items = items.collect::<Result<_>>()?;
                self.heap.add(Object::List(items))
            }
            Json::Object(entries) => {
                let mut dict = Dict::with_capacity(entries.len());
                for (key, value) in entries {
                    *bytes += key.len();
                    let key = text(key);
                    let value = self.import(value, input, bytes)?;
                    dict.insert(Key::Str(key.clone()), (Value::Str(key), value));
                }
                self.heap.add(Object::Dict(dict))
            }
        })
    }

    fn push_scope(&mut self, parent: Option<usize>) -> usize {
        self.scopes.push(Scope {
            variables: HashMap::new(),
            parent,
        });
        self.scopes.len() - 1
    }

    fn pop_scope(&mut self, scope: usize) {
        if scope >= self.kept {
            self.scopes.truncate(scope);
        }
    }

    fn set(&mut self, scope: usize, name: &'t str, value: Value) {
        self.scopes[scope].variables.insert(name, value);
    }

    fn lookup(&self, scope: usize, name: &str) -> Option<Value> {
        let mut at = Some(scope);
        while let Some(scope) = at {
            let scope = &self.scopes[scope];
            if let Some(value) = scope.variables.get(name) {
                return Some(value.clone());
            }
            at = scope.parent;
        }
        self.context.get(name).cloned()
    }

    fn assign(&mut self, target: &'t Target, value: Value, scope: usize) -> Result<()> {
        match target {
            Target::Name(name) => self.set(scope, name, value),
            Target::Attribute(name, attribute) => {
                let namespace = self.lookup(scope, name);
                let Some(Value::Object(id)) = namespace else {
                    return Err(Error::runtime(
                        "cannot assign attribute on non-namespace object",
                    ));
                };
                if attribute.starts_with('_') {
                    return Err(Error::runtime(format!(
                        "a namespace has no attribute {attribute:?}"
                    )));
                }
                self.spend(attribute.len() + 64)?;
                let Object::Namespace(attributes) = self.heap.get_mut(id) else {
                    return Err(Error::runtime(
                        "cannot assign attribute on non-namespace object",
                    ));
                };
                let key = Text::own(attribute.as_str());
                attributes.insert(Key::Str(key.clone()), (Value::Str(key), value));
            }
            Target::Tuple(targets) => {
                let items = self.iterate(&value)?;
                if items.len() != targets.len() {
                    let (wanted, found) = (targets.len(), items.len());
                    return Err(Error::runtime(if found < wanted {
                        format!("not enough values to unpack (expected {wanted}, got {found})")
                    } else {
                        format!("too many values to unpack (expected {wanted})")
                    }));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    /// Runs nodes one after the other.
    fn run(&mut self, nodes: &'t [Node], scope: usize, out: &mut TextBuilder) -> Result<Flow> {
        for node in nodes {
            let flow = self
                .deeper(|this| this.run_one(node, scope, out))
                .map_err(|e| e.at(node.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn run_one(&mut self, node: &'t Node, scope: usize, out: &mut TextBuilder) -> Result<Flow> {
        match &node.kind {
            NodeKind::Data(text) => self.write(out, text)?,
            NodeKind::Print(value) => {
                let value = self.eval(value, scope)?;
                let text = self.text_of(&value)?;
                self.write(out, &text)?;
            }
            NodeKind::If {
                branches,
                otherwise,
            } => {
                for (condition, body) in branches {
                    let condition = self.eval(condition, scope)?;
                    if self.heap.truth(&condition) {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            NodeKind::For(node) => {
                let items = self.eval(&node.items, scope)?;
                self.run_loop(node, &items, scope, 0, out)?;
            }
            NodeKind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            NodeKind::SetBlock(target, filters, body) => {
                let text = self.capture(body, scope)?;
                let value = self.filtered(filters, Value::Str(text), scope)?;
                self.assign(target, value, scope)?;
            }
            NodeKind::Macro(node) => {
                let value = self.define(node, scope)?;
                self.set(scope, &node.name, value);
            }
            NodeKind::Call(call, caller) => {
                let caller = self.define(caller, scope)?;
                let value = self.call_with_caller(call, caller, scope)?;
                let text = self.text_of(&value)?;
                self.write(out, &text)?;
            }
            NodeKind::Filter(filters, body) => {
                let text = self.capture(body, scope)?;
                let value = self.filtered(filters, Value::Str(text), scope)?;
                let text = self.text_of(&value)?;
                self.write(out, &text)?;
            }
            NodeKind::With(variables, body) => {
                let inner = self.push_scope(Some(scope));
                for (target, value) in variables {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, inner)?;
                }
                let flow = self.run(body, inner, out)?;
                self.pop_scope(inner);
                return Ok(flow);
            }
            NodeKind::Break => return Ok(Flow::Break),
            NodeKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, out: &mut TextBuilder, text: &Text) -> Result<()> {
        self.spend(text.len())?;
        out.push(text);
        Ok(())
    }

    /// A body's text, with variables of its own.
    fn capture(&mut self, body: &'t [Node], scope: usize) -> Result<Text> {
        let mut text = TextBuilder::default();
        let inner = self.push_scope(Some(scope));
        self.run(body, inner, &mut text)?;
        self.pop_scope(inner);
        Ok(text.build())
    }

    fn filtered(
        &mut self,
        filters: &'t [FilterCall],
        mut value: Value,
        scope: usize,
    ) -> Result<Value> {
        for filter in filters {
            value = self.apply_filter(filter, value, scope)?;
        }
        Ok(value)
    }

    fn define(&mut self, node: &'t Macro, scope: usize) -> Result<Value> {
        self.spend(64)?;
        self.kept = self.scopes.len();
        Ok(self.heap.add(Object::Macro { node, scope }))
    }

    /// A loop over `items`, `depth` loops of a recursive one around it.
    fn run_loop(
        &mut self,
        node: &'t For,
        items: &Value,
        scope: usize,
        depth: usize,
        out: &mut TextBuilder,
    ) -> Result<()> {
        let mut items = self.iterate(items)?;
        if let Some(condition) = &node.condition {
            let mut chosen = Vec::new();
            for item in items {
                let inner = self.push_scope(Some(scope));
                self.assign(&node.target, item.clone(), inner)?;
                let condition = self.eval(condition, inner)?;
                self.pop_scope(inner);
                if self.heap.truth(&condition) {
                    chosen.push(item);
                }
            }
            items = chosen;
        }
        if items.is_empty() {
            self.run(&node.otherwise, scope, out)?;
            return Ok(());
        }
        if node.recursive {
            self.kept = self.scopes.len();
        }
        let items = Rc::new(items);
        let state = self.heap.add(Object::Loop(Loop {
            index: 0,
            items: items.clone(),
            depth,
            seen: None,
            recursive: node.recursive.then_some((node, scope)),
        }));
        for (index, item) in items.iter().enumerate() {
            self.spend(STEP)?;
            if let Value::Object(id) = state {
                if let Object::Loop(state) = self.heap.get_mut(id) {
                    state.index = index;
                }
            }
            let inner = self.push_scope(Some(scope));
            self.set(inner, "loop", state.clone());
            self.assign(&node.target, item.clone(), inner)?;
            let flow = self.run(&node.body, inner, out)?;
            self.pop_scope(inner);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }
}
