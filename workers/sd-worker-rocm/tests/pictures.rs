//! What the program does with pictures, as people run it.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"));
    let rocm = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|device| device == "rocm");
    command.env("SD_DEVICE", if rocm { "rocm" } else { "cpu" });
    let command = command.stdin(Stdio::null()).args(arguments);
    command.current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    text(&output.stderr)
}

/// A picture of colours that change from pixel to pixel.
fn write_picture(folder: &Path, name: &str, (width, height): (u32, u32)) {
    let picture = image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([
            (x * 9 % 256) as u8,
            (y * 7 % 256) as u8,
            (x * y % 256) as u8,
        ])
    });
    picture.save(folder.join(name)).unwrap();
}

#[test]
fn pictures_are_made_larger() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_picture(folder, "a.png", (24, 16));
    write_picture(folder, "b.png", (10, 12));
    let out = succeeded(run(
        &["upscale", "a.png", "b.png", "--scale", "2.5"],
        folder,
    ));
    assert_eq!(out, "outputs/a-upscaled.png\noutputs/b-upscaled.png\n");
    let size = |name: &str| image::image_dimensions(folder.join(name)).unwrap();
    assert_eq!(size("outputs/a-upscaled.png"), (60, 40));
    assert_eq!(size("outputs/b-upscaled.png"), (25, 30));

    let arguments = [
        "upscale",
        "a.png",
        "--upscaler",
        "nearest",
        "-o",
        "n.png",
        "--json",
    ];
    let out = succeeded(run(&arguments, folder));
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["width"], &json["upscaler"]),
        (&48.into(), &"Nearest".into())
    );
    let near = image::open(folder.join("n.png")).unwrap().to_rgb8();
    let small = image::open(folder.join("a.png")).unwrap().to_rgb8();
    assert_eq!(near.get_pixel(33, 21), small.get_pixel(16, 10));
    let info = succeeded(run(&["png-info", "n.png"], folder));
    assert!(info.contains("Postprocess upscaler: Nearest"), "{info}");

    for (arguments, part) in [
        (
            &["a.png", "--upscaler", "4x-none.safetensors"][..],
            "lanczos",
        ),
        (&["a.png", "--upscaler", "latent"], "two passes"),
        (&["a.png", "--scale", "1e9"], "pixels"),
        (&["a.png", "--scale=-1"], "pixels"),
        (&["a.png", "b.png", "-o", "c.png"], "--output-dir"),
        (&["a.png", "--upscaler", "a.png"], "safetensors"),
    ] {
        let error = refused(run(&[&["upscale"], arguments].concat(), folder));
        assert!(error.contains(part), "{error}");
    }
}
