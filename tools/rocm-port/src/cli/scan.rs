//! `rocm-port scan`

use super::Outcome;
use rocm_port::parse;
use rocm_port::report::{self, Detail, Format, Sums};
use rocm_port::rules::{self, Rule, RULES};
use rocm_port::source;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Options of `scan`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 all kernels that are used go over by themselves, 1 some do not, 2 it failed."
)]
pub(crate) struct Options {
    /// A folder, a .cu file, or a crate of the registry: NAME or NAME@VERSION.
    #[arg(required_unless_present = "explain")]
    source: Option<String>,
    #[command(flatten)]
    reading: Reading,
    /// The form of the report.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write the report to this file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List every kernel, not only those that are not portable as they are.
    #[arg(long)]
    kernels: bool,
    /// List every finding, not only errors.
    #[arg(long)]
    findings: bool,
    /// Say what a rule means, such as W3, or all of them.
    #[arg(long, value_name = "RULE|all", conflicts_with = "source")]
    explain: Option<String>,
}

/// How CUDA texts are read; for all commands that do.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Reading {
    /// The value of __CUDA_ARCH__: which #if branches are taken.
    #[arg(long, value_name = "VALUE", default_value_t = 800)]
    cuda_arch: u32,
    /// Another value for some files: PATTERN=VALUE, with * in the pattern; may be given several times.
    #[arg(long, value_name = "PATTERN=VALUE", value_parser = arch_of)]
    cuda_arch_of: Vec<(String, u32)>,
    /// Define a macro, after those of the build script.
    #[arg(short = 'D', long = "define", value_name = "NAME[=VALUE]")]
    define: Vec<String>,
    /// A folder with headers, relative to the crate, after those of the build script.
    #[arg(short = 'I', long = "include", value_name = "FOLDER")]
    include: Vec<String>,
    /// The C++ compiler that preprocesses [default: CANDLE_ROCM_CLANG, else clang++ or g++].
    #[arg(long, value_name = "PROGRAM")]
    compiler: Option<PathBuf>,
    /// Read the text as it is, without a preprocessor.
    #[arg(long)]
    raw: bool,
}

impl Reading {
    /// The options of the parser.
    pub(crate) fn options(&self) -> parse::Options {
        parse::Options {
            compiler: self.compiler.clone(),
            raw: self.raw,
            cuda_arch: self.cuda_arch,
            cuda_arch_of: self.cuda_arch_of.clone(),
            defines: self.define.clone(),
            includes: self.include.clone(),
            ..parse::Options::default()
        }
    }
}

fn arch_of(text: &str) -> Result<(String, u32), String> {
    let (pattern, value) = text
        .rsplit_once('=')
        .ok_or_else(|| "PATTERN=VALUE is wanted, such as src/old_*=610".to_string())?;
    let value = value
        .parse()
        .map_err(|_| format!("{value}: no number such as 800"))?;
    Ok((pattern.to_string(), value))
}

/// Runs the command.
pub(crate) fn run(options: Options) -> Outcome {
    if let Some(rule) = &options.explain {
        return explain(rule);
    }
    let sources = source::open(options.source.as_deref().unwrap_or("."))?;
    if sources.cuda.is_empty() && sources.headers.is_empty() {
        return Err(format!("{}: no CUDA files (.cu, .cuh)", sources.root.display()).into());
    }
    for (file, reason) in &sources.skipped {
        eprintln!("rocm-port: left out {file}: {reason}");
    }
    let live = std::io::stderr().is_terminal();
    let scan = rules::scan_with(&sources, &options.reading.options(), |file, done| {
        if live {
            eprint!("\r\x1b[K{done}/{} {file}", sources.cuda.len().max(done));
        }
    })?;
    if live {
        eprint!("\r\x1b[K");
    }
    let format = match options.json {
        true => Format::Json,
        false => options.format,
    };
    let detail = Detail {
        kernels: options.kernels,
        findings: options.findings,
    };
    let text = report::write(&scan, format, detail);
    match &options.output {
        Some(path) => {
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => print(&text)?,
    }
    Ok(Sums::of(&scan.kernels).all_go())
}

/// Prints a rule, or all.
fn explain(id: &str) -> Outcome {
    let rules: Vec<&Rule> = match id {
        "all" => RULES.iter().collect(),
        id => vec![Rule::find(id).ok_or_else(|| {
            let known: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
            format!("no rule {id}; there are {}", known.join(", "))
        })?],
    };
    let mut out = String::new();
    for rule in rules {
        out += &format!(
            "{}: {}\n\n{}\n\n{}\n\n",
            rule.id, rule.title, rule.meaning, rule.action
        );
    }
    print(&out)?;
    Ok(true)
}

/// Writes to standard output; a reader that has seen enough is no error.
fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
