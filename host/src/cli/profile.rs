//! `retake profile`: what a profile is composed of, and whether it is right.

use super::{
    Exit, Global,
    run::ProfileArgs,
    runtime,
    stdout::{print, print_line},
};
use crate::profile::{ComposedProfile, ProfileRef, check, compose, to_json, to_text};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(super) enum ProfileCommand {
    /// Print the composed rows, the layer that set each value, and each route's effective policy.
    Show(ShowArgs),
    /// Check a profile without running it.
    Check(CheckArgs),
}

#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// A profile.yml, a directory that holds one, or a profile's name.
    #[arg(value_name = "FILE")]
    profile: String,
    /// A patch file that is laid over everything else; may be given several times.
    #[arg(long = "patch", value_name = "FILE")]
    patches: Vec<PathBuf>,
}

pub(super) async fn run(global: &Global, command: ProfileCommand) -> anyhow::Result<Exit> {
    let home = global.home()?;
    match command {
        ProfileCommand::Show(args) => {
            let profile = args.profile.compose(&home)?;
            if args.json {
                print_line(&format!("{:#}", to_json(&profile)))?;
            } else {
                print(&to_text(&profile))?;
            }
        }
        ProfileCommand::Check(args) => {
            let profile = compose(&home, &ProfileRef::parse(&args.profile)?, &args.patches)?;
            for warning in &profile.warnings {
                print_line(&format!("warning: {warning}"))?;
            }
            check(&profile, &runtime(Some(home.cache_dir()))?).await?;
            print_line(&format!("{} is valid: {}.", profile.file.display(), inventory(&profile)))?;
        }
    }
    Ok(Exit::Completed)
}

/// What a profile holds, counted.
fn inventory(profile: &ComposedProfile) -> String {
    let own_rows = || profile.providers.iter().flat_map(|provider| provider.classify.rows());
    let counted = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let mut parts = vec![
        counted(profile.providers.len(), "provider", "providers"),
        counted(profile.entries.len(), "entry", "entries"),
    ];
    let (rows, fixtures) = (own_rows().count(), own_rows().filter(|row| row.fixture.is_some()).count());
    if rows > 0 {
        parts.push(counted(rows, "row of classification", "rows of classification"));
        parts.push(counted(fixtures, "fixture", "fixtures"));
    }
    parts.join(", ")
}
