//! Sweeps in the list: each is one row with its tables.

use std::path::{Path, PathBuf};

use phalanx_run::format;
use serde::Serialize;

use super::served_folder::ServedFolder;
use crate::sweep::{Table, read_sweep};

/// The maximum number of rows of a table in the list. The report of the sweep has all of them.
const ROWS: usize = 200;

/// A sweep in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SweepEntry {
    /// Its path relative to the served folder.
    pub(super) path: String,
    /// Its description; empty before its end.
    about: String,
    /// Its tables; none before its end.
    tables: Vec<TableEntry>,
}

/// A table of a sweep, as texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct TableEntry {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Returns the folder of the sweep that a run belongs to: the one above `runs/` with its results or with the
/// configuration of the run.
pub(super) fn sweep_of(run: &Path) -> Option<PathBuf> {
    let runs = run.parent().filter(|runs| runs.file_name().is_some_and(|name| name == "runs"))?;
    let (sweep, name) = (runs.parent()?, run.file_name()?.to_str()?);
    let is_sweep =
        sweep.join("results.json").is_file() || sweep.join(format!("configs/{name}.toml")).is_file();
    is_sweep.then(|| sweep.to_owned())
}

impl SweepEntry {
    /// Reads a sweep. One without results, or with damaged ones, has no tables.
    pub(super) fn read(served: &ServedFolder, path: &str) -> Self {
        let results = read_sweep(&served.root().join(path)).ok().flatten().unwrap_or_default();
        let tables = results.tables.iter().map(table).collect();
        Self { path: path.to_owned(), about: results.about, tables }
    }
}

fn table(table: &Table) -> TableEntry {
    let words = |name: &String| name.replace('_', " ");
    let number = |number: &Option<(f64, Option<f64>)>| match number {
        Some((mean, Some(deviation))) => {
            format!("{} ± {}", format::number(*mean), format::number(*deviation))
        }
        Some((mean, None)) => format::number(*mean),
        None => "–".to_owned(),
    };
    let row = |row: &crate::sweep::Row| {
        row.choices.iter().cloned().chain(row.numbers.iter().map(number)).collect::<Vec<_>>()
    };
    TableEntry {
        title: table.title.clone(),
        head: table.axes.iter().chain(&table.columns).map(words).collect(),
        rows: table.rows.iter().take(ROWS).map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_texts() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(place.path().join("s/runs/x")).expect("a folder");
        let served = ServedFolder::new(place.path()).expect("a folder");
        let run = served.root().join("s/runs/x");
        assert_eq!((sweep_of(&run), sweep_of(served.root())), (None, None));
        let results = r#"{"about": "which?", "tables": [{"title": "t", "axes": ["optim.lr"], "columns": ["test_loss"],
            "rows": [{"choices": {"optim.lr": "0.1"}, "numbers": {"test_loss": {"mean": 2.0, "deviation": 0.5}}},
                     {"choices": {"optim.lr": "0.2"}, "numbers": {}}]}]}"#;
        std::fs::write(place.path().join("s/results.json"), results).expect("writes");
        assert_eq!(sweep_of(&run), Some(served.root().join("s")));
        let entry = SweepEntry::read(&served, "s");
        assert_eq!(
            (entry.about.as_str(), entry.tables[0].head.join("|")),
            ("which?", "optim.lr|test loss".to_owned())
        );
        assert_eq!(entry.tables[0].rows, [["0.1", "2.000 ± 0.5000"], ["0.2", "–"]]);
        std::fs::write(place.path().join("s/results.json"), "{").expect("writes");
        assert!(SweepEntry::read(&served, "s").tables.is_empty());
    }
}
