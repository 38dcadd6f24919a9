//! The outermost fields of a JSON body, in its order, without reading their values. Used where fields are added to a body or removed from it.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of fields: a list of them takes memory.
pub const FIELDS_MAX: usize = 4096;

/// The fields of an object; `None` if there are more than [`FIELDS_MAX`].
pub struct Fields<'a>(pub Option<Vec<(String, &'a RawValue)>>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut out = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if out.len() == FIELDS_MAX {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        return Ok(Fields(None));
                    }
                    out.push(entry);
                }
                Ok(Fields(Some(out)))
            }
        }
        deserializer.deserialize_map(All)
    }
}
