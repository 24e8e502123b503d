//! Values of host code: C++ types, the conversions between them, and how they are written in Rust.

/// A type that host code computes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CType {
    Bool,
    /// A number, by its Rust name.
    Number(String),
    /// An address in device memory; the C++ name of what is there.
    Pointer(String),
    /// Blocks or threads, `[u32; 3]`.
    Dim3,
    /// A stream, an event: what launches here do not need.
    Opaque,
    /// Anything else, by its C++ name.
    Other(String),
}

impl CType {
    pub fn number(name: &str) -> Self {
        CType::Number(name.to_string())
    }

    /// The type in generated Rust.
    pub fn rust(&self) -> Option<String> {
        Some(match self {
            CType::Bool => "bool".into(),
            CType::Number(name) if is_half(name) => return None,
            CType::Number(name) => name.clone(),
            CType::Pointer(_) | CType::Opaque => "*const c_void".into(),
            CType::Dim3 => "[u32; 3]".into(),
            CType::Other(_) => return None,
        })
    }

    pub fn is_float(&self) -> bool {
        matches!(self, CType::Number(name) if name == "f32" || name == "f64")
    }

    pub fn is_number(&self) -> bool {
        match self {
            CType::Bool => true,
            CType::Number(name) => !is_half(name),
            _ => false,
        }
    }

    /// Bits of an integer or float.
    fn bits(&self) -> u32 {
        match self {
            CType::Number(name) => name[1..].parse().unwrap_or(32),
            _ => 8,
        }
    }
}

/// Whether Rust has no such number.
fn is_half(name: &str) -> bool {
    let known = [
        "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64",
    ];
    !known.contains(&name)
}

/// An expression in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub text: String,
    pub kind: CType,
    /// What is known when the launcher is written; booleans are 0 and 1.
    pub constant: Option<i64>,
}

impl Value {
    pub fn new(text: impl Into<String>, kind: CType) -> Self {
        Value {
            text: text.into(),
            kind,
            constant: None,
        }
    }

    pub fn constant(value: i64, kind: CType) -> Self {
        let text = match kind {
            CType::Bool => (value != 0).to_string(),
            CType::Number(ref name) if name.starts_with('f') => format!("{value}.0"),
            CType::Number(ref name) if name == "u64" => (value as u64).to_string(),
            _ => value.to_string(),
        };
        Value {
            text,
            kind,
            constant: Some(value),
        }
    }

    /// As what a method is called on: with its type, and in parentheses if it needs them.
    fn receiver(&self) -> String {
        match (&self.kind, self.constant) {
            (CType::Number(name), Some(value)) if value < 0 => format!("({}_{name})", self.text),
            (CType::Number(name), Some(_)) => format!("{}_{name}", self.text),
            _ => self.operand(),
        }
    }

    /// As an operand: in parentheses unless it is a name, a literal or a call.
    fn operand(&self) -> String {
        let mut depth = 0i32;
        let simple = self.text.chars().all(|c| {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            depth > 0 || !matches!(c, ' ' | '-' | '!')
        });
        match simple {
            true => self.text.clone(),
            false => format!("({})", self.text),
        }
    }

    /// This as another type, as C++ converts; none if it does not.
    pub fn convert(&self, to: &CType) -> Option<Value> {
        if self.kind == *to {
            return Some(self.clone());
        }
        let text = match (&self.kind, to) {
            (_, CType::Bool) => return self.truth(),
            (CType::Number(from), CType::Number(name)) if !is_half(from) && !is_half(name) => {
                if let (Some(value), false) = (self.constant, self.kind.is_float()) {
                    return Some(Value::constant(wrap(value, name), to.clone()));
                }
                format!("{} as {name}", self.receiver())
            }
            (CType::Bool, CType::Number(name)) if !is_half(name) => {
                if let Some(value) = self.constant {
                    return Some(Value::constant(value, to.clone()));
                }
                match name.starts_with('f') {
                    true => format!("{} as u8 as {name}", self.operand()),
                    false => format!("{} as {name}", self.operand()),
                }
            }
            (CType::Pointer(_), CType::Pointer(_)) => self.text.clone(),
            (CType::Number(_), CType::Pointer(_)) if self.constant == Some(0) => {
                "core::ptr::null()".into()
            }
            (CType::Number(_), CType::Pointer(_)) => format!("{} as *const c_void", self.operand()),
            (CType::Pointer(_), CType::Number(name)) if name == "u64" || name == "i64" => {
                format!("{} as {name}", self.operand())
            }
            (CType::Number(_), CType::Dim3) => {
                let x = self.convert(&CType::number("u32"))?;
                format!("[{}, 1, 1]", x.text)
            }
            (_, CType::Opaque) => "core::ptr::null()".into(),
            _ => return None,
        };
        Some(Value::new(text, to.clone()))
    }

    /// Whether it is not 0.
    pub fn truth(&self) -> Option<Value> {
        let text = match &self.kind {
            CType::Bool => return Some(self.clone()),
            kind if kind.is_number() => {
                if let (Some(value), false) = (self.constant, kind.is_float()) {
                    return Some(Value::constant(i64::from(value != 0), CType::Bool));
                }
                let zero = if kind.is_float() { "0.0" } else { "0" };
                format!("{} != {zero}", self.operand())
            }
            CType::Pointer(_) => format!("!{}.is_null()", self.operand()),
            _ => return None,
        };
        Some(Value::new(text, CType::Bool))
    }

    /// A method with one argument.
    pub fn method(&self, name: &str, argument: &Value) -> Value {
        let text = format!("{}.{name}({})", self.receiver(), argument.text);
        Value::new(text, self.kind.clone())
    }

    /// A method without arguments.
    pub fn call(&self, name: &str) -> Value {
        Value::new(format!("{}.{name}()", self.receiver()), self.kind.clone())
    }
}

/// A constant as it is stored in a type.
fn wrap(value: i64, name: &str) -> i64 {
    match name {
        "i8" => value as i8 as i64,
        "u8" => value as u8 as i64,
        "i16" => value as i16 as i64,
        "u16" => value as u16 as i64,
        "i32" => value as i32 as i64,
        "u32" => value as u32 as i64,
        _ => value,
    }
}

/// The type in which C++ computes with two numbers.
fn common(a: &CType, b: &CType) -> Option<CType> {
    if !a.is_number() || !b.is_number() {
        return None;
    }
    if a.is_float() || b.is_float() {
        let of = |kind: &CType| if kind.is_float() { kind.bits() } else { 0 };
        return Some(CType::Number(format!("f{}", of(a).max(of(b)))));
    }
    let promoted = |kind: &CType| match kind {
        CType::Number(name) if kind.bits() >= 32 => name.clone(),
        _ => "i32".into(),
    };
    let (a, b) = (promoted(a), promoted(b));
    let bits = |name: &str| name[1..].parse::<u32>().unwrap_or(32);
    // The wider one; of the same width, the unsigned one.
    let wider = match bits(&a).cmp(&bits(&b)) {
        std::cmp::Ordering::Less => b,
        std::cmp::Ordering::Greater => a,
        std::cmp::Ordering::Equal if a.starts_with('u') => a,
        std::cmp::Ordering::Equal => b,
    };
    Some(CType::Number(wider))
}

/// An operator between two values; none if its types have none here.
pub(super) fn binary(operator: &str, a: &Value, b: &Value) -> Option<Value> {
    if matches!(operator, "&&" | "||") {
        return logical(operator, &a.truth()?, &b.truth()?);
    }
    if let Some(value) = pointers(operator, a, b) {
        return Some(value);
    }
    let shifts = matches!(operator, "<<" | ">>");
    let kind = match shifts {
        true => common(&a.kind, &CType::number("i32")).filter(|kind| !kind.is_float())?,
        false => common(&a.kind, &b.kind)?,
    };
    let left = a.convert(&kind)?;
    let right = match shifts {
        true => b.convert(&CType::number("u32"))?,
        false => b.convert(&kind)?,
    };
    if let (Some(a), Some(b), false) = (left.constant, right.constant, kind.is_float()) {
        let (value, kind) = fold(operator, a, b, &kind)?;
        return Some(Value::constant(value, kind));
    }
    let written = |kind| {
        Value::new(
            format!("{} {operator} {}", left.operand(), right.operand()),
            kind,
        )
    };
    let divided = |method| {
        let text = format!("divided({}.{method}({}))?", left.receiver(), right.text);
        Value::new(text, kind.clone())
    };
    let value = match operator {
        "==" | "!=" | "<" | ">" | "<=" | ">=" => written(CType::Bool),
        "+" | "-" | "*" | "/" if kind.is_float() => written(kind.clone()),
        "+" => left.method("wrapping_add", &right),
        "-" => left.method("wrapping_sub", &right),
        "*" => left.method("wrapping_mul", &right),
        "/" | "%" if right.constant.is_some_and(|b| b > 0) => written(kind.clone()),
        "/" => divided("checked_div"),
        "%" if !kind.is_float() => divided("checked_rem"),
        "<<" => left.method("wrapping_shl", &right),
        ">>" => left.method("wrapping_shr", &right),
        "&" | "|" | "^" if !kind.is_float() => written(kind.clone()),
        _ => return None,
    };
    Some(value)
}

fn logical(operator: &str, a: &Value, b: &Value) -> Option<Value> {
    let known = match (operator, a.constant, b.constant) {
        ("&&", Some(0), _) | ("&&", _, Some(0)) => Some(0),
        ("||", Some(1), _) | ("||", _, Some(1)) => Some(1),
        (_, Some(_), Some(other)) => Some(other),
        _ => None,
    };
    Some(match (known, a.constant, b.constant) {
        (Some(known), ..) => Value::constant(known, CType::Bool),
        // The known one changes nothing.
        (None, Some(_), _) => b.clone(),
        (None, _, Some(_)) => a.clone(),
        _ => Value::new(
            format!("{} {operator} {}", a.operand(), b.operand()),
            CType::Bool,
        ),
    })
}

/// Addresses against null, and addresses plus numbers of elements.
fn pointers(operator: &str, a: &Value, b: &Value) -> Option<Value> {
    match (operator, &a.kind, &b.kind) {
        ("==" | "!=", CType::Pointer(_), CType::Number(_)) if b.constant == Some(0) => {
            let not = if operator == "==" { "" } else { "!" };
            let text = format!("{not}{}.is_null()", a.operand());
            Some(Value::new(text, CType::Bool))
        }
        ("==" | "!=", CType::Pointer(_), CType::Pointer(_)) => {
            let text = format!("{} {operator} {}", a.operand(), b.operand());
            Some(Value::new(text, CType::Bool))
        }
        ("+" | "-", CType::Pointer(element), kind) if kind.is_number() && !kind.is_float() => {
            let long = CType::number("i64");
            let size = Value::constant(size_of(element)?, long.clone());
            let mut bytes = binary("*", &b.convert(&long)?, &size)?;
            if operator == "-" {
                bytes = bytes.call("wrapping_neg");
            }
            let text = format!(
                "{}.wrapping_byte_offset({} as isize)",
                a.operand(),
                bytes.receiver()
            );
            Some(Value::new(text, a.kind.clone()))
        }
        _ => None,
    }
}

fn fold(operator: &str, a: i64, b: i64, kind: &CType) -> Option<(i64, CType)> {
    let CType::Number(name) = kind else {
        return None;
    };
    let compared = |value: bool| Some((i64::from(value), CType::Bool));
    let shift = || u32::try_from(b).ok().filter(|bits| *bits < kind.bits());
    let value = match operator {
        "==" => return compared(a == b),
        "!=" => return compared(a != b),
        "<" => return compared(a < b),
        ">" => return compared(a > b),
        "<=" => return compared(a <= b),
        ">=" => return compared(a >= b),
        "+" => a.checked_add(b)?,
        "-" => a.checked_sub(b)?,
        "*" => a.checked_mul(b)?,
        "/" => a.checked_div(b)?,
        "%" => a.checked_rem(b)?,
        "<<" => a.checked_shl(shift()?)?,
        ">>" => a.checked_shr(shift()?)?,
        "&" => a & b,
        "|" => a | b,
        "^" => a ^ b,
        _ => return None,
    };
    Some((wrap(value, name), kind.clone()))
}

/// Bytes of a type that is known by its name.
pub(super) fn size_of(name: &str) -> Option<i64> {
    Some(match name.trim() {
        "half2" | "__half2" | "__nv_bfloat162" | "nv_bfloat162" => 4,
        "float2" | "int2" | "uint2" => 8,
        "float4" | "int4" | "uint4" => 16,
        name if name.ends_with('*') => 8,
        name => match crate::port::types::scalar(name)? {
            "bool" | "f8_e4m3" | "f8_e5m2" => 1,
            "bf16" => 2,
            number => number[1..].parse::<i64>().ok()? / 8,
        },
    })
}

/// A name that Rust does not use for itself.
pub(super) fn identifier(name: &str) -> String {
    const KEYWORDS: &[&str] = &[
        "as", "async", "await", "box", "crate", "dyn", "fn", "impl", "in", "let", "loop", "match",
        "mod", "move", "mut", "pub", "ref", "self", "Self", "super", "trait", "type", "unsafe",
        "use", "where", "yield", "abstract", "become", "final", "macro", "override", "priv", "try",
        "unsized", "gen",
    ];
    match KEYWORDS.contains(&name) {
        true => format!("{name}_"),
        false => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, kind: &str) -> Value {
        Value::new(name, CType::number(kind))
    }

    fn int(value: i64) -> Value {
        Value::constant(value, CType::number("i32"))
    }

    #[test]
    fn arithmetic_is_that_of_cpp() {
        let (n, m) = (named("n", "i64"), named("m", "u32"));
        let text = |operator: &str, a: &Value, b: &Value| {
            let value = binary(operator, a, b).expect("a value");
            let CType::Number(kind) = value.kind else {
                return (value.text, "bool".to_string());
            };
            (value.text, kind)
        };
        let pair = |text: &str, kind: &str| (text.to_string(), kind.to_string());
        assert_eq!(text("+", &n, &int(255)), pair("n.wrapping_add(255)", "i64"));
        let sum = binary("+", &n, &int(255)).expect("a sum");
        assert_eq!(
            text("/", &sum, &int(256)),
            pair("n.wrapping_add(255) / 256", "i64")
        );
        assert_eq!(
            text("/", &int(4), &m),
            pair("divided(4_u32.checked_div(m))?", "u32")
        );
        assert_eq!(text("*", &m, &n), pair("(m as i64).wrapping_mul(n)", "i64"));
        assert_eq!(
            text("-", &named("x", "f32"), &int(1)),
            pair("x - 1.0", "f32")
        );
        assert_eq!(text("<", &m, &int(1)), pair("m < 1", "bool"));
        assert_eq!(binary("<<", &int(1), &int(5)), Some(int(32)));
        assert_eq!(
            binary(">", &int(1), &int(5)).and_then(|value| value.constant),
            Some(0)
        );
        assert_eq!(binary("/", &int(1), &int(0)), None);
        let pointer = Value::new("p", CType::Pointer("__half".into()));
        assert_eq!(text("!=", &pointer, &int(0)), pair("!p.is_null()", "bool"));
        let moved = binary("+", &pointer, &n).map(|value| value.text);
        assert_eq!(
            moved,
            Some("p.wrapping_byte_offset(n.wrapping_mul(2) as isize)".into())
        );
    }

    #[test]
    fn conversions_are_written() {
        let n = named("n", "i32");
        let converted = |value: &Value, kind: CType| value.convert(&kind).map(|value| value.text);
        assert_eq!(converted(&n, CType::Bool), Some("n != 0".into()));
        assert_eq!(converted(&n, CType::Dim3), Some("[n as u32, 1, 1]".into()));
        assert_eq!(
            converted(&int(-1), CType::number("u32")),
            Some("4294967295".into())
        );
        let null = converted(&int(0), CType::Pointer("float".into()));
        assert_eq!(null, Some("core::ptr::null()".into()));
        assert_eq!(converted(&n, CType::number("f16")), None);
        assert_eq!(identifier("type"), "type_");
    }
}
