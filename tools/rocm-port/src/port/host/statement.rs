//! Statements of host code in Rust.

use super::expression::STATUS;
use super::translate::{Local, Refusal, Scope, Translator};
use super::value::{binary, identifier, CType, Value};
use crate::parse::tree::{children, field, walk};
use tree_sitter::Node;

/// Statements inside of statements.
const MAX_DEPTH: usize = 100;

impl<'t> Translator<'_, 't> {
    /// A block in a scope of its own.
    fn block(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        self.scopes.push(Scope::default());
        self.indent += 1;
        let result = self.statement(node, true);
        self.indent -= 1;
        self.scopes.pop();
        result
    }

    /// A statement; `open` says that a compound one needs no braces of its own.
    pub(super) fn statement(&mut self, node: Node<'t>, open: bool) -> Result<(), Refusal> {
        if self.depth > MAX_DEPTH {
            return Err(self.refuse(node, "it is nested too deeply"));
        }
        self.depth += 1;
        let result = self.any_statement(node, open);
        self.depth -= 1;
        result
    }

    fn any_statement(&mut self, node: Node<'t>, open: bool) -> Result<(), Refusal> {
        match node.kind() {
            "compound_statement" if open => {
                let mut list = children(node).into_iter();
                list.try_for_each(|child| self.statement(child, false))
            }
            "compound_statement" => self.braces("", node),
            "expression_statement" => {
                let mut list = children(node).into_iter();
                list.try_for_each(|child| self.effect(child))
            }
            "declaration" => self.declaration(node),
            "alias_declaration" => {
                if let (Some(name), Some(kind)) = (field(node, "name"), field(node, "type")) {
                    let pair = (self.text(name).to_string(), self.resolve(self.text(kind)));
                    self.scopes
                        .last_mut()
                        .into_iter()
                        .for_each(|scope| scope.types.push(pair.clone()));
                }
                Ok(())
            }
            "if_statement" => self.condition(node, ""),
            "switch_statement" => self.switch(node),
            "for_statement" | "while_statement" => self.repeat(node),
            "do_statement" => {
                let once = field(node, "condition").map(|condition| self.text(condition));
                let once = once.map(|text| text.trim_matches(['(', ')', ' ']));
                match (once, field(node, "body")) {
                    (Some("0" | "false"), Some(body)) => self.statement(body, false),
                    _ => Err(self.refuse(node, "this loop is not known here")),
                }
            }
            "return_statement" => self.give_back(node),
            "throw_statement" => self.fail(node),
            "static_assert_declaration" | "using_declaration" | "type_definition" => Ok(()),
            kind => {
                let reason = format!("`{}` ({kind}) has no counterpart here", self.short(node));
                Err(self.refuse(node, &reason))
            }
        }
    }

    /// A statement in braces, after what stands before them.
    fn braces(&mut self, head: &str, node: Node<'t>) -> Result<(), Refusal> {
        self.line(&format!("{head}{{"));
        self.block(node)?;
        self.line("}");
        Ok(())
    }

    fn give_back(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let value = children(node).first().copied();
        if let Some(lambda) = value.and_then(|value| self.lambda_of(value)) {
            return self.lambda(lambda);
        }
        if let Some(label) = self.labels.last().copied() {
            if value.is_some() {
                return Err(self.refuse(node, "a lambda gives a value back"));
            }
            self.line(&format!("break 'lambda{label};"));
            return Ok(());
        }
        match (value, self.result.clone()) {
            (None, _) => self.line("return Ok(());"),
            (Some(value), Some(kind)) => {
                let value = self.expression(value)?.convert(&kind);
                let value =
                    value.ok_or_else(|| self.refuse(node, "this value cannot be given back"))?;
                self.line(&format!("return Ok({});", value.text));
            }
            (Some(value), None) => {
                self.effect(value)?;
                self.line("return Ok(());");
            }
        }
        Ok(())
    }

    fn fail(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let text = self.short(node);
        self.line(&format!("return Err(failed({text:?}));"));
        Ok(())
    }

    fn condition(&mut self, node: Node<'t>, prefix: &str) -> Result<(), Refusal> {
        let value = field(node, "condition").and_then(|clause| field(clause, "value"));
        let value = value.filter(|value| value.kind() != "declaration");
        let (Some(value), Some(yes)) = (value, field(node, "consequence")) else {
            return Err(self.refuse(node, "this condition is not understood"));
        };
        let no = field(node, "alternative").and_then(|clause| children(clause).first().copied());
        let condition = self.expression(value)?.truth();
        let condition = condition.ok_or_else(|| self.refuse(value, "this is no condition"))?;
        match (condition.constant, no, prefix) {
            // Only what is reached may have an entry.
            (Some(0), None, _) => return Ok(()),
            (Some(0), Some(no), "") => return self.statement(no, false),
            (Some(0), Some(no), _) => return self.braces(prefix, no),
            (Some(_), _, "") => return self.statement(yes, false),
            (Some(_), _, _) => return self.braces(prefix, yes),
            (None, _, _) => {}
        }
        self.braces(&format!("{prefix}if {} ", condition.text), yes)?;
        match no {
            Some(no) if no.kind() == "if_statement" => self.condition(no, "else "),
            Some(no) => self.braces("else ", no),
            None => Ok(()),
        }
    }

    fn switch(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let value = field(node, "condition").and_then(|clause| field(clause, "value"));
        let (Some(value), Some(body)) = (value, field(node, "body")) else {
            return Err(self.refuse(node, "this switch is not understood"));
        };
        let value = self.expression(value)?;
        self.line(&format!("match {} {{", value.text));
        self.indent += 1;
        let mut pattern: Vec<String> = Vec::new();
        let mut default = false;
        for case in children(body) {
            if case.kind() != "case_statement" {
                return Err(self.refuse(case, "a switch holds cases only"));
            }
            let label = field(case, "value");
            let statements: Vec<Node> = children(case)
                .into_iter()
                .filter(|child| Some(*child) != label)
                .collect();
            match label {
                Some(label) => {
                    let known = self.expression(label)?.constant;
                    let known =
                        known.ok_or_else(|| self.refuse(label, "this case is no constant"))?;
                    pattern.push(known.to_string());
                }
                None => default = true,
            }
            if statements.is_empty() {
                continue;
            }
            let head = if default {
                "_ => ".to_string()
            } else {
                format!("{} => ", pattern.join(" | "))
            };
            self.case(case, &head, &statements)?;
            pattern.clear();
        }
        if !default {
            self.line("_ => {}");
        }
        self.indent -= 1;
        self.line("}");
        Ok(())
    }

    fn case(&mut self, case: Node<'t>, head: &str, statements: &[Node<'t>]) -> Result<(), Refusal> {
        let ends = |node: &Node| {
            matches!(
                node.kind(),
                "break_statement" | "return_statement" | "throw_statement"
            )
        };
        let last = statements.last().is_some_and(|last| {
            ends(last)
                || (last.kind() == "compound_statement" && children(*last).last().is_some_and(ends))
        });
        if !last && case.next_named_sibling().is_some() {
            return Err(self.refuse(case, "a case that goes on into the next is not known here"));
        }
        self.line(&format!("{head}{{"));
        self.scopes.push(Scope::default());
        self.indent += 1;
        for statement in statements {
            let inner = match statement.kind() {
                "compound_statement" => children(*statement),
                _ => vec![*statement],
            };
            for statement in inner {
                if statement.kind() != "break_statement" {
                    self.statement(statement, false)?;
                }
            }
        }
        self.indent -= 1;
        self.scopes.pop();
        self.line("}");
        Ok(())
    }

    fn repeat(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let mut jumps = false;
        walk(node, |inner| {
            jumps |= matches!(inner.kind(), "continue_statement" | "break_statement");
            true
        });
        let Some(body) = field(node, "body").filter(|_| !jumps) else {
            return Err(self.refuse(node, "this loop is not known here"));
        };
        self.line("{");
        self.scopes.push(Scope::default());
        self.indent += 1;
        if let Some(first) = field(node, "initializer") {
            match first.kind() {
                "declaration" => self.declaration(first)?,
                _ => self.effect(first)?,
            }
        }
        let condition = field(node, "condition");
        let condition = condition.map(|clause| field(clause, "value").unwrap_or(clause));
        let condition = match condition {
            Some(condition) => self.expression(condition)?.truth().map(|value| value.text),
            None => None,
        };
        let condition = condition.ok_or_else(|| self.refuse(node, "this loop has no condition"))?;
        self.line(&format!("while {condition} {{"));
        self.block(body)?;
        if let Some(step) = field(node, "update") {
            self.indent += 1;
            self.effect(step)?;
            self.indent -= 1;
        }
        self.line("}");
        self.indent -= 1;
        self.scopes.pop();
        self.line("}");
        Ok(())
    }

    fn declaration(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let kind = field(node, "type").map_or("", |kind| self.text(kind));
        let mut cursor = node.walk();
        let list: Vec<Node> = node
            .children_by_field_name("declarator", &mut cursor)
            .collect();
        list.into_iter()
            .try_for_each(|declarator| self.declarator(node, kind, declarator))
    }

    fn declarator(
        &mut self,
        node: Node<'t>,
        kind: &str,
        declarator: Node<'t>,
    ) -> Result<(), Refusal> {
        let (mut inner, value) = match declarator.kind() {
            "init_declarator" => (
                field(declarator, "declarator").unwrap_or(declarator),
                field(declarator, "value"),
            ),
            _ => (declarator, None),
        };
        let unclear =
            |this: &Self| this.refuse(node, &format!("`{}` is not understood", this.short(node)));
        let lists = ["argument_list", "initializer_list"];
        let mut arguments = value.filter(|value| lists.contains(&value.kind()));
        let mut kind = kind.to_string();
        let mut function = false;
        while inner.kind() != "identifier" {
            match inner.kind() {
                "pointer_declarator" if !function => kind.push('*'),
                // `dim3 grid(n)` may be read as a function.
                "function_declarator" => {
                    function = true;
                    arguments =
                        arguments.or(field(inner, "parameters").filter(|_| value.is_none()));
                }
                "parenthesized_declarator" | "reference_declarator" | "pointer_declarator" => {}
                _ => return Err(unclear(self)),
            }
            let next = field(inner, "declarator").or_else(|| children(inner).last().copied());
            inner = next.ok_or_else(|| unclear(self))?;
        }
        let name = self.text(inner);
        if let Some(local) = value
            .map(|value| self.callable(name, value))
            .transpose()?
            .flatten()
        {
            self.declare(name, local);
            return Ok(());
        }
        let deduced = kind.trim_end_matches('*') == "auto";
        let kind = self.kind(&kind);
        let value = match (&kind, value, arguments) {
            (CType::Opaque, _, _) => None,
            (CType::Dim3, _, Some(list)) => Some(self.dim3(node, &children(list))?),
            (_, Some(_), Some(list)) => match children(list)[..] {
                [one] => Some(self.expression(one)?),
                _ => return Err(unclear(self)),
            },
            (_, Some(value), None) => Some(self.expression(value)?),
            (_, None, _) => None,
        };
        let value = match value {
            Some(value) if deduced => value,
            Some(value) => value.convert(&kind).ok_or_else(|| unclear(self))?,
            None => match &kind {
                CType::Dim3 => Value::new("[1, 1, 1]", kind.clone()),
                CType::Pointer(_) | CType::Opaque => Value::new("core::ptr::null()", kind.clone()),
                kind if kind.is_number() => Value::constant(0, kind.clone()),
                _ => return Err(unclear(self)),
            },
        };
        let assigned = self.assigned.contains(name);
        if (value.constant.is_some() && !assigned) || value.kind == CType::Opaque {
            self.declare(name, Local::Value(value));
            return Ok(());
        }
        let written = value.kind.rust().ok_or_else(|| unclear(self))?;
        let mutable = if assigned { "mut " } else { "" };
        let rust = identifier(name);
        self.line(&format!("let {mutable}{rust}: {written} = {};", value.text));
        self.declare(name, Local::Value(Value::new(rust, value.kind)));
        Ok(())
    }

    /// What a variable is that is set to a lambda or to a kernel.
    fn callable(&mut self, name: &str, value: Node<'t>) -> Result<Option<Local<'t>>, Refusal> {
        if value.kind() == "lambda_expression" {
            return Ok(Some(Local::Lambda(value)));
        }
        let named = match value.kind() {
            "pointer_expression" => field(value, "argument"),
            _ => Some(value),
        };
        let kinds = ["identifier", "template_function", "qualified_identifier"];
        let Some(named) = named.filter(|named| kinds.contains(&named.kind())) else {
            return Ok(None);
        };
        if let Some(Local::Kernel(kernel, template)) = self.local(self.text(named)) {
            return Ok(Some(Local::Kernel(kernel.clone(), template.clone())));
        }
        let (kernel, template) = self.callee(named);
        if !self
            .unit
            .kernels
            .iter()
            .any(|entry| super::basename(&entry.kernel) == kernel)
        {
            return Ok(None);
        }
        if self.assigned.contains(name) {
            return Err(self.refuse(value, "which kernel is launched is chosen by assignments"));
        }
        Ok(Some(Local::Kernel(kernel, template)))
    }

    /// An expression for what it does.
    fn effect(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        match node.kind() {
            "assignment_expression" => return self.assign(node),
            "update_expression" => return self.update(node),
            "comma_expression" | "parenthesized_expression" => {
                let mut list = children(node).into_iter();
                return list.try_for_each(|child| self.effect(child));
            }
            "identifier" | "number_literal" | "cast_expression" | "string_literal" => return Ok(()),
            // A stream of messages.
            "binary_expression" if self.text(node).trim_start().starts_with("std::c") => {
                return Ok(())
            }
            _ => {}
        }
        if let Some(lambda) = self.lambda_of(node) {
            return self.lambda(lambda);
        }
        if let Some(function) = field(node, "function").filter(|_| node.kind() == "call_expression")
        {
            if children(node)
                .iter()
                .any(|child| child.kind() == "kernel_call_syntax")
            {
                return self.launch(node, function);
            }
            let text = self.text(function);
            let name = text.split('<').next().unwrap_or(text);
            match name.rsplit("::").next().unwrap_or(name).trim() {
                "exit" | "abort" | "terminate" => return self.fail(node),
                "printf" | "fprintf" | "fflush" | "assert" | "puts" => return Ok(()),
                "cudaDeviceGetAttribute" => return self.attribute(node),
                name if STATUS.contains(&name) => return Ok(()),
                _ => {}
            }
        }
        let value = self.expression(node)?;
        match value.text.ends_with('?') {
            true => self.line(&format!("{};", value.text)),
            false => self.line(&format!("let _ = {};", value.text)),
        }
        Ok(())
    }

    fn update(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let unclear = self.refuse(node, &format!("`{}` is not understood", self.short(node)));
        let Some(argument) = field(node, "argument") else {
            return Err(unclear);
        };
        let place = self.expression(argument)?;
        let operator = if self.text(node).contains("++") {
            "+"
        } else {
            "-"
        };
        let one = Value::constant(1, CType::number("i32"));
        let next = binary(operator, &place, &one).and_then(|next| next.convert(&place.kind));
        let next = next.ok_or(unclear)?;
        self.line(&format!("{} = {};", place.text, next.text));
        Ok(())
    }

    fn assign(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let unclear = self.refuse(node, &format!("`{}` is not understood", self.short(node)));
        let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) else {
            return Err(unclear);
        };
        if self.kind_of_place(left) == Some(CType::Opaque) {
            return Ok(());
        }
        let operator = field(node, "operator").map_or("=", |operator| self.text(operator));
        let place = self.expression(left)?;
        let value = self.expression(right)?;
        let value = match operator.trim_end_matches('=') {
            "" => Some(value),
            operator => binary(operator, &place, &value),
        };
        let value = value
            .and_then(|value| value.convert(&place.kind))
            .ok_or(unclear)?;
        self.line(&format!("{} = {};", place.text, value.text));
        Ok(())
    }

    fn kind_of_place(&self, node: Node<'t>) -> Option<CType> {
        match self.local(self.text(node)) {
            Some(Local::Value(value)) => Some(value.kind.clone()),
            _ => None,
        }
    }

    /// `cudaDeviceGetAttribute(&value, attribute, device)`
    fn attribute(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let arguments = field(node, "arguments").map(children).unwrap_or_default();
        let place = arguments
            .first()
            .and_then(|place| field(*place, "argument"));
        let (Some(place), Some(attribute)) = (place, arguments.get(1)) else {
            return Err(self.refuse(node, "this is not understood"));
        };
        let place = self.expression(place)?;
        let value = match self.text(*attribute) {
            "cudaDevAttrMultiProcessorCount" => "compute_units()? as i32",
            "cudaDevAttrMaxSharedMemoryPerBlock" | "cudaDevAttrMaxSharedMemoryPerBlockOptin" => {
                "65536"
            }
            "cudaDevAttrWarpSize" => "32",
            "cudaDevAttrMaxThreadsPerBlock" => "1024",
            other => {
                return Err(self.refuse(node, &format!("the attribute {other} is not known here")))
            }
        };
        self.line(&format!("{} = {value};", place.text));
        Ok(())
    }

    /// The lambda that a call without arguments calls.
    fn lambda_of(&self, node: Node<'t>) -> Option<Node<'t>> {
        let arguments = field(node, "arguments").filter(|_| node.kind() == "call_expression")?;
        if !children(arguments).is_empty() {
            return None;
        }
        let mut function = field(node, "function")?;
        while function.kind() == "parenthesized_expression" {
            function = children(function).first().copied()?;
        }
        match (function.kind(), self.local(self.text(function))) {
            ("lambda_expression", _) => Some(function),
            ("identifier", Some(Local::Lambda(lambda))) => Some(*lambda),
            _ => None,
        }
    }

    fn lambda(&mut self, node: Node<'t>) -> Result<(), Refusal> {
        let Some(body) = field(node, "body") else {
            return Err(self.refuse(node, "this lambda is not understood"));
        };
        self.label_count += 1;
        let label = self.label_count;
        self.labels.push(label);
        let before = self.out.len();
        let result = self.block(body);
        self.labels.pop();
        result?;
        let inside = self.out.split_off(before);
        let used = inside.contains(&format!("break 'lambda{label};"));
        let head = if used {
            format!("'lambda{label}: {{")
        } else {
            "{".to_string()
        };
        self.line(&head);
        self.out.push_str(&inside);
        self.line("}");
        Ok(())
    }
}
