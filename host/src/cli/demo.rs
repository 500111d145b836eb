//! `retake demo`: a failing provider, the waits, and the answer, without a key or a network.

use super::{
    Exit, Global,
    run::{ProfileArgs, start_host},
    terminal::{WaitLine, watch},
};
use crate::{
    agent::{Session, Target, TurnOutcome},
    env::Env,
};
use clap::Args;
use tokio_util::sync::CancellationToken;

#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// What to ask.
    #[arg(default_value = "name one prime", value_name = "PROMPT")]
    prompt: String,
}

pub(super) async fn run(global: &Global, args: DemoArgs) -> anyhow::Result<Exit> {
    let home = global.home()?;
    let profile = ProfileArgs { profile: "demo".into(), patches: Vec::new() }.compose(&home)?;
    let env = Env::system();
    let target = Target { provider: profile.model.provider.clone(), model: profile.model.model.clone() };
    let host = start_host(profile, &home, env.clone()).await?;
    eprintln!("A provider on loopback will fail as scripted; a WebAssembly component decides about each failure.");
    for activation in &host.agent.waterfall.current().activations {
        let identity = &activation.identity;
        eprintln!("Executor: {} {} ({})", identity.name, identity.version, identity.short_digest());
    }
    eprintln!("> {}", args.prompt);
    let id = env.entropy.uuid();
    let mut session = Session::open(&home.sessions_dir(), &id, target, None, &env)?;
    let (observer, events) = watch();
    session.journal.observe(observer);
    let shown = WaitLine::spawn(events);
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let outcome = host.agent.prompt(&mut session, &args.prompt, &cancel).await;
    drop(session);
    host.close().await;
    shown.await?;
    match outcome? {
        TurnOutcome::Answered { text, .. } => {
            println!("{text}");
            eprintln!("Every step of it is on disk: retake journal show {id}");
            Ok(Exit::Completed)
        }
        TurnOutcome::Failed { sentence, .. } => {
            eprintln!("error: {sentence}");
            Ok(Exit::Failed)
        }
        TurnOutcome::Cancelled => Ok(Exit::Cancelled),
    }
}
