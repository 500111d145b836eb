//! Measures the figures that Retake promises, prints a table, and writes `target/bench.json` (name → value and unit).
//!
//! Medians of several rounds; each ratio is measured in one run. Nothing here fails on a slow machine: a figure beside
//! its bound is for people to judge. `cargo bench -p retake-tests -- NAME…` runs only the groups whose name contains one.

mod decision;
mod journal;
mod load;
mod parked;
mod retry;
mod sse;
mod start;
mod swap;

use serde_json::{Map, json};
use std::path::PathBuf;

/// One measured figure.
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// What the value should be at most, where there is a promise.
    pub bound: Option<f64>,
}

impl Figure {
    pub fn new(name: &'static str, value: f64, unit: &'static str) -> Figure {
        Figure { name, value, unit, bound: None }
    }

    pub fn at_most(self, bound: f64) -> Figure {
        Figure { bound: Some(bound), ..self }
    }
}

/// The middle value.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value below which this part of all values lies.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

type Group = (&'static str, fn() -> Vec<Figure>);

const GROUPS: [Group; 8] = [
    ("decision", decision::figures),
    ("retry", retry::figures),
    ("parked", parked::figures),
    ("start", start::figures),
    ("swap", swap::figures),
    ("load", load::figures),
    ("journal", journal::figures),
    ("sse", sse::figures),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let mut figures = Vec::new();
    for (name, measure) in GROUPS {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            eprintln!("measuring: {name} …");
            figures.extend(measure());
        }
    }
    println!("\n{:<64} {:>12} {:<6} {:>10}", "figure", "value", "", "at most");
    let mut json = Map::new();
    for figure in &figures {
        let bound = figure.bound.map_or_else(String::new, |bound| format!("{bound}"));
        let mark = if figure.bound.is_some_and(|bound| figure.value > bound) { "  MISSED" } else { "" };
        println!("{:<64} {:>12.2} {:<6} {bound:>10}{mark}", figure.name, figure.value, figure.unit);
        json.insert(figure.name.into(), json!({ "value": figure.value, "unit": figure.unit, "atMost": figure.bound }));
    }
    let path = target_dir().join("bench.json");
    match std::fs::write(&path, format!("{:#}\n", serde_json::Value::Object(json))) {
        Ok(()) => println!("\nAlso in {}", path.display()),
        Err(error) => eprintln!("{} could not be written: {error}", path.display()),
    }
}

/// The target directory that this program was built in: `<target>/release/deps/figures-…`.
pub fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("the program's own path is known");
    program.ancestors().nth(3).expect("a bench lies three levels down in the target directory").to_owned()
}

/// A runtime as the command has it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts").block_on(future)
}

/// Resident memory of this process, in bytes.
pub fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has /proc");
    let pages: f64 = statm.split(' ').nth(1).expect("the second field").parse().expect("a number");
    pages * 4_096.0
}

/// The number of memory maps of this process. Slow when there are many.
pub fn maps() -> f64 {
    std::fs::read_to_string("/proc/self/maps").expect("Linux has /proc").lines().count() as f64
}
