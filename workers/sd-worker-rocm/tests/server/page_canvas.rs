//! The page's canvas: masks, sketches, sides to paint, with a small model.

use crate::browser::Browser;
use crate::common::tiny_on;
use crate::support::Server;
use candle_core::Device;
use image::{Rgb, RgbImage};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::server::ServerOptions;
use std::sync::Arc;

const SHOWN: &str = "document.querySelectorAll('#results figure img').length";

/// A picture in which no pixel is like its neighbour.
fn original() -> RgbImage {
    RgbImage::from_fn(64, 64, |x, y| {
        Rgb([(x * 4) as u8, (y * 4) as u8, ((x * y) % 256) as u8])
    })
}

/// The picture of the newest job.
fn newest(server: &Server) -> RgbImage {
    let (_, list) = server.get("/v1/jobs");
    let jobs = list["jobs"].as_array().unwrap();
    let newest = jobs.iter().max_by_key(|job| job["created"].as_u64());
    let url = newest.unwrap()["images"][0]["url"].as_str().unwrap();
    let (status, _, bytes) = server.send("GET", url, "", b"");
    assert_eq!(status, 200);
    image::load_from_memory(&bytes).unwrap().to_rgb8()
}

/// Whether two pictures are the same, bit for bit, where `inside` says so.
fn is_same(a: &RgbImage, b: &RgbImage, inside: impl Fn(u32, u32) -> bool) -> bool {
    let mut pixels = a.enumerate_pixels().filter(|(x, y, _)| inside(*x, *y));
    pixels.all(|(x, y, pixel)| pixel == b.get_pixel(x, y))
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_mask_is_drawn_and_painted() {
    let pipeline = tiny_on(&Device::Cpu, PipelineOptions::default());
    let (queue, options) = (QueueOptions::default(), ServerOptions::default());
    let server = Server::over(Box::new(pipeline), Arc::default(), queue, options);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("picture.png");
    let before = original();
    before.save(&file).unwrap();
    let browser = Browser::start();
    browser.visit(&server);
    browser.click("#tab-inpaint");

    // Without a picture, and without a mask, the page says what is missing.
    browser.click("#go");
    browser
        .wait_for("document.getElementById('refusal').textContent.startsWith('Choose a picture')");
    browser.keys(".editor input[type=file]", file.to_str().unwrap());
    browser.wait_for("document.querySelector('.canvas').checkVisibility()");
    // The picture's size is the request's.
    browser.wait_for("document.querySelector('[name=width]').value == '64'");
    browser.click("#go");
    browser.wait_for("document.getElementById('refusal').textContent.startsWith('Draw over')");

    // A stroke down the right half of the picture, which stands in the middle of a wide canvas.
    browser.run("const size = document.querySelector('[name=brush-size]'); size.value = 16; size.dispatchEvent(new Event('input'));");
    browser.draw(".canvas", "mouse", &[(0.6, 0.4), (0.6, 0.5), (0.6, 0.6)]);
    browser.fill("#prompt", "a red circle");
    browser.wait_for("document.querySelector('.count').textContent == '3 / 75'");
    browser.fill("[name=steps]", "2");
    browser.fill("[name=strength]", "1");
    browser.fill("[name=seed]", "3");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 1"));
    let painted = newest(&server);
    assert_eq!(painted.dimensions(), (64, 64));
    assert!(
        is_same(&before, &painted, |x, _| x < 30),
        "outside of the mask"
    );
    assert!(!is_same(&before, &painted, |x, y| x > 36
        && x < 56
        && y > 20
        && y < 44));

    // Undo leaves no mask; redo and the keys bring it back and invert it: now the left side is painted.
    browser.click("[aria-label^='Undo']");
    browser.click("#go");
    browser.wait_for("document.getElementById('refusal').textContent.startsWith('Draw over')");
    browser.click("[aria-label^='Redo']");
    browser.keys(".canvas", "i");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 2"));
    let inverted = newest(&server);
    assert!(!is_same(&before, &inverted, |x, _| x < 30));
    assert!(
        is_same(&before, &inverted, |x, y| x == 42 && y > 28 && y < 36),
        "inside of the old mask"
    );

    // A pen's sketch without a mask starts the picture from what is sketched; the result comes back into the canvas.
    browser.click("[data-tool=mask]");
    browser.click("[aria-label^='Clear']");
    browser.click("[data-tool=sketch]");
    browser.draw(".canvas", "pen", &[(0.45, 0.4), (0.45, 0.6)]);
    browser.click("#sketch-masks");
    browser.fill("[name=strength]", "0");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 3"));
    let red = |picture: &RgbImage| u32::from(picture.get_pixel(25, 32)[0]);
    assert!(red(&before) < 110 && red(&newest(&server)) > 150);
    browser.choose(".job .send", "inpaint");
    browser.wait_for("document.getElementById('notices').textContent.includes('Sent')");

    // Sides: the dot at the left edge of the picture is dragged out, and a number says the rest.
    let at = browser
        .value("document.querySelector('.canvas').clientWidth")
        .as_f64()
        .unwrap();
    let high = browser
        .value("document.querySelector('.canvas').clientHeight")
        .as_f64()
        .unwrap();
    // The picture fills the height but for 22 pixels at both ends, at most eightfold.
    let side = (high - 44.0).min(8.0 * 64.0);
    let dot = ((at - side) / 2.0 - 8.0) / at;
    browser.draw(".canvas", "mouse", &[(dot, 0.5), (dot - 0.1, 0.5)]);
    let dragged = browser.value("Number(document.querySelector('[name=\"outpaint.left\"]').value)");
    let expected = 0.1 * at * 64.0 / side;
    assert!(
        (dragged.as_f64().unwrap() - expected).abs() <= 2.0,
        "{dragged}, not {expected}"
    );
    browser.click(".outpaint summary");
    browser.fill("[name='outpaint.left']", "16");
    browser.fill("[name='outpaint.bottom']", "30");
    browser.fill("[name=strength]", "1");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 4"));
    assert_eq!(newest(&server).dimensions(), (80, 96));
    assert_eq!(browser.complaints(), serde_json::json!([]));
}
