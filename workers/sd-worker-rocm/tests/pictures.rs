//! What the program does with pictures, as people run it.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"));
    let rocm = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|device| device == "rocm");
    command.env("SD_DEVICE", if rocm { "rocm" } else { "cpu" });
    command.env(
        "MODEL_PATH",
        concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
    );
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

#[test]
fn edges_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_picture(folder, "a.png", (48, 32));
    let arguments = [
        "preprocess",
        "canny",
        "a.png",
        "e.png",
        "--threshold-b",
        "120",
    ];
    assert_eq!(succeeded(run(&arguments, folder)), "e.png\n");
    let edges = image::open(folder.join("e.png")).unwrap().to_rgb8();
    let white = edges.pixels().filter(|pixel| pixel.0 == [255; 3]).count();
    assert!((20..1400).contains(&white), "{white}");
    assert!(edges.iter().all(|byte| [0, 255].contains(byte)));
    for (kind, more, part) in [
        ("openpose", &[][..], "--network"),
        ("lineart", &[], "--network"),
        ("canny", &["--threshold-a", "900"], "low threshold"),
    ] {
        let arguments = [&["preprocess", kind, "a.png", "x.png"], more].concat();
        let error = refused(run(&arguments, folder));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_picture_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = [
        "generate",
        "two red squares",
        "--negative-prompt",
        "green",
        "--steps",
        "2",
        "--seed",
        "9",
        "--guidance",
        "3",
        "--sampler",
        "Euler a",
        "--rng",
        "torch-cpu",
        "-o",
        "first.png",
    ];
    succeeded(run(&first, folder));
    let pixels = |name: &str| image::open(folder.join(name)).unwrap().to_rgb8();
    succeeded(run(
        &["generate", "--from-picture", "first.png", "-o", "again.png"],
        folder,
    ));
    assert_eq!(pixels("again.png"), pixels("first.png"));
    let other = [
        "generate",
        "--from-picture",
        "first.png",
        "--seed",
        "10",
        "-o",
        "other.png",
    ];
    succeeded(run(&other, folder));
    assert_ne!(pixels("other.png"), pixels("first.png"));
    write_picture(folder, "plain.png", (16, 16));
    let error = refused(run(&["generate", "--from-picture", "plain.png"], folder));
    assert!(error.contains("does not say"), "{error}");
}
