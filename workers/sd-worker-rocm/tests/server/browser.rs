//! A headless Chromium with the page, driven over the WebDriver protocol as a person uses it.

use crate::support::Server;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The name under which WebDriver passes elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page.
pub struct Browser {
    driver: Child,
    address: String,
    session: String,
}

/// A driver, its port, and what else it says; `None` if it ended before it had a port.
fn start_driver() -> Option<(Child, String, Lines<BufReader<ChildStdout>>)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(Stdio::piped())
        .spawn()
        .expect("chromedriver (Debian: chromium-driver)");
    let output = driver.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("successfully on port ")?;
        Some(port.trim_end_matches('.').to_string())
    });
    match port {
        Some(port) => Some((driver, port, lines)),
        None => {
            let _ = driver.wait();
            None
        }
    }
}

impl Browser {
    pub fn start() -> Self {
        Self::sized(1200, 900)
    }

    /// With a window of this size; a narrow one has a finger instead of a mouse.
    pub fn sized(width: usize, height: usize) -> Self {
        // Two that look for a port at once may choose the same one; the later one gives up.
        let (driver, port, lines) = (0..5).find_map(|_| start_driver()).expect("a driver");
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self {
            driver,
            address: format!("127.0.0.1:{port}"),
            session: String::new(),
        };
        let mut options = json!({"args": [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            format!("--window-size={width},{height}"),
        ]});
        // Windows have a least width; a phone's screen is emulated.
        if width < 500 {
            let screen = json!({"width": width, "height": height, "pixelRatio": 1, "touch": true});
            options["mobileEmulation"] = json!({"deviceMetrics": screen});
        }
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &capabilities);
        browser.session = session["sessionId"]
            .as_str()
            .expect("a session")
            .to_string();
        browser
    }

    /// The `value` of the driver's answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.exchange(method, path, body).unwrap();
        assert!(answer["value"]["error"].is_null(), "{answer}");
        answer["value"].clone()
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        // The driver keeps connections open: the length says where the answer ends.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim().to_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap_or(0);
            }
            if line.is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// The same, of this session.
    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}{path}", self.session), body)
    }

    pub fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// Opens the page and waits until it knows the model.
    pub fn visit(&self, server: &Server) {
        self.open(&format!("http://{}/", server.address));
        self.wait_for("document.querySelector('[name=steps]')");
    }

    /// The value of a script.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The value of an expression.
    pub fn value(&self, expression: &str) -> Value {
        self.run(&format!("return {expression}"))
    }

    /// Waits until a condition holds. What it asks about may not be there yet.
    pub fn wait_for(&self, condition: &str) {
        let start = Instant::now();
        let holds = format!("try {{ return Boolean({condition}) }} catch {{ return false }}");
        while self.run(&holds) != json!(true) {
            let text = self.value("document.body.innerText");
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{condition}; the page says {text}; {}",
                self.complaints()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the browser has to say against the page: errors of scripts, what its policy forbids. Requests that the server
    /// refuses are no fault of the page.
    pub fn complaints(&self) -> Value {
        let mut log = self.post("/se/log", &json!({"type": "browser"}));
        if let Some(lines) = log.as_array_mut() {
            lines.retain(|line| line["source"] != "network");
        }
        log
    }

    fn find(&self, selector: &str) -> String {
        let by = json!({"using": "css selector", "value": selector});
        let found = self.post("/element", &by);
        found[ELEMENT].as_str().expect("an element").to_string()
    }

    /// Clicks the first element that fits.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types into a field, behind what it has; into one of files, their paths.
    pub fn keys(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        let path = format!("/element/{element}/value");
        self.post(&path, &json!({"text": text}));
    }

    /// Types into an empty field.
    pub fn fill(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.post(&format!("/element/{element}/clear"), &json!({}));
        self.keys(selector, text);
    }

    /// Types into whatever has the focus, key after key.
    pub fn press(&self, keys: &str) {
        self.strike(keys.chars().flat_map(|key| [(key, true), (key, false)]));
    }

    /// Presses a key while another one is held.
    pub fn chord(&self, held: char, key: char) {
        self.strike([(held, true), (key, true), (key, false), (held, false)]);
    }

    /// Keys that go down, or up.
    fn strike(&self, keys: impl IntoIterator<Item = (char, bool)>) {
        let actions = keys.into_iter().map(|(key, down)| {
            let kind = if down { "keyDown" } else { "keyUp" };
            json!({"type": kind, "value": key})
        });
        let keyboard =
            json!({"type": "key", "id": "keyboard", "actions": actions.collect::<Vec<_>>()});
        self.post("/actions", &json!({"actions": [keyboard]}));
    }

    /// Clicks the first button within an element that has this label and can be clicked.
    pub fn press_button(&self, within: &str, label: &str) {
        let (within, label) = (json!(within), json!(label));
        self.wait_for(&format!(
            "(window.wanted = [...document.querySelectorAll({within} + ' button')]
                 .find(each => each.textContent == {label} && each.offsetParent && !each.disabled))"
        ));
        self.run("window.wanted.click();");
    }

    /// Chooses from a list by value.
    pub fn choose(&self, selector: &str, value: &str) {
        let (selector, value) = (json!(selector), json!(value));
        self.run(&format!(
            "const list = document.querySelector({selector}); list.value = {value};
             if (list.value !== {value}) throw new Error('no such choice');
             list.dispatchEvent(new Event('change', {{bubbles: true}}));"
        ));
    }

    /// Draws a line over an element with a `mouse`, `pen` or `touch`, between points in shares of its sides.
    pub fn draw(&self, selector: &str, pointer: &str, points: &[(f64, f64)]) {
        let box_of = format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()",
            json!(selector)
        );
        let bounds: Vec<f64> = serde_json::from_value(self.value(&box_of)).unwrap();
        let at = |(x, y): (f64, f64)| {
            json!({
                "type": "pointerMove", "duration": 20, "origin": "viewport",
                "x": (bounds[0] + x * bounds[2]) as i64, "y": (bounds[1] + y * bounds[3]) as i64,
            })
        };
        let mut actions = vec![at(points[0]), json!({"type": "pointerDown", "button": 0})];
        actions.extend(points[1..].iter().map(|point| at(*point)));
        actions.push(json!({"type": "pointerUp", "button": 0}));
        let pointer = json!({
            "type": "pointer", "id": pointer, "parameters": {"pointerType": pointer}, "actions": actions,
        });
        self.post("/actions", &json!({"actions": [pointer]}));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser whose driver is killed goes on without it: its session ends first.
        let session = format!("/session/{}", self.session);
        let _ = self.exchange("DELETE", &session, &json!({}));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
