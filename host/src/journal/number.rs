//! Numbers in JSON. Milliseconds are written as ECMAScript writes them: `500`, not `500.0`; and since JSON does not tell
//! the two apart, a whole number is read from either.

use crate::llm::policy::MAX_SAFE_INTEGER;
use serde::{
    Deserialize, Deserializer, Serializer,
    de::{self, Error},
};
use std::fmt;

/// Writes a whole number below 2^53 without a fraction, and anything else as the shortest text that reads back.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && *value >= 0.0 && *value < 9_007_199_254_740_992.0 {
        serializer.serialize_u64(*value as u64)
    } else {
        serializer.serialize_f64(*value)
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    f64::deserialize(deserializer)
}

/// The same for a value that may be absent.
pub mod option {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<f64>::deserialize(deserializer)
    }
}

/// Reads a whole number, `3` or `3.0`.
pub fn whole<'de, T: TryFrom<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Whole::deserialize(deserializer)?.fit()
}

/// The same for a value that may be absent.
pub fn whole_option<'de, T: TryFrom<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::<Whole>::deserialize(deserializer)?.map(Whole::fit).transpose()
}

#[derive(Clone, Copy)]
struct Whole(u64);

impl Whole {
    fn fit<T: TryFrom<u64>, E: Error>(self) -> Result<T, E> {
        T::try_from(self.0).map_err(|_| E::custom(format!("{} is too large", self.0)))
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                if number.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER as f64).contains(&number) {
                    Ok(Whole(number as u64))
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(number), &self))
                }
            }
        }
        deserializer.deserialize_u64(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "whole")]
        one: u64,
        #[serde(default, deserialize_with = "whole_option")]
        other: Option<u16>,
    }

    #[test]
    fn a_whole_number_is_read_with_or_without_its_point_and_nothing_else_is() {
        let read = |text: &str| serde_json::from_str::<Numbers>(text).ok().map(|numbers| (numbers.one, numbers.other));
        assert_eq!(read(r#"{"one":3,"other":503}"#), Some((3, Some(503))));
        assert_eq!(read(r#"{"one":3.0,"other":5.03e2}"#), Some((3, Some(503))));
        assert_eq!(read(r#"{"one":0}"#), Some((0, None)));
        for wrong in
            [r#"{"one":1.5}"#, r#"{"one":-1}"#, r#"{"one":"3"}"#, r#"{"one":1e300}"#, r#"{"one":1,"other":65536}"#]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
