//! Exported macros of an included crate root.
//!
//! The derived `lib.rs` is included by ours, so its `#[macro_export]` macros count as macro-expanded, and using them by
//! the absolute path `crate::name!` is a future-incompatibility warning. The definition is therefore renamed to
//! `candle_<name>` and re-exported by its module under the old name; our own `lib.rs`, which is not expanded from
//! anything, re-exports that at the root. All call sites stay as they are.

use syn::spanned::Spanned;

use crate::edit::Edits;

/// Renames the exported definition of `name`; returns how many there were.
pub fn rename_exported(file: &syn::File, name: &str, edits: &mut Edits) -> usize {
    let mut found = 0;
    for item in &file.items {
        let syn::Item::Macro(item) = item else {
            continue;
        };
        let Some(ident) = item.ident.as_ref().filter(|i| *i == name) else {
            continue;
        };
        if item.attrs.iter().any(|a| a.path().is_ident("macro_export")) {
            edits.replace(ident.span().byte_range(), exported_name(name));
            let end = item.span().byte_range().end;
            edits.insert(end, re_export(name));
            found += 1;
        }
    }
    found
}

/// Name under which the definition is exported.
pub fn exported_name(name: &str) -> String {
    format!("candle_{name}")
}

fn re_export(name: &str) -> String {
    format!("\npub use {} as {name};", exported_name(name))
}

/// The inverse of [`rename_exported`].
pub fn undo_rename(text: &str, name: &str) -> String {
    text.replace(&re_export(name), "")
        .replace(&exported_name(name), name)
}
