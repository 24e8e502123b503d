//! What is set on the page is what the model gets.

use crate::browser::Browser;
use crate::small;
use crate::support::{info, Server};
use sd_worker_rocm::info::{Takes, VideoInfo};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::{Defaults, ModelInfo, PipelineOptions};
use sd_worker_rocm::prompt::styles::Styles;
use sd_worker_rocm::prompt::wildcards::Wildcards;
use sd_worker_rocm::request::Library;
use sd_worker_rocm::server::{ControlFolders, LoraFolders, ServerOptions};
use serde_json::{json, Value};

const SHOWN: &str = "document.querySelectorAll('#results figure img').length";

/// Notes the bodies of jobs.
pub const LISTEN: &str = "window.sent = [];
    const send = window.fetch;
    window.fetch = (path, options) => {
        if (path === 'v1/jobs' && options.body) window.sent.push(JSON.parse(options.body));
        return send(path, options);
    };";

/// A ControlNet's unit, filled in as people do, steers as diffusers' pipeline does.
#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_controlnet_is_chosen_and_previewed() {
    let p = small::Pipelines::open();
    let model = p.load(&p.folder("sd"), PipelineOptions::default());
    p.folder("controlnet");
    let options = ServerOptions {
        controls: ControlFolders::new(vec![p.place().to_path_buf()]),
        ..ServerOptions::default()
    };
    let queue = QueueOptions::default();
    let server = Server::over(Box::new(model), Default::default(), queue, options);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hint.png");
    p.picture("hint").save(&file).unwrap();
    let browser = Browser::start();
    browser.visit(&server);
    browser.click("[data-list=controls] summary");
    browser.click("[data-list=controls] > button");
    // Nothing is submitted without a picture.
    browser.click("#go");
    browser.wait_for("document.querySelector('[data-list=controls] > .error').textContent.includes('has no picture')");
    browser.keys(
        "[data-list=controls] input[type=file]",
        file.to_str().unwrap(),
    );
    browser.wait_for("document.querySelector('[data-list=controls] .slot img').naturalWidth");
    browser.choose("[data-list=controls] [name=preprocessor]", "canny");
    browser.run("[...document.querySelectorAll('[data-list=controls] button')].find(b => b.textContent == 'Preview').click()");
    browser.wait_for("document.querySelector('.seen img')?.naturalWidth");
    browser.choose("[data-list=controls] [name=preprocessor]", "");
    browser.fill("[data-list=controls] [name=strength]", "0.8");
    for (field, value) in [
        ("width", "48"),
        ("height", "32"),
        ("steps", "3"),
        ("guidance_scale", "4"),
        ("seed", "7"),
    ] {
        browser.fill(&format!("[name={field}]"), value);
    }
    browser.choose("[name=sampler]", "DDIM");
    browser.run("document.querySelector('[name=rng]').closest('details').open = true");
    browser.choose("[name=rng]", "torch-cpu");
    browser.fill("#prompt", "a red door");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 1"));
    let (_, list) = server.get("/v1/jobs");
    let url = list["jobs"][0]["images"][0]["url"].as_str().unwrap();
    let (_, _, bytes) = server.send("GET", url, "", b"");
    let drawn = image::load_from_memory(&bytes).unwrap().to_rgb8();
    assert!(small::apart(&drawn, &p.picture("control")) <= 1);
    assert!(small::apart(&drawn, &p.picture("sd")) > 1);
    assert_eq!(browser.complaints(), json!([]));
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn pickers_weights_and_folded_settings() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    std::fs::write(place("ink.safetensors"), b"").unwrap();
    std::fs::write(place("colour.txt"), b"red\n").unwrap();
    std::fs::write(
        place("styles.csv"),
        "name,prompt,negative_prompt\n<b>Film</b>,\"{prompt}, film\",blurry\n",
    )
    .unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        library: Library {
            styles: Styles::open(&place("styles.csv")).unwrap(),
            wildcards: Wildcards::new(Some(folder.path().to_path_buf())),
        },
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let browser = Browser::start();
    browser.visit(&server);
    browser.run(LISTEN);
    let prompt = || browser.value("document.getElementById('prompt').value");
    browser.fill("#prompt", "a cat");
    // Weights by keys: of the word at the cursor, then of the LoRA that a picker puts behind it.
    browser.keys("#prompt", "\u{e009}\u{e013}\u{e013}");
    assert_eq!(prompt(), "a (cat:1.2)");
    browser.run("document.getElementById('prompt').setSelectionRange(99, 99)");
    let pick = |number: usize| {
        browser.run(&format!(
            "document.querySelectorAll('.pickers button')[{number}].click()"
        ));
        browser.keys("dialog.picker input", "\u{e007}");
    };
    pick(0);
    assert_eq!(prompt(), "a (cat:1.2) <lora:ink:1>");
    pick(1);
    assert_eq!(prompt(), "a (cat:1.2) <lora:ink:1> __colour__");
    pick(2);
    assert_eq!(
        browser.value("document.querySelector('.chosen').textContent"),
        "<b>Film</b> ×"
    );
    // The stand-in has no use for LoRAs' files.
    browser.fill("#prompt", "a __colour__ cat");
    browser.run(
        "document.querySelectorAll('#settings details').forEach(each => { each.open = true; })",
    );
    browser.click("#switch-highres");
    browser.fill("[name='highres.strength']", "0.5");
    browser.fill("[name=guidance_schedule]", "7, 5,3");
    browser.fill("[name=seed_size]", "64x72");
    browser.click("[name=cfg_zero]");
    browser.choose("[name=scheduled_prompts]", "false");
    browser.fill("[name=variation]", "0.25");
    browser.fill("[name=seed]", "5");
    browser.fill("[name=batch]", "2");
    browser.fill("#count", "2");
    // 3:2, then upright.
    browser.run("document.getElementById('form').scrollTo(0, 0)");
    browser.click("[aria-label^='3:2']");
    browser.click("[aria-label^='Swap']");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 4"));
    let sent: Vec<Value> = serde_json::from_value(browser.value("window.sent")).unwrap();
    let expected = json!({
        "prompt": "a __colour__ cat", "draw": "random", "styles": ["<b>Film</b>"], "highres": {"scale": 2, "strength": 0.5},
        "guidance_schedule": [7, 5, 3], "seed_size": [64, 72], "cfg_zero": true, "scheduled_prompts": false,
        "variation": 0.25, "seed": 5, "batch": 2, "width": 56, "height": 80, "operation": "image_generation",
        "preview_every": 2,
    });
    assert_eq!(sent[0], expected);
    // The second job's seeds follow on the first one's.
    assert_eq!(sent[1]["seed"], 7);

    // A list that is none is not taken, and a setting that the model refuses is told by its name.
    browser.fill("[name=guidance_schedule]", "7 and 5\t");
    assert_eq!(
        browser.value(
            "document.querySelector('[name=guidance_schedule]').getAttribute('aria-invalid')"
        ),
        "true"
    );
    browser.run("document.getElementById('form').scrollTo(0, 0)");
    browser.click("#reset");
    assert_eq!(
        browser.value("document.querySelector('[name=seed]').value"),
        ""
    );
    assert_eq!(prompt(), "a __colour__ cat");
    assert_eq!(browser.complaints(), json!([]));
}

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_model_of_videos_has_a_form_of_its_own() {
    let usual = info();
    let server = Server::of(ModelInfo {
        defaults: Defaults {
            video: Some(VideoInfo {
                time_factor: 4,
                frames: 9,
                fps: 16,
                first: Takes::Must,
                last: Takes::Never,
                late: false,
                key_frames: false,
                frame_noise: false,
                denoising_decoder: false,
            }),
            ..usual.defaults
        },
        ..usual
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("first.png");
    image::RgbImage::new(64, 64).save(&file).unwrap();
    let browser = Browser::start();
    browser.visit(&server);
    browser.run(LISTEN);
    let tabs = "[...document.querySelectorAll('#tabs button')].filter(tab => !tab.hidden).map(tab => tab.id).slice(0, 2)";
    assert_eq!(browser.value(tabs), json!(["tab-video", "tab-upscale"]));
    browser.fill("#prompt", "a red door");
    browser.fill("[name=frames]", "5");
    browser.click("#go");
    browser.wait_for(
        "document.getElementById('refusal').textContent.includes('choose the first frame')",
    );
    browser.keys("#source .slots input[type=file]", file.to_str().unwrap());
    browser.wait_for("document.querySelector('#source .slots img').naturalWidth");
    browser.click("#go");
    browser.wait_for("document.querySelector('#results figure video')");
    let sent = browser.value("window.sent[0]");
    assert_eq!(sent["frames"], 5);
    assert!(sent["first_frame"].as_str().unwrap().len() > 50);
}

/// Each column of the form's panes scrolls on its own, the page does not; panes of lists scroll with the page.
#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_column_has_one_scroll_bar() {
    let server = Server::start();
    let browser = Browser::start();
    browser.visit(&server);
    browser.run(
        "document.querySelectorAll('#settings details').forEach(each => { each.open = true; })",
    );
    let over = |what: &str| {
        browser.value(&format!(
            "(() => {{ const e = {what}; return e.scrollHeight > e.clientHeight; }})()"
        ))
    };
    assert_eq!(over("document.documentElement"), false);
    assert_eq!(over("document.getElementById('panes')"), false);
    assert_eq!(over("document.getElementById('form')"), true);
    // The button stays in sight while settings move.
    browser.run("document.getElementById('form').scrollTo(0, 1e6)");
    let top = browser.value("document.getElementById('go').getBoundingClientRect().top");
    let tabs = browser.value("document.getElementById('tabs').getBoundingClientRect().bottom");
    assert!(top.as_f64() >= tabs.as_f64(), "{top} {tabs}");
    assert!(
        top.as_f64() < tabs.as_f64().map(|tabs| tabs + 40.0),
        "{top} {tabs}"
    );
    browser.click("#tab-gallery");
    browser.run("document.getElementById('pane-gallery').style.height = '300vh'");
    assert_eq!(over("document.documentElement"), true);
}
