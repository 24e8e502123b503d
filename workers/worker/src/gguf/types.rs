//! What candle makes of the formats of tensors.

use candle_core::quantized::GgmlDType;
use ggml_formats::Format;

/// A format of tensors that candle does not compute with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("format {}{} is not supported; take another quantization of this model, for example Q4_K_M or Q8_0", .0.name(), number(.0))]
pub struct UnsupportedFormat(pub Format);

fn number(format: &Format) -> String {
    format
        .number()
        .map_or(String::new(), |number| format!(" (number {number})"))
}

/// candle's type of a format.
///
/// # Errors
/// [`UnsupportedFormat`] if candle does not compute with it.
pub fn dtype(format: Format) -> Result<GgmlDType, UnsupportedFormat> {
    GgmlDType::try_from(format).map_err(|_| UnsupportedFormat(format))
}
