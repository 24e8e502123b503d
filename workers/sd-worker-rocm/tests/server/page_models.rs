//! The page over several models: another one is chosen, and the form becomes that one's.

use crate::browser::Browser;
use crate::program::{program, Program};
use crate::small;
use serde_json::json;
use std::path::Path;

/// Tabs of the form that the model has.
const TABS: &str =
    "[...document.querySelectorAll('#tabs button')].filter(tab => !tab.hidden).map(tab => tab.id)
    .filter(id => ['tab-text', 'tab-video', 'tab-image', 'tab-inpaint'].includes(id))";

#[test]
#[ignore = "needs chromium and chromedriver"]
fn another_model_is_chosen() {
    let p = small::Pipelines::of("ltx");
    p.folder("ltx_keyed");
    let shapes = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-shapes-sd");
    std::os::unix::fs::symlink(shapes, p.place().join("shapes")).unwrap();
    let frame = tempfile::tempdir().unwrap();
    let frame = frame.path().join("frame.png");
    image::RgbImage::new(32, 32).save(&frame).unwrap();
    let mut command = program();
    command
        .args(["serve", "--port", "0", "--device", "cpu", "--models"])
        .arg(p.place());
    let fleet = Program::start(command);
    let address = format!("http://{}/", fleet.address);
    let browser = Browser::start();
    browser.open(&address);
    browser.wait_for("document.querySelector('[name=steps]')");
    let names = "[...document.getElementById('models').options].map(each => each.value)";
    assert_eq!(browser.value(names), json!(["ltx_keyed", "shapes"]));
    assert_eq!(browser.value(TABS), json!(["tab-video"]));

    // A video with a frame between its ends.
    browser.fill("#prompt", "a red circle");
    for (field, value) in [
        ("frames", "9"),
        ("frame_noise", "0.1"),
        ("decode_timestep", "0.06"),
        ("decode_noise", "0.03"),
        ("width", "256"),
        ("height", "256"),
        ("steps", "3"),
    ] {
        browser.fill(&format!("[name={field}]"), value);
    }
    browser.click("[data-list=key_frames] summary");
    browser.click("[data-list=key_frames] > button");
    browser.click("#go");
    browser.wait_for("document.querySelector('[data-list=key_frames] > .error').textContent.includes('has no picture')");
    let slot = "[data-list=key_frames] input[type=file]";
    browser.keys(slot, frame.to_str().unwrap());
    browser.wait_for("document.querySelector('[data-list=key_frames] .slot img').naturalWidth");
    // What the model refuses stands there.
    browser.fill("[name=frame]", "8");
    browser.fill("[name=frame]", "9");
    browser.click("#go");
    browser.wait_for("document.querySelector('[data-list=key_frames] > .error').textContent.includes('behind the last one')");
    browser.fill("[name=frame]", "8");
    browser.click("#go");
    // It is taken; to make it would take a minute.
    browser.wait_for("document.querySelector('.job .status').textContent.startsWith('step 0')");
    browser.click("#cancel");

    // The other model makes pictures: its own form, without what is asked of videos.
    browser.choose("#models", "shapes");
    browser.wait_for("document.querySelector('[name=width]').placeholder == '128'");
    assert_eq!(
        browser.value(TABS),
        json!(["tab-text", "tab-image", "tab-inpaint"])
    );
    let open = "document.querySelector('#tabs [aria-selected=true]').id";
    assert_eq!(browser.value(open), "tab-text");
    assert!(browser
        .value("document.querySelector('[name=frames], [data-list=key_frames]')")
        .is_null());
    browser.click("#go");
    browser.wait_for("document.querySelectorAll('#results figure img').length == 1");
    let made = "document.querySelector('#results figure img').naturalWidth";
    browser.wait_for(&format!("{made} == 256"));

    // It stays after a reload, and so do the settings of the other one.
    browser.open(&address);
    browser.wait_for("document.querySelector('[name=width]')?.placeholder == '128'");
    assert_eq!(
        browser.value("document.getElementById('models').value"),
        "shapes"
    );
    browser.choose("#models", "ltx_keyed");
    browser.wait_for("document.querySelector('[name=frames]')?.value == '9'");
    assert_eq!(browser.value(TABS), json!(["tab-video"]));
    assert_eq!(browser.complaints(), json!([]));
}
