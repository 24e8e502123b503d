//! Tests: what follows `is`.

use super::ast::Comparison;
use super::error::{Error, Result};
use super::filters;
use super::interpreter::Interpreter;
use super::value::{Object, Value};

/// All tests by name.
const NAMES: [&str; 37] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
];

impl<'t> Interpreter<'t> {
    /// `value is name(arguments…)`
    pub(super) fn test(
        &mut self,
        name: &str,
        value: &Value,
        arguments: Vec<Value>,
    ) -> Result<bool> {
        let mut arguments = arguments.into_iter();
        let mut argument = || {
            let argument = arguments.next();
            argument.ok_or_else(|| Error::runtime(format!("the test '{name}' needs an argument")))
        };
        let comparison = match name {
            "eq" | "equalto" | "==" => Some(Comparison::Equal),
            "ne" | "!=" => Some(Comparison::NotEqual),
            "lt" | "lessthan" | "<" => Some(Comparison::Less),
            "le" | "<=" => Some(Comparison::LessOrEqual),
            "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
            "ge" | ">=" => Some(Comparison::GreaterOrEqual),
            "in" => Some(Comparison::In),
            _ => None,
        };
        if let Some(comparison) = comparison {
            return self.compare(comparison, value, &argument()?);
        }
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            // Python's booleans are numbers.
            "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
            "string" => matches!(value, Value::Str(_)),
            "mapping" => self.heap.dict(value).is_some(),
            // What has a length and items by number or key; an absent value counts, as it has both methods.
            "sequence" => match self.heap.object(value) {
                Some(
                    Object::List(_) | Object::Tuple(_) | Object::Dict(_) | Object::Range { .. },
                ) => true,
                Some(_) => false,
                None => matches!(value, Value::Str(_) | Value::Undefined(_)),
            },
            "iterable" => match self.heap.object(value) {
                Some(
                    Object::List(_)
                    | Object::Tuple(_)
                    | Object::Dict(_)
                    | Object::View(..)
                    | Object::Iterator(..)
                    | Object::Range { .. }
                    | Object::Loop(_),
                ) => true,
                Some(_) => false,
                None => matches!(value, Value::Str(_) | Value::Undefined(_)),
            },
            "callable" => match value {
                Value::Function(_) | Value::Undefined(_) => true,
                other => matches!(
                    self.heap.object(other),
                    Some(
                        Object::Macro { .. }
                            | Object::Method(..)
                            | Object::Joiner { .. }
                            | Object::Loop(_)
                    )
                ),
            },
            "lower" | "upper" => {
                let text = self.text_of(value)?;
                let changes = match name {
                    "lower" => text.as_str().chars().any(char::is_uppercase),
                    _ => text.as_str().chars().any(char::is_lowercase),
                };
                !changes
                    && text
                        .as_str()
                        .chars()
                        .any(|c| c.is_uppercase() || c.is_lowercase())
            }
            "odd" => self.leaves(value, &Value::Int(2), 1)?,
            "even" => self.leaves(value, &Value::Int(2), 0)?,
            "divisibleby" => {
                let by = argument()?;
                self.leaves(value, &by, 0)?
            }
            "sameas" => self.same(value, &argument()?)?,
            "escaped" => false,
            "filter" => matches!(value, Value::Str(name) if filters::is_known(name.as_str())),
            "test" => matches!(value, Value::Str(name) if is_known(name.as_str())),
            _ => return Err(Error::runtime(format!("No test named '{name}'."))),
        })
    }

    /// Whether a division leaves this rest.
    fn leaves(&mut self, value: &Value, by: &Value, wanted: i128) -> Result<bool> {
        let rest = self.binary(super::ast::Binary::Modulo, value, by)?;
        self.equal(&rest, &Value::Int(wanted))
    }

    /// `value is other`: the same object. Equal small values are one object in Python.
    fn same(&mut self, value: &Value, other: &Value) -> Result<bool> {
        Ok(match (value, other) {
            (Value::Object(a), Value::Object(b)) => a == b,
            (Value::Str(_), Value::Str(_))
            | (Value::Int(_), Value::Int(_))
            | (Value::Bool(_), Value::Bool(_))
            | (Value::Float(_), Value::Float(_))
            | (Value::None, Value::None) => self.equal(value, other)?,
            _ => false,
        })
    }
}

fn is_known(name: &str) -> bool {
    NAMES.contains(&name) || matches!(name, "undefined" | "upper")
}
