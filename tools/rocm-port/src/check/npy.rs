//! `.npy` files: inputs, expected and recorded outputs.

use super::dtype::DType;
use half::f16;
use npyz::{NpyFile, WriterBuilder};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

/// Bytes of a buffer at most, so that a file's header cannot ask for all memory.
pub(super) const MOST_BYTES: usize = 1 << 32;

/// The bytes of a file's `length` elements. Types that numpy does not have (bf16 and 8-bit floats) are unsigned
/// integers of their size there.
pub(super) fn read(path: &Path, dtype: DType, length: usize) -> Result<Vec<u8>, String> {
    let error = |why: String| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|why| error(why.to_string()))?;
    let size = file.metadata().map_err(|why| error(why.to_string()))?.len();
    let npy = NpyFile::new(BufReader::new(file)).map_err(|why| error(why.to_string()))?;
    if npy.order() != npyz::Order::C && npy.shape().len() > 1 {
        return Err(error(
            "it is in Fortran order; numpy.ascontiguousarray makes it C's".into(),
        ));
    }
    let elements = npy
        .shape()
        .iter()
        .try_fold(1u64, |all, &one| all.checked_mul(one));
    if elements != Some(length as u64) || size < (length * dtype.size()) as u64 {
        return Err(error(format!(
            "it has the shape {:?}, wanted are {length} elements",
            npy.shape()
        )));
    }
    let wrong = |why: npyz::DTypeError| error(format!("it does not hold {dtype}: {why}"));
    macro_rules! read {
        ($type:ty) => {{
            let values = npy.data::<$type>().map_err(wrong)?;
            let mut bytes = Vec::with_capacity(length * dtype.size());
            for value in values {
                let value = value.map_err(|why| error(why.to_string()))?;
                bytes.extend(value.to_le_bytes());
            }
            Ok(bytes)
        }};
    }
    match dtype {
        DType::U8 | DType::F8e4m3 | DType::F8e5m2 => read!(u8),
        DType::U16 | DType::Bf16 => read!(u16),
        DType::U32 => read!(u32),
        DType::U64 => read!(u64),
        DType::I8 => read!(i8),
        DType::I16 => read!(i16),
        DType::I32 => read!(i32),
        DType::I64 => read!(i64),
        DType::F16 => read!(f16),
        DType::F32 => read!(f32),
        DType::F64 => read!(f64),
    }
}

/// Writes elements as one dimension; the folder is made if it is not there.
pub(super) fn write(path: &Path, dtype: DType, bytes: &[u8]) -> Result<(), String> {
    let error = |why: std::io::Error| format!("{}: {why}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(error)?;
    }
    let mut file = BufWriter::new(File::create(path).map_err(error)?);
    macro_rules! write {
        ($type:ty) => {{
            let elements = bytes.chunks_exact(size_of::<$type>());
            let values = elements.map(|e| <$type>::from_le_bytes(std::array::from_fn(|i| e[i])));
            let mut writer = npyz::WriteOptions::new()
                .default_dtype()
                .shape(&[(bytes.len() / size_of::<$type>()) as u64])
                .writer(&mut file)
                .begin_nd()
                .map_err(error)?;
            writer.extend(values).map_err(error)?;
            writer.finish().map_err(error)?;
        }};
    }
    match dtype {
        DType::U8 | DType::F8e4m3 | DType::F8e5m2 => write!(u8),
        DType::U16 | DType::Bf16 => write!(u16),
        DType::U32 => write!(u32),
        DType::U64 => write!(u64),
        DType::I8 => write!(i8),
        DType::I16 => write!(i16),
        DType::I32 => write!(i32),
        DType::I64 => write!(i64),
        DType::F16 => write!(f16),
        DType::F32 => write!(f32),
        DType::F64 => write!(f64),
    }
    file.flush().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in DType::ALL {
            let bytes = dtype.encode_all([1.0, 2.0, 3.5]);
            let path = folder.path().join(format!("deep/{dtype}.npy"));
            write(&path, dtype, &bytes).unwrap();
            assert_eq!(read(&path, dtype, 3).unwrap(), bytes, "{dtype}");
            assert!(read(&path, dtype, 4).unwrap_err().contains("wanted are 4"));
        }
        let floats = folder.path().join("deep/f32.npy");
        assert!(read(&floats, DType::I32, 3)
            .unwrap_err()
            .contains("does not hold i32"));
    }

    #[test]
    fn what_is_broken_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        write(&path, DType::F32, &[0; 40]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert!(read(&path, DType::F32, 10).is_err(), "{end}");
        }
        let header = String::from_utf8_lossy(&whole).replace("(10,)", "(9223372036854775807, 9,)");
        std::fs::write(&path, header.as_bytes()).unwrap();
        assert!(read(&path, DType::F32, 10).is_err());
    }
}
