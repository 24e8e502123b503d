//! Rule G1: without the feature `rocm`, a ported crate is the original.

use super::PackageError;
use crate::source::Sources;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::path::Path;
use syn::{Attribute, ImplItem, Item};

/// Compares a ported crate with its original; what is found is where they differ without the feature `rocm`.
///
/// Device code, headers and other files are compared byte for byte, Rust by its tokens after the conditions are applied.
///
/// # Errors
/// Files that cannot be read.
pub fn verify(original: &Sources, ported: &Path) -> Result<Vec<String>, PackageError> {
    let mut found = Vec::new();
    let files = original
        .cuda
        .iter()
        .chain(&original.headers)
        .map(|name| (name, false));
    for (name, is_rust) in files.chain(original.rust.iter().map(|name| (name, true))) {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| PackageError::Io {
                path: path.to_path_buf(),
                error,
            })
        };
        let before = read(&original.root.join(name))?;
        let after = match read(&ported.join(name)) {
            Ok(after) => after,
            Err(_) => {
                found.push(format!("{name} is missing"));
                continue;
            }
        };
        if before == after {
            continue;
        }
        let same = is_rust && same_rust(&before, &after);
        if !same {
            found.push(format!("{name} differs without the feature rocm"));
        }
    }
    let manifest = |root: &Path| std::fs::read_to_string(root.join("Cargo.toml")).ok();
    if let (Some(before), Some(after)) = (manifest(&original.root), manifest(ported)) {
        found.extend(super::manifest::differences(&before, &after));
    }
    Ok(found)
}

fn same_rust(before: &[u8], after: &[u8]) -> bool {
    let parse = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        syn::parse_file(text).ok()
    };
    let (Some(before), Some(mut after)) = (parse(before), parse(after)) else {
        return false;
    };
    without_rocm(&mut after.attrs);
    items(&mut after.items);
    let tokens = |file: &syn::File| flat(quote::ToTokens::to_token_stream(file));
    tokens(&before) == tokens(&after)
}

/// What a condition says about the feature.
#[derive(PartialEq)]
enum Condition {
    With,
    Without,
    WithAttribute,
    Other,
}

fn condition(attribute: &Attribute) -> Condition {
    match flat(quote::ToTokens::to_token_stream(&attribute.meta))
        .join(" ")
        .as_str()
    {
        "cfg ( feature = \"rocm\" )" => Condition::With,
        "cfg ( not ( feature = \"rocm\" ) )" => Condition::Without,
        text if text.starts_with("cfg_attr ( feature = \"rocm\" ,") => Condition::WithAttribute,
        _ => Condition::Other,
    }
}

/// Removes conditions that are true without the feature; whether a false one was there.
fn without_rocm(attributes: &mut Vec<Attribute>) -> bool {
    let with = attributes
        .iter()
        .any(|attribute| condition(attribute) == Condition::With);
    attributes.retain(|attribute| condition(attribute) == Condition::Other);
    with
}

fn items(list: &mut Vec<Item>) {
    list.retain_mut(|item| {
        let attributes = match item {
            Item::Const(item) => &mut item.attrs,
            Item::Enum(item) => &mut item.attrs,
            Item::ExternCrate(item) => &mut item.attrs,
            Item::Fn(item) => &mut item.attrs,
            Item::ForeignMod(item) => &mut item.attrs,
            Item::Impl(item) => &mut item.attrs,
            Item::Macro(item) => &mut item.attrs,
            Item::Mod(item) => &mut item.attrs,
            Item::Static(item) => &mut item.attrs,
            Item::Struct(item) => &mut item.attrs,
            Item::Trait(item) => &mut item.attrs,
            Item::TraitAlias(item) => &mut item.attrs,
            Item::Type(item) => &mut item.attrs,
            Item::Union(item) => &mut item.attrs,
            Item::Use(item) => &mut item.attrs,
            _ => return true,
        };
        let kept = !without_rocm(attributes);
        match item {
            Item::Mod(module) => {
                if let Some((_, inner)) = &mut module.content {
                    items(inner);
                }
            }
            Item::Impl(block) => block.items.retain_mut(|member| {
                let attributes = match member {
                    ImplItem::Const(member) => &mut member.attrs,
                    ImplItem::Fn(member) => &mut member.attrs,
                    ImplItem::Type(member) => &mut member.attrs,
                    ImplItem::Macro(member) => &mut member.attrs,
                    _ => return true,
                };
                !without_rocm(attributes)
            }),
            _ => {}
        }
        kept
    });
}

/// All tokens as text, without places.
fn flat(tokens: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                found.push(open.to_string());
                found.extend(flat(group.stream()));
                found.push(close.to_string());
            }
            other => found.push(other.to_string()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::same_rust;

    #[test]
    fn conditions_are_applied_and_changes_are_found() {
        let before =
            "//! d\nmod a { fn f() {} }\nimpl A { /// doc\n fn g(&self) { 1 } }\nfn main() {}\n";
        let after = "//! d\n#![cfg_attr(feature = \"rocm\", allow(x))]\n#[cfg(feature = \"rocm\")] mod rocm;\n\
                     mod a { #[cfg(not(feature = \"rocm\"))] fn f() {} #[cfg(feature = \"rocm\")] fn f() { 2 } }\n\
                     impl A { #[cfg(not(feature = \"rocm\"))]\n/// doc\n fn g(&self) { 1 } }\nfn main() {}\n";
        assert!(same_rust(before.as_bytes(), after.as_bytes()));
        for wrong in [
            after.replace("{ 1 }", "{ 3 }"),
            after.replace("not(feature = \"rocm\")", "feature = \"rocm\""),
            after.replace("fn main", "fn other"),
            after.replace("feature = \"rocm\")] mod", "feature = \"x\")] mod"),
            "fn {".to_string(),
        ] {
            assert!(!same_rust(before.as_bytes(), wrong.as_bytes()), "{wrong}");
        }
    }
}
