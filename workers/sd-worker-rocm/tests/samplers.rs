//! Every sampler against diffusers for a fixed model function, and against each other where they solve the same
//! equation. The numbers and the script that makes them are in `reference/`.

use candle_core::{DType, Device, Result, Tensor};
use sd_worker_rocm::rng::{BatchNoise, Mt19937, RngKind};
use sd_worker_rocm::sampling::noise_schedule::Shift;
use sd_worker_rocm::sampling::{
    Churn, LevelOptions, NoiseLevel, NoiseSchedule, Prediction, Sampler, SamplerOptions,
    SamplerRun, Schedule, Seen,
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

/// A run with nothing unusual, for what a test leaves open.
const PLAIN: SamplerOptions = SamplerOptions {
    sampler: Sampler::Euler,
    schedule: Schedule::Discrete,
    steps: 10,
    levels: LevelOptions {
        rho: None,
        smallest: None,
        largest: None,
        beta: None,
        xl: false,
        listed: None,
    },
    strength: 1.0,
    eta: None,
    churn: Churn::NONE,
    image_tokens: 0,
};

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

/// What the negative prompt's half would say.
fn negative_model(x: &Tensor, timestep: f64) -> Result<Tensor> {
    x.affine(0.6, -0.2)?
        .tanh()?
        .affine(0.7, 0.1 * (timestep / 150.0).cos())
}

/// A run with the fixed model function.
struct Finished {
    values: Vec<f32>,
    /// Time steps at which steps began.
    asked: Vec<f64>,
    /// Time steps of all evaluations.
    told: Vec<f64>,
    evaluations: usize,
    draws: usize,
}

fn finish(schedule: &NoiseSchedule, options: &SamplerOptions, time: bool) -> Finished {
    let device = device();
    let mut run = SamplerRun::new(schedule, options).unwrap();
    let mut x = run.start(None, &start(&device)).unwrap();
    let mut asked = Vec::new();
    let mut told = Vec::new();
    let mut draws = 0;
    let mut evaluations = 0;
    while !run.is_done() {
        asked.push(run.level().timestep);
        let mut denoise = |x: &Tensor, level: &NoiseLevel| {
            evaluations += 1;
            told.push(level.timestep);
            let out = model(x, level.timestep, time)?;
            let negative = negative_model(x, level.timestep)?;
            Ok(Seen {
                image: schedule.prediction.denoised(x, &out, level)?,
                negative: Some(schedule.prediction.denoised(x, &negative, level)?),
            })
        };
        let mut fresh = || {
            draws += 1;
            noise(draws - 1, &device)
        };
        x = run.step(&x, &mut denoise, &mut fresh).unwrap().x;
    }
    assert_eq!(x.dtype(), DType::F32);
    Finished {
        values: x.flatten_all().unwrap().to_vec1().unwrap(),
        asked,
        told,
        evaluations,
        draws,
    }
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
            eta: case.eta,
            image_tokens: 256,
            ..PLAIN
        };
        let named = schedule.named.unwrap_or(Schedule::Discrete);
        assert_eq!(named, options.schedule, "{}", case.config);
        if schedule.sampler == Some(Sampler::Euler) {
            assert_eq!(schedule.sampler, Some(options.sampler), "{}", case.config);
        }
        let Finished { values, asked, .. } = finish(&schedule, &options, case.time);
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

#[derive(Deserialize)]
struct SchedulerCase {
    config: String,
    steps: usize,
    timesteps: Vec<f64>,
    #[serde(rename = "final")]
    last: Vec<f64>,
}

/// Every scheduler of diffusers that is implemented, with its options; `make_schedulers.py` made the numbers.
#[test]
fn schedulers_with_their_options() {
    let cases: Cases<SchedulerCase> =
        serde_json::from_str(include_str!("reference/schedulers.json")).unwrap();
    assert!(cases.cases.len() > 150);
    let mut failures = String::new();
    for case in &cases.cases {
        let schedule = NoiseSchedule::from_config(&case.config).unwrap();
        let options = SamplerOptions {
            sampler: schedule.sampler.unwrap(),
            schedule: schedule.named.unwrap_or(Schedule::Discrete),
            steps: case.steps,
            image_tokens: 256,
            ..PLAIN
        };
        let run = finish(&schedule, &options, true);
        let apart = |a: &[f64], b: &[f64]| {
            let pairs = a.iter().zip(b).map(|(a, b)| (a - b).abs());
            pairs.fold(0.0, f64::max)
        };
        let values: Vec<f64> = run.values.iter().map(|v| f64::from(*v)).collect();
        let largest = case.last.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        let error = apart(&values, &case.last) / largest;
        let time_error = apart(&run.told, &case.timesteps);
        // diffusers has levels and states in 32 bits, of which little is left of 1 - sigma in the logarithms of DEIS.
        let flow_deis = schedule.is_flow() && schedule.sampler == Some(Sampler::Deis);
        let limit = if flow_deis { 1e-4 } else { 3e-5 };
        let same = run.told.len() == case.timesteps.len() && time_error < 0.01;
        if !same || error > limit || error.is_nan() {
            failures += &format!("{error:.1e} {} {}\n", case.steps, case.config);
            if !same {
                failures += &format!("    {:.2?}\n    {:.2?}\n", run.told, case.timesteps);
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[derive(Deserialize)]
struct KCase {
    sampler: String,
    flow: bool,
    prediction: String,
    schedule: String,
    steps: usize,
    eta: Option<f64>,
    churned: Option<[f64; 4]>,
    evaluations: usize,
    draws: usize,
    #[serde(rename = "final")]
    last: Vec<f64>,
}

/// The methods of k-diffusion, ComfyUI and web UIs, written anew in `make_k_samplers.py`.
#[test]
fn k_diffusion_numbers() {
    let cases: Cases<KCase> =
        serde_json::from_str(include_str!("reference/k_samplers.json")).unwrap();
    assert!(cases.cases.len() > 100);
    let mut failures = String::new();
    for case in &cases.cases {
        let schedule = match (case.flow, case.prediction.as_str()) {
            (true, _) => NoiseSchedule::flow(Shift::Fixed(3.0)),
            (_, "velocity") => NoiseSchedule::stable_diffusion(Prediction::Velocity),
            _ => NoiseSchedule::stable_diffusion(Prediction::Epsilon),
        };
        let options = SamplerOptions {
            sampler: Sampler::from_name(&case.sampler).unwrap(),
            schedule: Schedule::from_name(&case.schedule).unwrap(),
            steps: case.steps,
            eta: case.eta,
            churn: match case.churned {
                Some([amount, from, to, strength]) => Churn {
                    amount,
                    from,
                    to,
                    strength,
                },
                None => Churn::NONE,
            },
            ..PLAIN
        };
        let run = finish(&schedule, &options, true);
        let apart = run.values.iter().zip(&case.last);
        let error = apart.fold(0.0, |m: f64, (a, b)| m.max((f64::from(*a) - b).abs()));
        let largest = case.last.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        let counts = (run.evaluations, run.draws);
        if error / largest > 2e-5 || error.is_nan() || counts != (case.evaluations, case.draws) {
            failures += &format!(
                "{} flow {} {} {} steps: {:.2e} of {largest:.1}, {counts:?} for {:?}\n",
                case.sampler,
                case.flow,
                case.prediction,
                case.steps,
                error / largest,
                (case.evaluations, case.draws),
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[derive(Deserialize)]
struct Spread {
    schedule: String,
    flow: bool,
    levels: Vec<f64>,
}

#[derive(Deserialize)]
struct Spreads {
    schedules: Vec<Spread>,
}

/// The schedules of k-diffusion, ComfyUI and web UIs, written anew in `make_k_samplers.py`.
#[test]
fn schedules_by_name() {
    let cases: Spreads = serde_json::from_str(include_str!("reference/k_samplers.json")).unwrap();
    assert!(cases.schedules.len() > 30);
    for case in &cases.schedules {
        let (name, setting) = case
            .schedule
            .split_once(' ')
            .unwrap_or((&case.schedule, ""));
        let schedule = match case.flow {
            true => NoiseSchedule::flow(Shift::Fixed(3.0)),
            false => NoiseSchedule::stable_diffusion(Prediction::Velocity),
        };
        let options = LevelOptions {
            rho: setting.parse().ok(),
            xl: setting == "xl",
            ..LevelOptions::default()
        };
        let steps = case.levels.len();
        let named = Schedule::from_name(name).unwrap();
        let levels = schedule
            .levels(Sampler::Ddim, named, steps, 256, &options)
            .unwrap();
        assert_eq!(levels.len(), steps + 1);
        for (level, expected) in levels.iter().zip(&case.levels) {
            let found = if case.flow {
                level.sigma
            } else {
                level.ratio()
            };
            let apart = (found - expected).abs() / expected;
            assert!(
                apart < 1e-9,
                "{} {steps}: {found} {expected}",
                case.schedule
            );
        }
    }
}

#[test]
fn listed_levels() {
    use sd_worker_rocm::sampling::Listed;
    let run = |schedule: &NoiseSchedule, listed| {
        let options = SamplerOptions {
            levels: LevelOptions {
                listed: Some(listed),
                ..LevelOptions::default()
            },
            ..PLAIN
        };
        SamplerRun::new(schedule, &options).map(|run| run.levels().to_vec())
    };
    let vp = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
    let flow = NoiseSchedule::flow(Shift::Fixed(3.0));
    for end in [&[5.0, 0.5][..], &[5.0, 0.5, 0.0]] {
        let levels = run(&vp, Listed::Sigmas(end.to_vec())).unwrap();
        assert_eq!(levels.len(), 3);
        assert!((levels[0].ratio() - 5.0).abs() < 1e-9 && levels[2].sigma == 0.0);
    }
    let levels = run(&vp, Listed::Timesteps(vec![900.0, 0.0])).unwrap();
    assert_eq!((levels[0].timestep, levels[1].timestep), (900.0, 0.0));
    let levels = run(&flow, Listed::Sigmas(vec![1.0, 0.25])).unwrap();
    assert_eq!((levels[1].sigma, levels[1].timestep), (0.25, 250.0));
    for wrong in [
        Listed::Sigmas(vec![1.5]),
        Listed::Sigmas(vec![0.5, 0.6]),
        Listed::Sigmas(vec![]),
        Listed::Sigmas(vec![f64::NAN]),
        Listed::Timesteps(vec![2000.0]),
        Listed::Timesteps(vec![-1.0]),
    ] {
        assert!(run(&flow, wrong.clone()).is_err(), "{wrong:?}");
    }
}

#[test]
fn solvers_of_one_equation_agree_in_the_limit() {
    let models = [
        NoiseSchedule::stable_diffusion(Prediction::Velocity),
        NoiseSchedule::flow(Shift::Fixed(3.0)),
        NoiseSchedule::flow(Shift::Dynamic {
            linear: false,
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
            eta: Some(0.0),
            image_tokens: 1024,
            ..PLAIN
        };
        finish(model, &options, true).values
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
            (Sampler::Lms, 200, 5e-3),
            (Sampler::Dpm2, 200, 5e-3),
            (Sampler::Dpm2Ancestral, 200, 5e-3),
            (Sampler::DpmPlusPlus2SAncestral, 200, 5e-3),
            (Sampler::DpmPlusPlus2MSdeHeun, 200, 5e-3),
            (Sampler::DpmPlusPlus3MSde, 200, 5e-3),
            (Sampler::Deis, 200, 5e-3),
            (Sampler::IpndmV, 200, 5e-3),
            (Sampler::Restart, 15, 5e-2),
            (Sampler::ResMultistep, 200, 5e-3),
            (Sampler::ResMultistepAncestral, 200, 5e-3),
            (Sampler::SaSolver, 200, 5e-3),
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
        ..PLAIN
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
            ..options.clone()
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

#[derive(Deserialize)]
struct Brownian {
    ends: (f64, f64),
    cases: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    seed: u64,
    shape: Vec<usize>,
    from: f64,
    to: f64,
    noise: Vec<f32>,
}

#[test]
fn brownian_noise_is_that_of_torchsde() {
    let made: Brownian = serde_json::from_str(include_str!("reference/brownian.json")).unwrap();
    assert!(made.cases.len() > 10);
    for case in &made.cases {
        // A picture's path does not depend on its batch, nor on what was drawn before.
        let seeds = [case.seed + 1, case.seed];
        let mut noise = BatchNoise::new(RngKind::TorchCpu, &seeds, &case.shape, &Device::Cpu);
        noise.draw().unwrap();
        noise.go_along(made.ends);
        let drawn = noise.between(case.from, case.to).unwrap();
        let drawn = drawn.get(1).unwrap().flatten_all().unwrap();
        let drawn: Vec<f32> = drawn.to_vec1().unwrap();
        for (a, b) in drawn.iter().zip(&case.noise) {
            let off = (a - b).abs();
            assert!(off < 5e-5, "{} to {}: {a} {b}", case.from, case.to);
        }
    }
    // Without a path the next numbers come.
    let noise = || BatchNoise::new(RngKind::Philox, &[7], &[4, 2, 2], &Device::Cpu);
    let of = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let plain = of(noise().draw().unwrap());
    assert_eq!(of(noise().between(2.0, 1.0).unwrap()), plain);
    let mut along = noise();
    along.go_along((0.1, 14.0));
    let step = of(along.between(2.0, 1.0).unwrap());
    assert_ne!(step, plain);
    assert_eq!(of(along.between(2.0, 1.0).unwrap()), step);
}
