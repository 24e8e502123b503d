//! What an endpoint may do wrong.

use super::server::{Script, Server};
use super::*;
use rocm_port::repair::endpoint::{AskError, Message, Reply};
use rocm_port::repair::state::{End, Verdict};
use std::time::Instant;

fn ask(endpoint: &Endpoint) -> Result<Reply, AskError> {
    let messages = [Message {
        role: "user".into(),
        content: "hello".into(),
    }];
    endpoint.ask(
        &messages,
        &Stop::default(),
        Instant::now() + Duration::from_secs(60),
    )
}

#[test]
fn trouble_that_passes_is_waited_for() {
    let server = Server::start(vec![
        Script::Status(503, "", "{}"),
        Script::Status(
            429,
            "retry-after: 0\r\n",
            "{\"error\":{\"message\":\"slow down\"}}",
        ),
        Script::Close,
        Script::Whole("hello".into()),
    ]);
    let reply = ask(&endpoint(&server)).unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.prompt_tokens, reply.estimated),
        ("hello", 1000, false)
    );
    assert_eq!(server.count(), 4);
}

#[test]
fn trouble_that_stays_is_told() {
    for (script, requests, said) in [
        (
            Script::Status(500, "", "{\"error\":{\"message\":\"no memory\"}}"),
            4,
            "answered 500: no memory",
        ),
        (
            Script::Status(401, "", "{\"error\":\"no\"}"),
            1,
            "--api-key-env",
        ),
        (Script::Status(404, "", "no such model"), 1, "no such model"),
        (
            Script::Status(307, "location: http://127.0.0.1:1/\r\n", ""),
            1,
            "redirects are not followed",
        ),
        (Script::Status(400, "", "<html>"), 1, "answered 400: <html>"),
    ] {
        let server = Server::start(vec![script]);
        let refused = ask(&endpoint(&server));
        assert!(
            matches!(&refused, Err(AskError::Unusable(why)) if why.contains(said)),
            "{refused:?}"
        );
        assert_eq!(server.count(), requests);
    }
}

#[test]
fn broken_answers_are_none() {
    let cut_off = "{\"choices\":[{\"message\":{\"content\":\"\"},\"finish_reason\":\"length\"}]}";
    for (script, said) in [
        (Script::Status(200, "", "{"), "no JSON"),
        (Script::Status(200, "", "{\"choices\":[]}"), "no message"),
        (
            Script::Status(200, "", "{\"choices\":[{\"message\":{\"content\":\" \"}}]}"),
            "is empty",
        ),
        (Script::Status(200, "", cut_off), "raise --max-tokens"),
        (Script::Cut, "broke off"),
        (Script::Endless, "longer than"),
        (Script::Whole("x".repeat(300 << 10)), "longer than"),
    ] {
        let server = Server::start(vec![script]);
        let refused = ask(&endpoint(&server));
        assert!(
            matches!(&refused, Err(AskError::Broken(why)) if why.contains(said)),
            "{said}: {refused:?}"
        );
    }
}

#[test]
fn a_trickle_ends_with_the_time() {
    let server = Server::start(vec![Script::Trickle]);
    let mut slow = endpoint(&server);
    slow.timeout = Duration::from_millis(700);
    let refused = ask(&slow);
    assert!(matches!(refused, Err(AskError::Broken(_))), "{refused:?}");
}

#[test]
fn urls_and_keys() {
    let server = Server::start(vec![Script::Stream("hello".into())]);
    let with = |url: &str, key: Option<&str>| Endpoint {
        url: url.into(),
        key: key.map(str::to_string),
        ..endpoint(&server)
    };
    for (url, address) in [
        (
            "http://localhost:1",
            "http://localhost:1/v1/chat/completions",
        ),
        (
            "https://a.example/api/v1/",
            "https://a.example/api/v1/chat/completions",
        ),
        (
            "https://a.example/v1/chat/completions",
            "https://a.example/v1/chat/completions",
        ),
    ] {
        assert_eq!(with(url, Some("key")).address().as_deref(), Ok(address));
    }
    for (url, key) in [
        ("a.example", None),
        ("ftp://a.example", None),
        ("http://", None),
        ("http://a.example", Some("key")),
        ("https://user:word@a.example", None),
    ] {
        assert!(with(url, key).address().is_err(), "{url}");
    }
    assert!(with("http://a.example", None).address().is_ok());
    ask(&with(&server.url(), Some("secret"))).unwrap();
    let (head, body) = server.requests.lock().unwrap()[0].clone();
    assert!(
        head.starts_with("POST /v1/chat/completions ") && head.contains("Bearer secret"),
        "{head}"
    );
    assert_eq!(
        (body["model"].as_str(), body["stream"].as_bool()),
        (Some("scripted"), Some(true))
    );
}

#[test]
fn the_loop_goes_on_after_broken_answers_and_gives_up_in_the_end() {
    let server = Server::start(vec![
        Script::Whole("I would rather not.".into()),
        Script::Cut,
        Script::Cut,
        Script::Stream(right()),
    ]);
    let state = repair(&endpoint(&server), &mut Judge::new(), 6);
    assert_eq!(state.end, Some(End::Repaired));
    assert!(
        matches!(&state.steps[1].verdict, Verdict::Refused(why) if why.contains("neither a unified diff"))
    );
    assert!(matches!(&state.steps[2].verdict, Verdict::NoAnswer(_)));

    let server = Server::start(vec![Script::Cut]);
    let state = repair(&endpoint(&server), &mut Judge::new(), 6);
    assert!(matches!(state.end, Some(End::Endpoint(_))));
    assert_eq!(server.count(), 3);
    let server = Server::start(vec![Script::Status(403, "", "")]);
    let state = repair(&endpoint(&server), &mut Judge::new(), 6);
    assert!(matches!(state.end, Some(End::Endpoint(_))));
    assert_eq!((server.count(), state.best.as_str()), (1, FILE));
}
