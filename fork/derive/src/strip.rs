//! The inverse of the mirror, written independently of it: a derived file without everything gated by
//! `cfg(feature = "rocm")`, as a token string that can be compared with upstream's.

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};

struct Strip;

fn gated(attrs: &[syn::Attribute]) -> bool {
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

impl VisitMut for Strip {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|i| !gated(item_attrs(i)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, item: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut item.content {
            items.retain(|i| !gated(item_attrs(i)));
        }
        visit_mut::visit_item_mod_mut(self, item);
    }

    fn visit_item_enum_mut(&mut self, item: &mut syn::ItemEnum) {
        let variants = std::mem::take(&mut item.variants);
        item.variants = variants
            .into_pairs()
            .filter(|pair| !gated(&pair.value().attrs))
            .collect();
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        item.items.retain(|i| match i {
            syn::ImplItem::Fn(f) => !gated(&f.attrs),
            syn::ImplItem::Macro(m) => !gated(&m.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, item);
    }

    fn visit_item_trait_mut(&mut self, item: &mut syn::ItemTrait) {
        item.items
            .retain(|i| !matches!(i, syn::TraitItem::Fn(f) if gated(&f.attrs)));
        visit_mut::visit_item_trait_mut(self, item);
    }

    fn visit_expr_match_mut(&mut self, expr: &mut syn::ExprMatch) {
        expr.arms.retain(|arm| !gated(&arm.attrs));
        visit_mut::visit_expr_match_mut(self, expr);
    }
}

/// Tokens of `text` without whatever the feature `rocm` adds; fails if `text` is not valid Rust.
pub fn without_rocm(text: &str) -> syn::Result<String> {
    let mut file = syn::parse_file(text)?;
    Strip.visit_file_mut(&mut file);
    // Inner attributes and docs of a crate root are dropped when it is included.
    file.attrs.clear();
    Ok(file.into_token_stream().to_string())
}
