//! Function tables of CUDA's libraries.

use std::path::{Path, PathBuf};

/// Opens the first of the files that can be opened.
pub(crate) fn open(files: &[&str]) -> Result<libloading::Library, String> {
    let explicit = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let fallback = Some(PathBuf::from("/usr/local/cuda"));
    let inside = |root: Option<PathBuf>| {
        let lib = |file: &&str| root.as_ref().map(|root| root.join("lib64").join(file));
        files.iter().filter_map(lib).collect::<Vec<_>>()
    };
    let candidates = inside(explicit)
        .into_iter()
        .chain(files.iter().map(|file| Path::new(file).to_path_buf()))
        .chain(inside(fallback));
    let mut reasons = Vec::new();
    for path in candidates {
        // SAFETY: opening CUDA's libraries runs their initialisers; the names are theirs, the folders the user's choice
        // or the system's.
        match unsafe { libloading::Library::new(&path) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(format!(
        "no {} can be opened; set CUDA_PATH to where CUDA is. {}",
        files[0],
        reasons.join("; ")
    ))
}

/// Declares a library's function table and how it is opened.
macro_rules! table {
    (
        $(#[$doc:meta])*
        $table:ident {
            $( fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $answer:ty)? $(= $symbol:literal)?; )*
        }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // fields carry the C names
        pub(crate) struct $table {
            $( pub $name: unsafe extern "C" fn($($argument: $type),*) -> crate::table::answer!($($answer)?), )*
            // Keeps the pointers valid.
            _library: libloading::Library,
        }

        impl $table {
            pub fn open(files: &[&str]) -> Result<Self, String> {
                let library = crate::table::open(files)?;
                // SAFETY: each pointer gets the C signature of the function of that name and lives no longer than the
                // library.
                unsafe {
                    Ok($table {
                        $( $name: {
                            let symbol = crate::table::symbol!($name $($symbol)?);
                            *library.get(symbol).map_err(|error| error.to_string())?
                        }, )*
                        _library: library,
                    })
                }
            }
        }
    };
}
pub(crate) use table;

/// What a function returns: a status, unless it says otherwise.
macro_rules! answer {
    () => {
        std::ffi::c_int
    };
    ($type:ty) => {
        $type
    };
}
pub(crate) use answer;

/// The exported name of a function: CUDA appends a version to those whose signature has changed.
macro_rules! symbol {
    ($name:ident) => {
        concat!(stringify!($name), "\0").as_bytes()
    };
    ($name:ident $symbol:literal) => {
        concat!($symbol, "\0").as_bytes()
    };
}
pub(crate) use symbol;
