//! Points in time as people read them.

/// `2026-11-29 21:36:40Z` of milliseconds since the Unix epoch.
pub(super) fn utc(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// Year, month and day of the Gregorian calendar, of days since 1970-01-01. Years are counted from March, so that a
/// leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let from_march_of_0 = days + 719_468;
    let era = from_march_of_0 / 146_097;
    let of_era = from_march_of_0 % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// `1.2 s`, `3 min 20 s`, `2 h 5 min` of milliseconds.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_utc_with_leap_days() {
        assert_eq!(utc(0), "1970-01-01 00:00:00Z");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59Z");
        assert_eq!(utc(951_868_800_000), "2000-03-01 00:00:00Z");
        assert_eq!(utc(1_709_210_096_000), "2024-02-29 12:34:56Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01 00:00:00Z");
    }

    #[test]
    fn a_span_is_told_in_its_own_unit() {
        assert_eq!((span(1_249), span(200_000)), ("1.2 s".into(), "3 min 20 s".into()));
        assert_eq!(span(7_500_000), "2 h 5 min");
    }
}
