//! What the JSON schemas of a tool's parameters say, as far as calls that are not JSON need to know.

use super::python;
use serde_json::{json, Map, Value as Json};

/// References and unions that are followed within one schema.
const MAX_STEPS: usize = 64;

/// A parameter of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parameter {
    pub(super) key: String,
    /// Its schema, references resolved at the outermost level.
    pub(super) schema: Json,
    pub(super) required: bool,
}

/// A tool's parameters in the schema's order; `None` where the schema does not name them, so that any may come.
pub(super) fn parameters(root: &Json) -> Option<Vec<Parameter>> {
    properties(root, root)
}

/// The properties of an object's schema; `root` has the definitions.
pub(super) fn properties(schema: &Json, root: &Json) -> Option<Vec<Parameter>> {
    let schema = resolved(schema, root);
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let named = schema["properties"].as_object();
    if named.is_none() && required.is_empty() && schema["additionalProperties"] != json!(false) {
        return None;
    }
    let mut list: Vec<Parameter> = named
        .into_iter()
        .flatten()
        .map(|(key, property)| Parameter {
            key: key.clone(),
            schema: resolved(property, root),
            required: required.contains(&key.as_str()),
        })
        .collect();
    for key in required {
        if !list.iter().any(|p| p.key == key) {
            list.push(Parameter {
                key: key.to_string(),
                schema: json!({}),
                required: true,
            });
        }
    }
    Some(list)
}

/// A schema with what it refers to in its place: `$ref` into the root's definitions, and `allOf` put together.
pub(super) fn resolved(schema: &Json, root: &Json) -> Json {
    let mut schema = schema.clone();
    for _ in 0..MAX_STEPS {
        let Some(object) = schema.as_object_mut() else {
            break;
        };
        let parts: Vec<Json> = if let Some(reference) = object.remove("$ref") {
            let pointer = reference.as_str().and_then(|r| r.strip_prefix('#'));
            let target = pointer.and_then(|pointer| root.pointer(pointer));
            target.cloned().into_iter().collect()
        } else if let Some(Json::Array(parts)) = object.remove("allOf") {
            parts
        } else {
            break;
        };
        for part in parts {
            merge(object, part);
        }
    }
    schema
}

/// Adds what `part` says and `object` does not; properties and what is required are joined.
fn merge(object: &mut Map<String, Json>, part: Json) {
    let Json::Object(part) = part else {
        return;
    };
    for (key, value) in part {
        match (object.get_mut(&key), value) {
            (Some(Json::Object(old)), Json::Object(new)) if key == "properties" => {
                for (name, schema) in new {
                    old.entry(name).or_insert(schema);
                }
            }
            (Some(Json::Array(old)), Json::Array(new)) if key == "required" => old.extend(new),
            (Some(_), _) => {}
            (None, value) => {
                object.insert(key, value);
            }
        }
    }
}

/// The schemas of which a value follows one: those of `anyOf` and `oneOf`, one for each of several types, else the
/// schema itself.
pub(super) fn branches(schema: &Json, root: &Json) -> Vec<Json> {
    let mut open = vec![resolved(schema, root)];
    let mut branches = Vec::new();
    let mut steps = 0;
    while let Some(schema) = open.pop() {
        steps += 1;
        let mut base = schema.as_object().cloned().unwrap_or_default();
        let unions = ["anyOf", "oneOf"].map(|key| base.remove(key));
        let union = unions.into_iter().flatten().find_map(|u| match u {
            Json::Array(parts) if !parts.is_empty() => Some(parts),
            _ => None,
        });
        if let (Some(parts), true) = (union, steps < MAX_STEPS) {
            for part in parts.iter().rev() {
                let mut whole = resolved(part, root)
                    .as_object()
                    .cloned()
                    .unwrap_or_default();
                merge(&mut whole, Json::Object(base.clone()));
                open.push(Json::Object(whole));
            }
        } else if let Some(Json::Array(kinds)) = base.get("type").cloned() {
            for kind in kinds {
                base.insert("type".to_string(), kind);
                branches.push(Json::Object(base.clone()));
            }
        } else {
            branches.push(Json::Object(base));
        }
    }
    branches
}

/// What a value of a schema without unions is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Boolean,
    Null,
    Object,
    List,
    /// It is not said.
    Any,
}

/// What a branch describes.
pub(super) fn kind(branch: &Json) -> Kind {
    let of_value = |value: &Json| match value {
        Json::String(_) => Kind::Text,
        Json::Number(_) => Kind::Number,
        Json::Bool(_) => Kind::Boolean,
        Json::Null => Kind::Null,
        Json::Object(_) => Kind::Object,
        Json::Array(_) => Kind::List,
    };
    let has = |keys: &[&str]| keys.iter().any(|key| branch.get(key).is_some());
    match branch["type"].as_str() {
        Some("string") => Kind::Text,
        Some("integer" | "number") => Kind::Number,
        Some("boolean") => Kind::Boolean,
        Some("null") => Kind::Null,
        Some("object") => Kind::Object,
        Some("array") => Kind::List,
        _ => match (branch.get("const"), branch["enum"].as_array()) {
            (Some(value), _) => of_value(value),
            (None, Some(values)) if !values.is_empty() => {
                let first = of_value(&values[0]);
                let same = values.iter().all(|value| of_value(value) == first);
                if same {
                    first
                } else {
                    Kind::Any
                }
            }
            _ if has(&["properties"]) => Kind::Object,
            _ if has(&["items", "prefixItems"]) => Kind::List,
            _ if has(&["pattern", "minLength", "maxLength", "format"]) => Kind::Text,
            _ => Kind::Any,
        },
    }
}

/// A value for an argument given as bare text: a text where the schema says text, else what JSON or Python's literals
/// make of it, else the text.
pub(super) fn typed_value(text: &str, schema: &Json, root: &Json) -> Json {
    let branches = branches(schema, root);
    let kinds: Vec<Kind> = branches.iter().map(kind).collect();
    let as_text = || Json::String(text.to_string());
    let values = branches.iter().flat_map(|branch| {
        branch
            .get("const")
            .into_iter()
            .chain(branch["enum"].as_array().into_iter().flatten())
    });
    let texts: Vec<&str> = values.filter_map(Json::as_str).collect();
    if texts.contains(&text) || kinds.iter().all(|kind| *kind == Kind::Text) {
        return as_text();
    }
    let Some(value) = python::value_of(text.trim()) else {
        return as_text();
    };
    let fits = |kind: &Kind| {
        matches!(
            (kind, &value),
            (Kind::Any, _)
                | (Kind::Number, Json::Number(_))
                | (Kind::Boolean, Json::Bool(_))
                | (Kind::Null, Json::Null)
                | (Kind::Object, Json::Object(_))
                | (Kind::List, Json::Array(_))
        )
    };
    // A text beside other types is one where nothing else fits.
    let text_allowed = kinds.contains(&Kind::Text);
    if text_allowed && !kinds.iter().any(fits) {
        return as_text();
    }
    let whole = |n: f64| n.fract() == 0.0 && n.abs() < 9e15;
    let wants_integer = branches.iter().any(|b| b["type"] == "integer");
    match (&value, value.as_f64()) {
        (Json::Number(number), Some(n)) if number.is_f64() && wants_integer && whole(n) => {
            Json::from(n as i64)
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_text_becomes_what_the_schema_says() {
        let root = json!({"$defs": {"size": {"enum": ["s", "12"]}, "n": {"type": "integer"}}});
        for (text, schema, value) in [
            ("12", json!({"type": "string"}), json!("12")),
            ("12", json!({"type": "integer"}), json!(12)),
            (" 12 ", json!({"type": "integer"}), json!(12)),
            ("12.0", json!({"type": "integer"}), json!(12)),
            ("12.5", json!({"type": "number"}), json!(12.5)),
            ("True", json!({"type": "boolean"}), json!(true)),
            ("true", json!({"type": "boolean"}), json!(true)),
            ("None", json!({"type": ["string", "null"]}), json!(null)),
            (
                "null",
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                json!(null),
            ),
            ("none", json!({"type": ["string", "null"]}), json!("none")),
            ("12", json!({"type": ["string", "null"]}), json!("12")),
            ("12", json!({"$ref": "#/$defs/size"}), json!("12")),
            ("12", json!({"$ref": "#/$defs/n"}), json!(12)),
            (
                "{'a': [1, None]}",
                json!({"type": "object"}),
                json!({"a": [1, null]}),
            ),
            ("{\"a\": \"b\"}", json!({}), json!({"a": "b"})),
            ("plain words", json!({}), json!("plain words")),
            ("[1", json!({"type": "array"}), json!("[1")),
            (" x\n", json!({"type": "string"}), json!(" x\n")),
        ] {
            assert_eq!(typed_value(text, &schema, &root), value, "{text} {schema}");
        }
    }

    #[test]
    fn parameters_are_found_behind_references() {
        let root = json!({
            "$ref": "#/$defs/args",
            "$defs": {"args": {
                "allOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}],
                "properties": {"a": {"type": "integer"}},
                "required": ["a", "c"],
            }},
        });
        let list = parameters(&root).unwrap();
        let keys: Vec<(&str, bool)> = list.iter().map(|p| (p.key.as_str(), p.required)).collect();
        assert_eq!(keys, [("a", true), ("b", true), ("c", true)]);
        assert_eq!(parameters(&json!({"type": "object"})), None);
        assert_eq!(parameters(&json!({"properties": {}})), Some(vec![]));
        // A reference to itself ends.
        let circle = json!({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}});
        assert_eq!(parameters(&circle), None);
    }
}
