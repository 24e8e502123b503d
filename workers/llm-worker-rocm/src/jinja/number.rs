//! Numbers as Python reads and writes them.

use super::lexer::is_space;

/// A float as `repr` writes it: the shortest digits that read back as the same number.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let size = value.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{value:?}");
    }
    exponent_form(&format!("{value:e}"))
}

/// Rust's `1.5e-7` as Python's `1.5e-07`.
pub(super) fn exponent_form(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{mantissa}e-{exponent:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

/// `int(text, base)`; `None` where Python raises.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |prefix: &str| {
        let head = digits.get(..2)?;
        head.eq_ignore_ascii_case(prefix).then(|| &digits[2..])
    };
    let (base, digits, had_prefix) = match base {
        0 | 16 if prefixed("0x").is_some() => (16, prefixed("0x")?, true),
        0 | 8 if prefixed("0o").is_some() => (8, prefixed("0o")?, true),
        0 | 2 if prefixed("0b").is_some() => (2, prefixed("0b")?, true),
        0 if digits.starts_with('0') && digits.bytes().any(|b| !matches!(b, b'0' | b'_')) => {
            return None
        }
        0 => (10, digits, false),
        2..=36 => (base, digits, false),
        _ => return None,
    };
    let digits = digits
        .strip_prefix('_')
        .filter(|_| had_prefix)
        .unwrap_or(digits);
    if digits.is_empty()
        || digits.starts_with('_')
        || digits.ends_with('_')
        || digits.contains("__")
    {
        return None;
    }
    let mut value: i128 = 0;
    for c in digits.chars().filter(|c| *c != '_') {
        let digit = decimal_digit(c)
            .filter(|d| *d < base)
            .or_else(|| c.to_digit(base))?;
        value = value
            .checked_mul(i128::from(base))?
            .checked_add(i128::from(digit))?;
    }
    Some(if negative { -value } else { value })
}

/// `float(text)`; `None` where Python raises.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let bare = text.trim_start_matches(['+', '-']);
    if matches!(
        bare.to_ascii_lowercase().as_str(),
        "inf" | "infinity" | "nan"
    ) {
        return text.to_ascii_lowercase().parse().ok();
    }
    let digit = |b: u8| b.is_ascii_digit();
    let bytes = text.as_bytes();
    let joined =
        |i: usize| i > 0 && digit(bytes[i - 1]) && bytes.get(i + 1).copied().is_some_and(digit);
    let allowed = |(i, b): (usize, u8)| match b {
        b'_' => joined(i),
        _ => digit(b) || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'),
    };
    if !text.bytes().enumerate().all(allowed) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// The value of a decimal digit of any script in which digits are in order.
pub(super) fn decimal_digit(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    /// The zeros of scripts in use.
    const ZEROS: [u32; 22] = [
        0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6,
        0x0d66, 0x0e50, 0x0ed0, 0x0f20, 0x1040, 0x17e0, 0x1810, 0xa620, 0xff10, 0x1d7ce, 0x1e950,
    ];
    let code = u32::from(c);
    let zero = ZEROS
        .iter()
        .find(|zero| (**zero..**zero + 10).contains(&code))?;
    Some(code - zero)
}

/// `round(value, digits)`: to the nearest, halves of the exact binary value to even.
pub(super) fn round(value: f64, digits: i128) -> f64 {
    if !value.is_finite() || digits > 300 {
        return value;
    }
    if digits >= 0 {
        return format!("{value:.*}", digits as usize)
            .parse()
            .unwrap_or(value);
    }
    if digits < -308 {
        return 0.0 * value;
    }
    let unit = 10f64.powi(-digits as i32);
    (value / unit).round_ties_even() * unit
}
