//! Reads the results of a sweep from `results.json`: description, conditions and tables.

use std::path::{Path, PathBuf};

use phalanx_run::Links;
use serde_json::Value;

use super::settings::at;

/// The results of a sweep.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sweep {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Its name; its folder's name by default.
    pub(crate) name: String,
    /// Its description.
    pub(crate) about: String,
    /// The conditions of the measurements.
    pub(crate) measured: String,
    /// The descriptions of columns.
    pub(crate) meanings: Vec<(String, String)>,
    /// The target: the name of a loss, and the value to reach.
    pub(crate) target: Option<(String, f64)>,
    /// Its tables.
    pub(crate) tables: Vec<Table>,
}

/// A table of results.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Table {
    /// The title.
    pub(crate) title: String,
    /// The axes of its rows.
    pub(crate) axes: Vec<String>,
    /// The names of its columns.
    pub(crate) columns: Vec<String>,
    /// The notes below it.
    pub(crate) notes: Vec<String>,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
    /// The speed-ups over ranks, for each combination of the other axes.
    pub(crate) speedups: Vec<Speedups>,
    /// Its best row.
    pub(crate) best: Option<BestRow>,
    /// The importance of its keys.
    pub(crate) importance: Option<Importance>,
}

/// The best row of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct BestRow {
    /// Its choices, or the number of its trial.
    pub(crate) name: String,
    /// The measure by which it is the best.
    pub(crate) measure: String,
    /// The value of the measure.
    pub(crate) value: f64,
    /// The folder of its run.
    pub(crate) run: String,
    /// The settings by which it differs from other rows.
    pub(crate) settings: Vec<String>,
    /// The commands that go on with it.
    pub(crate) commands: Vec<String>,
}

/// The shares of keys in the variance of a measure.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Importance {
    /// The measure.
    pub(crate) measure: String,
    /// The keys with their shares.
    pub(crate) keys: Vec<(String, f64)>,
    /// The share of their combinations.
    pub(crate) interactions: f64,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Row {
    /// Its choices on the axes.
    pub(crate) choices: Vec<String>,
    /// Means with standard deviations over seeds.
    pub(crate) numbers: Vec<Option<(f64, Option<f64>)>>,
    /// The published numbers, by column.
    pub(crate) published: Vec<Option<f64>>,
    /// True if it was predicted and not trained.
    pub(crate) predicted: bool,
    /// True for the best row.
    pub(crate) best: bool,
    /// The step at which a rule of the search stopped its run.
    pub(crate) pruned: Option<u64>,
    /// The source of its energy values: `measured`, `estimated` or `absent`.
    pub(crate) energy: Option<String>,
    /// The folders of its runs in the sweep's `runs/`, one for each seed.
    pub(crate) runs: Vec<String>,
    /// The errors of failed runs.
    pub(crate) errors: Vec<String>,
}

/// A line of speed-ups: its name, and points of ranks and speed-up.
pub(crate) type SpeedupLine = (String, Vec<(f64, f64)>);

/// Speed-ups over numbers of ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Speedups {
    /// The choices on the other axes.
    pub(crate) title: String,
    /// The lines.
    pub(crate) lines: Vec<SpeedupLine>,
}

impl Table {
    /// Returns true if a column has published numbers.
    pub(crate) fn is_published(&self, column: usize) -> bool {
        self.rows.iter().any(|row| row.published.get(column).is_some_and(Option::is_some))
    }
}

/// Reads the results of a sweep; `None` without a `results.json`, because the sweep has not ended.
///
/// # Errors
/// A message that begins with the name of the file.
pub(crate) fn read_sweep(folder: &Path) -> Result<Option<Sweep>, String> {
    let bytes = match Links::Refuse.read(&folder.join("results.json")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("results.json cannot be read: {error}")),
    };
    let all: Value = serde_json::from_slice(&bytes).map_err(|error| format!("results.json: {error}"))?;
    let meanings = at(&all, "meanings").and_then(Value::as_object).into_iter().flatten();
    let target = at(&all, "target").and_then(|of| Some((word(of, "loss"), of["below"].as_f64()?)));
    let called = word(&all, "study");
    let of_folder = || folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Sweep {
        folder: folder.to_owned(),
        name: if called.is_empty() { of_folder() } else { called },
        about: word(&all, "about"),
        measured: word(&all, "measured"),
        meanings: meanings.map(|(name, what)| (name.clone(), text(what))).collect(),
        target,
        tables: list(&all, "tables").iter().map(table).collect(),
    }))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn word(of: &Value, name: &str) -> String {
    at(of, name).map(text).unwrap_or_default()
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    at(of, name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn words(of: &Value, name: &str) -> Vec<String> {
    list(of, name).iter().map(text).collect()
}

fn table(value: &Value) -> Table {
    let rows = list(value, "rows");
    // Earlier versions did not store the order of columns.
    let keys = |named: &str, name: &str| {
        let mut keys = words(value, named);
        for row in rows {
            for key in at(row, name).and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys) {
                if !keys.contains(key) {
                    keys.push(key.clone());
                }
            }
        }
        keys
    };
    let (axes, columns) = (keys("axes", "choices"), keys("columns", "numbers"));
    let row = |row: &Value| {
        let number = |name: &String| {
            let number = &row["numbers"][name];
            Some((number["mean"].as_f64()?, number["deviation"].as_f64()))
        };
        Row {
            choices: axes.iter().map(|name| text(&row["choices"][name])).collect(),
            numbers: columns.iter().map(number).collect(),
            published: columns.iter().map(|name| row["published"][name].as_f64()).collect(),
            predicted: row["predicted"].as_bool().unwrap_or_default(),
            best: row["best"].as_bool().unwrap_or_default(),
            pruned: row["pruned"].as_u64(),
            energy: row["energy"]["kind"].as_str().map(str::to_owned),
            runs: words(row, "runs"),
            errors: words(row, "errors"),
        }
    };
    let title = at(value, "title").and_then(Value::as_str).unwrap_or("results").to_owned();
    let rows = rows.iter().map(row).collect();
    let speedups = list(value, "speedups").iter().map(of_ranks).collect();
    let (best, importance) =
        (at(value, "best").and_then(best_row), at(value, "importance").and_then(importance));
    Table { title, axes, columns, notes: words(value, "notes"), rows, speedups, best, importance }
}

fn best_row(of: &Value) -> Option<BestRow> {
    let commands = ["evaluate", "longer"].map(|name| word(of, name)).into_iter();
    Some(BestRow {
        name: word(of, "name"),
        measure: word(of, "measure"),
        value: of["value"].as_f64()?,
        run: word(of, "run"),
        settings: words(of, "settings"),
        commands: commands.filter(|command| !command.is_empty()).collect(),
    })
}

fn importance(of: &Value) -> Option<Importance> {
    let key = |key: &Value| Some((word(key, "key"), key["share"].as_f64()?));
    let keys: Vec<_> = list(of, "keys").iter().filter_map(key).collect();
    let interactions = of["interactions"].as_f64()?;
    Some(Importance { measure: word(of, "measure"), keys, interactions })
}

fn of_ranks(panel: &Value) -> Speedups {
    let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_f64()?));
    let line = |line: &Value| {
        (word(line, "name"), list(line, "points").iter().filter_map(point).collect::<Vec<_>>())
    };
    Speedups { title: word(panel, "title"), lines: list(panel, "series").iter().map(line).collect() }
}
