//! Launches in host code: which entry, how many threads, which arguments.

use super::basename;
use super::translate::{Local, Refusal, Translator};
use super::value::{CType, Value};
use crate::model::{ArgumentKind, PortedKernel};
use crate::parse::tree::{children, field};
use crate::port::types;
use std::fmt::Write;
use tree_sitter::Node;

impl<'t> Translator<'_, 't> {
    /// `kernel<T><<<grid, block, shared, stream>>>(arguments)`
    pub(super) fn launch(&mut self, node: Node<'t>, function: Node<'t>) -> Result<(), Refusal> {
        let (name, given) = match self.local(self.text(function)) {
            Some(Local::Kernel(name, template)) => (name.clone(), template.clone()),
            Some(Local::Value(_)) => return Err(self.refuse(node, "the kernel is a parameter")),
            _ => self.callee(function),
        };
        let shape = children(node)
            .into_iter()
            .find(|child| child.kind() == "kernel_call_syntax");
        let shape = shape.map(children).unwrap_or_default();
        let (Some(grid), Some(block)) = (shape.first(), shape.get(1)) else {
            return Err(self.refuse(node, "this launch is not understood"));
        };
        let grid = self.sized(*grid, &CType::Dim3)?;
        let block = self.sized(*block, &CType::Dim3)?;
        let shared = match shape.get(2) {
            Some(shared) => self.sized(*shared, &CType::number("u32"))?,
            None => "0".to_string(),
        };
        let mut values = Vec::new();
        for argument in field(node, "arguments").map(children).unwrap_or_default() {
            values.push(self.expression(argument)?);
        }
        let entry = self.entry(&name, &given, &values).cloned();
        let entry = entry.ok_or_else(|| {
            let reason = format!("{name}<{}> has no entry in the unit", given.join(", "));
            self.refuse(node, &reason)
        })?;
        let mut text = String::from("let args = Args::new()");
        for (argument, value) in entry.arguments.iter().zip(&values) {
            let passed = super::pass(&argument.kind, value);
            let passed = passed.ok_or_else(|| {
                self.refuse(
                    node,
                    &format!("`{}` of {name} cannot be passed", argument.name),
                )
            })?;
            let _ = write!(text, "\n    {passed}");
        }
        text.push(';');
        self.line("{");
        self.indent += 1;
        self.line(&text);
        self.line("// SAFETY: that the arguments are the kernel's is the caller's promise.");
        let entry = entry.entry;
        self.line(&format!(
            "unsafe {{ launch(SOURCE, \"{entry}\", {grid}, {block}, {shared}, &args)? }};"
        ));
        self.indent -= 1;
        self.line("}");
        Ok(())
    }

    fn sized(&mut self, node: Node<'t>, kind: &CType) -> Result<String, Refusal> {
        let value = self.expression(node)?.convert(kind);
        let value = value.ok_or_else(|| self.refuse(node, "this is no size of a launch"))?;
        Ok(value.text)
    }

    /// The entry of a launch: by name, by the template arguments that it has, and by what it passes.
    fn entry(&self, name: &str, given: &[String], values: &[Value]) -> Option<&PortedKernel> {
        let word = |text: &str| types::word(&self.resolve(text));
        let given: Vec<String> = given.iter().map(|argument| word(argument)).collect();
        let named = self.unit.kernels.iter().filter(|entry| {
            let begins = entry
                .template
                .iter()
                .zip(&given)
                .all(|(theirs, ours)| word(theirs) == *ours);
            basename(&entry.kernel) == name
                && entry.arguments.len() == values.len()
                && entry.template.len() >= given.len()
                && begins
        });
        let fits: Vec<&PortedKernel> = named.collect();
        let exact = fits
            .iter()
            .copied()
            .find(|entry| entry.template.len() == given.len());
        if let (Some(exact), false) = (exact, given.is_empty() && fits.len() > 1) {
            return Some(exact);
        }
        let typed = |entry: &&&PortedKernel| {
            entry.arguments.iter().zip(values).all(|(argument, value)| {
                match (&argument.kind, &value.kind) {
                    (ArgumentKind::Pointer { element, .. }, CType::Pointer(given)) => {
                        word(element) == word(given)
                    }
                    _ => true,
                }
            })
        };
        match &fits[..] {
            [one] => Some(one),
            _ => fits.iter().find(typed).copied(),
        }
    }
}
