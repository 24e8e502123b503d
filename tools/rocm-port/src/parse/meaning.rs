//! What texts mean where they stand: names replaced by their meanings, and types of expressions.

use super::deduce::split_arguments;
use super::instances::{Binding, Resolver};
use super::locals::Meaning;
use super::tree::{children, field, squeezed, text, walk};
use tree_sitter::Node;

/// The longest text of a template argument.
const LONGEST: usize = 2_000;

impl<'t> Resolver<'_, 't> {
    /// A text in which local names and template parameters are replaced by what they mean.
    pub(super) fn substitute(
        &self,
        node: Node<'t>,
        binding: &Binding,
        depth: usize,
    ) -> Option<String> {
        if depth > 16 {
            return None;
        }
        let mut out = String::new();
        let mut end = node.start_byte();
        let mut complete = true;
        walk(node, |leaf| {
            let is_name =
                ["identifier", "type_identifier", "namespace_identifier"].contains(&leaf.kind());
            if !is_name || !complete || leaf.start_byte() < end {
                return complete;
            }
            // `b` of `a::b` means nothing by itself.
            let qualified = leaf.parent().is_some_and(|parent| {
                parent.kind() == "qualified_identifier"
                    && field(parent, "name") == Some(leaf)
                    && field(parent, "scope").is_some()
            });
            if qualified {
                return true;
            }
            let name = text(leaf, self.source);
            let value = match self.locals.find(name, leaf.start_byte()) {
                Some(Meaning::Alias(range) | Meaning::Constant(range, _)) => {
                    match self.node(range.start, range.end) {
                        Some(inner) => self.substitute(inner, binding, depth + 1).map(grouped),
                        None => None,
                    }
                }
                Some(Meaning::Variable(..)) => return true,
                None => match binding.get(name) {
                    Some(value) => Some(grouped(value.clone())),
                    None if self.is_unbound(name, leaf.start_byte()) => None,
                    None => return true,
                },
            };
            match value {
                Some(value) if out.len() + value.len() <= LONGEST => {
                    out.push_str(self.source.get(end..leaf.start_byte()).unwrap_or_default());
                    out.push_str(&value);
                    end = leaf.end_byte();
                }
                _ => complete = false,
            }
            complete
        });
        if !complete {
            return None;
        }
        out.push_str(self.source.get(end..node.end_byte())?);
        let out = squeezed(&out);
        // The outermost parentheses of a lone name's value.
        let lone = out.starts_with('(')
            && out.ends_with(')')
            && ["identifier", "type_descriptor"].contains(&node.kind());
        let out = match lone {
            true => out[1..out.len() - 1].to_string(),
            false => out,
        };
        (out.len() <= LONGEST).then_some(out)
    }

    /// Whether a name is a template parameter of the definition around it.
    fn is_unbound(&self, name: &str, at: usize) -> bool {
        self.owner(at).is_some_and(|owner| {
            self.all_parameters(owner)
                .iter()
                .any(|parameter| parameter == name)
        })
    }

    /// The node of a range.
    pub(super) fn node(&self, start: usize, end: usize) -> Option<Node<'t>> {
        self.root.named_descendant_for_byte_range(start, end)
    }

    /// The type of an expression, as far as the text shows it.
    pub(super) fn type_of(
        &self,
        node: Node<'t>,
        binding: &Binding,
        depth: usize,
    ) -> Option<String> {
        if depth > 16 {
            return None;
        }
        let inner = |node: Node<'t>| self.type_of(node, binding, depth + 1);
        match node.kind() {
            "cast_expression" => self.substitute(field(node, "type")?, binding, 0),
            "parenthesized_expression" => inner(children(node).into_iter().next()?),
            "call_expression" => {
                let (name, explicit, _) = self.callee(field(node, "function")?)?;
                let is_cast = name.ends_with("_cast");
                let first = *explicit?.first()?;
                let kind = self.substitute(first, binding, 0)?;
                match (is_cast, name.as_str()) {
                    (true, _) => Some(kind),
                    (_, "data_ptr") => Some(format!("{kind} *")),
                    _ => None,
                }
            }
            "identifier" => match self
                .locals
                .find(text(node, self.source), node.start_byte())?
            {
                Meaning::Variable(kind, Some(range))
                    if kind.trim_end_matches(['*', '&']) == "auto" =>
                {
                    inner(self.node(range.start, range.end)?)
                }
                Meaning::Variable(kind, _) | Meaning::Constant(_, kind) => {
                    self.substitute_words(kind, node, binding)
                }
                Meaning::Alias(_) => None,
            },
            "pointer_expression" => {
                let kind = inner(field(node, "argument")?)?;
                match text(node, self.source).starts_with('&') {
                    true => Some(format!("{kind} *")),
                    false => Some(kind.trim_end().strip_suffix('*')?.to_string()),
                }
            }
            "subscript_expression" => {
                let kind = inner(field(node, "argument")?)?;
                Some(kind.trim_end().strip_suffix('*')?.to_string())
            }
            "binary_expression" => {
                let kind = inner(field(node, "left")?)?;
                kind.contains('*').then_some(kind)
            }
            "number_literal" => {
                let number = text(node, self.source).to_ascii_lowercase();
                let hexadecimal = number.starts_with("0x");
                Some(
                    match (number.ends_with('f') && !hexadecimal, number.contains('.')) {
                        (true, _) => "float".into(),
                        (_, true) => "double".into(),
                        _ if number.ends_with('u') => "unsigned int".into(),
                        _ if number.ends_with("ll") => "long long".into(),
                        _ => "int".into(),
                    },
                )
            }
            "true" | "false" => Some("bool".into()),
            _ => None,
        }
    }

    /// The words of a type that is text only, as they are meant at a node.
    fn substitute_words(&self, kind: &str, at: Node<'t>, binding: &Binding) -> Option<String> {
        let mut words = binding.clone();
        for word in kind.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if let Some(Meaning::Alias(range)) = self.locals.find(word, at.start_byte()) {
                let alias = self.node(range.start, range.end)?;
                words.insert(word.to_string(), self.substitute(alias, binding, 1)?);
            } else if !binding.contains_key(word) && self.is_unbound(word, at.start_byte()) {
                return None;
            }
        }
        Some(replace_words(kind, &words))
    }
}

/// In parentheses, if it is more than a name, number or type.
fn grouped(value: String) -> String {
    let mut depth = 0i32;
    let compound = value.chars().any(|c| {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            _ => {}
        }
        depth == 0 && "+-/%?&|=!".contains(c)
    });
    let wrapped = value.starts_with('(') && value.ends_with(')');
    match compound && !wrapped && split_arguments(&value).len() == 1 {
        true => format!("({value})"),
        false => value,
    }
}

/// Replaces whole words.
pub(super) fn replace_words(source: &str, words: &Binding) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in source.chars().chain(std::iter::once('\0')) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        match words.get(&word) {
            Some(value) => out.push_str(value),
            None => out.push_str(&word),
        }
        word.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}
