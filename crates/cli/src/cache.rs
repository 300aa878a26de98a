//! `oxyfuel cache`: the plans on disk.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use oxyfuel_base::{Result, err};
use oxyfuel_engine::cache::{Cache, DEFAULT_LIMIT};

use crate::bench::json;
use crate::env;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  oxyfuel cache info
  OXYFUEL_CACHE_DIR=/fast/disk oxyfuel cache clear")]
pub struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Subcommand, Debug)]
enum CacheCommand {
    /// Where it is and what is in it
    Info {
        /// Print data instead of text
        #[arg(long)]
        json: bool,
    },
    /// Delete everything in it
    Clear,
    /// Print its directory
    Dir,
}

pub fn cache(args: &CacheArgs) -> Result<()> {
    let dir = directory()?;
    match args.command {
        CacheCommand::Dir => println!("{}", dir.display()),
        CacheCommand::Info { json: as_json } => {
            let info = if dir.exists() {
                Cache::open(&dir, DEFAULT_LIMIT)?.info()?
            } else {
                oxyfuel_engine::cache::CacheInfo {
                    dir: dir.clone(),
                    entries: 0,
                    bytes: 0,
                    limit: DEFAULT_LIMIT,
                }
            };
            if as_json {
                println!("{}", json(&info)?);
            } else {
                println!(
                    "{}: {} plans, {} of {} bytes",
                    dir.display(),
                    info.entries,
                    info.bytes,
                    info.limit
                );
            }
        }
        CacheCommand::Clear => {
            let entries = if dir.exists() {
                Cache::open(&dir, DEFAULT_LIMIT)?.clear()?
            } else {
                0
            };
            println!("{entries} entries deleted from {}", dir.display());
        }
    }
    Ok(())
}

fn directory() -> Result<PathBuf> {
    env::usual_cache_dir().ok_or_else(|| {
        err!(
            CacheUnreadable,
            "there is no cache directory: neither OXYFUEL_CACHE_DIR nor HOME is set"
        )
    })
}
