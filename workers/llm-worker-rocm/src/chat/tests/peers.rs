//! llama.cpp's templates beside transformers.

use super::*;
use std::collections::BTreeMap;

/// `CANDLE_ROCM_RENDERINGS` names a file of `tests/clients/renderings.py`: each template with each conversation, and
/// what transformers makes of it, with arguments of calls as objects and as text. What differs is in the table
/// `tests/jinja/differences.tsv`, with the reason.
#[test]
#[ignore = "needs CANDLE_ROCM_RENDERINGS; scripts/test server makes it"]
fn templates_render_as_with_transformers() {
    let path = std::env::var_os("CANDLE_ROCM_RENDERINGS")
        .expect("CANDLE_ROCM_RENDERINGS is not set: run scripts/test server, or tests/clients/renderings.py");
    let file: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let table = include_str!("../../../tests/jinja/differences.tsv");
    let mut known: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let [template, conversations, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?} has not three columns");
        };
        assert!(reason.len() > 10, "{line:?} has no reason");
        for conversation in conversations.split(", ") {
            known.insert((template, conversation), reason);
        }
    }
    let conversations = file["conversations"].as_object().unwrap();
    let (mut equal, mut failures) = (0, Vec::new());
    for case in file["templates"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let template = template(case["source"].as_str().unwrap());
        for (conversation, chat) in conversations {
            let options = RenderOptions {
                add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap(),
                ..RenderOptions::default()
            };
            let messages = chat["messages"].as_array().unwrap();
            let tools = chat["tools"].as_array().map(Vec::as_slice);
            let ours = template.render(messages, tools, &options).map(|r| r.text);
            let theirs = case["prompts"][conversation].as_array().unwrap();
            let same = match &ours {
                Ok(ours) => theirs.iter().any(|text| text == ours),
                Err(_) => theirs.is_empty(),
            };
            match (same, known.remove(&(name, conversation))) {
                (true, None) => equal += 1,
                (false, Some(_)) => {}
                (true, Some(_)) => {
                    failures.push(format!("{name}, {conversation}: equal, but in the table"))
                }
                (false, None) => {
                    failures.push(format!("{name}, {conversation}: {ours:?}, not {theirs:?}"))
                }
            }
        }
    }
    failures.extend(
        known
            .keys()
            .map(|key| format!("{key:?}: in the table only")),
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{equal} renderings are equal");
    assert!(equal > 840, "{equal} renderings are equal");
}
