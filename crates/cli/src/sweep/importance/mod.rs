//! The importance of the keys of a sweep for its measure, by functional analysis of variance (fANOVA).
//!
//! Hutter, Hoos, Leyton-Brown 2014, *An Efficient Approach for Assessing Hyperparameter Importance*: a random forest
//! predicts the measure from the keys, and the variance of the prediction over all values of all keys is divided into
//! the part of each key alone and the rest, which belongs to combinations of keys.

mod forest;

use serde::Serialize;

use super::table::ResultTable;
use super::trials::{TRIAL, Table};
use forest::{Domain, Rows};

/// The rows without which no importance is computed.
const FEWEST: usize = 10;

/// The shares of a table's keys in the variance of its measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Importance {
    /// The measure.
    pub measure: String,
    /// The number of rows that were trained to their ends.
    pub rows: usize,
    /// Keys and axes with their shares, the largest first.
    pub keys: Vec<KeyShare>,
    /// The share of their combinations.
    pub interactions: f64,
}

/// The share of a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyShare {
    /// The key, or the title of the axis.
    pub key: String,
    /// The share of the variance that the key explains alone.
    pub share: f64,
}

impl Importance {
    /// Computes the shares of a table's keys; `None` for a table of fewer than ten rows with a measure, of a single key,
    /// or whose measure is constant. Rows that were stopped before their end do not count.
    pub fn of(table: &Table, filled: &ResultTable) -> Option<Self> {
        let measure = table.objective.as_ref()?.measure.clone();
        let known = filled.measures(table).into_iter().enumerate();
        let (rows, measures): (Vec<usize>, Vec<f64>) =
            known.filter_map(|(at, measure)| Some((at, measure?))).unzip();
        let columns: Vec<Column> =
            (0..table.axes.len()).filter_map(|axis| Column::of(table, axis, &rows)).collect();
        if rows.len() < FEWEST || columns.len() < 2 {
            return None;
        }
        let domains: Vec<Domain> = columns.iter().map(|column| column.domain).collect();
        let row = |at: usize| columns.iter().map(|column| column.values[at]).collect::<Vec<f64>>();
        let values: Vec<Vec<f64>> = (0..rows.len()).map(row).collect();
        let shares = Rows { domains: &domains, values: &values, measures: &measures }.shares()?;
        let interactions = (1.0 - shares.iter().sum::<f64>()).max(0.0);
        let share = |(column, share): (Column, f64)| KeyShare { key: column.name, share };
        let mut keys: Vec<KeyShare> = columns.into_iter().zip(shares).map(share).collect();
        keys.sort_by(|a, b| b.share.total_cmp(&a.share));
        Some(Self { measure, rows: rows.len(), keys, interactions })
    }

    /// Its table as words.
    pub fn words(&self) -> Vec<Vec<String>> {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let head = vec![format!("importance for {}", self.measure.replace('_', " ")), "share".to_owned()];
        let key = |key: &KeyShare| vec![key.key.clone(), percent(key.share)];
        let rest = vec!["combinations of keys".to_owned(), percent(self.interactions)];
        std::iter::once(head).chain(self.keys.iter().map(key)).chain([rest]).collect()
    }
}

/// The values of a key in the rows of a table.
struct Column {
    name: String,
    domain: Domain,
    values: Vec<f64>,
}

impl Column {
    /// Returns the values of an axis or a drawn key in these rows; `None` for the number of the trial, and if there is
    /// only one choice.
    fn of(table: &Table, axis: usize, rows: &[usize]) -> Option<Self> {
        let name = table.axes[axis].clone();
        let drawn = table.keys.iter().enumerate().find(|(_, (key, _))| **key == name);
        if let Some((at, (_, key))) = drawn {
            let domain = key.choices().map_or(Domain::Range, Domain::Choices);
            let value = |row: &usize| key.position(table.trials[*row].values[at]);
            return (key.choices() != Some(1)).then(|| Self {
                name,
                domain,
                values: rows.iter().map(value).collect(),
            });
        }
        let mut choices: Vec<&String> = Vec::new();
        let mut values = Vec::new();
        for row in rows {
            let choice = &table.trials[*row].choices[axis];
            let at = choices.iter().position(|known| *known == choice);
            values.push(at.unwrap_or(choices.len()) as f64);
            if at.is_none() {
                choices.push(choice);
            }
        }
        let count = choices.len();
        (count > 1 && name != TRIAL).then_some(Self { name, domain: Domain::Choices(count), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::{Outcome, SweepFile, Trials};

    fn importance(text: &str, measure: impl Fn(&[String]) -> f64) -> Option<Importance> {
        let file = SweepFile::parse("a.toml", text).expect("sound");
        let trials = Trials::of(&file, &[], false);
        let table = &trials.tables[0];
        let mut outcomes = vec![None; trials.runs.len()];
        for trial in &table.trials {
            let numbers = [("loss".to_owned(), measure(&trial.choices))].into();
            outcomes[trial.runs[0]] = Some(Ok(Outcome { numbers, ..Outcome::default() }));
        }
        Importance::of(table, &ResultTable::of(table, &outcomes))
    }

    const HEAD: &str = "about = \"x\"\nextends = \"tiny\"\n";

    #[test]
    fn keys_of_grids_and_of_searches_have_shares() {
        let grid = format!(
            "{HEAD}best = {{ measure = \"loss\" }}\n[[axis]]\nkey = \"optim.lr\"\nvalues = [1, 2, 3, 4]\n\
             [[axis]]\nname = \"way\"\nchoices = [{{ name = \"a\" }}, {{ name = \"b\", set = [\"train.steps=9\"] }}, {{ name = \"c\", set = [\"train.steps=8\"] }}]\n"
        );
        let number = |word: &str| word.parse::<f64>().expect("a number");
        let found = importance(&grid, |row| if row[1] == "b" { 10.0 } else { number(&row[0]) / 4.0 });
        let found = found.expect("12 rows");
        assert_eq!((found.rows, found.keys[0].key.as_str(), found.keys.len()), (12, "way", 2));
        assert!(found.keys[0].share > 0.9, "{found:?}");
        let search = format!(
            "{HEAD}[search]\nmethod = \"random\"\ntrials = 60\nmeasure = \"loss\"\n\
             keys.\"optim.lr\" = {{ from = 1e-4, to = 1.0, log = true }}\nkeys.\"data.depth\" = {{ from = 1, to = 9, int = true }}\n"
        );
        let found =
            importance(&search, |row| (number(&row[2]).log10() + 2.0).powi(2) + 0.01 * number(&row[1]));
        let found = found.expect("60 rows");
        assert_eq!(found.keys[0].key, "optim.lr");
        assert!(found.keys[0].share > 0.85 && found.keys[1].share < 0.05, "{found:?}");
        let words = found.words();
        assert_eq!(
            (words[0][0].as_str(), words[3][0].as_str()),
            ("importance for loss", "combinations of keys")
        );
        assert_eq!(importance(&search, |_| 1.0), None);
        let few = search.replace("trials = 60", "trials = 9");
        assert_eq!(importance(&few, |row| number(&row[2])), None);
    }
}
