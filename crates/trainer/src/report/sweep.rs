//! The tables of a sweep, as it has left them in `results.json`.

use std::path::Path;

use serde_json::Value;

use super::settings::at;

/// A table: what its rows are by, what its numbers are, and the rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    /// What it compares.
    pub(crate) title: String,
    /// What a row is by.
    pub(crate) axes: Vec<String>,
    /// Its numbers.
    pub(crate) columns: Vec<String>,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// What it is.
    pub(crate) choices: Vec<String>,
    /// Means, with their deviations over seeds.
    pub(crate) numbers: Vec<Option<(f64, Option<f64>)>>,
    /// Why runs failed.
    pub(crate) errors: Vec<String>,
}

/// Reads the tables of a sweep's folder; none if there is no `results.json`, as before it has ended.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn read_tables(folder: &Path) -> Result<Vec<Table>, String> {
    let bytes = match std::fs::read(folder.join("results.json")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("results.json cannot be read: {error}")),
    };
    let all: Value = serde_json::from_slice(&bytes).map_err(|error| format!("results.json: {error}"))?;
    let tables = at(&all, "tables").and_then(Value::as_array).into_iter().flatten();
    Ok(tables.map(table).collect())
}

fn table(value: &Value) -> Table {
    let rows: &[Value] = at(value, "rows").and_then(Value::as_array).map_or(&[], Vec::as_slice);
    let keys = |name: &str| {
        let mut keys: Vec<String> = Vec::new();
        for row in rows {
            for key in at(row, name).and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys) {
                if !keys.contains(key) {
                    keys.push(key.clone());
                }
            }
        }
        keys
    };
    let (axes, columns) = (keys("choices"), keys("numbers"));
    let row = |row: &Value| {
        let text = |name: &String| row["choices"][name].as_str().unwrap_or_default().to_owned();
        let number = |name: &String| {
            let number = &row["numbers"][name];
            Some((number["mean"].as_f64()?, number["deviation"].as_f64()))
        };
        let errors = row["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Row {
            choices: axes.iter().map(text).collect(),
            numbers: columns.iter().map(number).collect(),
            errors: errors.map(str::to_owned).collect(),
        }
    };
    let title = at(value, "title").and_then(Value::as_str).unwrap_or("results").to_owned();
    Table { title, rows: rows.iter().map(row).collect(), axes, columns }
}
