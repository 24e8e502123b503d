//! Shards behind the engine: prefixes, requests at once, guesses, adapters.

use super::super::adapters::{choices, reserve, sequence, source, Folder, NAMES};
use super::super::transformers::{tokens as case_tokens, tolerance};
use super::*;
use llm_worker_rocm::engine::api::{
    DraftSource, Event, Request, SamplingOptions, SpeculationOptions, Ticket,
};
use llm_worker_rocm::engine::{Engine, EngineOptions};

/// The tokens of an answer, and how many of its prompt's were there.
fn finish(mut ticket: Ticket) -> (Vec<u32>, usize) {
    let mut answer = Vec::new();
    loop {
        match ticket.events.blocking_recv() {
            Some(Event::Token { token, .. }) => answer.push(token.token),
            Some(Event::Finished(summary)) => return (answer, summary.cached_tokens),
            Some(Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Answers to prompts, the first alone and the others, which begin like it, at once.
fn answers(model: LoadedModel, speculation: SpeculationOptions) -> Vec<(Vec<u32>, usize)> {
    let options = EngineOptions {
        block_size: 4,
        kv_blocks: Some(96),
        states: Some(16),
        state_distance: 8,
        speculation,
        ..EngineOptions::default()
    };
    let engine = Engine::start(model, &options).unwrap();
    let ask = |end: usize| {
        let mut prompt = case_tokens()[..14].to_vec();
        // They part there: what is found does not depend on which of them came first.
        let own = 5 + 9 * end as u32;
        prompt.extend(own..own + end as u32);
        let mut request = Request::new(prompt, SamplingOptions::greedy());
        request.max_tokens = Some(10);
        request.ignore_end = true;
        engine.submit(request).unwrap()
    };
    let mut all = vec![finish(ask(0))];
    let tickets: Vec<Ticket> = (1..4).map(ask).collect();
    all.extend(tickets.into_iter().map(finish));
    all
}

#[test]
fn the_engine_answers_by_shards_as_by_one() {
    let off = SpeculationOptions::default();
    let guesses = |source: DraftSource| SpeculationOptions {
        source,
        max: 3,
        least_probability: 0.0,
        adaptive: false,
        ..SpeculationOptions::default()
    };
    let cases: &[(&str, SpeculationOptions)] = &[
        ("qwen3", off.clone()),
        ("gemma2", off.clone()),
        ("falcon-h1", off),
        ("mixtral", guesses(DraftSource::LookUp)),
        ("glm4-moe-head", guesses(DraftSource::Head)),
        ("qwen3-next-head", guesses(DraftSource::Head)),
    ];
    // On a simulated device one has to do.
    let count = if device().is_cpu() { cases.len() } else { 1 };
    for (name, speculation) in &cases[..count] {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        let head = speculation.source == DraftSource::Head;
        let load = || {
            let options = LoadOptions {
                head,
                ..LoadOptions::default()
            };
            let opened = ModelFile::open(folder.path()).unwrap();
            opened.load(&device(), &options).unwrap()
        };
        let want = answers(load(), speculation.clone());
        let shards = Source {
            head,
            ..Source::of(folder.path())
        };
        let model = LoadedModel {
            forward: Box::new(shards.together(&[1.0; 2])),
            ..load()
        };
        let got = answers(model, speculation.clone());
        println!("{name}: {got:?}");
        assert_eq!(got, want, "{name}");
        assert!(
            got[1..].iter().all(|(_, cached)| *cached > 0),
            "{name}: {got:?}"
        );
    }
}

#[test]
fn adapters_are_divided_with_their_matrices() {
    let all = case_tokens();
    let step = Step {
        tokens: [&all[..]; 4].concat(),
        sequences: (0..4)
            .map(|id| sequence(id, all.len(), all.len()))
            .collect(),
        outputs: (0..4 * all.len() as u32).collect(),
    };
    let folder = Folder::new();
    let shards = Source {
        adapters: NAMES.map(|name| source(&folder.path(name))).to_vec(),
        ..Source::of(folder.model())
    };
    let mut together = shards.together(&[1.0; 2]);
    reserve(&mut together);
    let uses = choices().map(|(_, uses)| uses);
    together.use_adapters(&step, &uses).unwrap();
    let logits = rows(&together.forward(&step).unwrap());
    for ((chosen, _), rows) in choices().iter().zip(logits.chunks(all.len())) {
        let difference = folder.difference(chosen, rows);
        println!("{chosen}: {difference:.1e}");
        assert!(difference <= tolerance(), "{chosen}: {difference:e}");
    }

    // Those of the table of embeddings and of the output matrix, which are one tensor.
    let names = ["ends", "table"];
    let folder = Folder::of("llama-lora-ends", names);
    let paths = names.map(|name| folder.path(name));
    let mut single = folder.load(&paths).forward;
    let shards = Source {
        adapters: paths.iter().map(|path| source(path)).collect(),
        ..Source::of(folder.model())
    };
    let mut together = shards.together(&[1.0; 3]);
    let uses = choices().map(|(_, uses)| uses);
    let logits = |forward: &mut dyn Forward| {
        reserve(forward);
        forward.use_adapters(&step, &uses).unwrap();
        rows(&forward.forward(&step).unwrap())
    };
    let want = logits(&mut *single);
    agree("ends and table", &logits(&mut together), &want);
}
