//! Expressions, by Jinja's precedence: `if`, `or`, `and`, `not`, comparisons, `+ -`, `~`, `* / // %`, `**`, signs; filters
//! and tests bind closest.

use super::super::ast::{Arguments, Binary, Comparison, Expr, ExprKind, FilterCall};
use super::super::error::{Error, Result};
use super::super::lexer::Kind;
use super::super::text::Text;
use super::{describe, Parser, MAX_BRACKETS};

impl Parser {
    pub(super) fn enter(&mut self) -> Result<()> {
        self.brackets += 1;
        if self.brackets > MAX_BRACKETS {
            return Err(Error::limit("an expression is nested too deeply").at(self.line()));
        }
        Ok(())
    }

    fn node(&self, kind: ExprKind) -> Result<Expr> {
        Expr::new(kind).map_err(|e| e.at(self.line()))
    }

    /// An expression, or several with commas between them, up to one of the given names.
    pub(super) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Result<Expr> {
        let mut items = Vec::new();
        let mut tuple = false;
        loop {
            let end = match self.peek() {
                Kind::PrintEnd | Kind::BlockEnd | Kind::End | Kind::Op(")") => true,
                Kind::Name(name) => ends.contains(&name.as_str()),
                _ => false,
            };
            if end {
                break;
            }
            items.push(match conditional {
                true => self.expression()?,
                false => self.or()?,
            });
            if !self.take_op(",") {
                break;
            }
            tuple = true;
        }
        match items.pop() {
            None => self.fault(format!(
                "expected an expression, not {}",
                describe(self.peek())
            )),
            Some(one) if items.is_empty() && !tuple => Ok(one),
            Some(last) => {
                items.push(last);
                self.node(ExprKind::Tuple(items))
            }
        }
    }

    /// An expression with `if` and `else`.
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.enter()?;
        let mut value = self.or()?;
        while self.take_name("if") {
            let condition = self.or()?;
            let otherwise = match self.take_name("else") {
                true => Some(Box::new(self.expression()?)),
                false => None,
            };
            value = self.node(ExprKind::If(
                Box::new(condition),
                Box::new(value),
                otherwise,
            ))?;
        }
        self.brackets -= 1;
        Ok(value)
    }

    pub(super) fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.take_name("or") {
            let right = self.and()?;
            left = self.node(ExprKind::Or(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.take_name("and") {
            let right = self.not()?;
            left = self.node(ExprKind::And(Box::new(left), Box::new(right)))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.take_name("not") {
            self.enter()?;
            let value = self.not()?;
            self.brackets -= 1;
            return self.node(ExprKind::Not(Box::new(value)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Kind::Op("==") => Comparison::Equal,
                Kind::Op("!=") => Comparison::NotEqual,
                Kind::Op("<") => Comparison::Less,
                Kind::Op("<=") => Comparison::LessOrEqual,
                Kind::Op(">") => Comparison::Greater,
                Kind::Op(">=") => Comparison::GreaterOrEqual,
                Kind::Name(name) if name == "in" => Comparison::In,
                Kind::Name(name)
                    if name == "not" && matches!(self.ahead(1), Kind::Name(n) if n == "in") =>
                {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => self.node(ExprKind::Compare(Box::new(first), rest)),
        }
    }

    fn sum(&mut self) -> Result<Expr> {
        let mut left = self.concatenation()?;
        loop {
            let operation = match self.peek() {
                Kind::Op("+") => Binary::Add,
                Kind::Op("-") => Binary::Subtract,
                _ => return Ok(left),
            };
            self.next();
            let right = self.concatenation()?;
            left = self.node(ExprKind::Binary(operation, Box::new(left), Box::new(right)))?;
        }
    }

    fn concatenation(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take_op("~") {
            parts.push(self.product()?);
        }
        self.node(ExprKind::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        let mut left = self.power()?;
        loop {
            let operation = match self.peek() {
                Kind::Op("*") => Binary::Multiply,
                Kind::Op("/") => Binary::Divide,
                Kind::Op("//") => Binary::FloorDivide,
                Kind::Op("%") => Binary::Modulo,
                _ => return Ok(left),
            };
            self.next();
            let right = self.power()?;
            left = self.node(ExprKind::Binary(operation, Box::new(left), Box::new(right)))?;
        }
    }

    fn power(&mut self) -> Result<Expr> {
        let mut left = self.unary(true)?;
        while self.take_op("**") {
            let right = self.unary(true)?;
            left = self.node(ExprKind::Binary(
                Binary::Power,
                Box::new(left),
                Box::new(right),
            ))?;
        }
        Ok(left)
    }

    fn unary(&mut self, filtered: bool) -> Result<Expr> {
        let sign = match self.peek() {
            Kind::Op("-") => Some(true),
            Kind::Op("+") => Some(false),
            _ => None,
        };
        let mut value = match sign {
            Some(negative) => {
                self.next();
                self.enter()?;
                let value = Box::new(self.unary(false)?);
                self.brackets -= 1;
                self.node(match negative {
                    true => ExprKind::Negative(value),
                    false => ExprKind::Positive(value),
                })?
            }
            None => self.primary()?,
        };
        value = self.postfix(value)?;
        if filtered {
            value = self.filters(value)?;
        }
        Ok(value)
    }

    fn primary(&mut self) -> Result<Expr> {
        let kind = match self.next() {
            Kind::Name(name) => match name.as_str() {
                "true" | "True" => ExprKind::Bool(true),
                "false" | "False" => ExprKind::Bool(false),
                "none" | "None" => ExprKind::None,
                _ => {
                    match name.as_str() {
                        "varargs" => self.seen.varargs = true,
                        "kwargs" => self.seen.kwargs = true,
                        "caller" => self.seen.caller = true,
                        _ => {}
                    }
                    ExprKind::Name(name)
                }
            },
            Kind::Str(mut text) => {
                // Texts beside each other are one.
                while let Kind::Str(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                ExprKind::Str(Text::own(text))
            }
            Kind::Int(value) => ExprKind::Int(value),
            Kind::Float(value) => ExprKind::Float(value),
            Kind::Op("(") => {
                self.enter()?;
                let value = match self.is_op(")") {
                    true => self.node(ExprKind::Tuple(Vec::new()))?,
                    false => self.tuple(true, &[])?,
                };
                self.brackets -= 1;
                self.expect_op(")")?;
                return Ok(value);
            }
            Kind::Op("[") => {
                let mut items = Vec::new();
                while !self.is_op("]") {
                    if !items.is_empty() {
                        self.expect_op(",")?;
                        if self.is_op("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?);
                }
                self.expect_op("]")?;
                ExprKind::List(items)
            }
            Kind::Op("{") => {
                let mut items = Vec::new();
                while !self.is_op("}") {
                    if !items.is_empty() {
                        self.expect_op(",")?;
                        if self.is_op("}") {
                            break;
                        }
                    }
                    let key = self.expression()?;
                    self.expect_op(":")?;
                    items.push((key, self.expression()?));
                }
                self.expect_op("}")?;
                ExprKind::Dict(items)
            }
            other => return self.fault(format!("unexpected {}", describe(&other))),
        };
        self.node(kind)
    }

    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            let inner = Box::new(value);
            let kind = if self.take_op(".") {
                match self.next() {
                    Kind::Name(name) => ExprKind::Attribute(inner, name),
                    Kind::Int(index) => {
                        let index = self.node(ExprKind::Int(index))?;
                        ExprKind::Item(inner, Box::new(index))
                    }
                    other => {
                        return self.fault(format!("expected a name, not {}", describe(&other)))
                    }
                }
            } else if self.take_op("[") {
                self.subscript(inner)?
            } else if self.is_op("(") {
                ExprKind::Call(inner, Box::new(self.arguments()?))
            } else {
                return Ok(*inner);
            };
            value = self.node(kind)?;
        }
    }

    fn subscript(&mut self, value: Box<Expr>) -> Result<ExprKind> {
        let mut bounds: [Option<Box<Expr>>; 3] = [None, None, None];
        let mut colons = 0;
        let mut items = Vec::new();
        loop {
            if self.take_op("]") {
                break;
            }
            if self.take_op(":") {
                colons += 1;
                if colons > 2 {
                    return self.fault("a slice has three parts at most");
                }
            } else if self.take_op(",") && colons == 0 {
                continue;
            } else {
                let part = self.expression()?;
                match colons {
                    0 if self.is_op(":") && items.is_empty() => bounds[0] = Some(Box::new(part)),
                    0 => items.push(part),
                    n => bounds[n] = Some(Box::new(part)),
                }
            }
        }
        if colons > 0 {
            return match items.is_empty() {
                true => Ok(ExprKind::Slice(value, bounds)),
                false => self.fault("a slice among other indices"),
            };
        }
        match (items.pop(), items.is_empty()) {
            (None, _) => self.fault("expected an index"),
            (Some(one), true) => Ok(ExprKind::Item(value, Box::new(one))),
            (Some(last), false) => {
                items.push(last);
                let tuple = self.node(ExprKind::Tuple(items))?;
                Ok(ExprKind::Item(value, Box::new(tuple)))
            }
        }
    }

    pub(super) fn arguments(&mut self) -> Result<Arguments> {
        self.expect_op("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            if self.take_op("**") {
                if arguments.spread_named.is_some() {
                    return self.fault("two mappings of arguments");
                }
                arguments.spread_named = Some(self.expression()?);
            } else if self.take_op("*") {
                if arguments.spread.is_some() {
                    return self.fault("two lists of arguments");
                }
                arguments.spread = Some(self.expression()?);
            } else if matches!((self.peek(), self.ahead(1)), (Kind::Name(_), Kind::Op("="))) {
                let name = self.name()?;
                self.next();
                arguments.named.push((name, self.expression()?));
            } else {
                if !arguments.named.is_empty() {
                    return self.fault("a positional argument after named ones");
                }
                arguments.positional.push(self.expression()?);
            }
        }
        self.expect_op(")")?;
        Ok(arguments)
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while self.is_op(".") {
            self.next();
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    /// A filter's name and arguments.
    pub(super) fn filter_call(&mut self) -> Result<FilterCall> {
        let name = self.dotted_name()?;
        let arguments = match self.is_op("(") {
            true => self.arguments()?,
            false => Arguments::default(),
        };
        Ok(FilterCall { name, arguments })
    }

    fn filters(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            let inner = Box::new(value);
            let kind = if self.take_op("|") {
                ExprKind::Filter(inner, Box::new(self.filter_call()?))
            } else if self.take_name("is") {
                let negated = self.take_name("not");
                let test = ExprKind::Test(inner, Box::new(self.test_call()?));
                match negated {
                    true => ExprKind::Not(Box::new(self.node(test)?)),
                    false => test,
                }
            } else if self.is_op("(") {
                ExprKind::Call(inner, Box::new(self.arguments()?))
            } else {
                return Ok(*inner);
            };
            value = self.node(kind)?;
        }
    }

    fn test_call(&mut self) -> Result<FilterCall> {
        let name = self.dotted_name()?;
        let mut arguments = Arguments::default();
        let takes_one = match self.peek() {
            Kind::Op("(") => {
                arguments = self.arguments()?;
                false
            }
            Kind::Name(name) if name == "is" => {
                return self.fault("tests cannot be chained with 'is'")
            }
            Kind::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            Kind::Str(_) | Kind::Int(_) | Kind::Float(_) | Kind::Op("[" | "{") => true,
            _ => false,
        };
        // `x is defined and …`, `x is none if …` and the like go on with a word that is no argument.
        let word = matches!(self.peek(), Kind::Name(n) if matches!(n.as_str(), "if" | "in" | "not" | "recursive"));
        if takes_one && !word {
            let argument = self.primary()?;
            arguments.positional.push(self.postfix(argument)?);
        }
        Ok(FilterCall { name, arguments })
    }
}
