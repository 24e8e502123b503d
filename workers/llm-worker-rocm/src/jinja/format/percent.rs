//! `%` on texts.

use super::super::error::{Error, Result};
use super::super::interpreter::Interpreter;
use super::super::text::{Text, TextBuilder};
use super::super::value::{Number, Object, Value};
use super::spec::{cut, fault, float_digits, integer_digits, leading_number, Spec, MAX_WIDTH};

impl<'t> Interpreter<'t> {
    /// `format % values`
    pub(in super::super) fn percent_format(
        &mut self,
        format: &Text,
        values: &Value,
    ) -> Result<Value> {
        let mut values_in_order = match self.heap.object(values) {
            Some(Object::Tuple(items)) => items.clone().into_iter(),
            _ => vec![values.clone()].into_iter(),
        };
        // Python takes whatever has items for a mapping, but for texts and tuples.
        let is_mapping = match self.heap.object(values) {
            Some(Object::List(_) | Object::Dict(_) | Object::Range { .. }) => true,
            Some(_) => false,
            None => values.is_undefined(),
        };
        let mut by_key = false;
        let mut out = TextBuilder::default();
        let whole = format.as_str();
        self.spend(whole.len())?;
        let mut at = 0;
        while let Some(found) = whole[at..].find('%') {
            out.push_slice(format, at..at + found);
            let mut rest = &whole[at + found + 1..];
            let mut key = None;
            if let Some(after) = rest.strip_prefix('(') {
                let Some(end) = after.find(')') else {
                    return fault("incomplete format key");
                };
                key = Some(Text::own(&after[..end]));
                rest = &after[end + 1..];
            }
            let mut spec = Spec::default();
            let mut zero = false;
            let mut left = false;
            loop {
                match rest.as_bytes().first() {
                    Some(b'-') => left = true,
                    Some(b'0') => zero = true,
                    Some(b'#') => spec.alternate = true,
                    Some(b'+') => spec.sign = Some('+'),
                    Some(b' ') => spec.sign = spec.sign.or(Some(' ')),
                    _ => break,
                }
                rest = &rest[1..];
            }
            let mut next = || {
                values_in_order
                    .next()
                    .ok_or_else(|| Error::runtime("not enough arguments for format string"))
            };
            let mut number = |rest: &mut &str| -> Result<Option<i128>> {
                if let Some(after) = rest.strip_prefix('*') {
                    *rest = after;
                    return match next()?.as_index() {
                        Some(value) if value.unsigned_abs() <= MAX_WIDTH as u128 => Ok(Some(value)),
                        _ => fault("* wants int"),
                    };
                }
                let (number, after) = leading_number(rest)?;
                *rest = after;
                Ok(number.map(|n| n as i128))
            };
            let width = number(&mut rest)?.unwrap_or(0);
            left |= width < 0;
            spec.width = width.unsigned_abs() as usize;
            if let Some(after) = rest.strip_prefix('.') {
                rest = after;
                spec.precision = Some(number(&mut rest)?.unwrap_or(0).max(0) as usize);
            }
            rest = rest.strip_prefix(['l', 'h', 'L']).unwrap_or(rest);
            let Some(kind) = rest.chars().next() else {
                return fault("incomplete format");
            };
            at = whole.len() - rest.len() + kind.len_utf8();
            if kind == '%' {
                out.push_str("%");
                continue;
            }
            let value = match key {
                Some(key) => {
                    by_key = true;
                    if self.heap.dict(values).is_none() {
                        return fault("format requires a mapping");
                    }
                    let found = self.entry(values, &key);
                    found.ok_or_else(|| {
                        Error::runtime(format!("there is no key '{}'", key.as_str()))
                    })?
                }
                None => next()?,
            };
            if left {
                spec.align = Some('<');
            } else if zero {
                (spec.align, spec.fill) = (Some('='), Some('0'));
            }
            self.spend(spec.width)?;
            let text = self.percent_value(&value, kind, spec)?;
            self.spend(text.len())?;
            out.push(&text);
        }
        out.push_slice(format, at..whole.len());
        if !by_key && !is_mapping && values_in_order.next().is_some() {
            return fault("not all arguments converted during string formatting");
        }
        Ok(Value::Str(out.build()))
    }

    fn percent_value(&mut self, value: &Value, kind: char, mut spec: Spec) -> Result<Text> {
        let own = Text::own("");
        let text = match kind {
            's' => self.text_of(value)?,
            'r' | 'a' => self.repr(value)?,
            'c' => match value {
                Value::Str(text) if text.as_str().chars().count() == 1 => text.clone(),
                other => match other
                    .as_index()
                    .and_then(|code| u32::try_from(code).ok())
                    .and_then(char::from_u32)
                {
                    Some(c) => Text::own(c.to_string()),
                    None => return fault("%c requires int or char"),
                },
            },
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let number = match value.as_number() {
                    Some(Number::Int(value)) => value,
                    Some(Number::Float(value))
                        if !matches!(kind, 'x' | 'X' | 'o') && value.abs() < 1e38 =>
                    {
                        value as i128
                    }
                    _ => {
                        let type_name = self.heap.type_name(value);
                        return fault(format!(
                            "%{kind} format: a number is required, not {type_name}"
                        ));
                    }
                };
                let (prefix, digits) = integer_digits(number, kind);
                let prefix = if spec.alternate { prefix } else { "" };
                let precision = spec.precision.unwrap_or(0);
                self.spend(precision)?;
                let digits = format!("{digits:0>precision$}");
                let head = format!("{}{prefix}", spec.sign_of(number < 0));
                return Ok(spec.lay_number(&head, &digits));
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let Some(number) = value.as_number().map(Number::float) else {
                    let type_name = self.heap.type_name(value);
                    return fault(format!("must be real number, not {type_name}"));
                };
                let digits = float_digits(number, kind, spec.precision, spec.alternate)?;
                return Ok(spec.lay_number(spec.sign_of(number.is_sign_negative()), &digits));
            }
            other => return fault(format!("unsupported format character '{other}'")),
        };
        let text = match spec.precision {
            Some(most) => cut(&text, most),
            None => text,
        };
        // Texts are filled with blanks.
        if spec.align == Some('=') {
            (spec.align, spec.fill) = (None, None);
        }
        Ok(spec.lay(&own, &text, '>'))
    }
}
