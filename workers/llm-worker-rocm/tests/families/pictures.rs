//! Models that see, against transformers: pixels, rows of pictures and answers; `transformers/generate.py` wrote the
//! numbers.

use super::formats::write_gguf;
use super::transformers::Case;
use super::{device, load_file};
use image::RgbImage;
use llm_worker_rocm::engine::api::{Event, GraphUse, Request, SamplingOptions};
use llm_worker_rocm::engine::media::{Content, Media, MediaItem};
use llm_worker_rocm::engine::{Engine, EngineOptions, LoadedModel};
use llm_worker_rocm::jinja::Rendered;
use llm_worker_rocm::media::{Processor, PICTURE_MARK, SOUND_MARK, VIDEO_MARK};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::vision::{Recording, VideoOptions, VisionFile};
use serde_json::{json, Value as Json};
use std::path::Path;
use std::sync::Arc;

/// The formula of `generate.py`.
fn picture(case: &Case, shift: u32) -> RgbImage {
    let [width, height]: [u32; 2] = serde_json::from_value(case.json["picture"].clone()).unwrap();
    RgbImage::from_fn(width, height, |x, y| {
        let value = |c: u32| (x * 7 + y * 13 * (c + 1) + (x * y) % 31 * 3 + shift) % 256;
        image::Rgb([value(0) as u8, value(1) as u8, value(2) as u8])
    })
}

/// Letters, and the tokens that stand for pictures.
fn tokenizer(case: &Case) -> Json {
    let mut texts = ["<pad>", "<s>", "</s>", "Ġ"].map(String::from).to_vec();
    texts.extend(('a'..='z').map(String::from));
    texts.extend((30..40).map(|id| format!("<{id}>")));
    for (id, text) in case.json["spelled"].as_object().unwrap() {
        texts[id.parse::<usize>().unwrap()] = text.as_str().unwrap().to_string();
    }
    let special = |(id, text): (usize, &String)| {
        json!({"id": id, "content": text, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    };
    let added: Vec<Json> = texts.iter().enumerate().map(special).collect();
    let added = [&added[..3], &added[30..]].concat();
    let vocab: serde_json::Map<String, Json> = texts
        .into_iter()
        .enumerate()
        .map(|(id, text)| (text, id.into()))
        .collect();
    json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    })
}

pub fn write(case: &Case, folder: &Path) {
    case.write(folder);
    write_settings(case, folder);
}

/// What a model's folder has besides its configuration and tensors.
pub fn write_settings(case: &Case, folder: &Path) {
    let write =
        |name: &str, json: &Json| std::fs::write(folder.join(name), json.to_string()).unwrap();
    write("tokenizer.json", &tokenizer(case));
    write("preprocessor_config.json", &case.json["processor"]);
    if case.json["video_processor"].is_object() {
        write(
            "video_preprocessor_config.json",
            &case.json["video_processor"],
        );
    }
}

pub fn numbers(json: &Json) -> Vec<f32> {
    serde_json::from_value(json.clone()).unwrap()
}

/// The largest difference, as a share of the largest number.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
    let pairs = got.iter().zip(want);
    pairs.fold(0f32, |a, (got, want)| a.max((got - want).abs())) / largest
}

/// The prompt's tokens and pictures, of a text with a mark where the picture is.
fn prompt(case: &Case, model: &LoadedModel, pictures: &[Arc<MediaItem>]) -> (Vec<u32>, Media) {
    let tokens: Vec<u32> = serde_json::from_value(case.json["prompt"].clone()).unwrap();
    let letter = |token: &u32| (b'a' + (*token - 4) as u8) as char;
    let letters = |tokens: &[u32]| tokens.iter().map(letter).collect::<String>();
    // Three, the picture, the rest.
    let rest = tokens.iter().rposition(|t| *t > 29).unwrap() + 1;
    let words = |tokens: &[u32]| match tokens.first() {
        // The mark of a space.
        Some(3) => format!(" {}", letters(&tokens[1..])),
        _ => letters(tokens),
    };
    let mark = |item: &Arc<MediaItem>| match &item.content {
        Content::Picture(_) => PICTURE_MARK,
        Content::Video(_) => VIDEO_MARK,
        Content::Sound(_) => SOUND_MARK,
    };
    let marks: String = pictures.iter().map(mark).collect();
    let text = format!("{}{marks}{}", words(&tokens[..3]), words(&tokens[rest..]));
    let rendered = Rendered {
        input: std::iter::once(0..text.len()).collect(),
        text,
    };
    let processor = model.pictures.as_ref().unwrap();
    processor
        .prompt(&rendered, pictures, &model.tokenizer, false)
        .unwrap()
}

/// Tokens of an answer, their logarithms of probability, and how many of the prompt's were known.
pub fn answer(engine: &Engine, tokens: &[u32], media: &Arc<Media>) -> (Vec<u32>, Vec<f32>, usize) {
    let mut request = Request::new(tokens.to_vec(), SamplingOptions::greedy());
    request.max_tokens = Some(8);
    request.top_logprobs = Some(0);
    request.ignore_end = true;
    request.media = Some(media.clone());
    let mut ticket = engine.submit(request).unwrap();
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    loop {
        match ticket.events.blocking_recv().unwrap() {
            Event::Token { token, .. } => {
                tokens.push(token.token);
                logprobs.push(token.logprob.unwrap());
            }
            Event::Finished(summary) => return (tokens, logprobs, summary.cached_tokens),
            Event::Failed(failure) => panic!("{failure}"),
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
        }
    }
}

/// Compares an item's pixels and its rows, and gives the model that made them.
fn compare_item(name: &str, case: &Case, file: ModelFile, item: &MediaItem) -> LoadedModel {
    let vision = file.pictures().unwrap().vision().unwrap().clone();
    let pixels = match &item.content {
        Content::Picture(pixels) => pixels,
        Content::Video(video) => &video.pixels,
        Content::Sound(_) => panic!("no picture"),
    };
    let tiles = pixels.tiles.iter();
    let pixels: Vec<f32> = tiles.flat_map(|tile| vision.floats(tile)).collect();
    let count = case.json["pixels"][0].as_u64().unwrap() as usize;
    assert_eq!(pixels.len(), count, "{name}");
    let every = case.json["pixels"][1].as_u64().unwrap() as usize;
    let samples: Vec<f32> = pixels.iter().copied().step_by(every).collect();
    let apart = difference(&samples, &numbers(&case.json["pixels"][2]));
    assert!(apart <= 1e-5, "{name}: pixels differ by {apart:e}");

    let mut model = load_file(file, &LoadOptions::default()).unwrap();
    let features = model.forward.encode(item).unwrap().rows;
    let rows: Vec<Vec<f32>> = features
        .to_dtype(candle_core::DType::F32)
        .unwrap()
        .to_vec2()
        .unwrap();
    let places = [0, rows.len() / 2, rows.len() - 1];
    for (row, want) in places.iter().zip(case.json["features"].as_array().unwrap()) {
        let apart = difference(&rows[*row], &numbers(want));
        println!("{name}: row {row} differs by {apart:.1e}");
        assert!(apart <= 1e-3, "{name}: row {row} differs by {apart:e}");
    }
    model
}

/// An engine with small blocks and steps: pictures are cut wherever they may be.
fn start(model: LoadedModel, graphs: GraphUse) -> Engine {
    let options = EngineOptions {
        block_size: 4,
        max_step_tokens: 9,
        kv_blocks: Some(128),
        // What recurrent models keep, at the end of each block.
        states: Some(64),
        state_distance: 4,
        graphs,
        ..EngineOptions::default()
    };
    Engine::start(model, &options).unwrap()
}

/// Compares an answer.
fn compare_answer(
    name: &str,
    case: &Case,
    engine: &Engine,
    tokens: &[u32],
    media: &Arc<Media>,
) -> (Vec<u32>, Vec<f32>) {
    let want = case.json["answer"].as_array().unwrap();
    let (got, logprobs, cached) = answer(engine, tokens, media);
    assert_eq!(cached, 0, "{name}");
    let wanted: Vec<&Json> = want.iter().map(|pair| &pair[0]).collect();
    println!("{name}: {got:?}, {logprobs:?}");
    assert_eq!(json!(got[..wanted.len()]), json!(wanted), "{name}");
    let wanted = want.iter().map(|pair| pair[1].as_f64().unwrap() as f32);
    let apart = logprobs.iter().zip(wanted);
    let apart = apart.fold(0f32, |a, (x, y)| a.max((x - y).abs()));
    println!("{name}: logarithms of probability differ by {apart:.1e}");
    let on_cpu = device().is_cpu();
    assert!(
        apart <= if on_cpu { 3e-4 } else { 3e-2 },
        "{name}: {apart:e}"
    );
    let decode = engine.status().decode;
    println!(
        "{name}: {} of {} steps as graphs",
        decode.graphs, decode.steps
    );
    if !on_cpu {
        // All but the first of a shape.
        assert!(
            decode.graphs > 0 && decode.graphs + 3 >= decode.steps,
            "{name}: {decode:?}"
        );
    }
    (got, logprobs)
}

/// Pixels, rows and answers of a model from `path`.
fn check(name: &str, case: &Case, path: &Path) {
    let file = ModelFile::open(path).unwrap().with_vision(None).unwrap();
    let processor: Processor = file.pictures().unwrap();
    let seen = processor.picture_of(&picture(case, 0)).unwrap();
    let model = compare_item(name, case, file, &seen);
    let other = processor.picture_of(&picture(case, 1)).unwrap();
    let (tokens, media) = prompt(case, &model, std::slice::from_ref(&seen));
    assert_eq!(json!(tokens), case.json["prompt"], "{name}");
    let (_, of_other) = prompt(case, &model, std::slice::from_ref(&other));
    let (of_both, both) = prompt(case, &model, &[seen, other]);
    let engine = start(model, GraphUse::On);
    let media = Arc::new(media);
    let (got, logprobs) = compare_answer(name, case, &engine, &tokens, &media);

    // The same picture is known, another one is not.
    let (again, _, cached) = answer(&engine, &tokens, &media);
    assert_eq!(
        (again, cached),
        (got.clone(), (tokens.len() - 1) / 4 * 4),
        "{name}"
    );
    let (_, others, cached) = answer(&engine, &tokens, &Arc::new(of_other));
    let first = media.spans[0].start;
    assert_eq!(cached, first / 4 * 4, "{name}");
    assert_ne!(others, logprobs, "{name}");
    // Both, the first of them known.
    let both = Arc::new(both);
    let (_, _, cached) = answer(&engine, &of_both, &both);
    let known = both.spans[both.spans.len() / 2].start;
    assert!(
        cached > first && cached <= known,
        "{name}: {cached} of {known}"
    );
}

/// The same of a video.
fn check_video(name: &str, case: &Case, path: &Path) {
    let file = ModelFile::open(path).unwrap().with_vision(None).unwrap();
    let vision = file.pictures().unwrap().vision().unwrap().clone();
    let first = picture(case, 0);
    let recording = Recording {
        frames: case.json["video"][0].as_u64().unwrap() as usize,
        fps: case.json["video"][1].as_f64(),
        is_chosen: false,
        size: (first.width() as usize, first.height() as usize),
    };
    let mut maker = vision.video(&recording, &VideoOptions::default()).unwrap();
    assert_eq!(json!(maker.wanted), case.json["video"][2], "{name}");
    let rows = maker.rows();
    for index in maker.wanted.clone() {
        maker.take(&picture(case, 5 * index as u32)).unwrap();
    }
    let video = maker.finish().unwrap();
    assert_eq!(rows, vision.rows_of(&video.pixels), "{name}");
    let item = Arc::new(MediaItem::new(Content::Video(video)));
    let model = compare_item(name, case, file, &item);
    let (tokens, media) = prompt(case, &model, &[item]);
    assert_eq!(json!(tokens), case.json["prompt"], "{name}");
    let engine = start(model, GraphUse::On);
    compare_answer(name, case, &engine, &tokens, &Arc::new(media));
}

/// From its folder, and from GGUF files of the text part and of the encoder beside it.
fn compare(name: &str, check: fn(&str, &Case, &Path)) {
    let case = Case::read(name);
    let folder = tempfile::tempdir().unwrap();
    write(&case, folder.path());
    check(name, &case, folder.path());

    let files = tempfile::tempdir().unwrap();
    let model = files.path().join("model.gguf");
    write_gguf(&*open_weights(folder.path()).unwrap(), &model);
    let vision = VisionFile::of_folder(folder.path()).unwrap().unwrap();
    write_gguf(
        vision.weights(),
        &files.path().join("mmproj-model-f32.gguf"),
    );
    check(&format!("{name}, GGUF"), &case, &model);
}

#[test]
fn models_that_see_answer_as_transformers_does() {
    for name in [
        "qwen2-vl",
        "qwen2.5-vl",
        "qwen3-vl",
        "qwen3-vl-moe",
        "qwen3_5-vision",
        "qwen3_5-moe-vision",
        "gemma3-vision",
        "gemma3-panned",
        "gemma4-vision",
        "llava",
        "llava-next",
        "smolvlm",
        "internvl",
        "pixtral",
        "mistral3-vision",
    ] {
        compare(name, check);
    }
}

#[test]
fn models_that_see_videos_answer_as_transformers_does() {
    for name in [
        "qwen2-vl-video",
        "qwen2.5-vl-video",
        "qwen3-vl-video",
        "qwen3_5-video",
        "smolvlm-video",
        "internvl-video",
    ] {
        compare(name, check_video);
    }
}

/// Positions of text behind a picture are among the numbers that a graph reads anew.
#[test]
fn graphs_behind_a_picture_compute_what_their_launches_do() {
    if device().is_cpu() {
        return;
    }
    let case = Case::read("qwen2.5-vl");
    let folder = tempfile::tempdir().unwrap();
    write(&case, folder.path());
    let answers = [GraphUse::On, GraphUse::Off].map(|graphs| {
        let file = ModelFile::open(folder.path()).unwrap();
        let file = file.with_vision(None).unwrap();
        let seen = file.pictures().unwrap().picture_of(&picture(&case, 0));
        let model = load_file(file, &LoadOptions::default()).unwrap();
        let (tokens, media) = prompt(&case, &model, &[seen.unwrap()]);
        let engine = start(model, graphs);
        let answer = answer(&engine, &tokens, &Arc::new(media));
        assert_eq!(engine.status().decode.graphs > 0, graphs == GraphUse::On);
        answer
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn what_an_encoder_would_do_otherwise_is_refused_by_name() {
    let refusal = |name: &str, change: &dyn Fn(&mut Json)| {
        let mut case = Case::read(name);
        change(&mut case.json);
        let folder = tempfile::tempdir().unwrap();
        write(&case, folder.path());
        let file = ModelFile::open(folder.path()).unwrap();
        file.with_vision(None).unwrap().pictures().unwrap_err()
    };
    let check = |refusal: String, why: &str| assert!(refusal.contains(why), "{refusal}");
    check(
        refusal("qwen2.5-vl", &|json| {
            json["processor"]["do_rescale"] = false.into()
        }),
        "do_rescale",
    );
    check(
        refusal("gemma4-vision", &|json| {
            json["config"]["vision_config"]["head_dim"] = 8.into()
        }),
        "head_dim",
    );
    check(
        refusal("llava-next", &|json| {
            json["config"]["image_grid_pinpoints"] = json!([[16, 24]]);
            json["processor"]["image_grid_pinpoints"] = json!([[16, 24]]);
        }),
        "image_grid_pinpoints",
    );
    check(
        refusal("llava", &|json| {
            json["config"]["vision_feature_layer"] = (-1).into()
        }),
        "vision_feature_layer",
    );
    check(
        refusal("llava", &|json| {
            json["config"]["vision_config"]["model_type"] = "siglip".into()
        }),
        "siglip",
    );
    check(
        refusal("qwen2.5-vl", &|json| {
            json["config"]["vision_config"]["fullatt_block_indexes"] = json!([1, 2]);
        }),
        "fullatt_block_indexes",
    );
    check(
        refusal("smolvlm", &|json| json["processor"] = Json::Null),
        "preprocessor_config.json",
    );
    let text_only = Case::read("qwen2");
    let folder = tempfile::tempdir().unwrap();
    text_only.write(folder.path());
    let file = ModelFile::open(folder.path())
        .unwrap()
        .with_vision(None)
        .unwrap();
    check(file.pictures().unwrap_err(), "no encoder");
}
