//! Progress on a terminal, silence elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Read, Seek, SeekFrom};

/// A bar over a known number of bytes, drawn on standard error.
///
/// Hidden where standard error is not a terminal, so that logs and pipes stay clean.
pub fn byte_bar(message: &str, total_bytes: u64) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr())
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template(
        "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_message(message.to_string());
    bar
}

/// A reader that moves a [`ProgressBar`] by every byte read through it.
pub struct ProgressReader<R> {
    inner: R,
    bar: ProgressBar,
}

impl<R> ProgressReader<R> {
    /// Wraps `inner`; the bar is cleared when the reader is dropped.
    pub fn new(inner: R, bar: ProgressBar) -> Self {
        Self { inner, bar }
    }
}

impl<R: Read> Read for ProgressReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.bar.inc(n as u64);
        Ok(n)
    }
}

impl<R: Seek> Seek for ProgressReader<R> {
    fn seek(&mut self, position: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(position)
    }
}

impl<R> Drop for ProgressReader<R> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// [`byte_bar`] for the downloads of `hf-hub`.
pub struct DownloadProgress(ProgressBar);

impl DownloadProgress {
    /// A bar whose length is told by the download itself.
    pub fn new() -> Self {
        Self(byte_bar("", 0))
    }
}

impl Default for DownloadProgress {
    fn default() -> Self {
        Self::new()
    }
}

impl hf_hub::api::Progress for DownloadProgress {
    fn init(&mut self, size: usize, filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_message(filename.to_string());
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}
