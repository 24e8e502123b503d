//! How a value is laid out in its field.

use super::super::error::{Error, Result};
use super::super::number::exponent_form;
use super::super::text::{Text, TextBuilder};

/// Most digits after the point, and the widest field.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_PRECISION: usize = 1000;

/// How a value is laid out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spec {
    pub(super) fill: Option<char>,
    pub(super) align: Option<char>,
    pub(super) sign: Option<char>,
    pub(super) alternate: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

pub(super) fn fault<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::runtime(message))
}

/// A number at the front of a text, and the rest.
pub(super) fn leading_number(text: &str) -> Result<(Option<usize>, &str)> {
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
    pub(super) fn parse(text: &str) -> Result<Self> {
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

    pub(super) fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    /// The number in its field: sign, prefix such as `0x`, digits.
    pub(super) fn lay_number(&self, head: &str, digits: &str) -> Text {
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
    pub(super) fn lay(&self, head: &Text, body: &Text, default: char) -> Text {
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
pub(super) fn grouped(digits: &str, mark: char, size: usize, width: usize) -> String {
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
pub(super) fn float_digits(
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
pub(super) fn without_zeros(text: &str) -> String {
    let (mantissa, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    format!("{mantissa}{exponent}")
}

/// An integer's digits in base 2, 8, 10 or 16, with the prefix of the alternate form.
pub(super) fn integer_digits(value: i128, kind: char) -> (&'static str, String) {
    let size = value.unsigned_abs();
    match kind {
        'b' => ("0b", format!("{size:b}")),
        'o' => ("0o", format!("{size:o}")),
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        _ => ("", size.to_string()),
    }
}

/// A float with a precision but no type: as `g`, but with a digit after the point.
pub(super) fn general_digits(value: f64, precision: usize) -> Result<String> {
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
pub(super) fn cut(text: &Text, most: usize) -> Text {
    let end = text
        .as_str()
        .char_indices()
        .nth(most)
        .map_or(text.len(), |(at, _)| at);
    text.slice(0..end)
}
