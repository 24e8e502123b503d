//! What is in the picture? The check of `models/tiny-shapes-sd/reference/classify.py`, whose rules these are.

use super::common::{device, go_on, request, tiny, Draw};
use image::RgbImage;
use sd_worker_rocm::pipeline::PipelineOptions;

const PALETTE: [(&str, [f64; 3]); 8] = [
    ("red", [0.86, 0.12, 0.12]),
    ("green", [0.13, 0.65, 0.22]),
    ("blue", [0.13, 0.27, 0.86]),
    ("yellow", [0.96, 0.84, 0.12]),
    ("purple", [0.55, 0.18, 0.70]),
    ("white", [0.96, 0.96, 0.96]),
    ("black", [0.05, 0.05, 0.05]),
    ("grey", [0.50, 0.50, 0.50]),
];
const SHAPES: [&str; 5] = ["circle", "square", "triangle", "star", "heart"];

/// What a picture shows.
#[derive(Debug, PartialEq)]
pub struct Scene {
    pub background: &'static str,
    pub foreground: &'static str,
    pub count: usize,
    pub shape: &'static str,
}

type Mask = Vec<Vec<bool>>;

fn outline(shape: &str) -> Vec<(f64, f64)> {
    use std::f64::consts::{PI, TAU};
    let around = |n: usize, at: &dyn Fn(usize, f64) -> (f64, f64)| {
        (0..n).map(|i| at(i, i as f64 / n as f64 * TAU)).collect()
    };
    match shape {
        "circle" => around(96, &|_, a| (a.cos(), a.sin())),
        "square" => vec![(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)],
        "triangle" => around(3, &|_, a| {
            let a = a - PI / 2.0;
            (1.15 * a.cos(), 1.15 * a.sin())
        }),
        "star" => around(10, &|i, a| {
            let (a, r) = (a - PI / 2.0, if i % 2 == 0 { 1.15 } else { 0.50 });
            (r * a.cos(), r * a.sin())
        }),
        _ => around(96, &|_, t| {
            let y =
                13.0 * t.cos() - 5.0 * (2.0 * t).cos() - 2.0 * (3.0 * t).cos() - (4.0 * t).cos();
            (16.0 * t.sin().powi(3) / 15.5, -y / 15.5)
        }),
    }
}

/// A polygon over [-2, 2]² as pixels.
fn fill(polygon: &[(f64, f64)], n: usize) -> Mask {
    let at = |i: usize| (i as f64 + 0.5) / n as f64 * 4.0 - 2.0;
    let inside = |x: f64, y: f64| {
        let edges = polygon.iter().zip(polygon.iter().cycle().skip(1));
        let crossings = edges.filter(|((ax, ay), (bx, by))| {
            ay != by && (*ay > y) != (*by > y) && x < ax + (y - ay) * (bx - ax) / (by - ay)
        });
        crossings.count() % 2 == 1
    };
    (0..n)
        .map(|y| (0..n).map(|x| inside(at(x), at(y))).collect())
        .collect()
}

fn pixels(mask: &Mask) -> Vec<(usize, usize)> {
    let rows = mask.iter().enumerate();
    rows.flat_map(|(y, row)| {
        let set = row.iter().enumerate().filter(|(_, set)| **set);
        set.map(move |(x, _)| (y, x))
    })
    .collect()
}

/// Moved to its centroid and scaled to the area of the unit disc, sampled on 65x65 points.
fn normalise(mask: &Mask) -> Vec<bool> {
    let set = pixels(mask);
    let count = set.len() as f64;
    let cy = set.iter().map(|p| p.0 as f64).sum::<f64>() / count;
    let cx = set.iter().map(|p| p.1 as f64).sum::<f64>() / count;
    let unit = (count / std::f64::consts::PI).sqrt();
    let at = |i: usize, c: f64| (c + (i as f64 / 16.0 - 2.0) * unit).round_ties_even();
    let mut out = Vec::with_capacity(65 * 65);
    for i in 0..65 {
        for j in 0..65 {
            let (y, x) = (at(i, cy), at(j, cx));
            let row = (y >= 0.0).then(|| mask.get(y as usize)).flatten();
            let set = row.and_then(|row| (x >= 0.0).then(|| row.get(x as usize)).flatten());
            out.push(set == Some(&true));
        }
    }
    out
}

fn nearest(colour: [f64; 3]) -> &'static str {
    let distance =
        |other: &[f64; 3]| -> f64 { other.iter().zip(colour).map(|(a, b)| (a - b).powi(2)).sum() };
    let best = PALETTE
        .iter()
        .min_by(|a, b| distance(&a.1).total_cmp(&distance(&b.1)));
    best.unwrap().0
}

fn median(colours: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|channel| {
        let mut values: Vec<f64> = colours.iter().map(|c| c[channel]).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        }
    })
}

/// 4-connected parts of at least 40 pixels.
fn components(mask: &Mask) -> Vec<Mask> {
    let mut left = mask.clone();
    let mut found = Vec::new();
    for start in pixels(mask) {
        if !left[start.0][start.1] {
            continue;
        }
        let mut part = vec![vec![false; mask[0].len()]; mask.len()];
        let mut todo = vec![start];
        left[start.0][start.1] = false;
        let mut size = 0;
        while let Some((y, x)) = todo.pop() {
            part[y][x] = true;
            size += 1;
            for (y, x) in [
                (y.wrapping_sub(1), x),
                (y + 1, x),
                (y, x.wrapping_sub(1)),
                (y, x + 1),
            ] {
                if left.get(y).and_then(|row| row.get(x)) == Some(&true) {
                    left[y][x] = false;
                    todo.push((y, x));
                }
            }
        }
        if size >= 40 {
            found.push(part);
        }
    }
    found
}

/// What the picture shows; `None` if there is nothing but background.
pub fn classify(picture: &RgbImage) -> Option<Scene> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let colour = |y: usize, x: usize| {
        let pixel = picture.get_pixel(x as u32, y as u32).0;
        pixel.map(|byte| f64::from(byte) / 255.0)
    };
    let mut edge = Vec::new();
    for y in 0..height {
        for x in 0..width {
            if y < 6 || x < 6 || y >= height - 6 || x >= width - 6 {
                edge.push(colour(y, x));
            }
        }
    }
    let ground = median(&edge);
    let far = |y, x| {
        let c = colour(y, x);
        let sum: f64 = c.iter().zip(ground).map(|(a, b)| (a - b).powi(2)).sum();
        sum > 0.04
    };
    let mask: Mask = (0..height)
        .map(|y| (0..width).map(|x| far(y, x)).collect())
        .collect();
    let parts = components(&mask);
    if parts.is_empty() {
        return None;
    }
    let every = |y: usize, x: usize| parts.iter().any(|part| part[y][x]);
    let mut core = Vec::new();
    for y in 1..height - 1 {
        for x in 1..width - 1 {
            if every(y, x)
                && every(y - 1, x)
                && every(y + 1, x)
                && every(y, x - 1)
                && every(y, x + 1)
            {
                core.push(colour(y, x));
            }
        }
    }
    let normalised: Vec<Vec<bool>> = parts.iter().map(normalise).collect();
    let score = |shape: &str| -> f64 {
        let template = normalise(&fill(&outline(shape), 400));
        let overlap = |part: &Vec<bool>| {
            let pairs = || part.iter().zip(&template);
            let both = pairs().filter(|(a, b)| **a && **b).count();
            let either = pairs().filter(|(a, b)| **a || **b).count();
            both as f64 / either as f64
        };
        normalised.iter().map(overlap).sum()
    };
    let shape = SHAPES
        .into_iter()
        .map(|shape| (shape, score(shape)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Scene {
        background: nearest(ground),
        foreground: nearest(median(&core)),
        count: parts.len(),
        shape: shape.0,
    })
}

/// Thirty prompts, every shape and colour among them: the pictures show what was asked for.
#[test]
fn prompts_are_obeyed() {
    let mut pipeline = tiny(PipelineOptions::default());
    let colours = PALETTE.map(|(name, _)| name);
    let mut wrong = Vec::new();
    // The simulated device is too slow for all of them.
    let prompts = if device().is_cpu() { 12 } else { 2 };
    for i in 0..prompts {
        let shape = SHAPES[i % 5];
        let foreground = colours[(i * 3) % 8];
        let background = colours[(i * 3 + 1 + i % 7) % 8];
        let count = 1 + i % 3;
        let number = ["a", "two", "three"][count - 1];
        let plural = if count > 1 { "s" } else { "" };
        let prompt = format!("{number} {foreground} {shape}{plural} on a {background} background");
        let mut request = request(&prompt, 100 + i as u64);
        request.steps = 12;
        let generated = pipeline.draw(&request, &mut go_on).unwrap();
        let wanted = Scene {
            background,
            foreground,
            count,
            shape,
        };
        let seen = classify(&generated.images[0]);
        if seen.as_ref() != Some(&wanted) {
            wrong.push((prompt, seen));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
