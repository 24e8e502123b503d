//! Guessed tokens change no answer, whoever guesses, and pay where rows are cheap.

use super::graphs::{llama, used};
use super::*;
use candle_core::quantized::GgmlDType;
use llm_worker_rocm::engine::api::{
    DraftSource, DynamicTemperature, MirostatVersion, SpeculationOptions, Xtc,
};

/// All guesses are checked.
pub fn look_up() -> SpeculationOptions {
    SpeculationOptions {
        source: DraftSource::LookUp,
        max: 5,
        shortest_match: 1,
        adaptive: false,
        ..SpeculationOptions::default()
    }
}

fn off() -> SpeculationOptions {
    SpeculationOptions::default()
}

/// A prompt that repeats itself, so that there is something to look up.
fn repeated(seed: u32, len: usize) -> Vec<u32> {
    prompt(seed, 7).into_iter().cycle().take(len).collect()
}

/// Greedy requests and drawn ones, with penalties, bias, an aim, probabilities and constraints.
fn requests() -> Vec<Request> {
    let kinds: [fn(u64) -> SamplingOptions; 6] = [
        |_| SamplingOptions::greedy(),
        |seed| SamplingOptions {
            temperature: 0.3,
            ..warm(seed)
        },
        |_| SamplingOptions {
            repeat_penalty: 1.05,
            frequency_penalty: 0.01,
            presence_penalty: 0.01,
            logit_bias: [(7, 0.5), (11, -2.0)].into(),
            ..SamplingOptions::greedy()
        },
        |seed| SamplingOptions {
            top_k: Some(4),
            min_p: Some(0.1),
            ..warm(seed)
        },
        |seed| SamplingOptions {
            dry: Some(Dry::new(0.3)),
            dynamic_temperature: Some(DynamicTemperature {
                range: 0.2,
                exponent: 1.0,
            }),
            xtc: Some(Xtc {
                probability: 0.3,
                threshold: 0.1,
            }),
            ..warm(seed)
        },
        |seed| SamplingOptions {
            aim: Some(Aim::Mirostat {
                version: MirostatVersion::V2,
                tau: 2.0,
                eta: 0.3,
            }),
            ..warm(seed)
        },
    ];
    (0..12)
        .map(|i| {
            let sampling = kinds[i as usize % kinds.len()](i.into());
            let mut asked = request(repeated(i, 8 + 5 * i as usize), sampling, 24 + i as usize);
            asked.top_logprobs = (i % 5 == 0).then_some(2);
            if i == 6 || i == 9 {
                asked.constraint = Some(Box::new(Only {
                    tokens: repeated(i, 40),
                    at: 0,
                }));
            }
            asked.ignore_end = i % 3 != 0;
            asked
        })
        .collect()
}

/// Answers to all requests at once.
fn answers(
    model: LoadedModel,
    speculation: SpeculationOptions,
    change: impl FnOnce(&mut EngineOptions),
) -> (Vec<Vec<GeneratedToken>>, Vec<Summary>, Status) {
    let mut options = EngineOptions {
        kv_blocks: Some(200),
        max_sequences: 6,
        speculation,
        ..options()
    };
    change(&mut options);
    let engine = Engine::start(model, &options).unwrap();
    let tickets: Vec<Ticket> = requests()
        .into_iter()
        .map(|asked| engine.submit(asked).unwrap())
        .collect();
    let (mut all, mut summaries) = (Vec::new(), Vec::new());
    for mut ticket in tickets {
        let (tokens, end) = outcome(&mut ticket);
        all.push(tokens);
        summaries.push(end.unwrap());
    }
    let status = eventually(&engine, nothing_held);
    (all, summaries, status)
}

#[test]
fn guesses_change_no_answer() {
    if !device().is_cpu() {
        // See `guesses_change_no_answer_of_quantized_weights`: rows of floats are summed by their number there.
        return;
    }
    let (expected, _, without) = answers(model(|_| {}), off(), |_| {});
    assert_eq!(without.drafts.drafted, 0);
    let few_blocks = |options: &mut EngineOptions| options.kv_blocks = Some(40);
    let no_prefixes = |options: &mut EngineOptions| options.prefix_cache = false;
    let small_steps = |options: &mut EngineOptions| options.max_step_tokens = 9;
    type Change = Box<dyn FnOnce(&mut EngineOptions)>;
    let changes: [(&str, Change); 4] = [
        ("as it is", Box::new(|_| {})),
        ("few blocks", Box::new(few_blocks)),
        ("no prefixes", Box::new(no_prefixes)),
        ("small steps", Box::new(small_steps)),
    ];
    for (what, change) in changes {
        let (found, summaries, status) = answers(model(|_| {}), look_up(), change);
        assert_eq!(found, expected, "{what}");
        let drafts = status.drafts;
        println!("{what}: {drafts:?}, {} preemptions", status.preemptions);
        assert!(drafts.accepted > 20 && drafts.accepted < drafts.drafted);
        assert_eq!(what == "few blocks", status.preemptions > 0);
        let sum = |count: fn(&Summary) -> usize| summaries.iter().map(count).sum::<usize>() as u64;
        assert_eq!(sum(|s| s.drafts.drafted), drafts.drafted);
        assert_eq!(sum(|s| s.drafts.accepted), drafts.accepted);
        assert_eq!(sum(|s| s.generated_tokens), status.generated_tokens);
        // Steps are saved, not only tokens guessed.
        let saved = status.decode.steps < without.decode.steps;
        assert!(saved || what != "as it is", "{status:?}");
    }
}

/// Attention of so few keys is not split, and few rows of such matrices are multiplied alike whatever their number.
#[test]
fn guesses_change_no_answer_of_quantized_weights() {
    for dtype in [GgmlDType::Q8_0, GgmlDType::Q4_0] {
        let answers = |speculation: SpeculationOptions, graphs: bool| {
            let options = EngineOptions {
                kv_blocks: Some(8),
                block_size: 16,
                max_sequences: 1,
                graphs: used(graphs),
                speculation,
                ..EngineOptions::default()
            };
            let engine = Engine::start(llama(dtype), &options).unwrap();
            let answers: Vec<Vec<u32>> = (0..4)
                .map(|i| {
                    let sampling = match i % 2 {
                        0 => SamplingOptions::greedy(),
                        _ => SamplingOptions {
                            temperature: 0.5,
                            ..warm(i)
                        },
                    };
                    let asked = request(repeated(i as u32, 20 + i as usize), sampling, 40);
                    tokens(&mut engine.submit(asked).unwrap())
                })
                .collect();
            (answers, eventually(&engine, nothing_held))
        };
        // Up to four rows: beyond, gfx9 sums in another order.
        let few = || SpeculationOptions {
            max: 3,
            ..look_up()
        };
        let (expected, _) = answers(off(), false);
        let (found, status) = answers(few(), false);
        assert_eq!(found, expected, "{dtype:?}");
        assert!(status.drafts.accepted > 10, "{:?}", status.drafts);
        let (found, status) = answers(few(), true);
        assert_eq!(found, expected, "{dtype:?} with graphs");
        assert!(status.drafts.accepted > 10, "{:?}", status.drafts);
        if device().is_rocm() {
            assert!(status.decode.graphs > 5, "{:?}", status.decode);
        }
    }
}

#[test]
fn a_request_may_want_no_guesses() {
    let engine = start(EngineOptions {
        speculation: look_up(),
        ..options()
    });
    let ask = |most: Option<usize>| {
        let mut asked = request(repeated(1, 40), SamplingOptions::greedy(), 30);
        asked.max_drafts = most;
        let (tokens, summary) = outcome(&mut engine.submit(asked).unwrap());
        (tokens, summary.unwrap().drafts)
    };
    let (expected, none) = ask(Some(0));
    assert_eq!(none.drafted, 0);
    let (found, few) = ask(Some(1));
    assert!(few.drafted > 0);
    let (again, many) = ask(None);
    assert!(many.drafted > few.drafted, "{many:?} {few:?}");
    if device().is_cpu() {
        assert!(found == expected && again == expected);
    }
}

#[test]
fn the_last_token_that_may_come_is_the_last() {
    let engine = start(EngineOptions {
        kv_blocks: Some(16),
        context: Some(60),
        speculation: look_up(),
        ..options()
    });
    for most in 1..12 {
        let asked = request(repeated(2, 30), SamplingOptions::greedy(), most);
        let (tokens, summary) = outcome(&mut engine.submit(asked).unwrap());
        let summary = summary.unwrap();
        assert_eq!((tokens.len(), summary.generated_tokens), (most, most));
        assert_eq!(summary.reason, FinishReason::Length);
    }
    let asked = request(repeated(2, 30), SamplingOptions::greedy(), 1000);
    let (tokens, summary) = outcome(&mut engine.submit(asked).unwrap());
    assert_eq!(tokens.len(), 30);
    assert_eq!(summary.unwrap().reason, FinishReason::Context);
    eventually(&engine, nothing_held);
}

/// A constraint that fails behind right guesses fails its request there, and no other.
#[test]
fn a_constraint_ends_among_guesses() {
    let engine = start(EngineOptions {
        speculation: look_up(),
        ..options()
    });
    let mut asked = request(repeated(3, 40), warm(1), 20);
    // The guesses are what the constraint asks for, up to its end.
    let expected: Vec<u32> = repeated(3, 54).split_off(40);
    asked.constraint = Some(Box::new(Only {
        tokens: expected[..6].to_vec(),
        at: 0,
    }));
    let mut other = engine.submit(request(prompt(1, 9), warm(2), 30)).unwrap();
    let (found, end) = outcome(&mut engine.submit(asked).unwrap());
    let found: Vec<u32> = found.iter().map(|t| t.token).collect();
    assert_eq!(found, expected[..6]);
    let ended = Failure::Invalid("the grammar has ended".to_string());
    assert_eq!(end.unwrap_err(), ended);
    assert_eq!(tokens(&mut other).len(), 30);
    let status = eventually(&engine, nothing_held);
    assert!(status.drafts.accepted >= 4, "{:?}", status.drafts);
}

/// How often each token comes third in answers of one kind, with guesses that are often wrong and without: Pearson's
/// chi-square test of two samples.
#[test]
fn sampled_answers_have_the_same_distribution() {
    const ANSWERS: u64 = 1500;
    if !device().is_cpu() {
        // The host chooses; thousands of answers would take a simulated device minutes.
        return;
    }
    let count = |speculation: SpeculationOptions, first_seed: u64| {
        let engine = start(EngineOptions {
            speculation,
            max_waiting: ANSWERS as usize,
            ..options()
        });
        let ask = |seed: u64| {
            let sampling = SamplingOptions {
                temperature: 1.2,
                top_k: Some(12),
                top_p: Some(0.9),
                min_p: Some(0.02),
                seed,
                ..SamplingOptions::greedy()
            };
            engine
                .submit(request(repeated(4, 30), sampling, 5))
                .unwrap()
        };
        let tickets: Vec<Ticket> = (first_seed..first_seed + ANSWERS).map(ask).collect();
        let mut counts = [0f64; 33];
        for mut ticket in tickets {
            counts[tokens(&mut ticket)[2] as usize] += 1.0;
        }
        (counts, eventually(&engine, nothing_held).drafts)
    };
    // The same seeds would give the same answers.
    let (without, _) = count(off(), 0);
    let (with, drafts) = count(look_up(), 1 << 32);
    assert!(drafts.accepted > 50, "{drafts:?}");
    assert!(drafts.accepted < drafts.drafted * 9 / 10, "{drafts:?}");
    let often = |(a, b): &(f64, f64)| a + b >= 10.0;
    let pairs: Vec<(f64, f64)> = with.into_iter().zip(without).filter(often).collect();
    let statistic: f64 = pairs.iter().map(|(a, b)| (a - b).powi(2) / (a + b)).sum();
    let freedom = pairs.len() as f64 - 1.0;
    assert!(freedom >= 4.0, "the answers are too much alike");
    // A thousandth of the samples are beyond: the approximation of Wilson and Hilferty.
    let bound =
        freedom * (1.0 - 2.0 / (9.0 * freedom) + 3.09 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
    assert!(statistic < bound, "{statistic} of {bound}, {pairs:?}");
}

/// A model whose steps take more for each further row than for the first: drafts are given up, whatever they bring.
struct Costly {
    inner: Box<dyn Forward>,
    row: Duration,
}

impl Forward for Costly {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.inner.context_length()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn can_take_back(&self) -> bool {
        self.inner.can_take_back()
    }

    fn kv_dtype(&self) -> KvDType {
        self.inner.kv_dtype()
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.inner.kv_token_bytes(dtype)
    }

    fn reserve(&mut self, cache: &CacheOptions) -> candle_core::Result<()> {
        self.inner.reserve(cache)
    }

    fn forward(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        std::thread::sleep(self.row * (3 * step.tokens.len() as u32 - 2));
        self.inner.forward(step)
    }
}

#[test]
fn drafts_are_given_up_where_each_row_takes_its_time() {
    if !device().is_cpu() {
        // A simulated device's own time hides that of the rows.
        return;
    }
    let loaded = model(long);
    let forward = Box::new(Costly {
        inner: loaded.forward,
        row: Duration::from_millis(3),
    });
    let engine = Engine::start(
        LoadedModel { forward, ..loaded },
        &EngineOptions {
            speculation: SpeculationOptions {
                adaptive: true,
                ..look_up()
            },
            ..options()
        },
    )
    .unwrap();
    let asked = request(repeated(5, 40), SamplingOptions::greedy(), 150);
    let (_, summary) = outcome(&mut engine.submit(asked).unwrap());
    let drafts = summary.unwrap().drafts;
    // A few to find out, of the hundreds that there could be.
    assert!(drafts.drafted > 0 && drafts.drafted < 60, "{drafts:?}");
}

/// A draft model that is the model itself guesses all, another one mostly wrongly; neither changes an answer.
#[test]
fn a_draft_model_changes_no_answer() {
    if !device().is_cpu() {
        return;
    }
    let other = |file: &mut File| {
        file.set("llama.rope.freq_base", common::f32(500.0));
    };
    let by_model = |least_probability| SpeculationOptions {
        source: DraftSource::Model,
        max: 4,
        least_probability,
        ..look_up()
    };
    let (expected, _, without) = answers(model(|_| {}), off(), |_| {});
    for (name, draft, least) in [
        ("itself", model(|_| {}), 0.0),
        ("another", model(other), 0.0),
        ("another if sure", model(other), 0.06),
    ] {
        let loaded = model(|_| {}).with_draft(draft).unwrap();
        let (found, _, status) = answers(loaded, by_model(least), |_| {});
        assert_eq!(found, expected, "{name}");
        println!(
            "{name}: {:?} in {} steps",
            status.drafts, status.decode.steps
        );
        let drafts = status.drafts;
        match name {
            // Penalties, bias, aims and constraints are not the draft model's.
            "itself" => {
                assert!(drafts.accepted * 4 > drafts.drafted, "{drafts:?}");
                let (steps, plain) = (status.decode.steps, without.decode.steps);
                assert!(steps * 5 < plain * 4, "{steps} instead of {plain}");
            }
            _ => assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted),
        }
    }
}

/// Greedy answers to one request at a time: there the draft model has the whole say.
#[test]
fn the_model_itself_guesses_every_greedy_token() {
    let loaded = model(|_| {}).with_draft(model(|_| {})).unwrap();
    let speculation = SpeculationOptions {
        source: DraftSource::Model,
        max: 4,
        least_probability: 0.0,
        ..look_up()
    };
    let engine = Engine::start(
        loaded,
        &EngineOptions {
            speculation,
            ..options()
        },
    )
    .unwrap();
    for (len, count) in [(9, 41), (50, 21), (1, 31)] {
        let asked = request(prompt(7, len), SamplingOptions::greedy(), count);
        let (_, summary) = outcome(&mut engine.submit(asked).unwrap());
        let drafts = summary.unwrap().drafts;
        if device().is_cpu() {
            assert_eq!(drafts.accepted, drafts.drafted);
            // Four guesses and one more token a step, behind the prompt's own.
            assert_eq!(drafts.drafted, (count - 1) / 5 * 4);
        }
        assert!(drafts.accepted > count / 2, "{drafts:?}");
    }
    eventually(&engine, nothing_held);
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let other = model(|file| {
        let tokens = [
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "Ġ",
            "Ċ",
            "th",
            "the",
        ];
        let letters: Vec<String> = ('a'..='z').rev().map(String::from).collect();
        let all: Vec<&str> = tokens
            .into_iter()
            .chain(letters.iter().map(String::as_str))
            .collect();
        file.set("tokenizer.ggml.tokens", common::strings(&all));
    });
    let error = model(|_| {}).with_draft(other).err().unwrap().to_string();
    assert!(error.contains("token 7 is \"z\""), "{error}");
    let wanted = EngineOptions {
        speculation: SpeculationOptions {
            source: DraftSource::Model,
            ..off()
        },
        ..options()
    };
    let error = Engine::start(model(|_| {}), &wanted).err().unwrap();
    assert!(error.to_string().contains("--draft-model"), "{error}");
    let wanted = EngineOptions {
        speculation: SpeculationOptions {
            source: DraftSource::Head,
            ..off()
        },
        ..options()
    };
    assert!(Engine::start(model(|_| {}), &wanted).is_err());
}

/// The token behind another one in models that look at nothing else.
fn next(token: u32) -> u32 {
    match token {
        0..3 => token,
        token => 3 + (token - 3 + 7) % 30,
    }
}

/// Whether the `i`th element of a token's embedding is 1, and not -1.
fn sign(token: u32, i: u64) -> f32 {
    let mixed = (u64::from(token) * 64 + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    [-1.0, 1.0][(mixed >> 40) as usize % 2]
}

/// A model whose next token is [`next`] of the last one, with a head that predicts by the embedding of its token or by
/// the hidden state alone.
fn with_head(by_embedding: bool, change: impl FnOnce(&mut File)) -> LoadedModel {
    with_heads(1, by_embedding, change)
}

/// The same with more of the same heads behind it.
fn with_heads(count: u32, by_embedding: bool, change: impl FnOnce(&mut File)) -> LoadedModel {
    const WIDTH: u64 = 32;
    let before = |token: u32| (3..33).find(|t| next(*t) == token).unwrap_or(token);
    let mut file = tiny_llama();
    file.set("llama.block_count", u32(1 + count))
        .set("llama.nextn_predict_layers", u32(count));
    let rows = |name: &str, of: &dyn Fn(u32) -> u32| {
        let value = |i: u64| sign(of((i / WIDTH) as u32), i % WIDTH);
        FileTensor::f32(name, &[WIDTH, 33], value)
    };
    for tensor in &mut file.tensors {
        let silent = ["attn_output", "ffn_down"];
        if silent.iter().any(|part| tensor.name.contains(part)) {
            *tensor = FileTensor::f32(&tensor.name, &tensor.dims, |_| 0.0);
        } else if tensor.name.ends_with("norm.weight") {
            *tensor = FileTensor::f32(&tensor.name, &tensor.dims, |_| 1.0);
        } else if tensor.name == "token_embd.weight" {
            *tensor = rows("token_embd.weight", &|token| token);
        }
    }
    let of_head: Vec<FileTensor> = file
        .tensors
        .iter()
        .filter(|tensor| tensor.name.starts_with("blk.0."))
        .map(|tensor| FileTensor {
            name: tensor.name.replace("blk.0.", "blk.1."),
            dims: tensor.dims.clone(),
            data: tensor.data.clone(),
            type_code: tensor.type_code,
            offset: tensor.offset,
        })
        .collect();
    file.tensors.extend(of_head);
    file.tensors.push(rows("output.weight", &before));
    for norm in ["enorm", "hnorm"] {
        let name = format!("blk.1.nextn.{norm}.weight");
        file.tensors.push(FileTensor::f32(&name, &[WIDTH], |_| 1.0));
    }
    let half = if by_embedding { 0 } else { WIDTH };
    let join = |i: u64| f32::from(u8::from(i % (2 * WIDTH) == half + i / (2 * WIDTH)));
    file.tensors.push(FileTensor::f32(
        "blk.1.nextn.eh_proj.weight",
        &[2 * WIDTH, WIDTH],
        join,
    ));
    if !by_embedding {
        let own = rows("blk.1.nextn.shared_head_head.weight", &|t| {
            before(before(t))
        });
        file.tensors.push(own);
    }
    for block in 2..=count {
        let copy = |tensor: &FileTensor| FileTensor {
            name: tensor.name.replace("blk.1.", &format!("blk.{block}.")),
            dims: tensor.dims.clone(),
            data: tensor.data.clone(),
            type_code: tensor.type_code,
            offset: tensor.offset,
        };
        let first = file.tensors.iter().filter(|t| t.name.starts_with("blk.1."));
        let copies: Vec<FileTensor> = first.map(copy).collect();
        file.tensors.extend(copies);
    }
    change(&mut file);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let options = LoadOptions {
        head: true,
        ..LoadOptions::default()
    };
    let opened = ModelFile::open(&path).unwrap();
    load_file(opened, &options).unwrap()
}

/// A head that is always right has all of its guesses accepted: it is asked for the right tokens behind the right hidden
/// states, whatever is taken back, read in pieces, shared with others or computed anew.
#[test]
fn a_head_guesses_from_what_the_model_has_computed() {
    // One that goes on from its own output, one that cannot, and several of which each goes one token further.
    for (heads, by_embedding, max) in [(1, true, 4), (1, false, 1), (3, true, 3)] {
        let speculation = SpeculationOptions {
            source: DraftSource::Head,
            max,
            least_probability: 0.0,
            ..look_up()
        };
        let engine = Engine::start(
            with_heads(heads, by_embedding, |_| {}),
            &EngineOptions {
                kv_blocks: Some(60),
                block_size: 16,
                max_step_tokens: 24,
                speculation,
                ..options()
            },
        )
        .unwrap();
        let expected = |prompt: &[u32], count: usize| -> Vec<u32> {
            let last = *prompt.last().unwrap();
            std::iter::successors(Some(next(last)), |t| Some(next(*t)))
                .take(count)
                .collect()
        };
        // Alone, then many at once.
        for count in [1, 9] {
            let prompts: Vec<Vec<u32>> = (0..count).map(|i| prompt(i % 4, 30 + 9 * i)).collect();
            let mut tickets: Vec<Ticket> = prompts
                .iter()
                .map(|prompt| {
                    let asked = request(prompt.clone(), SamplingOptions::greedy(), 25);
                    engine.submit(asked).unwrap()
                })
                .collect();
            for (prompt, ticket) in prompts.iter().zip(&mut tickets) {
                let (found, summary) = outcome(ticket);
                let found: Vec<u32> = found.iter().map(|t| t.token).collect();
                assert_eq!(found, expected(prompt, 25));
                let drafts = summary.unwrap().drafts;
                // Who takes a block of another just when it is computed finds it without what the head has read there.
                let wrong = drafts.drafted - drafts.accepted;
                let most = usize::from(count > 1);
                assert!(wrong <= most, "{wrong}: {heads} {by_embedding} {count}");
                // At the end of a block there is room for one guess only; many together share the rows of a step.
                let least = [25 * max / (max + 1) * 2 / 3, 0][usize::from(count > 1)];
                assert!(drafts.accepted >= least, "{drafts:?}");
            }
        }
        eventually(&engine, nothing_held);
    }
}

#[test]
fn a_damaged_head_is_refused() {
    let open =
        |change: fn(&mut File)| std::panic::catch_unwind(|| drop(with_head(true, change))).is_err();
    assert!(!open(|_| {}));
    for change in [
        (|file: &mut File| {
            file.tensors
                .retain(|t| t.name != "blk.1.nextn.enorm.weight");
        }) as fn(&mut File),
        |file| {
            file.tensors.retain(|t| t.name != "blk.1.ffn_up.weight");
        },
        |file| {
            let wrong = |t: &FileTensor| t.name == "blk.1.nextn.eh_proj.weight";
            file.tensors.retain(|t| !wrong(t));
            let short = FileTensor::f32("blk.1.nextn.eh_proj.weight", &[32, 32], |_| 0.0);
            file.tensors.push(short);
        },
    ] {
        assert!(open(change));
    }
}
