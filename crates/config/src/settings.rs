//! Settings of a task: keys of `[model]` that no other task need have, typed, with defaults and meanings.

use std::any::Any;
use std::fmt::Debug;

use toml::Value;

use super::keys::Config;
use super::section::{KeyDoc, Mismatch};

/// The settings of a task; [`crate::settings!`] declares them. A task that has none takes `()`.
pub trait Settings: Clone + Debug + Default + Send + Sync + 'static {
    /// The keys, with their full names `model.key`, in the order in which they are declared.
    fn keys() -> Vec<KeyDoc>;

    /// The value of a key; `None` if there is no such key.
    fn get(&self, key: &str) -> Option<Value>;

    /// Sets a key; `None` if there is no such key.
    fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Mismatch>>;
}

impl Settings for () {
    fn keys() -> Vec<KeyDoc> {
        Vec::new()
    }

    fn get(&self, _: &str) -> Option<Value> {
        None
    }

    fn set(&mut self, _: &str, _: &Value) -> Option<Result<(), Mismatch>> {
        None
    }
}

/// Declares the settings of a task: a struct whose fields are keys of `[model]`, each with its meaning and default.
///
/// ```
/// phalanx_config::settings! {
///     /// Settings of the network that learns the points.
///     pub struct GanSettings {
///         /// Numbers that the generator makes a point of.
///         noise: usize = 8;
///         /// Features of each hidden layer.
///         width: usize = 64;
///     }
/// }
///
/// assert_eq!(GanSettings::default().width, 64);
/// ```
///
/// Keys that belong together, or that several tasks share, are a struct of their own. `flatten name: Type;` after the other keys
/// adds them.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $doc:literal])+
        $vis:vis struct $Name:ident {
            $( $(#[doc = $key_doc:literal])+ $key:ident: $Key:ty = $default:expr; )*
            $( flatten $flat:ident: $Flat:ty; )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $Name {
            $( $(#[doc = $key_doc])+ $vis $key: $Key, )*
            $( #[doc = "Settings in a struct of their own."] $vis $flat: $Flat, )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $( $key: $default, )* $( $flat: <$Flat as Default>::default(), )* }
            }
        }

        impl $crate::Settings for $Name {
            fn keys() -> Vec<$crate::KeyDoc> {
                let defaults = Self::default();
                let own: Vec<$crate::KeyDoc> = vec![$( $crate::KeyDoc {
                    path: concat!("model.", stringify!($key)).to_owned(),
                    kind: <$Key as $crate::KeyType>::kind(),
                    default: $crate::KeyType::to_toml(&defaults.$key),
                    meaning: [$($key_doc),+].map(str::trim).join(" "),
                } ),*];
                let _ = &defaults;
                own.into_iter()$( .chain(<$Flat as $crate::Settings>::keys()) )*.collect()
            }

            fn get(&self, key: &str) -> Option<$crate::Value> {
                $( if key == stringify!($key) {
                    return Some($crate::KeyType::to_toml(&self.$key));
                } )*
                $( if let Some(value) = $crate::Settings::get(&self.$flat, key) {
                    return Some(value);
                } )*
                None
            }

            fn set(
                &mut self,
                key: &str,
                value: &$crate::Value,
            ) -> Option<Result<(), $crate::Mismatch>> {
                $( if key == stringify!($key) {
                    let read = <$Key as $crate::KeyType>::from_toml(value);
                    return Some(read.map(|value| self.$key = value));
                } )*
                $( if let Some(set) = $crate::Settings::set(&mut self.$flat, key, value) {
                    return Some(set);
                } )*
                None
            }
        }
    };
}

/// Settings of any type.
trait AnySettings: Debug + Send + Sync {
    fn keys(&self) -> Vec<KeyDoc>;
    fn get(&self, key: &str) -> Option<Value>;
    fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Mismatch>>;
    fn duplicate(&self) -> Box<dyn AnySettings>;
    fn as_any(&self) -> &dyn Any;
}

impl<S: Settings> AnySettings for S {
    fn keys(&self) -> Vec<KeyDoc> {
        S::keys()
    }

    fn get(&self, key: &str) -> Option<Value> {
        Settings::get(self, key)
    }

    fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Mismatch>> {
        Settings::set(self, key, value)
    }

    fn duplicate(&self) -> Box<dyn AnySettings> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The settings of the configured task, of any type.
#[derive(Debug)]
pub struct TaskSettings(Box<dyn AnySettings>);

impl TaskSettings {
    /// The defaults of a type of settings.
    pub fn defaults<S: Settings>() -> Self {
        Self(Box::new(S::default()))
    }

    /// The settings, if they are of type `S`.
    pub fn as_type<S: Settings>(&self) -> Option<&S> {
        self.0.as_any().downcast_ref()
    }

    /// The keys, with their full names.
    pub fn keys(&self) -> Vec<KeyDoc> {
        self.0.keys()
    }

    pub(super) fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key)
    }

    pub(super) fn set(&mut self, key: &str, value: &Value) -> Option<Result<(), Mismatch>> {
        self.0.set(key, value)
    }
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self::defaults::<()>()
    }
}

impl Clone for TaskSettings {
    fn clone(&self) -> Self {
        Self(self.0.duplicate())
    }
}

impl PartialEq for TaskSettings {
    fn eq(&self, other: &Self) -> bool {
        let values = |settings: &Self| -> Vec<(String, Option<Value>)> {
            let of = |key: KeyDoc| {
                let value = key.path.strip_prefix("model.").and_then(|key| settings.get(key));
                (key.path, value)
            };
            settings.keys().into_iter().map(of).collect()
        };
        values(self) == values(other)
    }
}

impl Config {
    /// All keys, those of the task among them, with their defaults and meanings.
    pub fn keys(&self) -> Vec<KeyDoc> {
        let mut keys = Self::common_keys();
        let own = keys.iter().rposition(|key| key.path.starts_with("model.")).map_or(0, |last| last + 1);
        keys.splice(own..own, self.settings.keys());
        keys
    }
}
