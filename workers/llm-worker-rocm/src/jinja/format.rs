//! Python's two ways to fill values into a text: `%` and `str.format`.

use super::error::{Error, Result};
use super::interpreter::{Args, Interpreter};
use super::number::{exponent_form, float_repr};
use super::text::{Text, TextBuilder};
use super::value::{Number, Value};

/// Most digits after the point, and the widest field.
const MAX_WIDTH: usize = 1 << 20;
const MAX_PRECISION: usize = 1000;

/// How a value is laid out.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn fault<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::runtime(message))
}

/// A number at the front of a text, and the rest.
fn leading_number(text: &str) -> Result<(Option<usize>, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    if end == 0 {
        return Ok((None, text));
    }
    match text[..end].parse() {
        Ok(number) if number <= MAX_WIDTH => Ok((Some(number), &text[end..])),
        _ => Err(Error::limit("a field is too wide")),
    }
}

impl Spec {
    /// `[[fill]align][sign][#][0][width][grouping][.precision][type]`
    fn parse(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        let mut rest = text;
        let mut chars = text.chars();
        let is_align = |c: Option<char>| matches!(c, Some('<' | '>' | '^' | '='));
        let (first, second) = (chars.next(), chars.next());
        if is_align(second) {
            (spec.fill, spec.align) = (first, second);
            rest = chars.as_str();
        } else if is_align(first) {
            spec.align = first;
            rest = &text[1..];
        }
        let take = |rest: &mut &str, options: &[char]| {
            let c = rest.chars().next().filter(|c| options.contains(c))?;
            *rest = &rest[1..];
            Some(c)
        };
        spec.sign = take(&mut rest, &['+', '-', ' ']);
        spec.alternate = take(&mut rest, &['#']).is_some();
        if take(&mut rest, &['0']).is_some() {
            spec.fill = spec.fill.or(Some('0'));
            spec.align = spec.align.or(Some('='));
        }
        let (width, after) = leading_number(rest)?;
        spec.width = width.unwrap_or(0);
        rest = after;
        spec.grouping = take(&mut rest, &[',', '_']);
        if take(&mut rest, &['.']).is_some() {
            let (precision, after) = leading_number(rest)?;
            if precision.is_none() {
                return fault("Format specifier missing precision");
            }
            spec.precision = precision;
            rest = after;
        }
        let mut chars = rest.chars();
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => fault(format!("Invalid format specifier '{text}'")),
        }
    }

    fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    /// The number in its field: sign, prefix such as `0x`, digits.
    fn lay_number(&self, head: &str, digits: &str) -> Text {
        let digits = match self.grouping {
            Some(mark) => {
                let size = if matches!(self.kind, Some('x' | 'X' | 'o' | 'b')) {
                    4
                } else {
                    3
                };
                let padded = match (self.align, self.fill) {
                    (Some('='), Some('0')) => self.width.saturating_sub(head.len()),
                    _ => 0,
                };
                grouped(digits, mark, size, padded)
            }
            None => digits.to_string(),
        };
        self.lay(&Text::own(head), &Text::own(digits), '>')
    }

    /// `head` and `body` in the field, which is aligned as `default` unless the spec says otherwise.
    fn lay(&self, head: &Text, body: &Text, default: char) -> Text {
        let length = head.as_str().chars().count() + body.as_str().chars().count();
        let missing = self.width.saturating_sub(length);
        let (before, between, after) = match self.align.unwrap_or(default) {
            '<' => (0, 0, missing),
            '^' => (missing / 2, 0, missing - missing / 2),
            '=' => (0, missing, 0),
            _ => (missing, 0, 0),
        };
        let fill = |count: usize| self.fill.unwrap_or(' ').to_string().repeat(count);
        let mut out = TextBuilder::default();
        out.push_str(&fill(before));
        out.push(head);
        out.push_str(&fill(between));
        out.push(body);
        out.push_str(&fill(after));
        out.build()
    }
}

/// Digits before the point in groups, with zeros before them up to a width.
fn grouped(digits: &str, mark: char, size: usize, width: usize) -> String {
    let end = digits
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut out: Vec<char> = Vec::new();
    let mut whole = whole.chars().rev();
    let mut count = 0;
    loop {
        let next = whole.next();
        let c = match next {
            Some(c) => c,
            None if out.len() + rest.len() < width => '0',
            None => break,
        };
        if count > 0 && count % size == 0 {
            out.push(mark);
        }
        out.push(c);
        count += 1;
    }
    out.iter()
        .rev()
        .chain(&rest.chars().collect::<Vec<_>>())
        .collect()
}

/// The digits of a float without its sign.
fn float_digits(
    value: f64,
    kind: char,
    precision: Option<usize>,
    alternate: bool,
) -> Result<String> {
    let value = value.abs();
    let digits = precision.unwrap_or(6);
    if digits > MAX_PRECISION {
        return Err(Error::limit("too many digits"));
    }
    let upper = |text: String| match kind.is_ascii_uppercase() {
        true => text.to_ascii_uppercase(),
        false => text,
    };
    if !value.is_finite() {
        return Ok(upper(
            if value.is_nan() { "nan" } else { "inf" }.to_string(),
        ));
    }
    Ok(upper(match kind.to_ascii_lowercase() {
        'f' => format!("{value:.digits$}"),
        'e' => exponent_form(&format!("{value:.digits$e}")),
        _ => {
            let digits = digits.max(1);
            let scientific = format!("{value:.*e}", digits - 1);
            let exponent: i32 = scientific
                .split_once('e')
                .and_then(|(_, e)| e.parse().ok())
                .unwrap_or(0);
            let text = if exponent < -4 || exponent >= digits as i32 {
                exponent_form(&scientific)
            } else {
                format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize)
            };
            match alternate {
                true => text,
                false => without_zeros(&text),
            }
        }
    }))
}

/// A number without zeros at the end of its fraction.
fn without_zeros(text: &str) -> String {
    let (mantissa, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    format!("{mantissa}{exponent}")
}

/// An integer's digits in base 2, 8, 10 or 16, with the prefix of the alternate form.
fn integer_digits(value: i128, kind: char) -> (&'static str, String) {
    let size = value.unsigned_abs();
    match kind {
        'b' => ("0b", format!("{size:b}")),
        'o' => ("0o", format!("{size:o}")),
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        _ => ("", size.to_string()),
    }
}

impl<'t> Interpreter<'t> {
    /// `format % values`
    pub(super) fn percent_format(&mut self, format: &Text, values: &Value) -> Result<Value> {
        let mut values_in_order = match self.heap.object(values) {
            Some(super::value::Object::Tuple(items)) => items.clone().into_iter(),
            _ => vec![values.clone()].into_iter(),
        };
        let is_mapping = self.heap.dict(values).is_some();
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
                    if !is_mapping {
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
        let plain = spec.kind.is_none() && spec.precision.is_none();
        match (value, spec.kind) {
            // Booleans are numbers to a format with anything in it.
            (Value::Bool(_), None) if plain && spec.width == 0 && spec.align.is_none() => {
                self.text_of(value)
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
                (None, _) if plain && spec.width == 0 && spec.align.is_none() => {
                    self.text_of(value)
                }
                (None, _) => fault(format!(
                    "unsupported format string passed to {type_name}.__format__"
                )),
            },
        }
    }
}

/// A float with a precision but no type: as `g`, but with a digit after the point.
fn general_digits(value: f64, precision: usize) -> Result<String> {
    let digits = precision.max(1);
    let text = float_digits(value, 'g', Some(digits), false)?;
    let exponent = format!("{:.*e}", digits - 1, value.abs());
    let exponent: i32 = exponent
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    if !value.is_finite() || text.contains(['.', 'e']) {
        return Ok(text);
    }
    Ok(match exponent < digits as i32 - 1 || precision == 0 {
        true => format!("{text}.0"),
        // All digits are before the point, so Python writes an exponent.
        false => without_zeros(&exponent_form(&format!("{:.*e}", digits - 1, value.abs()))),
    })
}

/// The first characters of a text.
fn cut(text: &Text, most: usize) -> Text {
    let end = text
        .as_str()
        .char_indices()
        .nth(most)
        .map_or(text.len(), |(at, _)| at);
    text.slice(0..end)
}
