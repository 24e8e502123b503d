//! `/v1/pictures/TOKEN.png`: a picture for whoever has its address, which nobody can guess. A browser that follows such
//! an address has no key to send.

use super::answer::encode_one;
use super::{App, ImageWorker};
use crate::image_io::Format;
use crate::jobs::Picture;
use axum::extract::{Path, Query};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use worker::http::ApiError;
use worker::serve::{Model, Route};

/// The route, which asks for no key: the token is one.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![Route::get(
        "/v1/pictures/{name}",
        "A picture by the token and the format in its name, as long as its job is kept",
        show,
    )]
}

/// The path of a picture, good as long as its job is kept. Only JPEG has a quality.
pub(super) fn path(picture: &Picture, format: Format, quality: u8) -> String {
    let (token, extension) = (picture.token.as_str(), format.extension());
    let path = format!("/v1/pictures/{token}.{extension}");
    match format {
        Format::Jpeg => format!("{path}?quality={quality}"),
        Format::Png | Format::WebP => path,
    }
}

/// The path of a video's file, good as long as its job is kept; `None` for pictures.
pub(super) fn video_path(picture: &Picture) -> Option<String> {
    let (_, format) = picture.video.as_ref()?;
    let (token, extension) = (picture.token.as_str(), format.extension());
    Some(format!("/v1/pictures/{token}.{extension}?video=true"))
}

#[derive(Deserialize)]
struct Quality {
    #[serde(default = "usual_quality")]
    quality: u8,
    /// The file of a video, of whose format the name ends in, rather than its first frame.
    #[serde(default)]
    video: bool,
}

fn usual_quality() -> u8 {
    90
}

async fn show(
    Model(app): Model<App>,
    Path(name): Path<String>,
    Query(Quality { quality, video }): Query<Quality>,
) -> Result<Response, ApiError> {
    let unknown = || {
        ApiError::not_found("there is no picture of this name, or its job is so long finished that it was forgotten")
    };
    let (token, extension) = name.rsplit_once('.').ok_or_else(unknown)?;
    let outcomes = app.queue().jobs().into_iter().filter_map(|job| job.outcome);
    let found = outcomes
        .filter_map(|outcome| {
            let mut pictures = outcome.pictures.iter();
            let index = pictures.position(|picture| picture.token.is(token))?;
            Some((outcome, index))
        })
        .next();
    let (outcome, index) = found.ok_or_else(unknown)?;
    let (bytes, media_type) = if video {
        let file = outcome.pictures[index].video.as_ref();
        let file = file.filter(|(_, format)| format.extension() == extension);
        let (bytes, format) = file.ok_or_else(unknown)?;
        (bytes.to_vec(), format.media_type())
    } else {
        let format = Format::from_name(extension).map_err(|_| unknown())?;
        (
            encode_one(outcome, index, format, quality).await?,
            format.media_type(),
        )
    };
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The address opens the picture: it must not travel on as a referrer, nor stay in shared caches.
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "private"),
    ];
    Ok((headers, bytes).into_response())
}
