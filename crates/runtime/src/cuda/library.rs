//! Libraries beside the driver that are used where they are there.

/// Where cuBLASLt is looked for, the newest first; one that is loaded already is found whatever its folder.
pub const CUBLAS_LT: &[&str] = if cfg!(windows) {
    &["cublasLt64_13.dll", "cublasLt64_12.dll"]
} else {
    &[
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "libcublasLt.so",
        "/usr/local/cuda/lib64/libcublasLt.so",
    ]
};

/// Those of the libraries that can be loaded, with their names.
pub(super) fn opened<'a>(
    libraries: &'a [&'a str],
) -> impl Iterator<Item = (&'a str, libloading::Library)> {
    libraries.iter().filter_map(|name| {
        // SAFETY: loading runs the library's own start-up code; the names given are the vendor's library.
        let library = unsafe { libloading::Library::new(*name) }.ok()?;
        Some((*name, library))
    })
}

/// The first of these libraries that can be loaded, and the version that it says it is.
pub fn cublas_lt(libraries: &[&str]) -> Option<(String, usize)> {
    opened(libraries).find_map(|(name, library)| {
        // SAFETY: the type of the function is the one that the vendor's documentation gives it.
        let version = unsafe { library.get::<extern "C" fn() -> usize>("cublasLtGetVersion") };
        Some((name.to_owned(), version.ok()?()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_one_is_nothing() {
        assert_eq!(cublas_lt(&["liboxyfuel-no-such-library.so"]), None);
        assert_eq!(cublas_lt(&["libc.so.6"]), None);
    }
}
