//! What a case file holds, as it stands there.

use crate::check::dtype::DType;
use crate::check::fill::{Fill, Word};
use crate::check::finding::Kind;
use crate::check::tolerance::Tolerance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub case: Vec<CaseText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseText {
    pub kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub grid: DimsText,
    pub block: DimsText,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Word>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub atomic: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<String, Vec<i64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<Together>,
    #[serde(default, rename = "let", skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Let>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Known>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argument: Vec<ArgumentText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<ArgumentText>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum DimsText {
    One(Word),
    More(Vec<Word>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Together {
    pub names: Vec<String>,
    pub values: Vec<Vec<i64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Let {
    pub name: String,
    pub value: Word,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    pub kind: Kind,
    pub reason: String,
}

/// One of `scalar`, `input`, `output`, `inout`, `same`, `null`, `structure` and `bytes` says what it is.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgumentText {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scalar: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inout: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub align: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<Word>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub any_order: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<Fill>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<Tolerance>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<(Word, Word)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structure: Option<Vec<FieldText>>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum ExpectedText {
    Values(Vec<Word>),
    File { npy: PathBuf },
}

/// A number has `type` and `value`; others have `address` or `bytes`.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldText {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<u8>>,
}

fn is_false(value: &bool) -> bool {
    !value
}
