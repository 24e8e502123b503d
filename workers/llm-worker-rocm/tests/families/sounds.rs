//! Models that hear, against transformers: frames, rows of sounds and answers; `transformers/generate.py` wrote the
//! numbers.

use super::formats::write_gguf;
use super::pictures::{answer, difference, numbers, write, write_settings};
use super::transformers::Case;
use super::{device, load_file};
use llm_worker_rocm::engine::media::{Content, Media, MediaItem};
use llm_worker_rocm::engine::{Engine, EngineOptions, LoadedModel};
use llm_worker_rocm::jinja::Rendered;
use llm_worker_rocm::media::{PICTURE_MARK, SOUND_MARK};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use llm_worker_rocm::sound::SoundFile;
use llm_worker_rocm::vision::VisionFile;
use serde_json::{json, Value as Json};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use worker::gguf::{Gguf, TensorInfo, Weights};

/// Two encoders as one file has them.
struct Both<'a> {
    header: Gguf,
    parts: [&'a dyn Weights; 2],
}

impl<'a> Both<'a> {
    fn new(parts: [&'a dyn Weights; 2]) -> Self {
        let headers = || parts.iter().map(|part| part.header());
        let metadata = headers().flat_map(|header| header.metadata());
        let tensors = headers().flat_map(|header| header.tensors());
        Self {
            header: Gguf::from_parts(
                metadata.map(|(key, value)| (key.to_string(), value.clone())),
                tensors.map(|(name, info)| (name.to_string(), info.clone())),
            ),
            parts,
        }
    }

    fn part(&self, name: &str) -> &dyn Weights {
        let has = |part: &&&dyn Weights| part.header().tensor(name).is_some();
        *self.parts.iter().find(has).unwrap()
    }
}

impl Weights for Both<'_> {
    fn path(&self) -> &Path {
        self.parts[0].path()
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        self.part(name).bytes(name, info)
    }

    fn give_back(&self, name: &str, info: &TensorInfo) {
        self.part(name).give_back(name, info);
    }
}

/// The formula of `generate.py`.
fn sound(case: &Case, shift: i64) -> Vec<f32> {
    let count = case.json["sound"].as_i64().unwrap();
    let sample = |t: i64| {
        let tone = (t * (300 + t / 64) / 37) % 400 - 200;
        let noise = (t * t * 7 + t * 131 + shift) % 2003 - 1001;
        (tone * 60 + noise * 8) as f32 / 32768.0
    };
    (0..count).map(sample).collect()
}

/// The prompt's tokens and sounds, of a text with a mark where each sound is.
fn prompt(case: &Case, model: &LoadedModel, sounds: &[Arc<MediaItem>]) -> (Vec<u32>, Media) {
    let tokens: Vec<u32> = serde_json::from_value(case.json["prompt"].clone()).unwrap();
    let letter = |token: &u32| match token {
        3 => ' ',
        token => (b'a' + (*token - 4) as u8) as char,
    };
    let letters = |tokens: &[u32]| tokens.iter().map(letter).collect::<String>();
    // Three, the sound, the rest.
    let rest = tokens.iter().rposition(|t| *t > 29).unwrap() + 1;
    let marks = SOUND_MARK.repeat(sounds.len());
    let text = format!(
        "{}{marks}{}",
        letters(&tokens[..3]),
        letters(&tokens[rest..])
    );
    let rendered = Rendered {
        input: std::iter::once(0..text.len()).collect(),
        text,
    };
    let processor = model.pictures.as_ref().unwrap();
    processor
        .prompt(&rendered, sounds, &model.tokenizer, false)
        .unwrap()
}

/// Frames, rows and answers of a model from `path`.
fn check(name: &str, case: &Case, path: &Path) {
    let on_cpu = device().is_cpu();
    let file = ModelFile::open(path).unwrap().with_vision(None).unwrap();
    let processor = file.pictures().unwrap();
    let heard = processor.sound_of(&sound(case, 0)).unwrap();
    let Content::Sound(frames) = &heard.content else {
        panic!("no sound");
    };
    let mel: Vec<f32> = frames
        .pieces
        .iter()
        .flat_map(|piece| piece.mel.clone())
        .collect();
    let [count, every] = [0, 1].map(|i| case.json["mel"][i].as_u64().unwrap() as usize);
    // Some frames of silence may come behind.
    assert!(mel.len() >= count, "{name}: {} of {count}", mel.len());
    let samples: Vec<f32> = mel[..count].iter().copied().step_by(every).collect();
    let apart = difference(&samples, &numbers(&case.json["mel"][2]));
    println!("{name}: frames differ by {apart:.1e}");
    assert!(apart <= 1e-5, "{name}: frames differ by {apart:e}");

    let mut model = load_file(file, &LoadOptions::default()).unwrap();
    let features = model.forward.encode(&heard).unwrap().rows;
    let rows: Vec<Vec<f32>> = features
        .to_dtype(candle_core::DType::F32)
        .unwrap()
        .to_vec2()
        .unwrap();
    assert_eq!(rows.len(), frames.rows(), "{name}");
    let places = [0, rows.len() / 2, rows.len() - 1];
    for (row, want) in places.iter().zip(case.json["features"].as_array().unwrap()) {
        let apart = difference(&rows[*row], &numbers(want));
        println!("{name}: row {row} differs by {apart:.1e}");
        assert!(apart <= 1e-3, "{name}: row {row} differs by {apart:e}");
    }

    let other = processor.sound_of(&sound(case, 5)).unwrap();
    let (tokens, media) = prompt(case, &model, std::slice::from_ref(&heard));
    // Rows may have another token than the one that stands for them.
    let mut spelled = tokens.clone();
    for span in &media.spans {
        let places = span.start..span.start + span.len;
        let wanted = case.json["prompt"].as_array().unwrap()[places.clone()].iter();
        spelled.splice(places, wanted.map(|token| token.as_u64().unwrap() as u32));
    }
    assert_eq!(json!(spelled), case.json["prompt"], "{name}");
    let (of_both, both) = prompt(case, &model, &[heard, other]);
    // Small blocks and steps: sounds are cut wherever they may be.
    let options = EngineOptions {
        block_size: 4,
        max_step_tokens: 9,
        kv_blocks: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::start(model, &options).unwrap();
    let media = Arc::new(media);
    let want = case.json["answer"].as_array().unwrap();
    let (got, logprobs, cached) = answer(&engine, &tokens, &media);
    assert_eq!(cached, 0, "{name}");
    let wanted: Vec<&Json> = want.iter().map(|pair| &pair[0]).collect();
    println!("{name}: {got:?}, {logprobs:?}");
    let pairs = got.iter().zip(&wanted);
    let same = pairs.take_while(|(got, wanted)| json!(got) == ***wanted);
    let same = same.count();
    if on_cpu {
        assert_eq!(json!(got[..wanted.len()]), json!(wanted), "{name}");
    }
    // On a device, whose keys and values are halves, two tokens that are nearly as likely may change places: what
    // follows is another answer.
    let wanted = want.iter().map(|pair| pair[1].as_f64().unwrap() as f32);
    let pairs = logprobs.iter().zip(wanted).take(same + 1);
    let apart = pairs.fold(0f32, |a, (x, y)| a.max((x - y).abs()));
    println!("{name}: logarithms of probability differ by {apart:.1e}");
    let most = if on_cpu { 3e-4 } else { 3e-3 };
    assert!(apart <= most, "{name}: {apart:e}");

    // The first of two sounds is known, the second is not.
    let both = Arc::new(both);
    let (_, _, cached) = answer(&engine, &of_both, &both);
    let (first, second) = (both.spans[0].start, both.spans[1].start);
    assert!(
        cached > first && cached <= second,
        "{name}: {cached} of {second}"
    );
}

/// The GGUF file of the text part, and that of the encoders beside it.
fn write_files(folder: &Path, files: &Path) -> std::path::PathBuf {
    let model = files.join("model.gguf");
    write_gguf(&*open_weights(folder).unwrap(), &model);
    let sound = SoundFile::of_folder(folder).unwrap().unwrap();
    let mmproj = files.join("mmproj-model-f32.gguf");
    match VisionFile::of_folder(folder).unwrap() {
        Some(vision) => write_gguf(&Both::new([vision.weights(), sound.weights()]), &mmproj),
        None => write_gguf(sound.weights(), &mmproj),
    }
    model
}

/// From its folder, and from GGUF files.
fn compare(name: &str) {
    let case = Case::read(name);
    let folder = tempfile::tempdir().unwrap();
    write(&case, folder.path());
    check(name, &case, folder.path());
    let files = tempfile::tempdir().unwrap();
    let model = write_files(folder.path(), files.path());
    check(&format!("{name}, GGUF"), &case, &model);
}

#[test]
fn models_that_hear_answer_as_transformers_does() {
    for name in [
        "voxtral",
        "qwen2-audio",
        "qwen2.5-omni",
        "gemma3n-audio",
        "gemma4-audio",
    ] {
        compare(name);
    }
}

/// As Qwen publishes it: the part that answers in text below a name of its own, beside what speaks.
#[test]
fn a_model_that_speaks_is_heard_in_text() {
    let mut case = Case::read("qwen2.5-omni");
    let thinker = case.json["config"].take();
    case.json["config"] = json!({
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "thinker_config": thinker,
        "talker_config": {"hidden_size": 8},
    });
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = case.tensors();
    for (name, _, _) in &mut tensors {
        *name = format!("thinker.{name}");
    }
    tensors.push(("talker.model.norm.weight".to_string(), vec![8], vec![0; 32]));
    case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    write_settings(&case, folder.path());
    check("qwen2.5-omni, whole", &case, folder.path());
}

/// Pictures and sounds in one prompt: each kind in its places, and positions of three parts.
#[test]
fn a_model_sees_and_hears() {
    let case = Case::read("qwen2.5-omni");
    let folder = tempfile::tempdir().unwrap();
    write(&case, folder.path());
    let file = ModelFile::open(folder.path()).unwrap();
    let file = file.with_vision(None).unwrap();
    let processor = file.pictures().unwrap();
    let picture =
        image::RgbImage::from_fn(16, 24, |x, y| image::Rgb([x as u8 * 9, y as u8 * 7, 40]));
    let items = [
        processor.picture_of(&picture).unwrap(),
        processor.sound_of(&sound(&case, 0)).unwrap(),
    ];
    let text = format!("a{SOUND_MARK}b{PICTURE_MARK}c");
    let rendered = Rendered {
        input: std::iter::once(0..text.len()).collect(),
        text,
    };
    let prompt = processor.prompt(&rendered, &items, file.tokenizer(), false);
    let (tokens, media) = prompt.unwrap();
    let rows = |item: usize| processor.rows_of(&items[item]);
    let [heard, seen] = [&media.spans[0], &media.spans[1]];
    assert_eq!((heard.len, seen.len), (rows(1), rows(0)));
    assert_eq!((tokens[heard.start], tokens[seen.start]), (31, 35));
    let turns = media.turns.unwrap();
    // A sound's rows are turned by their place.
    let last = heard.start + heard.len - 1;
    assert_eq!(turns[last], [last as u32; 3]);
    let start = turns[seen.start][0];
    assert_eq!(turns[seen.start + 3], [start, start + 1, start]);
    // Without pictures there is nothing to turn otherwise.
    let text = format!("a{SOUND_MARK}");
    let rendered = Rendered {
        input: std::iter::once(0..text.len()).collect(),
        text,
    };
    let (_, media) = processor
        .prompt(&rendered, &items[1..], file.tokenizer(), false)
        .unwrap();
    assert!(media.turns.is_none());
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
        refusal("voxtral", &|json| {
            json["config"]["audio_config"]["scale_embedding"] = true.into()
        }),
        "scale_embedding",
    );
    check(
        refusal("qwen2-audio", &|json| {
            json["processor"]["hop_length"] = 200.into()
        }),
        "hop_length",
    );
    check(
        refusal("qwen2-audio", &|json| json["processor"] = Json::Null),
        "preprocessor_config.json",
    );
    // Longer than the encoder takes, and too short for a row.
    let case = Case::read("qwen2-audio");
    let folder = tempfile::tempdir().unwrap();
    write(&case, folder.path());
    let file = ModelFile::open(folder.path()).unwrap();
    let processor = file.with_vision(None).unwrap().pictures().unwrap();
    let refused = |samples: usize| {
        let error = processor.sound_of(&vec![0.1; samples]).unwrap_err();
        error.to_string()
    };
    check(refused(12801), "this model takes 0.8");
    check(refused(100), "too short");
    let error = processor
        .picture_of(&image::RgbImage::new(8, 8))
        .unwrap_err();
    check(error.to_string(), "takes no pictures");
}
