//! The use of captions by a text-to-image model, as `phalanx explain` measures it: `explain/explain.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folder::RunError;

/// The accuracy of a linear reader of encoded captions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReadFeatures {
    /// The features that are read; `chance` stands for always answering the most frequent value.
    pub features: String,
    /// The numbers of a caption.
    pub width: usize,
    /// The accuracy of each attribute on held-out captions.
    pub accuracy: Vec<f64>,
}

impl ReadFeatures {
    /// Returns the features with their numbers, as tables show them.
    pub fn label(&self) -> String {
        match self.width {
            0 => self.features.clone(),
            width => format!("{} ({width} numbers)", self.features),
        }
    }
}

/// The errors of a denoiser at a level of noise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LevelErrors {
    /// The level, from 0 to 1: the share of the schedule's timesteps below it.
    pub level: f64,
    /// The mean error with the captions of the samples.
    pub error: f64,
    /// The rise of the error without captions, as a share of it.
    pub without_caption: f64,
    /// The rise of the error by captions in which one attribute is wrong, as a share of it, of each attribute. `None` if
    /// no caption names its value.
    pub wrong: Vec<Option<f64>>,
}

/// The use of captions by a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaptionUse {
    /// The steps that the model was trained for; 0 if that is unknown.
    pub step: u64,
    /// The attributes of captions.
    pub attributes: Vec<String>,
    /// The number of held-out samples.
    pub samples: usize,
    /// The accuracy of linear readers.
    pub features: Vec<ReadFeatures>,
    /// The errors at each level of noise; empty if the model has no levels.
    pub levels: Vec<LevelErrors>,
}

impl CaptionUse {
    /// Reads the file of a run.
    ///
    /// # Errors
    /// If the file cannot be read, is no such record, or has not one number for each attribute.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let malformed = |problem: String| RunError::Malformed { path: path.to_owned(), problem };
        let bytes = phalanx_data::Links::Refuse.read(path).map_err(RunError::io("read", path))?;
        let read: Self = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        let attributes = read.attributes.len();
        let widths = read.features.iter().map(|features| features.accuracy.len());
        let mut widths = widths.chain(read.levels.iter().map(|level| level.wrong.len()));
        match widths.find(|width| *width != attributes) {
            Some(width) => Err(malformed(format!("it has {width} numbers for {attributes} attributes"))),
            None => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_uneven_ones_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("explain.json");
        let mut record = CaptionUse {
            step: 7,
            attributes: vec!["shape".to_owned()],
            samples: 4,
            features: vec![ReadFeatures { features: "vector".to_owned(), width: 64, accuracy: vec![0.5] }],
            levels: vec![LevelErrors { level: 0.5, error: 0.1, without_caption: 0.2, wrong: vec![None] }],
        };
        let write = |record: &CaptionUse| {
            std::fs::write(&path, serde_json::to_vec(record).expect("is JSON")).expect("writes");
        };
        write(&record);
        assert_eq!(CaptionUse::read(&path).expect("sound"), record);
        record.levels[0].wrong.push(Some(0.1));
        write(&record);
        let error = CaptionUse::read(&path).expect_err("uneven").to_string();
        assert!(error.contains("2 numbers for 1 attributes"), "{error}");
    }
}
