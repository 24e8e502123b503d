//! What requests say of tools.

use super::*;

#[test]
fn choices_and_tools_are_checked() {
    let choice = |json: Json| ToolChoice::from_json(Some(&json));
    assert_eq!(ToolChoice::from_json(None).unwrap(), ToolChoice::Auto);
    assert_eq!(choice(json!("required")).unwrap(), ToolChoice::Required);
    assert_eq!(
        choice(json!({"type": "function", "function": {"name": "f"}})).unwrap(),
        ToolChoice::Named("f".to_string())
    );
    assert!(choice(json!("perhaps")).is_err());
    assert!(choice(json!(1)).is_err());
    for bad in [
        json!({}),
        json!({"name": "a b"}),
        json!({"name": "a", "parameters": 1}),
    ] {
        assert!(Tool::from_json(&bad).is_err(), "{bad}");
    }
    let ids: Vec<String> = (0..100).map(|_| new_call_id()).collect();
    assert!(ids.iter().all(|id| id.len() == 9));
    assert_eq!(
        ids.iter().collect::<std::collections::HashSet<_>>().len(),
        100
    );
}

#[test]
fn arguments_are_objects_without_what_is_not_named() {
    let of = |parameters: Json| {
        Tool::from_json(&json!({"name": "f", "parameters": parameters})).unwrap()
    };
    assert_eq!(of(json!({})).parameters, json!({"type": "object"}));
    assert_eq!(
        of(json!({"properties": {}})).parameters,
        json!({"properties": {}, "type": "object", "additionalProperties": false})
    );
    let open =
        json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}});
    assert_eq!(of(open.clone()).parameters, open);
    assert!(
        Tool::from_json(&json!({"name": "f", "strict": true}))
            .unwrap()
            .strict
    );
}
