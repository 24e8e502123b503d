//! The page in a headless Chromium, driven over the WebDriver protocol.

use crate::support::Server;
use sd_worker_rocm::sampling::{Sampler, Schedule};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A browser with one page.
struct Browser {
    driver: Child,
    address: String,
    session: String,
}

impl Browser {
    fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver (Debian: chromium-driver)");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("chromedriver tells its port").unwrap();
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').to_string();
            }
        };
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self {
            driver,
            address: format!("127.0.0.1:{port}"),
            session: String::new(),
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1200,900",
        ];
        let capabilities =
            json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}});
        let session = browser.ask("POST", "/session", &capabilities);
        browser.session = session["sessionId"]
            .as_str()
            .expect("a session")
            .to_string();
        browser
    }

    /// The `value` of the driver's answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        // The driver keeps connections open: the length says where the answer ends.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim().to_lowercase();
            if let Some(bytes) = line.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["value"]["error"].is_null(), "{answer}");
        answer["value"].clone()
    }

    fn open(&self, url: &str) {
        let path = format!("/session/{}/url", self.session);
        self.ask("POST", &path, &json!({"url": url}));
    }

    /// The value of a script.
    fn run(&self, script: &str) -> Value {
        let path = format!("/session/{}/execute/sync", self.session);
        self.ask("POST", &path, &json!({"script": script, "args": []}))
    }

    fn wait_for(&self, condition: &str) {
        let start = Instant::now();
        while self.run(&format!("return Boolean({condition})")) != json!(true) {
            let page = self.run("return document.getElementById('status').textContent");
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{condition}; status {page}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its driver.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_person_uses_the_page() {
    let server = Server::with_key();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", server.address));
    // Without the key nothing works, and the page asks for it.
    browser.wait_for("!document.getElementById('key-row').hidden");
    browser.run(
        "const key = document.getElementById('key'); key.value = 'secret'; key.dispatchEvent(new Event('change'));",
    );
    browser.wait_for(&format!(
        "document.getElementById('sampler').options.length == {}",
        Sampler::ALL.len()
    ));
    assert_eq!(
        browser.run("return document.getElementById('model').textContent"),
        "painter"
    );
    assert_eq!(
        browser.run("return document.getElementById('sampler').value"),
        "DDIM"
    );
    assert_eq!(
        browser.run("return document.getElementById('schedule').value"),
        Schedule::Discrete.label()
    );
    assert_eq!(
        browser.run("return document.getElementById('width').value"),
        "64"
    );

    // Previews and progress show while it runs; the picture joins the gallery.
    browser.run(
        "window.seen = 0;
         new MutationObserver(() => { if (!document.getElementById('preview').hidden) window.seen++; })
             .observe(document.getElementById('preview'), {attributes: true});
         document.getElementById('prompt').value = 'a slow <b>cat</b>';
         document.getElementById('seed').value = 7;
         document.getElementById('batch').value = 2;
         document.getElementById('steps').value = 10;
         document.getElementById('form').requestSubmit();",
    );
    browser.wait_for("document.querySelectorAll('#gallery img').length == 2");
    browser.wait_for("[...document.querySelectorAll('#gallery img')].every(i => i.complete && i.naturalWidth == 64)");
    assert!(browser.run("return window.seen").as_u64() > Some(0));
    let caption = browser.run("return document.querySelector('figcaption').textContent");
    assert_eq!(caption, "8 · a slow <b>cat</b>");
    browser.wait_for("document.getElementById('status').textContent.startsWith('done in')");

    // Cancel.
    browser.run("document.getElementById('steps').value = 60; document.getElementById('form').requestSubmit();");
    browser.wait_for(
        "!document.getElementById('cancel').disabled && document.getElementById('bar').value > 0",
    );
    browser.run("document.getElementById('cancel').click()");
    browser.wait_for("document.getElementById('status').textContent == 'the job was cancelled'");
    assert_eq!(
        browser.run("return document.getElementById('go').disabled"),
        false
    );

    // A mistake is shown in words.
    browser.run(
        "document.getElementById('seed').value = ''; document.getElementById('prompt').value = 'panic'; document.getElementById('form').requestSubmit();",
    );
    browser.wait_for("document.getElementById('status').classList.contains('error')");

    // A new visit finds the pictures of before.
    browser.open(&format!("http://{}/", server.address));
    browser.wait_for("document.querySelectorAll('#gallery img').length == 2");
}
