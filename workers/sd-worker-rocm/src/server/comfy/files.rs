//! Pictures that come in and go out by names, as files of ComfyUI's folders; the machine's own files are none of them.

use super::check::Invalid;
use crate::image_io::{self, Format};
use crate::server::answer::outcome_of;
use crate::server::App;
use axum::extract::{FromRequest, Multipart, Query, Request};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker::http::{blocking, ApiError};
use worker::serve::Model;

/// Most pictures that are kept; the oldest are forgotten.
const MOST_UPLOADS: usize = 64;
/// Most bytes of them.
const MOST_BYTES: usize = 256 << 20;
/// Longest name of a file or folder.
const MOST_NAME: usize = 200;

/// The pictures that were sent here.
#[derive(Default)]
pub(in crate::server) struct Uploads(Mutex<VecDeque<Upload>>);

struct Upload {
    /// Folder and name.
    path: String,
    kind: &'static str,
    bytes: Arc<Vec<u8>>,
}

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Upload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their names, as nodes name them.
    pub(super) fn names(&self) -> Vec<String> {
        let all = self.lock();
        let names = all.iter().map(|upload| match upload.kind {
            "input" => upload.path.clone(),
            kind => format!("{} [{kind}]", upload.path),
        });
        names.collect()
    }

    /// A picture by the name that nodes have for it.
    pub(super) fn get(&self, name: &str) -> Option<Arc<Vec<u8>>> {
        let (path, kind) = annotated(name);
        self.of(path, kind.unwrap_or("input"))
    }

    fn of(&self, path: &str, kind: &str) -> Option<Arc<Vec<u8>>> {
        let all = self.lock();
        let found = all
            .iter()
            .find(|upload| upload.path == path && upload.kind == kind);
        found.map(|upload| upload.bytes.clone())
    }

    /// Keeps a picture and gives the name under which it is: another one where there is another picture of this name.
    fn put(
        &self,
        folder: &str,
        name: &str,
        kind: &'static str,
        bytes: Vec<u8>,
        overwrite: bool,
    ) -> String {
        let path = |name: &str| match folder {
            "" => name.to_string(),
            folder => format!("{folder}/{name}"),
        };
        let (stem, ending) = name
            .rsplit_once('.')
            .map_or((name, String::new()), |(stem, ending)| {
                (stem, format!(".{ending}"))
            });
        let mut all = self.lock();
        let mut free = name.to_string();
        let mut count = 0;
        while let Some(at) = all
            .iter()
            .position(|known| known.path == path(&free) && known.kind == kind)
        {
            if overwrite || *all[at].bytes == bytes {
                all.remove(at);
                break;
            }
            count += 1;
            free = format!("{stem} ({count}){ending}");
        }
        all.push_back(Upload {
            path: path(&free),
            kind,
            bytes: Arc::new(bytes),
        });
        let size =
            |all: &VecDeque<Upload>| all.iter().map(|upload| upload.bytes.len()).sum::<usize>();
        while all.len() > 1 && (all.len() > MOST_UPLOADS || size(&all) > MOST_BYTES) {
            all.pop_front();
        }
        free
    }
}

/// A name of which the end may say the folder: `a.png [output]`.
fn annotated(name: &str) -> (&str, Option<&'static str>) {
    for kind in ["input", "output", "temp"] {
        let rest = name
            .strip_suffix(']')
            .and_then(|name| name.strip_suffix(kind));
        if let Some(path) = rest.and_then(|rest| rest.strip_suffix(" [")) {
            return (path, Some(kind));
        }
    }
    (name, None)
}

fn kind_of(name: &str) -> Result<&'static str, ApiError> {
    let kinds = ["input", "output", "temp"].into_iter();
    let mut found = kinds.filter(|kind| *kind == name);
    let unknown = || ApiError::field("type", "type is input, output or temp");
    found.next().ok_or_else(unknown)
}

/// A name or folder that leads nowhere else.
fn plain(field: &str, name: &str) -> Result<String, ApiError> {
    let strange = name.len() > MOST_NAME
        || name.contains(['\\', '\0'])
        || name.starts_with('/')
        || name.chars().any(char::is_control)
        || name.split('/').any(|part| part == "..");
    match strange {
        true => Err(ApiError::field(
            field,
            format!("{field} is no name of a file here"),
        )),
        false => Ok(name.trim_end_matches('/').to_string()),
    }
}

/// `POST /upload/image`: a form with the picture.
pub(super) async fn upload(
    Model(app): Model<App>,
    request: Request,
) -> Result<Json<Value>, Invalid> {
    let failed = |status: StatusCode, text: String| ApiError::new(status, "INVALID_REQUEST", text);
    let form = Multipart::from_request(request, &()).await;
    let mut form = form.map_err(|e| failed(e.status(), e.body_text()))?;
    let (mut image, mut folder, mut kind, mut overwrite) = (None, String::new(), "input", false);
    while let Some(field) = form
        .next_field()
        .await
        .map_err(|e| failed(e.status(), e.body_text()))?
    {
        let name = field.name().unwrap_or_default().to_string();
        let file = field.file_name().map(String::from);
        let bytes = field
            .bytes()
            .await
            .map_err(|e| failed(e.status(), e.body_text()))?;
        let text = || String::from_utf8_lossy(&bytes).trim().to_string();
        match (name.as_str(), file) {
            ("image", Some(file)) => image = Some((plain("image", &file)?, bytes.to_vec())),
            ("subfolder", None) => folder = plain("subfolder", &text())?,
            ("type", None) => kind = kind_of(&text())?,
            ("overwrite", None) => overwrite = ["true", "1"].contains(&text().as_str()),
            (other, _) => {
                let reason = format!("{other} is not a field of this form, or not as it should be");
                return Err(ApiError::field(other, reason).into());
            }
        }
    }
    let Some((name, bytes)) = image.filter(|(name, _)| !name.is_empty()) else {
        return Err(ApiError::field("image", "there is no picture").into());
    };
    if kind == "output" {
        return Err(ApiError::field("type", "pictures go to input or temp").into());
    }
    // What is no picture is told now, and not by the graph that names it.
    let limits = app.options().limits.decode;
    let decoded = blocking(move || image_io::decode(&bytes, &limits).map(|_| bytes)).await?;
    let bytes = decoded.map_err(|e| ApiError::field("image", e.to_string()))?;
    let name = app
        .comfy()
        .uploads()
        .put(&folder, &name, kind, bytes, overwrite);
    Ok(Json(
        json!({"name": name, "subfolder": folder, "type": kind}),
    ))
}

/// Which file, and how.
#[derive(Deserialize)]
pub(super) struct View {
    filename: String,
    #[serde(default)]
    subfolder: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Another format: `webp;90`.
    preview: Option<String>,
    channel: Option<String>,
}

/// `GET /view`: a picture's file.
pub(super) async fn view(
    Model(app): Model<App>,
    query: Result<Query<View>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(asked) = query.map_err(|e| ApiError::invalid(e.body_text()))?;
    if asked
        .channel
        .as_deref()
        .is_some_and(|channel| channel != "rgb" && channel != "rgba")
    {
        return Err(ApiError::field(
            "channel",
            "channel is rgba or rgb; opacity alone is not given",
        ));
    }
    let (name, said) = annotated(&asked.filename);
    let kind = said.map_or_else(|| kind_of(asked.kind.as_deref().unwrap_or("output")), Ok)?;
    let (format, quality) = match asked.preview.as_deref() {
        None => (Format::Png, 0),
        Some(text) => {
            let (name, quality) = text.split_once(';').unwrap_or((text, "90"));
            let format =
                Format::from_name(name).map_err(|e| ApiError::field("preview", e.to_string()))?;
            (format, quality.parse().unwrap_or(90).clamp(1, 100))
        }
    };
    let path = match asked.subfolder.as_str() {
        "" => name.to_string(),
        folder => format!("{folder}/{name}"),
    };
    let uploaded = app.comfy().uploads().of(&path, kind);
    let as_sent = asked.preview.is_none();
    let missing = || {
        ApiError::not_found(format!(
            "there is no picture {path:?}; those of jobs are kept for a while only (--keep)"
        ))
    };
    let limits = app.options().limits.decode;
    let encode = |image: &image::RgbImage, text: Option<&str>| {
        image_io::encode(image, format, quality, text)
            .map_err(|e| ApiError::internal(e.to_string()))
    };
    let (bytes, media_type) = match uploaded {
        Some(bytes) if as_sent => {
            let known = image::guess_format(&bytes).map_err(|_| missing())?;
            (bytes.to_vec(), known.to_mime_type())
        }
        Some(bytes) => {
            let image = blocking(move || image_io::decode(&bytes, &limits)).await?;
            let image = image.map_err(|e| ApiError::internal(e.to_string()))?;
            (
                encode(&image_io::to_rgb(&image), None)?,
                format.media_type(),
            )
        }
        None => {
            let (file, job) =
                (app.comfy().file(name, &asked.subfolder, kind)).ok_or_else(missing)?;
            let job = app.queue().job(&job).ok_or_else(missing)?;
            let outcome = outcome_of(job)?;
            let picture = outcome
                .pictures
                .get(file.picture)
                .ok_or_else(missing)?
                .clone();
            let image = file.larger.as_deref().cloned();
            let made = blocking(move || {
                let image = image.as_ref().unwrap_or(&picture.image);
                image_io::encode(image, format, quality, Some(&picture.parameters))
            });
            let made = made.await?.map_err(|e| ApiError::internal(e.to_string()))?;
            (made, format.media_type())
        }
    };
    let name = path
        .rsplit('/')
        .next()
        .unwrap_or(&path)
        .replace(['"', '\\'], "_");
    let name: String = name.chars().filter(char::is_ascii).collect();
    let headers = [
        (header::CONTENT_TYPE, media_type.to_string()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_string()),
        (
            header::CONTENT_DISPOSITION,
            format!("inline; filename=\"{name}\""),
        ),
        (header::CACHE_CONTROL, "private".to_string()),
    ];
    Ok((headers, bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for bad in [
            "../a.png",
            "/etc/x",
            "a/../b",
            "a\\b",
            "a\nb",
            &"a".repeat(300),
        ] {
            assert!(plain("image", bad).is_err(), "{bad}");
        }
        assert_eq!(plain("subfolder", "a/b/").unwrap(), "a/b");
        assert_eq!(annotated("a.png [temp]"), ("a.png", Some("temp")));
        assert_eq!(annotated("a [x].png"), ("a [x].png", None));
        assert_eq!(annotated("[temp]"), ("[temp]", None));
    }

    #[test]
    fn pictures_keep_their_names_apart() {
        let uploads = Uploads::default();
        let put = |folder: &str, bytes: &[u8], overwrite| {
            uploads.put(folder, "a.png", "input", bytes.to_vec(), overwrite)
        };
        assert_eq!(put("", b"1", false), "a.png");
        assert_eq!(put("", b"1", false), "a.png");
        assert_eq!(put("", b"2", false), "a (1).png");
        assert_eq!(put("sub", b"3", false), "a.png");
        assert_eq!(put("", b"4", true), "a.png");
        let read = |name: &str| uploads.get(name).map(|bytes| bytes.to_vec());
        assert_eq!(read("a.png"), Some(b"4".to_vec()));
        assert_eq!(read("a (1).png"), Some(b"2".to_vec()));
        assert_eq!(read("sub/a.png [input]"), Some(b"3".to_vec()));
        assert_eq!(read("a.png [temp]"), None);
        for i in 0..MOST_UPLOADS {
            uploads.put("", &format!("{i}"), "temp", vec![0], false);
        }
        assert_eq!((uploads.names().len(), read("a.png")), (MOST_UPLOADS, None));
    }
}
