//! The Rust of a crate: items that speak of CUDA get a counterpart for ROCm beside them.
//!
//! Nothing is changed or moved. An item gets `#[cfg(not(feature = "rocm"))]`, and after it stands its counterpart under
//! `#[cfg(feature = "rocm")]`, in which candle's names of CUDA are those of ROCm and cudarc's those of `crate::rocm::cuda`.

use super::Foreign;
use proc_macro2::{Span, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use syn::spanned::Spanned;
use syn::{ForeignItem, ImplItem, Item, ReturnType};

/// Names of candle that have a counterpart of the same meaning.
const NAMES: &[(&str, &str)] = &[
    ("CudaStorage", "RocmStorage"),
    ("CudaDevice", "RocmDevice"),
    ("cuda_fwd", "rocm_fwd"),
    ("cuda_bwd", "rocm_bwd"),
    ("as_cuda_device", "as_rocm_device"),
    ("new_cuda", "new_rocm"),
    ("new_cuda_with_stream", "new_rocm_with_stream"),
    ("cuda_if_available", "rocm_if_available"),
    ("is_cuda", "is_rocm"),
    ("cuda_is_available", "rocm_is_available"),
];

/// Enumerations with a variant `Cuda`.
const ENUMERATIONS: &[&str] = &["Storage", "Device", "DeviceLocation"];

/// Names of cudarc and of candle's CUDA back end that `crate::rocm::cuda` has.
const SHIMMED: &[&str] = &[
    "alloc",
    "alloc_zeros",
    "as_cuda_slice",
    "wrap_cuda_slice",
    "CudaDType",
    "CudaSlice",
    "CudaView",
    "DevicePtr",
    "DevicePtrMut",
    "DeviceRepr",
    "WrapErr",
    "cuda_backend",
    "cudarc",
    "driver",
    "device_ptr",
    "device_ptr_mut",
    "Cuda",
];

/// A file with counterparts.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub text: String,
    /// Line and reason of what somebody has to look at.
    pub open: Vec<(usize, String)>,
}

/// Adds counterparts to a file; none if it needs none.
///
/// # Errors
/// Text that is no Rust.
pub(super) fn rewrite(
    text: &str,
    foreign: &BTreeMap<String, Foreign>,
) -> Result<Option<Rewritten>, syn::Error> {
    let file = syn::parse_file(text)?;
    let mut writer = Writer {
        text,
        foreign,
        inserts: Vec::new(),
        open: Vec::new(),
        items: 0,
    };
    for item in &file.items {
        writer.item(item);
    }
    if writer.items == 0 {
        return Ok(None);
    }
    // Imports of what only the CUDA items use stay for both.
    if let Some(first) = file.items.first() {
        let allowed = "#![cfg_attr(feature = \"rocm\", allow(unused_imports))]\n\n";
        let place = first.span().byte_range().start;
        writer.inserts.insert(0, (place, allowed.into()));
    }
    let mut result = String::new();
    let mut at = 0;
    writer.inserts.sort_by_key(|(place, _)| *place);
    for (place, insert) in &writer.inserts {
        result.push_str(&text[at..*place]);
        result.push_str(insert);
        at = *place;
    }
    result.push_str(&text[at..]);
    Ok(Some(Rewritten {
        text: result,
        open: writer.open,
    }))
}

/// The C functions that a file declares, with their types.
pub(super) fn declared(text: &str) -> Vec<crate::port::host::Declared> {
    let Ok(file) = syn::parse_file(text) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut open: Vec<&Item> = file.items.iter().collect();
    while let Some(item) = open.pop() {
        match item {
            Item::ForeignMod(block) => {
                for item in &block.items {
                    if let ForeignItem::Fn(function) = item {
                        found.push(signature(text, function));
                    }
                }
            }
            Item::Mod(module) => open.extend(module.content.iter().flat_map(|(_, items)| items)),
            _ => {}
        }
    }
    found
}

fn signature(text: &str, function: &syn::ForeignItemFn) -> crate::port::host::Declared {
    let kind = |kind: &syn::Type| squeezed(text.get(kind.span().byte_range()).unwrap_or_default());
    let inputs = function.sig.inputs.iter().filter_map(|input| match input {
        syn::FnArg::Typed(typed) => Some(kind(&typed.ty)),
        syn::FnArg::Receiver(_) => None,
    });
    crate::port::host::Declared {
        name: function.sig.ident.to_string(),
        parameters: inputs.collect(),
        result: match &function.sig.output {
            ReturnType::Default => None,
            ReturnType::Type(_, result) => Some(kind(result)),
        },
    }
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

struct Writer<'a> {
    text: &'a str,
    foreign: &'a BTreeMap<String, Foreign>,
    inserts: Vec<(usize, String)>,
    open: Vec<(usize, String)>,
    items: usize,
}

/// A word of an item, with the words before it on its path.
struct Word {
    name: String,
    range: Range<usize>,
    line: usize,
    /// The words before it, as in `a::b::`, last one first.
    path: Vec<(String, Range<usize>)>,
    /// Whether a `(` or `::<…>(` follows, and where its arguments end.
    call: Option<usize>,
    /// Whether it is what a `fn` defines.
    defined: bool,
}

impl Writer<'_> {
    fn item(&mut self, item: &Item) {
        match item {
            Item::ForeignMod(block) => {
                let known = block.items.iter().any(|item| match item {
                    ForeignItem::Fn(function) => {
                        self.foreign.contains_key(&function.sig.ident.to_string())
                    }
                    _ => false,
                });
                if known {
                    let text = self.launchers(block);
                    self.twin(item.span(), text);
                }
            }
            Item::Mod(module) => {
                for item in module.content.iter().flat_map(|(_, items)| items) {
                    self.item(item);
                }
            }
            Item::Impl(block) => {
                let head = block.trait_.as_ref().map(|(_, path, _)| path.span());
                let head = [
                    Some(block.self_ty.span()),
                    head,
                    Some(block.generics.span()),
                ];
                let in_head = head.into_iter().flatten().any(|span| {
                    let text = self.text.get(span.byte_range()).unwrap_or_default();
                    text.parse::<TokenStream>()
                        .is_ok_and(|tokens| self.speaks(tokens))
                });
                if in_head {
                    self.whole(item.span(), item, true);
                    return;
                }
                for member in &block.items {
                    let fallible = match member {
                        ImplItem::Fn(function) => is_fallible(&function.sig.output),
                        _ => true,
                    };
                    self.whole(member.span(), member, fallible);
                }
            }
            Item::Fn(function) => self.whole(item.span(), item, is_fallible(&function.sig.output)),
            _ => self.whole(item.span(), item, true),
        }
    }

    /// Whether tokens have a name of CUDA, or call a function of the CUDA files.
    fn speaks(&self, tokens: TokenStream) -> bool {
        words(tokens).iter().any(|word| self.is_cuda(word))
    }

    fn is_cuda(&self, word: &Word) -> bool {
        let renamed = NAMES.iter().any(|(name, _)| *name == word.name);
        let variant = word.name == "Cuda"
            && word
                .path
                .first()
                .is_some_and(|(path, _)| ENUMERATIONS.contains(&path.as_str()));
        let back_end = matches!(
            word.name.as_str(),
            "cuda_backend" | "cudarc" | "as_cuda_slice" | "wrap_cuda_slice"
        );
        let called = word.call.is_some() && !word.defined && self.foreign.contains_key(&word.name);
        renamed || variant || back_end || called
    }

    /// Gives an item a counterpart, if it speaks of CUDA.
    fn whole(&mut self, span: Span, item: &impl quote::ToTokens, fallible: bool) {
        let tokens = item.to_token_stream();
        let words = words(tokens);
        if !words.iter().any(|word| self.is_cuda(word)) {
            return;
        }
        let range = span.byte_range();
        let mut changes: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        let mut reported = BTreeSet::new();
        for word in &words {
            if let Some((_, to)) = NAMES.iter().find(|(name, _)| *name == word.name) {
                changes.insert(word.range.start, (word.range.end, to.to_string()));
            } else if word.name == "Cuda" && self.is_cuda(word) {
                changes.insert(word.range.start, (word.range.end, "Rocm".into()));
            } else if word.name == "cuda_backend" || (word.name == "cudarc" && word.path.is_empty())
            {
                // The whole path up to here is `crate::rocm::cuda`.
                let start = word
                    .path
                    .last()
                    .map_or(word.range.start, |(_, first)| first.start);
                let to = if word.name == "cudarc" {
                    "crate::rocm::cuda::cudarc"
                } else {
                    "crate::rocm::cuda"
                };
                changes.insert(start, (word.range.end, to.into()));
            } else if let (Some(end), true) = (word.call, self.is_cuda(word)) {
                let after = if fallible {
                    "?"
                } else {
                    ".unwrap_or_else(|error| panic!(\"{error}\"))"
                };
                changes.insert(end, (end, after.into()));
                if !fallible {
                    let reason = format!("a launch of `{}` that fails ends the program: the function gives no Result", word.name);
                    self.open.push((word.line, reason));
                }
            } else if word.name.contains("Cuda") && !SHIMMED.contains(&word.name.as_str()) {
                let reason = format!("`{}` has no counterpart in crate::rocm::cuda", word.name);
                if reported.insert(word.name.clone()) {
                    self.open.push((word.line, reason));
                }
            }
        }
        let mut text = String::new();
        let mut at = range.start;
        for (start, (end, to)) in changes {
            if start >= at && end <= range.end {
                text.push_str(&self.text[at..start]);
                text.push_str(&to);
                at = end;
            }
        }
        text.push_str(&self.text[at..range.end]);
        let text = text.replace("feature = \"cuda\"", "feature = \"rocm\"");
        let uses = words.iter().any(|word| {
            matches!(
                word.name.as_str(),
                "as_cuda_slice" | "wrap_cuda_slice" | "alloc" | "alloc_zeros"
            )
        });
        let text = match uses {
            true => with_traits(&text),
            false => text,
        };
        self.twin(span, text);
    }

    /// What takes the place of a block of C functions.
    fn launchers(&mut self, block: &syn::ItemForeignMod) -> String {
        let mut lines = Vec::new();
        for item in &block.items {
            let ForeignItem::Fn(function) = item else {
                continue;
            };
            let name = function.sig.ident.to_string();
            let visibility = self
                .text
                .get(function.vis.span().byte_range())
                .unwrap_or_default();
            let visibility = if visibility.is_empty() {
                String::new()
            } else {
                format!("{visibility} ")
            };
            match self.foreign.get(&name) {
                Some(Foreign::Launcher { unit }) => {
                    lines.push(format!("{visibility}use crate::rocm::{unit}::{name};"));
                }
                Some(Foreign::Refused { reason }) => {
                    let line = function.sig.ident.span().start().line;
                    self.open
                        .push((line, format!("`{name}` has no launcher: {reason}")));
                    let declared = signature(self.text, function);
                    let inputs = declared.parameters.iter().enumerate().map(|(at, kind)| {
                        let plain = crate::port::host::is_plain(kind);
                        format!("_{at}: {}", if plain { kind } else { "impl Sized" })
                    });
                    let result = declared.result.unwrap_or_else(|| "()".into());
                    let message = format!("{name} was not ported, see PORTING.md: {reason}");
                    lines.push(format!(
                        "{visibility}unsafe fn {name}({}) -> crate::rocm::support::Result<{result}> {{\n    \
                         Err(crate::rocm::support::failed({message:?}))\n}}",
                        inputs.collect::<Vec<_>>().join(", ")
                    ));
                }
                None => {
                    let line = function.sig.ident.span().start().line;
                    self.open
                        .push((line, format!("`{name}` is in no CUDA file of the crate")));
                }
            }
        }
        lines.join("\n#[cfg(feature = \"rocm\")]\n")
    }

    /// Writes an item's conditions and its counterpart.
    fn twin(&mut self, span: Span, text: String) {
        let range = span.byte_range();
        let line = self.text[..range.start].rfind('\n').map_or(0, |at| at + 1);
        let indent: String = self.text[line..range.start]
            .chars()
            .take_while(|c| c.is_whitespace())
            .collect();
        self.inserts.push((
            range.start,
            format!("#[cfg(not(feature = \"rocm\"))]\n{indent}"),
        ));
        if !text.is_empty() {
            self.inserts.push((
                range.end,
                format!("\n\n{indent}#[cfg(feature = \"rocm\")]\n{indent}{text}"),
            ));
        }
        self.items += 1;
    }
}

/// A counterpart with the traits that its methods come from: in its first block.
fn with_traits(text: &str) -> String {
    let Some(open) = body_of(text) else {
        return text.to_string();
    };
    let line = "\n#[allow(unused_imports)]\nuse crate::rocm::cuda::{Alloc as _, AsSlice as _};";
    format!("{}{line}{}", &text[..open], &text[open..])
}

/// Behind the brace that opens a function's body.
fn body_of(text: &str) -> Option<usize> {
    let block = match syn::parse_str::<ImplItem>(text) {
        Ok(ImplItem::Fn(function)) => function.block,
        _ => match syn::parse_str::<Item>(text).ok()? {
            Item::Fn(function) => *function.block,
            _ => return None,
        },
    };
    Some(block.brace_token.span.open().byte_range().end)
}

fn is_fallible(output: &ReturnType) -> bool {
    let ReturnType::Type(_, kind) = output else {
        return false;
    };
    match &**kind {
        syn::Type::Path(path) => path
            .path
            .segments
            .last()
            .is_some_and(|last| last.ident == "Result"),
        _ => false,
    }
}

/// All words of a stream, in order, without those of nested macros' texts.
fn words(tokens: TokenStream) -> Vec<Word> {
    let mut found = Vec::new();
    let mut open = vec![tokens];
    while let Some(tokens) = open.pop() {
        let list: Vec<TokenTree> = tokens.into_iter().collect();
        let sign = |at: usize, sign: char| matches!(list.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
        for (at, token) in list.iter().enumerate() {
            match token {
                TokenTree::Group(group) => open.push(group.stream()),
                TokenTree::Ident(ident) => {
                    let mut path = Vec::new();
                    let mut before = at;
                    while before >= 3 && sign(before - 1, ':') && sign(before - 2, ':') {
                        let Some(TokenTree::Ident(outer)) = list.get(before - 3) else {
                            break;
                        };
                        path.push((outer.to_string(), outer.span().byte_range()));
                        before -= 3;
                    }
                    let defined =
                        at > 0 && matches!(&list[at - 1], TokenTree::Ident(word) if *word == "fn");
                    let call = match list.get(at + 1) {
                        Some(TokenTree::Group(group))
                            if group.delimiter() == proc_macro2::Delimiter::Parenthesis =>
                        {
                            Some(group.span().byte_range().end)
                        }
                        _ => None,
                    };
                    found.push(Word {
                        name: ident.to_string(),
                        range: ident.span().byte_range(),
                        line: ident.span().start().line,
                        path,
                        call,
                        defined,
                    });
                }
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
