//! Parsing of environment variables.

use crate::error::{EnvironmentError, Result};

/// A lookup of environment variables by name.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Parses a variable as a whole number; `None` if it is not set.
pub fn number(get: Variables<'_>, variable: &'static str) -> Result<Option<u64>> {
    get(variable)
        .map(|text| {
            let parsed = text.trim().parse();
            parsed.map_err(|_| {
                EnvironmentError::new(variable, format!("expected a whole number, found `{text}`"))
            })
        })
        .transpose()
}

/// Parses a variable that must be set because the variable `because` is.
pub(super) fn required(get: Variables<'_>, variable: &'static str, because: &'static str) -> Result<u64> {
    number(get, variable)?
        .ok_or_else(|| EnvironmentError::new(variable, format!("is not set, though {because} is")))
}

/// Parses a variable as a port; `None` if it is not set.
pub(super) fn port(get: Variables<'_>, variable: &'static str) -> Result<Option<u16>> {
    let Some(port) = number(get, variable)? else { return Ok(None) };
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    port.map(Some).ok_or_else(|| EnvironmentError::new(variable, "is not a port; ports are 1 to 65535"))
}

/// True if a variable is set and neither empty, `0` nor `false`.
pub(super) fn is_on(get: Variables<'_>, variable: &str) -> bool {
    get(variable).is_some_and(|value| !matches!(value.trim(), "" | "0" | "false"))
}
