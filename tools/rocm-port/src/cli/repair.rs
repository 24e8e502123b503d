//! `rocm-port repair`

use super::Outcome;
use rocm_port::check::case_files;
use rocm_port::model::PortedUnit;
use rocm_port::repair::command::CommandChecker;
use rocm_port::repair::confine::Bounds;
use rocm_port::repair::endpoint::{Endpoint, Model};
use rocm_port::repair::page::{page, Live};
use rocm_port::repair::run::{Limits, Run};
use rocm_port::repair::state::{End, State, Step, StepKind, Verdict};
use rocm_port::repair::Stop;
use serde_json::json;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest kernel file that is repaired.
const MAX_FILE: u64 = 1 << 20;

/// Options of `repair`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 nothing is wrong (any more), 1 something is left, 2 it could not be done.\n\
    Writes repaired.patch, state.json and log.html into the folder of --out after each step. Ctrl+C keeps the best \
    state; --resume goes on with it.\n\n\
    Example:\n    rocm-port repair hip/reduce.hip --cases cases/reduce.toml \\\n        --endpoint http://127.0.0.1:8080 \
    --model Qwen2.5-Coder-32B --serve 127.0.0.1:8099"
)]
pub(crate) struct Options {
    /// The kernel file: plain HIP, or a unit of `port` (.json)
    file: PathBuf,

    /// The cases that say what is right, as `check` takes them
    #[arg(long, required_unless_present = "compile_only")]
    cases: Option<PathBuf>,
    /// Repairs until the file compiles, without cases: nothing says then whether it computes what it should
    #[arg(long, conflicts_with = "cases")]
    compile_only: bool,
    /// Archs to check for, as `check` takes them
    #[arg(long, value_name = "ARCH,…")]
    arch: Option<String>,
    /// Orders of threads to check in, as `check` takes them
    #[arg(long)]
    seeds: Option<u32>,
    /// Archs to compile for, as `check` takes them: all, generations, none, or a list
    #[arg(long, value_name = "ARCHS", default_value = "generations")]
    compile: String,

    /// URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8080 (llm-worker-rocm serve)
    #[arg(
        long,
        value_name = "URL",
        requires = "model",
        required_unless_present = "rules_only"
    )]
    endpoint: Option<String>,
    /// The model's name there
    #[arg(long, requires = "endpoint")]
    model: Option<String>,
    /// Only the rewrites that rules know; nothing leaves this machine
    #[arg(long, conflicts_with = "endpoint")]
    rules_only: bool,
    /// Name of the environment variable that holds the endpoint's key
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Takes answers whole instead of as a stream
    #[arg(long)]
    no_stream: bool,
    /// Sampling temperature
    #[arg(long, default_value_t = 0.2)]
    temperature: f32,
    /// The most tokens of one answer
    #[arg(long, default_value_t = 8192)]
    max_tokens: u32,
    /// Seconds for one answer
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    answer_timeout: u64,

    /// Answers that are asked for in this run
    #[arg(long, default_value_t = 6)]
    max_rounds: usize,
    /// Minutes after which no other round begins
    #[arg(long, default_value_t = 30)]
    max_minutes: u64,
    /// Tokens, sent and received, after which no other round begins
    #[arg(long, default_value_t = 400_000)]
    token_budget: u64,
    /// Price of a million tokens that are sent, in any currency
    #[arg(long, default_value_t = 0.0)]
    price_in: f64,
    /// Price of a million tokens that are received
    #[arg(long, default_value_t = 0.0)]
    price_out: f64,

    /// Folder for repaired.patch, state.json and log.html
    #[arg(long, default_value = "rocm-port-repair")]
    out: PathBuf,
    /// Goes on with the state in the folder of --out
    #[arg(long)]
    resume: bool,
    /// Writes the repaired text into the kernel file if nothing is wrong any more
    #[arg(long)]
    write: bool,
    /// Shows the log live at this address; a port alone is one of this machine only
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<String>,
    /// Prints the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: Options) -> Outcome {
    let Kernels { name, text, unit } = kernels(&options.file)?;
    let endpoint = endpoint(&options)?;
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    let paths = Paths::new(&options.out);
    let mut state = match options.resume {
        true => resumed(&paths.state, &name, &text)?,
        false if paths.state.exists() => {
            return Err(format!(
                "{} is there already: go on with --resume, or choose another --out",
                paths.state.display()
            )
            .into())
        }
        false => State::new(&name, &text, None, (0.0, 0.0)),
    };
    state.model = endpoint.as_ref().map(Model::name).or(state.model);
    state.prices = (options.price_in, options.price_out);

    let stop = Stop::at_signals()?;
    let mut checker = checker(&options, &name, &stop)?;
    if let Some(unit) = &unit {
        checker = checker.of_unit(unit.clone());
    }
    let live = options.serve.as_deref().map(Live::start).transpose();
    let live = live.map_err(|e| {
        format!(
            "cannot serve at {}: {e}",
            options.serve.as_deref().unwrap_or("")
        )
    })?;
    if let Some(live) = &live {
        eprintln!("the log is at http://{}/", live.address);
    }
    let mut told = 0;
    let mut keep = |state: &State| -> Result<(), String> {
        if let Some(live) = &live {
            live.show(state);
        }
        tell(state, &mut told);
        save(state, &paths).map_err(|e| e.to_string())
    };
    Run {
        checker: &mut checker,
        model: endpoint.as_ref().map(|e| e as &dyn Model),
        limits: Limits {
            rounds: options.max_rounds,
            time: Duration::from_secs(options.max_minutes.saturating_mul(60)),
            tokens: options.token_budget,
        },
        stop: &stop,
        keep: &mut keep,
    }
    .repair(&mut state)?;
    if let Some(live) = &live {
        live.finish();
    }
    for note in &checker.notes {
        eprintln!("note: {note}");
    }
    let well = matches!(state.end, Some(End::Nothing | End::Repaired));
    if well && options.write && state.best != state.original {
        write_back(&options.file, unit, &state.best)?;
    }
    match options.json {
        true => println!("{:#}", report(&state, &paths)),
        false => print(&state, &paths),
    }
    match &state.end {
        Some(End::Endpoint(why)) => {
            Err(format!("{why}\nThe best state is kept: go on with --resume").into())
        }
        _ => Ok(well),
    }
}

/// The text to repair.
struct Kernels {
    name: String,
    text: String,
    /// The unit that it belongs to.
    unit: Option<PortedUnit>,
}

fn kernels(path: &Path) -> Result<Kernels, Box<dyn Error>> {
    let text = read(path)?;
    if path.extension().is_some_and(|e| e == "json") {
        let unit: PortedUnit =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let name: String = unit
            .name
            .chars()
            .filter(|c| c.is_alphanumeric() || "_-.".contains(*c))
            .collect();
        return Ok(Kernels {
            name: format!("{name}.hip"),
            text: unit.source.clone(),
            unit: Some(unit),
        });
    }
    let name = path.file_name().and_then(|n| n.to_str());
    let name = name
        .ok_or("the kernel file's name is not UTF-8")?
        .to_string();
    Ok(Kernels {
        name,
        text,
        unit: None,
    })
}

fn write_back(path: &Path, unit: Option<PortedUnit>, text: &str) -> Result<(), Box<dyn Error>> {
    let bytes = match unit {
        Some(unit) => serde_json::to_vec_pretty(&PortedUnit {
            source: text.into(),
            ..unit
        })?,
        None => text.as_bytes().to_vec(),
    };
    Ok(std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))?)
}

/// Where the results are.
struct Paths {
    state: PathBuf,
    patch: PathBuf,
    log: PathBuf,
}

impl Paths {
    fn new(folder: &Path) -> Self {
        Self {
            state: folder.join("state.json"),
            patch: folder.join("repaired.patch"),
            log: folder.join("log.html"),
        }
    }
}

fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    let shown = path.display();
    let size = std::fs::metadata(path)
        .map_err(|e| format!("{shown}: {e}"))?
        .len();
    if size > MAX_FILE {
        return Err(format!("{shown} has {size} bytes, more than {MAX_FILE}").into());
    }
    let bytes = std::fs::read(path).map_err(|e| format!("{shown}: {e}"))?;
    Ok(String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?)
}

fn endpoint(options: &Options) -> Result<Option<Endpoint>, Box<dyn Error>> {
    let (Some(url), Some(model)) = (&options.endpoint, &options.model) else {
        return Ok(None);
    };
    let key = match &options.api_key_env {
        Some(name) => Some(std::env::var(name).map_err(|e| format!("--api-key-env {name}: {e}"))?),
        None => None,
    };
    let endpoint = Endpoint {
        url: url.clone(),
        model: model.clone(),
        key,
        max_tokens: options.max_tokens,
        temperature: options.temperature,
        stream: !options.no_stream,
        timeout: Duration::from_secs(options.answer_timeout),
        backoff: Duration::from_secs(1),
    };
    endpoint.address()?;
    Ok(Some(endpoint))
}

fn resumed(path: &Path, name: &str, text: &str) -> Result<State, Box<dyn Error>> {
    let state = State::load(path)?;
    if state.file != name || (state.original != text && state.best != text) {
        let shown = path.display();
        return Err(format!("{shown} belongs to another kernel file, or to another text of it: choose another --out").into());
    }
    Ok(state)
}

fn checker(options: &Options, name: &str, stop: &Stop) -> Result<CommandChecker, Box<dyn Error>> {
    let mut further = vec!["--compile".to_string(), options.compile.clone()];
    if let Some(arch) = &options.arch {
        further.extend(["--arch".to_string(), arch.clone()]);
    }
    if let Some(seeds) = options.seeds {
        further.extend(["--seeds".to_string(), seeds.to_string()]);
    }
    let absolute = |path: &PathBuf| {
        std::fs::canonicalize(path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let cases = options.cases.as_ref().map(absolute).transpose()?;
    let files = match &cases {
        Some(cases) => case_files(cases)?,
        None => Vec::new(),
    };
    let program = std::env::current_exe()?;
    Ok(CommandChecker::new(
        program,
        name,
        cases,
        files,
        further,
        stop.clone(),
    )?)
}

fn save(state: &State, paths: &Paths) -> Result<(), Box<dyn Error>> {
    state.save(&paths.state)?;
    let named = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    std::fs::write(&paths.log, page(state, false)).map_err(|e| named(&paths.log, e))?;
    match state.patch() {
        Some(patch) => std::fs::write(&paths.patch, patch).map_err(|e| named(&paths.patch, e))?,
        None if paths.patch.exists() => {
            std::fs::remove_file(&paths.patch).map_err(|e| named(&paths.patch, e))?
        }
        None => {}
    }
    Ok(())
}

/// A line for each step that is over, and one for what is running.
fn tell(state: &State, told: &mut usize) {
    for step in state.steps.iter().skip(*told) {
        if step.verdict == Verdict::Running {
            eprintln!("{}. {} …", step.number, title(step));
            break;
        }
        let verdict = match &step.verdict {
            Verdict::Running => continue,
            Verdict::Checked => "checked".to_string(),
            Verdict::Better => "better".into(),
            Verdict::Kept => "kept, but not better".into(),
            Verdict::Worse(why) => format!("taken back: {why}"),
            Verdict::Refused(why) => format!("refused: {why}"),
            Verdict::NoAnswer(why) => format!("no answer: {why}"),
            Verdict::Passed => "passed".into(),
            Verdict::Failed => "failed".into(),
        };
        let found = step.outcome.as_ref().map(|o| format!(" ({})", o.rank()));
        eprintln!(
            "{}. {}: {verdict}{}",
            step.number,
            title(step),
            found.unwrap_or_default()
        );
        *told += 1;
    }
}

fn title(step: &Step) -> String {
    match &step.kind {
        StepKind::First => "checks before any change".into(),
        StepKind::Rewrite(title) => format!("rewrite: {title}"),
        StepKind::Round(number) => format!("round {number}"),
        StepKind::Last => "checks on unseen inputs".into(),
    }
}

fn print(state: &State, paths: &Paths) {
    let end = state.end.as_ref().map(End::to_string).unwrap_or_default();
    println!("{}: {end}; {}", state.file, state.rank());
    for finding in state.left() {
        let line = finding.line.map(|l| format!(":{l}")).unwrap_or_default();
        println!(
            "  {}{line}: {}: {}",
            state.file, finding.id, finding.message
        );
    }
    if state.patch().is_some() {
        println!("patch: {}", paths.patch.display());
    }
    println!("log: {}", paths.log.display());
    let (sent, received) = state.tokens();
    if sent + received > 0 {
        let cost = match state.prices {
            (0.0, 0.0) => String::new(),
            _ => format!(", cost {:.4}", state.cost()),
        };
        println!(
            "{} rounds, {sent} tokens sent, {received} received{cost}",
            state.rounds()
        );
    }
}

fn report(state: &State, paths: &Paths) -> serde_json::Value {
    let (sent, received) = state.tokens();
    json!({
        "file": state.file,
        "end": state.end,
        "repaired": matches!(state.end, Some(End::Nothing | End::Repaired)),
        "findings": state.left(),
        "rounds": state.rounds(),
        "tokens": {"sent": sent, "received": received},
        "cost": state.cost(),
        "seconds": state.seconds(),
        "patch": state.patch().map(|_| &paths.patch),
        "state": paths.state,
        "log": paths.log,
    })
}

/// Options of the hidden command that starts a program within bounds.
#[derive(clap::Args)]
pub(crate) struct Confined {
    #[command(flatten)]
    bounds: Bounds,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Takes the bounds upon this process and becomes the program.
pub(crate) fn confined(options: Confined) -> Outcome {
    for missing in options.bounds.enter() {
        eprintln!("rocm-port confined: {missing}");
    }
    let (program, arguments) = options.command.split_first().ok_or("no program")?;
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    #[cfg(unix)]
    return Err(std::os::unix::process::CommandExt::exec(&mut command).into());
    #[cfg(not(unix))]
    Ok(command.status()?.success())
}
