//! A queue before several models: parts of jobs, devices that are lost or hang.

use crate::support::{generation, info, picture, Server, LOST};
use sd_worker_rocm::jobs::{Generate, Job, JobQueue, QueueOptions, Replica, State};
use sd_worker_rocm::pipeline::{Generated, ModelInfo, Progress, Stage, Timings};
use sd_worker_rocm::request::{
    ImageRequest, InterfaceDefaults, Limits, RequestFields, ValidRequest,
};
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use worker::fault::{diagnose, DeviceFault};

type Act = Box<dyn FnMut(&ValidRequest) -> worker::Result<()> + Send>;

/// A model of one step, that does what a test wants before it.
struct Scripted {
    info: ModelInfo,
    /// Tells pictures of this model from others'.
    colour: u8,
    act: Act,
}

impl Generate for Scripted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> worker::Result<Generated> {
        let report = |step| Progress {
            stage: Stage::Denoise,
            step,
            total: 1,
            preview: None,
        };
        let cancelled = Generated {
            cancelled: true,
            ..Generated::default()
        };
        if progress(report(0)).is_break() {
            return Ok(cancelled);
        }
        (self.act)(request)?;
        if progress(report(1)).is_break() {
            return Ok(cancelled);
        }
        let seeds: Vec<u64> = (0..request.batch as u64)
            .map(|i| request.seed + i)
            .collect();
        let (width, height) = (request.width as u32, request.height as u32);
        let paint = |seed: &u64| {
            let colour = image::Rgb([self.colour, *seed as u8, 0]);
            image::RgbImage::from_pixel(width, height, colour)
        };
        Ok(Generated {
            videos: Vec::new(),
            images: seeds.iter().map(paint).collect(),
            seeds,
            timings: Timings {
                evaluations: 1,
                ..Timings::default()
            },
            cancelled: false,
        })
    }

    fn diagnose(&self, error: &worker::Error) -> DeviceFault {
        match error.to_string() {
            text if text == LOST => DeviceFault::Lost(text),
            _ => diagnose(&candle_core::Device::Cpu, error),
        }
    }
}

fn crew(kinds: &[&str], acts: Vec<Act>, options: QueueOptions) -> JobQueue {
    let replicas = kinds.iter().zip(acts).enumerate();
    let replicas = replicas.map(|(number, (kind, act))| Replica {
        device: format!("card {number}"),
        kind: kind.to_string(),
        generator: Box::new(Scripted {
            info: info(),
            colour: number as u8,
            act,
        }),
    });
    JobQueue::over(replicas.collect(), options).unwrap()
}

fn request(batch: usize, seed: u64) -> ValidRequest {
    let fields = RequestFields {
        prompt: "x".to_string(),
        batch: Some(batch),
        seed: Some(seed),
        ..RequestFields::default()
    };
    let info = info();
    let request: ImageRequest = fields
        .build(&info.defaults, &InterfaceDefaults::OWN)
        .unwrap();
    request.valid(&info, &Limits::default()).unwrap()
}

fn ended(queue: &JobQueue, id: &str) -> Job {
    let begun = Instant::now();
    loop {
        let job = queue.job(id).unwrap();
        if job.state.is_final() {
            return job;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{job:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The model and the seed of each picture.
fn painted(job: &Job) -> Vec<(u8, u64)> {
    let outcome = job.outcome.as_ref().unwrap();
    let pictures = outcome.pictures.iter();
    pictures
        .map(|picture| {
            let [model, seed, _] = picture.image.get_pixel(0, 0).0;
            assert_eq!(u64::from(seed), picture.seed);
            (model, picture.seed)
        })
        .collect()
}

fn lose(_: &ValidRequest) -> worker::Result<()> {
    Err(worker::Error::Runtime(LOST.to_string()))
}

fn work(_: &ValidRequest) -> worker::Result<()> {
    Ok(())
}

/// Waits until the others are at the same place.
fn meet(barrier: &Arc<Barrier>) -> Act {
    let barrier = barrier.clone();
    Box::new(move |_| {
        barrier.wait();
        Ok(())
    })
}

#[test]
fn pictures_and_requests_are_spread() {
    // Nothing ends unless both models work at once.
    let barrier = Arc::new(Barrier::new(2));
    let acts = vec![meet(&barrier), meet(&barrier)];
    let queue = crew(&["a", "a"], acts, QueueOptions::default());
    let id = queue.submit(request(5, 10)).unwrap();
    let job = ended(&queue, &id);
    assert_eq!(job.state, State::Completed, "{:?}", job.failure);
    let pictures = painted(&job);
    let seeds: Vec<u64> = pictures.iter().map(|(_, seed)| *seed).collect();
    assert_eq!(seeds, [10, 11, 12, 13, 14]);
    // The first three are one model's, the others the other's.
    assert!(pictures[..3]
        .iter()
        .all(|(model, _)| *model == pictures[0].0));
    assert!(pictures[3..]
        .iter()
        .all(|(model, _)| *model != pictures[0].0));
    let outcome = job.outcome.unwrap();
    assert_eq!(outcome.timings.evaluations, 2);

    let both = [1, 2].map(|seed| queue.submit(request(1, seed)).unwrap());
    let models: Vec<u8> = both
        .iter()
        .map(|id| painted(&ended(&queue, id))[0].0)
        .collect();
    assert_ne!(models[0], models[1]);
    let devices = queue.devices();
    let sum: u64 = devices.iter().map(|device| device.pictures).sum();
    assert_eq!(sum, 7);
    assert!(devices.iter().all(|device| device.steps == 2));
    queue.stop();
}

#[test]
fn cards_of_several_kinds_take_picture_by_picture() {
    let (go_on, goes_on) = channel::<()>();
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    let slow: Act = Box::new(move |request| {
        assert_eq!(request.batch, 1);
        goes_on.recv().unwrap();
        Ok(())
    });
    let quick: Act = Box::new(move |request| {
        assert_eq!(request.batch, 1);
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let queue = crew(&["a", "b"], vec![slow, quick], QueueOptions::default());
    let blocked = queue.submit(request(1, 0)).unwrap();
    let id = queue.submit(request(4, 1)).unwrap();
    let begun = Instant::now();
    // Whichever model has the first job: the slow one has one picture at most until it may go on.
    while taken.load(Ordering::SeqCst) < 4 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
    go_on.send(()).unwrap();
    assert_eq!(ended(&queue, &blocked).state, State::Completed);
    let job = ended(&queue, &id);
    let seeds: Vec<u64> = painted(&job).iter().map(|(_, seed)| *seed).collect();
    assert_eq!(seeds, [1, 2, 3, 4]);
    queue.stop();
}

#[test]
fn pictures_of_a_lost_card_are_made_by_another() {
    let acts: Vec<Act> = vec![Box::new(lose), Box::new(work)];
    let queue = crew(&["a", "a"], acts, QueueOptions::default());
    // Until the broken card has had its turn.
    let mut seed = 0;
    while queue.devices()[0].lost.is_none() {
        let job = ended(&queue, &queue.submit(request(2, seed)).unwrap());
        assert_eq!(painted(&job), [(1, seed), (1, seed + 1)]);
        seed += 2;
    }
    let devices = queue.devices();
    assert_eq!(devices[0].lost.as_deref(), Some(LOST));
    assert_eq!((devices[1].lost.as_deref(), queue.lost()), (None, None));
    queue.wait_idle(Duration::from_secs(60));
    queue.stop();
}

#[test]
fn the_last_card_ends_all() {
    let acts: Vec<Act> = vec![Box::new(lose), Box::new(lose)];
    let queue = crew(&["a", "a"], acts, QueueOptions::default());
    let id = queue.submit(request(1, 0)).unwrap();
    let job = ended(&queue, &id);
    let failure = job.failure.unwrap();
    assert_eq!(failure.code, "DEVICE_LOST");
    for name in ["card 0", "card 1"] {
        assert!(failure.message.contains(name), "{}", failure.message);
        assert!(queue.lost().unwrap().contains(name));
    }
    assert!(queue.submit(request(1, 0)).is_err());
    queue.stop();
}

#[test]
fn a_request_that_loses_cards_does_not_lose_all() {
    let acts: Vec<Act> = (0..3)
        .map(|_| -> Act {
            Box::new(|request| match request.seed {
                13 => lose(request),
                _ => Ok(()),
            })
        })
        .collect();
    let queue = crew(&["a", "a", "a"], acts, QueueOptions::default());
    let job = ended(&queue, &queue.submit(request(1, 13)).unwrap());
    assert_eq!(job.failure.unwrap().code, "DEVICE_LOST");
    let lost = queue.devices().iter().filter(|d| d.lost.is_some()).count();
    assert_eq!((lost, queue.lost()), (2, None));
    let job = ended(&queue, &queue.submit(request(2, 1)).unwrap());
    assert_eq!(painted(&job).len(), 2);
    queue.stop();
}

/// Waits for the two seconds without a step.
#[test]
fn a_card_that_hangs_is_given_up() {
    let (_keep, never) = channel::<()>();
    let mut never: Option<Receiver<()>> = Some(never);
    let hang: Act = Box::new(move |_| {
        let never = never.take().unwrap();
        // Until the end of the test, which does not wait for it.
        let _ = never.recv();
        Ok(())
    });
    let options = QueueOptions {
        silence: Some(Duration::from_secs(2)),
        ..QueueOptions::default()
    };
    let queue = crew(&["a", "a"], vec![hang, Box::new(work)], options);
    let mut seed = 0;
    while queue.devices()[0].lost.is_none() {
        let job = ended(&queue, &queue.submit(request(2, seed)).unwrap());
        assert_eq!(painted(&job), [(1, seed), (1, seed + 1)]);
        seed += 2;
    }
    let reason = queue.devices()[0].lost.clone().unwrap();
    assert!(reason.contains("hangs"), "{reason}");
    queue.wait_idle(Duration::from_secs(60));
    queue.stop();
}

#[test]
fn a_job_ends_as_a_whole() {
    // Both models have begun, and stay until they may go on.
    let barrier = Arc::new(Barrier::new(3));
    let acts: Vec<Act> = (0..2)
        .map(|_| -> Act {
            let barrier = barrier.clone();
            Box::new(move |request| {
                barrier.wait();
                barrier.wait();
                match request.seed {
                    21 => Err(worker::Error::Runtime("a word about it".to_string())),
                    _ => Ok(()),
                }
            })
        })
        .collect();
    let queue = crew(&["a", "a"], acts, QueueOptions::default());
    let id = queue.submit(request(2, 1)).unwrap();
    barrier.wait();
    assert_eq!(queue.all_running().len(), 1);
    assert!(queue.is_busy());
    queue.cancel(&id);
    barrier.wait();
    let job = ended(&queue, &id);
    assert_eq!((job.state, job.outcome.is_none()), (State::Cancelled, true));

    // One part fails: there are no pictures of the other.
    let id = queue.submit(request(2, 20)).unwrap();
    barrier.wait();
    barrier.wait();
    let job = ended(&queue, &id);
    assert_eq!((job.state, job.outcome.is_none()), (State::Failed, true));
    assert_eq!(job.failure.unwrap().code, "GENERATION_FAILED");
    queue.wait_idle(Duration::from_secs(60));
    assert!(!queue.is_busy());
    queue.stop();
}

#[test]
fn a_server_tells_of_its_cards() {
    let acts: Vec<Act> = vec![Box::new(lose), Box::new(work)];
    let queue = crew(&["a", "a"], acts, QueueOptions::default());
    let server = Server::over_queue(queue, ServerOptions::default());
    let answer = loop {
        let body = json!({"prompt": "x", "batch_size": 2, "seed": 3});
        let (status, answer) = server.post("/sdapi/v1/txt2img", &body);
        assert_eq!(status, 200, "{answer}");
        if server.queue.devices()[0].lost.is_some() {
            break answer;
        }
    };
    assert_eq!(picture(&answer["images"][1]).get_pixel(0, 0).0, [1, 4, 0]);
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (200, &json!("healthy")));
    let degraded = health["degraded"][0].as_str().unwrap();
    assert!(degraded.contains("card 0 is lost") && degraded.contains(LOST));
    let (_, _, metrics) = server.send("GET", "/metrics", "", b"");
    let metrics = String::from_utf8(metrics).unwrap();
    for line in [
        "sd_worker_device_up{device=\"card 0\"} 0.0",
        "sd_worker_device_up{device=\"card 1\"} 1.0",
        "sd_worker_device_pictures_total{device=\"card 0\"} 0.0",
        "sd_worker_device_lost 0.0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
    let (status, memory) = server.get("/sdapi/v1/memory");
    assert_eq!(
        (status, &memory["cuda"]["error"]),
        (200, &json!("unavailable"))
    );
    assert!(memory["ram"]["used"].as_u64() > Some(1 << 20), "{memory}");
    // The last one's loss is the server's.
    let id = server.submit(&generation("x"));
    server.wait_for(&id, "completed");
}
