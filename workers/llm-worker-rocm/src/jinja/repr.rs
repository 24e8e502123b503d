//! Values as text: Python's `str` and `repr`.

use super::error::Result;
use super::interpreter::Interpreter;
use super::number::float_repr;
use super::text::{Text, TextBuilder};
use super::value::{too_deep, Dict, Id, Object, Value, MAX_VALUE_DEPTH};

impl<'t> Interpreter<'t> {
    /// `str(value)`.
    pub(super) fn text_of(&mut self, value: &Value) -> Result<Text> {
        match value {
            Value::Str(text) => Ok(text.clone()),
            Value::Undefined(_) => Ok(Text::own("")),
            other => self.repr(other),
        }
    }

    /// `repr(value)`.
    pub(super) fn repr(&mut self, value: &Value) -> Result<Text> {
        let mut out = TextBuilder::default();
        self.write_repr(&mut out, value, &mut Vec::new())?;
        Ok(out.build())
    }

    fn write_repr(
        &mut self,
        out: &mut TextBuilder,
        value: &Value,
        around: &mut Vec<Id>,
    ) -> Result<()> {
        self.spend(40)?;
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&float_repr(*value)),
            Value::Str(text) => {
                let before = out.len();
                repr_text(out, text);
                // Escapes are several bytes for one, and slow.
                self.spend((out.len() - before).saturating_mul(4))?;
            }
            Value::Function(function) => out.push_str(&format!("<function {function:?}>")),
            Value::Object(id) => return self.write_object(out, *id, around),
        }
        Ok(())
    }

    fn write_object(&mut self, out: &mut TextBuilder, id: Id, around: &mut Vec<Id>) -> Result<()> {
        if around.len() > MAX_VALUE_DEPTH {
            return Err(too_deep());
        }
        let within = around.contains(&id);
        around.push(id);
        match self.heap.get(id) {
            Object::List(_) | Object::Dict(_) | Object::Tuple(_) if within => {
                let dots = match self.heap.get(id) {
                    Object::List(_) => "[...]",
                    Object::Dict(_) => "{...}",
                    _ => "(...)",
                };
                out.push_str(dots);
            }
            Object::List(items) => {
                let items = items.clone();
                self.write_items(out, "[", &items, "]", around)?;
            }
            Object::Tuple(items) => {
                let items = items.clone();
                let close = if items.len() == 1 { ",)" } else { ")" };
                self.write_items(out, "(", &items, close, around)?;
            }
            Object::Group(pair) => {
                let items = pair.to_vec();
                self.write_items(out, "(", &items, ")", around)?;
            }
            Object::View(name, items) => {
                let (open, items) = (format!("{name}(["), items.clone());
                self.write_items(out, &open, &items, "])", around)?;
            }
            Object::Dict(dict) => {
                let dict = dict.clone();
                self.write_dict(out, &dict, around)?;
            }
            Object::Namespace(dict) => {
                let dict = if within { None } else { Some(dict.clone()) };
                out.push_str("<Namespace ");
                match dict {
                    Some(dict) => self.write_dict(out, &dict, around)?,
                    None => out.push_str("{...}"),
                }
                out.push_str(">");
            }
            Object::Range { start, stop, step } => out.push_str(&match step {
                1 => format!("range({start}, {stop})"),
                _ => format!("range({start}, {stop}, {step})"),
            }),
            Object::Iterator(name, _) => out.push_str(&format!("<{name} object>")),
            Object::Loop(state) => {
                out.push_str(&format!(
                    "<LoopContext {}/{}>",
                    state.index + 1,
                    state.items.len()
                ));
            }
            Object::Macro { node, .. } => out.push_str(&format!("<Macro '{}'>", node.name)),
            Object::Cycler { .. } => out.push_str("<Cycler>"),
            Object::Joiner { .. } => out.push_str("<Joiner>"),
            Object::Method(value, name) => {
                let kind = self.heap.type_name(value);
                out.push_str(&format!("<built-in method {name} of {kind} object>"));
            }
        }
        around.pop();
        Ok(())
    }

    fn write_items(
        &mut self,
        out: &mut TextBuilder,
        open: &str,
        items: &[Value],
        close: &str,
        around: &mut Vec<Id>,
    ) -> Result<()> {
        out.push_str(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            self.write_repr(out, item, around)?;
        }
        out.push_str(close);
        Ok(())
    }

    fn write_dict(
        &mut self,
        out: &mut TextBuilder,
        dict: &Dict,
        around: &mut Vec<Id>,
    ) -> Result<()> {
        out.push_str("{");
        for (i, (key, value)) in dict.values().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            self.write_repr(out, key, around)?;
            out.push_str(": ");
            self.write_repr(out, value, around)?;
        }
        out.push_str("}");
        Ok(())
    }
}

/// A text in quotes: single ones, but for a text that has these and no double ones.
fn repr_text(out: &mut TextBuilder, text: &Text) {
    let whole = text.as_str();
    let quote = if whole.contains('\'') && !whole.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut quotes = [0; 4];
    let quotes = &*quote.encode_utf8(&mut quotes);
    out.push_str(quotes);
    for (piece, marked) in text.pieces() {
        let mut escaped = String::with_capacity(piece.len());
        for c in piece.chars() {
            match c {
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\\' => escaped.push_str("\\\\"),
                c if c == quote => {
                    escaped.push('\\');
                    escaped.push(c);
                }
                c if is_printable(c) => escaped.push(c),
                c => match u32::from(c) {
                    code @ 0..=0xff => escaped.push_str(&format!("\\x{code:02x}")),
                    code @ 0..=0xffff => escaped.push_str(&format!("\\u{code:04x}")),
                    code => escaped.push_str(&format!("\\U{code:08x}")),
                },
            }
        }
        out.push_as(&escaped, marked);
    }
    out.push_str(quotes);
}

/// `str.isprintable` for one character: no control, format, private or separating one but the space. Characters without
/// meaning, which Python escapes as well, are not known here.
pub(super) fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    let format = matches!(
        code,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f
            | 0xfeff | 0xfff9..=0xfffb | 0x1d173..=0x1d17a | 0xe0000..=0xe007f
    );
    let private = matches!(code, 0xe000..=0xf8ff | 0xf0000..=0x10ffff);
    c == ' ' || !(c.is_control() || c.is_whitespace() || format || private)
}
