//! Expressions of host code in Rust.

use super::translate::{Local, Refusal, Translator};
use super::value::{binary, size_of, CType, Value};
use crate::parse::tree::{children, field};
use crate::port::{number, types};
use tree_sitter::Node;

/// Expressions inside of expressions.
const MAX_DEPTH: usize = 100;

/// Functions of the runtime that only prepare a launch or tell how it went: launches here do so themselves.
pub(super) const STATUS: &[&str] = &[
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaFuncSetAttribute",
    "cudaFuncSetCacheConfig",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
];

impl<'t> Translator<'_, 't> {
    /// An expression.
    pub(super) fn expression(&mut self, node: Node<'t>) -> Result<Value, Refusal> {
        if self.depth > MAX_DEPTH {
            return Err(self.refuse(node, "it is nested too deeply"));
        }
        self.depth += 1;
        let value = self.any_expression(node);
        self.depth -= 1;
        value
    }

    fn any_expression(&mut self, node: Node<'t>) -> Result<Value, Refusal> {
        let known = match node.kind() {
            "number_literal" => self.literal(node),
            "true" => Some(Value::constant(1, CType::Bool)),
            "false" => Some(Value::constant(0, CType::Bool)),
            "null" => Some(Value::constant(0, CType::number("i32"))),
            "identifier" | "qualified_identifier" | "type_identifier" => Some(self.name(node)?),
            // `dim3 grid(n)` reads like a function with a parameter of type `n`.
            "parameter_declaration" => match children(node)[..] {
                [name] => Some(self.expression(name)?),
                _ => None,
            },
            "compound_literal_expression" => match (field(node, "type"), field(node, "value")) {
                (Some(kind), Some(list)) if self.kind(self.text(kind)) == CType::Dim3 => {
                    Some(self.dim3(node, &children(list))?)
                }
                _ => None,
            },
            "parenthesized_expression" => match children(node)[..] {
                [inner] => Some(self.expression(inner)?),
                _ => None,
            },
            "binary_expression" => self.operation(node)?,
            "unary_expression" => self.unary(node)?,
            "conditional_expression" => self.conditional(node)?,
            "cast_expression" => match (field(node, "type"), field(node, "value")) {
                (Some(kind), Some(value)) => {
                    let value = self.expression(value)?;
                    Some(self.cast(node, self.text(kind), &value)?)
                }
                _ => None,
            },
            "sizeof_expression" => {
                let kind = field(node, "type").or(field(node, "value"));
                let kind = kind.map(|kind| self.resolve(self.text(kind).trim_matches(['(', ')'])));
                let size = kind.and_then(|kind| size_of(&kind));
                size.map(|size| Value::constant(size, CType::number("u64")))
            }
            "field_expression" => self.member(node)?,
            "call_expression" => Some(self.call(node)?),
            _ => None,
        };
        known.ok_or_else(|| {
            self.refuse(
                node,
                &format!("`{}` has no counterpart here", self.short(node)),
            )
        })
    }

    fn literal(&self, node: Node<'t>) -> Option<Value> {
        let text = self.text(node);
        let lower = text.to_ascii_lowercase();
        let hex = lower.starts_with("0x");
        if !hex && (lower.contains(['.', 'e']) || lower.ends_with('f')) {
            let kind = if lower.ends_with('f') { "f32" } else { "f64" };
            let digits = lower.trim_end_matches(['f', 'l']).replace('\'', "");
            let value: f64 = digits.parse().ok()?;
            return Some(Value::new(format!("{value:?}"), CType::number(kind)));
        }
        let value = number::literal(text)?;
        let unsigned = lower.contains('u');
        let long = lower.contains('l') || i32::try_from(value).is_err();
        let kind = match (unsigned, long) {
            (false, false) => "i32",
            (false, true) => "i64",
            (true, false) => "u32",
            (true, true) => "u64",
        };
        Some(Value::constant(value, CType::number(kind)))
    }

    fn name(&mut self, node: Node<'t>) -> Result<Value, Refusal> {
        let text = self.text(node);
        let last = text.rsplit("::").next().unwrap_or(text).trim();
        if let Some(Local::Value(value)) = self.local(text) {
            return Ok(value.clone());
        }
        let int = |value| Value::constant(value, CType::number("i32"));
        if let Some(bound) = self.bound(text).map(str::to_string) {
            let enumerator = bound.rsplit("::").next().unwrap_or_default();
            return match bound.as_str() {
                "true" => Ok(Value::constant(1, CType::Bool)),
                "false" => Ok(Value::constant(0, CType::Bool)),
                other => number::evaluate(other)
                    .or_else(|| self.program.enumerators.get(enumerator).copied())
                    .map(int)
                    .ok_or_else(|| self.refuse(node, &format!("`{bound}` is no number"))),
            };
        }
        if let Some(value) = self.program.enumerators.get(last) {
            return Ok(int(*value));
        }
        if let Some(value) = self.program.constants.get(last).copied() {
            return self.expression(value);
        }
        match last {
            "cudaSuccess" | "nullptr" | "NULL" => Ok(int(0)),
            "INT_MAX" => Ok(int(i32::MAX.into())),
            _ => Err(self.refuse(node, &format!("`{text}` is not known here"))),
        }
    }

    fn operation(&mut self, node: Node<'t>) -> Result<Option<Value>, Refusal> {
        let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) else {
            return Ok(None);
        };
        let operator = field(node, "operator").map_or("", |operator| self.text(operator));
        let (a, b) = (self.expression(left)?, self.expression(right)?);
        Ok(binary(operator, &a, &b))
    }

    fn unary(&mut self, node: Node<'t>) -> Result<Option<Value>, Refusal> {
        let Some(argument) = field(node, "argument") else {
            return Ok(None);
        };
        let operator = field(node, "operator").map_or("", |operator| self.text(operator));
        let value = self.expression(argument)?;
        let zero = Value::constant(0, CType::number("i32"));
        Ok(match operator {
            "+" => Some(value),
            "-" if value.kind.is_float() => {
                Some(Value::new(format!("-{}", value.text), value.kind))
            }
            "-" if value.constant.is_some() => binary("-", &zero, &value),
            "-" => binary("-", &zero, &value),
            "!" => value.truth().map(|value| match value.constant {
                Some(known) => Value::constant(1 - known, CType::Bool),
                None => Value::new(format!("!({})", value.text), CType::Bool),
            }),
            _ => None,
        })
    }

    fn conditional(&mut self, node: Node<'t>) -> Result<Option<Value>, Refusal> {
        let parts = (
            field(node, "condition"),
            field(node, "consequence"),
            field(node, "alternative"),
        );
        let (Some(condition), Some(yes), Some(no)) = parts else {
            return Ok(None);
        };
        let Some(condition) = self.expression(condition)?.truth() else {
            return Ok(None);
        };
        match condition.constant {
            Some(0) => return self.expression(no).map(Some),
            Some(_) => return self.expression(yes).map(Some),
            None => {}
        }
        let (yes, no) = (self.expression(yes)?, self.expression(no)?);
        // What the operator `+` would compute in is what both become.
        let kind = match binary("+", &yes, &no) {
            Some(sum) if yes.kind != no.kind => sum.kind,
            _ => yes.kind.clone(),
        };
        let (Some(yes), Some(no)) = (yes.convert(&kind), no.convert(&kind)) else {
            return Ok(None);
        };
        let text = format!(
            "if {} {{ {} }} else {{ {} }}",
            condition.text, yes.text, no.text
        );
        Ok(Some(Value::new(format!("({text})"), kind)))
    }

    fn member(&mut self, node: Node<'t>) -> Result<Option<Value>, Refusal> {
        let (Some(object), Some(member)) = (field(node, "argument"), field(node, "field")) else {
            return Ok(None);
        };
        let object = self.expression(object)?;
        let index = match (&object.kind, self.text(member)) {
            (CType::Dim3, "x") => 0,
            (CType::Dim3, "y") => 1,
            (CType::Dim3, "z") => 2,
            _ => return Ok(None),
        };
        Ok(Some(Value::new(
            format!("{}[{index}]", object.text),
            CType::number("u32"),
        )))
    }

    /// A value as the type that a text names.
    fn cast(&self, node: Node<'t>, kind: &str, value: &Value) -> Result<Value, Refusal> {
        let kind = self.kind(kind);
        value.convert(&kind).ok_or_else(|| {
            let reason = format!(
                "`{}` is a conversion that is not known here",
                self.short(node)
            );
            self.refuse(node, &reason)
        })
    }

    fn call(&mut self, node: Node<'t>) -> Result<Value, Refusal> {
        let (Some(function), Some(list)) = (field(node, "function"), field(node, "arguments"))
        else {
            return Err(self.refuse(node, "this call is not understood"));
        };
        let arguments = children(list);
        let text = self.text(function);
        let name = text.split('<').next().unwrap_or_default();
        let name = name.rsplit("::").next().unwrap_or_default().trim();
        if name.ends_with("_cast") {
            let inner = text
                .split_once('<')
                .and_then(|(_, rest)| rest.rsplit_once('>'));
            if let (Some((kind, _)), [argument]) = (inner, &arguments[..]) {
                let value = self.expression(*argument)?;
                return self.cast(node, kind, &value);
            }
        }
        if name == "dim3" {
            return self.dim3(node, &arguments);
        }
        if let ([argument], Some(_)) = (&arguments[..], types::scalar(&self.resolve(text))) {
            let value = self.expression(*argument)?;
            return self.cast(node, text, &value);
        }
        if STATUS.contains(&name) {
            return Ok(Value::constant(0, CType::number("i32")));
        }
        let own = self
            .program
            .functions
            .iter()
            .any(|function| function.name == name);
        if let (false, Some(value)) = (own, self.math(node, name, &arguments, own)?) {
            return Ok(value);
        }
        self.host_call(node, function, &arguments)
    }

    /// Functions of the standard library; none if this is not one of them.
    fn math(
        &mut self,
        node: Node<'t>,
        name: &str,
        arguments: &[Node<'t>],
        own: bool,
    ) -> Result<Option<Value>, Refusal> {
        match (name, arguments) {
            _ if own => Ok(None),
            ("min" | "max" | "fminf" | "fmaxf" | "fmin" | "fmax", [a, b]) => {
                let (a, b) = (self.expression(*a)?, self.expression(*b)?);
                let sum = binary("+", &a, &b)
                    .map(|sum| sum.kind)
                    .filter(CType::is_number);
                let kind = if a.kind == b.kind {
                    Some(a.kind.clone())
                } else {
                    sum
                };
                let both = kind.and_then(|kind| Some((a.convert(&kind)?, b.convert(&kind)?)));
                let Some((a, b)) = both else {
                    return Ok(None);
                };
                let least = name.contains("min");
                Ok(Some(match (a.constant, b.constant) {
                    (Some(x), Some(y)) => {
                        Value::constant(if least { x.min(y) } else { x.max(y) }, a.kind)
                    }
                    _ => a.method(if least { "min" } else { "max" }, &b),
                }))
            }
            ("ceil" | "ceilf" | "floor" | "floorf" | "sqrt" | "sqrtf" | "log2" | "log2f", [a]) => {
                let value = self.expression(*a)?;
                let kind = if value.kind == CType::number("f32") {
                    "f32"
                } else {
                    "f64"
                };
                let value = value.convert(&CType::number(kind));
                let value = value.ok_or_else(|| self.refuse(node, "this is no number"))?;
                let method = match name {
                    "ceil" | "ceilf" => "ceil",
                    "floor" | "floorf" => "floor",
                    "sqrt" | "sqrtf" => "sqrt",
                    _ => "log2",
                };
                Ok(Some(value.call(method)))
            }
            _ => Ok(None),
        }
    }

    /// `dim3(x, y, z)`
    pub(super) fn dim3(
        &mut self,
        node: Node<'t>,
        arguments: &[Node<'t>],
    ) -> Result<Value, Refusal> {
        if arguments.len() > 3 {
            return Err(self.refuse(node, "dim3 has three numbers"));
        }
        let mut parts = Vec::new();
        for argument in arguments {
            let value = self.expression(*argument)?;
            if value.kind == CType::Dim3 && arguments.len() == 1 {
                return Ok(value);
            }
            let part = value
                .convert(&CType::number("u32"))
                .filter(|_| value.kind.is_number());
            parts.push(
                part.ok_or_else(|| self.refuse(*argument, "this is no number"))?
                    .text,
            );
        }
        parts.resize(3, "1".to_string());
        Ok(Value::new(format!("[{}]", parts.join(", ")), CType::Dim3))
    }

    /// A call of a function of the file, which becomes a function of the launchers.
    fn host_call(
        &mut self,
        node: Node<'t>,
        function: Node<'t>,
        arguments: &[Node<'t>],
    ) -> Result<Value, Refusal> {
        let (name, given) = self.callee(function);
        let program = self.program;
        let found = program.functions.iter().enumerate().find(|(_, function)| {
            function.name == name
                && !function.device
                && function.parameters.len() >= arguments.len()
        });
        let Some((index, host)) = found else {
            return Err(self.refuse(node, &format!("the function `{name}` is not known here")));
        };
        let mut values = Vec::new();
        for argument in arguments {
            values.push(self.expression(*argument)?);
        }
        let template = self.deduce(index, given, &values);
        let template = template.ok_or_else(|| {
            self.refuse(
                node,
                &format!("the template arguments of `{name}` are not known"),
            )
        })?;
        let bindings = super::translate::bindings(host, &template);
        let mut texts = Vec::new();
        for (at, parameter) in host.parameters.iter().enumerate() {
            let kind = self.kind_with(&parameter.kind, &bindings);
            let default = parameter.default.as_deref().and_then(number::evaluate);
            let default = default.map(|value| Value::constant(value, CType::number("i32")));
            let value = values.get(at).cloned().or(default);
            let value = value.and_then(|value| value.convert(&kind));
            let value = value.ok_or_else(|| {
                self.refuse(
                    node,
                    &format!("`{}` of `{name}` cannot be passed", parameter.name),
                )
            })?;
            texts.push(value.text);
        }
        let called = self.plan.name_of(index, host, &template);
        let result = self.result_of(index, &bindings);
        let result = result.unwrap_or(CType::Other("void".into()));
        Ok(Value::new(
            format!("{called}({})?", texts.join(", ")),
            result,
        ))
    }

    /// The template arguments of a call: those that it names, those that its values' types say, defaults.
    fn deduce(&self, index: usize, given: Vec<String>, values: &[Value]) -> Option<Vec<String>> {
        let host = &self.program.functions[index];
        let mut bound: Vec<Option<String>> = given.into_iter().map(Some).collect();
        bound.resize(host.template.len(), None);
        for (place, template) in bound.iter_mut().zip(&host.template) {
            if place.is_some() {
                continue;
            }
            let deduced = host
                .parameters
                .iter()
                .zip(values)
                .find_map(|(parameter, value)| {
                    let mut words = parameter
                        .kind
                        .split(|c: char| !(c.is_alphanumeric() || c == '_'));
                    let pointer = parameter.kind.contains('*');
                    let names = words.any(|word| word == template.name);
                    match &value.kind {
                        CType::Pointer(element) if pointer && names => Some(element.clone()),
                        CType::Number(number) if !pointer && names => Some(super::cpp_name(number)),
                        _ => None,
                    }
                });
            *place = deduced.or_else(|| template.default.clone());
        }
        bound.into_iter().collect()
    }

    /// The name of a function without namespaces, and the template arguments that stand behind it.
    pub(super) fn callee(&mut self, function: Node<'t>) -> (String, Vec<String>) {
        let mut node = function;
        while node.kind() == "qualified_identifier" {
            let Some(inner) = field(node, "name") else {
                break;
            };
            node = inner;
        }
        let name = field(node, "name").map_or(self.text(node), |name| self.text(name));
        let list = field(node, "arguments").filter(|list| list.kind() == "template_argument_list");
        let given = list.map(children).unwrap_or_default();
        let given = given
            .into_iter()
            .map(|argument| self.template_argument(argument));
        (name.trim().to_string(), given.collect())
    }

    /// A template argument: a number if it is one, else a type or a name with what it means here.
    fn template_argument(&mut self, node: Node<'t>) -> String {
        let text = self.text(node).trim();
        let depth = self.depth;
        let value = match node.kind() {
            // A lone name is taken for a type.
            "type_descriptor" => self.constant_name(text),
            // Enumerators stay names: that is how units spell them.
            "qualified_identifier" | "identifier" if self.enumerator(text) => None,
            _ => self.expression(node).ok(),
        };
        self.depth = depth;
        match value.and_then(|value| Some((value.constant?, value.kind))) {
            Some((constant, CType::Bool)) => (constant != 0).to_string(),
            Some((constant, _)) => constant.to_string(),
            None => self.resolve(text),
        }
    }

    fn enumerator(&self, text: &str) -> bool {
        let name = self.bound(text).unwrap_or(text);
        let last = name.rsplit("::").next().unwrap_or(name);
        self.program.enumerators.contains_key(last)
    }

    fn constant_name(&mut self, name: &str) -> Option<Value> {
        match self.local(name) {
            Some(Local::Value(value)) => Some(value.clone()),
            _ => {
                let value = self.program.constants.get(name).copied()?;
                self.expression(value).ok()
            }
        }
    }
}
