//! The page's queue, its grids and its keys in a browser.

use crate::browser::Browser;
use crate::support::{generation, Server};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;
use std::time::{Duration, Instant};

/// Prompts of the jobs as the queue lists them.
const PROMPTS: &str =
    "[...document.querySelectorAll('.jobs .prompt')].map(each => each.textContent)";

fn send(browser: &Browser, prompt: &str, steps: &str) {
    browser.click("#tab-text");
    browser.fill("#prompt", prompt);
    browser.fill("[name=steps]", steps);
    browser.click("#go");
}

/// A server at this port, 0 any, whose jobs may run for as long as a test looks at them.
fn patient(port: u16) -> Server {
    let mut options = ServerOptions::default();
    options.limits.max_steps = 5000;
    Server::listening(QueueOptions::default(), options, |listen| {
        listen.port = port;
    })
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn jobs_are_followed_moved_and_cancelled() {
    let mut server = patient(0);
    let browser = Browser::start();
    browser.visit(&server);
    send(&browser, "slow one", "5000");
    browser.wait_for("document.querySelector('.job')");
    let theirs = server.submit(&generation("of another"));
    send(&browser, "words", "2");
    browser.wait_for("document.title.startsWith('(2) ')");
    // What is under way is found again, and the tab tells how far it is.
    browser.visit(&server);
    browser.click("#tab-queue");
    browser.wait_for(&format!("{PROMPTS}.join() == 'slow one,of another,words'"));
    browser.wait_for("document.querySelector('.jobs .running progress').value > 0");
    browser.wait_for("document.querySelector('.jobs .preview').src.startsWith('data:image/png')");
    browser.wait_for("/^\\(2\\) \\d+ % · painter/.test(document.title)");
    let foreign =
        "[...document.querySelectorAll('.jobs .foreign .prompt')].map(each => each.textContent)";
    assert_eq!(browser.value(foreign), json!(["of another"]));
    // The last one to the front; then the running one makes place for it, by a key.
    browser.press_button(".jobs > li:nth-child(3)", "First");
    browser.wait_for(&format!("{PROMPTS}.join() == 'slow one,words,of another'"));
    assert_eq!(
        server.get(&format!("/v1/jobs/{theirs}")).1["position"],
        json!(2)
    );
    browser.press("\u{e00c}");
    server.wait_for(&theirs, "completed");
    browser.wait_for("document.querySelector('.jobs .failed .error')?.textContent");
    browser.wait_for("document.querySelector('.jobs .cancelled')");
    browser.wait_for("document.title == 'painter – pictures'");
    browser.press_button(".jobs .failed", "Remove");
    browser.wait_for("!document.querySelector('.jobs .failed')");

    // A server that crashed, and was started anew, knows nothing of what waited.
    send(&browser, "slow two", "5000");
    browser.click("#tab-queue");
    browser.wait_for("document.querySelector('.jobs .running')");
    let port = server.address.rsplit_once(':').unwrap().1.parse().unwrap();
    let idle = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    std::mem::replace(&mut server.runtime, idle).shutdown_background();
    browser.wait_for(
        "document.querySelector('#pane-queue > .error')?.textContent.includes('does not answer')",
    );
    drop(server);
    let server = patient(port);
    let gone = "[...document.querySelectorAll('.jobs li')].find(each => each.textContent.includes('slow two'))";
    browser.wait_for(&format!(
        "{gone}.textContent.includes('does not know this job')"
    ));
    browser.press_button(".jobs li:first-child", "Send again");
    browser.wait_for(&format!("{gone}?.className == 'running'"));
    assert_eq!(server.queue.jobs().len(), 1);

    // Any number of them may wait: what follows them leaves room for other calls.
    for _ in 0..8 {
        browser.run("document.getElementById('form').requestSubmit()");
    }
    browser.wait_for("document.querySelectorAll('.jobs .queued').length == 8");
    browser.press_button("#pane-queue", "Cancel all of mine");
    browser.wait_for("document.querySelectorAll('.jobs .cancelled').length >= 9");
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn jobs_go_on_after_a_stop_and_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::keeping_at(folder.path(), QueueOptions::default(), 0);
    let browser = Browser::start();
    browser.visit(&server);
    send(&browser, "slow", "150");
    browser.click("#tab-queue");
    browser.wait_for("document.querySelector('.jobs .running')");
    let port = server.address.rsplit_once(':').unwrap().1.parse().unwrap();
    server.terminate.take().unwrap().send(()).unwrap();
    server.end().unwrap();
    drop(server);
    let server = Server::keeping_at(folder.path(), QueueOptions::default(), port);
    let id = server.queue.jobs()[0].id.clone();
    browser.wait_for(&format!(
        "document.querySelector('.jobs [data-id=\"{id}\"]').className == 'completed'"
    ));
    browser.wait_for("document.querySelectorAll('#gallery figure').length == 1");
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_grid_goes_on_past_a_cell_that_fails() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    browser.fill("#prompt", "a cat, <i>slow</i>");
    browser.fill("[name=seed]", "5");
    browser.click("#tab-grid");
    browser.choose("#axis-X", "steps");
    browser.fill("#axis-X-values", "x");
    let summary = "document.querySelector('#grid-summary').textContent";
    browser.wait_for("document.querySelector('#axis-X-error').textContent.includes('neither')");
    browser.wait_for("document.querySelector('#grid-start').disabled");
    browser.fill("#axis-X-values", "10-30 (+10), 999");
    browser.choose("#axis-Y", "prompt_sr");
    browser.fill("#axis-Y-values", "cat, oom");
    browser.wait_for(&format!("{summary}.startsWith('4 × 2 = 8 pictures')"));
    browser.click("#grid-start");
    // In the middle of it the page is opened anew.
    browser.wait_for("document.querySelector('.grid .cell.completed')");
    browser.visit(&server);
    browser.click("#tab-grid");
    let state = "document.querySelector('.grid .hint').textContent";
    browser.wait_for(&format!("{state} == 'finished: 3 of 8 made, 5 not'"));
    browser.wait_for(
        "[...document.querySelectorAll('.cell.completed img')].every(i => i.naturalWidth == 64)",
    );
    let head = "[...document.querySelectorAll('.grid th')].map(each => each.textContent)";
    assert_eq!(
        browser.value(head),
        json!([
            "Steps: 10",
            "Steps: 20",
            "Steps: 30",
            "Steps: 999",
            "cat",
            "oom"
        ])
    );
    let cells = "[...document.querySelectorAll('.grid .cell')].map(each => each.textContent)";
    let cells = browser.value(cells);
    assert!(
        cells[3].as_str().unwrap().contains("steps is 999"),
        "{cells}"
    );
    assert!(cells[4].as_str().unwrap().contains("memory"), "{cells}");
    // Nothing was made twice, but for a cell that was on its way when the page was left.
    let made = server.queue.jobs().len();
    assert!((6..=7).contains(&made), "{made}");

    browser.click(".grid .cell.completed");
    browser.wait_for(
        "document.querySelector('.viewer[open] .facts')?.textContent.includes('Steps: 10,')",
    );
    browser.press("\u{e00c}");
    browser.run(
        "const make = URL.createObjectURL;
         URL.createObjectURL = blob => { window.saved = blob; return make(blob); };",
    );
    browser.press_button(".grid", "Save as one picture");
    browser.wait_for("window.saved");
    let size =
        browser.value("createImageBitmap(window.saved).then(all => [all.width, all.height])");
    let size: Vec<u64> = serde_json::from_value(size).unwrap();
    assert!(size[0] > 4 * 64 && size[1] > 2 * 64, "{size:?}");

    // Cancelled, nothing more is sent.
    browser.choose("#axis-Y", "");
    browser.fill("#axis-X-values", "140-149");
    browser.click("#grid-start");
    browser.wait_for("document.querySelectorAll('.grid').length == 2");
    browser.wait_for("document.querySelector('.grid .cell.queued')");
    browser.press_button(".grid", "Cancel");
    browser.wait_for(
        "document.querySelector('.grid .hint').textContent == 'cancelled: 0 of 10 made, 10 not'",
    );
    assert!(server.queue.jobs().len() <= made + 3);
    let start = Instant::now();
    while server.queue.running().is_some() {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn keys_do_what_they_say_and_leave_text_alone() {
    let server = patient(0);
    let browser = Browser::start();
    browser.visit(&server);
    browser.fill("#prompt", "slow g? /1");
    browser.fill("[name=steps]", "5000");
    browser.click("#prompt");
    browser.press("gqhx?");
    let text = browser.value("document.querySelector('#prompt').value");
    assert!(text.as_str().unwrap().contains("gqhx?"), "{text}");
    browser.chord('\u{e009}', '\u{e007}');
    browser.wait_for("document.querySelector('.job progress').value > 0");
    assert_eq!(
        browser.value("document.querySelector('#prompt').value"),
        text
    );
    // Out of the field, then the job.
    browser.press("\u{e00c}");
    assert_eq!(browser.value("document.activeElement.tagName"), "BODY");
    assert!(server.queue.running().is_some());
    browser.press("\u{e00c}");
    browser.wait_for("document.querySelector('.job .status').textContent == 'cancelled'");

    let open = "document.querySelector('[role=tab][aria-selected=true]').id";
    for (key, pane) in [
        ("q", "queue"),
        ("h", "history"),
        ("x", "grid"),
        ("1", "text"),
        ("g", "gallery"),
    ] {
        browser.press(key);
        assert_eq!(browser.value(open), format!("tab-{pane}"));
    }
    browser.press("/");
    assert_eq!(browser.value("document.activeElement.type"), "search");
    browser.press("\u{e00c}?");
    browser.wait_for("document.querySelector('dialog.help').open");
    browser.press("\u{e00c}");
    browser.wait_for("!document.querySelector('dialog.help').open");
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_phone_scrolls_down_only() {
    let server = Server::start();
    let browser = Browser::sized(360, 740);
    browser.visit(&server);
    let long = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
        .repeat(3);
    browser.fill("#prompt", &long);
    browser.fill("[name=batch]", "3");
    browser.click("#go");
    browser.wait_for("document.querySelectorAll('#gallery figure').length == 3");
    browser.click("#tab-grid");
    browser.choose("#axis-X", "seed");
    browser.fill("#axis-X-values", "1-8");
    browser.click("#grid-start");
    browser.wait_for("document.querySelector('.grid .hint').textContent.startsWith('finished')");
    let fits = |what: &str| {
        browser.wait_for(&format!("document.querySelector('{what}').offsetParent"));
        let sides = browser.value(&format!(
            "[document.documentElement, document.querySelector('{what}')].map(each => each.scrollWidth)"
        ));
        let sides: Vec<u64> = serde_json::from_value(sides).unwrap();
        assert!(sides.iter().all(|side| *side <= 360), "{what}: {sides:?}");
    };
    let tabs = "[...document.querySelectorAll('[role=tab]')].filter(tab => !tab.hidden).map(tab => tab.id.slice(4))";
    let tabs: Vec<String> = serde_json::from_value(browser.value(tabs)).unwrap();
    for tab in &tabs {
        browser.click(&format!("#tab-{tab}"));
        fits("main");
    }
    browser.click("#tab-gallery");
    browser.click("#gallery .open");
    browser.wait_for("document.querySelector('.viewer[open] .sight img')");
    let sides = browser.value("document.querySelector('.viewer').scrollWidth");
    assert!(sides.as_u64() <= Some(360), "{sides}");
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn values_are_read_as_people_write_them() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    let read = |call: &str| {
        browser.value(&format!(
            "import(document.querySelector('script').src.replace('app.js', 'grid/values.js')).then(v => {{
                 try {{ return v.{call}; }} catch (error) {{ return error.message; }}
             }})"
        ))
    };
    for (text, whole, values) in [
        ("1, 2,4", true, json!([1, 2, 4])),
        ("1-5", true, json!([1, 2, 3, 4, 5])),
        ("10-30 (+5)", true, json!([10, 15, 20, 25, 30])),
        ("9-1 (-4), 0", true, json!([9, 5, 1, 0])),
        ("-3--1", true, json!([-3, -2, -1])),
        ("1-3 [3]", true, json!([1, 2, 3])),
        ("1-10 [5]", true, json!([1, 3, 5, 7, 10])),
        ("0.5-1 (+0.1)", false, json!([0.5, 0.6, 0.7, 0.8, 0.9, 1])),
        ("0-1 [5], 7.5", false, json!([0, 0.25, 0.5, 0.75, 1, 7.5])),
    ] {
        assert_eq!(
            read(&format!("numbers('{text}', {whole})")),
            values,
            "{text}"
        );
    }
    for (call, word) in [
        ("numbers('1.5', true)", "whole"),
        ("numbers('1-5 (-1)', true)", "reached"),
        ("numbers('1-5 (+0)', true)", "never"),
        ("numbers('1-100000', true)", "most"),
        ("numbers('1-2 [100000]', false)", "most"),
        ("numbers('a', true)", "neither"),
        ("sizes('64')", "512x768"),
        ("chosen('x', ['Euler'])", "none of Euler"),
        ("parts('\"a')", "no end"),
    ] {
        let said = read(call);
        assert!(
            said.as_str().is_some_and(|said| said.contains(word)),
            "{call}: {said}"
        );
    }
    assert_eq!(read("sizes('64x96, 32 × 32')"), json!([[64, 96], [32, 32]]));
    assert_eq!(
        read("chosen('euler A', ['Euler', 'Euler a'])"),
        json!(["Euler a"])
    );
    assert_eq!(
        read(r#"parts('cat, "big, ""old"" dog" ,, a b')"#),
        json!(["cat", "big, \"old\" dog", "a b"])
    );

    // What an axis changes in a request, and how its values are named.
    let changed = browser.value(
        "import(document.querySelector('script').src.replace('app.js', 'grid/axes.js')).then(({ axes, nameOf }) => {
             const body = { prompt: 'a cat <lora:x:0.5>', loras: [{ path: 'y', strength: 1 }], controls: [{ weight: 1 }, {}], highres: {} };
             const known = axes({ choices: null, models: ['a', 'b'], fields: body });
             return [['lora:x', '0.25'], ['lora:y', '0.5'], ['controls:1', '0.3'], ['highres:scale', '1.5'],
                     ['other', 'eta: 1'], ['size', '64x32'], ['model', 'B'], ['prompt_sr', 'cat, $& dog'], ['strength', '1']].map(([id, text]) => {
                 const axis = known.find(each => each.id == id);
                 const values = axis.read(text);
                 const one = { ...body };
                 axis.set(one, values.at(-1), values);
                 const fields = Object.keys(one).filter(name => one[name] !== body[name]);
                 const changes = Object.fromEntries(fields.map(name => [name, one[name]]));
                 return axis.refusal?.(body, values) ?? [nameOf(axis, values.at(-1)), changes];
             });
         })",
    );
    let lora_y = json!([{"path": "y", "strength": 1}]);
    assert_eq!(
        changed,
        json!([
            ["x: 0.25", {"prompt": "a cat <lora:x:0.25>", "loras": lora_y}],
            ["y: 0.5", {"loras": [{"path": "y", "strength": 0.5}]}],
            ["ControlNet 2: weight: 0.3", {"controls": [{"weight": 1}, {"weight": 0.3}]}],
            ["Highres fix: scale: 1.5", {"highres": {"scale": 1.5}}],
            ["eta: 1", {"eta": 1}],
            ["64 × 32", {"width": 64, "height": 32}],
            ["Model: b", {"model": "b"}],
            ["$& dog", {"prompt": "a $& dog <lora:x:0.5>"}],
            "strength needs a picture to start from",
        ])
    );
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn generating_for_ever_ends_when_told() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    browser.run(
        "window.told = [];
         window.Notification = class extends EventTarget {
             static permission = 'granted';
             static requestPermission = async () => 'granted';
             constructor(title) { super(); window.told.push(title); }
         };
         Object.defineProperty(document, 'hidden', { value: true });",
    );
    send(&browser, "a cat", "2");
    browser.click("#tab-queue");
    browser.click("#notify");
    browser.click("#forever");
    browser.wait_for("document.querySelectorAll('.jobs .completed').length >= 4");
    browser.wait_for("window.told[0] == 'The pictures are done'");
    browser.click("#forever");
    let start = Instant::now();
    let mut made = 0;
    // Nothing comes any more: the same number twice, a while apart.
    loop {
        let now = server.queue.jobs().len();
        if now == made {
            break;
        }
        made = now;
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(300));
    }
    // Each with a seed of its own.
    let outcomes = server
        .queue
        .jobs()
        .into_iter()
        .filter_map(|job| job.outcome);
    let seeds: Vec<u64> = outcomes.map(|outcome| outcome.pictures[0].seed).collect();
    let different: std::collections::HashSet<_> = seeds.iter().collect();
    assert_eq!(different.len(), seeds.len());

    // A failure ends it.
    browser.click("#tab-text");
    browser.fill("#prompt", "words");
    browser.click("#tab-queue");
    browser.click("#forever");
    browser.wait_for("!document.querySelector('#forever').checked");
    browser.wait_for("document.querySelector('#notices').textContent.includes('has stopped')");
    browser.wait_for("window.told.includes('A job has failed')");
}
