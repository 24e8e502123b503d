//! Scores of tiny rerankers against those of Hugging Face transformers, as a library, by command and over HTTP.

use super::common;
use super::device;
use super::embedding::{gguf, BERT, QWEN3};
use super::transformers::{tokens, tolerance, Case};
use axum::body::{to_bytes, Body};
use axum::http::Request;
use clap::Parser;
use llm_worker_rocm::embedding::{EmbeddingModel, Reranker, Score};
use llm_worker_rocm::engine::SamplingOptions;
use llm_worker_rocm::server::{App, AppOptions, Loaded, MetricNames};
use llm_worker_rocm::tokenizer::Pair;
use serde_json::{json, Value as Json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tower::ServiceExt;
use worker::http::ListenOptions;
use worker::serve::{router, DeviceInfo, Identity};

/// Compares all scores of a case, each pair alone and all together.
fn compare(case: &Case, path: &Path) {
    assert!(Reranker::recognises(path));
    assert!(!EmbeddingModel::recognises(path));
    let model = Reranker::open(path, &device()).unwrap();
    let rows: Vec<(usize, usize, [f32; 1])> =
        serde_json::from_value(case.json["rows"].clone()).unwrap();
    let pair = |(first, count, _): &(usize, usize, [f32; 1])| Pair {
        ids: tokens()[..*count].to_vec(),
        types: (0..*count).map(|i| u32::from(i >= *first)).collect(),
    };
    let pairs: Vec<Pair> = rows.iter().map(pair).collect();
    let together = model.score_pairs(&pairs).unwrap();
    let alone = pairs
        .iter()
        .flat_map(|pair| model.score_pairs(std::slice::from_ref(pair)).unwrap());
    for (found, (_, count, [want])) in together.into_iter().chain(alone).zip(rows.iter().cycle()) {
        assert_eq!(found.tokens, *count);
        let error = (found.relevance - want).abs();
        assert!(
            error <= tolerance(),
            "{}: {found:?} for {want}",
            path.display()
        );
    }
}

/// Puts `[CLS]` and `[SEP]`, here `<s>` and `</s>`, around texts.
fn framing(folder: &Path) {
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let special = |text: &str, kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
    let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [special("<s>", 0), text("A", 0), special("</s>", 0)],
        "pair": [special("<s>", 0), text("A", 0), special("</s>", 0), text("B", 1), special("</s>", 1)],
        "special_tokens": {
            "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
        },
    });
    std::fs::write(path, tokenizer.to_string()).unwrap();
}

#[test]
fn cross_encoders_score_as_transformers_does() {
    for name in ["bert-ranker", "xlm-roberta-ranker", "modernbert-ranker"] {
        let case = Case::read(name);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        compare(&case, folder.path());
    }
    let mut case = Case::read("bert-ranker");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bert.gguf");
    let head = [
        ("bert.pooler.dense", "cls"),
        ("bert.", ""),
        ("classifier", "cls.output"),
    ];
    let parts: Vec<(&str, &str)> = head.into_iter().chain(BERT).collect();
    let mut file = gguf(&case, "bert", &parts);
    file.set("bert.attention.layer_norm_epsilon", common::f32(1e-5))
        .set("bert.pooling_type", common::u32(4))
        .write(&path);
    compare(&case, &path);
    case.json["config"]["id2label"] = json!({"0": "no", "1": "yes"});
    case.write(folder.path());
    let error = Reranker::open(folder.path(), &device()).err().unwrap();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("2 labels"), "{error}");
}

#[test]
fn texts_become_pairs_that_fit() {
    let case = Case::read("bert-ranker");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    framing(folder.path());
    let model = Reranker::open(folder.path(), &device()).unwrap();
    // The letters are tokens 4 to 29.
    let pair = |document: std::ops::Range<u32>| {
        let ids = [vec![1, 4, 5, 2], document.clone().collect(), vec![2]].concat();
        let types = [vec![0; 4], vec![1; document.len() + 1]].concat();
        Pair { ids, types }
    };
    let by_text = model.score("ab", &["cde", "fg"]).unwrap();
    let by_tokens = model.score_pairs(&[pair(6..9), pair(9..11)]).unwrap();
    let near =
        |a: &Score, b: &Score| (a.relevance - b.relevance).abs() < 1e-6 && a.tokens == b.tokens;
    assert!(
        by_text.iter().zip(&by_tokens).all(|(a, b)| near(a, b)),
        "{by_text:?} {by_tokens:?}"
    );
    // What is too long is cut behind the document, whose end mark stays.
    let long = model.score("ab", &["c".repeat(500)]).unwrap();
    let cut = Pair {
        ids: [vec![1, 4, 5, 2], vec![6; 123], vec![2]].concat(),
        types: [vec![0; 4], vec![1; 124]].concat(),
    };
    assert!(near(&long[0], &model.score_pairs(&[cut]).unwrap()[0]));
    let error = model.score(&"a".repeat(200), &["b"]).unwrap_err();
    assert!(error.to_string().contains("left for documents"), "{error}");
}

#[test]
fn a_decoder_says_yes_or_no() {
    let mut case = Case::read("qwen3");
    // The prompt is long in this vocabulary.
    case.json["config"]["max_position_embeddings"] = json!(1024);
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    assert!(!Reranker::recognises(folder.path()));
    let error = Reranker::open(folder.path(), &device()).err().unwrap();
    assert!(
        error.to_string().contains("\"yes\" is not one token"),
        "{error}"
    );
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (id, text) in [(30, "yes"), (31, "no")] {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        added.push(json!({"id": id, "content": text, "special": false,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
    }
    std::fs::write(path, tokenizer.to_string()).unwrap();
    let rows: Vec<(usize, Vec<f32>)> = serde_json::from_value(case.json["rows"].clone()).unwrap();
    let pairs = rows.iter().map(|(row, _)| Pair {
        ids: tokens()[..=*row].to_vec(),
        types: vec![0; *row + 1],
    });
    let pairs: Vec<Pair> = pairs.collect();
    let check = |path: &Path| {
        let model = Reranker::open(path, &device()).unwrap();
        let scores = model.score_pairs(&pairs).unwrap();
        for (score, (_, logits)) in scores.iter().zip(&rows) {
            let want = 1.0 / (1.0 + (logits[31] - logits[30]).exp());
            assert!(
                (score.relevance - want).abs() <= tolerance(),
                "{score:?} for {want}"
            );
        }
        model
    };
    // Most of the prompt's own words are not in this vocabulary.
    let model = check(folder.path());
    let scored = model.score("a", &["b", "bcd"]).unwrap();
    // The same form as a cross-encoder's.
    let loaded = Loaded {
        reranker: Some(Arc::new(model)),
        ..Loaded::default()
    };
    let body = json!({"query": "a", "documents": ["b", "bcd"]});
    let (status, answer) = post(serving(loaded), "/v2/rerank", body);
    assert_eq!(status, 200, "{answer}");
    for result in answer["results"].as_array().unwrap() {
        let want = scored[result["index"].as_u64().unwrap() as usize].relevance;
        assert!((result["relevance_score"].as_f64().unwrap() as f32 - want).abs() < 1e-6);
    }
    assert_eq!(scored[1].tokens, scored[0].tokens + 2);

    // As llama.cpp writes it: the rows of both words apart, the way of pooling, and the prompt.
    let parts: Vec<(&str, &str)> = std::iter::once(("model.", "")).chain(QWEN3).collect();
    let mut file = gguf(&case, "qwen3", &parts);
    let mut answers = Vec::new();
    for tensor in &mut file.tensors {
        match tensor.name.as_str() {
            "norm.weight" => tensor.name = "output_norm.weight".to_string(),
            "token_embd.weight" => answers = tensor.data[30 * 64 * 4..32 * 64 * 4].to_vec(),
            _ => {}
        }
    }
    file.tensors.push(common::Tensor {
        name: "cls.output.weight".to_string(),
        dims: vec![64, 2],
        type_code: 0,
        offset: None,
        data: answers,
    });
    for (key, value) in [
        ("embedding_length", 64),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("pooling_type", 4),
    ] {
        file.set(&format!("qwen3.{key}"), common::u32(value));
    }
    let template = "tokenizer.chat_template.rerank";
    file.set("qwen3.attention.layer_norm_rms_epsilon", common::f32(1e-5))
        .set("qwen3.rope.freq_base", common::f32(10_000.0))
        .set(template, common::string("{query} {document}"));
    let path = folder.path().join("model.gguf");
    file.write(&path);
    assert!(Reranker::recognises(&path));
    assert!(!EmbeddingModel::recognises(&path));
    check(&path);
    file.set(template, common::string("{document}"))
        .write(&path);
    let error = Reranker::open(&path, &device()).err().unwrap();
    assert!(error.to_string().contains("{query}"), "{error}");
    file.set("qwen3.pooling_type", common::u32(3)).write(&path);
    let error = Reranker::open(&path, &device()).err().unwrap();
    assert!(error.to_string().contains("pooling_type"), "{error}");
}

#[test]
fn the_command_and_the_route_give_the_best_first() {
    let case = Case::read("bert-ranker");
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    framing(folder.path());
    let model = Reranker::open(folder.path(), &device()).unwrap();
    let documents = ["cde", "fgh", "xyz"];
    let scores = model.score("ab", &documents).unwrap();
    let mut order = vec![0, 1, 2];
    order.sort_by(|&a: &usize, &b| scores[b].relevance.total_cmp(&scores[a].relevance));

    let list = folder.path().join("documents.txt");
    std::fs::write(&list, documents.join("\n")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
        .args([
            "rerank", "--json", "--lines", "--top-n", "2", "--device", "cpu", "--model",
        ])
        .args([folder.path().as_os_str(), "ab".as_ref(), list.as_os_str()])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed: Json = serde_json::from_slice(&output.stdout).unwrap();
    let indices: Vec<u64> = (printed["results"].as_array().unwrap().iter())
        .map(|result| result["index"].as_u64().unwrap())
        .collect();
    assert_eq!(
        indices,
        order[..2].iter().map(|i| *i as u64).collect::<Vec<_>>()
    );
    let name = printed["results"][0]["document"].as_str().unwrap();
    assert!(
        name.ends_with(&format!("documents.txt:{}", order[0] + 1)),
        "{name}"
    );

    let send = |path: &str, body: Json| {
        post(
            serving(Loaded {
                reranker: Some(Arc::new(Reranker::open(folder.path(), &device()).unwrap())),
                ..Loaded::default()
            }),
            path,
            body,
        )
    };
    let body = json!({"query": "ab", "documents": ["cde", {"text": "fgh"}, "xyz"], "return_documents": true});
    let (status, answer) = send("/v1/rerank", body);
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, index) in results.iter().zip(&order) {
        assert_eq!(result["index"], *index);
        assert_eq!(result["document"]["text"], documents[*index]);
        let found = result["relevance_score"].as_f64().unwrap() as f32;
        assert!((found - scores[*index].relevance).abs() < 1e-6);
    }
    assert_eq!(
        answer["usage"]["total_tokens"],
        scores.iter().map(|s| s.tokens).sum::<usize>()
    );
    let (status, answer) = send(
        "/rerank",
        json!({"query": "ab", "documents": ["x", "y"], "top_n": 1}),
    );
    assert_eq!(
        (status, answer["results"].as_array().map(Vec::len)),
        (200, Some(1))
    );
    assert!(answer["results"][0].get("document").is_none());
    assert_eq!(answer["meta"]["billed_units"]["search_units"], 1);
    // In the form of text-embeddings-inference.
    let texts = json!({"query": "ab", "texts": documents, "top_n": 2, "return_text": true});
    let (status, answer) = send("/reranking", texts);
    assert_eq!(status, 200, "{answer}");
    let results = answer.as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0]["index"], order[0]);
    assert_eq!(results[0]["text"], documents[order[0]]);
    let found = results[0]["score"].as_f64().unwrap() as f32;
    assert!((found - scores[order[0]].relevance).abs() < 1e-6);
    let of_best = (json!(order[0]), scores[order[0]].relevance);
    let near = |found: &Json, want: f32| (found.as_f64().unwrap() as f32 - want).abs() < 1e-6;
    // Cohere's newer form, and vLLM's.
    let body = json!({"query": "ab", "documents": documents, "top_n": 1});
    let (status, answer) = send("/v2/rerank", body);
    let result = &answer["results"][0];
    assert_eq!((status, &result["index"]), (200, &of_best.0));
    assert!(near(&result["relevance_score"], of_best.1));
    assert_eq!(answer["meta"]["api_version"]["version"], "2");
    let body = json!({"text_1": "ab", "text_2": documents});
    let (status, answer) = send("/v1/score", body);
    assert_eq!(status, 200);
    for (score, found) in scores.iter().zip(answer["data"].as_array().unwrap()) {
        assert!(near(&found["score"], score.relevance));
    }
    for (path, body, param) in [
        (
            "/rerank",
            json!({"query": "ab", "texts": ["x"], "raw_scores": true}),
            "raw_scores",
        ),
        ("/rerank", json!({"query": "ab"}), "documents"),
        (
            "/rerank",
            json!({"query": "ab", "documents": ["x"], "top_n": 0}),
            "top_n",
        ),
        (
            "/rerank",
            json!({"query": "ab", "documents": ["x"], "rank_fields": ["a"]}),
            "rank_fields",
        ),
        (
            "/v1/score",
            json!({"text_1": "ab", "text_2": [1, 2]}),
            "text_2",
        ),
    ] {
        let (status, answer) = send(path, body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)));
    }
    let body = json!({"query": "ab", "documents": ["x"], "max_tokens_per_doc": 5});
    let (status, answer) = send("/v2/rerank", body);
    assert_eq!(status, 400);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("max_tokens_per_doc"),
        "{answer}"
    );

    let (status, answer) = send("/rerank", json!({"query": "ab", "documents": []}));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("documents"))
    );
    let (status, answer) = post(
        serving(Loaded::default()),
        "/rerank",
        json!({"query": "a", "documents": ["x"]}),
    );
    assert_eq!(status, 400);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--rerank-model"),
        "{answer}"
    );
}

fn serving(loaded: Loaded) -> Arc<App> {
    let identity = Identity {
        worker_id: "worker-1".to_string(),
        port: 8080,
        device: DeviceInfo {
            name: "cpu".to_string(),
            description: "CPU".to_string(),
            fallback: None,
        },
        ..Identity::default()
    };
    let options = AppOptions {
        model: "ranker".to_string(),
        aliases: Vec::new(),
        any_model: false,
        verbose: false,
        sampling: SamplingOptions::greedy(),
        seed: None,
        max_tokens: None,
        slots: true,
        page: true,
        timeout: None,
        metric_names: MetricNames::Ours,
    };
    let app = App::new(identity, options);
    app.frame.serve(loaded);
    app
}

/// Status and body of the answer to a request.
fn post(app: Arc<App>, path: &str, body: Json) -> (u16, Json) {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        listen: ListenOptions,
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        let router = router(app, &Cli::parse_from(["serve"]).listen).unwrap();
        let response = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap())
    })
}
