//! What candle makes of the formats of tensors.

use worker::gguf::{dtype, Format};

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
