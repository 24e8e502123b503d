//! The forms that the chat templates of llama.cpp's distribution teach.
//!
//! `CANDLE_ROCM_LLAMA_CPP` names the folder that scripts/fetch-llama-cpp prints.

use llm_worker_rocm::chat::ChatTemplate;
use llm_worker_rocm::tools::OutputFormat;
use std::path::PathBuf;

/// Templates of each form; all others are of the common one.
const FORMS: &[(&str, &[&str])] = &[
    ("apertus", &["Apertus-8B-Instruct"]),
    (
        "apriel",
        &["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    ),
    ("seed", &["ByteDance-Seed-OSS"]),
    (
        "command",
        &[
            "Cohere2MoE",
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        ],
    ),
    ("command-r", &["CohereForAI-c4ai-command-r-plus-tool_use"]),
    (
        "glm",
        &[
            "GLM-4.6",
            "inclusionai-ling-3.0-flash",
            "poolside-Laguna-XS-2.1",
            "poolside-Laguna-XS.2",
        ],
    ),
    (
        "glm-4.7",
        &["GLM-4.7-Flash", "Spark2.5", "poolside-Laguna-S-2.1"],
    ),
    ("gigachat", &["GigaChat3-10B-A1.8B"]),
    ("gigachat3.1", &["GigaChat3.1-10B-A1.8B"]),
    (
        "kimi",
        &["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    ),
    ("kimi-k3", &["Kimi-K3"]),
    ("lfm2", &["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"]),
    ("minimax-m1", &["MiniMax-M1"]),
    ("minimax-m2", &["MiniMax-M2"]),
    ("minimax-m3", &["MiniMax-M3"]),
    ("mistral-id", &["Mistral-Small-3.2-24B-Instruct-2506"]),
    (
        "qwen-coder",
        &[
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "Qwen3-Coder",
            "Qwen3.5-4B",
            "StepFun3.5-Flash",
        ],
    ),
    ("nemotron", &["NVIDIA-Nemotron-Nano-v2"]),
    (
        "deepseek-r1",
        &[
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "llama-cpp-deepseek-r1",
        ],
    ),
    ("deepseek-v3.1", &["deepseek-ai-DeepSeek-V3.1"]),
    ("deepseek-v3.2", &["deepseek-ai-DeepSeek-V3.2"]),
    (
        "deepseek-v4",
        &[
            "deepseek-ai-DeepSeek-V4-Flash-0731",
            "deepseek-ai-DeepSeek-V4",
        ],
    ),
    ("firefunction", &["fireworks-ai-llama-3-firefunction-v2"]),
    (
        "gemma4",
        &["google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it"],
    ),
    ("granite", &["ibm-granite-granite-3.3-2B-Instruct"]),
    ("functionary3.1", &["meetkai-functionary-medium-v3.1"]),
    ("functionary3.2", &["meetkai-functionary-medium-v3.2"]),
    (
        "llama3",
        &[
            "meta-llama-Llama-3.1-8B-Instruct",
            "meta-llama-Llama-3.2-3B-Instruct",
            "meta-llama-Llama-3.3-70B-Instruct",
        ],
    ),
    (
        "mistral",
        &[
            "mistralai-Ministral-3-14B-Reasoning-2512",
            "unsloth-mistral-Devstral-Small-2507",
        ],
    ),
    ("mistral-list", &["mistralai-Mistral-Nemo-Instruct-2407"]),
    ("glimmer", &["muse-glimmer"]),
    ("harmony", &["openai-gpt-oss-120b"]),
    ("minicpm5", &["openbmb-MiniCPM5-1B"]),
    ("hunyuan", &["tencent-Hy3"]),
    ("solar", &["upstage-Solar-Open-100B"]),
];

#[test]
fn templates_tell_their_forms() {
    let folder: PathBuf = std::env::var_os("CANDLE_ROCM_LLAMA_CPP")
        .expect("CANDLE_ROCM_LLAMA_CPP is not set: run scripts/test, or set it to the output of scripts/fetch-llama-cpp")
        .into();
    let mut wrong = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder.join("templates")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "jinja")
        {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap();
        let form = OutputFormat::of(&template).calls.name;
        let known = FORMS
            .iter()
            .find(|(_, names)| names.contains(&name.as_str()));
        let wanted = known.map_or("hermes", |(form, _)| form);
        if form != wanted {
            wrong.push(format!("{name}: {form}, not {wanted}"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 60, "{count} templates");
}
