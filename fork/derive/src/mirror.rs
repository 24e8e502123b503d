//! The one rule: Rocm stands wherever Metal stands.
//!
//! The source is parsed for its structure only; every twin is a copy of the original text with the name changed, put
//! directly before its original and gated by `cfg(feature = "rocm")`, so that without the feature the crate is
//! upstream's.
//!
//! | upstream | twin |
//! |---|---|
//! | `enum` variant `Metal` | variant `Rocm` |
//! | match arm on `…::Metal(..)` | arm on `…::Rocm(..)`; of an or-pattern only the Metal alternatives |
//! | `fn metal_fwd` in a trait or impl | `fn rocm_fwd` |
//! | the same under `cfg(feature = "metal")` | `fn rocm_fwd` that calls `rocm::<type>(self, …)` of our overlay |
//! | match arm under `cfg(feature = "metal")` | an arm with the body that the recipe gives |
//! | `use`, `mod`, `fn`, macro call that names Metal | the same for Rocm |
//! | anything under `cfg(not(feature = "metal"))` | none: there is no dummy back end for Rocm |

use std::ops::Range;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::edit::{indent_at, line_of, Edits};

const GATE: &str = "#[cfg(feature = \"rocm\")]";

/// What the mirror needs to know of one file beyond its text.
#[derive(Debug, Default, Clone, Copy)]
pub struct FileRules<'a> {
    /// Bodies, in order of appearance, for arms under `cfg(feature = "metal")`, whose own bodies speak Metal's API.
    pub arm_bodies: &'a [&'a str],
    /// Functions, modules, variants and other identifiers that mention Metal and rightly have no twin.
    pub without_twin: &'a [&'a str],
}

/// Outcome of mirroring one file.
#[derive(Debug, Default)]
pub struct Mirrored {
    /// The insertions.
    pub edits: Edits,
    /// Lines with a mention of Metal that no rule covered.
    pub leftovers: Vec<usize>,
    /// How often each entry of [`FileRules::without_twin`] was met.
    pub without_twin_hits: Vec<usize>,
    /// How many of [`FileRules::arm_bodies`] were used.
    pub arm_bodies_used: usize,
    /// Whether methods were delegated to a child module `rocm`.
    pub delegates: bool,
}

/// Applies the rule to the text of one file.
pub fn mirror(text: &str, file: &syn::File, tokens: TokenStream, rules: FileRules) -> Mirrored {
    let mut visitor = Visitor {
        text,
        rules,
        self_type: String::new(),
        claimed: Vec::new(),
        out: Mirrored {
            without_twin_hits: vec![0; rules.without_twin.len()],
            ..Default::default()
        },
    };
    visitor.visit_file(file);
    let mut mentions = Vec::new();
    collect_mentions(tokens, &mut mentions);
    for (name, range) in mentions {
        if visitor
            .claimed
            .iter()
            .any(|c| c.start <= range.start && range.end <= c.end)
        {
            continue;
        }
        if !visitor.excused(&name) {
            let line = line_of(text, range.start);
            if visitor.out.leftovers.last() != Some(&line) {
                visitor.out.leftovers.push(line);
            }
        }
    }
    visitor.out
}

/// `text` with Metal's name replaced by Rocm's.
pub fn rename(text: &str) -> String {
    text.replace("Metal", "Rocm").replace("metal", "rocm")
}

/// `RotaryEmbI` -> `rotary_emb_i`.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

fn is_mention(name: &str) -> bool {
    name.to_ascii_lowercase().contains("metal")
}

fn collect_mentions(tokens: TokenStream, out: &mut Vec<(String, Range<usize>)>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_mentions(group.stream(), out),
            TokenTree::Ident(ident) if is_mention(&ident.to_string()) => {
                out.push((ident.to_string(), ident.span().byte_range()))
            }
            TokenTree::Literal(literal) if literal.to_string() == "\"metal\"" => {
                out.push(("metal".into(), literal.span().byte_range()))
            }
            _ => {}
        }
    }
}

fn mentions(node: &impl quote::ToTokens) -> bool {
    let mut found = Vec::new();
    collect_mentions(node.to_token_stream(), &mut found);
    !found.is_empty()
}

/// How a node's attributes depend on the feature `metal`.
#[derive(PartialEq)]
enum MetalCfg {
    Unrelated,
    With,
    Without,
}

fn metal_cfg(attrs: &[syn::Attribute]) -> MetalCfg {
    for attr in attrs
        .iter()
        .filter(|a| a.path().is_ident("cfg") && mentions(*a))
    {
        let syn::Meta::List(list) = &attr.meta else {
            continue;
        };
        let negated = matches!(list.tokens.clone().into_iter().next(), Some(TokenTree::Ident(i)) if i == "not");
        return if negated {
            MetalCfg::Without
        } else {
            MetalCfg::With
        };
    }
    MetalCfg::Unrelated
}

struct Visitor<'a> {
    text: &'a str,
    rules: FileRules<'a>,
    self_type: String,
    claimed: Vec<Range<usize>>,
    out: Mirrored,
}

impl Visitor<'_> {
    fn source(&self, range: Range<usize>) -> &str {
        &self.text[range]
    }

    /// Puts `twin` before the node at `range` and marks the node as handled.
    fn twin(&mut self, range: Range<usize>, gated: bool, twin: &str) {
        let indent = indent_at(self.text, range.start).to_owned();
        let gate = if gated {
            format!("{GATE}\n{indent}")
        } else {
            String::new()
        };
        self.out
            .edits
            .insert(range.start, format!("{gate}{twin}\n{indent}"));
        self.claimed.push(range);
    }

    /// The common case: the twin is the node's own text, renamed.
    fn renamed_twin(&mut self, range: Range<usize>, attrs: &[syn::Attribute]) {
        let twin = rename(self.source(range.clone()));
        self.twin(range, metal_cfg(attrs) == MetalCfg::Unrelated, &twin);
    }

    /// Whether the recipe lists `name` as rightly without a twin; counts the hit.
    fn excused(&mut self, name: &str) -> bool {
        match self.rules.without_twin.iter().position(|n| *n == name) {
            Some(i) => {
                self.out.without_twin_hits[i] += 1;
                true
            }
            None => false,
        }
    }

    /// Handles what is the same for every named node; true if nothing is left to do.
    fn settled(
        &mut self,
        attrs: &[syn::Attribute],
        ident: Option<&Ident>,
        range: Range<usize>,
    ) -> bool {
        if metal_cfg(attrs) == MetalCfg::Without
            || ident.is_some_and(|i| self.excused(&i.to_string()))
        {
            self.claimed.push(range);
            return true;
        }
        false
    }

    fn function(
        &mut self,
        attrs: &[syn::Attribute],
        sig: &syn::Signature,
        range: Range<usize>,
    ) -> bool {
        if self.settled(attrs, Some(&sig.ident), range.clone()) {
            return true;
        }
        if !is_mention(&sig.ident.to_string()) && metal_cfg(attrs) == MetalCfg::Unrelated {
            return false;
        }
        let delegate = metal_cfg(attrs) == MetalCfg::With && sig.receiver().is_some();
        if delegate {
            let names: Vec<&str> = sig
                .inputs
                .iter()
                .map(|arg| match arg {
                    syn::FnArg::Receiver(_) => "self",
                    syn::FnArg::Typed(arg) => self.source(arg.pat.span().byte_range()),
                })
                .collect();
            let call = format!(
                "rocm::{}({})",
                snake_case(&self.self_type),
                names.join(", ")
            );
            let indent = indent_at(self.text, range.start);
            let head = rename(self.source(range.start..sig.span().byte_range().end));
            let twin = format!("{head} {{\n{indent}    {call}\n{indent}}}\n");
            self.out.delegates = true;
            self.twin(range, false, &twin);
        } else {
            self.renamed_twin(range, attrs);
        }
        true
    }
}

fn range_of(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

/// The leaves of a use tree that mention Metal, as full paths.
fn metal_leaves(tree: &syn::UseTree, prefix: &str, out: &mut Vec<String>) {
    match tree {
        syn::UseTree::Path(path) => {
            metal_leaves(&path.tree, &format!("{prefix}{}::", path.ident), out)
        }
        syn::UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|t| metal_leaves(t, prefix, out)),
        syn::UseTree::Name(name) if is_mention(&name.ident.to_string()) => {
            out.push(format!("{prefix}{}", name.ident))
        }
        syn::UseTree::Rename(r) if is_mention(&r.ident.to_string()) => {
            out.push(format!("{prefix}{} as {}", r.ident, r.rename))
        }
        _ => {}
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        if is_mention(&node.ident.to_string())
            && !self.settled(&node.attrs, Some(&node.ident), range_of(node))
        {
            let twin = rename(self.source(range_of(node)));
            self.twin(range_of(node), true, &format!("{twin},"));
        }
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let start = range_of(node).start;
        let range = start..range_of(&*node.body).end;
        if self.settled(&node.attrs, None, range.clone()) {
            return;
        }
        if !mentions(&node.pat) {
            return visit::visit_arm(self, node);
        }
        let comma = if matches!(*node.body, syn::Expr::Block(_)) {
            ""
        } else {
            ","
        };
        let pat = match &node.pat {
            syn::Pat::Or(or) => {
                let cases = or.cases.iter().filter(|case| mentions(*case));
                let cases: Vec<&str> = cases.map(|case| self.source(range_of(case))).collect();
                cases.join(" | ")
            }
            pat => self.source(range_of(pat)).to_owned(),
        };
        let after_pat = self.source(range_of(&node.pat).end..range.end);
        let twin = if metal_cfg(&node.attrs) == MetalCfg::With {
            let used = self.out.arm_bodies_used;
            let Some(body) = self.rules.arm_bodies.get(used) else {
                return; // Unclaimed, hence reported as a leftover.
            };
            self.out.arm_bodies_used += 1;
            format!("{} => {body},", rename(&pat))
        } else {
            format!("{}{}{comma}", rename(&pat), rename(after_pat))
        };
        self.twin(range, true, &twin);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if !self.function(&node.attrs, &node.sig, range_of(node)) {
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if !self.function(&node.attrs, &node.sig, range_of(node)) {
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if !self.function(&node.attrs, &node.sig, range_of(node)) {
            visit::visit_trait_item_fn(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let name = match &*node.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
            _ => None,
        };
        // Functions may hold impls of their own.
        let outer = std::mem::replace(&mut self.self_type, name.unwrap_or_default());
        visit::visit_item_impl(self, node);
        self.self_type = outer;
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        if !mentions(node) || self.settled(&node.attrs, None, range_of(node)) {
            return;
        }
        if metal_cfg(&node.attrs) == MetalCfg::With {
            return self.renamed_twin(range_of(node), &node.attrs);
        }
        let mut leaves = Vec::new();
        metal_leaves(&node.tree, "", &mut leaves);
        let vis = match self.source(range_of(&node.vis)) {
            "" => String::new(),
            vis => format!("{vis} "),
        };
        let uses: Vec<String> = leaves
            .iter()
            .map(|leaf| format!("{vis}use {};", rename(leaf)))
            .collect();
        self.twin(range_of(node), true, &uses.join(&format!("\n{GATE}\n")));
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if self.settled(&node.attrs, Some(&node.ident), range_of(node)) {
            return;
        }
        if metal_cfg(&node.attrs) == MetalCfg::With || is_mention(&node.ident.to_string()) {
            return self.renamed_twin(range_of(node), &node.attrs);
        }
        visit::visit_item_mod(self, node);
    }

    fn visit_item_macro(&mut self, node: &'ast syn::ItemMacro) {
        // `test_device!` itself learns of Rocm, so its call sites stay as they are.
        if node.mac.path.is_ident("test_device") {
            self.claimed.push(range_of(node));
        }
    }

    fn visit_impl_item_macro(&mut self, node: &'ast syn::ImplItemMacro) {
        if mentions(&node.mac) && !self.settled(&node.attrs, None, range_of(node)) {
            self.renamed_twin(range_of(node), &node.attrs);
        }
    }
}
