//! The page's form: settings, refusals, jobs.

use crate::browser::Browser;
use crate::support::Server;
use sd_worker_rocm::sampling::Sampler;

const SHOWN: &str = "document.querySelectorAll('#results figure img').length";

#[test]
#[ignore = "needs chromium and chromedriver"]
fn a_person_uses_the_page() {
    let server = Server::with_key();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", server.address));
    // Without the key nothing works, and the page asks for it.
    browser.wait_for("document.getElementById('key-dialog').open");
    browser.keys("#key-field", "secret\u{e007}");
    browser.wait_for("document.querySelector('[name=steps]')");
    let options = browser.value("document.querySelector('[name=sampler]').options.length");
    // The first is the model's own.
    assert_eq!(options, Sampler::ALL.len() + 1);
    let text = |selector: &str| {
        browser.value(&format!("document.querySelector('{selector}').textContent"))
    };
    assert_eq!(text("#model"), "painter");
    assert_eq!(text("[name=sampler] option"), "DDIM (usual)");
    assert_eq!(
        browser.value("document.querySelector('[name=width]').placeholder"),
        "64"
    );
    // What the model lacks is not there.
    assert!(browser
        .value("document.querySelector('[name=true_cfg_scale], [name=skip_layers]')")
        .is_null());

    // Previews and progress show while it runs, then the pictures.
    browser.run(
        "window.seen = 0;
         new MutationObserver(() => { if (document.querySelector('.frame img')?.src.startsWith('data:')) window.seen++; })
             .observe(document.getElementById('results'), {attributes: true, subtree: true});",
    );
    browser.fill("#prompt", "a slow <b>cat</b>");
    browser.fill("[name=seed]", "7");
    browser.fill("[name=batch]", "2");
    browser.fill("[name=steps]", "10");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 2"));
    browser.wait_for("[...document.querySelectorAll('#results figure img')].every(i => i.complete && i.naturalWidth == 64)");
    assert!(browser.value("window.seen").as_u64() > Some(0));
    assert_eq!(
        browser.value("document.querySelectorAll('figure')[1].dataset.seed"),
        "8"
    );
    assert_eq!(
        browser.value("document.querySelector('figure img').alt"),
        "a slow <b>cat</b>"
    );
    assert_eq!(text(".job .status"), "2 pictures");

    // Cancel, which says that it is under way.
    browser.fill("[name=steps]", "150");
    browser.click("#go");
    browser.wait_for("document.querySelector('.job progress').value > 0");
    browser.click("#cancel");
    browser.wait_for("document.querySelector('.job .status').textContent == 'cancelled'");
    browser.wait_for("document.getElementById('cancel').disabled");

    // What fails is told in words.
    browser.fill("#prompt", "panic");
    browser.fill("[name=steps]", "2");
    browser.click("#go");
    browser.wait_for("document.querySelector('.job .status').classList.contains('error')");

    // A refusal stands at the field that it names, until that is changed.
    browser.fill("[name=width]", "65");
    browser.click("#go");
    browser
        .wait_for("document.querySelector('[name=width]').getAttribute('aria-invalid') == 'true'");
    let words = text("[data-field=width] .error");
    assert!(words.as_str().unwrap().contains("multiple of 8"), "{words}");
    assert_eq!(browser.value("document.activeElement.name"), "width");
    browser.fill("[name=width]", "72");
    assert!(browser
        .value("document.querySelector('[name=width]').getAttribute('aria-invalid')")
        .is_null());

    // A new visit finds the request as it was.
    browser.open(&format!("http://{}/", server.address));
    browser.wait_for("document.querySelector('[name=steps]')?.value == '2'");
    assert_eq!(
        browser.value("document.getElementById('prompt').value"),
        "panic"
    );
    assert_eq!(browser.complaints(), serde_json::json!([]));
}
