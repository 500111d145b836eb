//! The settings: their defaults, their bounds, and every problem of a configuration at once.

use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// The JSON Schema (draft 2020-12) of the settings. It cannot say that `initialDelayMs` is at most `maxDelayMs`.
pub const SCHEMA: &str = include_str!("schema.json");

/// The codes that may be selected.
pub const CODES: [&str; 10] = [
    "EMPTY_RESPONSE",
    "RATE_LIMIT",
    "SERVER",
    "TIMEOUT",
    "TRANSPORT",
    "AUTH",
    "QUOTA",
    "INVALID_REQUEST",
    "PROTOCOL",
    "CONTEXT_OVERFLOW",
];

/// How many of [`CODES`], from the first, are selected by default.
pub const DEFAULT_CODES: usize = 5;

/// The longest timer that the host accepts, in milliseconds.
const MAX_TIMER_MS: u64 = 2_147_483_647;

/// The settings, complete and within bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// When false, the built-in policy applies instead.
    pub enabled: bool,
    pub mode: Mode,
    /// 0 to 1000.
    pub max_retries: u64,
    pub strategy: Strategy,
    /// Whole milliseconds, 1 to 3,600,000, at most `max_delay_ms`.
    pub initial_delay_ms: u64,
    /// Whole milliseconds, at most 2^31 - 1.
    pub max_delay_ms: u64,
    /// 1 to 100; only the exponential strategy uses it.
    pub multiplier: f64,
    /// 0 to 1.
    pub jitter_ratio: f64,
    /// Not empty, of [`CODES`], no duplicates.
    pub retryable_codes: Vec<String>,
    pub respect_retry_after: bool,
}

/// Who decides whether there is a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The limit stands, unless the provider declares that there is none.
    Inherit,
    /// There is none.
    Always,
}

/// How the wait grows from retry to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Fixed,
    Linear,
    Exponential,
}

impl Strategy {
    /// The name in settings and keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Fixed => "fixed",
            Strategy::Linear => "linear",
            Strategy::Exponential => "exponential",
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            enabled: true,
            mode: Mode::Inherit,
            max_retries: 10,
            strategy: Strategy::Exponential,
            initial_delay_ms: 1_000,
            max_delay_ms: 60_000,
            multiplier: 2.0,
            jitter_ratio: 0.1,
            retryable_codes: CODES[..DEFAULT_CODES].iter().map(|code| (*code).to_owned()).collect(),
            respect_retry_after: true,
        }
    }
}

/// Something wrong in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, for instance `retryableCodes[2]`; empty for the whole.
    pub path: String,
    pub message: String,
}

impl Config {
    /// Reads settings; what is not named has its default. Errors: every problem, in the order of the fields.
    pub fn parse(json: &str) -> Result<Self, Vec<Problem>> {
        let whole = |message| vec![Problem { path: String::new(), message }];
        let fields = match serde_json::from_str(json) {
            Ok(Value::Object(fields)) => fields,
            Ok(other) => return Err(whole(format!("The configuration is {other}; it must be an object."))),
            Err(error) => return Err(whole(format!("The configuration is not JSON: {error}."))),
        };
        let mut reader = Reader { fields, problems: Vec::new() };
        let config = reader.read();
        reader.refuse_the_rest();
        if reader.problems.is_empty() { Ok(config) } else { Err(reader.problems) }
    }
}

/// Takes one field after the other, and keeps a default where a value is wrong, so that it finds all problems.
struct Reader {
    fields: Map<String, Value>,
    problems: Vec<Problem>,
}

impl Reader {
    fn read(&mut self) -> Config {
        let default = Config::default();
        let config = Config {
            enabled: self.boolean("enabled", default.enabled),
            mode: self.choice("mode", &[("inherit", Mode::Inherit), ("always", Mode::Always)], default.mode),
            max_retries: self.integer("maxRetries", 0, 1_000, default.max_retries),
            strategy: self.choice(
                "strategy",
                &[Strategy::Fixed, Strategy::Linear, Strategy::Exponential].map(|choice| (choice.as_str(), choice)),
                default.strategy,
            ),
            initial_delay_ms: self.integer("initialDelayMs", 1, 3_600_000, default.initial_delay_ms),
            max_delay_ms: self.integer("maxDelayMs", 1, MAX_TIMER_MS, default.max_delay_ms),
            multiplier: self.number("multiplier", 1.0, 100.0, default.multiplier),
            jitter_ratio: self.number("jitterRatio", 0.0, 1.0, default.jitter_ratio),
            retryable_codes: self.codes("retryableCodes", default.retryable_codes),
            respect_retry_after: self.boolean("respectRetryAfter", default.respect_retry_after),
        };
        // Not when one of the two is wrong already: the default that stands in for it is nobody's wish.
        let delays_are_sound = !self.problems.iter().any(|problem| problem.path.ends_with("DelayMs"));
        if delays_are_sound && config.initial_delay_ms > config.max_delay_ms {
            self.problem(
                "initialDelayMs",
                format!(
                    "initialDelayMs is {}; it must be at most maxDelayMs, which is {}.",
                    config.initial_delay_ms, config.max_delay_ms
                ),
            );
        }
        config
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        match self.fields.remove(name) {
            None => default,
            Some(Value::Bool(value)) => value,
            Some(other) => self.wrong(name, &other, "true or false", default),
        }
    }

    fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)], default: T) -> T {
        let Some(value) = self.fields.remove(name) else {
            return default;
        };
        let chosen = value.as_str().and_then(|text| choices.iter().find(|(choice, _)| *choice == text));
        match chosen {
            Some((_, choice)) => *choice,
            None => {
                let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
                self.wrong(name, &value, &format!("one of {}", names.join(", ")), default)
            }
        }
    }

    fn integer(&mut self, name: &str, min: u64, max: u64, default: u64) -> u64 {
        let Some(value) = self.fields.remove(name) else {
            return default;
        };
        // `10.0` is an integer too, as JSON Schema has it. The bounds are far below 2^53, so the cast is exact.
        match value.as_f64() {
            Some(number) if number.fract() == 0.0 && number >= min as f64 && number <= max as f64 => number as u64,
            _ => self.wrong(name, &value, &format!("a whole number from {min} to {max}"), default),
        }
    }

    fn number(&mut self, name: &str, min: f64, max: f64, default: f64) -> f64 {
        let Some(value) = self.fields.remove(name) else {
            return default;
        };
        match value.as_f64() {
            // Adding 0 makes 0 of -0, which would be another key for the same behaviour.
            Some(number) if (min..=max).contains(&number) => number + 0.0,
            _ => self.wrong(name, &value, &format!("a number from {min} to {max}"), default),
        }
    }

    fn codes(&mut self, name: &str, default: Vec<String>) -> Vec<String> {
        let items = match self.fields.remove(name) {
            None => return default,
            Some(Value::Array(items)) if !items.is_empty() => items,
            Some(other) => return self.wrong(name, &other, "a list of at least one failure code", default),
        };
        let mut codes: Vec<String> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{name}[{index}]");
            match item.as_str().filter(|code| CODES.contains(code)) {
                Some(code) if codes.iter().any(|earlier| earlier == code) => {
                    self.problem(
                        &path,
                        format!("{path} is {code:?}, which the list already has; name each code once."),
                    );
                }
                Some(code) => codes.push(code.to_owned()),
                None => self.wrong(&path, item, &format!("one of {}", CODES.join(", ")), ()),
            }
        }
        codes
    }

    fn refuse_the_rest(&mut self) {
        for key in core::mem::take(&mut self.fields).keys() {
            self.problem(key, format!("Unknown key `{key}`: retry-strategy has no such setting."));
        }
    }

    fn wrong<T>(&mut self, path: &str, value: &Value, right: &str, default: T) -> T {
        self.problem(path, format!("{path} is {value}; it must be {right}."));
        default
    }

    fn problem(&mut self, path: &str, message: String) {
        self.problems.push(Problem { path: path.to_owned(), message });
    }
}
