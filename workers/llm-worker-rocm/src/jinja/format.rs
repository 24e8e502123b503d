//! Python's two ways to fill values into a text: `%` ([`percent`]) and `str.format`.

mod percent;
mod spec;

use super::error::{Error, Result};
use super::interpreter::{Args, Interpreter};
use super::number::float_repr;
use super::text::{Text, TextBuilder};
use super::value::{Number, Value};
use spec::{cut, fault, float_digits, general_digits, integer_digits, Spec};

impl<'t> Interpreter<'t> {
    /// `text.format(…)`
    pub(super) fn format(&mut self, format: &Text, args: Args) -> Result<Value> {
        let mut automatic = 0;
        let text = self.fill(format, &args, &mut automatic, 0)?;
        Ok(Value::Str(text))
    }

    fn fill(
        &mut self,
        format: &Text,
        args: &Args,
        automatic: &mut usize,
        depth: usize,
    ) -> Result<Text> {
        if depth > 2 {
            return fault("Max string recursion exceeded");
        }
        let whole = format.as_str();
        self.spend(whole.len())?;
        let mut out = TextBuilder::default();
        let mut at = 0;
        while let Some(found) = whole[at..].find(['{', '}']) {
            let brace = at + found;
            out.push_slice(format, at..brace);
            let c = &whole[brace..brace + 1];
            if whole[brace + 1..].starts_with(c) {
                out.push_slice(format, brace..brace + 1);
                at = brace + 2;
                continue;
            }
            if c == "}" {
                return fault("Single '}' encountered in format string");
            }
            let mut open = 1;
            let end = whole[brace + 1..].find(|c| {
                open += match c {
                    '{' => 1,
                    '}' => -1,
                    _ => 0,
                };
                open == 0
            });
            let Some(end) = end.map(|end| brace + 1 + end) else {
                return fault("expected '}' before end of string");
            };
            let field = format.slice(brace + 1..end);
            let text = self.field(&field, args, automatic, depth)?;
            self.spend(text.len())?;
            out.push(&text);
            at = end + 1;
        }
        out.push_slice(format, at..whole.len());
        Ok(out.build())
    }

    /// `name!conversion:spec`
    fn field(
        &mut self,
        field: &Text,
        args: &Args,
        automatic: &mut usize,
        depth: usize,
    ) -> Result<Text> {
        let whole = field.as_str();
        // A colon within brackets belongs to the name.
        let mut brackets = 0;
        let split = whole.find(|c| {
            brackets += match c {
                '[' => 1,
                ']' => -1,
                _ => 0,
            };
            brackets <= 0 && matches!(c, ':' | '!')
        });
        let (name, rest) = whole.split_at(split.unwrap_or(whole.len()));
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let (conversion, spec) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
                (conversion, spec)
            }
            None => ("", rest),
        };
        let value = self.field_value(name, args, automatic)?;
        let value = match conversion {
            "" => value,
            "s" => Value::Str(self.text_of(&value)?),
            "r" | "a" => Value::Str(self.repr(&value)?),
            other => return fault(format!("Unknown conversion specifier '{other}'")),
        };
        let spec = field.part(spec.strip_prefix(':').unwrap_or(""));
        let spec = match spec.as_str().contains('{') {
            true => self.fill(&spec, args, automatic, depth + 1)?,
            false => spec,
        };
        let spec = Spec::parse(spec.as_str())?;
        self.spend(spec.width)?;
        self.formatted(&value, spec)
    }

    fn field_value(&mut self, name: &str, args: &Args, automatic: &mut usize) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = match (first, first.parse::<usize>()) {
            ("", _) => {
                *automatic += 1;
                args.positional.get(*automatic - 1).cloned()
            }
            (_, Ok(index)) => args.positional.get(index).cloned(),
            (name, _) => args
                .named
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone()),
        }
        .ok_or_else(|| Error::runtime(format!("format: there is no argument '{first}'")))?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = self.attribute(&value, &after[..end])?;
                rest = &after[end..];
            } else {
                let Some((key, after)) =
                    rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
                else {
                    return fault("Missing ']' in format string");
                };
                let key = key
                    .parse::<i128>()
                    .map_or_else(|_| Value::from(key), Value::Int);
                value = self.item(&value, &key)?;
                rest = after;
            }
            if let Value::Undefined(reason) = &value {
                return fault(reason.to_string());
            }
        }
        Ok(value)
    }

    /// `format(value, spec)`
    fn formatted(&mut self, value: &Value, spec: Spec) -> Result<Text> {
        let bad_kind = |kind: char, name: &str| {
            Error::runtime(format!(
                "Unknown format code '{kind}' for object of type '{name}'"
            ))
        };
        let type_name = self.heap.type_name(value);
        let plain = spec == Spec::default();
        match (value, spec.kind) {
            // Booleans are numbers to a format with anything in it.
            (Value::Bool(_), _) if plain => self.text_of(value),
            (Value::Str(_), None | Some('s'))
                if spec.grouping.is_some() || spec.sign.is_some() || spec.alternate =>
            {
                fault("a text has no sign, no separators and no alternate form")
            }
            (Value::Str(text), None | Some('s')) => {
                if spec.align == Some('=') && spec.fill != Some('0') {
                    return fault("'=' alignment not allowed in string format specifier");
                }
                let mut spec = spec;
                if spec.align == Some('=') {
                    spec.align = None;
                }
                let text = match spec.precision {
                    Some(most) => cut(text, most),
                    None => text.clone(),
                };
                Ok(spec.lay(&Text::own(""), &text, '<'))
            }
            (Value::Str(_), Some(kind)) => Err(bad_kind(kind, type_name)),
            _ => match (value.as_number(), spec.kind) {
                (Some(Number::Int(number)), None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n')) => {
                    if spec.precision.is_some() {
                        return fault("Precision not allowed in integer format specifier");
                    }
                    let (prefix, digits) = integer_digits(number, spec.kind.unwrap_or('d'));
                    let prefix = if spec.alternate { prefix } else { "" };
                    let head = format!("{}{prefix}", spec.sign_of(number < 0));
                    Ok(spec.lay_number(&head, &digits))
                }
                (Some(Number::Int(number)), Some('c')) => {
                    let c = u32::try_from(number).ok().and_then(char::from_u32);
                    let c = c.ok_or_else(|| Error::runtime("%c arg not in range"))?;
                    Ok(spec.lay(&Text::own(""), &Text::own(c.to_string()), '<'))
                }
                (Some(number), None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) => {
                    self.spend(spec.precision.unwrap_or(0))?;
                    let number = number.float();
                    let digits = match spec.kind {
                        Some('%') => {
                            float_digits(number * 100.0, 'f', spec.precision, spec.alternate)? + "%"
                        }
                        Some('n') => float_digits(number, 'g', spec.precision, spec.alternate)?,
                        Some(kind) => float_digits(number, kind, spec.precision, spec.alternate)?,
                        None if spec.precision.is_none() => float_repr(number.abs()),
                        None => general_digits(number, spec.precision.unwrap_or(1))?,
                    };
                    Ok(spec.lay_number(spec.sign_of(number.is_sign_negative()), &digits))
                }
                (Some(_), Some(kind)) => Err(bad_kind(kind, type_name)),
                (None, _) if plain => self.text_of(value),
                (None, _) => fault(format!(
                    "unsupported format string passed to {type_name}.__format__"
                )),
            },
        }
    }
}
