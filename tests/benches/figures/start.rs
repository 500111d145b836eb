//! `retake run`: from the start of the process to its first request, with a warm and with an empty compile cache.

use crate::{Figure, block_on, median, target_dir};
use retake::chaos::{ChaosOptions, ChaosServer, Script};
use std::{path::Path, process::Stdio, time::Instant};

pub fn figures() -> Vec<Figure> {
    let program = target_dir().join("release/retake");
    assert!(program.exists(), "{} is not built: run `make build` first", program.display());
    block_on(async {
        let server = ChaosServer::start(Script::parse("ok").expect("a script"), ChaosOptions::default())
            .await
            .expect("it listens");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let profile = dir.path().join("profile.yml");
        let text = format!(
            "model: {{ provider: p, model: m }}\nproviders:\n  - {{ provider: p, adapter: openai-chat, baseUrl: \"{}\" }}\n",
            server.base_url()
        );
        std::fs::write(&profile, text).expect("it can be written");
        let mut cold = Vec::new();
        for round in 0..7 {
            let home = dir.path().join(format!("cold-{round}"));
            cold.push(first_request(&program, &profile, &home, &server).await);
        }
        let home = dir.path().join("warm");
        first_request(&program, &profile, &home, &server).await;
        let mut warm = Vec::new();
        for _ in 0..21 {
            warm.push(first_request(&program, &profile, &home, &server).await);
        }
        vec![
            Figure::new("start to first request, compile cache warm", median(&mut warm), "ms").at_most(60.0),
            Figure::new("start to first request, compile cache cold", median(&mut cold), "ms").at_most(600.0),
        ]
    })
}

/// Milliseconds from the start of the process to the arrival of its request.
async fn first_request(program: &Path, profile: &Path, home: &Path, server: &ChaosServer) -> f64 {
    let before = server.count();
    let begun = Instant::now();
    let mut child = tokio::process::Command::new(program)
        .args(["run", "--home"])
        .arg(home)
        .arg("--profile")
        .arg(profile)
        .arg("hi")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    server.wait_for_requests(before + 1).await;
    let arrived = server.requests().last().expect("it arrived").arrived.into_std();
    assert!(child.wait().await.expect("it ends").success());
    (arrived - begun).as_secs_f64() * 1e3
}
