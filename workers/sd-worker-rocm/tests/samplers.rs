//! Every sampler against diffusers for a fixed model function, and against each other where they solve the same
//! equation. The numbers and the script that makes them are in `reference/`.

use candle_core::{DType, Device, Result, Tensor};
use sd_worker_rocm::rng::Mt19937;
use sd_worker_rocm::sampling::noise_schedule::Shift;
use sd_worker_rocm::sampling::{
    NoiseLevel, NoiseSchedule, Prediction, Sampler, SamplerOptions, SamplerRun, Schedule,
};
use serde::Deserialize;

const COUNT: usize = 16;

#[derive(Deserialize)]
struct Cases<T> {
    cases: Vec<T>,
}

#[derive(Deserialize)]
struct Case {
    config: String,
    sampler: String,
    schedule: String,
    steps: usize,
    eta: Option<f64>,
    time: bool,
    timesteps: Vec<f64>,
    #[serde(rename = "final")]
    last: Vec<f64>,
}

/// The device under test: the simulated GPU where the test run asks for it.
fn device() -> Device {
    match std::env::var("CANDLE_ROCM_TEST_DEVICE").as_deref() {
        Ok("rocm") => Device::new_rocm(0).expect("the device that the tests are told to use"),
        _ => Device::Cpu,
    }
}

fn start(device: &Device) -> Tensor {
    let values: Vec<f32> = (0..COUNT)
        .map(|i| {
            let i = i as f64;
            ((1.3 * i).sin() + 0.5 * (0.7 * i * i).cos()) as f32
        })
        .collect();
    Tensor::from_vec(values, (1, 1, COUNT), device).unwrap()
}

fn noise(call: usize, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..COUNT)
        .map(|i| (2.1 * i as f64 + 0.9 * call as f64).cos() as f32)
        .collect();
    Tensor::from_vec(values, (1, 1, COUNT), device)
}

fn model(x: &Tensor, timestep: f64, time: bool) -> Result<Tensor> {
    let bias = if time {
        0.1 * (timestep / 150.0).cos()
    } else {
        0.0
    };
    x.affine(0.8, 0.3)?.tanh()?.affine(0.9, bias)
}

fn finish(schedule: &NoiseSchedule, options: &SamplerOptions, time: bool) -> (Vec<f32>, Vec<f64>) {
    let device = device();
    let mut run = SamplerRun::new(schedule, options).unwrap();
    let mut x = run.start(None, &start(&device)).unwrap();
    let mut asked = Vec::new();
    let mut draws = 0;
    let mut evaluations = 0;
    while !run.is_done() {
        asked.push(run.level().timestep);
        let mut denoise = |x: &Tensor, level: &NoiseLevel| {
            evaluations += 1;
            let out = model(x, level.timestep, time)?;
            schedule.prediction.denoised(x, &out, level)
        };
        let mut fresh = || {
            draws += 1;
            noise(draws - 1, &device)
        };
        x = run.step(&x, &mut denoise, &mut fresh).unwrap().x;
    }
    assert_eq!(evaluations, options.sampler.evaluations(run.steps()));
    assert_eq!(x.dtype(), DType::F32);
    let values = x.flatten_all().unwrap().to_vec1().unwrap();
    (values, asked)
}

#[test]
fn diffusers_numbers() {
    let cases: Cases<Case> = serde_json::from_str(include_str!("reference/samplers.json")).unwrap();
    assert!(cases.cases.len() > 30);
    let mut failures = String::new();
    for case in &cases.cases {
        let schedule = NoiseSchedule::from_config(&case.config).unwrap();
        let options = SamplerOptions {
            sampler: Sampler::from_name(&case.sampler).unwrap(),
            schedule: Schedule::from_name(&case.schedule).unwrap(),
            steps: case.steps,
            strength: 1.0,
            eta: case.eta,
            image_tokens: 256,
        };
        let named = schedule.named.unwrap_or(Schedule::Discrete);
        assert_eq!(named, options.schedule, "{}", case.config);
        if schedule.sampler == Some(Sampler::Euler) {
            assert_eq!(schedule.sampler, Some(options.sampler), "{}", case.config);
        }
        let (values, asked) = finish(&schedule, &options, case.time);
        // diffusers lists the second evaluation of two-stage methods as a time step of its own, and rounds for some
        // solvers.
        let stride = if case.timesteps.len() == case.steps || options.sampler == Sampler::Plms {
            1
        } else {
            2
        };
        let theirs = case.timesteps.iter().step_by(stride);
        let apart = |a: &[f64], b: &[f64]| {
            a.iter()
                .zip(b)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max)
        };
        let mut theirs: Vec<f64> = theirs.copied().collect();
        if options.sampler == Sampler::Plms {
            theirs.dedup();
        }
        assert_eq!(theirs.len(), asked.len(), "{}", case.sampler);
        let time_error = apart(&theirs, &asked);
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let error = apart(&values, &case.last);
        let largest = case.last.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        println!(
            "{} {} {}: time {time_error:.2e}, values {:.2e} of {largest:.1}",
            case.sampler,
            case.schedule,
            case.steps,
            error / largest
        );
        let time_limit = if case.time { 0.01 } else { 0.51 };
        if time_error > time_limit || error / largest > 1e-5 || error.is_nan() {
            failures += &format!(
                "{} {} {}\n{theirs:?}\n{asked:?}\n",
                case.sampler, case.schedule, case.config
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn solvers_of_one_equation_agree_in_the_limit() {
    let models = [
        NoiseSchedule::stable_diffusion(Prediction::Velocity),
        NoiseSchedule::flow(Shift::Fixed(3.0)),
        NoiseSchedule::flow(Shift::Dynamic {
            base: 0.5,
            max: 1.15,
            base_tokens: 256.0,
            max_tokens: 4096.0,
        }),
    ];
    let solve = |model: &NoiseSchedule, sampler, steps| {
        let options = SamplerOptions {
            sampler,
            schedule: Schedule::SgmUniform,
            steps,
            strength: 1.0,
            eta: Some(0.0),
            image_tokens: 1024,
        };
        finish(model, &options, true).0
    };
    for model in &models {
        let exact = solve(model, Sampler::Heun, 400);
        for (sampler, steps, limit) in [
            (Sampler::Euler, 400, 2e-2),
            (Sampler::EulerAncestral, 400, 2e-2),
            (Sampler::Ddim, 400, 2e-2),
            (Sampler::DpmPlusPlus2M, 200, 5e-3),
            (Sampler::DpmPlusPlus2MSde, 200, 5e-3),
            (Sampler::DpmPlusPlusSde, 200, 5e-3),
            (Sampler::UniPc, 200, 5e-3),
        ] {
            let found = solve(model, sampler, steps);
            let worst = exact
                .iter()
                .zip(&found)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            println!("{sampler:?} flow {}: {worst:.2e}", model.is_flow());
            assert!(worst < limit, "{sampler:?} on {}: {worst}", model.is_flow());
        }
    }
}

#[test]
fn image_to_image_starts_with_the_image() {
    let device = device();
    let schedule = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
    let options = SamplerOptions {
        sampler: Sampler::Euler,
        schedule: Schedule::Discrete,
        steps: 10,
        strength: 0.3,
        eta: None,
        image_tokens: 0,
    };
    let run = SamplerRun::new(&schedule, &options).unwrap();
    assert_eq!(run.steps(), 3);
    let (image, fresh) = (start(&device), noise(0, &device).unwrap());
    let x = run.start(Some(&image), &fresh).unwrap();
    let level = run.level();
    let expected = ((image * level.alpha).unwrap() + (fresh * level.sigma).unwrap()).unwrap();
    let values = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (a, b) in values(x).into_iter().zip(values(expected)) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert!((200.0..400.0).contains(&level.timestep), "{level:?}");
    for (strength, eta) in [
        (-0.1, None),
        (1.1, None),
        (f64::NAN, None),
        (1.0, Some(2.0)),
    ] {
        let bad = SamplerOptions {
            strength,
            eta,
            ..options
        };
        assert!(SamplerRun::new(&schedule, &bad).is_err());
    }
}

#[derive(Deserialize)]
struct Randn {
    seed: u64,
    draws: Vec<Vec<f32>>,
}

#[test]
fn torch_randn_on_the_cpu() {
    let cases: Cases<Randn> =
        serde_json::from_str(include_str!("reference/torch_randn.json")).unwrap();
    assert!(cases.cases.len() > 4);
    for case in &cases.cases {
        let mut twister = Mt19937::new(case.seed);
        for draw in &case.draws {
            let mut ours = vec![0f32; draw.len()];
            twister.fill_normal(&mut ours);
            for (i, (a, b)) in ours.iter().zip(draw).enumerate() {
                assert!(
                    (a - b).abs() <= 2e-6,
                    "seed {} number {i}: {a} {b}",
                    case.seed
                );
            }
        }
    }
}
