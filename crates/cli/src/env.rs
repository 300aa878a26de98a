//! The environment and the flags become options, here and nowhere else.

use std::path::PathBuf;

use oxyfuel_base::{Result, err};
use oxyfuel_engine::Options;

use crate::Common;

/// What to say on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    pub compile: bool,
    pub cache: bool,
}

/// Options from the environment alone.
pub fn variables() -> Result<Options> {
    Options::from_variables(|name| std::env::var_os(name))
}

/// Options from the environment, overridden by flags.
pub fn options(common: &Common) -> Result<Options> {
    let mut options = Options {
        threads: oxyfuel_runtime::pool::default_threads(),
        ..variables()?
    };
    if let Some(target) = &common.target {
        options.target.clone_from(target);
    }
    if let Some(threads) = common.threads {
        if threads == 0 {
            return Err(err!(InvalidOption, "0 threads cannot work")
                .help("leave --threads out for all cores"));
        }
        options.threads = threads;
    }
    for setting in &common.options {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(err!(
                InvalidOption,
                "`{setting}` is not of the form name=value"
            ));
        };
        options.set(name.trim(), value.trim())?;
    }
    Ok(options)
}

/// `OXYFUEL_LOG`: words with commas between them.
pub fn log() -> Result<Log> {
    let mut log = Log::default();
    let value = std::env::var("OXYFUEL_LOG").unwrap_or_default();
    for word in value.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        match word {
            "compile" => log.compile = true,
            "cache" => log.cache = true,
            _ => {
                return Err(err!(InvalidOption, "OXYFUEL_LOG knows no `{word}`")
                    .help("it takes compile, cache, or both with a comma"));
            }
        }
    }
    Ok(log)
}

/// Where plans are kept when nobody says: the user's cache directory.
pub fn usual_cache_dir() -> Option<PathBuf> {
    directory("OXYFUEL_CACHE_DIR")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("oxyfuel")))
        .or_else(|| Some(directory("HOME")?.join(".cache/oxyfuel")))
}

/// Whether a terminal may be given colours and a moving bar.
pub fn plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
}

fn directory(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
}
