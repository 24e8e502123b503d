//! `/openapi.json`: made of the route table and of the types that requests are read into, so that it cannot fall
//! behind.

use super::routes::{Route, Routes};
use super::Worker;
use schemars::generate::SchemaSettings;
use schemars::SchemaGenerator;
use serde_json::{json, Map, Value};

/// The document that describes a worker's routes.
pub fn document<W: Worker>(routes: &Routes<W>) -> Value {
    let mut schemas = SchemaSettings::openapi3().into_generator();
    let mut paths = Map::new();
    let Routes { public, protected } = routes;
    for (routes, security) in [(public, json!([])), (protected, json!([{"key": []}]))] {
        for route in routes {
            let path = route.path.replace("{*", "{");
            let item = paths.entry(path).or_insert_with(|| json!({}));
            item[route.method.as_str().to_lowercase()] = operation(route, &security, &mut schemas);
        }
    }
    let mut definitions = schemas.take_definitions(true);
    definitions.insert("Error".to_string(), error());
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": W::NAME,
            "version": W::VERSION,
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// What [`crate::http::ApiError`] is on the wire.
fn error() -> Value {
    json!({
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
    })
}

fn operation<W>(route: &Route<W>, security: &Value, schemas: &mut SchemaGenerator) -> Value {
    let error = json!({
        "description": "An error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    let mut operation = json!({
        "summary": route.summary,
        "security": security,
        "responses": {"200": {"description": "Success"}, "default": error},
    });
    if let Some((media_type, bodies)) = &route.body {
        let mut bodies: Vec<Value> = bodies.iter().map(|body| json!(body(schemas))).collect();
        let schema = match bodies.len() {
            1 => bodies.remove(0),
            _ => json!({"allOf": bodies}),
        };
        operation["requestBody"] =
            json!({"required": true, "content": {*media_type: {"schema": schema}}});
    }
    let parameters: Vec<Value> = route.path.split('/').filter_map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    operation
}

/// The parameter that a segment of a path is.
fn parameter(segment: &str) -> Option<Value> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let name = name.trim_start_matches('*');
    Some(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
}
