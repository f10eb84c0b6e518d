//! Closed sets of values with their words.

/// A small closed set of values, each with the word that captions use.
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident { $($(#[$item_meta:meta])* $item:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $(#[doc = concat!("“", $word, "”.")] $(#[$item_meta])* $item),+ }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$item),+];

            /// The words in captions of all of them, in order.
            #[must_use]
            pub fn words() -> Vec<String> {
                Self::ALL.iter().map(|item| item.word().to_string()).collect()
            }

            /// The word in captions.
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
