//! A file as it comes in.

use super::store::{Meta, Upload};
use crate::server::app::App;
use crate::server::error::blocking;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::Multipart;
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::{ApiError, Caller};

/// Longest field that is no file, in bytes.
const MAX_FIELD_BYTES: usize = 1 << 10;
/// Bytes that are gathered before they are written.
const PART_BYTES: usize = 256 << 10;
/// Longest name of a file in bytes.
const MAX_NAME_BYTES: usize = 255;
/// What files may be for.
const PURPOSES: [&str; 2] = ["batch", "user_data"];
/// How long files may be kept that have an end, in seconds.
const LIFETIMES: std::ops::RangeInclusive<i64> = 3600..=2_592_000;

/// The form of a file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct FileFields {
    /// The file: for batches a request in each line.
    pub file: String,
    /// `batch` or `user_data`.
    pub purpose: String,
    /// `created_at`, where `expires_after[seconds]` is given.
    #[serde(rename = "expires_after[anchor]")]
    pub expires_after_anchor: Option<String>,
    /// Seconds until the file goes by itself, from an hour to thirty days.
    #[serde(rename = "expires_after[seconds]")]
    pub expires_after_seconds: Option<i64>,
}

/// Reads a form and keeps its file.
///
/// # Errors
/// 400 and 413 for what the form has; 500 if the file cannot be written.
pub(super) async fn read(app: &App, caller: Caller, mut form: Multipart) -> Result<Meta, ApiError> {
    let (mut fields, mut came) = (FileFields::default(), None);
    while let Some(field) = form.next_field().await.map_err(failed)? {
        let name = field.name().unwrap_or_default().to_string();
        if name == "file" {
            if came.is_some() {
                return Err(ApiError::field("file", "the form has two files"));
            }
            fields.file = shown_name(field.file_name().unwrap_or_default());
            let mut upload = app.files().begin()?;
            take(&mut upload, field).await?;
            came = Some(upload);
            continue;
        }
        let text = short(&name, field).await?;
        let refuse = |reason: String| Err(ApiError::field(&name, reason));
        match name.as_str() {
            "purpose" if PURPOSES.contains(&text.as_str()) => fields.purpose = text,
            "purpose" => {
                let all = PURPOSES.join(", ");
                return refuse(format!("purpose {text:?} is none of {all}"));
            }
            "expires_after[anchor]" if text == "created_at" => {
                fields.expires_after_anchor = Some(text);
            }
            "expires_after[anchor]" => {
                return refuse(format!("expires_after[anchor] {text:?} is not created_at"));
            }
            "expires_after[seconds]" => match text.trim().parse() {
                Ok(seconds) if LIFETIMES.contains(&seconds) => {
                    fields.expires_after_seconds = Some(seconds);
                }
                _ => {
                    let (least, most) = (LIFETIMES.start(), LIFETIMES.end());
                    let reason =
                        format!("expires_after[seconds] {text:?} is not from {least} to {most}");
                    return refuse(reason);
                }
            },
            _ => {}
        }
    }
    let mut upload = came.ok_or_else(|| ApiError::field("file", "the form has no file"))?;
    if fields.purpose.is_empty() {
        let all = PURPOSES.join(", ");
        return Err(ApiError::field(
            "purpose",
            format!("purpose: one of {all} is needed"),
        ));
    }
    let created_at = worker::time::unix();
    let meta = Meta {
        id: upload.id().to_string(),
        owner: caller.0,
        filename: fields.file,
        purpose: fields.purpose,
        bytes: upload.length(),
        created_at,
        expires_at: fields
            .expires_after_seconds
            .map(|seconds| created_at + seconds),
    };
    upload.complete()?;
    drop(upload);
    app.files().register(meta)
}

/// Writes a file as it comes.
async fn take(upload: &mut Upload<'_>, mut field: Field<'_>) -> Result<(), ApiError> {
    let mut gathered = Vec::new();
    loop {
        let part = field.chunk().await.map_err(failed)?;
        let is_last = part.is_none();
        gathered.extend_from_slice(&part.unwrap_or_default());
        if is_last || gathered.len() >= PART_BYTES {
            let part = upload.take(std::mem::take(&mut gathered))?;
            let file = blocking(move || part.write()).await?;
            upload.wrote(file);
        }
        if is_last {
            return Ok(());
        }
    }
}

/// A field that is no file.
async fn short(name: &str, mut field: Field<'_>) -> Result<String, ApiError> {
    let mut value = Vec::new();
    while let Some(part) = field.chunk().await.map_err(failed)? {
        value.extend_from_slice(&part);
        if value.len() > MAX_FIELD_BYTES {
            let reason = format!("{name} has more than {MAX_FIELD_BYTES} bytes");
            return Err(ApiError::field(name, reason));
        }
    }
    String::from_utf8(value).map_err(|_| ApiError::field(name, format!("{name} is not UTF-8")))
}

fn failed(error: MultipartError) -> ApiError {
    ApiError::new(error.status(), "INVALID_REQUEST", error.body_text())
}

/// A name as it can be told: its last part, without what could steer a terminal.
fn shown_name(given: &str) -> String {
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last.chars().filter(|c| !c.is_control()).collect();
    let plain = worker::text::beginning(plain.trim(), MAX_NAME_BYTES);
    match plain {
        "" | "." | ".." => "file".to_string(),
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::shown_name;

    #[test]
    fn names_are_only_told() {
        for (given, told) in [
            ("in.jsonl", "in.jsonl"),
            ("../../etc/passwd", "passwd"),
            ("C:\\a\\b.txt", "b.txt"),
            ("..", "file"),
            ("", "file"),
            ("a\u{1b}[2J\nb", "a[2Jb"),
        ] {
            assert_eq!(shown_name(given), told, "{given:?}");
        }
        assert_eq!(shown_name(&"ä".repeat(300)).len(), 254);
    }
}
