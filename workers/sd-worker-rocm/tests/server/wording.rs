//! Styles, drawn prompts, regions and variations of jobs, as their pictures tell of them.

use crate::support::{generation, png, Server};
use sd_worker_rocm::image_io::to_base64;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::prompt::styles::Styles;
use sd_worker_rocm::prompt::wildcards::Wildcards;
use sd_worker_rocm::request::Library;
use sd_worker_rocm::server::ServerOptions;
use serde_json::{json, Value};

fn server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(
        at("styles.csv"),
        "name,prompt,negative_prompt\nink,ink of {prompt},colour\n",
    )
    .unwrap();
    std::fs::write(at("hue.txt"), "red\nblue\n").unwrap();
    let library = Library {
        styles: Styles::open(&at("styles.csv")).unwrap(),
        wildcards: Wildcards::new(Some(folder.path().to_path_buf())),
    };
    let options = ServerOptions {
        library,
        ..ServerOptions::default()
    };
    (Server::with(QueueOptions::default(), options), folder)
}

/// The parameters text of each picture.
fn told(server: &Server, fields: Value) -> Vec<String> {
    let mut body = generation("a door");
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let id = server.submit(&body);
    server.wait_for(&id, "completed");
    let (_, job) = server.get(&format!("/v1/jobs/{id}"));
    let images = job["images"].as_array().unwrap().iter();
    images
        .map(|image| image["parameters"].as_str().unwrap().to_string())
        .collect()
}

#[test]
fn pictures_tell_how_their_prompts_came_about() {
    let (server, _folder) = server();
    let styled = told(&server, json!({"styles": ["ink", ""]}));
    assert!(
        styled[0].starts_with("ink of a door\nNegative prompt: colour\n"),
        "{}",
        styled[0]
    );

    let all = told(
        &server,
        json!({"prompt": "a {tall|small} __hue__ door", "draw": "all", "seed": 5}),
    );
    let prompts: Vec<&str> = all
        .iter()
        .map(|text| text.lines().next().unwrap())
        .collect();
    assert_eq!(
        prompts,
        [
            "a tall red door",
            "a tall blue door",
            "a small red door",
            "a small blue door"
        ]
    );
    assert!(all[3].contains("Seed: 8,"), "{}", all[3]);

    let drawn = |seed: u64| {
        told(
            &server,
            json!({"prompt": "{a|b|c|d|e|f|g|h}", "draw": "random", "seed": seed, "batch": 2}),
        )
    };
    let (first, second) = (drawn(5), drawn(6));
    assert_eq!(first[1].lines().next(), second[0].lines().next());
    let literal = told(&server, json!({"prompt": "{a|b}"}));
    assert!(literal[0].starts_with("{a|b}\n"));

    let varied = json!({"seed": 3, "variation": 0.25, "variation_seed": 9, "batch": 2, "seed_size": [512, 256], "step_seed_delta": 31337});
    let varied = told(&server, varied);
    let expected = "Seed: 3, ";
    assert!(varied[1].contains(expected), "{}", varied[1]);
    for part in [
        "Variation seed: 10, ",
        "Variation seed strength: 0.25, ",
        "Seed resize from: 512x256, ",
        "ENSD: 31337, ",
    ] {
        assert!(varied[1].contains(part), "{}", varied[1]);
    }

    let regions = json!([{"prompt": "sky", "height": 0.5}, {"prompt": "sea", "mask": to_base64(&png(8, 8)), "strength": 2}]);
    let regions = told(
        &server,
        json!({"regions": regions, "scheduled_prompts": false}),
    );
    for part in ["0,0,1,0.5,1:sky", "mask 2,2:sea", "Scheduled prompts: no"] {
        assert!(regions[0].contains(part), "{}", regions[0]);
    }
}

#[test]
fn what_cannot_be_worded_is_refused_by_field() {
    let (server, _folder) = server();
    for (field, value, blamed) in [
        ("styles", json!(["oil"]), "styles"),
        ("draw", json!("often"), "draw"),
        ("variation", json!(2), "variation"),
        ("seed_size", json!([1, 512]), "seed_size"),
        ("regions", json!([{"prompt": "x", "left": 2}]), "regions"),
        ("regions", json!([{"prompt": "x", "mask": "?"}]), "regions"),
        (
            "regions",
            json!(vec![json!({"prompt": "x"}); 17]),
            "regions",
        ),
        ("prompt", json!("a <lora:x:much>"), "prompt"),
    ] {
        let mut body = generation("x");
        body[field] = value;
        let (status, answer) = server.post("/v1/jobs", &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(blamed)),
            "{answer}"
        );
    }
    for (prompt, param) in [("__none__", "prompt"), ("{a|b}{a|b}{a|b}{a|b}", "batch")] {
        let mut body = generation(prompt);
        body["draw"] = json!("all");
        let (status, answer) = server.post("/v1/jobs", &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{answer}"
        );
    }
}
