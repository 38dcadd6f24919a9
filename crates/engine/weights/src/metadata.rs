//! Typed key/value metadata, as a GGUF file has it; Hugging Face configs are translated into the same keys.

use std::collections::BTreeMap;

use crate::Error;

/// One metadata value. All integer widths come out as `I64`/`U64`, both float widths as `F64`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U64(u64),
    I64(i64),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Vec<Value>),
    /// An array of strings, kept flat: vocabularies have a quarter of a million.
    Strs(Vec<String>),
    /// An array of integers, kept flat.
    Ints(Vec<i64>),
    /// An array of floats, kept flat.
    Floats(Vec<f64>),
}

/// All metadata of a model, and the file's name for messages.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    file: String,
    map: BTreeMap<String, Value>,
}

macro_rules! typed {
    ($(#[$doc:meta])* $opt:ident, $req:ident, $t:ty, $what:literal, $conv:expr) => {
        $(#[$doc])*
        pub fn $opt(&self, key: &str) -> Result<Option<$t>, Error> {
            let conv: fn(&Value) -> Option<$t> = $conv;
            match self.map.get(key) {
                None => Ok(None),
                Some(v) => match conv(v) {
                    Some(x) => Ok(Some(x)),
                    None => Err(Error::key(&self.file, key, concat!("is not ", $what))),
                },
            }
        }
        /// Like the optional form, and an error when the key is absent.
        pub fn $req(&self, key: &str) -> Result<$t, Error> {
            self.$opt(key)?.ok_or_else(|| Error::key(&self.file, key, concat!("is missing; expected ", $what)))
        }
    };
}

impl Metadata {
    /// Empty metadata of `file`.
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), map: BTreeMap::new() }
    }
    /// The file's name, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }
    /// Sets a key; returns its previous value.
    pub fn insert(&mut self, key: &str, value: Value) -> Option<Value> {
        self.map.insert(key.into(), value)
    }
    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key)
    }
    /// A value, without a type check.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }
    /// All keys in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(k, v)| (k.as_str(), v))
    }

    typed!(/// An unsigned integer that fits in 32 bits, if the key is present.
        opt_u32, u32, u32, "an unsigned 32-bit integer", |v| match v {
            Value::U64(x) => u32::try_from(*x).ok(), Value::I64(x) => u32::try_from(*x).ok(), _ => None });
    typed!(/// A finite float (integers are accepted), if the key is present.
        opt_f32, f32, f32, "a finite number", |v| match v {
            Value::F64(x) if (*x as f32).is_finite() => Some(*x as f32), Value::U64(x) => Some(*x as f32),
            Value::I64(x) => Some(*x as f32), _ => None });
    typed!(/// A boolean, if the key is present.
        opt_bool, bool, bool, "a boolean", |v| match v { Value::Bool(x) => Some(*x), _ => None });

    /// A string, if the key is present.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Str(s)) => Ok(Some(s)),
            Some(_) => Err(Error::key(&self.file, key, "is not a string")),
        }
    }
    /// A string; an error when absent.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.opt_str(key)?.ok_or_else(|| Error::key(&self.file, key, "is missing; expected a string"))
    }
    /// An array of strings, if the key is present.
    pub fn opt_strs(&self, key: &str) -> Result<Option<&[String]>, Error> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Strs(s)) => Ok(Some(s)),
            Some(_) => Err(Error::key(&self.file, key, "is not an array of strings")),
        }
    }
    /// An array of integers, if the key is present.
    pub fn opt_ints(&self, key: &str) -> Result<Option<&[i64]>, Error> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Ints(s)) => Ok(Some(s)),
            Some(_) => Err(Error::key(&self.file, key, "is not an array of integers")),
        }
    }
    /// A value that may be one integer for all layers or an array with one for each (`head_count_kv`).
    pub fn per_layer_u32(&self, key: &str, layers: usize) -> Result<Vec<u32>, Error> {
        let bad = |what: String| Error::key(&self.file, key, what);
        match self.map.get(key) {
            None => Err(bad("is missing; expected an integer, or one for each layer".into())),
            Some(Value::Ints(v)) if v.len() >= layers => v[..layers]
                .iter()
                .map(|&x| {
                    u32::try_from(x)
                        .map_err(|_| bad(format!("holds {x}; expected an unsigned 32-bit integer")))
                })
                .collect(),
            Some(Value::Ints(v)) => Err(bad(format!("has {} values for {layers} layers", v.len()))),
            Some(_) => Ok(vec![self.u32(key)?; layers]),
        }
    }
}
