//! Settings from the environment, equal on every rank.

use phalanx_environment::EnvironmentError;

use super::raw::Comm;
use crate::error::{CommError, Result};

const CHECK: &str = "PHALANX_MPI_CHECK";
const PIECE: &str = "PHALANX_MPI_PIECE";

/// Settings of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// True if ranks tell each other which operation they call.
    pub(super) check: bool,
    /// The most elements of one call of MPI, all ranks' together; at least 1, and an int counts them.
    pub(super) piece: usize,
}

/// The message of a rank to the others: a flag of valid variables, and their values.
type SettingWords = [i64; 3];

fn wrong(variable: &'static str, problem: String) -> CommError {
    EnvironmentError::new(variable, problem).into()
}

impl Settings {
    /// Returns the settings of this rank's environment.
    pub(super) fn from_env() -> Result<Self> {
        Self::read(&|variable| std::env::var(variable).ok())
    }

    fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let check = match get(CHECK).as_deref().map(str::trim) {
            None | Some("" | "0") => false,
            Some("1") => true,
            Some(other) => return Err(wrong(CHECK, format!("expected 0 or 1, found `{other}`"))),
        };
        let most = i32::MAX as usize;
        let piece = match get(PIECE) {
            None => most,
            Some(text) => match text.trim().parse() {
                Ok(piece) if (1..=most).contains(&piece) => piece,
                _ => {
                    return Err(wrong(PIECE, format!("expected a number from 1 to {most}, found `{text}`")));
                }
            },
        };
        Ok(Self { check, piece })
    }

    /// Returns equal settings on every rank, or an error on every rank: launchers may set variables for the ranks of one host
    /// alone.
    pub(super) fn agree(own: Result<Self>, comm: &Comm) -> Result<Self> {
        let told: SettingWords = match &own {
            Ok(own) => [1, i64::from(own.check), own.piece as i64],
            Err(_) => [0; 3],
        };
        let mut all = vec![0; told.len() * comm.size];
        comm.all_gather(&told, &mut all)?;
        let own = own?;
        match all.chunks_exact(told.len()).position(|theirs| theirs != told) {
            None => Ok(own),
            Some(rank) => {
                let theirs = &all[told.len() * rank..][..told.len()];
                let variable = if theirs[1] == told[1] { PIECE } else { CHECK };
                let problem = if theirs[0] == 0 {
                    format!("rank {rank} cannot read its variables")
                } else {
                    format!(
                        "rank {rank} has another value; OpenMPI's mpirun gives a variable to all ranks with `-x {variable}`"
                    )
                };
                Err(wrong(variable, problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(check: Option<&str>, piece: Option<&str>) -> Result<Settings> {
        Settings::read(&|variable| if variable == CHECK { check } else { piece }.map(str::to_owned))
    }

    #[test]
    fn variables_are_read_or_named() {
        assert_eq!(read(None, None), Ok(Settings { check: false, piece: i32::MAX as usize }));
        assert_eq!(read(Some("1"), Some("1000")), Ok(Settings { check: true, piece: 1000 }));
        assert_eq!(read(Some("0"), None).map(|settings| settings.check), Ok(false));
        for (check, piece, named) in
            [(Some("yes"), None, CHECK), (None, Some("0"), PIECE), (None, Some("2147483648"), PIECE)]
        {
            let error = read(check, piece).expect_err("malformed");
            assert!(
                matches!(error, CommError::Environment(EnvironmentError { variable, .. }) if variable == named)
            );
        }
    }
}
