//! Filters of numbers.

use super::super::ast::Binary;
use super::super::error::{Error, Result};
use super::super::interpreter::{Args, Interpreter};
use super::super::number::{parse_float, parse_int, round};
use super::super::value::{Number, Value};

/// A float cut off to an integer; `None` for one that is no number or too large.
fn truncated(value: f64) -> Option<i128> {
    (value.abs() < 1e38).then_some(value as i128)
}

impl<'t> Interpreter<'t> {
    pub(super) fn number_filter(&mut self, name: &str, value: Value, args: Args) -> Result<Value> {
        if let (Value::Undefined(reason), "int" | "float" | "abs" | "round") = (&value, name) {
            return Err(Error::runtime(reason.to_string()));
        }
        match name {
            "int" => {
                let [default, base] = args.bind(name, ["default", "base"])?;
                let base = self.integer(base, name, 10)?;
                let base = u32::try_from(base).unwrap_or(1);
                let number = match &value {
                    Value::Str(text) => parse_int(text.as_str(), base)
                        .or_else(|| parse_float(text.as_str()).and_then(truncated)),
                    other => match other.as_number() {
                        Some(Number::Int(value)) => Some(value),
                        Some(Number::Float(value)) => truncated(value),
                        None => None,
                    },
                };
                Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
            }
            "float" => {
                let [default] = args.bind(name, ["default"])?;
                let number = match &value {
                    Value::Str(text) => parse_float(text.as_str()),
                    other => other.as_number().map(Number::float),
                };
                Ok(number
                    .map(Value::Float)
                    .or(default)
                    .unwrap_or(Value::Float(0.0)))
            }
            "abs" => match value.as_number() {
                Some(Number::Int(value)) => Ok(Value::Int(value.saturating_abs())),
                Some(Number::Float(value)) => Ok(Value::Float(value.abs())),
                None => {
                    let kind = self.heap.type_name(&value);
                    Err(Error::runtime(format!(
                        "bad operand type for abs(): '{kind}'"
                    )))
                }
            },
            "round" => self.rounded(&value, args),
            "sum" => {
                let [attribute, start] = args.bind(name, ["attribute", "start"])?;
                let mut sum = start.unwrap_or(Value::Int(0));
                for item in self.iterate(&value)? {
                    let item = self.by_attribute(&item, attribute.as_ref(), None)?;
                    sum = self.binary(Binary::Add, &sum, &item)?;
                }
                Ok(sum)
            }
            _ => {
                let [binary] = args.bind(name, ["binary"])?;
                let binary = self.flag(&binary);
                let bytes = match &value {
                    Value::Str(text) => parse_float(text.as_str()),
                    other => other.as_number().map(Number::float),
                };
                let bytes = bytes.ok_or_else(|| Error::runtime("filesizeformat: not a number"))?;
                Ok(Value::from(file_size(bytes, binary)))
            }
        }
    }

    fn rounded(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [precision, method] = args.bind("round", ["precision", "method"])?;
        let precision = self.integer(precision, "round", 0)?;
        let method = self.text_or(method, "common")?;
        let Some(number) = value.as_number() else {
            let kind = self.heap.type_name(value);
            return Err(Error::runtime(format!(
                "type {kind} doesn't define __round__ method"
            )));
        };
        let scale = 10f64.powi(precision.clamp(-400, 400) as i32);
        Ok(match (method.as_str(), number) {
            ("common", Number::Int(value)) if precision >= 0 => Value::Int(value),
            ("common", Number::Int(value)) => Value::Int(round(value as f64, precision) as i128),
            ("common", Number::Float(value)) => Value::Float(round(value, precision)),
            ("ceil", number) => Value::Float((number.float() * scale).ceil() / scale),
            ("floor", number) => Value::Float((number.float() * scale).floor() / scale),
            _ => return Err(Error::runtime("method must be common, ceil or floor")),
        })
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".to_string();
    }
    if bytes < base {
        return format!("{} Bytes", bytes.trunc());
    }
    let mut rest = bytes / base;
    let mut prefixes = "kMGTPEZY".chars().peekable();
    while let Some(prefix) = prefixes.next() {
        if rest < base || prefixes.peek().is_none() {
            let prefix = if binary {
                prefix.to_ascii_uppercase()
            } else {
                prefix
            };
            return format!("{rest:.1} {prefix}{}B", if binary { "i" } else { "" });
        }
        rest /= base;
    }
    format!("{bytes} Bytes")
}
