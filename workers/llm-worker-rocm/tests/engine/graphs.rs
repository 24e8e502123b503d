//! Steps of one new token for each sequence, with graphs and without: the same tokens.

use super::*;
use candle_core::quantized::{GgmlDType, QTensor};
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{DecodeOutput, SampleParams};

/// Weights, and how keys and values are stored.
const KINDS: [(GgmlDType, KvDType); 5] = [
    (GgmlDType::F32, KvDType::F16),
    (GgmlDType::F16, KvDType::F16),
    (GgmlDType::Q8_0, KvDType::Q8_0),
    (GgmlDType::Q4_0, KvDType::F16),
    (GgmlDType::Q8_0, KvDType::Q4_0),
];

/// A llama of one block with heads of 32, whose matrices are of a type.
pub fn llama(dtype: GgmlDType) -> LoadedModel {
    const WIDTH: u64 = 64;
    model(|file| {
        file.set("llama.context_length", u32(512))
            .set("llama.embedding_length", u32(WIDTH as u32))
            .set("llama.feed_forward_length", u32(2 * WIDTH as u32))
            .set("llama.attention.head_count", u32(2))
            .set("llama.attention.head_count_kv", u32(1))
            .set("llama.rope.dimension_count", u32(32));
        for tensor in &mut file.tensors {
            // The vocabulary stays, all else is twice as wide.
            for dim in tensor.dims.iter_mut().filter(|dim| **dim != 33) {
                *dim *= 2;
            }
            let mut state = tensor.name.len() as u64;
            let wide = FileTensor::f32(&tensor.name, &tensor.dims, |i| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let silent = tensor.name.starts_with("token_embd") && i < 3 * WIDTH;
                if silent {
                    0.0
                } else {
                    (state >> 40) as f32 / (1 << 23) as f32 * 0.4 - 0.4
                }
            });
            *tensor = match wide.dims[..] {
                [inputs, outputs] => typed(wide, (outputs as usize, inputs as usize), dtype),
                _ => wide,
            };
        }
    })
}

fn typed(tensor: FileTensor, shape: (usize, usize), dtype: GgmlDType) -> FileTensor {
    let numbers: Vec<f32> = tensor
        .data
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let dense = Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap();
    let blocks = QTensor::quantize(&dense, dtype).unwrap();
    FileTensor {
        type_code: match dtype {
            GgmlDType::F32 => 0,
            GgmlDType::F16 => 1,
            GgmlDType::Q4_0 => 2,
            GgmlDType::Q8_0 => 8,
            other => panic!("{other:?}"),
        },
        data: blocks.data().unwrap().to_vec(),
        ..tensor
    }
}

/// A sequence that a forward pass is driven with by hand.
struct Driven {
    id: u64,
    tokens: Vec<u32>,
    computed: usize,
}

impl Driven {
    fn step(&self, rows: usize) -> StepSequence {
        let keys = self.computed + rows;
        StepSequence {
            id: self.id,
            // 9 blocks of 16 for each, which are nobody else's.
            blocks: (0..9).map(|i| self.id as u32 + 8 * i).collect(),
            keys,
            rows,
            // Some turn by other numbers than their places, as behind pictures.
            turned: (self.id % 3 == 2).then_some(self.computed as u32 + 50),
            ..StepSequence::default()
        }
    }
}

pub fn used(graphs: bool) -> GraphUse {
    match graphs {
        true => GraphUse::On,
        false => GraphUse::Off,
    }
}

/// Logits of steps with sequences that come and go, those of the last ones with the tokens that the model chose itself.
fn drive(forward: &mut dyn Forward, kv: KvDType, graphs: bool) -> Vec<(Vec<f32>, Vec<u32>)> {
    let cache = CacheOptions {
        blocks: 72,
        block_size: 16,
        dtype: kv.into(),
        context: 144,
        states: 0,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(used(graphs));
    let mut found = Vec::new();
    let mut running: Vec<Driven> = Vec::new();
    let options = [SamplingOptions::greedy(), warm(3)];
    let mut replayed = 0;
    // How many run in each round: shapes come anew, and again; the first sequence outgrows a shape's room for keys.
    for (round, count) in [1, 1, 1, 2, 2, 4, 3, 4, 8, 7, 5, 8, 2, 1, 1]
        .into_iter()
        .enumerate()
    {
        running.truncate(count);
        while running.len() < count {
            let id = running.len() as u64;
            let len = if id == 0 { 124 } else { 5 + 3 * round as u32 };
            let new = Driven {
                id,
                tokens: prompt(round as u32 + 7 * id as u32, len),
                computed: 0,
            };
            let step = Step {
                tokens: new.tokens[..new.tokens.len() - 1].to_vec(),
                sequences: vec![new.step(new.tokens.len() - 1)],
                outputs: Vec::new(),
            };
            forward.forward(&step).unwrap();
            running.push(Driven {
                computed: new.tokens.len() - 1,
                ..new
            });
        }
        let step = Step {
            tokens: running.iter().map(|s| s.tokens[s.computed]).collect(),
            sequences: running.iter().map(|s| s.step(1)).collect(),
            outputs: (0..count as u32).collect(),
        };
        assert!(step.is_decode());
        let samples: Vec<SampleParams> = running
            .iter()
            .map(|s| SampleParams {
                options: &options[s.id as usize % 2],
                position: s.computed as u32,
            })
            .collect();
        let decoded = forward.decode(&step, None).unwrap();
        replayed += usize::from(decoded.graph);
        let DecodeOutput::Logits(logits, _) = decoded.output else {
            panic!("tokens that nobody asked for")
        };
        let logits = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(logits.len(), count * 33);
        let mut chosen = Vec::new();
        // The same step once more writes the same keys.
        if let DecodeOutput::Tokens(tokens) = forward.decode(&step, Some(&samples)).unwrap().output
        {
            chosen = tokens.wait().unwrap();
            for (s, (row, token)) in running.iter().zip(logits.chunks(33).zip(&chosen)) {
                let most = row.iter().copied().fold(f32::MIN, f32::max);
                assert!(s.id % 2 == 1 || row[*token as usize] == most);
            }
        }
        for (s, row) in running.iter_mut().zip(logits.chunks(33)) {
            s.computed += 1;
            let largest = (0..33).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            s.tokens.push(largest as u32);
        }
        found.push((logits, chosen));
    }
    assert_eq!(graphs && device().is_rocm(), replayed > 5, "{replayed}");
    found
}

#[test]
fn a_replayed_step_computes_what_an_enqueued_one_does() {
    for (dtype, kv) in KINDS {
        let mut forward = llama(dtype).forward;
        let enqueued = drive(&mut *forward, kv, false);
        let replayed = drive(&mut *forward, kv, true);
        for (round, (found, expected)) in replayed.iter().zip(&enqueued).enumerate() {
            assert_eq!(
                found, expected,
                "{dtype:?} weights, {kv} cache, round {round}"
            );
        }
        let rows = enqueued.iter().flat_map(|(logits, _)| logits.chunks(33));
        let distinct: std::collections::HashSet<Vec<u32>> = rows
            .map(|row| row.iter().map(|x| x.to_bits()).collect())
            .collect();
        assert!(distinct.len() > 40, "the rows are too much alike");
    }
}

/// Padded steps are as good as others: the logits are close to those of a forward pass without padding.
#[test]
fn padding_changes_no_logits() {
    let mut forward = llama(GgmlDType::F32).forward;
    let cache = CacheOptions {
        blocks: 64,
        block_size: 4,
        dtype: KvDType::F32.into(),
        context: 64,
        states: 0,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    for count in [1, 3, 5, 7] {
        let tokens = prompt(count, count);
        let sequences = (0..count).map(|i| StepSequence {
            id: u64::from(i),
            blocks: vec![63 - i],
            keys: 1,
            rows: 1,
            ..StepSequence::default()
        });
        let step = Step {
            tokens,
            sequences: sequences.collect(),
            outputs: (0..count).collect(),
        };
        let plain = rows(&forward.forward(&step).unwrap());
        let DecodeOutput::Logits(padded, _) = forward.decode(&step, None).unwrap().output else {
            panic!("tokens that nobody asked for")
        };
        for (found, expected) in rows(&padded).iter().zip(&plain) {
            assert_close(found, expected, 1e-5);
        }
    }
}

/// Answers of requests of all kinds at once: greedy and drawn, with penalties, probabilities and a constraint, some of
/// which end early.
pub fn mixed_answers(dtype: GgmlDType, kv: KvDType, graphs: bool) -> (Vec<Vec<u32>>, Status) {
    let engine = Engine::start(
        llama(dtype),
        &EngineOptions {
            kv_blocks: Some(60),
            kv_dtype: Some(kv).filter(|_| device().is_rocm()),
            block_size: 16,
            max_sequences: 8,
            graphs: match graphs {
                true => GraphUse::Auto,
                false => GraphUse::Off,
            },
            ..EngineOptions::default()
        },
    )
    .unwrap();
    let submit = |i: u32| {
        let sampling = match i % 3 {
            0 => SamplingOptions::greedy(),
            1 => warm(i.into()),
            _ => SamplingOptions {
                repeat_penalty: 1.2,
                ..SamplingOptions::greedy()
            },
        };
        let mut asked = request(
            prompt(i, 1 + i * 9 % 50),
            sampling,
            4 + (i as usize * 11) % 17,
        );
        if i == 4 {
            asked.top_logprobs = Some(2);
        }
        if i == 6 {
            asked.constraint = Some(Box::new(Only {
                tokens: vec![9, 32, 31, 8, 7, 6, 5, 4],
                at: 0,
            }));
            asked.max_tokens = Some(8);
        }
        engine.submit(asked).unwrap()
    };
    let mut tickets: Vec<Ticket> = (0..14).map(submit).collect();
    // One that nobody waits for.
    tickets.remove(3);
    let answers = tickets.iter_mut().map(tokens).collect();
    (answers, eventually(&engine, nothing_held))
}

#[test]
fn graphs_change_no_answer() {
    for (dtype, kv) in [KINDS[1], KINDS[2], KINDS[4]] {
        let (expected, without) = mixed_answers(dtype, kv, false);
        let (found, with) = mixed_answers(dtype, kv, true);
        assert_eq!(found, expected, "{dtype:?} weights, {kv} cache");
        assert_eq!(without.decode.graphs, 0);
        assert!(without.decode.steps > 15, "{without:?}");
        if device().is_rocm() {
            assert!(with.decode.graphs > 5, "{with:?}");
            assert!(
                with.decode.launches < without.decode.launches,
                "{with:?} {without:?}"
            );
        }
    }
}
