//! Methods of Python's types. Unlike transformers' sandbox, lists and mappings can be changed by theirs.

mod collections;
mod parts;
pub(super) mod text;

use super::error::{Error, Result};
use super::interpreter::{Args, Interpreter};
use super::value::{Heap, Object, Value};

const LIST: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const LOOP: [&str; 2] = ["changed", "cycle"];
const CYCLER: [&str; 2] = ["next", "reset"];
const FLOAT: [&str; 1] = ["is_integer"];
const INT: [&str; 1] = ["bit_length"];

/// The method of that name, if values of this type have it.
pub(super) fn method_of(heap: &Heap, value: &Value, name: &str) -> Option<&'static str> {
    let methods: &[&'static str] = match value {
        Value::Str(_) => &text::METHODS,
        Value::Float(_) => &FLOAT,
        Value::Int(_) | Value::Bool(_) => &INT,
        Value::Function(super::value::Function::Dict) => &["fromkeys"],
        Value::Object(id) => match heap.get(*id) {
            Object::List(_) => &LIST,
            Object::Tuple(_) => &TUPLE,
            Object::Dict(_) => &DICT,
            Object::Loop(_) => &LOOP,
            Object::Cycler { .. } => &CYCLER,
            _ => return None,
        },
        _ => return None,
    };
    methods.iter().find(|known| **known == name).copied()
}

impl<'t> Interpreter<'t> {
    pub(super) fn call_method(
        &mut self,
        value: &Value,
        name: &'static str,
        args: Args,
    ) -> Result<Value> {
        match value {
            Value::Str(text) => self.text_method(text, name, args),
            Value::Object(id) => self.object_method(*id, name, args),
            Value::Float(value) => {
                args.positional_only::<0>(name)?;
                Ok(Value::Bool(value.fract() == 0.0))
            }
            Value::Function(_) => {
                let [keys, value] = args.positional_only::<2>(name)?;
                self.dict_from_keys(keys, value)
            }
            other => match other.as_index() {
                Some(value) => {
                    args.positional_only::<0>(name)?;
                    Ok(Value::Int(
                        (128 - value.unsigned_abs().leading_zeros()).into(),
                    ))
                }
                None => Err(Error::runtime(format!("there is no method {name}"))),
            },
        }
    }
}
