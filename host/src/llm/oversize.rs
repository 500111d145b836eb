//! Whether a provider says that a request is larger than its limit, so that it fails however long one waits.
//!
//! A pure reading. Called by the adapters for a refused request.

/// A request, and the limit that it exceeds; in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oversize {
    pub(super) asked: u64,
    pub(super) limit: u64,
}

impl Oversize {
    /// Reads a refusal. `estimate` is our own guess at the request's tokens, and `limit` a limit that stands in a
    /// header.
    ///
    /// Two ways of saying it are known: `Limit 30000, Requested 40000`, which gives both numbers, and `would exceed
    /// your rate limit of 80,000 input tokens per minute`, which is also said of a small request after others; there
    /// the estimate decides.
    pub(super) fn read(message: &str, limit: Option<u64>, estimate: u64) -> Option<Self> {
        let message = message.to_lowercase();
        let after = |lead: &str| {
            let mut rests = message.split(lead).skip(1);
            rests.find_map(|rest| leading_number(rest.trim_start_matches([' ', ':', '='])))
        };
        if let Some((limit, asked)) = after("limit ").or_else(|| after("limit:")).zip(after("requested")) {
            // `Used 29000` beside it says that others have spent it: then a wait does help.
            return (asked > limit).then_some(Oversize { asked, limit });
        }
        if !message.contains("would exceed") {
            return None;
        }
        let (before, _) = message.split_once("input tokens per minute")?;
        Self::by_estimate(trailing_number(before).or(limit)?, estimate)
    }

    /// Compares a limit of tokens that the provider states with our own guess.
    pub(super) fn by_estimate(limit: u64, estimate: u64) -> Option<Self> {
        (estimate > limit).then_some(Oversize { asked: estimate, limit })
    }
}

/// The number at the end of a text.
fn trailing_number(text: &str) -> Option<u64> {
    let text = text.trim_end();
    let start = text.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '_')).len();
    leading_number(&text[start..])
}

/// The number at the start of a text; commas and underscores group its digits.
fn leading_number(text: &str) -> Option<u64> {
    let digits: String = text
        .chars()
        .take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '_'))
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_beyond_the_limit_is_told_from_a_window_that_others_have_filled() {
        let both = "Request too large for acme-1 on tokens per min (TPM): Limit 30000, Requested 40,000.";
        assert_eq!(Oversize::read(both, None, 0), Some(Oversize { asked: 40_000, limit: 30_000 }));
        let filled = "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000, Requested 4000.";
        assert_eq!(Oversize::read(filled, None, 99_000), None);
        let stated = "This request would exceed your organization's rate limit of 80,000 input tokens per minute.";
        assert_eq!(Oversize::read(stated, None, 95_000), Some(Oversize { asked: 95_000, limit: 80_000 }));
        assert_eq!(Oversize::read(stated, None, 500), None);
        let twice = "It would exceed the rate limit of acme, a limit of 80,000 input tokens per minute.";
        assert_eq!(Oversize::read(twice, None, 95_000), Some(Oversize { asked: 95_000, limit: 80_000 }));
        let named =
            "This request would exceed the rate limit for your organization (id) of 80,000 input tokens per minute.";
        assert_eq!(Oversize::read(named, Some(1), 95_000), Some(Oversize { asked: 95_000, limit: 80_000 }));
        assert_eq!(Oversize::read(named, Some(1), 80_000), None);
        let unstated = "This request would exceed your rate limit for input tokens per minute.";
        assert_eq!(Oversize::read(unstated, None, 95_000), None);
        assert_eq!(Oversize::read(unstated, Some(40_000), 95_000), Some(Oversize { asked: 95_000, limit: 40_000 }));
    }

    #[test]
    fn other_words_and_numbers_say_nothing() {
        for message in ["", "limit: 0", "limit of input tokens per minute", "Limit 5, requested some", "requested 9"] {
            assert_eq!(Oversize::read(message, None, u64::MAX), None, "{message}");
        }
        assert_eq!(Oversize::read("Limit 99999999999999999999, Requested 7", None, 1), None);
    }
}
