//! The studies that ship inside the program.

use super::file::{SweepFile, SweepFileError};

/// Names and texts, in the order in which they are listed.
pub const STUDIES: &[(&str, &str)] = &[
    ("statistical-efficiency", include_str!("../../studies/statistical-efficiency.toml")),
    ("codecs", include_str!("../../studies/codecs.toml")),
];

/// The study called `name`.
///
/// # Errors
/// If there is none.
pub fn study(name: &str) -> Result<SweepFile, SweepFileError> {
    let known: Vec<&str> = STUDIES.iter().map(|(name, _)| *name).collect();
    let found = STUDIES.iter().find(|(known, _)| *known == name);
    let (name, text) = found.ok_or_else(|| SweepFileError::no_such_study(name, &known))?;
    SweepFile::parse(&format!("studies/{name}.toml"), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;
    use crate::sweep::{NUMBERS, Trials};

    #[test]
    fn every_run_of_every_study_can_be_trained() {
        for (name, _) in STUDIES {
            let file = study(name).expect("sound");
            for quick in [false, true] {
                let trials = Trials::of(&file, &[], quick);
                assert!(!trials.runs.is_empty(), "{name}");
                for run in &trials.runs {
                    let resolved = Program::phalanx().resolve(&file.extends, &run.sets).expect("known keys");
                    let valid = resolved.validate_without_images();
                    assert!(valid.is_ok(), "{name}: {}: {valid:?}", run.name);
                }
                for column in trials.tables.iter().flat_map(|table| &table.columns) {
                    let known = NUMBERS.iter().any(|(number, _)| number == column);
                    let measured = column.contains("loss") || column.starts_with("test_");
                    assert!(known || measured || column == "consensus_distance", "{name}: {column}");
                }
            }
        }
        let error = study("statistical").expect_err("no such study").to_string();
        assert!(error.contains("statistical-efficiency"), "{error}");
    }
}
