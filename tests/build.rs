//! Builds the guests of the tests from their source, into `OUT_DIR`: `misbehave.wasm` and `wasi_user.wasm`; and makes
//! one test of every file in `cases/`, so that a case is added by adding a file.

use retake_toolchain::build_script;
use std::{error::Error, fs, path::Path, process::ExitCode};

const GUESTS: [&str; 2] = ["misbehave", "wasi-user"];

fn main() -> ExitCode {
    build_script::run(|tests, out_dir| {
        for changing in ["../wit", "../Cargo.lock", "guests", "cases"] {
            println!("cargo::rerun-if-changed={}", tests.join(changing).display());
        }
        fs::write(out_dir.join("cases.rs"), cases(&tests.join("cases"))?)?;
        build_script::embed(GUESTS.map(|guest| tests.join("guests").join(guest)), out_dir)
    })
}

/// The source of one test for each case.
fn cases(dir: &Path) -> Result<String, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yml") {
            let name = path.file_stem().and_then(|name| name.to_str()).ok_or("a case has a name that is not UTF-8")?;
            if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                return Err(format!("the case {name:?} must be named in small letters, digits and `_`").into());
            }
            names.push(name.to_owned());
        }
    }
    names.sort();
    let test = |name: &String| {
        format!(
            "#[tokio::test(flavor = \"multi_thread\", worker_threads = 2)]\nasync fn {name}() {{\n    replay({name:?}, include_str!({:?})).await;\n}}\n",
            dir.join(format!("{name}.yml"))
        )
    };
    Ok(names.iter().map(test).collect())
}
