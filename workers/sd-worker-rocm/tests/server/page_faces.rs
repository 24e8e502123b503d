//! Faces on the page: what is asked of a job, and faces restored in a picture that is there already.

use crate::browser::Browser;
use crate::face_networks::Made;
use crate::page_settings::LISTEN;
use crate::support::Server;
use image::{Rgb, RgbImage};
use sd_worker_rocm::faces::FaceFolders;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::{json, Value};

const SHOWN: &str = "document.querySelectorAll('#results figure img').length";

/// The sum of all bytes of the picture that the pane shows.
const SUM: &str = "(() => {
        const image = document.querySelector('#pane-upscale figure img');
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, canvas.width, canvas.height).data.reduce((sum, byte) => sum + byte, 0);
    })()";

#[test]
#[ignore = "needs chromium and chromedriver"]
fn faces_are_asked_for_and_restored() {
    let made = Made::open();
    made.write("detector", &made.sure_detector());
    for restorer in ["codeformer", "gfpgan"] {
        made.file(restorer);
    }
    let file = made.place().join("picture.png");
    let picture = RgbImage::from_fn(96, 96, |x, y| Rgb([2 * x as u8, 2 * y as u8, 90]));
    picture.save(&file).unwrap();
    let options = ServerOptions {
        faces: FaceFolders::new(vec![made.place().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let browser = Browser::start();
    browser.visit(&server);
    browser.run(LISTEN);
    browser.run(
        "document.querySelectorAll('#settings details').forEach(each => { each.open = true; })",
    );

    // Of a job, by the name of a network and with all that goes with it.
    let field = |name: &str| format!("[name='restore_faces.{name}']");
    let value = |name: &str, of: &str| {
        browser.value(&format!("document.querySelector(\"{}\").{of}", field(name)))
    };
    browser.fill("#prompt", "a face");
    browser.click("#switch-restore_faces");
    assert_eq!(value("model", "value"), "codeformer");
    browser.choose(&field("model"), "gfpgan");
    browser.fill(&field("visibility"), "0.75");
    browser.fill(&field("weight"), "0.4");
    browser.click(&field("only_center"));
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 1"));
    browser.click("#switch-restore_faces");
    browser.click("#go");
    browser.wait_for(&format!("{SHOWN} == 2"));
    let sent: Vec<Value> = serde_json::from_value(browser.value("window.sent")).unwrap();
    let asked = json!({"model": "gfpgan", "visibility": 0.75, "weight": 0.4, "only_center": true});
    assert_eq!(sent[0]["restore_faces"], asked);
    assert_eq!(sent[1]["restore_faces"], Value::Null);

    // Of a picture that is there already: with nothing asked it stays, then a face in it is another one.
    browser.click("#tab-upscale");
    browser.keys("#pane-upscale input[type=file]", file.to_str().unwrap());
    browser.wait_for("document.querySelector('#pane-upscale .slot img').naturalWidth");
    browser.choose("#pane-upscale [name=upscaler_1]", "Nearest");
    browser.fill("#pane-upscale [name=upscaling_resize]", "1");
    let mut sums = Vec::new();
    for visibility in ["0", "1"] {
        browser.fill("#pane-upscale [name=gfpgan_visibility]", visibility);
        browser.run("window.before = document.querySelector('#pane-upscale figure img')?.src");
        browser.click("#pane-upscale .primary");
        browser.wait_for(
            "(image => image?.naturalWidth == 96 && image.src != window.before)(document.querySelector('#pane-upscale figure img'))",
        );
        sums.push(browser.value(SUM).as_u64().unwrap());
    }
    let bytes = picture
        .pixels()
        .map(|Rgb([r, g, b])| u64::from(*r) + u64::from(*g) + u64::from(*b) + 255);
    assert_eq!(sums[0], bytes.sum::<u64>());
    assert_ne!(sums[1], sums[0]);
    assert_eq!(browser.complaints(), json!([]));
}
