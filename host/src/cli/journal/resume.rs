//! `retake journal resume`: goes on with a failed turn that a crash interrupted, as `retake run --resume` does.

use crate::cli::{
    Exit, Global,
    run::{self, ProfileArgs, RunArgs},
};
use clap::Args;

#[derive(Args, Debug)]
pub(in crate::cli) struct ResumeArgs {
    /// The session's id.
    #[arg(value_name = "SESSION")]
    session: String,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Print every event as one line of JSON, and last a line of type `result`.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(global: &Global, args: ResumeArgs) -> anyhow::Result<Exit> {
    let run = RunArgs {
        prompts: Vec::new(),
        profile: args.profile,
        session: None,
        resume: Some(args.session),
        journal: None,
        json: args.json,
    };
    run::run(global, run).await
}
