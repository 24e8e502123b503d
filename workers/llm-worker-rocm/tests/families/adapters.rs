//! Adapters of a tiny model, PEFT folders and GGUF files, against the logits of PEFT; several in a step, and each request
//! with its own.

use super::common::{self, File, Tensor as FileTensor};
use super::transformers::{tokens, tolerance, weight, Case};
use super::{device, load_file};
use llm_worker_rocm::adapters::AdapterSource;
use llm_worker_rocm::engine::api::{AdapterUse, Event, GraphUse, Request, SamplingOptions};
use llm_worker_rocm::engine::forward::{
    CacheOptions, DecodeOutput, Forward, Step, StepSequence, StepState,
};
use llm_worker_rocm::engine::{Engine, EngineOptions};
use llm_worker_rocm::model::{LoadOptions, LoadedModel, ModelFile};
use serde_json::{json, Value as Json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const NAMES: [&str; 2] = ["first", "second"];

/// An adapter's tensors by their names in PEFT: shape and float32.
fn tensors(case: &Case, adapter: &str) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let shapes = case.json["adapters"][adapter]["tensors"]
        .as_object()
        .unwrap();
    let made = |(name, shape): (&String, &Json)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        let data = weight(&format!("{adapter} {name}"), &shape, 1.0);
        (name.clone(), shape, data)
    };
    shapes.iter().map(made).collect()
}

/// Writes an adapter as PEFT does.
fn write_folder(case: &Case, adapter: &str, path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    let tensors = tensors(case, adapter);
    let views = tensors.iter().map(|(name, shape, data)| {
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), data);
        (name, view.unwrap())
    });
    let file = path.join("adapter_model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let config = &case.json["adapters"][adapter]["config"];
    std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
}

/// Rows of each head from halves to neighbours, as llama.cpp's converter turns those of queries and keys.
fn neighbours(data: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row, half) = (data.len() / rows, rows / heads / 2);
    let from = (0..heads).flat_map(|head| {
        (0..half).flat_map(move |pair| [0, half].map(|part| head * 2 * half + part + pair))
    });
    from.flat_map(|from| data[from * row..(from + 1) * row].to_vec())
        .collect()
}

/// A matrix of f32 with so many rows, the other way round.
fn transposed(data: &[u8], rows: usize) -> Vec<u8> {
    let columns = data.len() / 4 / rows;
    let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    places
        .flat_map(|place| data[4 * place..4 * place + 4].to_vec())
        .collect()
}

/// The adapter as llama.cpp's converter writes it, of one without rank stabilisation.
fn write_gguf(case: &Case, adapter: &str, path: &Path) -> File {
    let mut file = File::default();
    let alpha = case.json["adapters"][adapter]["config"]["lora_alpha"]
        .as_f64()
        .unwrap();
    file.set("general.type", common::string("adapter"))
        .set("general.architecture", common::string("llama"))
        .set("adapter.type", common::string("lora"))
        .set("adapter.lora.alpha", common::f32(alpha as f32));
    for (name, shape, data) in tensors(case, adapter) {
        let parts = [
            ("base_model.model.model.layers", "blk"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("base_model.model.model.embed_tokens", "token_embd"),
            ("base_model.model.lm_head", "output"),
            (".lora_embedding_A", ".weight.lora_a"),
            (".lora_embedding_B", ".weight.lora_b"),
            (".lora_A.weight", ".weight.lora_a"),
            (".lora_B.weight", ".weight.lora_b"),
        ];
        let name = (parts.iter()).fold(name, |name, (from, to)| name.replace(from, to));
        let (data, shape) = match name.as_str() {
            // A row for each token.
            "token_embd.weight.lora_a" => (transposed(&data, shape[0]), vec![shape[1], shape[0]]),
            name if name.ends_with("attn_q.weight.lora_b") => {
                (neighbours(&data, shape[0], 4), shape)
            }
            _ => (data, shape),
        };
        file.tensors.push(FileTensor {
            name,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            type_code: 0,
            offset: None,
            data,
        });
    }
    file.write(path);
    file
}

pub(super) struct Folder {
    case: Case,
    folder: tempfile::TempDir,
}

impl Folder {
    /// The base model with both adapters beside it.
    pub(super) fn new() -> Self {
        Self::of("llama-lora", NAMES)
    }

    /// The same of another case.
    pub(super) fn of(name: &str, adapters: [&str; 2]) -> Self {
        let case = Case::read(name);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        for name in adapters {
            write_folder(&case, name, &folder.path().join(name));
        }
        Self { case, folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the model is.
    pub(super) fn model(&self) -> &Path {
        self.folder.path()
    }

    fn try_load(&self, adapters: &[PathBuf]) -> worker::Result<LoadedModel> {
        let options = LoadOptions {
            adapters: adapters.iter().map(|path| source(path)).collect(),
            ..LoadOptions::default()
        };
        load_file(ModelFile::open(self.folder.path()).unwrap(), &options)
    }

    pub(super) fn load(&self, adapters: &[PathBuf]) -> LoadedModel {
        self.try_load(adapters).unwrap()
    }

    /// How far rows are from PEFT's with these adapters, from transformers' with none.
    pub(super) fn difference(&self, chosen: &str, rows: &[Vec<f32>]) -> f32 {
        let mut case = Case::read("llama");
        if !chosen.is_empty() {
            case.json["rows"] = self.case.json["rows"][chosen].clone();
        }
        case.difference_of(rows)
    }
}

pub(super) fn wish(adapter: usize, scale: f32) -> AdapterUse {
    AdapterUse { adapter, scale }
}

/// An adapter under its file's name.
pub(super) fn source(path: &Path) -> AdapterSource {
    AdapterSource {
        name: path.file_name().unwrap().to_string_lossy().into_owned(),
        path: path.to_path_buf(),
        scale: 1.0,
    }
}

/// Each choice of adapters, and what PEFT calls it.
pub(super) fn choices() -> [(&'static str, Arc<[AdapterUse]>); 4] {
    [
        ("", Arc::from([])),
        ("first", Arc::from([wish(0, 1.0)])),
        ("second", Arc::from([wish(1, 1.0), wish(0, 0.0)])),
        ("first+second", Arc::from([wish(0, 1.0), wish(1, 1.0)])),
    ]
}

pub(super) fn reserve(forward: &mut dyn Forward) {
    let cache = CacheOptions {
        blocks: 8,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 4,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
}

pub(super) fn sequence(id: u32, keys: usize, rows: usize) -> StepSequence {
    StepSequence {
        id: id.into(),
        blocks: vec![2 * id, 2 * id + 1],
        keys,
        rows,
        state: Some(StepState {
            from: (keys > rows).then_some(id),
            after: vec![id],
        }),
        ..StepSequence::default()
    }
}

/// Four sequences of the same tokens, each with other adapters, all of them in each step.
#[test]
fn sequences_of_a_step_have_adapters_of_their_own() {
    let folder = Folder::new();
    let mut forward = folder.load(&NAMES.map(|name| folder.path(name))).forward;
    assert_eq!(forward.adapters(), 2);
    reserve(&mut *forward);
    let uses = choices().map(|(_, uses)| uses);
    let all = tokens();
    let half = all.len() / 2;
    // A prompt at once.
    let step = Step {
        tokens: [&all[..half]; 4].concat(),
        sequences: (0..4).map(|id| sequence(id, half, half)).collect(),
        outputs: (0..4 * half as u32).collect(),
    };
    forward.use_adapters(&step, &uses).unwrap();
    let logits = forward.forward(&step).unwrap().to_vec2::<f32>().unwrap();
    let mut rows: Vec<Vec<Vec<f32>>> = logits.chunks(half).map(<[_]>::to_vec).collect();
    // The rest token by token.
    forward.set_graphs(GraphUse::On);
    for (i, token) in all.iter().enumerate().skip(half) {
        let step = Step {
            tokens: vec![*token; 4],
            sequences: (0..4).map(|id| sequence(id, i + 1, 1)).collect(),
            outputs: (0..4).collect(),
        };
        forward.use_adapters(&step, &uses).unwrap();
        let decoded = forward.decode(&step, None).unwrap();
        assert_eq!(decoded.graph, device().is_rocm() && i > half);
        let DecodeOutput::Logits(logits, _) = decoded.output else {
            panic!("tokens that nobody asked for")
        };
        for (rows, logits) in rows.iter_mut().zip(logits.to_vec2::<f32>().unwrap()) {
            rows.push(logits);
        }
    }
    for ((chosen, _), rows) in choices().iter().zip(&rows) {
        let difference = folder.difference(chosen, rows);
        println!("{chosen}: {difference:.1e}");
        assert!(difference <= tolerance(), "{chosen}: {difference:e}");
    }
    // They are different, indeed.
    assert!(folder.difference("first", &rows[2]) > 0.1);

    // Without adapters steps are graphs again.
    let mut graphs = 0;
    for (i, token) in all.iter().take(3).enumerate() {
        let step = Step {
            tokens: vec![*token],
            sequences: vec![sequence(0, i + 1, 1)],
            outputs: vec![0],
        };
        forward.use_adapters(&step, &uses[..1]).unwrap();
        graphs += usize::from(forward.decode(&step, None).unwrap().graph);
    }
    assert_eq!(graphs, if device().is_rocm() { 2 } else { 0 });
    let step = Step {
        tokens: vec![3],
        sequences: vec![sequence(0, 1, 1)],
        outputs: vec![0],
    };
    let error = forward
        .use_adapters(&step, &[Arc::from([wish(2, 1.0)])])
        .unwrap_err();
    assert!(error.to_string().contains("adapter 2 of 2"), "{error}");
}

#[test]
fn adapters_come_from_gguf_files_too() {
    let folder = Folder::new();
    let path = folder.path("first.gguf");
    let mut file = write_gguf(&folder.case, "first", &path);
    let mut forward = folder.load(std::slice::from_ref(&path)).forward;
    reserve(&mut *forward);
    let all = tokens();
    let step = Step {
        tokens: all.clone(),
        sequences: vec![sequence(0, all.len(), all.len())],
        outputs: (0..all.len() as u32).collect(),
    };
    forward
        .use_adapters(&step, &[Arc::from([wish(0, 1.0)])])
        .unwrap();
    let rows = forward.forward(&step).unwrap().to_vec2::<f32>().unwrap();
    let difference = folder.difference("first", &rows);
    assert!(difference <= tolerance(), "{difference:e}");
    // Half of it is neither all nor nothing.
    forward
        .use_adapters(&step, &[Arc::from([wish(0, 0.5)])])
        .unwrap();
    let rows = forward.forward(&step).unwrap().to_vec2::<f32>().unwrap();
    assert!(folder.difference("first", &rows) > 0.01 && folder.difference("", &rows) > 0.01);

    let refusal = |path: &Path| {
        let error = folder
            .try_load(&[path.to_path_buf()])
            .err()
            .expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    file.set("general.architecture", common::string("qwen2"))
        .write(&path);
    assert!(refusal(&path).contains("qwen2"));
    file.set("general.architecture", common::string("llama"))
        .set("adapter.type", common::string("other"))
        .write(&path);
    assert!(refusal(&path).contains("adapter.type"));
    file.set("adapter.type", common::string("lora"));
    // The first two are a pair.
    for (tensor, half) in file.tensors.iter_mut().zip(["a", "b"]) {
        tensor.name = format!("token_embd.weight.lora_{half}");
    }
    file.write(&path);
    assert!(refusal(&path).contains("token_embd"));
    file.tensors.truncate(1);
    file.write(&path);
    assert!(refusal(&path).contains("one of its two"));
}

#[test]
fn what_peft_asks_for_and_is_not_there_is_refused_by_name() {
    let folder = Folder::new();
    let path = folder.path("first");
    let refusal = || {
        folder
            .try_load(std::slice::from_ref(&path))
            .err()
            .unwrap()
            .to_string()
    };
    let config = &folder.case.json["adapters"]["first"]["config"];
    let write = |config: &Json| {
        std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    };
    for (key, value) in [
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("peft_type", json!("LOHA")),
    ] {
        let mut config = config.clone();
        config[key] = value;
        write(&config);
        assert!(refusal().contains(key));
    }
    write(config);
    // No matrix of the model.
    let a = [0u8; 4 * 64 * 4];
    let b = [0u8; 40 * 4 * 4];
    let dtype = safetensors::Dtype::F32;
    let views = [
        (
            "A",
            safetensors::tensor::TensorView::new(dtype, vec![4, 64], &a).unwrap(),
        ),
        (
            "B",
            safetensors::tensor::TensorView::new(dtype, vec![40, 4], &b).unwrap(),
        ),
    ];
    let views =
        views.map(|(half, view)| (format!("base_model.model.score.lora_{half}.weight"), view));
    safetensors::serialize_to_file(views, None, &path.join("adapter_model.safetensors")).unwrap();
    let refusal = refusal();
    assert!(refusal.contains("score.lora_"), "{refusal}");
}

/// Through the engine: the answers differ, and no request takes keys and values of another one's adapters.
#[test]
fn requests_choose_and_share_nothing_with_others() {
    let folder = Folder::new();
    let options = EngineOptions {
        block_size: 4,
        kv_blocks: Some(64),
        ..EngineOptions::default()
    };
    let model = folder.load(&NAMES.map(|name| folder.path(name)));
    let engine = Engine::start(model, &options).unwrap();
    let ask = |adapters: &Arc<[AdapterUse]>| {
        let mut request = Request::new(tokens()[..12].to_vec(), SamplingOptions::greedy());
        request.max_tokens = Some(8);
        request.ignore_end = true;
        request.adapters = adapters.clone();
        engine.submit(request).unwrap()
    };
    let finish = |mut ticket: llm_worker_rocm::engine::api::Ticket| {
        let mut answer = Vec::new();
        loop {
            match ticket.events.blocking_recv() {
                Some(Event::Token { token, .. }) => answer.push(token.token),
                Some(Event::Finished(summary)) => return (answer, summary.cached_tokens),
                Some(Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let alone: Vec<(Vec<u32>, usize)> = choices()
        .iter()
        .map(|(_, uses)| finish(ask(uses)))
        .collect();
    for (i, (answer, cached)) in alone.iter().enumerate() {
        assert_eq!(*cached, 0);
        assert!(
            alone[..i].iter().all(|(other, _)| other != answer),
            "{alone:?}"
        );
    }
    // All at once: the same answers, and each finds its own beginning.
    let tickets = choices().map(|(_, uses)| ask(&uses));
    for (ticket, (answer, _)) in tickets.into_iter().zip(&alone) {
        let (found, cached) = finish(ticket);
        assert_eq!((&found, cached), (answer, 8));
    }
    let mut request = Request::new(tokens(), SamplingOptions::greedy());
    request.adapters = Arc::from([wish(2, 1.0)]);
    let error = engine.submit(request).err().unwrap();
    assert!(error.to_string().contains("no adapter 2"), "{error}");
}

/// Adapters of the table of embeddings and the output matrix, in prompts whose last rows have logits, and in steps.
#[test]
fn a_models_ends_have_adapters() {
    let names = ["ends", "table"];
    let folder = Folder::of("llama-lora-ends", names);
    for name in names {
        write_gguf(&folder.case, name, &folder.path(&format!("{name}.gguf")));
    }
    let files = names.map(|name| folder.path(&format!("{name}.gguf")));
    let choices: [(&str, Arc<[AdapterUse]>); 3] = [
        ("ends", Arc::from([wish(0, 1.0)])),
        ("table", Arc::from([wish(1, 1.0)])),
        ("ends+table", Arc::from([wish(1, 1.0), wish(0, 1.0)])),
    ];
    let uses = choices.clone().map(|(_, uses)| uses);
    for adapters in [names.map(|name| folder.path(name)), files] {
        let mut forward = folder.load(&adapters).forward;
        reserve(&mut *forward);
        forward.set_graphs(GraphUse::On);
        let all = tokens();
        let before = all.len() - 4;
        let mut rows = vec![vec![Vec::new(); before - 1]; 3];
        let step = Step {
            tokens: [&all[..before]; 3].concat(),
            sequences: (0..3).map(|id| sequence(id, before, before)).collect(),
            outputs: (1..=3).map(|id| (id * before) as u32 - 1).collect(),
        };
        forward.use_adapters(&step, &uses).unwrap();
        let logits = forward.forward(&step).unwrap().to_vec2::<f32>().unwrap();
        for (rows, logits) in rows.iter_mut().zip(logits) {
            rows.push(logits);
        }
        for (i, token) in all.iter().enumerate().skip(before) {
            let step = Step {
                tokens: vec![*token; 3],
                sequences: (0..3).map(|id| sequence(id, i + 1, 1)).collect(),
                outputs: (0..3).collect(),
            };
            forward.use_adapters(&step, &uses).unwrap();
            let decoded = forward.decode(&step, None).unwrap();
            assert_eq!(decoded.graph, device().is_rocm() && i > before);
            let DecodeOutput::Logits(logits, _) = decoded.output else {
                panic!("tokens that nobody asked for")
            };
            for (rows, logits) in rows.iter_mut().zip(logits.to_vec2::<f32>().unwrap()) {
                rows.push(logits);
            }
        }
        for ((chosen, _), rows) in choices.iter().zip(&rows) {
            let mut case = Case::read("llama-lora-ends");
            let known = case.json["rows"][chosen].as_array().unwrap().clone();
            let known = known.into_iter();
            let known = known.filter(|row| row[0].as_u64().unwrap() as usize >= before - 1);
            case.json["rows"] = known.collect();
            assert!(!case.json["rows"].as_array().unwrap().is_empty());
            let difference = case.difference_of(rows);
            println!("{chosen}: {difference:.1e}");
            assert!(difference <= tolerance(), "{chosen}: {difference:e}");
        }
    }
}
