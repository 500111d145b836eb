//! The shell, and the look around.

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod bindings {
    wit_bindgen::generate!({ path: ["../../../wit", "wit"], world: "retake:wasi-user/wasi-user", generate_all });
}

use bindings::{
    exports::retake::executor::executor::{Guest, Manifest, Problem},
    retake::executor::{
        types::{Decision, FailedStep},
        waterfall,
    },
    wasi::{
        cli::{environment, stdout},
        filesystem::preopens,
    },
};

struct WasiUser;

bindings::export!(WasiUser with_types_in bindings);

impl Guest for WasiUser {
    fn describe() -> Manifest {
        Manifest {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: env!("CARGO_PKG_DESCRIPTION").to_owned(),
            config_schema: r#"{"type": "object"}"#.to_owned(),
        }
    }

    fn validate(_config_json: String) -> Result<(), Vec<Problem>> {
        Ok(())
    }

    fn request_error(step: FailedStep) -> Result<Decision, String> {
        let line = format!("{} failed with {}\n", step.provider, step.failure.code);
        let written = stdout::get_stdout().blocking_write_and_flush(line.as_bytes());
        let mut found = Vec::new();
        found.extend(environment::get_environment().into_iter().map(|(name, _)| format!("variable {name}")));
        found.extend(environment::get_arguments().into_iter().map(|argument| format!("argument {argument}")));
        found.extend(preopens::get_directories().into_iter().map(|(_, path)| format!("directory {path}")));
        if written.is_err() {
            found.push("a stdout that refuses a line".to_owned());
        }
        if found.is_empty() { waterfall::next() } else { Err(format!("found {}", found.join(", "))) }
    }
}
