//! `oxyfuel cache`: the plans on disk.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use oxyfuel_base::{Result, err};
use oxyfuel_engine::Target;
use oxyfuel_engine::cache::{Cache, CacheInfo, Found, Label, Miss, Tidy, plan_key};
use serde_json::json;

use crate::{Common, Source, env, show};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  oxyfuel cache info
  oxyfuel cache explain my.graph
  oxyfuel cache gc --unused-for 30d --limit 500M
  oxyfuel cache export warm.oxc        # on a machine of the same kind: oxyfuel cache import warm.oxc
  OXYFUEL_CACHE_DIR=/fast/disk oxyfuel cache clear")]
pub struct CacheArgs {
    #[command(subcommand)]
    command: CacheCommand,
    /// Print data instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum CacheCommand {
    /// Where it is and what is in it
    Info,
    /// Whether a graph's plan is in it, and if not, why not
    Explain(Box<ExplainArgs>),
    /// Delete what this build cannot use, what was not used for long, and what is too much
    Gc {
        /// Delete entries not used for this long (30d, 12h, 90m)
        #[arg(long, value_name = "TIME", value_parser = duration)]
        unused_for: Option<Duration>,
        /// Delete the least recently used until the rest fits (500M, 2G, or bytes)
        #[arg(long, value_name = "BYTES", value_parser = size)]
        limit: Option<u64>,
    },
    /// Delete everything in it
    Clear,
    /// Write its usable entries to one file
    Export { file: PathBuf },
    /// Take the entries of such a file: machine code, so only from whom you trust
    Import { file: PathBuf },
    /// Print its directory
    Dir,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    common: Common,
}

pub fn cache(args: &CacheArgs) -> Result<()> {
    let dir = directory()?;
    let limit = env::variables()?.cache_limit;
    let open = || Cache::open(&dir, limit);
    let place = dir.display();
    let say = |data: serde_json::Value, text: String| {
        println!("{}", if args.json { data.to_string() } else { text });
    };
    match &args.command {
        CacheCommand::Dir => say(json!({ "dir": dir }), place.to_string()),
        CacheCommand::Info => {
            // Looking at a cache does not make one.
            let info = match dir.exists() {
                true => open()?.info()?,
                false => CacheInfo {
                    dir: dir.clone(),
                    entries: 0,
                    bytes: 0,
                    limit,
                    usable: 0,
                },
            };
            let text = format!(
                "{place}: {} entries ({} of this build), {} of {} bytes",
                info.entries, info.usable, info.bytes, info.limit
            );
            say(json!(info), text);
        }
        CacheCommand::Explain(what) => {
            let options = env::options(&what.common)?;
            let graph = show::graph(&what.source)?;
            let target = Target::host(&options)?.desc;
            let cache = open()?;
            let label = Label::new(&graph, &target, &options)?;
            let (hit, why) = match cache.get(&plan_key(&graph, &target, &options)?) {
                Found::Entry(_) => (true, "its plan is in the cache".to_owned()),
                Found::Nothing => (
                    false,
                    cache.why_missed(&Miss::of(label.clone()))?.to_string(),
                ),
                Found::Unusable(error) => (
                    false,
                    format!("its entry cannot be used: {}", error.message),
                ),
            };
            let text = format!(
                "{}: {}: {why}",
                graph.name,
                if hit { "hit" } else { "miss" }
            );
            say(json!({ "hit": hit, "why": why, "label": label }), text);
        }
        CacheCommand::Gc { unused_for, limit } => {
            let done = open()?.tidy(&Tidy {
                unused_for: *unused_for,
                limit: *limit,
            })?;
            let text = format!(
                "{} entries deleted from {place} ({} unusable, {} unused, {} over the limit), {} bytes; {} kept",
                done.unusable + done.unused + done.over_limit,
                done.unusable,
                done.unused,
                done.over_limit,
                done.bytes,
                done.kept
            );
            say(json!(done), text);
        }
        CacheCommand::Clear => {
            let entries = match dir.exists() {
                true => open()?.clear()?,
                false => 0,
            };
            let text = format!("{entries} entries deleted from {place}");
            say(json!({ "deleted": entries }), text);
        }
        CacheCommand::Export { file } => {
            let entries = open()?.export(file)?;
            let text = format!("{entries} entries written to {}", file.display());
            say(json!({ "entries": entries }), text);
        }
        CacheCommand::Import { file } => {
            let done = open()?.import(file)?;
            let text = format!(
                "{} entries taken from {}, {} of other builds or broken left out",
                done.entries,
                file.display(),
                done.unusable
            );
            say(json!(done), text);
        }
    }
    Ok(())
}

/// A number and a unit, where the table has it.
fn with_unit(text: &str, units: &[(&str, u64)]) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[digits.len()..];
    let known: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    let factor = units.iter().find(|(name, _)| *name == unit);
    let number: Option<u64> = digits.parse().ok();
    match (number, factor) {
        (Some(number), Some((_, factor))) => number
            .checked_mul(*factor)
            .ok_or_else(|| format!("`{text}` is too large")),
        _ => Err(format!(
            "`{text}` is not a number with one of {}",
            known.join(" ")
        )),
    }
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    with_unit(text, &units).map(Duration::from_secs)
}

fn size(text: &str) -> std::result::Result<u64, String> {
    with_unit(
        text,
        &[("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)],
    )
}

fn directory() -> Result<PathBuf> {
    env::usual_cache_dir().ok_or_else(|| {
        err!(
            CacheUnreadable,
            "there is no cache directory: neither OXYFUEL_CACHE_DIR nor HOME is set"
        )
    })
}
