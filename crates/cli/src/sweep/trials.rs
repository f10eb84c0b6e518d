//! The runs of a sweep: every configuration that its file asks for, once for each seed.

use std::collections::{BTreeMap, BTreeSet};

use super::compared::{Relative, choice_name, matches};
use super::file::{Axis, Choice, Part, Scaling, SweepFile};
use super::search::{Goal, Method, RecordedTrial, SearchKey, SearchRecord, Space, draw};

/// A configuration that a table has a row for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trial {
    /// The choice of each axis of its part; of a search also the number of the trial, and the drawn values.
    pub choices: Vec<String>,
    /// The drawn values, by key in the order of the names; of a choice, its number.
    pub values: Vec<f64>,
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
    /// The names of its axes; of a search also [`TRIAL`] and the drawn keys.
    pub axes: Vec<String>,
    /// The drawn keys with their values.
    pub keys: Space,
    /// The measure by which its rows are compared.
    pub objective: Option<Objective>,
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

/// The name of the column with the numbers of trials.
pub const TRIAL: &str = "trial";

/// A measure, and the direction in which it improves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objective {
    /// The number of a run.
    pub measure: String,
    /// Its direction.
    pub goal: Goal,
}

/// The trials of a search in a table. There is a search for each combination of the axes.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchRows {
    /// The number of its part, and its choices on the axes: its name in the record.
    pub name: String,
    /// The table.
    pub table: usize,
    /// The row of its first trial. The rows of all trials follow each other.
    pub first: usize,
    /// The number of trials that are drawn.
    pub drawn: usize,
    /// The preset, or file, that its runs extend.
    extends: String,
    /// The assignments of its runs, without drawn values.
    sets: Vec<String>,
    /// The beginning of the names of its runs.
    prefix: String,
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
    /// The searches, in the order of the tables and rows.
    pub searches: Vec<SearchRows>,
    /// The places of runs by their configurations.
    places: BTreeMap<RunSettings, usize>,
    /// The names of runs.
    names: BTreeSet<String>,
}

/// The configuration of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RunSettings {
    extends: String,
    sets: BTreeMap<String, String>,
}

impl Trials {
    /// Returns the trials of a file, with further assignments of all runs, which those of axes override; `quick` skips
    /// slow parts. Of a search it draws the trials that depend on no outcome.
    pub fn of(file: &SweepFile, sets: &[String], quick: bool) -> Self {
        let mut trials = Self::default();
        for (at, part) in file.tables().iter().enumerate().filter(|(_, part)| !(quick && part.slow)) {
            let mut common = file.set.clone();
            common.extend(part.set.iter().cloned());
            if quick {
                common.extend(file.quick.iter().cloned());
            }
            common.extend(sets.iter().cloned());
            trials.add_part(file, (at, part), &common, quick);
        }
        if let Some(search) = &file.search {
            let known = match search.method {
                Method::Random => search.trials,
                Method::Tpe => search.startup.min(search.trials),
            };
            for of in 0..trials.searches.len() {
                (0..known).for_each(|trial| trials.draw(file, of, &draw(search, trial, &[])));
            }
        }
        trials
    }

    fn add_part(&mut self, file: &SweepFile, (number, part): (usize, &Part), common: &[String], quick: bool) {
        let axes = file.axes_of(part);
        let mut table = empty_table(file, part);
        for row in product(&axes, quick) {
            let mut sets = common.to_vec();
            sets.extend(row.iter().flat_map(|choice| choice.set.iter().cloned()));
            let extends = part.extends.as_ref().unwrap_or(&file.extends).clone();
            let predicted = row.iter().any(|choice| choice.predicted);
            let prefix = row.iter().map(|choice| file_name(&choice.name)).collect::<Vec<_>>().join("_");
            let choices: Vec<String> = row.into_iter().map(|choice| choice.name).collect();
            let mut trial =
                Trial { published: published(file, part, &choices, &mut table), ..Trial::default() };
            let Some(search) = &file.search else {
                trial.choices = choices;
                trial.runs = self.runs_of_seeds(file, &Run { name: prefix, extends, sets, predicted });
                table.trials.push(trial);
                continue;
            };
            let name = format!("{}; {}", number + 1, choices.join(", "));
            let (table_number, first) = (self.tables.len(), table.trials.len());
            self.searches.push(SearchRows {
                name,
                table: table_number,
                first,
                drawn: 0,
                extends,
                sets,
                prefix,
            });
            for at in 0..search.trials {
                trial.choices = [&choices[..], &[at.to_string()]].concat();
                table.trials.push(trial.clone());
            }
        }
        self.tables.push(table);
    }

    /// Draws the next trial of a search: fills its row, and adds its runs.
    pub fn draw(&mut self, file: &SweepFile, search: usize, values: &[f64]) {
        let rows = &mut self.searches[search];
        let number = rows.drawn;
        rows.drawn += 1;
        let (table, row) = (rows.table, rows.first + number);
        let keys = file.search.as_ref().map(|search| &search.keys);
        let settings = keys.into_iter().flatten().zip(values).map(|((name, key), value)| {
            let setting = key.setting(*value);
            (format!("{name}={setting}"), choice_name(&setting))
        });
        let (drawn, mut choices): (Vec<String>, Vec<String>) = settings.unzip();
        let sets = [&rows.sets[..], &drawn].concat();
        let name = if rows.prefix.is_empty() { String::new() } else { format!("{}_", rows.prefix) };
        let run = Run {
            name: format!("{name}{TRIAL}-{number}"),
            extends: rows.extends.clone(),
            sets,
            predicted: false,
        };
        let runs = self.runs_of_seeds(file, &run);
        let trial = &mut self.tables[table].trials[row];
        trial.choices.append(&mut choices);
        trial.values = values.to_vec();
        trial.runs = runs;
    }

    /// Draws the trials that an earlier call of the sweep has recorded.
    ///
    /// # Errors
    /// If the record is of other settings.
    pub fn draw_recorded(&mut self, file: &SweepFile, record: &SearchRecord) -> Result<(), String> {
        let Some(search) = &file.search else { return Ok(()) };
        for of in 0..self.searches.len() {
            let Some(recorded) = record.searches.get(&self.searches[of].name) else { continue };
            if recorded.settings != search.settings() {
                return Err("holds trials of other settings of [search]".to_owned());
            }
            let drawn = self.searches[of].drawn;
            for trial in recorded.trials.iter().take(search.trials).skip(drawn) {
                let value = |(name, key): (&String, &_)| recorded_value(trial, name, key);
                let values = search.keys.iter().map(value).collect::<Result<Vec<f64>, _>>()?;
                self.draw(file, of, &values);
            }
        }
        Ok(())
    }

    /// Returns a trial of a search.
    pub fn trial(&self, search: usize, trial: usize) -> &Trial {
        let rows = &self.searches[search];
        &self.tables[rows.table].trials[rows.first + trial]
    }

    /// Leaves out the rows of trials that were not drawn, as of an interrupted search.
    pub fn leave_out_undrawn(&mut self) {
        for table in &mut self.tables {
            table.trials.retain(|trial| !trial.runs.is_empty());
        }
    }

    /// Returns the runs of a configuration, one for each seed.
    fn runs_of_seeds(&mut self, file: &SweepFile, run: &Run) -> Vec<usize> {
        let of_seed = |seed: &u64| {
            let mut run = run.clone();
            run.sets.push(format!("train.seed={seed}"));
            if file.seeds.len() > 1 {
                run.name.push_str(&format!("_seed{seed}"));
            }
            self.place(run)
        };
        file.seeds.iter().map(of_seed).collect()
    }

    /// The place of a run, which is added if there is none of its configuration.
    fn place(&mut self, mut run: Run) -> usize {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let sets = effective(&run.sets).into_iter().map(owned).collect();
        let settings = RunSettings { extends: run.extends.clone(), sets };
        if let Some(at) = self.places.get(&settings) {
            return *at;
        }
        if run.name.is_empty() {
            run.name = "run".to_owned();
        }
        // Parts may call different configurations alike.
        if self.names.contains(&run.name) {
            let mut names = (2..).map(|n| format!("{}-{n}", run.name));
            run.name = names.find(|name| !self.names.contains(name)).unwrap_or_default();
        }
        self.names.insert(run.name.clone());
        self.places.insert(settings, self.runs.len());
        self.runs.push(run);
        self.runs.len() - 1
    }
}

/// Returns the recorded value of a key.
fn recorded_value(trial: &RecordedTrial, name: &str, key: &SearchKey) -> Result<f64, String> {
    let value = trial.values.get(name).and_then(|setting| key.value_of(setting));
    value.ok_or_else(|| format!("has a trial without a value of `{name}`"))
}

/// Returns the table of a part, without rows.
fn empty_table(file: &SweepFile, part: &Part) -> Table {
    let mut axes: Vec<String> = file.axes_of(part).iter().map(|axis| axis.title().to_owned()).collect();
    let keys = file.search.as_ref().map(|search| search.keys.clone()).unwrap_or_default();
    if !keys.is_empty() {
        axes.push(TRIAL.to_owned());
        axes.extend(keys.keys().cloned());
    }
    let columns = file.columns_of(part);
    let relative = part.relative.iter().chain(&file.relative);
    let relative = relative.filter(|relative| columns.contains(&relative.name)).cloned().collect();
    let objective = file.objective().map(|(measure, goal)| Objective { measure: measure.to_owned(), goal });
    Table {
        title: part.title.clone(),
        axes,
        keys,
        objective,
        columns,
        relative,
        predict: file.predict_of(part).clone(),
        scaling: part.scaling.clone(),
        ..Table::default()
    }
}

/// Returns the published numbers of a row with these choices, and adds their sources to the table.
fn published(file: &SweepFile, part: &Part, choices: &[String], table: &mut Table) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    for published in file.published.iter().chain(&part.published) {
        if matches(&published.of, &table.axes, choices) {
            numbers.extend(published.numbers.clone());
            if !published.source.is_empty() && !table.sources.contains(&published.source) {
                table.sources.push(published.source.clone());
            }
        }
    }
    numbers.retain(|name, _| table.columns.contains(name));
    numbers
}

/// Of assignments of a key the last, in the order of keys.
pub(super) fn effective(sets: &[String]) -> BTreeMap<&str, &str> {
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
    use crate::sweep::search::RecordedSearch;

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

    const SEARCH: &str = r#"
        about = "what is asked"
        extends = "tiny"
        [search]
        trials = 6
        startup = 2
        measure = "test_accuracy"
        keys."optim.lr" = { from = 1e-4, to = 1e-1, log = true }
        keys."optim.kind" = ["adamw", "sgd"]
        [[axis]]
        name = "strategy"
        choices = [{ name = "ddp" }, { name = "fsdp", set = ["train.strategy=fsdp"] }]
    "#;

    #[test]
    fn a_search_of_each_combination_draws_trials_one_by_one() {
        let file = SweepFile::parse("a.toml", SEARCH).expect("sound");
        let mut trials = Trials::of(&file, &[], false);
        assert_eq!(trials, Trials::of(&file, &[], false));
        let table = &trials.tables[0];
        assert_eq!(table.axes, ["strategy", "trial", "optim.kind", "optim.lr"]);
        assert_eq!((table.columns[0].as_str(), table.trials.len()), ("test_accuracy", 12));
        // The draws are the same for each combination.
        assert_eq!(table.trials[0].choices[1..], table.trials[6].choices[1..]);
        assert_eq!(
            trials.runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(),
            ["ddp_trial-0", "ddp_trial-1", "fsdp_trial-0", "fsdp_trial-1"]
        );
        trials.draw(&file, 1, &[1.0, 0.05]);
        assert_eq!(trials.tables[0].trials[8], *trials.trial(1, 2));
        assert_eq!(trials.trial(1, 2).choices, ["fsdp", "2", "sgd", "0.05"]);
        let run = &trials.runs[trials.trial(1, 2).runs[0]];
        assert_eq!(run.sets, ["train.strategy=fsdp", "optim.kind=\"sgd\"", "optim.lr=0.05", "train.seed=0"]);
        // A configuration that was drawn before is not trained again.
        trials.draw(&file, 1, &[1.0, 0.05]);
        assert_eq!((trials.trial(1, 3).runs.clone(), trials.runs.len()), (vec![4], 5));
        trials.leave_out_undrawn();
        assert_eq!(trials.tables[0].trials.len(), 6);
    }

    #[test]
    fn recorded_trials_are_drawn_again_unless_the_search_has_changed() {
        let file = SweepFile::parse("a.toml", SEARCH).expect("sound");
        let values = [("optim.kind", toml::Value::from("sgd")), ("optim.lr", toml::Value::from(0.05))];
        let values = values.map(|(key, value)| (key.to_owned(), value)).into();
        let trial = RecordedTrial { seen: 2, values, end: None };
        let settings = file.search.as_ref().expect("a search").settings();
        let recorded = RecordedSearch { settings, trials: vec![trial; 3] };
        let record = SearchRecord { searches: [("1; fsdp".to_owned(), recorded)].into() };
        let mut trials = Trials::of(&file, &[], false);
        trials.draw_recorded(&file, &record).expect("of this search");
        assert_eq!((trials.searches[0].drawn, trials.searches[1].drawn), (2, 3));
        assert_eq!(trials.trial(1, 2).choices, ["fsdp", "2", "sgd", "0.05"]);
        for (from, to, expected) in [
            ("trials = 6", "trials = 9", Ok(())),
            ("startup = 2", "startup = 1", Err("holds trials of other settings of [search]".to_owned())),
        ] {
            let file = SweepFile::parse("a.toml", &SEARCH.replace(from, to)).expect("sound");
            let mut trials = Trials::of(&file, &[], false);
            assert_eq!(trials.draw_recorded(&file, &record), expected, "{to}");
        }
    }
}
