//! Describes types as a deserializer sees them: what bytes stand for them when the encoding does not describe itself.

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Any failure: a type needs something that no type had so far.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TraceError(String);

impl Error for TraceError {
    fn custom<T: std::fmt::Display>(what: T) -> Self {
        Self(what.to_string())
    }
}

/// The variants of an enum, each once it was seen whole: `Some` of what it carries.
struct Variants {
    names: &'static [&'static str],
    seen: Vec<Option<String>>,
}

/// See the module. A pass over a type sees one variant of each enum in it; there are as many passes as there is something new.
#[derive(Default)]
pub(crate) struct Tracer {
    structs: BTreeMap<&'static str, String>,
    enums: BTreeMap<&'static str, Variants>,
    /// Enums of which a variant is being visited, the innermost last.
    inside: Vec<&'static str>,
    /// Of the value that was made last.
    last: String,
    /// A variant in it was not seen yet.
    is_open: bool,
}

impl Tracer {
    /// Traces a type with all that it consists of.
    pub(crate) fn trace<'de, T: serde::Deserialize<'de>>(&mut self) {
        loop {
            self.is_open = false;
            T::deserialize(&mut *self).expect("the type can be traced");
            if !self.is_open {
                return;
            }
        }
    }

    /// All structs and enums, in the order of their names; fields and variants in theirs.
    pub(crate) fn schema(&self) -> String {
        let mut text = String::new();
        for (name, shape) in &self.structs {
            writeln!(text, "struct {name} {shape}").expect("a string takes text");
        }
        for (name, variants) in &self.enums {
            writeln!(text, "enum {name}").expect("a string takes text");
            for (variant, carried) in variants.names.iter().zip(&variants.seen) {
                let carried = carried.as_ref().expect("traced to its end");
                writeln!(text, "    {variant}{carried}").expect("a string takes text");
            }
        }
        text
    }

    fn plain<V>(&mut self, name: &str, value: Result<V, TraceError>) -> Result<V, TraceError> {
        name.clone_into(&mut self.last);
        value
    }

    /// Visits values one after the other, and says what each is.
    fn in_turn<'de, V: Visitor<'de>>(
        &mut self,
        count: usize,
        visitor: V,
    ) -> Result<(V::Value, Vec<String>), TraceError> {
        let mut parts = Vec::new();
        let value = visitor.visit_seq(Turn {
            tracer: self,
            left: count,
            parts: &mut parts,
        })?;
        Ok((value, parts))
    }

    fn fields<'de, V: Visitor<'de>>(&mut self, names: &[&str], visitor: V) -> Result<(V::Value, String), TraceError> {
        let (value, parts) = self.in_turn(names.len(), visitor)?;
        let fields: Vec<String> = names
            .iter()
            .zip(parts)
            .map(|(name, part)| format!("{name}: {part}"))
            .collect();
        Ok((value, format!("{{ {} }}", fields.join(", "))))
    }
}

struct Turn<'a> {
    tracer: &'a mut Tracer,
    left: usize,
    parts: &'a mut Vec<String>,
}

impl<'de> SeqAccess<'de> for Turn<'_> {
    type Error = TraceError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let value = seed.deserialize(&mut *self.tracer)?;
        self.parts.push(std::mem::take(&mut self.tracer.last));
        Ok(Some(value))
    }
}

/// Every type whose value needs no look inside: what its visitor is given.
macro_rules! plain {
    ($($method:ident: $name:literal => $visit:ident($value:expr),)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
            let value = visitor.$visit($value);
            self.plain($name, value)
        })*
    };
}

/// Types that nothing on the wire has.
macro_rules! foreign {
    ($($method:ident($($argument:ty),*),)*) => {
        $(fn $method<V: Visitor<'de>>(self, $(_: $argument,)* _: V) -> Result<V::Value, TraceError> {
            Err(TraceError(format!("nothing so far needs {}", stringify!($method))))
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Tracer {
    type Error = TraceError;

    plain! {
        deserialize_bool: "bool" => visit_bool(false),
        deserialize_u8: "u8" => visit_u8(0),
        deserialize_u16: "u16" => visit_u16(0),
        deserialize_u32: "u32" => visit_u32(0),
        deserialize_u64: "u64" => visit_u64(0),
        deserialize_u128: "u128" => visit_u128(0),
        deserialize_i64: "i64" => visit_i64(0),
        deserialize_f64: "f64" => visit_f64(0.0),
        deserialize_str: "text" => visit_str(""),
        deserialize_string: "text" => visit_str(""),
    }

    foreign! {
        deserialize_any(), deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i128(), deserialize_f32(),
        deserialize_char(), deserialize_bytes(), deserialize_byte_buf(), deserialize_map(),
        deserialize_unit_struct(&'static str), deserialize_tuple_struct(&'static str, usize),
        deserialize_identifier(), deserialize_ignored_any(),
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        self.last = "()".to_owned();
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        let value = visitor.visit_some(&mut *self)?;
        self.last = format!("Option<{}>", self.last);
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        let (value, parts) = self.in_turn(1, visitor)?;
        self.last = format!("[{}]", parts.join(", "));
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let (value, mut parts) = self.in_turn(len, visitor)?;
        let is_one = parts.windows(2).all(|two| two[0] == two[1]);
        self.last = match parts.pop() {
            Some(part) if is_one => format!("[{part}; {len}]"),
            last => format!("({})", parts.into_iter().chain(last).collect::<Vec<_>>().join(", ")),
        };
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        let value = visitor.visit_newtype_struct(&mut *self)?;
        let shape = format!("({})", self.last);
        self.structs.insert(name, shape);
        self.plain(name, Ok(value))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        let (value, shape) = self.fields(fields, visitor)?;
        let before = self.structs.insert(name, shape.clone());
        assert!(
            before.is_none_or(|before| before == shape),
            "two types are called {name}"
        );
        self.plain(name, Ok(value))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        // A result carries another type in each place.
        if name == "Result" {
            let (value, carried) = self.variant(0, visitor)?;
            return self.plain(&format!("Result{carried}"), Ok(value));
        }
        // An enum that carries itself ends by its first variant.
        if self.inside.contains(&name) {
            let (value, _) = self.variant(0, visitor)?;
            return self.plain(name, Ok(value));
        }
        let seen = vec![None; names.len()];
        let variants = self.enums.entry(name).or_insert(Variants { names, seen });
        assert_eq!(variants.names, names, "two types are called {name}");
        let open = variants.seen.iter().position(Option::is_none);
        let chosen = open.unwrap_or(0);
        let was_open = std::mem::replace(&mut self.is_open, false);
        self.inside.push(name);
        let (value, carried) = self.variant(chosen, visitor)?;
        self.inside.pop();
        let seen = &mut self.enums.get_mut(name).expect("it was just there").seen;
        if !self.is_open {
            seen[chosen] = Some(carried);
        }
        self.is_open |= was_open || seen.iter().any(Option::is_none);
        self.plain(name, Ok(value))
    }
}

impl Tracer {
    /// A value of the variant with a number, and what it carries.
    fn variant<'de, V: Visitor<'de>>(&mut self, number: usize, visitor: V) -> Result<(V::Value, String), TraceError> {
        let mut carried = String::new();
        let value = visitor.visit_enum(Variant {
            tracer: self,
            number: u32::try_from(number).expect("few variants"),
            carried: &mut carried,
        })?;
        Ok((value, carried))
    }
}

struct Variant<'a> {
    tracer: &'a mut Tracer,
    number: u32,
    carried: &'a mut String,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = TraceError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), TraceError> {
        let number: U32Deserializer<TraceError> = self.number.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = TraceError;

    fn unit_variant(self) -> Result<(), TraceError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, TraceError> {
        let value = seed.deserialize(&mut *self.tracer)?;
        *self.carried = format!("({})", self.tracer.last);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let (value, parts) = self.tracer.in_turn(len, visitor)?;
        *self.carried = format!("({})", parts.join(", "));
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        let (value, shape) = self.tracer.fields(fields, visitor)?;
        *self.carried = format!(" {shape}");
        Ok(value)
    }
}
