//! The shards of a model as one: a thread for each, all of which make the same passes.

use candle_core::{Device, Result, Tensor};
use candle_rocm_collective::{host, Communicator};
use llm_worker_rocm::adapters::{Adapter, AdapterSource};
use llm_worker_rocm::architectures::decoder_config;
use llm_worker_rocm::engine::api::{AdapterUse, GraphUse, KvDType, KvTypes, WeightOptions};
use llm_worker_rocm::engine::decoder::Decoder;
use llm_worker_rocm::engine::forward::{
    CacheOptions, DecodeOutput, Decoded, Forward, HeadOutput, HeadStep, Predicted, SampleParams,
    Step,
};
use llm_worker_rocm::engine::shard::{Shard, ShardPlan};
use llm_worker_rocm::model::open_weights;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for each other: a rank that has failed is not waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a shard is loaded from.
#[derive(Clone, Default)]
pub struct Source {
    pub path: PathBuf,
    pub adapters: Vec<AdapterSource>,
    /// Whether heads that predict further tokens are loaded.
    pub head: bool,
}

impl Source {
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            ..Self::default()
        }
    }

    /// The plan for shares of a model.
    pub fn plan(&self, shares: &[f32]) -> std::result::Result<ShardPlan, String> {
        let file = open_weights(&self.path).unwrap();
        let config = decoder_config(file.header()).unwrap();
        config.divide(file.header(), shares)
    }

    fn load(&self, shard: &Shard) -> Decoder {
        let file = open_weights(&self.path).unwrap();
        let config = decoder_config(file.header()).unwrap();
        let adapter = |source| Adapter::open(source, file.header()).unwrap();
        let adapters: Vec<Adapter> = self.adapters.iter().map(adapter).collect();
        let place = (config.context_length, WeightOptions::default());
        let decoder = Decoder::load_shard(shard, &config, &*file, place, &adapters, &|_| ());
        match self.head {
            true => decoder.unwrap().with_heads(&*file, &|_| ()).unwrap(),
            false => decoder.unwrap(),
        }
    }
}

type Job = Box<dyn FnOnce(&mut Decoder) + Send>;

/// The first shard, and the threads of the others.
pub struct Together {
    first: Decoder,
    others: Vec<Sender<Job>>,
}

impl Together {
    /// Loads as many shards as there are ranks.
    pub fn load(source: &Source, plan: ShardPlan, ranks: Vec<Communicator>) -> Self {
        let plan = Arc::new(plan);
        let mut shards = ranks.into_iter().map(|communicator| Shard {
            plan: plan.clone(),
            communicator,
        });
        let first = shards.next().unwrap();
        let others = shards.map(|shard| {
            let (sender, jobs) = channel::<Job>();
            let source = source.clone();
            std::thread::spawn(move || {
                let mut decoder = source.load(&shard);
                jobs.into_iter().for_each(|job| job(&mut decoder));
            });
            sender
        });
        let others = others.collect();
        Self {
            first: source.load(&first),
            others,
        }
    }

    /// The same on devices whose ranks meet in the host's memory.
    pub fn on(devices: &[Device], source: &Source, plan: ShardPlan) -> Self {
        Self::load(source, plan, host::group_within(devices, TIMEOUT).unwrap())
    }

    /// Has all others do something. Gives where their results come.
    fn others<T: Send + 'static>(
        &self,
        job: impl Fn(&mut Decoder) -> T + Clone + Send + 'static,
    ) -> Vec<Receiver<T>> {
        let each = self.others.iter().map(|other| {
            let (sender, result) = channel();
            let job = job.clone();
            let job = move |decoder: &mut Decoder| drop(sender.send(job(decoder)));
            other.send(Box::new(job)).unwrap();
            result
        });
        each.collect()
    }
}

/// The bits of logits.
fn bits(logits: &Tensor) -> Vec<Vec<u32>> {
    let rows: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    rows.into_iter().map(bits).collect()
}

/// Fails unless all have the same.
fn are_alike(own: &Tensor, others: Vec<Receiver<Vec<Vec<u32>>>>) {
    for other in others {
        assert!(other.recv().unwrap() == bits(own), "shards differ");
    }
}

fn decoded(output: DecodeOutput) -> Tensor {
    match output {
        DecodeOutput::Logits(logits, _) => logits,
        DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
    }
}

impl Forward for Together {
    fn vocab_size(&self) -> usize {
        self.first.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.first.context_length()
    }

    fn device(&self) -> &Device {
        self.first.device()
    }

    fn can_take_back(&self) -> bool {
        self.first.can_take_back()
    }

    fn kv_dtype(&self) -> KvDType {
        self.first.kv_dtype()
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.first.kv_token_bytes(dtype)
    }

    fn window(&self) -> Option<usize> {
        self.first.window()
    }

    fn kv_window_bytes(&self, dtype: KvTypes) -> usize {
        self.first.kv_window_bytes(dtype)
    }

    fn state_bytes(&self) -> usize {
        self.first.state_bytes()
    }

    fn heads(&self) -> usize {
        self.first.heads()
    }

    fn adapters(&self) -> usize {
        self.first.adapters()
    }

    fn without_graphs(&self) -> Option<&str> {
        self.first.without_graphs()
    }

    fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        let of_all = *cache;
        let others = self.others(move |decoder| decoder.reserve(&of_all).unwrap());
        self.first.reserve(cache)?;
        others.into_iter().for_each(|other| other.recv().unwrap());
        Ok(())
    }

    fn forward(&mut self, step: &Step) -> Result<Tensor> {
        let of_all = step.clone();
        let others = self.others(move |decoder| bits(&decoder.forward(&of_all).unwrap()));
        let logits = self.first.forward(step)?;
        are_alike(&logits, others);
        Ok(logits)
    }

    fn decode(&mut self, step: &Step, samples: Option<&[SampleParams]>) -> Result<Decoded> {
        let of_all = step.clone();
        let others = self.others(move |decoder| {
            let output = decoder.decode(&of_all, None).unwrap().output;
            bits(&decoded(output))
        });
        let own = self.first.decode(step, samples)?;
        if let DecodeOutput::Logits(logits, _) = &own.output {
            are_alike(logits, others);
        }
        Ok(own)
    }

    fn predict(&mut self, step: &HeadStep, samples: Option<&[SampleParams]>) -> Result<Predicted> {
        let of_all = step.clone();
        let others =
            self.others(
                move |decoder| match decoder.predict(&of_all, None).unwrap().output {
                    HeadOutput::Logits(logits) => bits(&logits),
                    HeadOutput::Tokens { .. } => panic!("tokens that nobody asked for"),
                },
            );
        let own = self.first.predict(step, samples)?;
        if let HeadOutput::Logits(logits) = &own.output {
            are_alike(logits, others);
        }
        Ok(own)
    }

    fn use_adapters(&mut self, step: &Step, uses: &[Arc<[AdapterUse]>]) -> Result<()> {
        let (of_all, uses_of_all) = (step.clone(), uses.to_vec());
        self.others(move |decoder| decoder.use_adapters(&of_all, &uses_of_all).unwrap());
        self.first.use_adapters(step, uses)
    }

    fn set_graphs(&mut self, graphs: GraphUse) {
        self.others(move |decoder| decoder.set_graphs(graphs));
        self.first.set_graphs(graphs);
    }
}
