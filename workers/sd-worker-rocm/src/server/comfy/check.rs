//! What is wrong with a graph, in ComfyUI's own words: its clients show them at the nodes.

use super::nodes::{find, knows, Class, Input, Kind};
use crate::recall::comfy::graph::{link, Graph, Node};
use crate::server::App;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Map, Value};
use std::collections::HashSet;
use worker::http::ApiError;

/// Most errors that are told.
const MOST_ERRORS: usize = 64;

/// A graph that is not taken: an error of the whole, or errors of nodes.
#[derive(Debug)]
pub(super) struct Invalid {
    status: StatusCode,
    // Boxed, as this is the error of functions whose results are small.
    error: Box<Value>,
    nodes: Box<Map<String, Value>>,
}

impl Invalid {
    /// Something about the whole.
    pub(super) fn whole(kind: &str, message: &str, details: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error: json!({"type": kind, "message": message, "details": details, "extra_info": {}})
                .into(),
            nodes: Box::default(),
        }
    }

    /// Something that this server does not do with a node.
    pub(super) fn unsupported(node: &str, class: &str, details: &str) -> Self {
        let mut invalid = Self::of_nodes(Map::new());
        invalid.add(
            (node, class),
            "not_implemented",
            "Not implemented by this server",
            details,
            None,
        );
        invalid
    }

    fn of_nodes(nodes: Map<String, Value>) -> Self {
        let kind = "prompt_outputs_failed_validation";
        Self {
            nodes: nodes.into(),
            ..Self::whole(kind, "Prompt outputs failed validation", "")
        }
    }

    fn add(
        &mut self,
        (node, class): (&str, &str),
        kind: &str,
        message: &str,
        details: &str,
        input: Option<&str>,
    ) {
        let told: usize = (self.nodes.values())
            .filter_map(|node| Some(node["errors"].as_array()?.len()))
            .sum();
        if told >= MOST_ERRORS {
            return;
        }
        let extra = input.map_or_else(|| json!({}), |input| json!({"input_name": input}));
        let error =
            json!({"type": kind, "message": message, "details": details, "extra_info": extra});
        let own = self
            .nodes
            .entry(node)
            .or_insert_with(|| json!({"errors": [], "dependent_outputs": [], "class_type": class}));
        if let Some(errors) = own["errors"].as_array_mut() {
            errors.push(error);
        }
    }

    /// The words of all errors.
    fn details(&self) -> String {
        let nodes = self.nodes.iter();
        let each = nodes.flat_map(|(id, node)| {
            let errors = node["errors"].as_array().into_iter().flatten();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            errors.map(move |error| {
                format!(
                    "{} {id}: {}: {}",
                    text(&node["class_type"]),
                    text(&error["message"]),
                    text(&error["details"])
                )
            })
        });
        each.collect::<Vec<_>>().join("\n")
    }
}

impl From<ApiError> for Invalid {
    fn from(error: ApiError) -> Self {
        let details = error.param.as_deref().unwrap_or_default();
        Self {
            status: error.status,
            ..Self::whole(&error.code.to_lowercase(), &error.message, details)
        }
    }
}

impl IntoResponse for Invalid {
    fn into_response(mut self) -> Response {
        if self.error["details"] == "" {
            self.error["details"] = self.details().into();
        }
        let body = json!({"error": self.error, "node_errors": self.nodes});
        (self.status, Json(body)).into_response()
    }
}

/// Checks a graph; gives the nodes for whose pictures it is there.
///
/// # Errors
/// What ComfyUI says of the same graph, or that it is too large.
pub(super) fn check<'a>(
    app: &App,
    graph: &Graph<'a>,
    whole: &Map<String, Value>,
) -> Result<Vec<&'a str>, Invalid> {
    for (id, value) in whole {
        let class = value.get("class_type").and_then(Value::as_str);
        let message = match class {
            None => "Cannot execute because a node is missing the class_type property.".to_string(),
            Some(class) if find(class).is_none() => {
                format!("Cannot execute because node {class} does not exist.")
            }
            Some(class) if graph.node(id).is_none() => {
                format!("Cannot execute because node {class} has no inputs.")
            }
            Some(_) => continue,
        };
        let kind = match class {
            Some(_) => "missing_node_type",
            None => "invalid_prompt",
        };
        return Err(Invalid::whole(kind, &message, &format!("Node ID '#{id}'")));
    }
    let outputs = graph.nodes().filter(|node| is_output(node));
    let outputs: Vec<&str> = outputs.map(|node| node.id).collect();
    if outputs.is_empty() {
        return Err(Invalid::whole(
            "prompt_no_outputs",
            "Prompt has no outputs",
            "",
        ));
    }
    if let Some(node) = graph.circle() {
        let details = format!("node {node} depends on itself");
        return Err(Invalid::whole(
            "dependency_cycle",
            "Dependency cycle detected",
            &details,
        ));
    }
    let needed: HashSet<&str> = graph.needed_by(outputs.iter().copied());
    let mut invalid = Invalid::of_nodes(Map::new());
    for node in graph.nodes().filter(|node| needed.contains(node.id)) {
        if let Some(class) = find(node.class) {
            for input in class.inputs {
                check_input(app, graph, node, input, &mut invalid);
            }
            check_names(&node, class, &mut invalid);
        }
    }
    match invalid.nodes.is_empty() {
        true => Ok(outputs),
        false => Err(invalid),
    }
}

fn is_output(node: &Node) -> bool {
    find(node.class).is_some_and(|class| class.outputs.is_empty())
}

/// Inputs that a class does not have are refused: they may mean something in a newer ComfyUI.
fn check_names(node: &Node, class: &Class, invalid: &mut Invalid) {
    // What the page of ComfyUI adds to pictures that are chosen there.
    const OF_THE_PAGE: [&str; 3] = ["upload", "choose file to upload", "speak_and_recognation"];
    for name in node.inputs.keys() {
        let known = class.inputs.iter().any(|input| input.name == name);
        if !known && !OF_THE_PAGE.contains(&name.as_str()) {
            let what = format!("{name} is not an input of {}", class.name);
            invalid.add(
                (node.id, node.class),
                "not_implemented",
                "Not implemented by this server",
                &what,
                Some(name),
            );
        }
    }
}

fn check_input(app: &App, graph: &Graph, node: Node, input: &Input, invalid: &mut Invalid) {
    let of = (node.id, node.class);
    let name = input.name;
    let mut bad = |kind: &str, message: &str, details: String| {
        invalid.add(of, kind, message, &details, Some(name));
    };
    let Some(value) = node.inputs.get(name).filter(|value| !value.is_null()) else {
        if !input.optional {
            bad(
                "required_input_missing",
                "Required input is missing",
                name.to_string(),
            );
        }
        return;
    };
    if value.is_array() {
        let Some((id, output)) = link(value) else {
            let details = format!("{name}: {}", short(value));
            return bad(
                "bad_linked_input",
                "Bad linked input, must be a length-2 list of [node_id, slot_index]",
                details,
            );
        };
        let given = graph.node(id).and_then(|from| find(from.class));
        let given = given.and_then(|class| class.outputs.get(output));
        return match (given, input.kind) {
            (Some(given), Kind::Link(wanted)) if *given == wanted => {}
            (Some(given), kind) => {
                let wanted = wanted(kind);
                let details =
                    format!("{name}, received_type({given}) mismatch input_type({wanted})");
                bad(
                    "return_type_mismatch",
                    "Return type mismatch between linked nodes",
                    details,
                );
            }
            (None, _) => {
                let details = format!("{name}: there is no output {output} of node {id}");
                bad("bad_linked_input", "Bad linked input", details);
            }
        };
    }
    let failed = ("invalid_input_type", "Failed to convert an input value");
    match input.kind {
        Kind::Link(wanted) => {
            let details = format!("{name}: {} is no link to a {wanted}", short(value));
            bad("bad_linked_input", "Bad linked input", details);
        }
        Kind::Whole { least, most, .. } => match whole(value) {
            None => bad(
                failed.0,
                failed.1,
                format!("{name}, {}, is no whole number", short(value)),
            ),
            Some(number) if number < i128::from(least) => {
                bad(
                    "value_smaller_than_min",
                    &format!("Value {number} smaller than min of {least}"),
                    name.to_string(),
                );
            }
            Some(number) if number > i128::from(most) => {
                bad(
                    "value_bigger_than_max",
                    &format!("Value {number} bigger than max of {most}"),
                    name.to_string(),
                );
            }
            Some(_) => {}
        },
        Kind::Number { least, most, .. } => match value.as_f64() {
            None => bad(
                failed.0,
                failed.1,
                format!("{name}, {}, is no number", short(value)),
            ),
            Some(number) if number < least => {
                bad(
                    "value_smaller_than_min",
                    &format!("Value {number} smaller than min of {least}"),
                    name.to_string(),
                );
            }
            Some(number) if number > most => {
                bad(
                    "value_bigger_than_max",
                    &format!("Value {number} bigger than max of {most}"),
                    name.to_string(),
                );
            }
            Some(_) => {}
        },
        Kind::Text if value.is_string() => {}
        Kind::Text => bad(
            failed.0,
            failed.1,
            format!("{name}, {}, is no text", short(value)),
        ),
        Kind::Fixed(names) => {
            let text = match value {
                Value::Bool(on) => on.to_string(),
                Value::String(text) => text.clone(),
                _ => String::new(),
            };
            if !names.contains(&text.as_str()) {
                bad(
                    "value_not_in_list",
                    "Value not in list",
                    format!("{name}: {} not in {names:?}", short(value)),
                );
            }
        }
        Kind::OneOf(of) => {
            if !value.as_str().is_some_and(|text| knows(app, of, text)) {
                let known = super::nodes::names(app, of);
                let details = match known.len() {
                    0..=20 => format!("{name}: {} not in {known:?}", short(value)),
                    count => format!(
                        "{name}: {} not in the list of {count} that /object_info tells",
                        short(value)
                    ),
                };
                bad("value_not_in_list", "Value not in list", details);
            }
        }
    }
}

fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Link(of) => of,
        Kind::Whole { .. } => "INT",
        Kind::Number { .. } => "FLOAT",
        Kind::Text => "STRING",
        Kind::Fixed(_) | Kind::OneOf(_) => "COMBO",
    }
}

/// A whole number, which Python's clients may write as 20.0.
fn whole(value: &Value) -> Option<i128> {
    let float = || {
        value
            .as_f64()
            .filter(|float| float.fract() == 0.0 && float.abs() < 9e15)
    };
    let signed = value.as_i64().map(i128::from);
    signed
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| float().map(|float| float as i128))
}

/// A value for a message.
fn short(value: &Value) -> String {
    const MOST: usize = 100;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
