//! The energy that ranks take: measured, estimated by a model that is told, or absent for a reason that is told.

use serde::{Deserialize, Serialize};

use super::powercap::{Powercap, PowercapError};
use phalanx_run::{EnergyKind, EnergyPart, EnergySummary};

/// The source of the energy of a rank's CPUs.
#[derive(Debug)]
pub enum CpuEnergy {
    /// By the counters of the host, read by the host's first rank for all.
    Measured(Powercap),
    /// The first rank of the host reads the counters.
    ByFirst,
    /// By CPU time and the watts of a busy core.
    Estimated {
        /// Watts of a busy core.
        watts: f64,
    },
    /// Not at all, for a reason.
    Absent(String),
}

/// The energy account of a rank at the end of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankEnergy {
    /// Its host, as a number.
    pub host: usize,
    /// Seconds since the run began.
    pub seconds: f64,
    /// CPU seconds of the rank's process in that time; the first rank of a process accounts for all its ranks.
    pub cpu_seconds: Option<f64>,
    /// The energy of the CPUs; `None` if the host's first rank accounts for it.
    pub cpu: Option<EnergyPart>,
    /// The energy of its GPU.
    pub gpu: EnergyPart,
}

impl CpuEnergy {
    /// Returns the source for a rank, which may be the first of its host; `watts` of a busy core are stated, or 0.
    pub fn of(
        first_of_host: bool,
        watts: f64,
        open: impl FnOnce() -> Result<Powercap, PowercapError>,
    ) -> Self {
        match open() {
            Ok(counters) if first_of_host => Self::Measured(counters),
            Ok(_) => Self::ByFirst,
            Err(_) if watts > 0.0 => Self::Estimated { watts },
            Err(why) => Self::Absent(format!("{why}; log.cpu_watts states no watts to estimate by")),
        }
    }

    /// Returns the joules so far that this rank accounts for: those of the host, if it reads the counters, or its own
    /// by its CPU seconds. Counters that can no longer be read make it absent.
    pub fn joules(&mut self, cpu_seconds: Option<f64>) -> Option<f64> {
        match self {
            Self::Measured(counters) => match counters.joules() {
                Ok(joules) => Some(joules),
                Err(why) => {
                    *self = Self::Absent(why.to_string());
                    None
                }
            },
            Self::Estimated { watts } => cpu_seconds.map(|seconds| seconds * *watts),
            Self::ByFirst | Self::Absent(_) => None,
        }
    }

    /// Returns its name in a line of usage.
    pub fn kind(&self) -> Option<EnergyKind> {
        match self {
            Self::Measured(_) => Some(EnergyKind::Measured),
            Self::Estimated { .. } => Some(EnergyKind::Estimated),
            Self::ByFirst | Self::Absent(_) => None,
        }
    }

    /// Returns the account for `joules`; `None` if the host's first rank accounts for it.
    pub fn part(&self, joules: Option<f64>) -> Option<EnergyPart> {
        let (kind, model) = match self {
            Self::Measured(_) => (
                EnergyKind::Measured,
                "counters of the CPU packages and their memory (RAPL), shared among the ranks of a host by their CPU \
                 seconds"
                    .to_owned(),
            ),
            Self::Estimated { watts } => (EnergyKind::Estimated, estimated(*watts)),
            Self::Absent(why) => (EnergyKind::Absent, why.clone()),
            Self::ByFirst => return None,
        };
        Some(EnergyPart { kind, model, joules })
    }
}

fn estimated(watts: f64) -> String {
    format!("CPU seconds x {watts} W a busy core (log.cpu_watts)")
}

/// Combines the accounts of all ranks of a run that has trained on `samples`, and returns the joules of each, CPUs and
/// GPU together.
///
/// Counters belong to a host: their joules are divided among its ranks by their CPU seconds. Energy that is absent on
/// one host is absent for the run, as a part would pass for the whole.
pub fn together(ranks: &[RankEnergy], samples: u64) -> (EnergySummary, Vec<Option<f64>>) {
    let seconds = ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
    let on_cpu: Vec<EnergyPart> = ranks.iter().map(|rank| of_processors(ranks, rank)).collect();
    let on_gpu: Vec<EnergyPart> = ranks.iter().map(|rank| rank.gpu.clone()).collect();
    let joules = on_cpu.iter().zip(&on_gpu).map(|(cpu, gpu)| match (cpu.joules, gpu.joules) {
        (None, None) => None,
        (cpu, gpu) => Some(cpu.unwrap_or(0.0) + gpu.unwrap_or(0.0)),
    });
    let joules: Vec<Option<f64>> = joules.collect();
    let (cpu, gpu) = (whole(&on_cpu), whole(&on_gpu));
    let known = match (cpu.joules, gpu.joules) {
        (None, None) => None,
        (cpu, gpu) => Some(cpu.unwrap_or(0.0) + gpu.unwrap_or(0.0)),
    };
    let summary = EnergySummary {
        joules_per_sample: known.filter(|_| samples > 0).map(|joules| joules / samples as f64),
        mean_watts: known.filter(|_| seconds > 0.0).map(|joules| joules / seconds),
        cpu,
        gpu,
    };
    (summary, joules)
}

/// Returns the share of a rank in the energy of its host's CPUs.
fn of_processors(ranks: &[RankEnergy], rank: &RankEnergy) -> EnergyPart {
    let on_host = || ranks.iter().filter(|other| other.host == rank.host);
    let measures = |part: &EnergyPart| part.kind == EnergyKind::Measured;
    let measured = on_host().find_map(|other| other.cpu.clone().filter(measures));
    match (&rank.cpu, measured) {
        (Some(own), _) if !measures(own) => own.clone(),
        (_, Some(found)) => {
            let all: f64 = on_host().filter_map(|other| other.cpu_seconds).sum();
            let own = rank.cpu_seconds.unwrap_or(0.0);
            let share = |joules| if all > 0.0 { joules * own / all } else { 0.0 };
            EnergyPart { joules: found.joules.map(share), ..found }
        }
        (_, None) => {
            let why = "the rank that measured its host's energy has died".to_owned();
            EnergyPart { kind: EnergyKind::Absent, model: why, joules: None }
        }
    }
}

/// The sum over ranks, of which the least certain says how it is known.
fn whole(parts: &[EnergyPart]) -> EnergyPart {
    let Some(worst) = parts.iter().max_by_key(|part| part.kind) else { return EnergyPart::default() };
    let joules = match worst.kind {
        EnergyKind::Absent => None,
        _ => Some(parts.iter().filter_map(|part| part.joules).sum()),
    };
    EnergyPart { kind: worst.kind, model: worst.model.clone(), joules }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rank(host: usize, cpu_seconds: f64, cpu: Option<EnergyPart>) -> RankEnergy {
        let gpu = EnergyPart { model: "no GPU".to_owned(), ..EnergyPart::default() };
        RankEnergy { host, seconds: 10.0, cpu_seconds: Some(cpu_seconds), cpu, gpu }
    }

    fn measured(joules: f64) -> Option<EnergyPart> {
        Some(EnergyPart { kind: EnergyKind::Measured, model: "counters".to_owned(), joules: Some(joules) })
    }

    #[test]
    fn a_host_is_measured_once_and_shared_by_seconds_of_processors() {
        let ranks = [rank(0, 10.0, measured(600.0)), rank(0, 30.0, None), rank(1, 7.0, measured(50.0))];
        let (summary, joules) = together(&ranks, 1300);
        assert_eq!(joules, [Some(150.0), Some(450.0), Some(50.0)]);
        assert_eq!((summary.cpu.kind, summary.cpu.joules), (EnergyKind::Measured, Some(650.0)));
        assert_eq!((summary.gpu.kind, summary.gpu.joules), (EnergyKind::Absent, None));
        assert_eq!((summary.mean_watts, summary.joules_per_sample), (Some(65.0), Some(0.5)));
    }

    #[test]
    fn what_one_host_does_not_say_is_absent_for_all() {
        let absent = EnergyPart { kind: EnergyKind::Absent, model: "no counter".to_owned(), joules: None };
        let ranks = [rank(0, 10.0, measured(600.0)), rank(1, 1.0, Some(absent))];
        let (summary, joules) = together(&ranks, 100);
        assert_eq!(joules, [Some(600.0), None]);
        assert_eq!((summary.cpu.joules, summary.joules_per_sample), (None, None));
        assert_eq!(summary.cpu.model, "no counter");
        let orphans = [rank(3, 5.0, None)];
        assert!(together(&orphans, 1).0.cpu.model.contains("has died"));
    }

    #[test]
    fn without_counters_stated_watts_estimate_and_nothing_else_does() {
        let none = || Err(PowercapError::None(Path::new("/x").to_owned()));
        let mut stated = CpuEnergy::of(false, 12.5, none);
        assert_eq!(stated.joules(Some(4.0)), Some(50.0));
        let part = stated.part(Some(50.0)).expect("a part");
        assert_eq!(part.kind, EnergyKind::Estimated);
        assert!(part.model.contains("12.5 W"), "{part:?}");
        let ranks =
            [rank(0, 4.0, Some(part.clone())), rank(0, 2.0, Some(EnergyPart { joules: Some(25.0), ..part }))];
        assert_eq!(together(&ranks, 1).1, [Some(50.0), Some(25.0)]);
        let mut unknown = CpuEnergy::of(true, 0.0, none);
        assert_eq!((unknown.joules(Some(4.0)), unknown.kind()), (None, None));
        assert!(unknown.part(None).expect("a part").model.contains("log.cpu_watts"));
    }
}
