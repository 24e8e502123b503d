//! Networks for faces, and faces cut out and put back, against PyTorch and OpenCV: `tests/reference/make_faces.py` has made
//! them.

use super::common::{device, difference};
use super::face_networks::{set, Made};
use super::small::apart;
use candle_core::{DType, Device, Tensor};
use image::{GrayImage, RgbImage};
use sd_worker_rocm::faces::align::Similarity;
use sd_worker_rocm::faces::detect::{central, Detector, Face};
use sd_worker_rocm::faces::paste::{mask_of, paste, Share};
use sd_worker_rocm::faces::restorer::{Parser, Restorer};
use sd_worker_rocm::faces::{FaceFolders, Faces, RestoreFaces};
use sd_worker_rocm::models::faces::{codeformer, gfpgan, parsenet, retinaface};
use std::collections::HashMap;
use std::ops::ControlFlow;

fn go_on(_: usize, _: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn networks_are_pytorchs() {
    let made = Made::open();
    for name in ["gfpgan", "gfpgan_whole"] {
        let (weights, vb) = made.weights(name);
        let layout = gfpgan::Layout::of(&weights).unwrap();
        assert_eq!(layout.size(), 32);
        let x = made.input(&format!("{name}.face"), &[1, 3, 32, 32]);
        let net = gfpgan::Gfpgan::new(vb, &layout).unwrap();
        made.same(name, &net.forward(&x).unwrap(), 2e-4);
    }
    let (weights, vb) = made.weights("codeformer");
    let layout = codeformer::Layout::of(&weights).unwrap();
    assert_eq!(layout.size(), 32);
    let net = codeformer::CodeFormer::new(vb, &layout).unwrap();
    let x = made.input("codeformer.face", &[1, 3, 32, 32]);
    let outputs = [("0.0", 0.0), ("0.5", 0.5), ("1.0", 1.0)].map(|(name, weight)| {
        let output = net.forward(&x, weight).unwrap();
        made.same(&format!("codeformer.{name}"), &output, 2e-4);
        output
    });
    assert!(difference(&outputs[0], &outputs[2]) > 0.01);
    let (weights, vb) = made.weights("parsenet");
    let layout = parsenet::Layout::of(&weights).unwrap();
    let net = parsenet::ParseNet::new(vb, &layout).unwrap();
    let x = made.input("parsenet.face", &[1, 3, 32, 32]);
    made.same("parsenet", &net.forward(&x).unwrap(), 2e-4);
    for name in ["mobile", "residual"] {
        let (weights, vb) = made.weights(name);
        let layout = retinaface::Layout::of(&weights).unwrap();
        let net = retinaface::RetinaFace::new(vb, &layout).unwrap();
        let found = net
            .forward(&made.input(&format!("{name}.picture"), &[1, 3, 37, 70]))
            .unwrap();
        let scores = candle_nn::ops::softmax_last_dim(&found.scores).unwrap();
        let rows = Tensor::cat(&[found.boxes, scores, found.landmarks], 1).unwrap();
        made.same(&format!("{name}.rows"), &rows, 2e-4);
    }
}

#[test]
fn faces_are_found_as_facexlib_finds_them() {
    let made = Made::open();
    let picture = RgbImage::from_fn(100, 75, |x, y| {
        let (x, y) = (f64::from(x), f64::from(y));
        let red = 127.0 + 100.0 * (x / 7.0 + y / 23.0).sin();
        let green = 127.0 + 100.0 * (y / 9.0).cos();
        let blue = (3.0 * x + 2.0 * y) % 256.0 * 0.5 + 60.0;
        image::Rgb([red as u8, green as u8, blue as u8])
    });
    let sure = made.about["residual"]["sure"].as_f64().unwrap() as f32;
    let mut detector = Detector::open(&made.file("residual"), &device()).unwrap();
    let faces = detector.find(&picture, sure).unwrap();
    let expected: Vec<Vec<f32>> = made.outputs["residual"].to_vec2().unwrap();
    assert_eq!(faces.len(), expected.len());
    // Of faces that are as sure as one another either may come first.
    let near = |face: &Face, row: &[f32]| {
        let numbers = face.bounds.iter().chain([&face.score]);
        let numbers = numbers.chain(face.landmarks.as_flattened());
        numbers.zip(row).all(|(a, b)| (a - b).abs() < 0.05)
    };
    for row in &expected {
        assert!(faces.iter().any(|face| near(face, row)), "{row:?}");
    }
    assert!(faces.windows(2).all(|pair| pair[0].score >= pair[1].score));
    let middle = central(faces.clone(), &picture).unwrap();
    let far = |face: &Face| {
        let [left, top, right, bottom] = face.bounds;
        ((left + right) / 2.0 - 50.0).hypot((top + bottom) / 2.0 - 37.5)
    };
    assert!(faces.iter().all(|face| far(face) >= far(&middle)));
    assert!(detector.find(&picture, 1.0).unwrap().is_empty());
    // A pixel is a picture, too.
    detector.find(&RgbImage::new(1, 1), sure).unwrap();
}

/// Every second pixel.
fn thinned(picture: &RgbImage) -> RgbImage {
    let half = |side: u32| side.div_ceil(2);
    RgbImage::from_fn(half(picture.width()), half(picture.height()), |x, y| {
        *picture.get_pixel(2 * x, 2 * y)
    })
}

#[test]
fn faces_are_cut_out_and_put_back_as_opencv_does_it() {
    let made = Made::open();
    let scene = made.picture("scene");
    let parts: Vec<u8> = (0..128 * 128)
        .map(|i| {
            let (x, y) = (i % 128, i / 128);
            match (x - 64) * (x - 64) + (y - 70) * (y - 70) < 45 * 45 {
                true => 1 + (x / 16) as u8,
                false if y < 30 => 17,
                false => 0,
            }
        })
        .collect();
    let mask = mask_of(&parts, 128);
    for name in ["upright", "turned", "edge", "small", "beside"] {
        let landmarks: Vec<Vec<f32>> = made.outputs[&format!("{name}.landmarks")]
            .to_vec2()
            .unwrap();
        let landmarks: [[f32; 2]; 5] = std::array::from_fn(|i| [landmarks[i][0], landmarks[i][1]]);
        let there = Similarity::to_face(&landmarks, 128).unwrap();
        let mut face = there.face(&scene, 128);
        // OpenCV rounds places to a thirty-second of a pixel.
        let off = apart(&thinned(&face), &made.picture(&format!("{name}.face")));
        assert!(off <= 1, "{name}: {off}");
        image::imageops::invert(&mut face);
        for (way, share) in [("square", Share::Square), ("mask", Share::Mask(&mask))] {
            let mut whole = scene.clone();
            paste(&mut whole, &face, &there, &share, 1.0);
            let expected = made.picture(&format!("{name}.{way}"));
            let off = apart(&thinned(&whole), &expected);
            assert!(off <= 2, "{name}.{way}: {off}");
            assert_eq!(apart(&whole, &scene) > 30, name != "beside", "{name}.{way}");
            let mut hidden = scene.clone();
            paste(&mut hidden, &face, &there, &share, 0.0);
            assert_eq!(hidden, scene);
        }
    }
}

#[test]
fn several_faces_or_none() {
    let made = Made::open();
    let device = device();
    let mut detector = made.sure_detector();
    let found = made.write("detector", &detector);
    let wish = |restorer: &str| RestoreFaces::new(made.file(restorer), found.clone());
    let picture = RgbImage::from_fn(96, 64, |x, y| image::Rgb([x as u8, y as u8, 90]));
    let run = |wish: RestoreFaces| {
        let mut faces = Faces::open(wish, &device).unwrap();
        faces.restore(&picture, &mut go_on).unwrap().unwrap()
    };
    let (whole, count) = run(wish("gfpgan"));
    assert_eq!(count, 6);
    assert!(apart(&whole, &picture) > 30);
    let (one, count) = run(RestoreFaces {
        only_center: true,
        ..wish("gfpgan")
    });
    assert_eq!(count, 1);
    assert!(apart(&one, &whole) > 10);
    // The fidelity matters to CodeFormer, and the parser to where a face is put back.
    let fidelity = |weight| {
        run(RestoreFaces {
            weight,
            ..wish("codeformer")
        })
    };
    assert_ne!(fidelity(0.0).0, fidelity(1.0).0);
    let (parsed, _) = run(RestoreFaces {
        parser: Some(made.file("parsenet")),
        ..wish("gfpgan")
    });
    assert_ne!(parsed, whole);
    let (half, _) = run(RestoreFaces {
        visibility: 0.5,
        ..wish("gfpgan")
    });
    assert!(apart(&half, &picture) < apart(&whole, &picture));
    // None: the picture as it was.
    set(
        &mut detector,
        "ClassHead.2.conv1x1.bias",
        &[9.0, 0.0, 9.0, 0.0],
    );
    let none = RestoreFaces::new(made.file("gfpgan"), made.write("none", &detector));
    assert_eq!(run(none), (picture.clone(), 0));
    let stop = &mut |_, _| ControlFlow::Break(());
    let mut faces = Faces::open(wish("gfpgan"), &device).unwrap();
    assert!(faces.restore(&picture, stop).unwrap().is_none());
}

#[test]
fn files_are_known_and_others_refused_by_name() {
    let made = Made::open();
    let device = device();
    for name in ["gfpgan", "codeformer", "parsenet", "mobile"] {
        made.file(name);
    }
    let folders = FaceFolders::new(vec![made.place().to_path_buf()]);
    assert_eq!(folders.restorers(), ["codeformer", "gfpgan"]);
    let found = folders.find("GFPGAN").unwrap();
    assert_eq!(found.label(), "gfpgan");
    assert!(found.parser.is_some());
    let error = folders.find("RestoreFormer").unwrap_err().to_string();
    assert!(error.contains("codeformer, gfpgan"), "{error}");
    let wrong = Restorer::open(&made.file("mobile"), &device);
    let text = wrong.err().unwrap().to_string();
    assert!(text.contains("RetinaFace"), "{text}");
    assert!(Detector::open(&made.file("gfpgan"), &device).is_err());
    assert!(Parser::open(&made.file("gfpgan"), &device).is_err());
    let refused = |tensors: &HashMap<String, Tensor>| {
        let path = made.write("other", tensors);
        Restorer::open(&path, &device).err().unwrap().to_string()
    };
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    for (name, part) in [
        ("conv_body_first.0.weight", "CUDA"),
        ("encoder.mid.attn_1.q.weight", "RestoreFormer"),
        ("something", "no network for faces"),
    ] {
        let text = refused(&HashMap::from([(name.to_string(), zeros(&[2, 2]))]));
        assert!(text.contains(part), "{text}");
    }
    let mut tensors = made.tensors("codeformer");
    tensors.insert(
        "fuse_convs_dict.4.scale.0.weight".to_string(),
        zeros(&[2, 2]),
    );
    let text = refused(&tensors);
    assert!(text.contains("fuse_convs_dict.4"), "{text}");
    let mut tensors = made.tensors("gfpgan");
    tensors.insert("condition_scale.0.2.weight".to_string(), zeros(&[7, 2]));
    assert!(refused(&tensors).contains("steer"));
    // A pickle, with what to do about it; and numbers out of range.
    let pickle = made.place().join("GFPGANv1.4.pth");
    std::fs::write(&pickle, b"PK\x03\x04archive/data.pkl").unwrap();
    let text = Restorer::open(&pickle, &device).err().unwrap().to_string();
    assert!(text.contains("safetensors"), "{text}");
    let mut wish = RestoreFaces::new(made.file("gfpgan"), made.file("mobile"));
    wish.weight = f64::NAN;
    let text = Faces::open(wish, &device).err().unwrap().to_string();
    assert!(text.contains("weight"), "{text}");
    // Not a face, but a mask: everything is background.
    let nothing: GrayImage = mask_of(&[0; 32 * 32], 32);
    assert!(nothing.iter().all(|value| *value == 0));
}
