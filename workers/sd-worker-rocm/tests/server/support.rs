//! A stand-in for the model, a server over it, and what tests need to talk to it.

use candle_core::rocm_backend::{candle_rocm, RocmError};
use candle_core::Device;
use sd_worker_rocm::image_io::{self, DecodeLimits, Format};
use sd_worker_rocm::info::Purpose;
use sd_worker_rocm::jobs::{Generate, JobQueue, QueueOptions};
use sd_worker_rocm::pipeline::{Defaults, Family, Generated, ModelInfo, Progress, Stage, Timings};
use sd_worker_rocm::request::ValidRequest;
use sd_worker_rocm::sampling::{Sampler, Schedule};
use sd_worker_rocm::server::{ImageWorker, ServerOptions};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use worker::fault::{diagnose, DeviceFault};
use worker::http::ListenOptions;
use worker::serve::{run, DeviceInfo, Identity, Worker};

/// Paints one colour a picture, of its seed and the number of references. The prompt says what goes wrong: `slow` takes 20 ms a step, `oom`, `panic`, `words` and
/// `lost` fail.
struct Painter {
    info: ModelInfo,
    steps: Arc<AtomicUsize>,
}

impl Generate for Painter {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> worker::Result<Generated> {
        let painted = |seed: u64| {
            let [r, g, ..] = seed.to_le_bytes();
            let b = request.references.len() as u8;
            let (width, height) = (request.width as u32, request.height as u32);
            match &request.init {
                Some(init) => image::imageops::resize(
                    &init.image,
                    width,
                    height,
                    image::imageops::FilterType::Nearest,
                ),
                None => image::RgbImage::from_pixel(width, height, image::Rgb([r, g, b])),
            }
        };
        for step in 0..=request.steps {
            if request.prompt.contains("slow") {
                std::thread::sleep(Duration::from_millis(20));
            }
            let due = request.preview_every > 0 && step % request.preview_every == 0 && step > 0;
            let report = Progress {
                stage: Stage::Denoise,
                step,
                total: request.steps,
                preview: due.then(|| painted(0)),
            };
            self.steps.store(step, Ordering::SeqCst);
            if progress(report).is_break() {
                return Ok(Generated {
                    cancelled: true,
                    ..Generated::default()
                });
            }
            assert!(!request.prompt.contains("panic"), "asked to");
            if request.prompt.contains("oom") {
                return Err(out_of_memory());
            }
            if request.prompt.contains("words") {
                return Err(worker::Error::Runtime(
                    "a file says: out of memory".to_string(),
                ));
            }
            if request.prompt.contains("lost") {
                return Err(worker::Error::Runtime(LOST.to_string()));
            }
        }
        let seeds: Vec<u64> = (0..request.batch as u64)
            .map(|i| request.seed + i)
            .collect();
        Ok(Generated {
            videos: match &request.video {
                Some(video) => seeds
                    .iter()
                    .map(|seed| format!("{} frames of {seed}", video.frames).into_bytes())
                    .collect(),
                None => Vec::new(),
            },
            images: seeds.iter().map(|seed| painted(*seed)).collect(),
            seeds,
            timings: Timings::default(),
            cancelled: false,
        })
    }

    fn diagnose(&self, error: &worker::Error) -> DeviceFault {
        match error.to_string() {
            text if text == LOST => DeviceFault::Lost(text),
            _ => diagnose(&Device::Cpu, error),
        }
    }
}

/// What a device says that is no more.
pub const LOST: &str = "fell off the bus";

/// The device layer's error, as a step of the pipeline passes it on.
fn out_of_memory() -> worker::Error {
    let error = candle_rocm::Error::OutOfMemory {
        ordinal: 0,
        requested: 2,
        free: 1,
        total: 2,
        cached: 0,
        live: 1,
    };
    let error = candle_core::Error::Rocm(RocmError::Device(Box::new(error)));
    worker::Error::candle("a step")(error)
}

/// A server on a free port, stopped when dropped.
pub struct Server {
    pub address: String,
    pub queue: JobQueue,
    pub worker: Arc<ImageWorker>,
    /// Tells it to stop.
    pub terminate: Option<oneshot::Sender<()>>,
    /// How it ended.
    pub ended: Option<JoinHandle<worker::Result<()>>>,
    /// Steps that the running job has done.
    pub steps: Arc<AtomicUsize>,
    pub runtime: tokio::runtime::Runtime,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

impl Server {
    pub fn start() -> Self {
        Self::with(QueueOptions::default(), ServerOptions::default())
    }

    pub fn with(queue: QueueOptions, options: ServerOptions) -> Self {
        Self::listening(queue, options, |_| {})
    }

    /// A server over a stand-in for this model.
    pub fn of(info: ModelInfo) -> Self {
        let steps = Arc::<AtomicUsize>::default();
        let painter = Painter {
            steps: steps.clone(),
            info,
        };
        let options = ServerOptions::default();
        Self::over(Box::new(painter), steps, QueueOptions::default(), options)
    }

    /// A server that asks for the key `secret`.
    pub fn with_key() -> Self {
        let key = |listen: &mut ListenOptions| listen.api_keys.push("secret".to_string());
        Self::listening(QueueOptions::default(), ServerOptions::default(), key)
    }

    /// A server with listen options of its own.
    pub fn listening(
        queue: QueueOptions,
        options: ServerOptions,
        change: impl FnOnce(&mut ListenOptions),
    ) -> Self {
        let steps = Arc::new(AtomicUsize::new(0));
        let painter = Painter {
            steps: steps.clone(),
            info: info(),
        };
        let mut listen = listen();
        change(&mut listen);
        Self::start_on(Box::new(painter), steps, queue, options, listen)
    }

    /// A server over another model.
    pub fn over(
        model: Box<dyn Generate>,
        steps: Arc<AtomicUsize>,
        queue: QueueOptions,
        options: ServerOptions,
    ) -> Self {
        Self::start_on(model, steps, queue, options, listen())
    }

    fn start_on(
        model: Box<dyn Generate>,
        steps: Arc<AtomicUsize>,
        queue: QueueOptions,
        options: ServerOptions,
        listen: ListenOptions,
    ) -> Self {
        let queue = JobQueue::start(model, queue).unwrap();
        Self::serve(queue, steps, options, listen, None)
    }

    /// A server over a queue.
    pub fn over_queue(queue: JobQueue, options: ServerOptions) -> Self {
        Self::serve(queue, Arc::default(), options, listen(), None)
    }

    /// A server whose jobs are in a folder.
    pub fn keeping(folder: &Path, queue: QueueOptions) -> Self {
        Self::keeping_at(folder, queue, 0)
    }

    /// The same at a port, 0 any.
    pub fn keeping_at(folder: &Path, queue: QueueOptions, port: u16) -> Self {
        let steps = Arc::<AtomicUsize>::default();
        let painter = Painter {
            steps: steps.clone(),
            info: info(),
        };
        let queue = JobQueue::start(Box::new(painter), queue).unwrap();
        Self::serve(
            queue,
            steps,
            ServerOptions::default(),
            ListenOptions { port, ..listen() },
            Some(folder.to_path_buf()),
        )
    }

    fn serve(
        queue: JobQueue,
        steps: Arc<AtomicUsize>,
        options: ServerOptions,
        listen: ListenOptions,
        folder: Option<PathBuf>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let worker = ImageWorker::new(identity(), options);
        let listener = runtime.block_on(listen.bind()).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (terminate, terminated) = oneshot::channel::<()>();
        let (served, loaded) = (worker.clone(), queue.clone());
        let ended = runtime.spawn(async move {
            let termination = async {
                if terminated.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let load = move |worker: &ImageWorker| {
                let app = worker.app(loaded);
                if let Some(folder) = folder {
                    app.keep_jobs(&folder)?;
                }
                Ok(app)
            };
            run(served, listener, &listen, load, termination).await
        });
        while worker.frame().ready().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Self {
            address,
            queue,
            worker,
            terminate: Some(terminate),
            ended: Some(ended),
            steps,
            runtime,
        }
    }

    /// How it ended, once it has.
    pub fn end(&mut self) -> worker::Result<()> {
        let ended = self.ended.take().unwrap();
        self.runtime.block_on(ended).unwrap()
    }

    /// Sends a request and gives status, head and body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let mut stream = self.open(method, path, headers, body);
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer[end + 4..].to_vec();
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            return (status, head, unchunk(&body));
        }
        (status, head, body)
    }

    /// Sends a request and gives the connection.
    pub fn open(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses early may close before the end of the body.
        let _ = stream.write_all(body);
        stream
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.send("GET", path, "", b"");
        (status, parse(&body))
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.send("POST", path, JSON, body.to_string().as_bytes());
        (status, parse(&body))
    }

    pub fn submit(&self, body: &Value) -> String {
        let (status, answer) = self.post("/v1/jobs", body);
        assert_eq!(status, 202, "{answer}");
        let id = answer["job_id"].as_str().unwrap().to_string();
        assert_eq!(answer["sse_url"], format!("/v1/jobs/{id}/stream"));
        id
    }

    pub fn state(&self, id: &str) -> String {
        let (status, job) = self.get(&format!("/v1/jobs/{id}"));
        assert_eq!(status, 200);
        job["state"].as_str().unwrap().to_string()
    }

    pub fn wait_for(&self, id: &str, state: &str) {
        let start = Instant::now();
        while self.state(id) != state {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{}",
                self.state(id)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The named events of a stream, to its end.
    pub fn events(&self, path: &str, method: &str, body: &[u8]) -> Vec<(String, Value)> {
        let (status, head, body) = self.send(method, path, JSON, body);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        assert!(head.contains("text/event-stream"));
        let mut events = Vec::new();
        let mut name = String::new();
        for line in BufReader::new(&body[..]).lines() {
            let line = line.unwrap();
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_string();
            } else if let Some(data) = line.strip_prefix("data: ") {
                events.push((name.clone(), parse(data.as_bytes())));
            }
        }
        events
    }
}

/// What the stand-ins pretend to be.
pub fn info() -> ModelInfo {
    ModelInfo {
        name: "painter".to_string(),
        family: Family::Sd1,
        inpainting: false,
        prompt_weights: true,
        references: 0..=0,
        purpose: Purpose::Pictures,
        refined: false,
        precision: "f32".to_string(),
        size_multiple: 8,
        defaults: Defaults {
            width: 64,
            height: 64,
            steps: 4,
            guidance: 5.0,
            sampler: Sampler::Ddim,
            schedule: Some(Schedule::Discrete),
            strength: None,
            unknown_scheduler: None,
            video: None,
        },
    }
}

/// Who the worker is.
pub fn identity() -> Identity {
    Identity {
        worker_id: "w1".to_string(),
        port: 8080,
        device: DeviceInfo {
            name: "cpu".to_string(),
            description: "a device".to_string(),
            fallback: Some("no GPU".to_string()),
        },
        ..Identity::default()
    }
}

/// Any port of this machine, for all.
pub fn listen() -> ListenOptions {
    ListenOptions {
        host: [127, 0, 0, 1].into(),
        port: 0,
        api_keys: Vec::new(),
        api_key_files: Vec::new(),
        allowed_hosts: Vec::new(),
        cors_origins: Vec::new(),
        max_body_bytes: 1 << 20,
        max_connections: 64,
        shutdown_grace: 1,
        shutdown_linger: 0,
    }
}

pub const JSON: &str = "Content-Type: application/json\r\n";

pub fn parse(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or(Value::Null)
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = body.windows(2).position(|w| w == b"\r\n") {
        let length = std::str::from_utf8(&body[..at]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        out.extend(&body[at + 2..at + 2 + length]);
        body = &body[at + 4 + length..];
    }
    out
}

pub fn picture(value: &Value) -> image::RgbImage {
    let limits = DecodeLimits::default();
    let bytes = image_io::from_base64(value.as_str().unwrap(), &limits).unwrap();
    image_io::to_rgb(&image_io::decode(&bytes, &limits).unwrap())
}

pub fn png(width: u32, height: u32) -> Vec<u8> {
    let image = image::RgbImage::from_pixel(width, height, image::Rgb([9, 8, 7]));
    image_io::encode(&image, Format::Png, 0, None).unwrap()
}

pub fn generation(prompt: &str) -> Value {
    json!({"operation": "image_generation", "hive_id": "h", "model": "m", "prompt": prompt, "worker_id": "w"})
}

pub fn form(parts: &[(&str, Option<&str>, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, file, content) in parts {
        body.extend(b"--frontier\r\n");
        let file = file.map_or(String::new(), |f| {
            format!("; filename=\"{f}\"\r\nContent-Type: application/octet-stream")
        });
        body.extend(
            format!("Content-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").bytes(),
        );
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--frontier--\r\n");
    (
        "Content-Type: multipart/form-data; boundary=frontier\r\n".to_string(),
        body,
    )
}
