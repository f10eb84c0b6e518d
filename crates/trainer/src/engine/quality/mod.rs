//! How good drawn pictures are: what trained networks, the *judges*, see in them and in real ones.
//!
//! For captions of the test split a picture is drawn each, from noise of its own. A judge is the network of another run: a
//! classifier or a classifier of attributes says how many pictures show what they should; features of any judge give the
//! Fréchet distance, precision and recall; CLIP says how well pictures fit their captions. Nothing is downloaded: whoever has
//! the data can train the judges on them. Beside each number of drawn pictures stands that of the real ones, where there is
//! one: no drawing can be expected to be better.

mod frechet;
mod judge;
mod manifold;
mod pictures;
mod sharpness;

use std::ops::Range;
use std::sync::Arc;

use phalanx_tensor::{ComputeDevice, Context, Key, Session, Tape};

use frechet::frechet_distance;
use judge::OpenJudge;
use manifold::precision_and_recall;
use pictures::{Pictures, Seen, drawn};
use sharpness::sharpness;

use super::data::Data;
use super::distributed::Distributed;
use super::error::TrainError;
use super::training::{AnyTraining, Drawing, DrawingKind, Task, planar};
use crate::config::Config;

/// The judges of a run, and what they see in real pictures.
pub(super) struct Quality {
    judges: Vec<OpenJudge>,
    real: Option<Of>,
}

/// What there is to say of one set of pictures, those of all ranks.
struct Of {
    /// By judge.
    seen: Vec<Seen>,
    sharpness: f64,
    count: f64,
}

impl Quality {
    /// Loads the judges of a task; `None` if it has none.
    pub(super) fn open(
        task: &Task,
        context: &Arc<Context>,
        device: &ComputeDevice,
    ) -> Result<Option<Self>, TrainError> {
        let judges: Vec<OpenJudge> = task
            .judges()
            .iter()
            .map(|judge| OpenJudge::open(judge, context, device))
            .collect::<Result<_, _>>()?;
        for (at, judge) in judges.iter().enumerate() {
            if judges[..at].iter().any(|other| other.name == judge.name) {
                let name = &judge.name;
                return Err(TrainError::Setup(format!(
                    "quality.judges has two runs of a `{name}`; name one"
                )));
            }
        }
        Ok((!judges.is_empty()).then_some(Self { judges, real: None }))
    }

    /// Draws for captions of the test split, each rank its part of them, and has all judged: names and values, in order. Every
    /// rank calls this at the same place, with all parameters in memory.
    pub(super) fn measure(
        &mut self,
        training: &dyn AnyTraining,
        data: &Data,
        distributed: &Distributed,
        session: &Session,
        config: &Config,
    ) -> Result<Vec<(String, f64)>, TrainError> {
        let own = data.test_share(distributed, config.quality.samples);
        let (mut real, mut made) =
            (vec![Seen::default(); self.judges.len()], vec![Seen::default(); self.judges.len()]);
        // The sharpness of real and of drawn pictures, and how many there are.
        let mut sums = [0.0; 3];
        let key = Key::new(config.train.seed).stream("quality");
        for start in own.clone().step_by(config.quality.batch.max(1)) {
            let positions = start..(start + config.quality.batch.max(1)).min(own.end);
            let batch = data.test_samples(config.quality.samples, positions.clone())?;
            let pictures = Pictures::new(batch, &config.data.normalise)?;
            let drawings = match restored(training, session, &pictures)? {
                Some(restored) => restored,
                None => draw_each(training, session, key, pictures.captions(), positions)?,
            };
            sums[0] += pictures.images().iter().map(sharpness).sum::<f64>();
            sums[1] += drawings.iter().map(sharpness).sum::<f64>();
            sums[2] += drawings.len() as f64;
            for (at, judge) in self.judges.iter().enumerate() {
                if self.real.is_none() {
                    real[at].add(judge.see(pictures.images(), &pictures)?);
                }
                made[at].add(judge.see(&drawings, &pictures)?);
            }
        }
        distributed.sum(&mut sums)?;
        let [sharp_real, sharp_made, count] = sums;
        if count < 2.0 {
            return Err(TrainError::Setup(format!(
                "quality is measured on {count} pictures; it takes two at least"
            )));
        }
        if self.real.is_none() {
            let seen = Self::gather(real, distributed)?;
            self.real = Some(Of { seen, sharpness: sharp_real, count });
        }
        let made = Of { seen: Self::gather(made, distributed)?, sharpness: sharp_made, count };
        let Some(real) = &self.real else { return Ok(Vec::new()) };
        Ok(self.judges.iter().zip(real.seen.iter().zip(&made.seen)).fold(
            vec![
                ("drawn_sharpness".to_owned(), made.sharpness / made.count),
                ("real_sharpness".to_owned(), real.sharpness / real.count),
            ],
            |mut measures, (judge, (real, made))| {
                measures.extend(compare(&judge.name, real, made, count, config.quality.neighbours));
                measures
            },
        ))
    }

    /// What the judges of all ranks have seen, in the order of ranks.
    fn gather(own: Vec<Seen>, distributed: &Distributed) -> Result<Vec<Seen>, TrainError> {
        let all = own.into_iter().map(|seen| {
            let said = serde_json::to_string(&seen).map_err(|error| TrainError::Setup(error.to_string()))?;
            let mut all = Seen::default();
            for text in distributed.gather_text(&said)? {
                let seen =
                    serde_json::from_str(&text).map_err(|error| TrainError::Setup(error.to_string()))?;
                all.add(seen);
            }
            Ok(Seen { features: distributed.gather_numbers(&seen.features)?, ..all })
        });
        all.collect()
    }
}

/// What comes back of pictures, of a training that restores them.
fn restored(
    training: &dyn AnyTraining,
    session: &Session,
    pictures: &Pictures,
) -> Result<Option<Vec<image::RgbImage>>, TrainError> {
    let tape = Tape::forward_only(session.clone());
    let Some(restored) = training.restore(&tape, &pictures.values(&session.device)?)? else {
        return Ok(None);
    };
    let rows = planar(&restored)?;
    rows.iter().map(|row| drawn(row)).collect::<Result<_, _>>().map(Some)
}

/// A picture for each caption, from noise that the caption's place in the test split decides.
fn draw_each(
    training: &dyn AnyTraining,
    session: &Session,
    key: Key,
    captions: &[String],
    positions: Range<usize>,
) -> Result<Vec<image::RgbImage>, TrainError> {
    let tape = Tape::forward_only(Session { key, ..session.clone() });
    let kind = DrawingKind::Each { first: positions.start as u64 };
    let drawing = Drawing { prompts: captions.to_vec(), columns: 1, kind };
    let Some(pictures) = training.draw(&tape, &drawing)? else {
        let problem = "quality is measured on pictures, and this training draws none";
        return Err(TrainError::Setup(problem.to_owned()));
    };
    pictures.iter().map(|picture| drawn(picture)).collect()
}

/// The measures of one judge.
fn compare(judge: &str, real: &Seen, made: &Seen, count: f64, neighbours: usize) -> Vec<(String, f64)> {
    let mut measures = Vec::new();
    for ((name, right), (_, of_real)) in made.right.iter().zip(&real.right) {
        // What the field calls a label is a class.
        let name = if name == "labels" { "class" } else { name };
        measures.push((format!("drawn_{name}_accuracy"), right / count));
        measures.push((format!("real_{name}_accuracy"), of_real / count));
    }
    if let Some((made, real)) = made.fits.zip(real.fits) {
        measures.push((format!("drawn_{judge}_score"), made / count));
        measures.push((format!("real_{judge}_score"), real / count));
    }
    let dim = made.dim.max(1);
    measures
        .push((format!("{judge}_frechet_distance"), frechet_distance(&real.features, &made.features, dim)));
    let [precision, recall] = precision_and_recall(&real.features, &made.features, dim, neighbours);
    measures.push((format!("{judge}_precision"), precision));
    measures.push((format!("{judge}_recall"), recall));
    measures
}
