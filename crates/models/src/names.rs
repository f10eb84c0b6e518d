//! Names of choices, as in configurations and published files.

/// Implements names as in configurations and diffusers' files.
macro_rules! named {
    ($($Type:ident { $($Variant:ident = $name:literal $(| $other:literal)*),+ $(,)? })+) => { $(
        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$Variant => $name),+ })
            }
        }

        impl std::str::FromStr for $Type {
            type Err = phalanx_tensor::TensorError;

            fn from_str(name: &str) -> phalanx_tensor::Result<Self> {
                match name {
                    $($name $(| $other)* => Ok(Self::$Variant),)+
                    _ => {
                        let (value, expected) = (name.to_owned(), concat!("expected one of", $(" ", $name),+));
                        Err(phalanx_tensor::TensorError::Argument { name: stringify!($Type), value, expected })
                    }
                }
            }
        }
    )+ };
}
pub(crate) use named;
