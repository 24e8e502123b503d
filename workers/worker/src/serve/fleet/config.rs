//! Which models there are, and how each is served: from folders, from the cache of Hugging Face, from the command line,
//! and from a file:
//!
//! ```toml
//! default = "chat"
//!
//! [defaults]
//! context = 8192
//!
//! [models.chat]
//! model = "ORG/NAME-GGUF:Q4_K_M"
//! alias = ["gpt-4o", "claude"]
//! pinned = true
//!
//! [models."embed"]
//! path = "nomic-embed.gguf"
//! idle = "10m"
//! ```
//!
//! The nearer word counts: a model's own table, then the command line, then `[defaults]`.

use super::options::{Size, Span};
use super::schedule::{Patience, Place};
use super::table::{OptionTable, Setting, Settings};
use super::{FleetArgs, ModelFiles};
use crate::cli::Program;
use crate::hub::HubOptions;
use crate::{file, Error, Result};
use clap::ArgMatches;
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Keys of a model's table that are no options of `serve`.
pub(super) const OWN_KEYS: [&str; 10] = [
    "path",
    "model",
    "alias",
    "aliases",
    "pinned",
    "load",
    "idle",
    "keep_alive",
    "keep-alive",
    "memory",
];
/// Longest file.
const MAX_FILE: u64 = 1 << 20;
/// Longest name of a model.
const LONGEST_NAME: usize = 256;

/// Where the word about a model comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    CommandLine,
    Folder,
    Cache,
    File,
}

impl Origin {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CommandLine => "command line",
            Self::Folder => "folder",
            Self::Cache => "cache",
            Self::File => "file",
        }
    }
}

/// How a model is served.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelSettings {
    pub(super) name: String,
    /// What `--model` is to its process.
    pub(super) source: String,
    pub(super) aliases: Vec<String>,
    pub(super) origin: Origin,
    pub(super) pinned: bool,
    /// Whether it is loaded at the start.
    pub(super) load: bool,
    pub(super) patience: Patience,
    pub(super) can_sleep: bool,
    pub(super) place: Place,
    /// Bytes that it is thought to need; 0 is unknown.
    pub(super) needs: u64,
    /// The arguments of its process.
    pub(super) arguments: Vec<String>,
}

/// All models.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Catalogue {
    pub(super) models: Vec<ModelSettings>,
    /// The model of requests that name none.
    pub(super) default: Option<String>,
}

/// A model before its settings are read.
#[derive(Debug, Clone)]
struct Found {
    source: String,
    origin: Origin,
    table: toml::Table,
}

/// The file of `--models-config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    default: Option<String>,
    #[serde(default)]
    defaults: toml::Table,
    #[serde(default)]
    models: BTreeMap<String, toml::Table>,
}

/// Everything that says which models there are; it can be read anew.
#[derive(Clone)]
pub(super) struct Sources {
    pub(super) args: FleetArgs,
    /// Those of `--model`.
    pub(super) named: Vec<String>,
    pub(super) files: ModelFiles,
    pub(super) cache: HubOptions,
    /// The server's own arguments.
    pub(super) matches: ArgMatches,
}

impl Sources {
    /// Finds all models and checks what is said about each.
    ///
    /// # Errors
    /// [`Error::Usage`] that names file, model and option.
    pub(super) fn read<P: Program>(&self, table: &OptionTable) -> Result<Catalogue> {
        let config = match &self.args.models_config {
            Some(path) => ConfigFile::read(path)?,
            None => ConfigFile::default(),
        };
        let mut found = self.found()?;
        let place = self.args.models_config.as_deref();
        let at = |model: Option<&str>, reason: String| {
            let file = place.map(|path| format!("{}: ", path.display()));
            let section = match model {
                Some(name) => format!("[models.{name:?}] "),
                None => "[defaults] ".to_string(),
            };
            Error::Usage(format!("{}{section}{reason}", file.unwrap_or_default()))
        };
        for (name, mut settings) in config.models {
            let source =
                source_of(&mut settings, place).map_err(|reason| at(Some(&name), reason))?;
            match (source, found.get_mut(&name)) {
                (Some(source), _) => {
                    let origin = Origin::File;
                    let table = settings;
                    found.insert(
                        name,
                        Found {
                            source,
                            origin,
                            table,
                        },
                    );
                }
                (None, Some(found)) => found.table = settings,
                (None, None) => {
                    let reason =
                        "it has neither path nor model, and no folder has a model of this name";
                    return Err(at(Some(&name), reason.to_string()));
                }
            }
        }
        let command_line = table.of_command_line(&self.matches);
        let (defaults, own) =
            read_table(table, &config.defaults).map_err(|reason| at(None, reason))?;
        if own.alias.is_some() {
            return Err(at(None, "alias belongs to one model".to_string()));
        }
        let mut models = Vec::new();
        for (name, found) in found {
            let settings = Layers {
                defaults: &defaults,
                command_line: &command_line,
                own: &own,
                idle: self.args.models_idle,
            };
            let model = settings.model::<P>(table, name.clone(), &found, &self.files);
            models.push(model.map_err(|error| {
                match found.origin == Origin::File || !found.table.is_empty() {
                    true => at(Some(&name), error.to_string()),
                    false => Error::Usage(format!("model {name:?} ({}): {error}", found.source)),
                }
            })?);
        }
        let default = self.args.models_default.clone().or(config.default);
        let catalogue = Catalogue { models, default };
        catalogue.check()?;
        Ok(catalogue)
    }

    /// The models of the command line, of folders and of the cache.
    fn found(&self) -> Result<BTreeMap<String, Found>> {
        let mut all = BTreeMap::new();
        let mut add = |name: String, source: String, origin| {
            let table = toml::Table::new();
            all.insert(
                name,
                Found {
                    source,
                    origin,
                    table,
                },
            )
        };
        if self.args.models_cache {
            for (name, path) in self.cache.cached(self.files.folder_marks) {
                add(name, path.to_string_lossy().into_owned(), Origin::Cache);
            }
        }
        for folder in &self.args.folders {
            for (name, path) in self.files.in_folder(folder)? {
                add(name, path.to_string_lossy().into_owned(), Origin::Folder);
            }
        }
        for source in &self.named {
            let name = name_of(source);
            let before = add(name.clone(), source.clone(), Origin::CommandLine);
            if let Some(before) = before.filter(|before| before.origin == Origin::CommandLine) {
                return Err(Error::Usage(format!(
                    "--model {} and --model {source} would both be called {name:?}; name them in a file (--models-config)",
                    before.source
                )));
            }
        }
        Ok(all)
    }
}

impl ConfigFile {
    fn read(path: &Path) -> Result<Self> {
        let text = file::read_text(path, MAX_FILE)
            .map_err(|e| Error::Usage(format!("--models-config {}: {e}", path.display())))?;
        toml::from_str(&text).map_err(|e| {
            Error::Usage(format!(
                "--models-config {}: {}",
                path.display(),
                e.to_string().trim_end()
            ))
        })
    }
}

/// What a model's table says beside the options of `serve`.
#[derive(Debug, Clone, Default)]
struct Own {
    alias: Option<Vec<String>>,
    pinned: Option<bool>,
    load: Option<bool>,
    idle: Option<Span>,
    memory: Option<Size>,
}

/// Takes `path` or `model` out of a table.
fn source_of(
    table: &mut toml::Table,
    file: Option<&Path>,
) -> std::result::Result<Option<String>, String> {
    let text = |key: &str, value: toml::Value| match value {
        toml::Value::String(text) if !text.is_empty() => Ok(text),
        _ => Err(format!("{key} is a text")),
    };
    let (path, model) = (table.remove("path"), table.remove("model"));
    match (path, model) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            Err("path and model are two words for one thing; give one".to_string())
        }
        (None, Some(model)) => text("model", model).map(Some),
        (Some(path), None) => {
            let path = PathBuf::from(text("path", path)?);
            let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
            let path = folder.join(path);
            match path.exists() {
                true => Ok(Some(path.to_string_lossy().into_owned())),
                false => Err(format!("path: there is no {}", path.display())),
            }
        }
    }
}

/// A table's settings, and what else it says.
fn read_table(
    table: &OptionTable,
    keys: &toml::Table,
) -> std::result::Result<(Settings, Own), String> {
    let mut settings = Settings::new();
    let mut own = Own::default();
    for (key, value) in keys {
        let truth = || {
            value
                .as_bool()
                .ok_or_else(|| format!("{key} is true or false"))
        };
        match key.as_str() {
            "alias" | "aliases" => own.alias = Some(texts(key, value)?),
            "pinned" => own.pinned = Some(truth()?),
            "load" => own.load = Some(truth()?),
            "idle" | "keep_alive" | "keep-alive" => own.idle = Some(span(key, value)?),
            "memory" => {
                let text = value.as_str().map(str::to_string);
                let text = text.or(value.as_integer().map(|bytes| bytes.to_string()));
                let text =
                    text.ok_or_else(|| "memory is a size, for example \"6G\"".to_string())?;
                own.memory = Some(text.parse()?);
            }
            "path" | "model" => return Err(format!("{key} belongs to one model")),
            _ => {
                let (long, setting) = table.read(key, value)?;
                settings.insert(long, setting);
            }
        }
    }
    Ok((settings, own))
}

fn texts(key: &str, value: &toml::Value) -> std::result::Result<Vec<String>, String> {
    let bad = || format!("{key} is a text, or a list of texts");
    let list = match value {
        toml::Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |item: &toml::Value| item.as_str().filter(|s| !s.is_empty()).map(str::to_string);
    list.iter().map(|item| text(item).ok_or_else(bad)).collect()
}

fn span(key: &str, value: &toml::Value) -> std::result::Result<Span, String> {
    let number = value
        .as_float()
        .or(value.as_integer().map(|seconds| seconds as f64));
    match (value.as_str(), number.and_then(Span::of_seconds)) {
        (Some(text), _) => text.parse(),
        (None, Some(span)) => Ok(span),
        (None, None) => Err(format!("{key} is a time: seconds, or for example \"5m\"")),
    }
}

/// What is said about a model by whom, the farthest first.
struct Layers<'a> {
    defaults: &'a Settings,
    own: &'a Own,
    command_line: &'a Settings,
    idle: Span,
}

impl Layers<'_> {
    fn model<P: Program>(
        &self,
        table: &OptionTable,
        name: String,
        found: &Found,
        files: &ModelFiles,
    ) -> Result<ModelSettings> {
        check_name(&name)?;
        let (nearest, own) = read_table(table, &found.table).map_err(Error::Usage)?;
        let mut settings = self.defaults.clone();
        settings.extend(self.command_line.clone());
        settings.extend(nearest);
        let aliases = own.alias.unwrap_or_default();
        aliases.iter().try_for_each(|alias| check_name(alias))?;
        let mut naming = vec![("model", found.source.clone()), ("model-ref", name.clone())];
        naming.extend(aliases.iter().map(|alias| ("alias", alias.clone())));
        let tried = table.arguments::<P>(&naming, &settings)?;
        let can_sleep = table.has("sleep-after");
        let sleep = tried.number("sleep_after").filter(|&seconds| seconds > 0);
        let mut arguments = tried.arguments.clone();
        if sleep.is_some() {
            // The server has it sleep, and so knows when it does.
            settings.insert(
                "sleep-after".to_string(),
                Setting::Values(vec!["0".to_string()]),
            );
            arguments = table.arguments::<P>(&naming, &settings)?.arguments;
        }
        let idle = own.idle.or(self.own.idle).unwrap_or(self.idle);
        let place = Place::of(&tried.devices()?);
        let memory = own.memory.or(self.own.memory).map(|Size(bytes)| bytes);
        let pinned = own.pinned.or(self.own.pinned).unwrap_or(false);
        Ok(ModelSettings {
            needs: memory.unwrap_or_else(|| files.bytes(Path::new(&found.source))),
            name,
            source: found.source.clone(),
            aliases,
            origin: found.origin,
            pinned,
            load: own.load.or(self.own.load).unwrap_or(pinned),
            patience: Patience {
                sleep: sleep.map(std::time::Duration::from_secs),
                unload: idle.positive(),
            },
            can_sleep,
            place,
            arguments,
        })
    }
}

fn check_name(name: &str) -> Result<()> {
    let fits =
        !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control);
    match fits {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{name:?} is no name for a model: 1 to {LONGEST_NAME} bytes without control characters are"
        ))),
    }
}

/// What to call the model of `--model`: the name of its file or folder, or of its repository.
fn name_of(source: &str) -> String {
    let path = Path::new(source);
    let name = match (path.is_dir(), path.exists()) {
        (true, _) => path.file_name(),
        (false, true) => path.file_stem(),
        (false, false) => None,
    };
    name.map_or_else(
        || source.to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

impl Catalogue {
    fn check(&self) -> Result<()> {
        if self.models.is_empty() {
            return Err(Error::Usage(
                "there is no model to serve: --models FOLDER has none, and neither --models-config nor --model names one"
                    .to_string(),
            ));
        }
        let mut names = HashSet::new();
        for model in &self.models {
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                if !names.insert(name) {
                    return Err(Error::Usage(format!(
                        "{name:?} is the name or an alias of two models"
                    )));
                }
            }
        }
        match &self.default {
            Some(default) if !names.contains(default) => Err(Error::Usage(format!(
                "{default:?}, which is to answer requests that name no model, is none of the models"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
