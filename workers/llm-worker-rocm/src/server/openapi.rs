//! `/openapi.json`: made of the route table and of the types that requests are read into, so that it cannot fall behind.

use super::{native, openai, rbee, Route, PROTECTED, PUBLIC};
use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{json, Map, Value};

/// `GET /openapi.json`
pub(super) async fn document() -> Json<Value> {
    Json(openapi())
}

/// What a path does, and the schema of its body.
fn describe(path: &str, schemas: &mut SchemaGenerator) -> (&'static str, Option<Value>) {
    let mut one = |schema: fn(&mut SchemaGenerator) -> Value| schema(schemas);
    match path {
        "/" => ("The chat page", None),
        "/chat.css" | "/chat.js" | "/markdown.js" | "/marked.js" => {
            ("A part of the chat page", None)
        }
        "/health" => (
            "Whether the worker can do its work; 503 with progress while the model loads",
            None,
        ),
        "/ready" => ("Whether requests are taken", None),
        "/openapi.json" => ("This document", None),
        "/metrics" => ("Figures for Prometheus", None),
        "/props" => ("What the worker is and how it is set", None),
        "/info" => ("The worker as its orchestrator knows it", None),
        "/v1/models" => ("The model, in a list", None),
        "/v1/models/{*id}" => ("The model", None),
        "/v1/chat/completions" => (
            "Answers a chat; streams server-sent events on request",
            Some(
                json!({"allOf": [one(schema::<openai::chat::ChatFields>), one(schema::<openai::SamplingFields>)]}),
            ),
        ),
        "/v1/completions" => (
            "Continues a text; streams server-sent events on request",
            Some(
                json!({"allOf": [one(schema::<openai::text::CompletionFields>), one(schema::<openai::SamplingFields>)]}),
            ),
        ),
        "/v1/embeddings" => (
            "Texts to vectors",
            Some(one(schema::<openai::embeddings::EmbeddingFields>)),
        ),
        "/tokenize" => (
            "Text to tokens",
            Some(one(schema::<native::TokenizeFields>)),
        ),
        "/detokenize" => (
            "Tokens to text",
            Some(one(schema::<native::DetokenizeFields>)),
        ),
        "/apply-template" => (
            "The prompt that a chat would be",
            Some(one(schema::<openai::chat::ChatFields>)),
        ),
        "/v1/jobs" | "/v1/inference" => (
            "Creates a job; its stream is taken once",
            Some(
                json!({"allOf": [one(schema::<rbee::JobFields>), one(schema::<openai::SamplingFields>)]}),
            ),
        ),
        "/v1/jobs/{id}/stream" | "/v1/inference/{id}/stream" => {
            ("The stream of a job, as server-sent events", None)
        }
        _ => ("", None),
    }
}

fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    json!(schemas.subschema_for::<T>())
}

fn openapi() -> Value {
    let mut schemas = SchemaSettings::openapi3().into_generator();
    let mut paths = Map::new();
    for (routes, security) in [(PUBLIC, json!([])), (PROTECTED, json!([{"key": []}]))] {
        for route in routes {
            let path = route.path.replace("{*", "{");
            paths.insert(path, path_item(route, &security, &mut schemas));
        }
    }
    let error = json!({
        "type": "object",
        "properties": {"error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": "string", "nullable": true},
                "code": {"type": "string"},
            },
        }},
    });
    let mut definitions = schemas.take_definitions(true);
    definitions.insert("Error".to_string(), error);
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn path_item(route: &Route, security: &Value, schemas: &mut SchemaGenerator) -> Value {
    let (summary, body) = describe(route.path, schemas);
    let error = json!({
        "description": "An error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    let mut operation = json!({
        "summary": summary,
        "security": security,
        "responses": {"200": {"description": "Success"}, "default": error},
    });
    if let Some(body) = body {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": body}}});
    }
    if route.path.contains("id}") {
        operation["parameters"] =
            json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    let methods = route.methods.iter();
    methods
        .map(|method| (method.to_string(), operation.clone()))
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let document = openapi();
        let mut schemas = SchemaSettings::openapi3().into_generator();
        for route in PUBLIC.iter().chain(PROTECTED) {
            let (summary, body) = describe(route.path, &mut schemas);
            assert!(!summary.is_empty(), "{}", route.path);
            assert_eq!(
                body.is_some(),
                route.methods.contains(&"post"),
                "{}",
                route.path
            );
            let item = &document["paths"][route.path.replace("{*", "{")];
            for method in route.methods {
                assert_eq!(item[method]["summary"], summary);
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = openapi();
        let text = document.to_string();
        let mut count = 0;
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            count += 1;
        }
        assert!(count > PROTECTED.len());
        let fields = &document["components"]["schemas"]["SamplingFields"]["properties"];
        assert!(fields["min_p"]["description"]
            .as_str()
            .unwrap()
            .contains("off"));
    }
}
