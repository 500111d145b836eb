//! The policy that follows from the settings and from what the provider declares: who is retried, how long each wait
//! is, and the key that groups retries of equal behaviour.

use crate::{
    config::{CODES, Config, DEFAULT_CODES, Mode, Strategy},
    data::Declared,
};

/// What applies to one failed step.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `None` when every failure is retried until success or cancel.
    pub limit: Option<Limit>,
    pub wait: Wait,
    /// Whether a wait that the provider asks for goes first.
    pub respect_retry_after: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub max_retries: u64,
    pub retryable_codes: Vec<String>,
}

/// How long each wait is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub strategy: Strategy,
    /// Whole milliseconds, at least 1.
    pub initial_delay_ms: f64,
    /// Whole milliseconds, at least `initial_delay_ms`.
    pub max_delay_ms: f64,
    pub multiplier: f64,
    pub jitter_ratio: f64,
}

impl Policy {
    /// The policy for a provider. A provider that declares `always` stays without a limit, whatever the settings say.
    pub fn resolve(config: &Config, declared: Declared) -> Self {
        let (limit, wait, mode, respect_retry_after) = if config.enabled {
            let limit = Limit { max_retries: config.max_retries, retryable_codes: config.retryable_codes.clone() };
            let wait = Wait {
                strategy: config.strategy,
                initial_delay_ms: config.initial_delay_ms as f64,
                max_delay_ms: config.max_delay_ms as f64,
                multiplier: config.multiplier,
                jitter_ratio: config.jitter_ratio,
            };
            (limit, wait, config.mode, config.respect_retry_after)
        } else {
            // Switched off means the policy that everybody has who sets nothing; never that nobody retries.
            let codes = CODES[..DEFAULT_CODES].iter().map(|code| (*code).to_owned()).collect();
            let limit = Limit { max_retries: 5, retryable_codes: codes };
            let wait = Wait {
                strategy: Strategy::Exponential,
                initial_delay_ms: 500.0,
                max_delay_ms: 10_000.0,
                multiplier: 2.0,
                jitter_ratio: 0.1,
            };
            (limit, wait, Mode::Inherit, true)
        };
        let unlimited = mode == Mode::Always || declared == Declared::Always;
        Policy { limit: (!unlimited).then_some(limit), wait, respect_retry_after }
    }

    /// A JSON array, in the order of the official executor's key and with the strategy and the multiplier behind it:
    /// retries of different curves never share a budget.
    pub fn key(&self) -> String {
        let head = match &self.limit {
            None => "\"always\"".to_owned(),
            Some(limit) => {
                let mut codes: Vec<&str> = limit.retryable_codes.iter().map(String::as_str).collect();
                codes.sort_unstable();
                // The codes are of a fixed set of plain words, so quotes are all the escaping there is.
                let codes: Vec<String> = codes.into_iter().map(|code| format!("\"{code}\"")).collect();
                format!("\"normal\",{},[{}]", limit.max_retries, codes.join(","))
            }
        };
        let Wait { strategy, initial_delay_ms, max_delay_ms, multiplier, jitter_ratio } = self.wait;
        let [initial, max, jitter, multiplier] = [initial_delay_ms, max_delay_ms, jitter_ratio, multiplier]
            .map(|value| ryu_js::Buffer::new().format(value).to_owned());
        format!("[{head},{initial},{max},{jitter},\"{}\",{multiplier}]", strategy.as_str())
    }
}

impl Wait {
    /// The wait before retry number `retry` (from 1), in whole milliseconds from 1 to `max_delay_ms`, for a random
    /// sample of `[0, 1)`.
    pub fn delay_ms(&self, retry: u64, random: f64) -> f64 {
        let base = match self.strategy {
            Strategy::Fixed => self.initial_delay_ms,
            Strategy::Linear => self.initial_delay_ms * retry as f64,
            // Beyond the 64th power only a multiplier close to 1 is still below the cap; there the wait stays.
            Strategy::Exponential => {
                self.initial_delay_ms * self.multiplier.powi(retry.saturating_sub(1).min(64) as i32)
            }
        }
        .min(self.max_delay_ms);
        let jittered = base * (1.0 - self.jitter_ratio + 2.0 * self.jitter_ratio * random);
        jittered.round().clamp(1.0, self.max_delay_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(strategy: Strategy) -> Wait {
        Wait { strategy, initial_delay_ms: 1_000.0, max_delay_ms: 60_000.0, multiplier: 2.0, jitter_ratio: 0.0 }
    }

    fn delays(wait: Wait) -> Vec<f64> {
        (1..=8).map(|retry| wait.delay_ms(retry, 0.5)).collect()
    }

    #[test]
    fn each_strategy_grows_as_it_says() {
        assert_eq!(delays(wait(Strategy::Fixed)), [1e3; 8]);
        assert_eq!(delays(wait(Strategy::Linear)), [1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3]);
        assert_eq!(delays(wait(Strategy::Exponential)), [1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 60e3, 60e3]);
    }

    #[test]
    fn the_multiplier_is_the_growth_of_the_exponential_wait_alone() {
        let tripled = |strategy| Wait { multiplier: 3.0, ..wait(strategy) };
        assert_eq!(delays(tripled(Strategy::Exponential))[..4], [1e3, 3e3, 9e3, 27e3]);
        assert_eq!(delays(tripled(Strategy::Linear)), delays(wait(Strategy::Linear)));
    }

    #[test]
    fn jitter_is_symmetric_and_the_cap_holds_after_it() {
        let jittered = Wait { jitter_ratio: 0.1, ..wait(Strategy::Fixed) };
        assert_eq!([0.0, 0.5, 1.0].map(|random| jittered.delay_ms(1, random)), [900.0, 1_000.0, 1_100.0]);
        let capped = Wait { max_delay_ms: 1_000.0, ..jittered };
        assert_eq!(capped.delay_ms(1, 1.0), 1_000.0);
    }

    #[test]
    fn a_wait_is_a_whole_number_of_at_least_one() {
        let short = Wait { initial_delay_ms: 1.0, jitter_ratio: 1.0, ..wait(Strategy::Fixed) };
        assert_eq!(short.delay_ms(1, 0.0), 1.0);
        let odd = Wait { initial_delay_ms: 333.0, jitter_ratio: 0.1, ..wait(Strategy::Fixed) };
        assert_eq!(odd.delay_ms(1, 0.3), 320.0, "319.68 is rounded");
    }

    #[test]
    fn a_very_late_retry_waits_the_cap_and_a_slow_growth_stops_at_the_64th_power() {
        assert_eq!(wait(Strategy::Exponential).delay_ms(u64::MAX, 0.5), 60_000.0);
        assert_eq!(wait(Strategy::Linear).delay_ms(u64::MAX, 0.5), 60_000.0);
        let slow = Wait { multiplier: 1.01, ..wait(Strategy::Exponential) };
        assert_eq!(slow.delay_ms(65, 0.5), slow.delay_ms(1_000, 0.5));
        assert!(slow.delay_ms(64, 0.5) < slow.delay_ms(65, 0.5));
    }

    #[test]
    fn the_default_settings_have_this_key() {
        let config = Config::default();
        assert_eq!(
            Policy::resolve(&config, Declared::Normal).key(),
            r#"["normal",10,["EMPTY_RESPONSE","RATE_LIMIT","SERVER","TIMEOUT","TRANSPORT"],1000,60000,0.1,"exponential",2]"#
        );
        assert_eq!(Policy::resolve(&config, Declared::Always).key(), r#"["always",1000,60000,0.1,"exponential",2]"#);
    }

    #[test]
    fn the_key_does_not_depend_on_the_order_of_the_codes() {
        let with =
            |codes: [&str; 2]| Config { retryable_codes: codes.map(str::to_owned).to_vec(), ..Config::default() };
        let [one, two] =
            [["SERVER", "AUTH"], ["AUTH", "SERVER"]].map(|codes| Policy::resolve(&with(codes), Declared::Normal).key());
        assert_eq!(one, two);
    }

    #[test]
    fn curves_never_share_a_key() {
        let key = |config: Config| Policy::resolve(&config, Declared::Normal).key();
        let base = key(Config::default());
        assert_ne!(key(Config { strategy: Strategy::Linear, ..Config::default() }), base);
        assert_ne!(key(Config { multiplier: 3.0, ..Config::default() }), base);
        assert_ne!(key(Config { max_retries: 3, ..Config::default() }), base);
    }

    #[test]
    fn always_has_no_limit_whoever_says_it() {
        let always = Config { mode: Mode::Always, ..Config::default() };
        assert_eq!(Policy::resolve(&always, Declared::Normal).limit, None);
        assert_eq!(Policy::resolve(&Config::default(), Declared::Always).limit, None);
        assert!(Policy::resolve(&Config::default(), Declared::Normal).limit.is_some());
    }

    #[test]
    fn disabled_means_the_built_in_policy() {
        let off = Config {
            enabled: false,
            mode: Mode::Always,
            max_retries: 0,
            strategy: Strategy::Fixed,
            respect_retry_after: false,
            ..Config::default()
        };
        let policy = Policy::resolve(&off, Declared::Normal);
        assert_eq!(
            policy.key(),
            r#"["normal",5,["EMPTY_RESPONSE","RATE_LIMIT","SERVER","TIMEOUT","TRANSPORT"],500,10000,0.1,"exponential",2]"#
        );
        assert!(policy.respect_retry_after);
        assert_eq!(Policy::resolve(&off, Declared::Always).key(), r#"["always",500,10000,0.1,"exponential",2]"#);
    }
}
