//! The files of a classifier's evaluation: `classes.json`, `confusion.svg`, `mistakes.svg`.

use std::path::Path;

use phalanx_run::{ClassReport, Mistake, RunError, confusion_svg, mistakes_svg, write_aside};

use super::tally::{ClassTally, WrongPrediction};
use crate::engine::data::Data;
use crate::engine::error::TrainError;
use crate::engine::training::Classes;
use phalanx_config::Config;

/// Builds the report of a classifier's evaluation on the rank that loads data.
pub(in crate::engine) fn class_report(
    tally: &ClassTally,
    classes: &Classes,
    data: &Data,
    config: &Config,
    step: u64,
) -> Result<ClassReport, TrainError> {
    let names = classes.names(data.class_names());
    let paths = data.test_paths(config.eval.limit, &positions(tally))?;
    let mistake = |(wrong, sample): (&WrongPrediction, String)| Mistake {
        sample,
        truth: names[wrong.truth].clone(),
        predicted: names[wrong.predicted].clone(),
        probability: wrong.probability,
        truth_probability: wrong.truth_probability,
        loss: wrong.loss,
    };
    Ok(ClassReport {
        top5_accuracy: classes.has_top5().then(|| tally.top5_accuracy()),
        mistakes: tally.worst.iter().zip(paths).map(mistake).collect(),
        ..ClassReport::new(step, &names, tally.confusion.clone())
    })
}

/// Writes a report and its pictures into `folder`, which is created. `mistakes.svg` is missing if there is no mistake, or if the data have no
/// images.
pub(in crate::engine) fn write_class_files(
    report: &ClassReport,
    tally: &ClassTally,
    data: &Data,
    config: &Config,
    folder: &Path,
) -> Result<(), TrainError> {
    std::fs::create_dir_all(folder).map_err(RunError::io("create", folder))?;
    report.write(&folder.join("classes.json"))?;
    let write =
        |path: &Path, text: &str| write_aside(path, text.as_bytes()).map_err(RunError::io("write", path));
    write(&folder.join("confusion.svg"), &confusion_svg(report))?;
    let path = folder.join("mistakes.svg");
    let pictures = data.test_pictures(config, &positions(tally))?;
    if !pictures.is_empty() {
        write(&path, &mistakes_svg(report, &pictures, &path)?)?;
    } else if path.exists() {
        // Of an earlier evaluation.
        std::fs::remove_file(&path).map_err(RunError::io("remove", &path))?;
    }
    Ok(())
}

fn positions(tally: &ClassTally) -> Vec<usize> {
    tally.worst.iter().map(|wrong| wrong.position).collect()
}
