//! The options of `serve`, for files that set them by their names.

use super::FleetArgs;
use crate::cli::{env, Program};
use crate::device::{DeviceArgs, DeviceList, DeviceListArgs, DeviceRequest, MOST_GPUS};
use crate::serve::ServerArgs;
use crate::{Error, Result};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The subcommand.
const SERVE: &str = "serve";
/// What names a model: each has its own.
const NAMING: [&str; 3] = ["model", "model-ref", "alias"];
/// Options of the server that its models' processes get as well.
const SHARED: [&str; 3] = ["max-body-bytes", "otlp-endpoint", "shutdown-grace"];
/// Names that are at least so alike are suggested for one another.
const ALIKE: f64 = 0.8;

/// What an option is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Setting {
    Flag(bool),
    Values(Vec<String>),
}

/// Options by their long names.
pub(super) type Settings = BTreeMap<String, Setting>;

struct Known {
    id: String,
    long: String,
    aliases: Vec<String>,
    is_flag: bool,
    variable: Option<OsString>,
    /// Whether it belongs to the server rather than to a model.
    of_server: bool,
}

/// The options of a program's `serve`.
pub(super) struct OptionTable {
    known: Vec<Known>,
    command: Command,
}

/// Arguments of a model's process that were tried.
pub(super) struct Tried {
    /// The arguments behind the program's name.
    pub(super) arguments: Vec<String>,
    matches: ArgMatches,
}

impl Tried {
    /// What the options about devices say.
    pub(super) fn devices(&self) -> Result<Vec<DeviceRequest>> {
        let bad = |e: clap::Error| Error::Usage(first_paragraph(&e));
        if self.matches.ids().all(|id| id.as_str() != "devices") {
            let one = DeviceArgs::from_arg_matches(&self.matches).map_err(bad)?;
            return Ok(vec![one.request()?]);
        }
        let list = DeviceListArgs::from_arg_matches(&self.matches).map_err(bad)?;
        match list.list()? {
            DeviceList::These(devices) => Ok(devices),
            // Which there are is not asked here: that would open them.
            DeviceList::All => {
                let gpus = candle_rocm::topology::Topology::read().gpus.len();
                Ok((0..gpus.clamp(1, MOST_GPUS))
                    .map(DeviceRequest::Rocm)
                    .collect())
            }
        }
    }

    /// An option that is a number, if there is such an option.
    pub(super) fn number(&self, id: &str) -> Option<u64> {
        self.matches.try_get_one::<u64>(id).ok().flatten().copied()
    }
}

impl OptionTable {
    /// Of a program.
    pub(super) fn of<P: Program>() -> Self {
        let mut command = env::command::<P>();
        command.build();
        let ids = |args: Command| -> Vec<String> {
            let ids = args.get_arguments().map(|arg| arg.get_id().to_string());
            ids.collect()
        };
        let server = ids(ServerArgs::augment_args(Command::new(SERVE)));
        let fleet = ids(FleetArgs::augment_args(Command::new(SERVE)));
        let arguments =
            (command.find_subcommand(SERVE)).map(|serve| serve.get_arguments().cloned());
        let known = arguments.into_iter().flatten().filter_map(|arg| {
            let long = arg.get_long()?.to_string();
            let is_flag = match arg.get_action() {
                ArgAction::SetTrue => true,
                ArgAction::Set | ArgAction::Append => false,
                // Help and version.
                _ => return None,
            };
            let id = arg.get_id().to_string();
            let of_server = server.contains(&id)
                || fleet.contains(&id)
                || arg.is_global_set()
                || NAMING.contains(&long.as_str());
            let aliases = arg.get_all_aliases().unwrap_or_default();
            Some(Known {
                of_server,
                aliases: aliases.into_iter().map(str::to_string).collect(),
                variable: arg.get_env().map(OsString::from),
                is_flag,
                long,
                id,
            })
        });
        Self {
            known: known.collect(),
            command,
        }
    }

    /// Whether there is an option of this name.
    pub(super) fn has(&self, long: &str) -> bool {
        self.known.iter().any(|known| known.long == long)
    }

    /// Variables that a model's process must not see: they are about the server.
    pub(super) fn variables_of_server(&self) -> impl Iterator<Item = &OsString> {
        let known = self
            .known
            .iter()
            .filter(|known| known.of_server && !SHARED.contains(&known.long.as_str()));
        known.filter_map(|known| known.variable.as_ref())
    }

    /// What the command line of the server says about its models, and what is for both.
    pub(super) fn of_command_line(&self, matches: &ArgMatches) -> Settings {
        let matches = matches.subcommand_matches(SERVE).unwrap_or(matches);
        let mut settings = Settings::new();
        for known in &self.known {
            let is_global = !matches!(matches.try_contains_id(&known.id), Ok(true));
            let passes = !known.of_server
                || SHARED.contains(&known.long.as_str())
                || self.is_log(&known.long);
            if is_global
                || !passes
                || matches.value_source(&known.id) != Some(ValueSource::CommandLine)
            {
                continue;
            }
            let setting = match known.is_flag {
                true => Setting::Flag(matches.get_flag(&known.id)),
                false => {
                    let values = matches.get_raw(&known.id).into_iter().flatten();
                    Setting::Values(
                        values
                            .map(|value| value.to_string_lossy().into_owned())
                            .collect(),
                    )
                }
            };
            settings.insert(known.long.clone(), setting);
        }
        settings
    }

    /// Whether an option is about logging, which every process does.
    fn is_log(&self, long: &str) -> bool {
        long.starts_with("log-")
    }

    /// An option as a file sets it.
    ///
    /// # Errors
    /// Why there is no such option for models, with the name that may have been meant.
    pub(super) fn read(
        &self,
        key: &str,
        value: &toml::Value,
    ) -> std::result::Result<(String, Setting), String> {
        let name = key.replace('_', "-");
        let found = self
            .known
            .iter()
            .find(|known| known.long == name || known.aliases.contains(&name));
        let known = found.ok_or_else(|| match self.nearest(&name) {
            Some(near) => format!("there is no option {key}; is {near} meant?"),
            None => format!("there is no option {key}; `serve --help` lists them"),
        })?;
        if known.of_server {
            return Err(format!(
                "{key} is about the whole server: give it on the command line"
            ));
        }
        let setting = match (known.is_flag, value) {
            (true, toml::Value::Boolean(on)) => Setting::Flag(*on),
            (true, _) => return Err(format!("{key} is true or false")),
            (false, toml::Value::Array(list)) => Setting::Values(
                list.iter()
                    .map(|item| plain(key, item))
                    .collect::<std::result::Result<_, _>>()?,
            ),
            (false, value) => Setting::Values(vec![plain(key, value)?]),
        };
        Ok((known.long.clone(), setting))
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        let own = super::config::OWN_KEYS.iter().copied();
        let longs = self.known.iter().filter(|known| !known.of_server);
        let names = longs.map(|known| known.long.as_str()).chain(own);
        let scored = names.map(|known| (strsim::jaro_winkler(known, name), known));
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= ALIKE).then_some(best.1)
    }

    /// The arguments of a model's process, checked as `serve` checks them.
    ///
    /// # Errors
    /// What `serve` says to them.
    pub(super) fn arguments<P: Program>(
        &self,
        naming: &[(&str, String)],
        settings: &Settings,
    ) -> Result<Tried> {
        let mut arguments = vec![SERVE.to_string()];
        for (long, value) in naming {
            if self.has(long) {
                arguments.push(format!("--{long}={value}"));
            }
        }
        for (long, setting) in settings {
            match setting {
                Setting::Flag(true) => arguments.push(format!("--{long}")),
                Setting::Flag(false) => {}
                Setting::Values(values) => {
                    arguments.extend(values.iter().map(|value| format!("--{long}={value}")));
                }
            }
        }
        let line =
            std::iter::once(self.command.get_name().to_string()).chain(arguments.iter().cloned());
        let refuse = |e: clap::Error| Error::Usage(first_paragraph(&e));
        let matches = self
            .command
            .clone()
            .try_get_matches_from(line)
            .map_err(refuse)?;
        P::from_arg_matches(&matches).map_err(refuse)?.check()?;
        let matches = matches.subcommand_matches(SERVE).cloned();
        let matches = matches.ok_or_else(|| Error::Usage(format!("{SERVE} takes no models")))?;
        Ok(Tried { arguments, matches })
    }
}

/// A value as the command line has it.
fn plain(key: &str, value: &toml::Value) -> std::result::Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(on) => Ok(on.to_string()),
        _ => Err(format!("{key} is a text, a number, or a list of them")),
    }
}

/// What clap says, without its hints.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.trim_start_matches("error: ").replace('\n', " ")
}
