//! The choice of an instruction set.

use std::fmt;
use std::str::FromStr;

use pulp::Arch;

use crate::error::{KernelError, Result};

/// The environment variable that forces a level; see [`Level::from_env`].
pub const LEVEL_VARIABLE: &str = "PHALANX_SIMD";

/// An instruction set that the kernels are compiled for. One binary has all sets of its CPU architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The instructions that every CPU of the architecture has.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 (F, BW, CD, DQ, VL).
    Avx512,
    /// NEON.
    Neon,
}

impl Level {
    /// All levels.
    pub const ALL: &[Self] = &[Self::Portable, Self::Avx2, Self::Avx512, Self::Neon];

    /// Returns the best level of this CPU.
    pub fn best() -> Self {
        let better = [Self::Avx512, Self::Avx2, Self::Neon];
        better.into_iter().find(|level| level.arch().is_some()).unwrap_or(Self::Portable)
    }

    /// Returns the level that `PHALANX_SIMD` names, or the best if it is not set. Tests use it to run every path.
    ///
    /// # Errors
    /// If the name is unknown, or this CPU does not have the level.
    pub fn from_env() -> Result<Self> {
        match std::env::var(LEVEL_VARIABLE) {
            Err(_) => Ok(Self::best()),
            Ok(name) => {
                let level: Self = name.parse()?;
                match level.arch() {
                    Some(_) => Ok(level),
                    None => Err(unsupported(level)),
                }
            }
        }
    }

    /// The vectors of this level, if this CPU has them.
    pub(crate) fn arch(self) -> Option<Arch> {
        match self {
            Self::Portable => Some(Arch::Scalar),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            #[allow(unreachable_patterns, reason = "the levels that are left depend on the CPU architecture")]
            _ => None,
        }
    }
}

impl Level {
    /// The level of some vectors.
    pub(crate) fn of(arch: Arch) -> Self {
        match arch {
            #[cfg(target_arch = "x86_64")]
            Arch::V3(_) => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Arch::V4(_) => Self::Avx512,
            #[cfg(target_arch = "aarch64")]
            Arch::Neon(_) => Self::Neon,
            _ => Self::Portable,
        }
    }
}

/// The error for a level that this CPU lacks.
pub(crate) fn unsupported(level: Level) -> KernelError {
    KernelError::Level { name: level.to_string(), problem: "this CPU does not have it" }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        })
    }
}

impl FromStr for Level {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::ALL.iter().copied().find(|level| level.to_string() == name);
        named.ok_or_else(|| KernelError::Level {
            name: name.to_owned(),
            problem: "there is no such level; there are portable, avx2, avx512 and neon",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse::<Level>().expect("a level"), *level);
        }
        let error = "sse9".parse::<Level>().expect_err("no level").to_string();
        assert!(error.contains("sse9") && error.contains("avx2"), "{error}");
        assert!(Level::best().arch().is_some() && Level::Portable.arch().is_some());
    }
}
