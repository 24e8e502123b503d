//! The inverse of the mirror, written independently of it: a derived text without everything gated by `cfg(feature =
//! "rocm")`, to be compared with upstream's.

use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The ranges of what the feature adds, with the white space up to what follows.
struct Gated<'a> {
    text: &'a str,
    ranges: Vec<Range<usize>>,
}

fn is_gated(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("cfg")
            && attr
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "feature = \"rocm\"")
    })
}

fn item_attrs(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

impl Gated<'_> {
    /// Takes out `node` if it is gated; says whether it is.
    fn take(&mut self, attrs: &[syn::Attribute], node: &impl Spanned) -> bool {
        if !is_gated(attrs) {
            return false;
        }
        let Range { start, end } = node.span().byte_range();
        let rest = self.text[end..].trim_start();
        // The comma of an enum's variant is not its own.
        let rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        self.ranges.push(start..self.text.len() - rest.len());
        true
    }
}

impl<'ast> Visit<'ast> for Gated<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !self.take(item_attrs(item), item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.take(&variant.attrs, variant);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attrs = match item {
            syn::ImplItem::Fn(f) => &f.attrs[..],
            syn::ImplItem::Macro(m) => &m.attrs,
            _ => &[],
        };
        if !self.take(attrs, item) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        let attrs = match item {
            syn::TraitItem::Fn(f) => &f.attrs[..],
            _ => &[],
        };
        if !self.take(attrs, item) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !self.take(&arm.attrs, arm) {
            visit::visit_arm(self, arm);
        }
    }
}

/// `text` without whatever the feature `rocm` adds.
///
/// # Errors
/// If `text` is not valid Rust.
pub fn without_rocm(text: &str) -> syn::Result<String> {
    let file = syn::parse_file(text)?;
    let mut gated = Gated {
        text,
        ranges: Vec::new(),
    };
    gated.visit_file(&file);
    let mut kept = String::with_capacity(text.len());
    let mut done = 0;
    for range in gated.ranges {
        kept.push_str(&text[done..range.start]);
        done = range.end;
    }
    kept.push_str(&text[done..]);
    Ok(kept)
}
