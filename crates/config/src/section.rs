//! Sections: structs whose fields, defaults, key types and documentation are written once.
//!
//! The macro [`sections!`] turns one declaration into the typed struct that the code reads, its defaults, and
//! the table of keys that `phalanx config show` prints and that files are checked against. There is no second
//! list that could drift from the first.

use toml::Value;

/// One key of the configuration, as written down in the code.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyDoc {
    /// The full name, `section.key`.
    pub path: String,
    /// The type in words, such as `integer` or ``one of `sgd`, `adam` ``.
    pub kind: String,
    /// The value without any preset or file.
    pub default: Value,
    /// The meaning of the key.
    pub meaning: String,
}

/// A type that a key of the configuration can have.
pub trait KeyType: Sized {
    /// The type in words.
    fn kind() -> String;

    /// Reads a TOML value.
    ///
    /// # Errors
    /// The expected and the found type.
    fn from_toml(value: &Value) -> Result<Self, Mismatch>;

    /// The value in TOML.
    fn to_toml(&self) -> Value;
}

/// A value that does not fit its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The type or range that the key has, in words.
    pub expected: String,
    /// The value given, in words.
    pub found: String,
    /// The nearest value that would be accepted, for keys with a list of choices.
    pub nearest: Option<String>,
    /// The reason, where the type does not show it.
    pub reason: Option<String>,
}

impl Mismatch {
    /// `value` is not an `expected`.
    pub fn new(expected: impl Into<String>, value: &Value) -> Self {
        let kind = match value {
            Value::String(_) => "the string",
            Value::Integer(_) => "the integer",
            Value::Float(_) => "the number",
            Value::Boolean(_) => "the boolean",
            Value::Datetime(_) => "the date",
            Value::Array(_) => "the array",
            Value::Table(_) => "the table",
        };
        Self { expected: expected.into(), found: format!("{kind} {value}"), nearest: None, reason: None }
    }
}

/// Declares the sections of a configuration and the struct that holds them all.
macro_rules! sections {
    (
        $(#[doc = $root_doc:literal])+
        $root:ident;
        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $Section:ident {
                $( $(#[doc = $key_doc:literal])+ $key:ident: $Key:ty = $default:expr; )+
            }
        )+
    ) => {
        $(#[doc = $root_doc])+
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $root {
            $( $(#[doc = $section_doc])+ pub $section: $Section, )+
            /// The keys of `[model]` that the task has for itself.
            pub settings: crate::TaskSettings,
            /// By network of a training with several: the keys that it has for itself, as `optim.lr`, with their values.
            pub networks: std::collections::BTreeMap<String, std::collections::BTreeMap<String, Value>>,
        }

        impl $root {
            /// The keys that every task has, in the order in which they are declared, with their defaults and meanings.
            pub(super) fn common_keys() -> Vec<KeyDoc> {
                let mut keys = Vec::new();
                $({
                    let defaults = $Section::default();
                    $( keys.push(KeyDoc {
                        path: concat!(stringify!($section), ".", stringify!($key)).to_owned(),
                        kind: <$Key as KeyType>::kind(),
                        default: defaults.$key.to_toml(),
                        meaning: [$($key_doc),+].map(str::trim).join(" "),
                    }); )+
                })+
                keys
            }

            /// The sections in order, each with what it is about.
            pub fn sections() -> Vec<(&'static str, String)> {
                vec![$( (stringify!($section), [$($section_doc),+].map(str::trim).join(" ")), )+]
            }

            /// The value of the key called `section.key`; `None` if there is no such key.
            pub fn get(&self, path: &str) -> Option<Value> {
                $( $( if path == concat!(stringify!($section), ".", stringify!($key)) {
                    return Some(self.$section.$key.to_toml());
                } )+ )+
                if let Some(value) = path.strip_prefix("model.").and_then(|key| self.settings.get(key)) {
                    return Some(value);
                }
                let (network, key) = path.split_once('.')?;
                self.networks.get(network)?.get(key).cloned()
            }

            /// Sets the key called `section.key`; `None` if there is no such key.
            pub fn set(&mut self, path: &str, value: &Value) -> Option<Result<(), Mismatch>> {
                $( $( if path == concat!(stringify!($section), ".", stringify!($key)) {
                    return Some(<$Key as KeyType>::from_toml(value).map(|value| self.$section.$key = value));
                } )+ )+
                let own = path.strip_prefix("model.").and_then(|key| self.settings.set(key, value));
                own.or_else(|| self.set_of_network(path, value))
            }
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $key_doc])+ pub $key: $Key, )+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $key: $default, )+ }
                }
            }
        )+
    };
}

/// Declares an enumeration whose values are written as strings in a configuration.
macro_rules! choices {
    ($( $(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $choice_doc:literal])+ $choice:ident = $text:literal, )+ } )+) => { $(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $( $(#[doc = $choice_doc])+ $choice, )+
        }

        impl $name {
            /// The values in order.
            pub const ALL: &'static [Self] = &[$( Self::$choice, )+];

            /// The value as written in a configuration.
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$choice => $text, )+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl KeyType for $name {
            fn kind() -> String {
                let all: Vec<String> = Self::ALL.iter().map(|choice| format!("`{choice}`")).collect();
                format!("one of {}", all.join(", "))
            }

            fn from_toml(value: &Value) -> Result<Self, Mismatch> {
                let text = value.as_str().unwrap_or_default();
                Self::ALL.iter().copied().find(|choice| choice.as_str() == text).ok_or_else(|| Mismatch {
                    nearest: crate::nearest(text, Self::ALL.iter().map(|choice| choice.as_str())),
                    ..Mismatch::new(Self::kind(), value)
                })
            }

            fn to_toml(&self) -> Value {
                Value::String(self.as_str().to_owned())
            }
        }
    )+ };
}

/// Makes enumerations of libraries, which know their values (`ALL`) and their names, types of keys.
macro_rules! library_choices {
    ($($name:ty),+ $(,)?) => { $(
        impl KeyType for $name {
            fn kind() -> String {
                let all: Vec<String> = Self::ALL.iter().map(|choice| format!("`{choice}`")).collect();
                format!("one of {}", all.join(", "))
            }

            fn from_toml(value: &Value) -> Result<Self, Mismatch> {
                let text = value.as_str().unwrap_or_default();
                let names: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
                text.parse().map_err(|_| Mismatch {
                    nearest: crate::nearest(text, names.iter().map(String::as_str)),
                    ..Mismatch::new(Self::kind(), value)
                })
            }

            fn to_toml(&self) -> Value {
                Value::String(self.to_string())
            }
        }
    )+ };
}

pub(super) use {choices, library_choices, sections};

impl KeyType for bool {
    fn kind() -> String {
        "boolean".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        value.as_bool().ok_or_else(|| Mismatch::new("a boolean", value))
    }

    fn to_toml(&self) -> Value {
        Value::Boolean(*self)
    }
}

/// Reads a non-negative integer, also one written with underscores or as `1e5`.
fn natural(value: &Value) -> Option<u64> {
    match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::Float(number) if number.fract() == 0.0 && (0.0..9e15).contains(number) => Some(*number as u64),
        _ => None,
    }
}

impl KeyType for u64 {
    fn kind() -> String {
        "integer".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        natural(value).ok_or_else(|| Mismatch::new("a non-negative integer", value))
    }

    fn to_toml(&self) -> Value {
        i64::try_from(*self).map_or(Value::Float(*self as f64), Value::Integer)
    }
}

/// No width, size or count of a training is greater. A relation between two of them can multiply both.
const MOST: u32 = i32::MAX as u32;

impl KeyType for usize {
    fn kind() -> String {
        u64::kind()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let number = natural(value).ok_or_else(|| Mismatch::new("a non-negative integer", value))?;
        let number = u32::try_from(number).ok().filter(|number| *number <= MOST);
        let number = number.ok_or_else(|| Mismatch::new(format!("an integer of at most {MOST}"), value))?;
        Ok(number as Self)
    }

    fn to_toml(&self) -> Value {
        (*self as u64).to_toml()
    }
}

impl KeyType for f64 {
    fn kind() -> String {
        "number".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        match value {
            Value::Float(number) if number.is_finite() => Ok(*number),
            Value::Integer(number) => Ok(*number as Self),
            _ => Err(Mismatch::new("a finite number", value)),
        }
    }

    fn to_toml(&self) -> Value {
        Value::Float(*self)
    }
}

impl KeyType for String {
    fn kind() -> String {
        "string".to_owned()
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        value.as_str().map(str::to_owned).ok_or_else(|| Mismatch::new("a string", value))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.clone())
    }
}

impl<T: KeyType> KeyType for Vec<T> {
    fn kind() -> String {
        format!("list of {}s", T::kind())
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let items = value.as_array().ok_or_else(|| Mismatch::new(format!("a {}", Self::kind()), value))?;
        items.iter().map(T::from_toml).collect()
    }

    fn to_toml(&self) -> Value {
        Value::Array(self.iter().map(T::to_toml).collect())
    }
}
