//! Cargo.toml and build.rs: a feature `rocm` beside `cuda`, candle from candle-rocm, and no nvcc with it.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

/// Crates of candle that candle-rocm has a fork of, and the version that it is derived from.
const FORKED: &[&str] = &["candle-core", "candle-nn", "candle-transformers"];
const CANDLE: &str = "0.11.1";

/// What happened to a manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    pub text: String,
    /// The name that Rust knows candle-core by.
    pub candle: String,
    /// Sentences for whoever reads the port's notes.
    pub notes: Vec<String>,
}

/// Where candle-rocm comes from: an address of a repository, or a folder.
pub(super) enum Origin<'a> {
    Git(&'a str),
    Folder(&'a str),
}

/// Adds the feature. `alone` makes the crate its own workspace.
///
/// # Errors
/// A text that is no manifest, or one without candle-core.
pub(super) fn port(text: &str, origin: &Origin, alone: bool) -> Result<Manifest, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error| format!("Cargo.toml: {error}"))?;
    let mut notes = Vec::new();
    let mut forked: Vec<(String, String)> = Vec::new();
    let mut cuda: Vec<String> = Vec::new();
    for section in ["dependencies", "dev-dependencies"] {
        let Some(table) = document.get_mut(section).and_then(Item::as_table_like_mut) else {
            continue;
        };
        for (key, item) in table.iter_mut() {
            let package = package(item).unwrap_or_else(|| key.get().to_string());
            if FORKED.contains(&package.as_str()) {
                let name = key.get().to_string();
                dependency(&name, item, &mut cuda, &mut notes);
                forked.push((name, package));
            }
        }
    }
    let candle = forked.iter().find(|(_, package)| package == "candle-core");
    let candle = candle.ok_or(
        "Cargo.toml does not depend on candle-core, so there is nothing to run the kernels on",
    )?;
    let candle = candle.0.replace('-', "_");
    features(&mut document, &forked, &cuda, &mut notes);
    patch(&mut document, &forked, origin);
    if alone && document.get("workspace").is_none() {
        document.insert("workspace", Item::Table(Table::new()));
    }
    Ok(Manifest {
        text: document.to_string(),
        candle,
        notes,
    })
}

/// `package = "…"` of a dependency.
fn package(item: &Item) -> Option<String> {
    item.as_table_like()?
        .get("package")?
        .as_str()
        .map(str::to_string)
}

/// Moves a dependency to the fork's version and its CUDA features into the feature `cuda`.
fn dependency(name: &str, item: &mut Item, cuda: &mut Vec<String>, notes: &mut Vec<String>) {
    let was = match item.as_table_like() {
        Some(table) => table
            .get("version")
            .and_then(Item::as_str)
            .map(str::to_string),
        None => item.as_str().map(str::to_string),
    };
    if was.as_deref() != Some(CANDLE) {
        let before = was.unwrap_or_else(|| "what the workspace says".into());
        notes.push(format!(
            "`{name}` was {before} and is {CANDLE}, the version that candle-rocm is derived from."
        ));
    }
    if item.as_table_like().is_none() {
        *item = Item::Value(Value::InlineTable(InlineTable::new()));
    }
    let Some(table) = item.as_table_like_mut() else {
        return;
    };
    for gone in ["workspace", "git", "branch", "rev", "tag", "path"] {
        table.remove(gone);
    }
    table.insert("version", toml_edit::value(CANDLE));
    let Some(list) = table.get_mut("features").and_then(Item::as_array_mut) else {
        return;
    };
    let of_cuda = |value: &Value| {
        matches!(
            value.as_str(),
            Some("cuda" | "cudnn" | "nccl" | "flash-attn")
        )
    };
    let moved: Vec<String> = list
        .iter()
        .filter(|value| of_cuda(value))
        .filter_map(|value| value.as_str())
        .map(str::to_string)
        .collect();
    if moved.is_empty() {
        return;
    }
    list.retain(|value| !of_cuda(value));
    if list.is_empty() {
        table.remove("features");
    }
    for feature in moved {
        notes.push(format!("The feature `{feature}` of `{name}` now comes with the feature `cuda`, which is on by default."));
        cuda.push(format!("{name}/{feature}"));
    }
}

fn features(
    document: &mut DocumentMut,
    forked: &[(String, String)],
    moved: &[String],
    notes: &mut Vec<String>,
) {
    let table = document.entry("features").or_insert_with(toml_edit::table);
    let Some(table) = table.as_table_like_mut() else {
        return;
    };
    let existing = strings(table, "cuda");
    let mut cuda = existing.clone().unwrap_or_default();
    cuda.extend(
        moved
            .iter()
            .filter(|feature| !existing.iter().flatten().any(|known| known == *feature))
            .cloned(),
    );
    if existing.is_none() || !moved.is_empty() {
        table.insert("cuda", list(&cuda));
    }
    if !moved.is_empty() {
        let mut default = strings(table, "default").unwrap_or_default();
        if !default.iter().any(|feature| feature == "cuda") {
            default.push("cuda".into());
        }
        table.insert("default", list(&default));
    }
    // Of candle's crates, all that know the device: those of `cuda`, and candle-core itself.
    let mut rocm: Vec<String> = Vec::new();
    for (name, package) in forked {
        let wanted = package == "candle-core"
            || cuda
                .iter()
                .any(|feature| feature.split('/').next() == Some(name));
        let feature = format!("{name}/rocm");
        if wanted && !rocm.contains(&feature) {
            rocm.push(feature);
        }
    }
    if strings(table, "rocm").is_none() {
        table.insert("rocm", list(&rocm));
    } else {
        notes.push("There was a feature `rocm` already; it was left as it is.".into());
    }
}

fn strings(table: &dyn TableLike, key: &str) -> Option<Vec<String>> {
    let array = table.get(key)?.as_array()?;
    Some(
        array
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_string)
            .collect(),
    )
}

fn list(features: &[String]) -> Item {
    toml_edit::value(features.iter().map(String::as_str).collect::<Array>())
}

/// The lines of `[patch.crates-io]`.
fn patch(document: &mut DocumentMut, forked: &[(String, String)], origin: &Origin) {
    let patch = document.entry("patch").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let Some(patch) = patch.as_table_like_mut() else {
        return;
    };
    let registry = patch.entry("crates-io").or_insert_with(toml_edit::table);
    let Some(registry) = registry.as_table_like_mut() else {
        return;
    };
    for (_, package) in forked {
        let mut source = InlineTable::new();
        match origin {
            Origin::Git(address) => source.insert("git", (*address).into()),
            Origin::Folder(folder) => {
                source.insert("path", format!("{folder}/fork/{package}").into())
            }
        };
        registry.insert(package, Item::Value(Value::InlineTable(source)));
    }
}

/// Where a ported manifest differs from its original without the feature `rocm`: dependencies, their features and the
/// crate's own. Versions of candle's crates may differ.
pub(super) fn differences(before: &str, after: &str) -> Vec<String> {
    let parse = |text: &str| text.parse::<toml::Table>().ok();
    let (Some(before), Some(after)) = (parse(before), parse(after)) else {
        return vec!["Cargo.toml cannot be read".into()];
    };
    let mut found = Vec::new();
    let own = |manifest: &toml::Table| {
        manifest
            .get("features")
            .and_then(toml::Value::as_table)
            .cloned()
            .unwrap_or_default()
    };
    let (own_before, own_after) = (own(&before), own(&after));
    let enabled = closure(&own_after, "default");
    for (name, value) in &own_before {
        let added = || closure(&own_after, name).is_superset(&closure(&own_before, name));
        if own_after.get(name) != Some(value) && !added() {
            found.push(format!("Cargo.toml: the feature {name} differs"));
        }
    }
    for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let table = |manifest: &toml::Table| {
            manifest
                .get(section)
                .and_then(toml::Value::as_table)
                .cloned()
                .unwrap_or_default()
        };
        let (old, new) = (table(&before), table(&after));
        for (name, value) in &old {
            let same = new
                .get(name)
                .is_some_and(|now| same_dependency(name, value, now, &enabled));
            if !same {
                found.push(format!("Cargo.toml: {section}.{name} differs"));
            }
        }
        let fresh = new.keys().filter(|name| !old.contains_key(*name));
        found.extend(fresh.map(|name| format!("Cargo.toml: {section}.{name} is new")));
    }
    found
}

/// What a feature brings, through others.
fn closure(features: &toml::Table, name: &str) -> std::collections::BTreeSet<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut open = vec![name.to_string()];
    while let Some(name) = open.pop() {
        let list = features.get(&name).and_then(toml::Value::as_array);
        for feature in list.into_iter().flatten().filter_map(toml::Value::as_str) {
            if found.insert(feature.to_string()) {
                open.push(feature.to_string());
            }
        }
    }
    found
}

fn same_dependency(
    name: &str,
    before: &toml::Value,
    after: &toml::Value,
    enabled: &std::collections::BTreeSet<String>,
) -> bool {
    let full = |value: &toml::Value| match value {
        toml::Value::Table(table) => table.clone(),
        version => toml::Table::from_iter([("version".to_string(), version.clone())]),
    };
    let (mut before, mut after) = (full(before), full(after));
    let package = before
        .get("package")
        .and_then(toml::Value::as_str)
        .unwrap_or(name);
    let forked = FORKED.contains(&package);
    let features = |table: &mut toml::Table| -> std::collections::BTreeSet<String> {
        let list = table.remove("features");
        let list = list
            .as_ref()
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten();
        list.filter_map(toml::Value::as_str)
            .map(str::to_string)
            .collect()
    };
    let old = features(&mut before);
    let mut new = features(&mut after);
    if forked {
        let prefix = format!("{name}/");
        new.extend(
            enabled
                .iter()
                .filter_map(|feature| feature.strip_prefix(&prefix))
                .map(str::to_string),
        );
        for gone in [
            "version",
            "workspace",
            "git",
            "branch",
            "rev",
            "tag",
            "path",
        ] {
            before.remove(gone);
            after.remove(gone);
        }
        return before == after && new.is_superset(&old);
    }
    before == after && old == new
}

/// build.rs that does nothing with the feature `rocm`; none if it has no `main`.
///
/// # Errors
/// Text that is no Rust.
pub(super) fn build_script(text: &str) -> Result<Option<String>, syn::Error> {
    use syn::spanned::Spanned;
    let file = syn::parse_file(text)?;
    let main = file.items.iter().find_map(|item| match item {
        syn::Item::Fn(function) if function.sig.ident == "main" => {
            Some(item.span().byte_range().start)
        }
        _ => None,
    });
    let Some(main) = main else {
        return Ok(None);
    };
    let first = file
        .attrs
        .iter()
        .map(|attribute| attribute.span().byte_range().end)
        .max();
    let head = match (first, text.starts_with("#!") && !text.starts_with("#![")) {
        (Some(end), _) => text[end..]
            .find('\n')
            .map_or(text.len(), |line| end + line + 1),
        (None, true) => text.find('\n').map_or(text.len(), |line| line + 1),
        (None, false) => 0,
    };
    let allowed = "#![cfg_attr(feature = \"rocm\", allow(dead_code, unused_imports))]\n";
    let nothing = "#[cfg(feature = \"rocm\")]\nfn main() {}\n\n#[cfg(not(feature = \"rocm\"))]\n";
    Ok(Some(format!(
        "{}{allowed}{}{nothing}{}",
        &text[..head],
        &text[head..main],
        &text[main..]
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_always_had_cuda_gets_two_features() {
        let text = "[package]\nname = \"a\" # kept\n\n[dependencies.candle]\nversion = \"0.*\"\nfeatures = [\"cuda\"]\npackage = \"candle-core\"\n\n\
                    [dependencies]\nhalf = \"2\"\n\n[dev-dependencies]\ncandle-nn = { version = \"0.*\", features = [\"cuda\"] }\n";
        let manifest = port(text, &Origin::Git("https://example.org/r"), true).expect("a manifest");
        assert_eq!(manifest.candle, "candle");
        let parsed: toml::Table = manifest.text.parse().expect("toml");
        let get = |path: &[&str]| {
            path.iter()
                .try_fold(
                    &toml::Value::Table(parsed.clone()) as &toml::Value,
                    |at, key| at.get(key),
                )
                .map(|value| value.to_string())
        };
        assert_eq!(
            get(&["features", "cuda"]).as_deref(),
            Some("[\"candle/cuda\", \"candle-nn/cuda\"]")
        );
        assert_eq!(
            get(&["features", "rocm"]).as_deref(),
            Some("[\"candle/rocm\", \"candle-nn/rocm\"]")
        );
        assert_eq!(get(&["features", "default"]).as_deref(), Some("[\"cuda\"]"));
        assert_eq!(
            get(&["dependencies", "candle", "version"]).as_deref(),
            Some("\"0.11.1\"")
        );
        assert_eq!(
            get(&["patch", "crates-io", "candle-nn", "git"]).as_deref(),
            Some("\"https://example.org/r\"")
        );
        assert!(manifest.text.contains("# kept") && manifest.text.contains("[workspace]"));
        assert_eq!(manifest.notes.len(), 4, "{:?}", manifest.notes);
        assert_eq!(differences(text, &manifest.text), [] as [&str; 0]);
        let without = manifest
            .text
            .replace("default = [\"cuda\"]", "")
            .replace("half = \"2\"", "half = \"3\"");
        let found = differences(text, &without);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_feature_of_cuda_stays_and_rocm_joins_it() {
        let text = "[features]\ndefault = []\ncuda = [\"candle-core/cuda\", \"dep:kernels\"]\n[dependencies]\ncandle-core = \"0.11.1\"\n";
        let manifest = port(text, &Origin::Folder("/r"), false).expect("a manifest");
        let parsed: toml::Table = manifest.text.parse().expect("toml");
        assert_eq!(
            parsed["features"]["cuda"].to_string(),
            "[\"candle-core/cuda\", \"dep:kernels\"]"
        );
        assert_eq!(
            parsed["features"]["rocm"].to_string(),
            "[\"candle-core/rocm\"]"
        );
        assert_eq!(
            parsed["patch"]["crates-io"]["candle-core"]["path"].as_str(),
            Some("/r/fork/candle-core")
        );
        assert!(port("[package]\nname = \"a\"\n", &Origin::Git(""), true).is_err());
        assert!(port("[", &Origin::Git(""), true).is_err());
    }

    #[test]
    fn build_scripts_do_nothing_with_rocm() {
        let text = "// nvcc\nuse a::B;\n\nfn main() -> B {\n    b()\n}\n";
        let script = build_script(text).expect("Rust").expect("a main");
        assert_eq!(
            script,
            "#![cfg_attr(feature = \"rocm\", allow(dead_code, unused_imports))]\n// nvcc\nuse a::B;\n\n\
             #[cfg(feature = \"rocm\")]\nfn main() {}\n\n#[cfg(not(feature = \"rocm\"))]\nfn main() -> B {\n    b()\n}\n"
        );
        assert!(build_script("fn other() {}").expect("Rust").is_none());
        assert!(build_script("fn {").is_err());
    }
}
