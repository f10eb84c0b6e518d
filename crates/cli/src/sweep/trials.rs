//! The runs of a sweep: every configuration that its file asks for, once for each seed.

use std::collections::BTreeMap;

use super::compared::{Relative, matches};
use super::file::{Axis, Choice, Part, Random, Range, Scaling, SweepFile};

/// A configuration that a table has a row for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trial {
    /// The choice of each axis of its part, and the drawn values.
    pub choices: Vec<String>,
    /// Its runs, one for each seed, by their places among the runs of the sweep.
    pub runs: Vec<usize>,
    /// The published numbers, by column.
    pub published: BTreeMap<String, f64>,
}

/// A table's trials.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// The subject of its comparison.
    pub title: String,
    /// The names of its axes and of drawn keys.
    pub axes: Vec<String>,
    /// The numbers that it shows.
    pub columns: Vec<String>,
    /// The columns that compare.
    pub relative: Vec<Relative>,
    /// The choices of the run that its rows are predicted from.
    pub predict: BTreeMap<String, toml::Value>,
    /// The chart in addition to the losses.
    pub scaling: Option<Scaling>,
    /// Where its published numbers come from.
    pub sources: Vec<String>,
    /// Its rows.
    pub trials: Vec<Trial>,
}

/// A training.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The name of its folder.
    pub name: String,
    /// The preset, or file, that it extends.
    pub extends: String,
    /// Its assignments `section.key=value`, the later ones over the earlier.
    pub sets: Vec<String>,
    /// True if it is predicted and not trained.
    pub predicted: bool,
}

/// All that a sweep trains.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trials {
    /// The trainings; a configuration that several tables have is trained once.
    pub runs: Vec<Run>,
    /// The tables.
    pub tables: Vec<Table>,
}

impl Trials {
    /// Returns the trials of a file, with further assignments of all runs, which those of axes override; `quick` skips
    /// slow parts.
    pub fn of(file: &SweepFile, sets: &[String], quick: bool) -> Self {
        let mut trials = Self::default();
        for part in file.tables().iter().filter(|part| !(quick && part.slow)) {
            let mut common = file.set.clone();
            common.extend(part.set.iter().cloned());
            if quick {
                common.extend(file.quick.iter().cloned());
            }
            common.extend(sets.iter().cloned());
            trials.add_part(file, part, &common, quick);
        }
        trials
    }

    fn add_part(&mut self, file: &SweepFile, part: &Part, common: &[String], quick: bool) {
        let axes = file.axes_of(part);
        let mut names: Vec<String> = axes.iter().map(|axis| axis.title().to_owned()).collect();
        let drawn = file.random.as_ref().map(draws).unwrap_or_default();
        names.extend(file.random.iter().flat_map(|random| random.keys.keys().cloned()));
        let columns = file.columns_of(part);
        let relative = part.relative.iter().chain(&file.relative);
        let relative = relative.filter(|relative| columns.contains(&relative.name)).cloned().collect();
        let mut table =
            Table { title: part.title.clone(), axes: names, columns, relative, ..Table::default() };
        table.predict.clone_from(file.predict_of(part));
        table.scaling.clone_from(&part.scaling);
        let mut rows = product(&axes, quick);
        if !drawn.is_empty() {
            rows = rows
                .iter()
                .flat_map(|row| drawn.iter().map(move |drawn| [row.clone(), drawn.clone()].concat()))
                .collect();
        }
        for row in rows {
            let mut sets = common.to_vec();
            sets.extend(row.iter().flat_map(|choice| choice.set.iter().cloned()));
            let extends = part.extends.as_deref().unwrap_or(&file.extends);
            let several = file.seeds.len() > 1;
            let runs = file.seeds.iter().map(|seed| self.run(extends, &row, &sets, *seed, several));
            let runs = runs.collect();
            let choices: Vec<String> = row.into_iter().map(|choice| choice.name).collect();
            let mut numbers = BTreeMap::new();
            for published in file.published.iter().chain(&part.published) {
                if matches(&published.of, &table.axes, &choices) {
                    numbers.extend(published.numbers.clone());
                    if !published.source.is_empty() && !table.sources.contains(&published.source) {
                        table.sources.push(published.source.clone());
                    }
                }
            }
            numbers.retain(|name, _| table.columns.contains(name));
            table.trials.push(Trial { choices, runs, published: numbers });
        }
        self.tables.push(table);
    }

    /// The place of a run, which is added if there is none of its configuration.
    fn run(&mut self, extends: &str, row: &[Choice], sets: &[String], seed: u64, several: bool) -> usize {
        let mut sets = sets.to_vec();
        sets.push(format!("train.seed={seed}"));
        let effective = effective(&sets);
        let is_it = |run: &Run| run.extends == extends && self::effective(&run.sets) == effective;
        if let Some(at) = self.runs.iter().position(is_it) {
            return at;
        }
        let mut name = row.iter().map(|choice| file_name(&choice.name)).collect::<Vec<_>>().join("_");
        if several {
            name.push_str(&format!("_seed{seed}"));
        }
        let name = if name.is_empty() { "run".to_owned() } else { name };
        // Parts may call different configurations alike.
        let taken = |name: &str| self.runs.iter().any(|run| run.name == name);
        let name = match taken(&name) {
            false => name,
            true => (2..).map(|n| format!("{name}-{n}")).find(|name| !taken(name)).unwrap_or(name),
        };
        let predicted = row.iter().any(|choice| choice.predicted);
        self.runs.push(Run { name, extends: extends.to_owned(), sets, predicted });
        self.runs.len() - 1
    }
}

/// Of assignments of a key the last, in the order of keys.
fn effective(sets: &[String]) -> BTreeMap<&str, &str> {
    sets.iter().map(|set| set.split_once('=').unwrap_or((set, ""))).collect()
}

/// A choice of each axis, the last axis varying fastest.
fn product(axes: &[&Axis], quick: bool) -> Vec<Vec<Choice>> {
    axes.iter().fold(vec![Vec::new()], |rows, axis| {
        let choices: Vec<Choice> =
            axis.all_choices().into_iter().filter(|choice| !(quick && choice.slow)).collect();
        let extend = |row: &Vec<Choice>| {
            choices.iter().map(|choice| [&row[..], std::slice::from_ref(choice)].concat()).collect::<Vec<_>>()
        };
        rows.iter().flat_map(extend).collect()
    })
}

/// The drawn values, a choice for each key.
fn draws(random: &Random) -> Vec<Vec<Choice>> {
    let key = phalanx_tensor::Key::new(random.seed).stream("sweep");
    let draw = |trial: usize| {
        let of_key = |(name, range): (&String, &Range)| {
            let mut drawn = [0.0];
            key.stream(name).step(trial as u64).uniform(0, &mut drawn);
            let part: f64 = drawn[0];
            let value = match range {
                Range::Choices(values) => {
                    let at = (part * values.len() as f64) as usize;
                    values[at.min(values.len() - 1)].clone()
                }
                Range::Between { from, to, log: false } => rounded(from + part * (to - from)),
                Range::Between { from, to, log: true } => {
                    rounded((from.ln() + part * (to / from).ln()).exp())
                }
            };
            Choice {
                name: value.to_string(),
                set: vec![format!("{name}={value}")],
                predicted: false,
                slow: false,
            }
        };
        random.keys.iter().map(of_key).collect()
    };
    (0..random.trials).map(draw).collect()
}

/// Three digits are enough for a value that is drawn.
fn rounded(value: f64) -> toml::Value {
    let short = format!("{value:.2e}").parse().unwrap_or(value);
    toml::Value::Float(short)
}

/// A name that every file system takes.
fn file_name(name: &str) -> String {
    let kept = name.chars().map(|letter| match letter {
        letter if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '+') => letter,
        _ => '-',
    });
    let mut short = String::new();
    for letter in kept {
        if letter != '-' || !short.ends_with('-') {
            short.push(letter);
        }
    }
    short.trim_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        about = "what is asked"
        extends = "tiny"
        set = ["train.steps=10", "train.ranks=2"]
        quick = ["train.steps=3"]
        seeds = [0, 1]
        [[part]]
        title = "strategies"
        [[part.axis]]
        name = "strategy"
        choices = [{ name = "ddp" }, { name = "ssp, 3 steps", set = ["train.strategy=ps-ssp", "sync.staleness=3"], slow = true }]
        [[part.axis]]
        key = "optim.lr"
        values = [0.1, 0.2]
        [[part.published]]
        of = { strategy = "ddp", "optim.lr" = 0.1 }
        numbers = { loss = 0.5 }
        source = "a paper"
        [[part]]
        title = "one of them, and slower"
        set = ["optim.lr=0.1"]
        slow = true
        [[part.axis]]
        name = "workers"
        choices = [{ name = "2" }, { name = "4", set = ["train.ranks=4"] }]
    "#;

    #[test]
    fn every_configuration_is_trained_once_for_each_seed() {
        let file = SweepFile::parse("a.toml", FILE).expect("sound");
        let trials = Trials::of(&file, &["data.images=64".to_owned()], false);
        // 2 strategies x 2 rates, and of the second part 4 workers alone: 2 workers are the first part's ddp at 0.1.
        assert_eq!(trials.runs.len(), 10);
        assert_eq!(trials.tables[1].trials[0].runs, trials.tables[0].trials[0].runs);
        assert_eq!(trials.tables[0].axes, ["strategy", "optim.lr"]);
        assert_eq!(trials.tables[0].trials[3].choices, ["ssp, 3 steps", "0.2"]);
        let published = trials.tables[0].trials.iter().map(|trial| trial.published.get("loss").copied());
        assert_eq!(published.collect::<Vec<_>>(), [Some(0.5), None, None, None]);
        assert_eq!(trials.tables[0].sources, ["a paper"]);
        let run = &trials.runs[trials.tables[0].trials[3].runs[1]];
        assert_eq!(run.name, "ssp-3-steps_0.2_seed1");
        let expected = [
            "train.steps=10",
            "train.ranks=2",
            "data.images=64",
            "train.strategy=ps-ssp",
            "sync.staleness=3",
            "optim.lr=0.2",
            "train.seed=1",
        ];
        assert_eq!(run.sets, expected);
        let quick = Trials::of(&file, &[], true);
        // Without the slow part and the slow strategy.
        assert_eq!((quick.tables.len(), quick.runs.len()), (1, 4));
        assert!(quick.runs[0].sets.contains(&"train.steps=3".to_owned()));
    }

    #[test]
    fn draws_repeat_and_stay_within_their_bounds() {
        let text = "about = \"x\"\nextends = \"tiny\"\n[random]\ntrials = 50\nseed = 3\n[random.keys]\n\
                    \"optim.lr\" = {from = 1e-4, to = 1e-1, log = true}\n\"model.width\" = [8, 16]\n";
        let file = SweepFile::parse("a.toml", text).expect("sound");
        let trials = Trials::of(&file, &[], false);
        assert_eq!(trials, Trials::of(&file, &[], false));
        assert_eq!(trials.tables[0].axes, ["model.width", "optim.lr"]);
        let rates: Vec<f64> =
            trials.tables[0].trials.iter().map(|trial| trial.choices[1].parse().expect("a number")).collect();
        assert!(rates.iter().all(|rate| (1e-4..=1e-1).contains(rate)), "{rates:?}");
        let small = rates.iter().filter(|rate| **rate < 10_f64.powf(-2.5)).count();
        assert!((15..=35).contains(&small), "half of the logarithms: {small} of 50");
    }
}
