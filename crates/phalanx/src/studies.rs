//! The studies that ship inside the program.

/// Names and texts, in the order in which they are listed.
pub const STUDIES: &[(&str, &str)] = &[
    ("statistical-efficiency", include_str!("../studies/statistical-efficiency.toml")),
    ("fine-tuning", include_str!("../studies/fine-tuning.toml")),
    ("fsdp-vs-baseline", include_str!("../studies/fsdp-vs-baseline.toml")),
    ("text-to-image-strategies", include_str!("../studies/text-to-image-strategies.toml")),
    ("codecs", include_str!("../studies/codecs.toml")),
    ("scaling", include_str!("../studies/scaling.toml")),
    ("gan-scaling", include_str!("../studies/gan-scaling.toml")),
];

#[cfg(test)]
mod tests {
    use phalanx_cli::sweep::{NUMBERS, Relative, Trials};

    use super::*;

    #[test]
    fn every_run_of_every_study_can_be_trained() {
        for (name, _) in STUDIES {
            let file = crate::program().study_named(name).expect("sound");
            for quick in [false, true] {
                let trials = Trials::of(&file, &[], quick);
                assert!(!trials.runs.is_empty(), "{name}");
                for run in &trials.runs {
                    let resolved = crate::program().resolve(&run.extends, &run.sets).expect("known keys");
                    let valid = resolved.validate_without_images();
                    assert!(valid.is_ok(), "{name}: {}: {valid:?}", run.name);
                }
                let is_number = |column: &String| {
                    let known = NUMBERS.iter().any(|(number, _)| number == column);
                    let measured = column.contains("loss") || column.starts_with("test_");
                    known || measured || column == "consensus_distance"
                };
                for table in &trials.tables {
                    for column in &table.columns {
                        let relative = table.relative.iter().find(|relative| relative.name == *column);
                        let compared = |relative: &Relative| {
                            let others = [&relative.against, &relative.per];
                            is_number(&relative.of) && others.into_iter().flatten().all(is_number)
                        };
                        assert!(relative.map_or(is_number(column), compared), "{name}: {column}");
                    }
                }
            }
        }
        let error = crate::program().study_named("statistical").expect_err("no such study").to_string();
        assert!(error.contains("statistical-efficiency"), "{error}");
    }
}
