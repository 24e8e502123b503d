//! Whisper against transformers: features, the encoder's rows, logits, and what some seconds say, from a folder and from a
//! file of whisper.cpp's; `transformers/generate.py` wrote the numbers.

use super::device;
use super::tiny_whisper::{case, segments, sound, tensors, write};
use super::transformers::tolerance;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use llm_worker_rocm::audio::mel::whisper_range;
use llm_worker_rocm::audio::{LogMel, MelOptions};
use llm_worker_rocm::whisper::{Progress, Segment, TranscribeOptions, Whisper};
use serde_json::Value as Json;
use std::ops::ControlFlow;
use std::path::Path;

/// Stretches of speech that are computed on a simulated device, which takes its time.
const DEVICE_SEGMENTS: usize = 3;
/// Tokens of a vocabulary with all languages.
const VOCABULARY: usize = 51_865;

fn rows(json: &Json) -> Vec<(usize, Vec<f32>)> {
    serde_json::from_value(json.clone()).unwrap()
}

/// The largest difference.
fn apart(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let pairs = got.iter().zip(want);
    pairs.fold(0f32, |a, (got, want)| a.max((got - want).abs()))
}

/// Normalised frames of the case's sound, with a window of silence behind it.
fn features(case: &Json) -> Vec<f32> {
    let bands = case["config"]["num_mel_bins"].as_u64().unwrap() as usize;
    let mut samples = sound(case);
    let silence = 2 * case["config"]["max_source_positions"].as_u64().unwrap() as usize * 160;
    samples.extend(vec![0.0; silence]);
    let mel = LogMel::new(MelOptions::whisper(bands));
    let mut rows = mel.rows(&samples, 0..mel.frames(samples.len()));
    let peak = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    whisper_range(&mut rows, peak);
    rows
}

#[test]
fn features_are_those_of_transformers() {
    let case = case();
    let got = features(&case);
    for (frame, want) in rows(&case["features"]) {
        let off = apart(&got[frame * want.len()..][..want.len()], &want);
        assert!(off <= 1e-5, "frame {frame}: {off:e}");
    }
    let mel = LogMel::new(MelOptions::universal(128));
    let samples = &sound(&case)[..16_000];
    assert_eq!(mel.frames(samples.len()), 97);
    let got = mel.rows(samples, 0..97);
    for (frame, want) in rows(&case["universal"]) {
        let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
        let off = apart(&got[frame * 128..][..128], &want) / largest;
        assert!(off <= 1e-5, "universal frame {frame}: {off:e}");
    }
}

/// Compares the encoder's rows and logits; the share of the largest number by which they differ.
fn check(case: &Json, model: &Whisper) -> [f32; 2] {
    let window = 2 * case["config"]["max_source_positions"].as_u64().unwrap() as usize;
    let bands = case["config"]["num_mel_bins"].as_u64().unwrap() as usize;
    let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
    let features = features(case);
    let [encoded, logits] = (model.rows_and_logits(&features[..window * bands], &tokens)).unwrap();
    let share = |got: &[Vec<f32>], want: Vec<(usize, Vec<f32>)>| {
        let each = want.iter().map(|(row, want)| {
            let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
            apart(&got[*row][..want.len()], want) / largest
        });
        each.fold(0.0, f32::max)
    };
    [
        share(&encoded, rows(&case["encoded"])),
        share(&logits, rows(&case["rows"])),
    ]
}

fn heard(model: &Whisper, samples: Vec<f32>, options: &TranscribeOptions) -> Vec<Segment> {
    let most = match device().is_cpu() {
        true => usize::MAX,
        false => DEVICE_SEGMENTS,
    };
    let mut segments = Vec::new();
    let mut listener = |told: Progress| {
        if let Progress::Segment(segment) = told {
            segments.push(segment.clone());
        }
        match segments.len() < most {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let whole = model.transcribe(samples, options, &mut listener).unwrap();
    if let Some(whole) = whole {
        assert_eq!(whole.segments, segments);
    }
    segments
}

/// Each window is written down once, whatever is thought of it.
fn plain() -> TranscribeOptions {
    TranscribeOptions {
        temperatures: vec![0.0],
        silence: None,
        max_tokens: Some(24),
        ..TranscribeOptions::default()
    }
}

#[test]
fn a_folder_hears_what_transformers_does() {
    let case = case();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), |_| {});
    assert!(Whisper::recognises(folder.path()));
    let model = Whisper::open(folder.path(), &device(), &|_| {}).unwrap();
    let off = check(&case, &model);
    println!("rows {:.1e}, logits {:.1e}", off[0], off[1]);
    assert!(off.iter().all(|off| *off <= tolerance()), "{off:?}");

    let found = heard(&model, sound(&case), &plain());
    let want = segments(&case);
    let want = &want[..found.len().max(DEVICE_SEGMENTS).min(want.len())];
    let got: Vec<_> = found.iter().map(|s| (s.start, s.end, &s.tokens)).collect();
    assert_eq!(got.len(), want.len(), "{got:?}");
    for ((start, end, tokens), want) in got.into_iter().zip(want) {
        assert_eq!(*tokens, want.2);
        assert!(
            (start - want.0).abs() < 1e-6 && (end - want.1).abs() < 1e-6,
            "{start} {end}"
        );
    }
}

#[test]
fn options_are_followed_or_refused() {
    let case = case();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), |_| {});
    let model = Whisper::open(folder.path(), &Device::Cpu, &|_| {}).unwrap();
    let samples = sound(&case)[..48_000].to_vec();
    let run = |options: &TranscribeOptions| {
        let mut listener = |_: Progress| ControlFlow::Continue(());
        model.transcribe(samples.clone(), options, &mut listener)
    };
    let found = run(&plain()).unwrap().unwrap();
    let codes = [(29, "en"), (30, "de")];
    let language = codes
        .iter()
        .find(|(id, _)| case["language"] == *id)
        .unwrap()
        .1;
    assert_eq!(found.language, language);
    assert!((found.duration - 3.0).abs() < 1e-9);
    // Temperatures rise as long as nothing makes sense.
    let doubtful = TranscribeOptions {
        temperatures: vec![0.0, 0.4],
        logprob: Some(10.0),
        ..plain()
    };
    let again = run(&doubtful).unwrap().unwrap();
    assert!(again.segments.iter().all(|s| s.temperature == 0.4));
    assert_eq!(again, run(&doubtful).unwrap().unwrap());
    // Where the model says that there is no speech and is not sure of its words, there is none.
    let silent = TranscribeOptions {
        silence: Some(0.0),
        ..doubtful.clone()
    };
    assert!(run(&silent).unwrap().unwrap().segments.is_empty());
    let other = |change: &dyn Fn(&mut TranscribeOptions)| {
        let mut options = plain();
        change(&mut options);
        run(&options)
    };
    let told = other(&|o| o.prompt = Some("abc <|endoftext|>".to_string()));
    assert_ne!(told.unwrap().unwrap().segments, found.segments);
    let translated = other(&|o| o.translate = true).unwrap().unwrap();
    assert_ne!(translated.segments, found.segments);
    let timed = other(&|o| o.words = true).unwrap().unwrap();
    for segment in &timed.segments {
        let written: String = segment.words.iter().map(|w| w.word.as_str()).collect();
        assert_eq!(written, segment.text);
        assert!(segment
            .words
            .iter()
            .all(|w| w.start <= w.end && w.end <= 4.1));
        assert!(segment
            .words
            .windows(2)
            .all(|two| two[0].end <= two[1].start));
    }
    assert!(timed.segments.iter().any(|s| !s.words.is_empty()));
    let refused = |change: &dyn Fn(&mut TranscribeOptions)| other(change).unwrap_err().to_string();
    assert!(refused(&|o| o.language = Some("klingon".to_string())).contains("klingon"));
    assert!(refused(&|o| o.language = Some("French".to_string())).contains("French"));
    // Whoever waits for it may end it before any token.
    let mut tokens = 0;
    let ended = model.transcribe(samples.clone(), &plain(), &mut |told: Progress| {
        tokens += usize::from(matches!(told, Progress::Token));
        match tokens < 2 {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    assert_eq!((ended.unwrap(), tokens), (None, 2));

    let english = tempfile::tempdir().unwrap();
    write(english.path(), |settings| {
        settings["is_multilingual"] = false.into()
    });
    let model = Whisper::open(english.path(), &Device::Cpu, &|_| {}).unwrap();
    let run = |options: &TranscribeOptions| {
        let mut listener = |_: Progress| ControlFlow::Continue(());
        model.transcribe(samples.clone(), options, &mut listener)
    };
    assert_eq!(run(&plain()).unwrap().unwrap().language, "en");
    for options in [
        TranscribeOptions {
            translate: true,
            ..plain()
        },
        TranscribeOptions {
            language: Some("de".to_string()),
            ..plain()
        },
    ] {
        assert!(run(&options)
            .unwrap_err()
            .to_string()
            .contains("English only"));
    }
}

/// OpenAI's name of a tensor.
fn openai(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap();
    let pairs = [
        ("layers", "blocks"),
        ("encoder_attn_layer_norm", "cross_attn_ln"),
        ("self_attn_layer_norm", "attn_ln"),
        ("final_layer_norm", "mlp_ln"),
        ("encoder.layer_norm", "encoder.ln_post"),
        ("decoder.layer_norm", "decoder.ln"),
        ("encoder_attn", "cross_attn"),
        ("self_attn", "attn"),
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
        ("fc1", "mlp.0"),
        ("fc2", "mlp.2"),
        ("embed_tokens", "token_embedding"),
        ("embed_positions.weight", "positional_embedding"),
    ];
    let replace = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
    pairs.iter().fold(name.to_string(), replace)
}

/// Writes the case as a file of whisper.cpp's, matrices in a type; the vocabulary is filled up to a usual size.
fn write_bin(case: &Json, path: &Path, dtype: GgmlDType) {
    let size = |key: &str| case["config"][key].as_i64().unwrap() as i32;
    let mut file = 0x6767_6d6cu32.to_le_bytes().to_vec();
    let mut put = |numbers: &[i32]| file.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
    put(&[VOCABULARY as i32, size("max_source_positions")]);
    put(&["d_model", "encoder_attention_heads", "encoder_layers"].map(size));
    put(&["max_target_positions", "d_model", "decoder_attention_heads"].map(size));
    put(&[size("decoder_layers"), size("num_mel_bins"), 1]);
    put(&[size("num_mel_bins"), 201]);
    file.extend(vec![0; 80 * 201 * 4]);
    file.extend(50_257i32.to_le_bytes());
    for id in 0..50_257u32 {
        let text = match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) => format!("w{id}").into_bytes(),
        };
        file.extend((text.len() as i32).to_le_bytes());
        file.extend(text);
    }
    for (name, shape, data) in tensors(case) {
        let numbers = data.chunks_exact(4);
        let mut numbers: Vec<f32> = numbers
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let mut shape = shape;
        if name.ends_with("embed_tokens.weight") {
            shape[0] = VOCABULARY;
            numbers.resize(VOCABULARY * shape[1], 0.0);
        }
        if name.ends_with("conv1.bias") || name.ends_with("conv2.bias") {
            shape.push(1);
        }
        let name = openai(&name);
        let is_matrix = shape.len() == 2 && shape[1] > 1 && !name.contains("positional");
        let kind = if is_matrix { dtype } else { GgmlDType::F32 };
        let tensor = Tensor::from_vec(numbers, shape.clone(), &Device::Cpu).unwrap();
        let stored = QTensor::quantize(&tensor, kind).unwrap();
        let code = match kind {
            GgmlDType::F32 => 0,
            GgmlDType::F16 => 1,
            GgmlDType::Q5_0 => 6,
            GgmlDType::Q8_0 => 8,
            other => panic!("{other:?}"),
        };
        let head = [shape.len() as i32, name.len() as i32, code];
        let dims = shape.iter().rev().map(|&d| d as i32);
        file.extend(head.into_iter().chain(dims).flat_map(|n| n.to_le_bytes()));
        file.extend(name.as_bytes());
        file.extend(stored.data().unwrap().iter());
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn a_file_of_whisper_cpp_computes_the_same() {
    let case = case();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ggml-tiny.bin");
    for (dtype, limit) in [
        (GgmlDType::F32, tolerance()),
        (GgmlDType::F16, 5e-3),
        (GgmlDType::Q8_0, 0.05),
        (GgmlDType::Q5_0, 0.3),
    ] {
        // A simulated device takes its time; the other types are only read in another way.
        if !device().is_cpu() && dtype != GgmlDType::Q8_0 {
            continue;
        }
        write_bin(&case, &path, dtype);
        assert!(Whisper::recognises(&path));
        let model = Whisper::open(&path, &device(), &|_| {}).unwrap();
        let off = check(&case, &model);
        println!("{dtype:?}: rows {:.1e}, logits {:.1e}", off[0], off[1]);
        assert!(off.iter().all(|off| *off <= limit), "{dtype:?}: {off:?}");
        assert!(model.is_multilingual());
    }
    let whole = std::fs::read(&path).unwrap();
    let opened = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Whisper::open(&path, &Device::Cpu, &|_| {}).map(drop)
    };
    for length in [3, 40, 700, 64_400, 900_000, whole.len() - 1] {
        let error = opened(&whole[..length]).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{length}: {error}");
    }
    for (place, byte) in [
        (4, 0),
        (8, 0xff),
        (12, 33),
        (19, 0xff),
        (40, 81),
        (48, 0x7f),
    ] {
        let mut bytes = whole.clone();
        bytes[place] = byte;
        let error = opened(&bytes).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{place}: {error}");
    }
}
