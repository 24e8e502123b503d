//! The forms. A template is asked for their signs from the first row to the last.

mod named;
mod objects;
mod others;
mod tagged;

use super::{Around, Body, CallForm, Ids, NOTHING};

pub(super) use objects::HERMES;

/// A row's usual values.
const USUAL: CallForm = CallForm {
    name: "",
    families: "",
    signs: &[],
    section: NOTHING,
    call: NOTHING,
    between: "",
    also: &[],
    body: OBJECT,
    silent: &[],
    tokens: &[],
    ids: Ids::Letters,
    known_only: false,
    single: false,
    relatives: &[],
};

const OBJECT: Body = Body::Object {
    number: None,
    name: "name",
    arguments: "arguments",
};

/// A list of objects between two marks, as many families write it.
const fn list(name: &'static str, open: &'static str, close: &'static str) -> CallForm {
    CallForm {
        name,
        section: Around { open, close },
        between: ", ",
        ..USUAL
    }
}

/// All forms, those with the more telling signs first.
pub static FORMS: &[CallForm] = &[
    named::HARMONY,
    tagged::KIMI_K3,
    named::KIMI,
    others::MINIMAX_M3,
    tagged::MINIMAX_M2,
    objects::MINIMAX_M1,
    tagged::DEEPSEEK_V3_2,
    tagged::DEEPSEEK_V4,
    named::DEEPSEEK_R1,
    named::DEEPSEEK_V3_1,
    tagged::STEP3,
    tagged::SEED,
    tagged::QWEN_CODER,
    tagged::HUNYUAN,
    tagged::GLM_4_7,
    tagged::GLM,
    others::GEMMA4,
    others::LFM2,
    others::OLMO3,
    tagged::GLIMMER,
    tagged::MINICPM5,
    named::SOLAR,
    objects::GRANITE,
    objects::NEMOTRON,
    objects::APRIEL,
    named::APERTUS,
    objects::COMMAND,
    objects::COMMAND_R,
    objects::GIGACHAT3_1,
    objects::GIGACHAT,
    objects::FIREFUNCTION,
    objects::INTERNLM2,
    named::MISTRAL_ID,
    named::MISTRAL,
    objects::MISTRAL_LIST,
    named::FUNCTIONARY3_1,
    named::FUNCTIONARY3_2,
    objects::HERMES,
    others::LLAMA4,
    objects::LLAMA3,
];
