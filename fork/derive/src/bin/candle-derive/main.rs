//! The fork's derived source, where an editor and grep find it, and its patches: `cargo run -p candle-derive -- help`.

mod packages;
mod patches;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_derive::{fixes_page, Stage};

use packages::Package;

const HELP: &str = "\
The derived source of candle's ROCm fork, and its patches.

Usage: cargo run -p candle-derive -- COMMAND

  show CRATE          writes what the build compiles to target/derived/CRATE, and prints that path
  edit CRATE [PATCH]  writes upstream's text with all patches, or those up to PATCH, to target/edit/CRATE/b
                      for you to change
  patch CRATE NAME    makes your changes there a new patch NAME in fork/CRATE/patches, or those of the PATCH
                      that `edit` was asked for
  refresh CRATE       writes the patches anew with the lines where their hunks are now
  fixes [CRATE]       writes FIXES.md from the headers of the patches

CRATE is candle-core, candle-nn or candle-transformers. PATCH is the number of a patch (7) or its file's name.

  --departures        with edit, patch and refresh: the patches in fork/CRATE/departures, which are made to what
                      the rule has made of upstream's text
  --force             with edit: drop changes in target/edit/CRATE that are in no patch
  --out FOLDER        with show, edit and patch: that folder instead
  --fork FOLDER       the packages there, not those of this checkout
";

type Result<T> = std::result::Result<T, String>;

/// What the command line says.
struct Arguments {
    command: String,
    names: Vec<String>,
    stage: Stage,
    force: bool,
    out: Option<PathBuf>,
    fork: PathBuf,
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = Self {
            command: String::new(),
            names: Vec::new(),
            stage: Stage::Upstream,
            force: false,
            out: None,
            fork: packages::fork(),
        };
        while let Some(word) = given.next() {
            match word.as_str() {
                "--departures" => arguments.stage = Stage::Rule,
                "--force" => arguments.force = true,
                "--out" | "--fork" => {
                    let folder = given.next().ok_or(format!("{word} needs a folder"))?;
                    match word.as_str() {
                        "--out" => arguments.out = Some(folder.into()),
                        _ => arguments.fork = folder.into(),
                    }
                }
                "-h" | "--help" => arguments.command = "help".into(),
                option if option.starts_with('-') => {
                    return Err(format!("{option} is not an option"))
                }
                _ if arguments.command.is_empty() => arguments.command = word,
                _ => arguments.names.push(word),
            }
        }
        Ok(arguments)
    }

    /// The package that the first name says; `least` and `most` names must be given in all.
    fn package(&self, least: usize, most: usize) -> Result<Package> {
        if !(least..=most).contains(&self.names.len()) {
            return Err(format!(
                "`{}` takes other arguments than these",
                self.command
            ));
        }
        Package::named(&self.fork, &self.names[0])
    }
}

fn run(given: impl Iterator<Item = String>) -> Result<()> {
    let arguments = Arguments::parse(given)?;
    match arguments.command.as_str() {
        "show" => {
            let package = arguments.package(1, 1)?;
            let out = arguments.out.unwrap_or(
                packages::target()?
                    .join("derived")
                    .join(package.recipe.name),
            );
            show(&package, &out)
        }
        "edit" => {
            let package = arguments.package(1, 2)?;
            let out = arguments.out.unwrap_or(patches::folder(&package)?);
            let patch = arguments.names.get(1).map(String::as_str);
            patches::edit(&package, arguments.stage, patch, &out, arguments.force)
        }
        "patch" => {
            let package = arguments.package(2, 2)?;
            let from = arguments.out.unwrap_or(patches::folder(&package)?);
            patches::patch(&package, arguments.stage, &arguments.names[1], &from)
        }
        "refresh" => patches::refresh(&arguments.package(1, 1)?, arguments.stage),
        "fixes" => match arguments.names.is_empty() {
            true => packages::all(&arguments.fork).try_for_each(|package| write_fixes(&package)),
            false => write_fixes(&arguments.package(1, 1)?),
        },
        "help" | "" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("{other} is not a command")),
    }
}

fn show(package: &Package, out: &Path) -> Result<()> {
    let upstream = package.upstream()?;
    let derived = package.recipe.derive(&upstream, &package.folder, out);
    derived.map_err(|e| e.to_string())?;
    println!("{}", out.display());
    Ok(())
}

fn write_fixes(package: &Package) -> Result<()> {
    let page = fixes_page(&package.recipe, &package.folder).map_err(|e| e.to_string())?;
    packages::write(&package.folder.join("FIXES.md"), &page)
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!(
                "error: {message}\nhelp: `cargo run -p candle-derive -- help` lists the commands"
            );
            ExitCode::FAILURE
        }
    }
}
