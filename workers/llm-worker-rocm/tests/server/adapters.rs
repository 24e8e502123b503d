//! Adapters by the field `lora` and by names, against scripts.

use crate::client::{app, text_model, Server};
use crate::script::{Play, Script};
use llm_worker_rocm::adapters::AdapterSource;
use llm_worker_rocm::server::Loaded;
use serde_json::{json, Value};
use std::sync::Arc;

/// A server whose model has two adapters.
fn server(answers: usize) -> Server {
    let script = Arc::new(Script::new((0..answers).map(|_| Play::Say("Hello."))));
    let mut text = text_model(script.clone());
    for source in ["german=a.gguf", "team/french=folder:0.5"] {
        text.adapters.push(source.parse::<AdapterSource>().unwrap());
    }
    let app = app();
    app.frame.serve(Loaded {
        text: Some(Arc::new(text)),
        ..Loaded::default()
    });
    Server::around(app, script, &[])
}

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn requests_choose_adapters() {
    let both = json!([{"id": 1, "scale": 2.0}, {"id": 0, "scale": -1.0}]);
    let wishes = [
        (json!({}), vec![]),
        (json!({"model": "alias"}), vec![]),
        (json!({"model": "german"}), vec![(0, 1.0)]),
        (json!({"model": "team/french"}), vec![(1, 0.5)]),
        (json!({"model": "org/model:team/french"}), vec![(1, 0.5)]),
        (json!({"model": "alias:german"}), vec![(0, 1.0)]),
        (json!({"lora": both}), vec![(1, 2.0), (0, -1.0)]),
        // A list counts for more than a name; a part of none is none.
        (json!({"model": "german", "lora": []}), vec![]),
        (json!({"lora": [{"id": 0, "scale": 0.0}]}), vec![]),
    ];
    let server = server(wishes.len());
    for (fields, _) in &wishes {
        server
            .post("/v1/chat/completions", &chat(fields.clone()))
            .await
            .json();
    }
    let seen = server.script.seen.lock().unwrap();
    for (seen, (fields, wanted)) in seen.iter().zip(&wishes) {
        let found: Vec<(usize, f32)> = (seen.adapters.iter())
            .map(|wish| (wish.adapter, wish.scale))
            .collect();
        assert_eq!(&found, wanted, "{fields}");
    }
}

#[tokio::test]
async fn adapters_are_listed_and_others_refused() {
    let server = server(0);
    let listed = server.get("/lora-adapters").await.json();
    assert_eq!(
        listed[1],
        json!({"id": 1, "name": "team/french", "path": "folder", "scale": 0.5})
    );
    let models = server.get("/v1/models").await.json();
    assert_eq!(models["data"].as_array().unwrap().len(), 3);
    assert_eq!(models["data"][1]["id"], "german");
    assert_eq!(models["data"][1]["parent"], "org/model");
    let one = server.get("/v1/models/team/french").await.json();
    assert_eq!(one["parent"], "org/model");
    let path = "/v1/chat/completions";
    let (status, _, message) = server
        .post(path, &chat(json!({"lora": [{"id": 2, "scale": 1.0}]})))
        .await
        .error();
    assert_eq!(status, 400);
    assert!(message.contains("no adapter 2"), "{message}");
    let unknown = server
        .post(path, &chat(json!({"model": "org/model:dutch"})))
        .await;
    assert_eq!(unknown.error().0, 404);
}

/// As llama.cpp's server: for requests that choose none, until others are set.
#[tokio::test]
async fn scales_are_set_for_all() {
    let server = server(5);
    let path = "/v1/chat/completions";
    server.post(path, &chat(json!({}))).await.json();
    let set = json!([{"id": 1, "scale": 0.25}]);
    let answer = server.post("/lora-adapters", &set).await.json();
    assert_eq!(
        (&answer[0]["scale"], &answer[1]["scale"]),
        (&json!(0.0), &json!(0.25))
    );
    assert_eq!(server.get("/lora-adapters").await.json(), answer);
    server.post(path, &chat(json!({}))).await.json();
    server
        .post(path, &chat(json!({"model": "german"})))
        .await
        .json();
    server.post(path, &chat(json!({"lora": []}))).await.json();
    let wrong = server
        .post("/lora-adapters", &json!([{"id": 2, "scale": 1.0}]))
        .await;
    assert_eq!(wrong.error().0, 400);
    server.post("/lora-adapters", &json!([])).await.json();
    server.post(path, &chat(json!({}))).await.json();
    let seen = server.script.seen.lock().unwrap();
    let found: Vec<Vec<(usize, f32)>> = (seen.iter())
        .map(|seen| {
            seen.adapters
                .iter()
                .map(|wish| (wish.adapter, wish.scale))
                .collect()
        })
        .collect();
    assert_eq!(
        found,
        [vec![], vec![(1, 0.25)], vec![(0, 1.0)], vec![], vec![]]
    );
}
