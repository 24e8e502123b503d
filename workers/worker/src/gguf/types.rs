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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_agree_with_candle() {
        let mut known = 0;
        for &format in Format::ALL {
            let Ok(dtype) = dtype(format) else {
                continue;
            };
            known += 1;
            assert_eq!(format.block_size(), dtype.block_size(), "{}", format.name());
            assert_eq!(format.type_size(), dtype.type_size(), "{}", format.name());
            assert_eq!(format!("{dtype:?}"), format!("{format:?}"));
            assert_eq!(Format::try_from(dtype).unwrap(), format);
        }
        // All but f64 and the four integers.
        assert_eq!(known, Format::ALL.len() - 5);
    }

    #[test]
    fn what_candle_lacks_is_named() {
        let error = dtype(Format::I64).unwrap_err().to_string();
        assert!(
            error.contains("format I64 (number 27) is not supported"),
            "{error}"
        );
    }
}
