//! File endings, which decide the format of a written file.

use std::path::Path;

use super::error::CliError;

/// Returns the ending of a file that an option names, in lower case, if it is one of `known`.
///
/// # Errors
/// [`CliError::Usage`] naming the option and the endings that are written.
pub(super) fn ending<'k>(option: &str, file: &Path, known: &[&'k str]) -> Result<&'k str, CliError> {
    let own = file.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    if let Some(found) = known.iter().find(|known| **known == own) {
        return Ok(found);
    }
    let listed: Vec<String> = known.iter().map(|known| format!(".{known}")).collect();
    let listed = match listed.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => listed.concat(),
    };
    Err(CliError::Usage(format!(
        "{option} {}: the file is written as {listed}; choose that ending",
        file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_decides_or_is_refused() {
        let found = |name: &str| ending("--out", Path::new(name), &["png", "jpg"]);
        assert!(found("a.png").is_ok_and(|ending| ending == "png"));
        assert!(found("b/a.JPG").is_ok_and(|ending| ending == "jpg"));
        for name in ["a.gif", "a", ".png", "a.png.txt"] {
            let error = found(name).expect_err("no format").to_string();
            assert_eq!(
                error,
                format!("--out {name}: the file is written as .png or .jpg; choose that ending")
            );
        }
        let error = ending("--out", Path::new("a.pdf"), &["html"]).expect_err("no format").to_string();
        assert_eq!(error, "--out a.pdf: the file is written as .html; choose that ending");
    }
}
