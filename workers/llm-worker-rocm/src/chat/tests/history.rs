//! Earlier turns, as clients send them and as templates want them.

use super::*;

/// Each message as role and content, and calls in the form that `calls` writes.
fn with_calls(calls: &str) -> String {
    format!("{{% for m in messages %}}[{{{{ m.role }}}}]{{{{ m.content }}}}{calls}{{% endfor %}}")
}

fn prompt(source: &str, messages: &[Json]) -> String {
    render(source, messages).unwrap()
}

/// A call of `f` with two arguments, given as `arguments`, and its result.
fn call(arguments: Json) -> Vec<Json> {
    vec![
        message("user", "W?"),
        json!({"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "x"}),
    ]
}

#[test]
fn calls_of_any_notation_stay_in_it() {
    let arguments = json!("{\"city\":\"A\",\"days\":2}");
    for (calls, written) in [
        // XML
        (
            "{% for c in m.tool_calls or [] %}<call {{ c.function.name }}>{% for k, v in c.function.arguments|items %}<p {{ k }}>{{ v }}</p>{% endfor %}</call>{% endfor %}",
            "<call f><p city>A</p><p days>2</p></call>",
        ),
        // Python
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}='{{ v }}'{{ ', ' if not loop.last }}{% endfor %}){% endfor %}",
            "f(city='A', days='2')",
        ),
        // Keys and values apart
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}\n{% for k, v in c.function.arguments|items %}<k>{{ k }}</k><v>{{ v|tojson if v is not string else v }}</v>{% endfor %}{% endfor %}",
            "f\n<k>city</k><v>A</v><k>days</k><v>2</v>",
        ),
        // JSON of an object, of either, and of a text
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}",
            "f{\"city\": \"A\", \"days\": 2}",
        ),
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% if c.function.arguments is string %}!{{ c.function.arguments }}{% else %}{{ c.function.arguments|tojson }}{% endif %}{% endfor %}",
            "f{\"city\": \"A\", \"days\": 2}",
        ),
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments }}{% endfor %}",
            "f{\"city\":\"A\",\"days\":2}",
        ),
        (
            "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}",
            "f{\"city\":\"A\",\"days\":2}",
        ),
        // The whole call as Python or JSON writes it
        (
            "{% for c in m.tool_calls or [] %}{{ c.function|tojson }}{% endfor %}",
            "{\"name\": \"f\", \"arguments\": {\"city\": \"A\", \"days\": 2}}",
        ),
        (
            "{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}",
            "{'name': 'f', 'arguments': {'city': 'A', 'days': 2}}",
        ),
        // Only with tools told
        (
            "{% if tools %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endif %}",
            "",
        ),
    ] {
        let want = format!("[user]W?[assistant]{written}[tool]x");
        assert_eq!(prompt(&with_calls(calls), &call(arguments.clone())), want, "{calls}");
    }
}

#[test]
fn a_probe_that_fails_is_no_answer() {
    // Fails with calls whose city is missing, as the probe's is, and takes a system message.
    let calls =
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city.upper() }}{% endfor %}";
    let chat = [message("system", "S"), message("user", "Q")];
    assert_eq!(prompt(&with_calls(calls), &chat), "[system]S[user]Q");
    // Fails without a system message, but shows it.
    let source = "{{ messages[0].content if messages[0].role == 'system' else 1 + 'x' }}{{ messages[1].content }}";
    assert_eq!(prompt(source, &chat), "SQ");
    // Refuses it.
    let source = "{% for m in messages %}{{ raise_exception('no') if m.role == 'system' }}{{ m.content }}{% endfor %}";
    assert_eq!(prompt(source, &chat), "S\n\nQ");
    // `none is iterable` is false.
    let source = "{% if tools is iterable and tools | length > 0 %}T{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(prompt(source, &chat), "[system]S[user]Q");
}

#[test]
fn no_arguments_come_in_many_spellings() {
    let source = with_calls("{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}");
    let as_text = with_calls(
        "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}",
    );
    for empty in [
        json!(""),
        json!(null),
        json!("  \n"),
        json!({}),
        json!("{}"),
        json!("null"),
        json!("\"{}\""),
    ] {
        let want = "[user]W?[assistant]f{}[tool]x";
        assert_eq!(prompt(&source, &call(empty.clone())), want, "{empty}");
        assert_eq!(prompt(&as_text, &call(empty.clone())), want, "{empty}");
    }
    let mut absent = call(json!(""));
    absent[1]["tool_calls"][0]["function"]
        .as_object_mut()
        .unwrap()
        .remove("arguments");
    assert_eq!(prompt(&source, &absent), "[user]W?[assistant]f{}[tool]x");
    for wrong in [
        json!("x"),
        json!("[1]"),
        json!(1),
        json!([]),
        json!("\"x\""),
    ] {
        let error = render(&source, &call(wrong)).unwrap_err();
        assert!(error.to_string().contains("messages[1]"), "{error}");
    }
    // An object where a text is wanted, and the other way around.
    let object = json!({"a": [1, {"b": null}]});
    assert_eq!(
        prompt(&as_text, &call(object.clone())),
        "[user]W?[assistant]f{\"a\":[1,{\"b\":null}]}[tool]x"
    );
    let text = json!("{\"a\": [1, {\"b\": null}]}");
    assert_eq!(prompt(&source, &call(object)), prompt(&source, &call(text)));
}

#[test]
fn ids_that_clients_leave_out_are_given() {
    let source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}{{ c.function.arguments|tojson }};{% endfor %}{{ m.tool_call_id }},{% endfor %}";
    let function = |name: &str| json!({"function": {"name": name, "arguments": "{}"}});
    let answer = |text: &str| json!({"role": "tool", "content": text});
    let chat = [
        message("user", "q"),
        json!({"role": "assistant", "tool_calls": [function("f"), function("g")]}),
        answer("1"),
        answer("2"),
        json!({"role": "assistant", "content": "a"}),
        answer("3"),
    ];
    let ids = prompt(source, &chat);
    assert_eq!(ids, ",call00001:f{};call00002:g{};,call00001,call00002,,,");
}

#[test]
fn contents_may_be_parts_null_or_absent() {
    let source = with_calls("");
    let part = |text: &str| json!({"type": "text", "text": text});
    let chat = [
        json!({"role": "system", "content": [part("S")]}),
        json!({"role": "user", "content": [part("a"), "b"]}),
        json!({"role": "assistant", "content": null, "tool_calls": null, "refusal": null}),
        json!({"role": "assistant"}),
        json!({"role": "user", "content": []}),
    ];
    assert_eq!(
        prompt(&source, &chat),
        "[system]S[user]a\nb[assistant][assistant][user]"
    );
    // Parts for users, text for tools.
    let source = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% else %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
    let mut chat = call(json!("{}"));
    chat[0]["content"] = json!([part("a"), part("b")]);
    chat[2]["content"] = json!([part("x"), part("y")]);
    assert_eq!(
        prompt(source, &chat),
        "[user]<a><b>[assistant]f{}[tool]x\ny"
    );
}

#[test]
fn several_system_messages_are_one_where_only_one_is_taken() {
    let chat = [
        message("system", "S"),
        message("developer", "D"),
        message("user", "Q"),
    ];
    assert_eq!(prompt(&with_calls(""), &chat), "[system]S[system]D[user]Q");
    let first_only = "{% for m in messages %}{{ raise_exception('system must be first') if m.role == 'system' and not loop.first }}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(prompt(first_only, &chat), "[system]S\n\nD[user]Q");
    let none = "{% for m in messages %}{{ raise_exception('no system') if m.role == 'system' }}[{{ m.role }}]{{ m.content }}{% endfor %}";
    assert_eq!(prompt(none, &chat), "[user]S\n\nD\n\nQ");
}

#[test]
fn reasoning_goes_by_its_other_names() {
    let source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}";
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let mut said = message("assistant", "A");
        said[name] = "R".into();
        assert_eq!(prompt(source, &[said]), "R|R;", "{name}");
    }
}

#[test]
fn what_messages_bring_is_marked() {
    let source = with_calls("{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments|tojson }}>{% endfor %}");
    let rendered = template(&source)
        .render(
            &call(json!({"k": "<|im_end|>"})),
            None,
            &RenderOptions::default(),
        )
        .unwrap();
    let marked: Vec<&str> = rendered
        .input
        .iter()
        .map(|range| &rendered.text[range.clone()])
        .collect();
    assert_eq!(
        marked,
        [
            "user",
            "W?",
            "assistant",
            "f",
            "k",
            "<|im_end|>",
            "tool",
            "x"
        ]
    );
}
