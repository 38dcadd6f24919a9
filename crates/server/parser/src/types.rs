//! Sets of JSON types, and the types that a schema's `type` names.

use serde_json::{Map, Value};

/// A set of JSON types. Integers and other numbers are distinct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// No type.
    pub const NONE: Self = Self(0);
    /// Strings.
    pub const STRING: Self = Self(1);
    /// Numbers without a fraction.
    pub const INTEGER: Self = Self(2);
    /// Numbers with a fraction.
    pub const FRACTION: Self = Self(4);
    /// All numbers.
    pub const NUMBER: Self = Self(2 | 4);
    /// `true` and `false`.
    pub const BOOLEAN: Self = Self(8);
    /// `null`.
    pub const NULL: Self = Self(16);
    /// Arrays.
    pub const ARRAY: Self = Self(32);
    /// Objects.
    pub const OBJECT: Self = Self(64);
    /// Every type.
    pub const ALL: Self = Self(127);

    /// The type with this name in JSON Schema.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }

    /// The types that the keyword `type` names; `None` if it is missing or not a name or list. A single unknown name counts as every type.
    pub fn declared(schema: &Map<String, Value>) -> Option<Self> {
        match schema.get("type") {
            Some(Value::String(name)) => Some(Self::named(name).unwrap_or(Self::ALL)),
            Some(Value::Array(names)) => {
                Some(Self::union(names.iter().filter_map(Value::as_str).filter_map(Self::named)))
            }
            _ => None,
        }
    }

    /// The type of a value.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) if n.as_f64().is_some_and(|f| f.fract() != 0.0) => Self::FRACTION,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Whether they have a common type.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The types in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The types in either.
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The types in any.
    pub fn union(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::NONE, Self::or)
    }
}
