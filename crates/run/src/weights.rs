//! `weights.json`: the weights that a run began with.

use std::path::Path;

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::write_aside;

/// A tensor of the model that was made new although the run began with weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTensor {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The shape in the weights; `null` if they lack the tensor.
    pub found: Option<Vec<usize>>,
}

/// The weights that a run began with, and their use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WeightsRecord {
    /// The file or folder.
    pub path: String,
    /// The step of the checkpoint, if they are of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// True if they are the averages of a run.
    #[serde(default)]
    pub averages: bool,
    /// The names of the tensors of the model that were loaded.
    pub loaded: Vec<String>,
    /// The tensors of the model that were made new.
    pub new: Vec<NewTensor>,
    /// The names of the tensors in the weights that the model does not have.
    pub left: Vec<String>,
    /// The adapters of the model, unless they are among the weights or there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<AdaptersRecord>,
}

/// The adapters that are trained in place of weights.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AdaptersRecord {
    /// The layers that have one.
    pub layers: Vec<String>,
    /// The folder that they were read from; `null` if they are new.
    pub path: Option<String>,
}

/// The weights that a run began with, in a [`super::Summary`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WeightsSummary {
    /// The file or folder.
    pub path: String,
    /// The number of tensors that were loaded.
    pub loaded: usize,
    /// The names of the tensors that were made new.
    pub new: Vec<String>,
    /// The number of tensors in the weights that the model does not have.
    pub left: usize,
}

/// Returns a number of tensors in words.
fn tensors(count: usize) -> String {
    if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") }
}

impl WeightsRecord {
    /// Describes the weights and their use in a line.
    ///
    /// ```
    /// use phalanx_run::{NewTensor, WeightsRecord};
    ///
    /// let head = NewTensor { name: "fc.bias".to_owned(), shape: vec![10], found: Some(vec![1000]) };
    /// let record = WeightsRecord {
    ///     path: "r18.pth".to_owned(),
    ///     loaded: vec!["conv1.weight".to_owned()],
    ///     new: vec![head],
    ///     ..WeightsRecord::default()
    /// };
    /// let line = "weights r18.pth: 1 tensor loaded, head fc.bias made new (10 classes, the file has 1000)";
    /// assert_eq!(record.describe(), line);
    /// ```
    pub fn describe(&self) -> String {
        let of = match (self.step, self.averages) {
            (None, _) => String::new(),
            (Some(step), true) => format!(" (averages after step {step})"),
            (Some(step), false) => format!(" (after step {step})"),
        };
        let mut line = format!("weights {}{of}: {} loaded", self.path, tensors(self.loaded.len()));
        if !self.new.is_empty() {
            line += &format!(", head {} made new{}", self.new_names(), self.classes());
        }
        if !self.left.is_empty() {
            line += &format!("; {} of the file not used", tensors(self.left.len()));
        }
        if let Some(AdaptersRecord { layers, path }) = &self.adapters {
            let layers = if layers.len() == 1 { "1 layer" } else { &format!("{} layers", layers.len()) };
            line += &match path {
                Some(path) => format!("; adapters of {layers} from {path}"),
                None => format!("; new adapters of {layers}"),
            };
        }
        line
    }

    fn new_names(&self) -> String {
        match self.new.as_slice() {
            [one] => one.name.clone(),
            [one, two] => format!("{} and {}", one.name, two.name),
            all => {
                let count = all.len();
                let first = all.first().map_or("", |new| new.name.as_str());
                format!("{first} and {} others", count.saturating_sub(1))
            }
        }
    }

    /// The numbers of classes here and in the file, if the head differs by them alone.
    fn classes(&self) -> String {
        let number = |new: &NewTensor| {
            let found = new.found.as_ref()?;
            let rest = new.shape.get(1..)? == found.get(1..)?;
            let (here, there) = (*new.shape.first()?, *found.first()?);
            (rest && here != there).then_some((here, there))
        };
        let mut numbers = self.new.iter().map(number);
        let first = numbers.next().flatten();
        match first.filter(|_| numbers.all(|other| other == first)) {
            Some((here, there)) => format!(" ({here} classes, the file has {there})"),
            None => String::new(),
        }
    }

    /// The short form for the summary.
    pub fn summary(&self) -> WeightsSummary {
        WeightsSummary {
            path: self.path.clone(),
            loaded: self.loaded.len(),
            new: self.new.iter().map(|new| new.name.clone()).collect(),
            left: self.left.len(),
        }
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let malformed = |error: serde_json::Error| RunError::Malformed {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(malformed)?;
        bytes.push(b'\n');
        write_aside(path, &bytes).map_err(RunError::io("write", path))
    }

    /// Reads the record of an earlier attempt. `None` if there is none, or it is not readable.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&Links::Refuse.read(path).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_was_loaded_made_new_and_not_used() {
        let new = |name: &str, shape: &[usize], found: Option<&[usize]>| NewTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            found: found.map(<[usize]>::to_vec),
        };
        let mut record = WeightsRecord {
            path: "w".to_owned(),
            loaded: vec!["a".to_owned(), "b".to_owned()],
            ..WeightsRecord::default()
        };
        assert_eq!(record.describe(), "weights w: 2 tensors loaded");
        record.new = vec![new("fc.weight", &[7, 8], Some(&[9, 8])), new("fc.bias", &[7], Some(&[9]))];
        let line =
            "weights w: 2 tensors loaded, head fc.weight and fc.bias made new (7 classes, the file has 9)";
        assert_eq!(record.describe(), line);
        record.new.push(new("fc.more", &[7], None));
        (record.step, record.averages, record.left) = (Some(30), true, vec!["x".to_owned()]);
        let line = "weights w (averages after step 30): 2 tensors loaded, head fc.weight and 2 others made new; 1 tensor of the file not used";
        assert_eq!(record.describe(), line);
        let adapters = AdaptersRecord { layers: vec!["q".to_owned(), "v".to_owned()], path: None };
        record.adapters = Some(adapters);
        assert_eq!(record.describe(), format!("{line}; new adapters of 2 layers"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weights.json");
        record.write(&path).expect("writes");
        assert_eq!(WeightsRecord::read(&path), Some(record));
        assert_eq!(WeightsRecord::read(&folder.path().join("none")), None);
    }
}
