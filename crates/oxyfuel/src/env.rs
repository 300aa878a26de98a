//! The environment, read where a program asks for it and nowhere else.

use crate::Options;
use crate::tensor::located;
use oxyfuel_base::Result;
use std::panic::Location;

/// Options as the variables of the environment say:
///
/// | variable | option |
/// |---|---|
/// | `OXYFUEL_CACHE_DIR` | [`cache_dir`](Options::cache_dir): where compiled plans are kept |
/// | `OXYFUEL_CACHE_LIMIT` | [`cache_limit`](Options::cache_limit): how many bytes they may take |
/// | `OXYFUEL_CUDAGRAPH_MEMORY_LIMIT` | [`cudagraph_memory_limit`](Options::cudagraph_memory_limit): how many bytes all recordings of a GPU may take |
/// | `OXYFUEL_LAUNCH_BLOCKING` | [`launch_blocking`](Options::launch_blocking): `1` waits for the device after each kernel |
/// | `OXYFUEL_MEMORY_LIMIT` | [`memory_limit`](Options::memory_limit): how many bytes a call may take |
/// | `OXYFUEL_NUM_THREADS`, else `OMP_NUM_THREADS` | [`threads`](Options::threads) |
/// | `OXYFUEL_TRACE` | [`trace_dir`](Options::trace_dir): where every stage of every compile is written |
/// | `OXYFUEL_VERIFY` | [`verify`](Options::verify): `1` compares every kernel with the interpreter |
///
/// [`Options::default`] knows nothing of them.
///
/// ```
/// # fn main() -> oxyfuel::Result<()> {
/// let options = oxyfuel::options_from_env()?;
/// let f = oxyfuel::compile(|x: &oxyfuel::Tensor| x.relu(), options)?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn options_from_env() -> Result<Options> {
    let caller = Location::caller();
    let mut options = Options::from_variables(|name| std::env::var_os(name))
        .map_err(|error| located(error, caller))?;
    let asked = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if asked("OXYFUEL_NUM_THREADS") || asked("OMP_NUM_THREADS") {
        options.threads = oxyfuel_runtime::pool::default_threads();
    }
    Ok(options)
}
