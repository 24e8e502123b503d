//! IP-Adapters of every kind, against diffusers' pictures: `tests/reference/make_ip_adapters.py` has made them.

use super::common::{go_on, Draw};
use super::hashed::uniform;
use super::small::Pipelines;
use sd_worker_rocm::image_io;
use sd_worker_rocm::pipeline::{Control, ImageRequest, PipelineOptions};
use sd_worker_rocm::request::IpAdapter;

fn adapter(p: &Pipelines, name: &str, pictures: &[&str], strength: f64) -> IpAdapter {
    let images = pictures.iter().map(|name| p.picture(name));
    IpAdapter {
        strength,
        ..IpAdapter::new(p.folder(name).join("adapter.safetensors"), images.collect())
    }
}

fn with(adapters: Vec<IpAdapter>) -> impl Fn(&mut ImageRequest) {
    move |request| request.ip_adapters = adapters.clone()
}

fn options(p: &Pipelines) -> PipelineOptions {
    PipelineOptions {
        image_encoder: Some(p.folder("encoder")),
        ..PipelineOptions::default()
    }
}

#[test]
fn pictures_as_prompts() {
    let p = Pipelines::of("ip_adapters");
    let mut pipeline = p.load(&p.folder("sd"), options(&p));
    for kind in ["plain", "full", "plus"] {
        let one = adapter(&p, kind, &["one"], 0.7);
        p.check_with(&mut pipeline, &format!("ip_{kind}"), with(vec![one]));
    }
    let other = adapter(&p, "plain", &["two"], 0.7);
    p.differs(&mut pipeline, "ip_plain", with(vec![other]));
    // For half of the steps.
    let half = IpAdapter {
        end: 0.5,
        ..adapter(&p, "plain", &["one"], 0.7)
    };
    p.differs(&mut pipeline, "ip_plain", with(vec![half]));
    let several = vec![
        adapter(&p, "plain", &["one", "two"], 0.5),
        adapter(&p, "plus", &["two"], 0.4),
    ];
    p.check_with(&mut pipeline, "ip_several", with(several));
    let masked = |mask| IpAdapter {
        mask,
        ..adapter(&p, "plain", &["one"], 0.9)
    };
    let mask = image::DynamicImage::from(p.picture("mask"));
    let mask = image_io::to_mask(&mask);
    p.check_with(&mut pipeline, "ip_mask", with(vec![masked(Some(mask))]));
    p.differs(&mut pipeline, "ip_mask", with(vec![masked(None)]));
}

/// A ControlNet for half of the steps, a T2I-Adapter and an IP-Adapter in one request.
#[test]
fn controls_of_all_kinds_at_once() {
    let p = Pipelines::of("ip_adapters");
    let mut pipeline = p.load(&p.folder("sd"), options(&p));
    let control = |name: &str, picture: &str, strength, end| Control {
        strength,
        end,
        ..Control::new(p.folder(name), p.picture(picture))
    };
    let mixed = |strengths: [f64; 3]| {
        let [control_net, features, pictures] = strengths;
        let controls = vec![
            control("control", "one", control_net, 0.5),
            control("features", "two", features, 1.0),
        ];
        let adapters = vec![adapter(&p, "plain", &["two"], pictures)];
        move |request: &mut ImageRequest| {
            request.controls = controls.clone();
            request.ip_adapters = adapters.clone();
        }
    };
    p.check_with(&mut pipeline, "mixed", mixed([0.6, 0.5, 0.7]));
    for weaker in [[0.0, 0.5, 0.7], [0.6, 0.0, 0.7], [0.6, 0.5, 0.0]] {
        p.differs(&mut pipeline, "mixed", mixed(weaker));
    }
}

#[test]
fn faces_by_their_embeddings() {
    let p = Pipelines::of("ip_adapters");
    let mut pipeline = p.load(&p.folder("sd"), options(&p));
    let rows = uniform("faces", 32);
    let faces = IpAdapter {
        faces: rows.chunks(16).map(<[f32]>::to_vec).collect(),
        ..adapter(&p, "face", &[], 0.7)
    };
    p.check_with(&mut pipeline, "ip_face", with(vec![faces]));
    let mut refused = |adapter: IpAdapter, what: &str| {
        let mut request = p.request("ip_face");
        request.ip_adapters = vec![adapter];
        let error = pipeline.draw(&request, &mut go_on).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(adapter(&p, "face", &["one"], 0.7), "recogniser");
    refused(adapter(&p, "plain", &[], 0.7), "pictures");
    refused(adapter(&p, "plain_xl", &["one"], 0.7), "attentions");
    refused(
        IpAdapter::new(
            p.folder("encoder").join("model.safetensors"),
            vec![p.picture("one")],
        ),
        "not an IP-Adapter",
    );
}

#[test]
fn xl_and_its_blocks() {
    let p = Pipelines::of("ip_adapters");
    let mut pipeline = p.load(&p.folder("xl"), options(&p));
    let one = |blocks: &str| IpAdapter {
        blocks: blocks.parse().unwrap(),
        ..adapter(&p, "plain_xl", &["one"], 0.7)
    };
    p.check_with(&mut pipeline, "ip_xl", with(vec![one("all")]));
    // diffusers' strengths of blocks replace the one of all.
    let blocks = IpAdapter {
        strength: 1.0,
        ..one(r#"{"down": 0.5, "up": {"block_0": [0, 1]}}"#)
    };
    p.check_with(&mut pipeline, "ip_blocks", with(vec![blocks]));
    p.differs(&mut pipeline, "ip_blocks", with(vec![one("all")]));
    // Without a word about the image encoder, there is none beside the adapter.
    let mut alone = p.load(&p.folder("xl"), PipelineOptions::default());
    let mut request = p.request("ip_xl");
    request.ip_adapters = vec![one("all")];
    let error = alone.draw(&request, &mut go_on).unwrap_err().to_string();
    assert!(error.contains("--image-encoder"), "{error}");
}
