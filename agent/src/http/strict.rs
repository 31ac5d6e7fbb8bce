//! JSON as it was given: an object that has a key twice is refused, since one of the two would be dropped without a word.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value of which no object has a key twice.
#[derive(Debug)]
pub(super) struct Strict(pub(super) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AsGiven).map(Self)
    }
}

struct AsGiven;

impl<'de> Visitor<'de> for AsGiven {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = given.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = given.next_key::<String>()? {
            let Strict(value) = given.next_value()?;
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the field {key:?} is given twice")));
            }
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_every_field_once_is_taken_as_it_is() {
        for json in [
            "null",
            "-1",
            "18446744073709551615",
            "1.5",
            "\"\\u00e9\"",
            "[true,{\"a\":{\"a\":[]},\"b\":{\"a\":1}}]",
        ] {
            let Strict(given) = serde_json::from_str(json).unwrap();
            assert_eq!(given, serde_json::from_str::<Value>(json).unwrap());
        }
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused_by_its_name() {
        for json in ["{\"a\":1,\"b\":2,\"a\":1}", "[{\"b\":{\"a\":1,\"\\u0061\":2}}]"] {
            let error = serde_json::from_str::<Strict>(json).unwrap_err();
            assert!(error.to_string().contains("the field \"a\" is given twice"), "{error}");
        }
    }
}
