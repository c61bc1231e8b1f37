//! Optional NVIDIA libraries, loaded where they are found.

use std::ffi::{CStr, c_char};

use libloading::Library;

use crate::error::{Error, Result};
use crate::search::Places;

/// Loads a library from the loader's own path, from a CUDA toolkit or from a Python wheel.
///
/// `part` is its directory in the NVIDIA wheels of CUDA 12.
pub(crate) fn open(name: &'static str, part: &str) -> Result<Library> {
    let mut searched = vec!["the loader's path".to_owned()];
    for version in [".13", ".12", ""] {
        // SAFETY: loading one of NVIDIA's libraries runs its initializers, which are made to be run.
        if let Ok(library) = unsafe { Library::new(format!("lib{name}.so{version}")) } {
            return Ok(library);
        }
    }
    for file in Places::of_this_machine().libraries(name, part) {
        // SAFETY: as above.
        match unsafe { Library::new(&file) } {
            Ok(library) => return Ok(library),
            Err(error) => searched.push(format!("{} ({error})", file.display())),
        }
    }
    searched.push("CUDA toolkits".into());
    searched.push("Python wheels".into());
    Err(Error::LibraryNotFound { library: name, searched })
}

/// A function of a library.
///
/// # Safety
/// `F` must be the type of the function that `symbol` stands for, and the library must stay loaded as long as
/// the result is used.
pub(crate) unsafe fn symbol<F: Copy>(
    library: &Library,
    name: &'static str,
    symbol: &'static str,
) -> Result<F> {
    // SAFETY: the caller names the right type.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found.map(|f| *f).map_err(|_| Error::MissingSymbol { library: name.into(), symbol: symbol.into() })
}

/// A text that a library gave.
///
/// # Safety
/// `text` must be null or point to a terminated string.
pub(crate) unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return "the library has no words for it".into();
    }
    // SAFETY: the caller gives a terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A struct of the functions of a library that return a status, each as a method that checks it.
///
/// The struct needs a method `describe(&self, status: c_int) -> String` besides.
macro_rules! library_functions {
    (
        $(#[$meta:meta])* struct $struct:ident = $library:literal in $part:literal;
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        struct $struct {
            $($name: unsafe extern "C" fn($($type),*) -> std::ffi::c_int,)*
            library: libloading::Library,
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl $struct {
            fn open() -> $crate::error::Result<Self> {
                let library = $crate::library::open($library, $part)?;
                // SAFETY: the names and signatures are those of NVIDIA's headers; the library is kept beside.
                unsafe {
                    Ok(Self {
                        $($name: $crate::library::symbol(&library, $library, stringify!($name))?,)*
                        library,
                    })
                }
            }

            $(
                /// The library's function of the same name, its status checked.
                ///
                /// # Safety
                /// The library's own contract for this function.
                unsafe fn $name(&self, $($arg: $type),*) -> $crate::error::Result<()> {
                    // SAFETY: the caller keeps the library's contract.
                    let code = unsafe { (self.$name)($($arg),*) };
                    if code == 0 {
                        return Ok(());
                    }
                    let call = stringify!($name);
                    Err($crate::error::Error::Library { call, code, text: self.describe(code) })
                }
            )*
        }
    };
}
pub(crate) use library_functions;
