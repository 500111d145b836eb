//! Makes one test of every file in `cases/`, so that a case is added by adding a file.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("cases");
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir)? {
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
    let tests: String = names
        .iter()
        .map(|name| {
            format!(
                "#[tokio::test(flavor = \"multi_thread\", worker_threads = 2)]\nasync fn {name}() {{\n    replay({name:?}, include_str!({:?})).await;\n}}\n",
                dir.join(format!("{name}.yml"))
            )
        })
        .collect();
    fs::write(Path::new(&env::var("OUT_DIR")?).join("cases.rs"), tests)?;
    Ok(())
}
