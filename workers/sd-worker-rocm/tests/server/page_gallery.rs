//! The page's gallery and history in a browser: what is there after a reload, and what is done with it.

use crate::browser::Browser;
use crate::support::{generation, Server};
use sd_worker_rocm::image_io::{self, DecodeLimits};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;
use std::time::{Duration, Instant};

/// A prompt that would run a script if it became markup.
const HOSTILE: &str =
    "a <img src=x onerror='window.harmed=1'> \"cat\" & </pre><script>window.harmed=1</script>";
/// How many pictures the gallery shows.
const FIGURES: &str = "document.querySelectorAll('#gallery figure').length";
/// How many of them are copied into the browser.
const KEPT: &str = "parseInt(document.querySelector('#gallery ~ .hint').textContent)";

fn send(browser: &Browser, prompt: &str, seed: &str, batch: &str) {
    browser.click("#tab-text");
    browser.fill("#prompt", prompt);
    browser.fill("[name=seed]", seed);
    browser.fill("[name=batch]", batch);
    browser.click("#go");
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn pictures_stay_after_a_reload() {
    // The server forgets all but the newest job.
    let options = QueueOptions {
        keep_count: 1,
        ..QueueOptions::default()
    };
    let server = Server::with(options, ServerOptions::default());
    let browser = Browser::start();
    browser.visit(&server);
    send(&browser, HOSTILE, "7", "2");
    browser.wait_for(&format!("{KEPT} == 2"));
    send(&browser, "a dog", "30", "1");
    browser.wait_for(&format!("{KEPT} == 3"));
    let theirs = server.submit(&generation("another client's"));
    server.wait_for(&theirs, "completed");
    let known = server.get("/v1/jobs").1["jobs"].clone();
    assert_eq!(known.as_array().unwrap().len(), 1);

    browser.visit(&server);
    browser.click("#tab-gallery");
    browser.wait_for(&format!("{FIGURES} == 4"));
    browser.wait_for("document.querySelectorAll('#gallery figure.foreign').length == 1");
    browser.wait_for("[...document.querySelectorAll('#gallery img')].every(i => i.complete && i.naturalWidth == 64)");
    let captions = "[...document.querySelectorAll('#gallery figcaption')].map(c => c.textContent)";
    assert_eq!(
        browser.value(&format!("{captions}.slice(1)")),
        json!([
            "30 · a dog",
            format!("8 · {HOSTILE}"),
            format!("7 · {HOSTILE}")
        ])
    );

    // Search, then the large view of what was found.
    browser.fill("#pane-gallery input[type=search]", "CAT onerror");
    browser.wait_for(&format!("{FIGURES} == 2"));
    browser.click("#gallery .open");
    browser.wait_for("document.querySelector('.viewer[open] .sight img')?.naturalWidth == 64");
    let facts = "document.querySelector('.viewer .facts').textContent";
    browser.wait_for(&format!("{facts}.includes('Seed: 8,')"));
    browser.press("\u{e014}");
    browser.wait_for(&format!("{facts}.includes('Seed: 7,')"));
    // A finger moves it on as well.
    browser.draw(".viewer .sight", "touch", &[(0.2, 0.5), (0.8, 0.5)]);
    browser.wait_for(&format!("{facts}.includes('Seed: 8,')"));
    assert_eq!(browser.value("window.harmed"), json!(null));

    // It goes where it is sent.
    browser.choose(".viewer select.send", "image");
    browser.wait_for("document.querySelector('#tab-image').ariaSelected == 'true'");
    browser.wait_for("!document.querySelector('dialog[open]')");
    browser.wait_for("document.querySelector('#source img, #source canvas')?.offsetParent");
    browser.click("#go");
    browser.wait_for(&format!("{KEPT} == 4"));
    browser.click("#tab-history");
    browser.wait_for("document.querySelector('.past').innerText.includes('from a picture')");
    assert_eq!(browser.complaints(), json!([]));
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn pictures_are_compared_saved_and_deleted() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    send(&browser, "a/b: ../c", "1", "3");
    browser.click("#tab-gallery");
    browser.wait_for(&format!("{KEPT} == 3"));
    let jobs = server.get("/v1/jobs").1["jobs"].clone();
    let job = format!("/v1/jobs/{}", jobs[0]["id"].as_str().unwrap());

    // The newest has seed 3; the older one of two is on the left.
    browser.click("#gallery figure:nth-child(1) input");
    browser.click("#gallery figure:nth-child(3) input");
    browser.press_button("#pane-gallery .picked", "Compare");
    browser.wait_for("document.querySelector('.compare[open] .front')?.naturalWidth == 64");
    let names = browser.value("document.querySelector('.compare .names').textContent");
    assert_eq!(names, "1 · a/b: ../c3 · a/b: ../c");
    browser.press("\u{e011}");
    let clip = "document.querySelector('.compare .front').style.clipPath";
    browser.wait_for(&format!("{clip} == 'inset(0px 100% 0px 0px)'"));
    browser.press("\u{e00c}");
    browser.wait_for("!document.querySelector('dialog[open]')");

    // Both in one archive, whose files are the server's.
    browser.run(
        "window.saved = []; const make = URL.createObjectURL;
         URL.createObjectURL = blob => { if (blob.type == 'application/zip') window.saved.push(blob); return make(blob); };",
    );
    browser.press_button("#pane-gallery .picked", "Download");
    browser.wait_for("window.saved.length == 1");
    let bytes =
        browser.value("window.saved[0].arrayBuffer().then(all => [...new Uint8Array(all)])");
    let bytes: Vec<u8> = serde_json::from_value(bytes).unwrap();
    let files = stored(&bytes);
    assert_eq!(files.len(), 2);
    for (seed, (name, file)) in [3, 1].into_iter().zip(files) {
        assert!(name.ends_with(&format!("-{seed}-a-b-c.png")), "{name}");
        let served = server.send("GET", &format!("{job}/images/{}", seed - 1), "", b"");
        assert_eq!(file, served.2);
        let image = image_io::decode(file, &DecodeLimits::default()).unwrap();
        assert_eq!(image_io::to_rgb(&image).get_pixel(0, 0).0[0], seed);
    }

    // A favourite outlives others that are newer.
    browser.click("#gallery figure:nth-child(3) .star");
    browser.wait_for("document.querySelectorAll('#gallery .star')[2].textContent == '★'");
    let left = browser.value(
        "import(document.querySelector('script').src.replace('app.js', 'gallery/collection.js'))
             .then(async ({ Collection }) => {
                 const told = [];
                 const backend = { blob: async () => new Blob(['x'], { type: 'image/png' }) };
                 const callbacks = { told: text => told.push(text), dropped: () => {} };
                 const collection = new Collection(backend, callbacks, { pictures: 3, bytes: 1e9 });
                 await collection.open();
                 const images = [{ url: '/new', seed: 9, parameters: 'new' }];
                 const job = { id: 'new', images, created: Date.now() / 1000 + 60 };
                 await collection.takeFromServer([job], () => true);
                 return [collection.all.map(({ seed }) => seed), told];
             })",
    );
    assert_eq!(left[0], json!([9, 3, 1]));
    assert!(left[1][0].as_str().unwrap().contains("oldest"), "{left}");

    // Deleted here, its job is deleted there.
    browser.visit(&server);
    browser.run("window.confirm = () => true;");
    browser.click("#tab-gallery");
    browser.wait_for(&format!("{FIGURES} == 3"));
    browser.run("document.querySelectorAll('#gallery input').forEach(box => box.click())");
    browser.press_button("#pane-gallery .picked", "Delete");
    browser.wait_for(&format!("{FIGURES} == 0"));
    let start = Instant::now();
    while server.get(&job).0 != 404 {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    browser.visit(&server);
    browser.wait_for(&format!("{KEPT} == 0"));
}

/// Names and contents of the files of an archive that compresses nothing, by its directory.
fn stored(archive: &[u8]) -> Vec<(String, &[u8])> {
    let number = |at: usize, size: usize| {
        let bytes = archive[at..at + size].iter().rev();
        bytes.fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
    };
    let end = archive.len() - 22;
    assert_eq!(number(end, 4), 0x0605_4b50);
    let mut at = number(end + 16, 4);
    let mut files = Vec::new();
    for _ in 0..number(end + 10, 2) {
        assert_eq!(number(at, 4), 0x0201_4b50);
        let (size, name, local) = (number(at + 24, 4), number(at + 28, 2), number(at + 42, 4));
        assert_eq!(number(local, 4), 0x0403_4b50);
        let text = String::from_utf8(archive[local + 30..local + 30 + name].to_vec()).unwrap();
        let content = local + 30 + name + number(local + 28, 2);
        files.push((text, &archive[content..content + size]));
        at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
    }
    assert_eq!(at, end);
    files
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn requests_are_used_again() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    for (prompt, seed) in [("first", "3"), (HOSTILE, "5"), ("first", "4")] {
        send(&browser, prompt, seed, "1");
    }
    let rows =
        "[...document.querySelectorAll('.past li .prompt:first-child')].map(row => row.textContent)";
    browser.wait_for(&format!("{rows}.length == 2"));
    browser.visit(&server);
    browser.click("#tab-history");
    browser.wait_for(&format!("{rows}.length == 2"));
    assert_eq!(browser.value(rows), json!(["first", HOSTILE]));
    browser.wait_for("document.querySelector('.past').innerText.includes('2 times')");
    browser.fill("#pane-history input[type=search]", "Cat");
    assert_eq!(browser.value(rows), json!([HOSTILE]));
    browser.press_button(".past", "Pin");
    browser.wait_for("document.querySelector('.past .pinned')");
    browser.visit(&server);
    browser.click("#tab-history");
    browser.wait_for(&format!("{rows}[0]?.startsWith('a <img')"));

    let is = |prompt: &str, seed: &str| {
        let values = "['#prompt', '[name=seed]'].map(each => document.querySelector(each).value)";
        assert_eq!(browser.value(values), json!([prompt, seed]));
    };
    is("first", "4");
    browser.press_button(".past .pinned", "Use all");
    is(HOSTILE, "5");
    browser.click("#tab-history");
    browser.press_button(".past li:not(.pinned)", "Use prompt");
    is("first", "5");

    // A mask is part of a request.
    browser.click("#tab-gallery");
    browser.click("#gallery .open");
    browser.wait_for("document.querySelector('.viewer[open] .sight img')");
    browser.choose(".viewer select.send", "inpaint");
    browser.wait_for("document.querySelector('.editor canvas')?.offsetParent");
    browser.draw(".editor canvas", "mouse", &[(0.3, 0.5), (0.7, 0.5)]);
    browser.click("#go");
    let top = "document.querySelector('.past li:not(.pinned)')?.textContent";
    browser.wait_for(&format!("{top}?.includes('inpainting')"));
    browser.visit(&server);
    browser.click("#tab-history");
    browser.wait_for(&format!("{top}?.includes('inpainting')"));
    browser.press_button(".past li:not(.pinned)", "Use all");
    browser.wait_for("document.querySelector('#tab-inpaint').ariaSelected == 'true'");
    browser.wait_for("document.querySelector('.editor canvas')?.offsetParent");
    browser.click("#go");
    browser.wait_for(&format!("{top}?.includes('2 times')"));
    assert_eq!(browser.value("window.harmed"), json!(null));
    assert_eq!(browser.complaints(), json!([]));
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn videos_play_and_give_a_frame() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    // The stand-in for a model makes none that plays: the browser records a green one, whose first frame is black.
    browser.run(
        "return import(document.querySelector('script').src.replace('app.js', 'disk.js')).then(async ({ disk }) => {
             const canvas = document.createElement('canvas');
             canvas.width = canvas.height = 64;
             const context = canvas.getContext('2d');
             context.fillRect(0, 0, 64, 64);
             const file = await new Promise(resolve => canvas.toBlob(resolve));
             const parts = [];
             const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: 'video/webm' });
             recorder.ondataavailable = event => parts.push(event.data);
             context.fillStyle = 'rgb(0, 200, 0)';
             recorder.start(50);
             for (let i = 0; i < 10 || !parts.some(({ size }) => size); i++) {
                 context.fillRect(0, 0, 64, 64);
                 await new Promise(resolve => setTimeout(resolve, 30));
             }
             await new Promise(resolve => { recorder.onstop = resolve; recorder.stop(); });
             const video = new Blob(parts, { type: 'video/webm' });
             const known = { job: 'v', index: 0, kept: true, mine: true, isVideo: true, time: 1, seed: 3, parameters: 'moves', prompt: 'moves' };
             await disk.put([['pictures', { id: 'v-0', ...known }], ['files', { id: 'v-0', file, video }]]);
         })",
    );
    browser.visit(&server);
    browser.click("#tab-gallery");
    browser.choose("#pane-gallery .bar select", "videos");
    browser.click("#gallery figure.video .open");
    browser.wait_for("document.querySelector('.viewer[open] video')?.readyState >= 2");
    let played = browser.value(
        "(({ loop, controls }) => [loop, controls])(document.querySelector('.viewer video'))",
    );
    assert_eq!(played, json!([true, true]));
    browser.click(".viewer label input");
    browser.wait_for("!document.querySelector('.viewer video').loop");
    browser.choose(".viewer select.send", "image");
    browser.wait_for("document.querySelector('#source img')?.naturalWidth == 64");
    let pixel = browser.value(
        "(async () => {
             const canvas = new OffscreenCanvas(1, 1);
             canvas.getContext('2d').drawImage(document.querySelector('#source img'), 0, 0);
             return [...canvas.getContext('2d').getImageData(0, 0, 1, 1).data];
         })()",
    );
    let pixel: Vec<i64> = serde_json::from_value(pixel).unwrap();
    assert!((pixel[1] - 200).abs() < 20 && pixel[0] < 30, "{pixel:?}");
}
