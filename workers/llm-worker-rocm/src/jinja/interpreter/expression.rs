//! Expressions.

use super::super::ast::{Expr, ExprKind, FilterCall};
use super::super::error::Result;
use super::super::text::TextBuilder;
use super::super::value::{Dict, Function, Value};
use super::Interpreter;

impl<'t> Interpreter<'t> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expression: &'t Expr, scope: usize) -> Result<Value> {
        self.deeper(|this| this.eval_kind(&expression.kind, scope))
    }

    fn eval_kind(&mut self, kind: &'t ExprKind, scope: usize) -> Result<Value> {
        match kind {
            ExprKind::None => Ok(Value::None),
            ExprKind::Bool(value) => Ok(Value::Bool(*value)),
            ExprKind::Int(value) => Ok(Value::Int(*value)),
            ExprKind::Float(value) => Ok(Value::Float(*value)),
            ExprKind::Str(text) => Ok(Value::Str(text.clone())),
            ExprKind::Name(name) => Ok(self.name(name, scope)),
            ExprKind::List(items) => {
                let items = self.eval_all(items, scope)?;
                self.list(items)
            }
            ExprKind::Tuple(items) => {
                let items = self.eval_all(items, scope)?;
                self.tuple(items)
            }
            ExprKind::Dict(entries) => self.eval_dict(entries, scope),
            ExprKind::Attribute(value, name) => {
                let value = self.eval(value, scope)?;
                self.attribute(&value, name)
            }
            ExprKind::Item(value, key) => {
                let value = self.eval(value, scope)?;
                let key = self.eval(key, scope)?;
                self.item(&value, &key)
            }
            ExprKind::Slice(value, bounds) => {
                let value = self.eval(value, scope)?;
                let mut evaluated = [Value::None, Value::None, Value::None];
                for (bound, to) in bounds.iter().zip(&mut evaluated) {
                    if let Some(bound) = bound {
                        *to = self.eval(bound, scope)?;
                    }
                }
                self.slice(&value, &evaluated)
            }
            ExprKind::Call(callee, arguments) => self.eval_call(callee, arguments, None, scope),
            ExprKind::Filter(value, filter) => {
                let value = self.eval(value, scope)?;
                self.apply_filter(filter, value, scope)
            }
            ExprKind::Test(value, test) => {
                let value = self.eval(value, scope)?;
                let args = self.eval_arguments(&test.arguments, scope)?;
                Ok(Value::Bool(self.test(
                    &test.name,
                    &value,
                    args.positional,
                )?))
            }
            ExprKind::Not(value) => {
                let value = self.eval(value, scope)?;
                Ok(Value::Bool(!self.heap.truth(&value)))
            }
            ExprKind::Negative(value) => {
                let value = self.eval(value, scope)?;
                self.negative(&value)
            }
            ExprKind::Positive(value) => {
                let value = self.eval(value, scope)?;
                self.positive(&value)
            }
            ExprKind::Binary(operation, a, b) => {
                let a = self.eval(a, scope)?;
                let b = self.eval(b, scope)?;
                self.binary(*operation, &a, &b)
            }
            ExprKind::Concat(parts) => self.eval_concat(parts, scope),
            ExprKind::And(a, b) => {
                let a = self.eval(a, scope)?;
                match self.heap.truth(&a) {
                    true => self.eval(b, scope),
                    false => Ok(a),
                }
            }
            ExprKind::Or(a, b) => {
                let a = self.eval(a, scope)?;
                match self.heap.truth(&a) {
                    true => Ok(a),
                    false => self.eval(b, scope),
                }
            }
            ExprKind::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (comparison, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !self.compare(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            ExprKind::If(condition, then, otherwise) => {
                let condition = self.eval(condition, scope)?;
                match (self.heap.truth(&condition), otherwise) {
                    (true, _) => self.eval(then, scope),
                    (false, Some(otherwise)) => self.eval(otherwise, scope),
                    (false, None) => Ok(Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined",
                    )),
                }
            }
        }
    }

    fn eval_all(&mut self, items: &'t [Expr], scope: usize) -> Result<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn eval_dict(&mut self, entries: &'t [(Expr, Expr)], scope: usize) -> Result<Value> {
        let mut dict = Dict::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.eval(key, scope)?;
            let value = self.eval(value, scope)?;
            insert(&mut dict, self.heap.key(&key)?, key, value);
        }
        self.dict(dict)
    }

    fn eval_concat(&mut self, parts: &'t [Expr], scope: usize) -> Result<Value> {
        let mut text = TextBuilder::default();
        for part in parts {
            let part = self.eval(part, scope)?;
            let part = self.text_of(&part)?;
            self.spend(part.len())?;
            text.push(&part);
        }
        Ok(Value::Str(text.build()))
    }

    fn name(&self, name: &str, scope: usize) -> Value {
        if let Some(value) = self.lookup(scope, name) {
            return value;
        }
        match Function::ALL.iter().find(|(known, _)| *known == name) {
            Some((_, function)) => Value::Function(*function),
            None => Value::undefined(format!("'{name}' is undefined")),
        }
    }

    pub(super) fn apply_filter(
        &mut self,
        filter: &'t FilterCall,
        value: Value,
        scope: usize,
    ) -> Result<Value> {
        let args = self.eval_arguments(&filter.arguments, scope)?;
        self.filter(&filter.name, value, args)
    }
}

/// Adds an entry as Python does: a key that is there already stays as it was.
pub(crate) fn insert(dict: &mut Dict, key: super::super::value::Key, spelled: Value, value: Value) {
    match dict.get_mut(&key) {
        Some((_, old)) => *old = value,
        None => {
            dict.insert(key, (spelled, value));
        }
    }
}
