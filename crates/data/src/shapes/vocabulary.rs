//! Enumerations whose values have words in captions.

/// Declares an enumeration; each value has the word that captions use.
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident { $($(#[$item_meta:meta])* $item:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $(#[doc = concat!("“", $word, "”.")] $(#[$item_meta])* $item),+ }

        impl $name {
            /// All values, in order.
            pub const ALL: &[Self] = &[$(Self::$item),+];

            /// Returns the caption words of all values, in order.
            #[must_use]
            pub fn words() -> Vec<String> {
                Self::ALL.iter().map(|item| item.word().to_string()).collect()
            }

            /// Returns the caption word.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$item => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

pub(crate) use vocabulary;
