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

#[derive(Deserialize)]
struct Quality {
    #[serde(default = "usual_quality")]
    quality: u8,
}

fn usual_quality() -> u8 {
    90
}

async fn show(
    Model(app): Model<App>,
    Path(name): Path<String>,
    Query(Quality { quality }): Query<Quality>,
) -> Result<Response, ApiError> {
    let unknown = || {
        ApiError::not_found("there is no picture of this name, or its job is so long finished that it was forgotten")
    };
    let (token, extension) = name.rsplit_once('.').ok_or_else(unknown)?;
    let format = Format::from_name(extension).map_err(|_| unknown())?;
    let outcomes = app.queue().jobs().into_iter().filter_map(|job| job.outcome);
    let found = outcomes
        .filter_map(|outcome| {
            let mut pictures = outcome.pictures.iter();
            let index = pictures.position(|picture| picture.token.is(token))?;
            Some((outcome, index))
        })
        .next();
    let (outcome, index) = found.ok_or_else(unknown)?;
    let bytes = encode_one(outcome, index, format, quality).await?;
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // The address opens the picture: it must not travel on as a referrer, nor stay in shared caches.
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "private"),
    ];
    Ok((headers, bytes).into_response())
}
