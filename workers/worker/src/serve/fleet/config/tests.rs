use super::*;
use crate::cli::{env, LogArgs};
use crate::device::DeviceArgs;
use crate::serve::ServerArgs;
use clap::{Parser, Subcommand};
use std::time::Duration;

/// A program as the workers are.
#[derive(Debug, Parser)]
#[command(name = "tester")]
struct Tester {
    #[command(subcommand)]
    command: TesterCommand,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum TesterCommand {
    Serve(Box<ServeArgs>),
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    #[arg(long = "model", short)]
    models: Vec<String>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long)]
    model_ref: Option<String>,
    #[arg(long = "alias")]
    aliases: Vec<String>,
    #[arg(long, visible_alias = "ctx")]
    context: Option<usize>,
    #[arg(long, default_value_t = 0)]
    sleep_after: u64,
    #[arg(long)]
    quick: bool,
    #[arg(long, conflicts_with = "quick")]
    thorough: bool,
    #[arg(long = "lora")]
    adapters: Vec<String>,
}

impl Program for Tester {
    const PREFIX: &'static str = "TESTER_OF_FLEETS";

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_service(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        let TesterCommand::Serve(args) = &self.command;
        match args.context {
            Some(13) => Err(Error::Usage("13 is unlucky".to_string())),
            _ => Ok(()),
        }
    }

    fn run(self) -> Result<()> {
        Ok(())
    }
}

/// A folder with models, and a file about them.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        for name in ["a.gguf", "b.gguf"] {
            std::fs::write(folder.path().join("models").join(name), [0; 1000]).unwrap();
        }
        std::fs::write(folder.path().join("beside.gguf"), [0; 10]).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    /// What comes of a file, of the folder, and of further arguments.
    fn read(&self, toml: &str, arguments: &[&str]) -> Result<Catalogue> {
        std::fs::write(self.path("models.toml"), toml).unwrap();
        let (folder, file) = (self.path("models"), self.path("models.toml"));
        let line = [
            "tester",
            "serve",
            "--models",
            &folder,
            "--models-config",
            &file,
        ];
        let matches = env::command::<Tester>().get_matches_from([&line, arguments].concat());
        let serve = matches.subcommand_matches("serve").unwrap();
        let args = <FleetArgs as clap::FromArgMatches>::from_arg_matches(serve).unwrap();
        let sources = Sources {
            args,
            named: serve
                .get_many("models")
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            files: ModelFiles {
                endings: &["gguf"],
                folder_marks: &["config.json"],
            },
            cache: HubOptions::from_env(),
            matches,
        };
        sources.read::<Tester>(&OptionTable::of::<Tester>())
    }

    fn refused(&self, toml: &str, arguments: &[&str]) -> String {
        let error = self.read(toml, arguments).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }
}

fn named<'a>(catalogue: &'a Catalogue, name: &str) -> &'a ModelSettings {
    catalogue
        .models
        .iter()
        .find(|model| model.name == name)
        .unwrap()
}

#[test]
fn a_folder_alone() {
    let place = Place::new();
    let catalogue = place
        .read("", &["--device", "cpu", "--models-idle", "5m"])
        .unwrap();
    let names: Vec<&str> = catalogue
        .models
        .iter()
        .map(|model| model.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let model = named(&catalogue, "a");
    assert_eq!(model.needs, 1000);
    assert_eq!(
        (model.pinned, model.load, model.place),
        (false, false, cpu())
    );
    assert_eq!(model.patience.unload, Some(Duration::from_secs(300)));
    let path = place.path("models/a.gguf");
    let expected = [
        "serve".to_string(),
        format!("--model={path}"),
        "--model-ref=a".to_string(),
        "--device=cpu".to_string(),
    ];
    assert_eq!(model.arguments, expected);
    assert_eq!(catalogue.default, None);
}

fn cpu() -> super::super::schedule::Place {
    super::super::schedule::Place::Cpu
}

#[test]
fn the_nearer_word_counts() {
    let place = Place::new();
    let toml = r#"
        default = "other"
        [defaults]
        context = 100
        quick = true
        idle = 60
        [models.a]
        ctx = 300
        quick = false
        thorough = true
        lora = ["x=1", "y=2"]
        sleep_after = 7
        pinned = true
        [models."other"]
        path = "beside.gguf"
        alias = ["one", "two"]
        idle = "0"
        memory = "2G"
        rocm-device = 1
    "#;
    let catalogue = place
        .read(
            toml,
            &[
                "--context",
                "200",
                "--max-body-bytes",
                "5",
                "--log-level",
                "warn",
                "--port",
                "1",
            ],
        )
        .unwrap();
    let has = |name: &str, argument: &str| {
        named(&catalogue, name)
            .arguments
            .iter()
            .any(|given| given == argument)
    };
    assert!(has("a", "--context=300") && has("a", "--thorough") && !has("a", "--quick"));
    assert!(has("a", "--lora=x=1") && has("a", "--lora=y=2"));
    // The server has it sleep.
    assert!(has("a", "--sleep-after=0"));
    assert_eq!(
        named(&catalogue, "a").patience.sleep,
        Some(Duration::from_secs(7))
    );
    assert!(named(&catalogue, "a").pinned && named(&catalogue, "a").load);
    assert!(has("b", "--context=200") && has("b", "--quick"));
    assert!(
        has("b", "--max-body-bytes=5") && has("b", "--log-level=warn") && !has("b", "--port=1")
    );
    assert_eq!(
        named(&catalogue, "b").patience.unload,
        Some(Duration::from_secs(60))
    );
    let other = named(&catalogue, "other");
    assert_eq!((other.needs, other.patience.unload), (2 << 30, None));
    assert_eq!(other.place, super::super::schedule::Place::gpu(1));
    assert!(has("other", "--alias=two"));
    assert_eq!(other.source, place.path("beside.gguf"));
    assert_eq!(catalogue.default.as_deref(), Some("other"));
}

#[test]
fn mistakes_are_told_with_file_and_key() {
    let place = Place::new();
    for (toml, told) in [
        (
            "[models.a]\ncontxt = 5",
            "[models.\"a\"] there is no option contxt; is context meant?",
        ),
        (
            "[models.a]\nzzz = 5",
            "there is no option zzz; `serve --help`",
        ),
        (
            "[models.a]\ncontext = \"many\"",
            "[models.\"a\"] invalid value 'many' for '--context",
        ),
        ("[models.a]\ncontext = 13", "[models.\"a\"] 13 is unlucky"),
        ("[models.a]\nquick = 1", "quick is true or false"),
        (
            "[models.a]\nquick = true\nthorough = true",
            "cannot be used with",
        ),
        ("[models.a]\nport = 1", "port is about the whole server"),
        (
            "[models.a]\nmodels-max = 1",
            "models-max is about the whole server",
        ),
        (
            "[models.a]\nlora = {x = 1}",
            "lora is a text, a number, or a list",
        ),
        ("[models.a]\npinned = \"yes\"", "pinned is true or false"),
        ("[models.a]\nidle = [1]", "idle is a time"),
        ("[models.a]\nmemory = \"much\"", "\"much\" is not a size"),
        ("[models.a]\npath = \"absent.gguf\"", "path: there is no"),
        (
            "[models.a]\npath = \"beside.gguf\"\nmodel = \"x/y\"",
            "give one",
        ),
        (
            "[models.c]\ncontext = 5",
            "[models.\"c\"] it has neither path nor model",
        ),
        (
            "[models.a]\nalias = \"b\"",
            "\"b\" is the name or an alias of two models",
        ),
        ("[models.a]\nalias = [\"\"]", "alias is a text"),
        (
            "[models.\"a\\nb\"]\npath = \"beside.gguf\"",
            "is no name for a model",
        ),
        (
            "[defaults]\ncontxt = 5",
            "[defaults] there is no option contxt",
        ),
        ("[defaults]\nmodel = \"x\"", "model belongs to one model"),
        ("[defaults]\nalias = \"x\"", "alias belongs to one model"),
        ("default = \"c\"", "\"c\", which is to answer"),
        ("[model.a]\ncontext = 5", "unknown field `model`"),
        ("[models.a\ncontext = 5", "models.toml"),
        (
            "[models.a]\nrocm-device = 1\ndevice = \"cpu\"",
            "say different things",
        ),
    ] {
        let text = place.refused(toml, &[]);
        assert!(text.contains(told), "{toml}\n{text}");
    }
    let text = place.refused("", &["--models-default", "c"]);
    assert!(text.contains("\"c\""), "{text}");
    let twice = [
        place.path("beside.gguf"),
        place.path("models/../beside.gguf"),
    ];
    let text = place.refused("", &["--model", &twice[0], "--model", &twice[1]]);
    assert!(text.contains("would both be called \"beside\""), "{text}");
}

#[test]
fn models_of_the_command_line_stand_beside_those_of_a_folder() {
    let place = Place::new();
    let catalogue = place
        .read(
            "[models.\"org/name\"]\ncontext = 5",
            &["-m", &place.path("beside.gguf"), "-m", "org/name"],
        )
        .unwrap();
    let names: Vec<&str> = catalogue
        .models
        .iter()
        .map(|model| model.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "beside", "org/name"]);
    assert!(named(&catalogue, "org/name")
        .arguments
        .contains(&"--context=5".to_string()));
}

#[test]
fn variables_about_the_server_are_kept_from_models() {
    let table = OptionTable::of::<Tester>();
    let hidden: Vec<&str> = table
        .variables_of_server()
        .filter_map(|name| name.to_str())
        .collect();
    for name in [
        "PORT",
        "LLORCH_API_TOKEN",
        "QUEEN_URL",
        "WORKER_ID",
        "TESTER_OF_FLEETS_MODELS",
        "TESTER_OF_FLEETS_MODEL_REF",
    ] {
        assert!(hidden.contains(&name), "{name} in {hidden:?}");
    }
    for name in [
        "TESTER_OF_FLEETS_CONTEXT",
        "WORKER_MAX_BODY_BYTES",
        "ROCM_DEVICE",
    ] {
        assert!(!hidden.contains(&name), "{name}");
    }
}
