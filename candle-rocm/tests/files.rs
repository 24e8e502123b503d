//! The files of this crate use each other in one direction: none uses another that uses it in turn, by however many
//! steps.
//!
//! A path is followed to the file that defines what it names, through the re-exports of `lib.rs` and of `mod.rs` files.
//! Not counted is what a file uses of a `mod.rs` above it: a module and the files below it are one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Texts of a crate's files by module: `["ops", "sort"]`; the root is `[]`.
type Sources = BTreeMap<Vec<String>, String>;

/// What [`paths`] finds in each module.
type Files = BTreeMap<Vec<String>, Vec<(String, bool)>>;

/// The files below `folder`, of the module `module`.
fn read(folder: &Path, module: &[String], sources: &mut Sources) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
        let mut name = module.to_vec();
        if path.is_dir() {
            name.push(stem);
            read(&path, &name, sources);
        } else {
            if stem != "mod" && stem != "lib" {
                name.push(stem);
            }
            sources.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The code without comments, strings and the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut code = String::new();
    let mut in_string = false;
    for line in text.lines() {
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '\\' if in_string => drop(characters.next()),
                // A character of a quotation mark.
                '\'' if characters.peek() == Some(&'"') => drop(characters.next()),
                '"' => in_string = !in_string,
                '/' if !in_string && characters.peek() == Some(&'/') => break,
                c if !in_string => code.push(c),
                _ => {}
            }
        }
        code.push('\n');
    }
    code
}

/// The paths of a use tree such as `a::{b, c::{d, e}}`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_string()];
    };
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let mut paths = Vec::new();
    let (mut depth, mut start) = (0, 0);
    let ends = inner.char_indices().chain([(inner.len(), ',')]);
    for (i, c) in ends {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..i].trim();
                if !part.is_empty() {
                    paths.extend(expand(&format!("{}{part}", prefix.trim())));
                }
                start = i + 1;
            }
            _ => {}
        }
    }
    paths
}

/// Every path in the code, those of `use` with whether they are re-exports.
fn paths(code: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else {
            continue;
        };
        let visible = before.trim_end();
        let is_re_export = visible.ends_with("pub") || visible.ends_with(')');
        if visible.is_empty() || is_re_export || visible.ends_with(['}', '{', ']']) {
            let tree = tree.split_whitespace().collect::<Vec<_>>().join(" ");
            found.extend(expand(&tree).into_iter().map(|path| (path, is_re_export)));
        }
    }
    // Paths that stand in the code itself.
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for word in code.split(|c| !is_path(c)) {
        if word.starts_with("crate::") || word.starts_with("super::") {
            found.push((word.trim_end_matches(':').to_string(), false));
        }
    }
    found
}

/// The module whose file defines what `path` names in `from`; none if it is of another crate.
fn resolve(files: &Files, from: &[String], path: &str, depth: usize) -> Option<Vec<String>> {
    let mut words = path.split("::").peekable();
    let mut module = from.to_vec();
    match words.peek().copied()? {
        "crate" => module.clear(),
        "super" => drop(module.pop()),
        "self" => {}
        // A child, or a name of another crate.
        first => {
            let mut child = from.to_vec();
            child.push(first.to_string());
            if !files.contains_key(&child) {
                return None;
            }
            module = child;
        }
    }
    words.next();
    while words.next_if_eq(&"super").is_some() {
        module.pop();
    }
    while let Some(word) = words.peek() {
        let mut child = module.clone();
        child.push(word.to_string());
        if !files.contains_key(&child) {
            break;
        }
        module = child;
        words.next();
    }
    let Some(item) = words.next() else {
        return Some(module);
    };
    let exported = (files.get(&module)?.iter())
        .find(|(path, is_re_export)| *is_re_export && path.rsplit("::").next() == Some(item));
    match exported {
        Some((path, _)) if depth < 8 => resolve(files, &module, path, depth + 1),
        _ => Some(module),
    }
}

/// What each file uses.
fn uses(sources: &Sources) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let files: Files = (sources.iter())
        .map(|(module, text)| (module.clone(), paths(&code(text))))
        .collect();
    let of = |(module, paths): (&Vec<String>, &Vec<(String, bool)>)| {
        let used = (paths.iter())
            .filter_map(|(path, _)| resolve(&files, module, path, 0))
            // Itself, or a module above.
            .filter(|used| !module.starts_with(used))
            .collect();
        (module.clone(), used)
    };
    files.iter().map(of).collect()
}

/// A circle of files, if there is one, from one of them back to it.
fn circle(sources: &Sources) -> Option<Vec<String>> {
    let uses = uses(sources);
    let mut done = BTreeSet::new();
    let mut stack = Vec::new();
    for module in uses.keys() {
        if let Some(circle) = visit(module, &uses, &mut done, &mut stack) {
            return Some(circle);
        }
    }
    None
}

fn visit<'a>(
    module: &'a Vec<String>,
    uses: &'a BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
    done: &mut BTreeSet<&'a Vec<String>>,
    stack: &mut Vec<&'a Vec<String>>,
) -> Option<Vec<String>> {
    if let Some(start) = stack.iter().position(|on| *on == module) {
        let names = stack[start..].iter().chain([&module]);
        return Some(names.map(|name| name.join("/")).collect());
    }
    if done.contains(module) {
        return None;
    }
    stack.push(module);
    for used in &uses[module] {
        if let Some(circle) = visit(used, uses, done, stack) {
            return Some(circle);
        }
    }
    stack.pop();
    done.insert(module);
    None
}

#[test]
fn no_circle_of_files() {
    let mut sources = Sources::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    read(&folder, &[], &mut sources);
    assert!(sources.len() > 50, "{:?}", sources.keys());
    let edges: usize = uses(&sources).values().map(BTreeSet::len).sum();
    assert!(edges > 200, "only {edges} uses were found");
    if let Some(circle) = circle(&sources) {
        panic!(
            "files use each other in a circle: {}",
            circle.join(" uses ")
        );
    }
}

#[test]
fn circles_are_found_through_re_exports() {
    let sources = |files: &[(&str, &str)]| -> Sources {
        let module = |name: &str| {
            let names = name.split('/').filter(|name| !name.is_empty());
            names.map(str::to_string).collect()
        };
        (files.iter())
            .map(|(name, text)| (module(name), text.to_string()))
            .collect()
    };
    let lib = (
        "",
        "mod a;\nmod b;\nmod c;\npub use a::{inner::In, A};\npub use b::B;\n",
    );
    let straight = sources(&[
        lib,
        ("a", "use crate::{B, Result};\npub struct A(B);"),
        ("a/inner", "use super::A;\nuse crate::b;\npub struct In(A);"),
        (
            "b",
            "// use crate::A;\nconst T: &str = \"crate::A\";\npub struct B;",
        ),
        ("c", "fn f() { crate::a::g(crate::B) }"),
    ]);
    assert_eq!(circle(&straight), None);
    for (name, text) in [
        ("b", "use crate::{c, In};\npub struct B;"),
        ("b", "pub struct B;\nfn f() { let a: crate::A; }"),
        ("b", "use crate::{\n    c::{self, g},\n};\npub struct B;"),
    ] {
        let mut circled = straight.clone();
        circled.extend(sources(&[(name, text)]));
        let found = circle(&circled).unwrap();
        assert_eq!(found.first(), found.last(), "{found:?}");
        assert!(found.contains(&"b".to_string()), "{found:?}");
    }
}
