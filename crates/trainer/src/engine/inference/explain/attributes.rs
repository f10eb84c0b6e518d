//! The attributes of captions: what a reader of them can tell.

use phalanx_data::scenes::StatedScene;
use phalanx_data::{CaptionedImage, ImageDataset};

use crate::config::{Config, DataKind};
use crate::engine::TrainError;

/// The attributes of all samples: their names, and a class of each for every sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CaptionAttributes {
    pub(super) names: Vec<String>,
    /// The classes of each attribute, sample by sample.
    pub(super) classes: Vec<Vec<u32>>,
}

/// The attributes that scenes state: of the first two objects, their first relation, and the background.
const OF_SCENES: [&str; 6] =
    ["first shape", "first colour", "second shape", "second colour", "relation", "background"];

impl CaptionAttributes {
    /// Returns the attributes of the samples of a dataset: those of the dataset, what the captions of scenes state, or the class.
    pub(super) fn of(
        config: &Config,
        images: &ImageDataset,
        samples: &[CaptionedImage],
    ) -> Result<Self, TrainError> {
        if config.data.kind == DataKind::Scenes {
            return Self::of_scenes(samples);
        }
        let own = images.attributes();
        if own.is_empty() && images.class_names().len() < 2 {
            let name = images.name();
            return Err(TrainError::Setup(format!(
                "the images of {name} have neither attributes nor classes, so there is nothing to look for in their captions"
            )));
        }
        if own.is_empty() {
            let classes = samples.iter().map(|sample| sample.label).collect();
            return Ok(Self { names: vec!["class".to_owned()], classes: vec![classes] });
        }
        let of = |at: usize| samples.iter().map(|sample| sample.attributes[at]).collect();
        Ok(Self {
            names: own.iter().map(|attribute| attribute.name.clone()).collect(),
            classes: (0..own.len()).map(of).collect(),
        })
    }

    fn of_scenes(samples: &[CaptionedImage]) -> Result<Self, TrainError> {
        let stated: Vec<StatedScene> =
            samples.iter().map(|sample| sample.caption.parse()).collect::<Result<_, _>>()?;
        let class = |scene: &StatedScene, attribute: usize| -> u32 {
            let (first, second) =
                (scene.objects[0], scene.objects.get(1).copied().unwrap_or(scene.objects[0]));
            match attribute {
                0 => first.shape as u32,
                1 => first.colour as u32,
                2 => second.shape as u32,
                3 => second.colour as u32,
                4 => scene.relations.first().map_or(0, |stated| stated.relation as u32),
                _ => scene.background as u32,
            }
        };
        Ok(Self {
            names: OF_SCENES.map(str::to_owned).to_vec(),
            classes: (0..OF_SCENES.len())
                .map(|attribute| stated.iter().map(|scene| class(scene, attribute)).collect())
                .collect(),
        })
    }
}
