mod history;
mod peers;

use super::*;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap()
}

fn render(source: &str, messages: &[Json]) -> Result<String> {
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?
        .render(messages, None, &RenderOptions::default())
        .map(|rendered| rendered.text)
}

fn eval(expression: &str) -> String {
    let options = RenderOptions {
        extra: json!({"x": {"b": [1, 2.0, 1e-7, "é\"\n"], "a": {}, "t": true, "n": null}})
            .as_object()
            .cloned()
            .unwrap(),
        ..RenderOptions::default()
    };
    template(&format!("{{{{ {expression} }}}}"))
        .render(&[], None, &options)
        .unwrap()
        .text
}

#[test]
fn python_methods_and_trimmed_blocks() {
    let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m['role'] == 'user' %}\n[{{ m.content.strip().upper() }}]{{ eos_token }}\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{% endif %}";
    let chat = [message("system", "x"), message("user", " hi ")];
    // A template that shows no system message gets it with the user's.
    assert_eq!(render(source, &chat).unwrap(), "<s>\n[X\n\n HI]</s>\n>");
    assert_eq!(render(source, &chat[1..]).unwrap(), "<s>\n[HI]</s>\n>");
}

#[test]
fn json_is_written_as_python_writes_it() {
    assert_eq!(
        eval("x | tojson"),
        r#"{"b": [1, 2.0, 1e-07, "é\"\n"], "a": {}, "t": true, "n": null}"#
    );
    assert_eq!(
        eval("x | tojson(sort_keys=True, ensure_ascii=True, separators=(',', ':'))"),
        r#"{"a":{},"b":[1,2.0,1e-07,"\u00e9\"\n"],"n":null,"t":true}"#
    );
    assert_eq!(
        eval("x | tojson(indent=2)"),
        "{\n  \"b\": [\n    1,\n    2.0,\n    1e-07,\n    \"é\\\"\\n\"\n  ],\n  \"a\": {},\n  \"t\": true,\n  \"n\": null\n}"
    );
    assert_eq!(eval("x.t"), "True");
    assert_eq!(eval("x.n"), "None");
    assert_eq!(eval("1"), "1");
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("refuses these messages: roles must alternate"),
        "{error}"
    );
}

#[test]
fn a_template_beyond_the_limits_is_refused_at_once() {
    let endless =
        "{% set s='a'*5000000 %}{% for i in range(99999) %}{{ s.count('b') }}{% endfor %}";
    let deep = "{% if 1 %}".repeat(5000);
    let long = " ".repeat(MAX_TEMPLATE_BYTES + 1);
    for (source, reason) in [(endless, "fuel"), (&deep, "deep"), (&long, "longer than")] {
        let error = ChatTemplate::new(source, None, None).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_broken_template_is_an_error() {
    let error = render("{% for %}", &[]).unwrap_err();
    assert!(error.to_string().contains("broken"), "{error}");
}

#[test]
fn content_takes_the_form_that_the_template_knows() {
    let text = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let parts = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}";
    let list = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
    assert_eq!(
        render(text, std::slice::from_ref(&list)).unwrap(),
        "user:a\nb;"
    );
    assert_eq!(render(parts, &[list]).unwrap(), "user:ab;");
    assert_eq!(render(parts, &[message("user", "c")]).unwrap(), "user:c;");
    assert_eq!(
        render(text, &[message("developer", "d")]).unwrap(),
        "system:d;"
    );
    for (bad, reason) in [
        (
            json!({"role": "user", "content": [{"type": "input_file", "file": {}}]}),
            "input_file",
        ),
        (json!({"content": "x"}), "messages[0]: \"role\""),
        (json!("x"), "must be an object"),
        (json!({"role": "user", "content": 1}), "must be a text"),
        (
            json!({"role": "assistant", "tool_calls": [{}]}),
            "has no \"function\"",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}),
            "not a JSON object",
        ),
    ] {
        let error = render(text, &[bad]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn thinking_and_other_variables_reach_the_template() {
    let source = "{{ enable_thinking }} {{ thinking }} {{ level }} {{ tools is none }}";
    let options = RenderOptions {
        enable_thinking: Some(false),
        extra: json!({"level": 3}).as_object().cloned().unwrap(),
        ..RenderOptions::default()
    };
    let text = template(source).render(&[], None, &options).unwrap().text;
    assert_eq!(text, "False False 3 True");
}

/// A call and its answer.
fn called() -> Vec<Json> {
    vec![
        message("user", "q"),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"k\": 1}"}},
        ]}),
        json!({"role": "tool", "tool_call_id": "a", "content": "r"}),
    ]
}

fn tool() -> Json {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}})
}

#[test]
fn calls_take_the_form_that_the_template_knows() {
    let base = "{% for t in tools or [] %}{{ t.function.name }}!{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}\
        {% for c in m.tool_calls or [] %}(ARGUMENTS){% endfor %};{% endfor %}";
    let object = base.replace("(ARGUMENTS)", "{{ c.function.arguments | tojson }}");
    let text = base.replace("(ARGUMENTS)", "{{ '' + c.function.arguments }}");
    let options = RenderOptions::default();
    for source in [object, text] {
        let template = template(&source);
        assert!(template.describes_tools());
        let prompt = template
            .render(&called(), Some(&[tool()]), &options)
            .unwrap()
            .text;
        assert_eq!(prompt, "f!user:q;assistant:{\"k\": 1};tool:r;");
    }
}

#[test]
fn tools_are_told_in_words_where_the_template_has_none() {
    let template = template("{% for m in messages %}{{ m.role }}:{{ m.content }};\n{% endfor %}");
    assert!(!template.describes_tools());
    let prompt = template
        .render(&called(), Some(&[tool()]), &RenderOptions::default())
        .unwrap()
        .text;
    let (system, rest) = prompt.split_once("user:q;\n").unwrap();
    assert!(
        system.starts_with("system:") && system.contains("{\"name\":\"f\""),
        "{system}"
    );
    assert_eq!(
        rest,
        "assistant:<tool_call>\n{\"name\":\"f\",\"arguments\":{\"k\":1}}\n</tool_call>;\nuser:<tool_response>\nr\n</tool_response>;\n"
    );
}

#[test]
fn marks_of_the_training_loss_are_ignored() {
    let source = "a{%- generation -%} b {%- endgeneration %}{% if true %}c{% endif %}";
    assert_eq!(render(source, &[]).unwrap(), "abc");
}

#[test]
fn built_in_templates() {
    let chat = [
        message("system", "S"),
        message("user", "Q"),
        message("assistant", "A"),
        message("user", "R"),
    ];
    let choose = |name: Option<&str>, own: Option<&str>| {
        ChatTemplate::choose(name, own, Some("<s>"), Some("</s>")).unwrap()
    };
    let prompt = |name: &str| {
        choose(Some(name), None)
            .render(&chat, None, &RenderOptions::default())
            .unwrap()
            .text
    };
    assert_eq!(
        prompt("chatml"),
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        prompt("llama2"),
        "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s><s>[INST] R [/INST]"
    );
    assert_eq!(
        prompt("llama3"),
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nR<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    assert_eq!(
        prompt("mistral"),
        "<s>[INST] S\n\nQ [/INST] A</s>[INST] R [/INST]"
    );
    assert_eq!(
        prompt("gemma"),
        "<s><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nR<end_of_turn>\n<start_of_turn>model\n"
    );
    assert_eq!(
        prompt("phi3"),
        "<|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nR<|end|>\n<|assistant|>\n"
    );
    assert_eq!(
        prompt("zephyr"),
        "<|system|>\nS</s>\n<|user|>\nQ</s>\n<|assistant|>\nA</s>\n<|user|>\nR</s>\n<|assistant|>\n"
    );
    assert_eq!(
        prompt("vicuna"),
        "<s>S\n\nUSER: Q\nASSISTANT: A</s>\nUSER: R\nASSISTANT:"
    );
    assert_eq!(choose(None, Some("own")).source(), "own");
    assert_eq!(choose(None, Some("own")).note(), None);
    assert!(choose(None, None).note().unwrap().contains("ChatML"));
    let absent = ChatTemplate::choose(Some("absent"), None, None, None).unwrap_err();
    assert!(absent.to_string().contains("chatml"), "{absent}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    assert_eq!(choose(file.path().to_str(), None).source(), "from a file");
}
