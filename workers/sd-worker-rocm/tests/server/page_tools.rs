//! The page's panes for pictures that are there already, pictures sent from pane to pane, and a phone's width.

use crate::browser::Browser;
use crate::support::Server;
use image::{Rgb, RgbImage};
use serde_json::json;

const SHOWN: &str = "document.querySelectorAll('#results figure img').length";

#[test]
#[ignore = "needs chromium and chromedriver"]
fn pictures_go_from_pane_to_pane() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("picture.png");
    let picture = RgbImage::from_fn(32, 24, |x, _| Rgb([if x < 16 { 0 } else { 255 }; 3]));
    picture.save(&file).unwrap();
    let browser = Browser::start();
    browser.visit(&server);

    // Larger, then edges of it, then a picture to start from.
    browser.click("#tab-upscale");
    browser.keys("#pane-upscale input[type=file]", file.to_str().unwrap());
    browser.wait_for("document.querySelector('#pane-upscale .slot img').naturalWidth");
    browser.choose("#pane-upscale [name=upscaler_1]", "Nearest");
    browser.fill("#pane-upscale [name=upscaling_resize]", "3");
    browser.click("#pane-upscale .primary");
    browser.wait_for("document.querySelector('#pane-upscale figure img')?.naturalWidth == 96");
    browser.choose("#pane-upscale .send", "preprocess");
    browser.wait_for("document.querySelector('#pane-preprocess .slot img').naturalWidth == 96");
    browser.choose("#pane-preprocess [name=preprocessor]", "canny");
    assert_eq!(
        browser.value("document.querySelectorAll('#pane-preprocess [name=thresholds]').length"),
        2
    );
    browser.click("#pane-preprocess .primary");
    browser.wait_for("document.querySelector('#pane-preprocess figure img')?.naturalWidth == 96");
    browser.choose("#pane-preprocess .send", "image");
    browser.wait_for("document.querySelector('[name=width]').value == '96'");
    browser.fill("#prompt", "a <i>door</i>");
    browser.fill("[name=strength]", "0.5");
    browser.fill("[name=seed]", "11");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 1"));

    // What it was made with is told, and goes back into the form.
    browser.choose(".job .send", "info");
    browser.wait_for("document.querySelector('.told .text')");
    assert_eq!(
        browser.value("document.querySelector('.told .text').textContent"),
        "a <i>door</i>"
    );
    let table = browser.value("document.querySelector('.told table').innerText");
    assert!(table.as_str().unwrap().contains("Seed\t11"), "{table}");
    browser.click("#tab-text");
    browser.fill("#prompt", "something else");
    browser.fill("[name=seed]", "12");
    browser.click("#tab-info");
    browser.click(".told .use");
    assert_eq!(
        browser.value("[location.hash, document.getElementById('prompt').value]"),
        json!(["#text", "a <i>door</i>"])
    );
    assert_eq!(
        browser.value("document.querySelector('[name=seed]').value"),
        "11"
    );

    // What is started from can be drawn on.
    browser.click("#tab-image");
    browser.click(".draw");
    browser.wait_for("location.hash == '#inpaint' && document.querySelector('.editor .hint').textContent == '96 x 72'");

    // A file that is no picture is told to be none.
    let text = folder.path().join("text.png");
    std::fs::write(&text, "no picture").unwrap();
    browser.click("#tab-image");
    browser.keys("#source input[type=file]", text.to_str().unwrap());
    browser.wait_for("document.querySelector('.notice.error')?.textContent.includes('no picture')");
    assert_eq!(browser.complaints(), json!([]));
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_phone_shows_all_panes() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("picture.png");
    RgbImage::new(64, 64).save(&file).unwrap();
    let browser = Browser::sized(360, 740);
    browser.visit(&server);
    let tabs = browser.value("[...document.querySelectorAll('#tabs button')].filter(tab => !tab.hidden).map(tab => tab.id)");
    browser.run(
        "document.querySelectorAll('#settings details').forEach(each => { each.open = true; })",
    );
    for tab in tabs.as_array().unwrap() {
        let tab = tab.as_str().unwrap();
        browser.click(&format!("#{tab}"));
        assert_eq!(
            browser.value("document.documentElement.scrollWidth"),
            360,
            "{tab}"
        );
    }
    // A finger draws; two pinch, and what the first one drew before is taken back.
    browser.click("#tab-inpaint");
    browser.keys(".editor input[type=file]", file.to_str().unwrap());
    browser.wait_for("document.querySelector('.canvas').checkVisibility()");
    assert_eq!(browser.value("document.documentElement.scrollWidth"), 360);
    let undo = "document.querySelector('[aria-label^=Undo]').disabled";
    assert_eq!(browser.value(undo), true);
    browser.draw(".canvas", "touch", &[(0.5, 0.45), (0.5, 0.55)]);
    assert_eq!(browser.value(undo), false);
    // The results come before the settings.
    browser.fill("#prompt", "a cat");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 1"));
    let top = |what: &str| {
        browser
            .value(&format!(
                "document.querySelector('{what}').getBoundingClientRect().top"
            ))
            .as_f64()
            .unwrap()
    };
    assert!(top("#results figure") < top("#settings"));
    // Everything that can be used has a name.
    let nameless = "[...document.querySelectorAll('button, input, select, textarea, canvas')].filter(each => !each.labels?.length
        && !each.getAttribute('aria-label') && !each.textContent.trim() && !each.querySelector('img[alt]') && each.getAttribute('aria-hidden') !== 'true')
        .map(each => each.outerHTML)";
    assert_eq!(browser.value(nameless), json!([]));
    assert_eq!(browser.complaints(), json!([]));
}
