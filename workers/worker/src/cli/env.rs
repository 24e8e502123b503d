//! Every option from the environment, too; the command line comes first.

use super::Program;
use clap::builder::FalseyValueParser;
use clap::{ArgAction, Command};

/// A program's arguments, each option with a long name also from the environment: `--max-tokens` from
/// `PREFIX_MAX_TOKENS`, unless the option says otherwise.
pub fn command<P: Program>() -> Command {
    let mut command = with_environment(P::command(), P::PREFIX);
    let names: Vec<String> = command
        .get_subcommands()
        .map(|c| c.get_name().to_string())
        .collect();
    for name in names {
        command = command.mut_subcommand(name, |c| with_environment(c, P::PREFIX));
    }
    command
}

fn with_environment(command: Command, prefix: &str) -> Command {
    command.mut_args(|arg| {
        let Some(long) = arg.get_long().filter(|_| arg.get_env().is_none()) else {
            return arg;
        };
        let is_flag = match arg.get_action() {
            ArgAction::SetTrue => true,
            ArgAction::Set | ArgAction::Append => false,
            _ => return arg,
        };
        let name = format!("{prefix}_{}", long.to_uppercase().replace('-', "_"));
        let arg = arg.env(name).hide_env(true);
        match is_flag {
            true => arg.value_parser(FalseyValueParser::new()),
            false => arg,
        }
    })
}
