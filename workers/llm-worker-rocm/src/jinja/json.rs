//! `tojson`: JSON as Python's `json.dumps` writes it, which transformers puts in the place of Jinja2's filter.

use super::error::{Error, Result};
use super::interpreter::{Args, Interpreter};
use super::number::float_repr;
use super::text::{Text, TextBuilder};
use super::value::{too_deep, Object, Value, MAX_VALUE_DEPTH};

struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<Text>,
    item: Text,
    key: Text,
}

impl<'t> Interpreter<'t> {
    pub(super) fn json_filter(&mut self, value: &Value, args: Args) -> Result<Value> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sort] = args.bind("tojson", names)?;
        let indent = match indent {
            None | Some(Value::None) => None,
            Some(Value::Str(unit)) => Some(unit),
            Some(width) => {
                let width = width
                    .as_index()
                    .ok_or_else(|| Error::runtime("tojson: indent is a number or text"))?;
                Some(Text::own(" ".repeat(width.clamp(0, 64) as usize)))
            }
        };
        let (item, key) = match separators {
            None | Some(Value::None) => {
                let item = if indent.is_some() { "," } else { ", " };
                (Text::own(item), Text::own(": "))
            }
            Some(pair) => match &self.iterate(&pair)?[..] {
                [Value::Str(item), Value::Str(key)] => (item.clone(), key.clone()),
                _ => return Err(Error::runtime("tojson: separators are a pair of texts")),
            },
        };
        let flag = |value: Option<Value>| value.is_some_and(|value| self.heap.truth(&value));
        let style = Style {
            ascii: flag(ascii),
            sort: flag(sort),
            indent,
            item,
            key,
        };
        let mut out = TextBuilder::default();
        self.write_json(&mut out, value, &style, 0)?;
        Ok(Value::Str(out.build()))
    }

    fn write_json(
        &mut self,
        out: &mut TextBuilder,
        value: &Value,
        style: &Style,
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_VALUE_DEPTH {
            return Err(too_deep());
        }
        let indent = style.indent.as_ref().map_or(0, |unit| unit.len() * depth);
        self.spend(16 + indent)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&json_float(*value)),
            Value::Str(text) => {
                self.spend(text.len())?;
                write_text(out, text, style.ascii);
            }
            other => return self.write_container(out, other, style, depth),
        }
        Ok(())
    }

    fn write_container(
        &mut self,
        out: &mut TextBuilder,
        value: &Value,
        style: &Style,
        depth: usize,
    ) -> Result<()> {
        let items = match self.heap.object(value) {
            Some(Object::List(items) | Object::Tuple(items)) => items.clone(),
            Some(Object::Group(pair)) => pair.to_vec(),
            // Python refuses these, but templates written for other engines rely on it.
            Some(Object::View(..) | Object::Iterator(..) | Object::Range { .. }) => {
                self.iterate(value)?
            }
            Some(Object::Dict(dict)) => {
                let mut entries: Vec<(Value, Value)> = dict.values().cloned().collect();
                if style.sort {
                    let keys: Vec<Value> = entries.iter().map(|(key, _)| key.clone()).collect();
                    let places = (0..entries.len()).map(Value::int).collect();
                    let order = self.sorted(places, keys, false)?;
                    let at = |place: Value| place.as_index().unwrap_or(0) as usize;
                    entries = order
                        .into_iter()
                        .map(|place| entries[at(place)].clone())
                        .collect();
                }
                out.push_str("{");
                let filled = !entries.is_empty();
                for (i, (key, value)) in entries.into_iter().enumerate() {
                    self.next_line(out, style, depth + 1, i > 0);
                    let key = match &key {
                        Value::Str(key) => key.clone(),
                        Value::None => Text::own("null"),
                        Value::Bool(true) => Text::own("true"),
                        Value::Bool(false) => Text::own("false"),
                        Value::Int(key) => Text::own(key.to_string()),
                        Value::Float(key) => Text::own(json_float(*key)),
                        other => {
                            let kind = self.heap.type_name(other);
                            return Err(Error::runtime(format!(
                                "keys must be str, int, float, bool or None, not {kind}"
                            )));
                        }
                    };
                    self.spend(key.len())?;
                    write_text(out, &key, style.ascii);
                    out.push(&style.key);
                    self.write_json(out, &value, style, depth + 1)?;
                }
                if filled && style.indent.is_some() {
                    self.next_line(out, style, depth, false);
                }
                out.push_str("}");
                return Ok(());
            }
            _ => {
                let kind = self.heap.type_name(value);
                return Err(Error::runtime(format!(
                    "Object of type {kind} is not JSON serializable"
                )));
            }
        };
        out.push_str("[");
        for (i, item) in items.iter().enumerate() {
            self.next_line(out, style, depth + 1, i > 0);
            self.write_json(out, item, style, depth + 1)?;
        }
        if !items.is_empty() && style.indent.is_some() {
            self.next_line(out, style, depth, false);
        }
        out.push_str("]");
        Ok(())
    }

    /// What comes before an item: a comma after another one, and a new line where there are lines.
    fn next_line(&self, out: &mut TextBuilder, style: &Style, depth: usize, comma: bool) {
        if comma {
            out.push(&style.item);
        }
        if let Some(unit) = &style.indent {
            out.push_str("\n");
            for _ in 0..depth {
                out.push(unit);
            }
        }
    }
}

fn json_float(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".to_string(),
        f64::INFINITY => "Infinity".to_string(),
        f64::NEG_INFINITY => "-Infinity".to_string(),
        v => float_repr(v),
    }
}

fn write_text(out: &mut TextBuilder, text: &Text, ascii: bool) {
    out.push_str("\"");
    for (piece, marked) in text.pieces() {
        let mut escaped = String::with_capacity(piece.len());
        for c in piece.chars() {
            match c {
                '"' => escaped.push_str("\\\""),
                '\\' => escaped.push_str("\\\\"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\x08' => escaped.push_str("\\b"),
                '\x0c' => escaped.push_str("\\f"),
                c if c < ' ' || (ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        escaped.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => escaped.push(c),
            }
        }
        out.push_as(&escaped, marked);
    }
    out.push_str("\"");
}
