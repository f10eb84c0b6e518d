//! Enumerations whose values have names in configurations.

/// Implements `ALL`, [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr) for an enumeration. The string
/// after the type names the setting in errors.
macro_rules! choices {
    ($Type:ident: $setting:literal { $($Variant:ident = $name:literal),+ $(,)? }) => {
        impl $Type {
            /// All choices.
            pub const ALL: &'static [Self] = &[$(Self::$Variant),+];
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$Variant => $name),+ })
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::error::DataError;

            fn from_str(text: &str) -> $crate::error::Result<Self> {
                match text {
                    $($name => Ok(Self::$Variant),)+
                    _ => {
                        let known = [$($name),+].join(", ");
                        let reason = format!("{text:?} is not one of {known}");
                        Err($crate::error::DataError::config($setting, reason))
                    }
                }
            }
        }
    };
}

pub(crate) use choices;
