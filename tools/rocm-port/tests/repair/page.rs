//! The log as a page: what it shows, what it escapes, and how several viewers see it live.

use super::server::{Script, Server};
use super::*;
use rocm_port::repair::page::{page, Live};
use rocm_port::repair::state::End;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

#[test]
fn it_shows_everything_and_escapes_it() {
    let change = diff(
        "    return v;",
        "    float undeclared = v;\n    return undeclared < v && v;",
    );
    let server = Server::start(vec![
        Script::Whole(format!("<script>alert(1)</script>\n{change}")),
        Script::Whole(right()),
    ]);
    let mut endpoint = endpoint(&server);
    endpoint.model = "model\"><img src=x>".into();
    let state = repair(&endpoint, &mut Judge::new(), 6);
    let html = page(&state, false);
    for part in [
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "model&quot;&gt;&lt;img src=x&gt;",
        "error: &lt;undeclared&gt; &amp; &quot;more&quot;",
        "<span class=\"added\">+    return undeclared &lt; v &amp;&amp; v;</span>",
        "<span class=\"added\">+    return v + v;</span>",
        "<span class=\"removed\">-    return v;</span>",
        "Round 1",
        "Round 2",
        "2000 sent, 400 received",
        "<dd>0.0080</dd>",
        "repaired",
        "name=\"viewport\"",
        "prefers-color-scheme: dark",
        "0.5 instead of 1",
        "You repair a GPU kernel",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    // Nothing comes from elsewhere, and only the page's own script and style may run.
    assert!(
        !html.contains("<img") && !html.contains("<link") && !html.contains("http://"),
        "{html}"
    );
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.contains("default-src 'none'") && html.contains("script-src 'sha256-"));
    assert!(!html.contains("data-live=\"1\"") && page(&state, true).contains("data-live=\"1\""));
}

fn get(live: &Live, path: &str, host: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(live.address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    BufReader::new(stream)
}

fn whole(mut reader: BufReader<TcpStream>) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

/// Reads events until one says this.
fn until(reader: &mut BufReader<TcpStream>, wanted: &str) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        assert!(
            reader.read_line(&mut line).unwrap() > 0,
            "no {wanted:?} in {all}"
        );
        all.push_str(&line);
        if line.contains(wanted) {
            return all;
        }
    }
}

#[test]
fn two_viewers_see_it_live_and_a_reload_sees_all() {
    let live = Live::start("127.0.0.1:0").unwrap();
    let host = format!("localhost:{}", live.address.port());
    let server = Server::start(vec![Script::Whole(diff(
        "    return v;",
        "    return 3 * v;",
    ))]);
    let mut state = repair(&endpoint(&server), &mut Judge::new(), 1);
    state.end = None;
    live.show(&state);
    let mut first = get(&live, "/events", &host);
    until(&mut first, "event: steps");
    let mut second = get(&live, "/events", &host);
    assert!(until(&mut second, "event: steps").contains("Round 1"));
    let page = whole(get(&live, "/", &host));
    assert!(
        page.starts_with("HTTP/1.1 200")
            && page.contains("Round 1")
            && page.contains("id=\"step-2\"")
    );

    let good = Server::start(vec![Script::Whole(right())]);
    go_on(&endpoint(&good), &mut Judge::new(), &mut state, 1).unwrap();
    assert_eq!(state.end, Some(End::Repaired));
    live.show(&state);
    for viewer in [&mut first, &mut second] {
        let events = until(viewer, "event: end");
        assert!(
            events.contains("Round 2") && events.contains("repaired"),
            "{events}"
        );
        // Steps that did not change are not sent again.
        assert!(!events.contains("\"step-1\""), "{events}");
    }
    assert!(whole(get(&live, "/", &host)).contains("Round 2"));
}

#[test]
fn only_what_there_is_and_only_for_this_machine() {
    let live = Live::start("0").unwrap();
    assert!(live.address.ip().is_loopback());
    let host = format!("127.0.0.1:{}", live.address.port());
    live.show(&State::new("a.hip", "", None, (0.0, 0.0)));
    assert!(whole(get(&live, "/", &host)).contains("Repair of a.hip"));
    assert!(whole(get(&live, "/../etc/passwd", &host)).starts_with("HTTP/1.1 404"));
    assert!(whole(get(&live, "/", "elsewhere.example")).starts_with("HTTP/1.1 403"));
    let mut stream = TcpStream::connect(live.address).unwrap();
    write!(stream, "POST / HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    assert!(whole(BufReader::new(stream)).starts_with("HTTP/1.1 405"));
    // A head without an end is not read for ever. The server may hang up while it is written.
    let mut stream = TcpStream::connect(live.address).unwrap();
    let mut text = String::new();
    let _ = stream.write_all("GET / HTTP/1.1\r\n".as_bytes());
    let _ = stream.write_all("x: y\r\n".repeat(10_000).as_bytes());
    let _ = stream.read_to_string(&mut text);
    assert!(!text.contains("200 OK"), "{text}");
}
