//! Arithmetic over sizes, as case files have it: `ceil(n / 256)`, `rows * (cols + 2)`, `n % 2 == 0 && m > 1`.
//!
//! Numbers are whole as long as they can be: `/` of two whole numbers is whole only if nothing is left over, and where a
//! whole number is needed (lengths, grids), a fraction is an error. So nobody has to guess how a division rounds:
//! `ceil`, `floor` and `div_ceil` say it.

use std::collections::BTreeMap;
use std::fmt;

/// Longest text, and deepest nesting, of an expression.
const MOST_BYTES: usize = 4096;
const MOST_LEVELS: usize = 64;

/// Values by name.
pub type Names = BTreeMap<String, Number>;

/// What an expression gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(i128),
    /// One with a fraction, or a whole one too large to be exact.
    Real(f64),
}

impl Number {
    /// As a float.
    pub fn real(self) -> f64 {
        match self {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        }
    }

    /// As a whole number; none if it has a fraction.
    pub fn whole(self) -> Option<i128> {
        match self {
            Number::Whole(value) => Some(value),
            Number::Real(_) => None,
        }
    }

    fn is_true(self) -> bool {
        self.real() != 0.0
    }

    fn of_bool(value: bool) -> Self {
        Number::Whole(value.into())
    }

    /// A float; whole if it is one and exact.
    fn of(value: f64) -> Self {
        match value.fract() == 0.0 && value.abs() < 2f64.powi(53) {
            true => Number::Whole(value as i128),
            false => Number::Real(value),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(value) => write!(f, "{value}"),
            Number::Real(value) => write!(f, "{value}"),
        }
    }
}

/// Why an expression has no value; with its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expression `{text}`: {why}")]
pub struct ExpressionError {
    /// The expression.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// The value of an expression.
///
/// # Errors
/// [`ExpressionError`] for what cannot be parsed, unknown names, division by zero and overflow.
pub fn evaluate(text: &str, names: &Names) -> Result<Number, ExpressionError> {
    let error = |why: String| ExpressionError {
        text: text.chars().take(200).collect(),
        why,
    };
    if text.len() > MOST_BYTES {
        return Err(error(format!("longer than {MOST_BYTES} bytes")));
    }
    let mut parser = Parser {
        rest: text,
        names,
        level: 0,
    };
    let value = parser.choice().map_err(error)?;
    match parser.rest.trim_start() {
        "" => Ok(value),
        rest => Err(error(format!("`{rest}` is left over"))),
    }
}

/// The same where a whole number is needed.
///
/// # Errors
/// As [`evaluate`], and for a fraction.
pub fn evaluate_whole(text: &str, names: &Names) -> Result<i128, ExpressionError> {
    let value = evaluate(text, names)?;
    value.whole().ok_or_else(|| ExpressionError {
        text: text.chars().take(200).collect(),
        why: format!(
            "{value} is not a whole number; ceil(…), floor(…) or div_ceil(a, b) say how to round"
        ),
    })
}

type Outcome = Result<Number, String>;

struct Parser<'a> {
    rest: &'a str,
    names: &'a Names,
    level: usize,
}

/// Operators of two sides by how tightly they bind; of several that begin alike, the longest is first.
const LEVELS: [&[&str]; 5] = [
    &["||"],
    &["&&"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl<'a> Parser<'a> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.take(token) {
            true => Ok(()),
            false => Err(format!(
                "`{token}` is missing before `{}`",
                self.rest.trim()
            )),
        }
    }

    fn choice(&mut self) -> Outcome {
        self.level += 1;
        if self.level > MOST_LEVELS {
            return Err(format!("nested deeper than {MOST_LEVELS} levels"));
        }
        let mut value = self.binary(0)?;
        if self.take("?") {
            let yes = self.choice()?;
            self.expect(":")?;
            let no = self.choice()?;
            value = if value.is_true() { yes } else { no };
        }
        self.level -= 1;
        Ok(value)
    }

    fn binary(&mut self, level: usize) -> Outcome {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.take(operator)) {
            let right = self.binary(level + 1)?;
            left = apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Outcome {
        // A run of signs is a loop, not a recursion: it may be as long as the text.
        let mut signs = Vec::new();
        loop {
            if self.take("-") {
                signs.push('-');
            } else if self.take("!") {
                signs.push('!');
            } else {
                break;
            }
        }
        let mut value = self.atom()?;
        for sign in signs.into_iter().rev() {
            value = match sign {
                '-' => apply("-", Number::Whole(0), value)?,
                _ => Number::of_bool(!value.is_true()),
            };
        }
        Ok(value)
    }

    fn atom(&mut self) -> Outcome {
        if self.take("(") {
            let value = self.choice()?;
            self.expect(")")?;
            return Ok(value);
        }
        let rest = self.rest.trim_start();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return self.number(rest);
        }
        let length = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(length);
        if name.is_empty() {
            return Err(match rest.is_empty() {
                true => "it ends too early".to_string(),
                false => format!("`{rest}` begins no number, name or `(`"),
            });
        }
        self.rest = after;
        if self.take("(") {
            let mut arguments = Vec::new();
            while !self.take(")") {
                if !arguments.is_empty() {
                    self.expect(",")?;
                }
                arguments.push(self.choice()?);
            }
            return call(name, &arguments);
        }
        let known = self.names.get(name).copied();
        known.ok_or_else(|| {
            let names: Vec<&str> = self.names.keys().map(String::as_str).collect();
            format!(
                "no size is called `{name}`; there are: {}",
                names.join(", ")
            )
        })
    }

    fn number(&mut self, rest: &'a str) -> Outcome {
        let bytes = rest.as_bytes();
        let mut end = 0;
        while end < bytes.len() {
            let exponent_sign = matches!(bytes[end], b'+' | b'-')
                && end > 0
                && matches!(bytes[end - 1], b'e' | b'E');
            if !(bytes[end].is_ascii_alphanumeric() || bytes[end] == b'.' || exponent_sign) {
                break;
            }
            end += 1;
        }
        let text = &rest[..end];
        self.rest = &rest[end..];
        let whole = text.parse().ok().map(Number::Whole);
        whole
            .or_else(|| text.parse().ok().map(Number::Real))
            .ok_or_else(|| format!("`{text}` is not a number"))
    }
}

fn apply(operator: &str, left: Number, right: Number) -> Outcome {
    use Number::Whole;
    let overflow = || "the result is too large".to_string();
    let (a, b) = (left.real(), right.real());
    if matches!(operator, "/" | "%") && b == 0.0 {
        return Err("division by zero".to_string());
    }
    if let (Whole(a), Whole(b)) = (left, right) {
        let exact = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "%" => a.checked_rem(b),
            "/" if a.checked_rem(b) == Some(0) => a.checked_div(b),
            "/" => return Ok(Number::Real(a as f64 / b as f64)),
            "==" => return Ok(Number::of_bool(a == b)),
            "!=" => return Ok(Number::of_bool(a != b)),
            "<" => return Ok(Number::of_bool(a < b)),
            "<=" => return Ok(Number::of_bool(a <= b)),
            ">" => return Ok(Number::of_bool(a > b)),
            ">=" => return Ok(Number::of_bool(a >= b)),
            "&&" => return Ok(Number::of_bool(a != 0 && b != 0)),
            _ => return Ok(Number::of_bool(a != 0 || b != 0)),
        };
        return exact.map(Whole).ok_or_else(overflow);
    }
    Ok(match operator {
        "+" => Number::Real(a + b),
        "-" => Number::Real(a - b),
        "*" => Number::Real(a * b),
        "/" => Number::Real(a / b),
        "%" => Number::Real(a % b),
        "==" => Number::of_bool(a == b),
        "!=" => Number::of_bool(a != b),
        "<" => Number::of_bool(a < b),
        "<=" => Number::of_bool(a <= b),
        ">" => Number::of_bool(a > b),
        ">=" => Number::of_bool(a >= b),
        "&&" => Number::of_bool(a != 0.0 && b != 0.0),
        _ => Number::of_bool(a != 0.0 || b != 0.0),
    })
}

/// The functions, for messages and docs.
const FUNCTIONS: &str =
    "ceil(x), floor(x), round(x), abs(x), sqrt(x), log2(x), exp(x), real(x), min(a, …), max(a, …), div_ceil(a, b), \
     div_floor(a, b), align(a, b) (a up to a multiple of b), next_pow2(x)";

fn call(name: &str, arguments: &[Number]) -> Outcome {
    use Number::Whole;
    let rounded = |x: Number, f: fn(f64) -> f64| match x {
        Whole(_) => x,
        Number::Real(x) => Number::of(f(x)),
    };
    let quotient = |a: Number, b: Number, up: bool| match (a, b) {
        (_, Whole(0)) => Err("division by zero".to_string()),
        (Whole(a), Whole(b)) => {
            let down = a.checked_div_euclid(b).filter(|_| b > 0);
            let down = down.ok_or("division by a number below zero")?;
            Ok(Whole(down + i128::from(up && down * b != a)))
        }
        _ => Err(format!("{name} takes whole numbers")),
    };
    match (name, arguments) {
        ("ceil", [x]) => Ok(rounded(*x, f64::ceil)),
        ("floor", [x]) => Ok(rounded(*x, f64::floor)),
        ("round", [x]) => Ok(rounded(*x, f64::round)),
        ("abs", [Whole(x)]) => Ok(Whole(x.saturating_abs())),
        ("abs", [x]) => Ok(Number::Real(x.real().abs())),
        ("sqrt", [x]) => Ok(Number::of(x.real().sqrt())),
        ("log2", [x]) => Ok(Number::of(x.real().log2())),
        ("exp", [x]) => Ok(Number::Real(x.real().exp())),
        ("real", [x]) => Ok(Number::Real(x.real())),
        ("min", [first, rest @ ..]) => {
            let least = |a: Number, b: &Number| if b.real() < a.real() { *b } else { a };
            Ok(rest.iter().fold(*first, least))
        }
        ("max", [first, rest @ ..]) => {
            let most = |a: Number, b: &Number| if b.real() > a.real() { *b } else { a };
            Ok(rest.iter().fold(*first, most))
        }
        ("div_ceil", [a, b]) => quotient(*a, *b, true),
        ("div_floor", [a, b]) => quotient(*a, *b, false),
        ("align", [a, b]) => apply("*", quotient(*a, *b, true)?, *b),
        ("next_pow2", [Whole(x)]) => {
            let next = u128::try_from(*x)
                .ok()
                .and_then(u128::checked_next_power_of_two);
            let next = next.and_then(|next| i128::try_from(next).ok());
            next.map(Whole).ok_or_else(|| format!("next_pow2 of {x}"))
        }
        _ => Err(format!(
            "there is no {name} of {} numbers; there are {FUNCTIONS}",
            arguments.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        [("n", 1000), ("m", 3)]
            .map(|(name, value)| (name.to_string(), Number::Whole(value)))
            .into()
    }

    fn whole(text: &str) -> i128 {
        evaluate_whole(text, &names()).unwrap()
    }

    #[test]
    fn arithmetic() {
        for (text, want) in [
            ("ceil(n / 256)", 4),
            ("floor(n / 256)", 3),
            ("div_ceil(n, 256) * m", 12),
            ("align(n, 64)", 1024),
            ("next_pow2(n - 1)", 1024),
            ("1 + 2 * -m", -5),
            ("(1 + 2) * m % 4", 1),
            ("min(n, 256, m)", 3),
            ("max(1, n > 5 ? 7 : 8)", 7),
            ("n % 2 == 0 && !(m == 4)", 1),
            ("n < 3 || m >= 4", 0),
            ("10 - 3 - 2", 5),
            ("n / 8", 125),
        ] {
            assert_eq!(whole(text), want, "{text}");
        }
        assert_eq!(evaluate("1e-5 * 2", &names()).unwrap().real(), 2e-5);
        assert_eq!(evaluate("1 / sqrt(64)", &names()).unwrap().real(), 0.125);
    }

    #[test]
    fn mistakes_are_errors() {
        for (text, why) in [
            ("n / 256", "is not a whole number"),
            ("k", "no size is called `k`; there are: m, n"),
            ("n +", "ends too early"),
            ("n 3", "left over"),
            ("(n", "`)` is missing"),
            ("n / 0", "division by zero"),
            ("div_ceil(n, 0)", "division by zero"),
            ("div_ceil(n, -1)", "below zero"),
            ("1x", "is not a number"),
            ("f(1)", "there is no f of 1 numbers"),
            ("", "ends too early"),
            ("next_pow2(-1)", "next_pow2 of -1"),
        ] {
            let error = evaluate_whole(text, &names()).unwrap_err();
            assert!(error.why.contains(why), "{text}: {error}");
        }
        let huge = "170141183460469231731687303715884105727";
        assert!(evaluate(&format!("{huge} + 1"), &names()).is_err());
        assert!(evaluate(&format!("-{huge} - 2"), &names()).is_err());
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let deep = format!("{}1{}", "(".repeat(2000), ")".repeat(2000));
        assert!(evaluate(&deep, &names())
            .unwrap_err()
            .why
            .contains("nested"));
        assert!(evaluate(&"(".repeat(4000), &names()).is_err());
        assert_eq!(whole(&format!("{}1", "-".repeat(4000))), 1);
        assert!(evaluate(&"1+".repeat(3000), &names()).is_err());
    }
}
