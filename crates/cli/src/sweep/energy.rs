//! The source of a row's energy numbers, which tables state next to each number.

use phalanx_run::{EnergyKind, EnergyPart, EnergySummary};

/// Columns that are energy, or made of it.
const COLUMNS: [&str; 3] = ["joules", "watts", "joules_per_image"];

/// Returns true if a column holds energy.
pub(super) fn is_energy(column: &str) -> bool {
    COLUMNS.contains(&column)
}

/// The source of a number of joules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnergySource {
    /// Measured, estimated or absent: of what is known of it the least sure.
    pub kind: EnergyKind,
    /// The counters or model, or the reason for absence, for CPUs and GPUs.
    pub how: String,
}

/// Returns its name in tables.
pub(super) fn word(kind: EnergyKind) -> &'static str {
    match kind {
        EnergyKind::Measured => "measured",
        EnergyKind::Estimated => "estimated",
        EnergyKind::Absent => "absent",
    }
}

impl EnergySource {
    /// Returns the source that a summary states.
    pub fn of(summary: &EnergySummary) -> Self {
        let parts = [("CPUs", &summary.cpu), ("GPUs", &summary.gpu)];
        let known = parts.iter().filter(|(_, part)| part.joules.is_some()).map(|(_, part)| part.kind);
        let told = |(of, part): &(&str, &EnergyPart)| match part.model.as_str() {
            "" => format!("{of} {}", word(part.kind)),
            model => format!("{of} {}: {model}", word(part.kind)),
        };
        let how = parts.iter().map(told).collect::<Vec<_>>().join("; ");
        Self { kind: known.max().unwrap_or(EnergyKind::Absent), how }
    }

    /// Returns the source for several runs of one configuration: the least reliable one.
    pub(super) fn of_all(all: impl Iterator<Item = Self>) -> Option<Self> {
        all.max_by_key(|known| known.kind)
    }
}

/// Lines about the energy of rows, each of which is named: those that are alike in one.
pub(super) fn lines(rows: &[(String, &EnergySource)]) -> Vec<String> {
    let mut groups: Vec<(&EnergySource, Vec<&str>)> = Vec::new();
    for (name, known) in rows {
        match groups.iter_mut().find(|(other, _)| other == known) {
            Some((_, names)) => names.push(name),
            None => groups.push((known, vec![name])),
        }
    }
    let several = groups.len() > 1;
    let line = |(known, names): (&EnergySource, Vec<&str>)| match several {
        true => format!("Energy of {}: {}.", names.join("; "), known.how),
        false => format!("Energy: {}.", known.how),
    };
    groups.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: EnergyKind, model: &str, joules: Option<f64>) -> EnergyPart {
        EnergyPart { kind, model: model.to_owned(), joules }
    }

    #[test]
    fn the_least_sure_of_what_is_known_counts() {
        let absent = || part(EnergyKind::Absent, "no GPU", None);
        let cpu = part(EnergyKind::Estimated, "seconds x 5 W", Some(3.0));
        let known = EnergySource::of(&EnergySummary { cpu, gpu: absent(), ..EnergySummary::default() });
        assert_eq!(known.kind, EnergyKind::Estimated);
        assert_eq!(known.how, "CPUs estimated: seconds x 5 W; GPUs absent: no GPU");
        let nothing = EnergySource::of(&EnergySummary {
            cpu: part(EnergyKind::Absent, "no counter", None),
            gpu: absent(),
            ..EnergySummary::default()
        });
        assert_eq!(nothing.kind, EnergyKind::Absent);
        let both = || [known.clone(), nothing.clone()].into_iter();
        assert_eq!(EnergySource::of_all(both()), Some(nothing.clone()));
        let rows = [("a".to_owned(), &known), ("b".to_owned(), &nothing), ("c".to_owned(), &known)];
        let told = lines(&rows);
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("Energy of a; c: CPUs estimated"), "{told:?}");
        assert_eq!(lines(&rows[..1]), ["Energy: CPUs estimated: seconds x 5 W; GPUs absent: no GPU."]);
    }
}
