//! Filters: what follows `|`.

mod collections;
mod numbers;
mod text;

use super::error::{Error, Result};
use super::interpreter::{Args, Interpreter};
use super::text::Text;
use super::value::Value;

/// All filters by name.
const NAMES: [&str; 53] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

impl<'t> Interpreter<'t> {
    /// `value | name(args…)`
    pub(super) fn filter(&mut self, name: &str, value: Value, args: Args) -> Result<Value> {
        self.spend(16)?;
        match name {
            "default" | "d" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
                let boolean = boolean.is_some_and(|b| self.heap.truth(&b));
                let keeps = !value.is_undefined() && (!boolean || self.heap.truth(&value));
                Ok(match keeps {
                    true => value,
                    false => default.unwrap_or_else(|| Value::from("")),
                })
            }
            "attr" => {
                let [name] = args.bind(name, ["name"])?;
                match name {
                    Some(Value::Str(name)) if self.heap.dict(&value).is_none() => {
                        self.attribute(&value, name.as_str())
                    }
                    Some(Value::Str(name)) => self.dict_attribute(&value, name.as_str()),
                    _ => Err(Error::runtime("attr() needs a name")),
                }
            }
            "tojson" => self.json_filter(&value, args),
            "abs" | "int" | "float" | "round" | "sum" | "filesizeformat" => {
                self.number_filter(name, value, args)
            }
            "batch" | "count" | "dictsort" | "first" | "groupby" | "items" | "join" | "last"
            | "length" | "list" | "map" | "max" | "min" | "random" | "reject" | "rejectattr"
            | "reverse" | "select" | "selectattr" | "slice" | "sort" | "unique" => {
                self.collection_filter(name, value, args)
            }
            name if is_known(name) => self.text_filter(name, &value, args),
            _ => Err(Error::runtime(format!("No filter named '{name}'."))),
        }
    }

    /// An attribute of a mapping that is not an item.
    fn dict_attribute(&mut self, value: &Value, name: &str) -> Result<Value> {
        match super::methods::method_of(&self.heap, value, name) {
            Some(_) => self.attribute(value, name),
            None => Ok(Value::undefined(format!(
                "'dict object' has no attribute '{name}'"
            ))),
        }
    }

    /// An argument as an integer.
    fn integer(&self, value: Option<Value>, filter: &str, default: i128) -> Result<i128> {
        match value {
            None => Ok(default),
            Some(value) => value.as_index().ok_or_else(|| {
                let kind = self.heap.type_name(&value);
                Error::runtime(format!(
                    "{filter}: '{kind}' object cannot be interpreted as an integer"
                ))
            }),
        }
    }

    /// An argument as a text.
    fn text_or(&mut self, value: Option<Value>, default: &str) -> Result<Text> {
        match value {
            None => Ok(Text::own(default)),
            Some(value) => self.text_of(&value),
        }
    }

    fn flag(&self, value: &Option<Value>) -> bool {
        value.as_ref().is_some_and(|value| self.heap.truth(value))
    }
}
