//! Python's operators.

use super::ast::{Binary, Comparison};
use super::error::{Error, Result};
use super::interpreter::Interpreter;
use super::text::TextBuilder;
use super::value::{range_length, too_deep, Number, Object, Value, MAX_VALUE_DEPTH};
use std::cmp::Ordering;

/// Integers are wide, but not endless as Python's are.
fn too_large() -> Error {
    Error::limit("an integer is too large")
}

/// Python's `//` on integers.
pub(super) fn floor_divide(a: i128, b: i128) -> Result<i128> {
    if b == 0 {
        return Err(Error::runtime("integer division or modulo by zero"));
    }
    let quotient = a.checked_div(b).ok_or_else(too_large)?;
    Ok(quotient - i128::from(a % b != 0 && (a < 0) != (b < 0)))
}

fn integers(operation: Binary, a: i128, b: i128) -> Result<Value> {
    let value = match operation {
        Binary::Add => a.checked_add(b),
        Binary::Subtract => a.checked_sub(b),
        Binary::Multiply => a.checked_mul(b),
        Binary::FloorDivide => Some(floor_divide(a, b)?),
        Binary::Modulo => {
            let quotient = floor_divide(a, b)?;
            quotient
                .checked_mul(b)
                .and_then(|product| a.checked_sub(product))
        }
        Binary::Power if b >= 0 => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(b)) => a.checked_pow(b),
            _ => None,
        },
        Binary::Divide | Binary::Power => return floats(operation, a as f64, b as f64),
    };
    value.map(Value::Int).ok_or_else(too_large)
}

fn floats(operation: Binary, a: f64, b: f64) -> Result<Value> {
    if b == 0.0
        && matches!(
            operation,
            Binary::Divide | Binary::FloorDivide | Binary::Modulo
        )
    {
        return Err(Error::runtime("float division by zero"));
    }
    let modulo = || {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }
    };
    Ok(Value::Float(match operation {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::FloorDivide => ((a - modulo()) / b).round(),
        Binary::Modulo => modulo(),
        Binary::Power if a == 0.0 && b < 0.0 => {
            return Err(Error::runtime("0.0 cannot be raised to a negative power"))
        }
        Binary::Power => a.powf(b),
    }))
}

impl<'t> Interpreter<'t> {
    pub(super) fn binary(&mut self, operation: Binary, a: &Value, b: &Value) -> Result<Value> {
        if let (Binary::Modulo, Value::Str(format)) = (operation, a) {
            return self.percent_format(format, b);
        }
        match (a.as_number(), b.as_number()) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => return integers(operation, a, b),
            (Some(a), Some(b)) => return floats(operation, a.float(), b.float()),
            _ => {}
        }
        match operation {
            Binary::Add => {
                if let Some(sum) = self.joined(a, b)? {
                    return Ok(sum);
                }
            }
            Binary::Multiply => {
                let (value, times) = match (a.as_index(), b.as_index()) {
                    (None, Some(times)) => (a, times),
                    (Some(times), None) => (b, times),
                    _ => return Err(self.unsupported(operation, a, b)),
                };
                if let Some(product) = self.repeated(value, times)? {
                    return Ok(product);
                }
            }
            _ => {}
        }
        Err(self.unsupported(operation, a, b))
    }

    fn unsupported(&self, operation: Binary, a: &Value, b: &Value) -> Error {
        for value in [a, b] {
            if let Value::Undefined(reason) = value {
                return Error::runtime(reason.to_string());
            }
        }
        let (a, b) = (self.heap.type_name(a), self.heap.type_name(b));
        Error::runtime(match operation {
            Binary::Add if a == "str" => format!("can only concatenate str (not \"{b}\") to str"),
            _ => format!(
                "unsupported operand type(s) for {}: '{a}' and '{b}'",
                operation.symbol()
            ),
        })
    }

    /// Texts, lists or tuples one after the other.
    fn joined(&mut self, a: &Value, b: &Value) -> Result<Option<Value>> {
        if let (Value::Str(a), Value::Str(b)) = (a, b) {
            self.spend(a.len() + b.len())?;
            let mut sum = TextBuilder::default();
            sum.push(a);
            sum.push(b);
            return Ok(Some(Value::Str(sum.build())));
        }
        let items = |a: &[Value], b: &[Value]| a.iter().chain(b).cloned().collect::<Vec<_>>();
        let (sum, tuple) = match (self.heap.object(a), self.heap.object(b)) {
            (Some(Object::List(a)), Some(Object::List(b))) => (items(a, b), false),
            (Some(Object::Tuple(a)), Some(Object::Tuple(b))) => (items(a, b), true),
            _ => return Ok(None),
        };
        Ok(Some(if tuple {
            self.tuple(sum)?
        } else {
            self.list(sum)?
        }))
    }

    /// A text, list or tuple several times.
    fn repeated(&mut self, value: &Value, times: i128) -> Result<Option<Value>> {
        let times = usize::try_from(times.max(0)).map_err(|_| too_large())?;
        let cost = |length: usize| length.saturating_mul(times);
        if let Value::Str(text) = value {
            self.spend(cost(text.len()))?;
            let mut product = TextBuilder::default();
            for _ in 0..if text.is_empty() { 0 } else { times } {
                product.push(text);
            }
            return Ok(Some(Value::Str(product.build())));
        }
        let (items, tuple) = match self.heap.object(value) {
            Some(Object::List(items)) => (items.clone(), false),
            Some(Object::Tuple(items)) => (items.clone(), true),
            _ => return Ok(None),
        };
        self.spend(cost(items.len()).saturating_mul(64))?;
        let times = if items.is_empty() { 0 } else { times };
        let product = std::iter::repeat_n(items, times).flatten().collect();
        Ok(Some(if tuple {
            self.tuple(product)?
        } else {
            self.list(product)?
        }))
    }

    pub(super) fn negative(&self, value: &Value) -> Result<Value> {
        match value.as_number() {
            Some(Number::Int(value)) => value.checked_neg().map(Value::Int).ok_or_else(too_large),
            Some(Number::Float(value)) => Ok(Value::Float(-value)),
            None => Err(self.bad_sign(value, "-")),
        }
    }

    pub(super) fn positive(&self, value: &Value) -> Result<Value> {
        match value.as_number() {
            Some(Number::Int(value)) => Ok(Value::Int(value)),
            Some(Number::Float(value)) => Ok(Value::Float(value)),
            None => Err(self.bad_sign(value, "+")),
        }
    }

    fn bad_sign(&self, value: &Value, sign: &str) -> Error {
        match value {
            Value::Undefined(reason) => Error::runtime(reason.to_string()),
            other => {
                let kind = self.heap.type_name(other);
                Error::runtime(format!("bad operand type for unary {sign}: '{kind}'"))
            }
        }
    }

    pub(super) fn compare(&mut self, comparison: Comparison, a: &Value, b: &Value) -> Result<bool> {
        let order = |this: &mut Self| this.order(a, b, comparison);
        Ok(match comparison {
            Comparison::Equal => self.equal(a, b)?,
            Comparison::NotEqual => !self.equal(a, b)?,
            Comparison::Less => order(self)? == Some(Ordering::Less),
            Comparison::LessOrEqual => {
                matches!(order(self)?, Some(Ordering::Less | Ordering::Equal))
            }
            Comparison::Greater => order(self)? == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => {
                matches!(order(self)?, Some(Ordering::Greater | Ordering::Equal))
            }
            Comparison::In => self.contains(b, a)?,
            Comparison::NotIn => !self.contains(b, a)?,
        })
    }

    /// `a == b`
    pub(super) fn equal(&mut self, a: &Value, b: &Value) -> Result<bool> {
        self.equal_within(a, b, 0)
    }

    fn equal_within(&mut self, a: &Value, b: &Value, depth: usize) -> Result<bool> {
        if depth > MAX_VALUE_DEPTH {
            return Err(too_deep());
        }
        self.spend(32)?;
        let (x, y) = match (a, b) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => {
                return Ok(true)
            }
            (Value::Str(a), Value::Str(b)) => {
                self.spend(if a.len() == b.len() { a.len() } else { 0 })?;
                return Ok(a.as_str() == b.as_str());
            }
            (Value::Function(a), Value::Function(b)) => return Ok(a == b),
            (Value::Object(x), Value::Object(y)) if x == y => return Ok(true),
            (Value::Object(x), Value::Object(y)) => (*x, *y),
            _ => {
                return Ok(match (a.as_number(), b.as_number()) {
                    (Some(a), Some(b)) => compare_numbers(a, b) == Some(Ordering::Equal),
                    _ => false,
                })
            }
        };
        match (self.heap.get(x), self.heap.get(y)) {
            (Object::List(a), Object::List(b)) | (Object::Tuple(a), Object::Tuple(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                let pairs: Vec<_> = a.iter().cloned().zip(b.iter().cloned()).collect();
                for (a, b) in pairs {
                    if !self.equal_within(&a, &b, depth + 1)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Object::Dict(a), Object::Dict(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                let mut pairs = Vec::new();
                for (key, (_, value)) in a {
                    match b.get(key) {
                        Some((_, other)) => pairs.push((value.clone(), other.clone())),
                        None => return Ok(false),
                    }
                }
                for (a, b) in pairs {
                    if !self.equal_within(&a, &b, depth + 1)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (
                Object::Range { start, stop, step },
                Object::Range {
                    start: start_b,
                    stop: stop_b,
                    step: step_b,
                },
            ) => Ok((start, stop, step) == (start_b, stop_b, step_b)),
            (Object::Method(a, name), Object::Method(b, other)) if name == other => {
                let (a, b) = (a.clone(), b.clone());
                self.equal_within(&a, &b, depth + 1)
            }
            _ => Ok(false),
        }
    }

    /// How two values are ordered; `None` if one is not a number.
    ///
    /// # Errors
    /// [`Error`] for types that Python does not order.
    pub(super) fn order(
        &mut self,
        a: &Value,
        b: &Value,
        comparison: Comparison,
    ) -> Result<Option<Ordering>> {
        self.order_within(a, b, comparison, 0)
    }

    fn order_within(
        &mut self,
        a: &Value,
        b: &Value,
        comparison: Comparison,
        depth: usize,
    ) -> Result<Option<Ordering>> {
        if depth > MAX_VALUE_DEPTH {
            return Err(too_deep());
        }
        self.spend(32)?;
        if let (Value::Str(a), Value::Str(b)) = (a, b) {
            self.spend(a.len().min(b.len()))?;
            return Ok(Some(a.as_str().cmp(b.as_str())));
        }
        if let (Some(a), Some(b)) = (a.as_number(), b.as_number()) {
            return Ok(compare_numbers(a, b));
        }
        let same = matches!(
            (self.heap.object(a), self.heap.object(b)),
            (Some(Object::List(_)), Some(Object::List(_)))
                | (Some(Object::Tuple(_)), Some(Object::Tuple(_)))
        );
        if let (true, Some(x), Some(y)) = (same, self.heap.sequence(a), self.heap.sequence(b)) {
            let lengths = x.len().cmp(&y.len());
            let pairs: Vec<_> = x.iter().cloned().zip(y.iter().cloned()).collect();
            for (a, b) in pairs {
                if !self.equal_within(&a, &b, depth + 1)? {
                    return self.order_within(&a, &b, comparison, depth + 1);
                }
            }
            return Ok(Some(lengths));
        }
        for value in [a, b] {
            if let Value::Undefined(reason) = value {
                return Err(Error::runtime(reason.to_string()));
            }
        }
        let symbol = match comparison {
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
            _ => "<",
        };
        let (a, b) = (self.heap.type_name(a), self.heap.type_name(b));
        Err(Error::runtime(format!(
            "'{symbol}' not supported between instances of '{a}' and '{b}'"
        )))
    }

    /// `item in container`
    pub(super) fn contains(&mut self, container: &Value, item: &Value) -> Result<bool> {
        match (container, item) {
            (Value::Str(text), Value::Str(part)) => {
                self.spend(text.len())?;
                return Ok(text.as_str().contains(part.as_str()));
            }
            (Value::Str(_), other) => {
                let kind = self.heap.type_name(other);
                return Err(Error::runtime(format!(
                    "'in <string>' requires string as left operand, not {kind}"
                )));
            }
            _ => {}
        }
        let items = match self.heap.object(container) {
            Some(Object::Dict(dict)) => return Ok(dict.contains_key(&self.heap.key(item)?)),
            Some(Object::Range { start, stop, step }) => {
                let Some(Number::Int(value)) = item.as_number() else {
                    return Ok(false);
                };
                let low = value.saturating_sub(*start);
                let high = range_length(*start, *stop, *step);
                return Ok(low % step == 0 && (0..high).contains(&(low / step)));
            }
            Some(Object::List(items) | Object::Tuple(items) | Object::View(_, items)) => {
                items.clone()
            }
            _ => match container {
                Value::Undefined(_) => return Ok(false),
                Value::Object(_) => self.iterate(container)?,
                other => {
                    let kind = self.heap.type_name(other);
                    return Err(Error::runtime(format!(
                        "argument of type '{kind}' is not iterable"
                    )));
                }
            },
        };
        self.spend(items.len())?;
        for other in &items {
            if self.equal(other, item)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn compare_numbers(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (a, b) => a.float().partial_cmp(&b.float()),
    }
}
