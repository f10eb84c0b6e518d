//! Images of a loader in a second, with and without augmentation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use phalanx_data::{
    AreaCrop, BatchSource, CaptionedImage, CollatedDataset, ColorJitter, Dataset, DistributedSampler, Filter,
    ImageCollation, ImageFolder, Loader, LoaderConfig, Mixing, Normalise, Order, RandAugment, RandomCrop,
    RandomErasing, SamplerConfig, Split, Tail, Transform, TransformConfig,
};
use serde_json::{Value as Json, json};

use crate::Common;
use crate::rounds::median;

/// The arguments of a measurement. `--threads` is the number of the loader's threads.
#[derive(Debug, Args)]
pub(crate) struct LoaderArgs {
    /// Only augmentations with this text in their name
    #[arg(long, default_value = "")]
    filter: String,
    #[command(flatten)]
    common: Common,
}

/// Images in a batch.
const BATCH: usize = 32;
/// JPEG files of 500 × 375 pixels.
const FILES: usize = 64;

/// A measured augmentation.
struct Recipe {
    name: &'static str,
    change: fn(&mut TransformConfig),
    mixing: Option<Mixing>,
}

/// The augmentations, each in addition to a crop and a flip.
fn recipes() -> [Recipe; 6] {
    const JITTER: ColorJitter = ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 };
    let mixing = Some(Mixing { mixup: 0.2, cutmix: 1.0, seed: 0 });
    [
        Recipe { name: "crop and flip", change: |_| {}, mixing: None },
        Recipe {
            name: "RandAugment of 2 operations",
            change: |config| config.rand_augment = Some(RandAugment::new(2, 9)),
            mixing: None,
        },
        Recipe { name: "colour jitter", change: |config| config.color_jitter = Some(JITTER), mixing: None },
        Recipe {
            name: "random erasing",
            change: |config| config.erasing = Some(RandomErasing::new(0.25)),
            mixing: None,
        },
        Recipe { name: "MixUp and CutMix", change: |_| {}, mixing },
        Recipe {
            name: "RandAugment, erasing, MixUp and CutMix",
            change: |config| {
                config.rand_augment = Some(RandAugment::new(2, 9));
                config.erasing = Some(RandomErasing::new(0.25));
            },
            mixing,
        },
    ]
}

/// Returns a picture with edges and noise, as photographs have.
fn picture(number: usize, width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let wave = |a: f64| {
            (128.0 + 90.0 * ((f64::from(x) * a + f64::from(y) / (a * 900.0)) + number as f64).sin()) as u8
        };
        let noise = ((x * 7919 + y * 104_729 + number as u32 * 31) % 23) as u8;
        Rgb([0.011, 0.023, 0.037].map(|a| wave(a).saturating_add(noise)))
    })
}

/// Pictures of 32 × 32 pixels in memory.
struct InMemory(Vec<RgbImage>);

impl Dataset for InMemory {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        "memory"
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: u64) -> phalanx_data::Result<CaptionedImage> {
        Ok(CaptionedImage::new(self.0[index].clone(), index as u32 % 10, String::new()))
    }
}

/// A folder that is deleted at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Writes the files of a class folder.
fn write_files(folder: &Path) -> Result<()> {
    let class = folder.join("train/pictures");
    std::fs::create_dir_all(&class).with_context(|| format!("cannot make {}", class.display()))?;
    for number in 0..FILES {
        let file = class.join(format!("{number}.jpg"));
        DynamicImage::ImageRgb8(picture(number, 500, 375)).save_with_format(&file, ImageFormat::Jpeg)?;
    }
    Ok(())
}

/// Returns the images in a second of a loader's threads, the median of rounds.
fn speed(source: &Arc<dyn BatchSource>, mixing: Option<Mixing>, common: &Common) -> Result<f64> {
    let sampler = DistributedSampler::new(SamplerConfig {
        len: source.len(),
        world_size: 1,
        rank: 0,
        global_batch: BATCH,
        micro_batches: 1,
        seed: 0,
        order: Order::Shuffled,
        tail: Tail::Drop,
    })?;
    let threads = common.threads();
    let config = LoaderConfig { workers: threads, prefetch: 2 * threads, mixing };
    let mut loader = Loader::new(source.clone(), sampler, config, (0, 0))?;
    let mut round = || -> Result<f64> {
        let (begun, mut images) = (Instant::now(), 0);
        while begun.elapsed().as_secs_f64() < 0.5 {
            images += loader.next().context("a loader is endless")??.valid;
        }
        Ok(images as f64 / begun.elapsed().as_secs_f64())
    };
    round()?;
    Ok(median((0..common.rounds).map(|_| round()).collect::<Result<_>>()?))
}

/// Measures the loader.
pub(crate) fn run(args: &LoaderArgs) -> Result<()> {
    let scratch = Scratch(std::env::temp_dir().join(format!("phalanx-bench-{}", std::process::id())));
    write_files(&scratch.0)?;
    let files = Arc::new(ImageFolder::open(&scratch.0, Split::Train)?);
    let small = Arc::new(InMemory((0..512).map(|number| picture(number, 32, 32)).collect()));
    let mut rows: Vec<Json> = Vec::new();
    println!(
        "| images/s with {} | 224×224 from JPEG | 32×32 from memory |\n|---|---|---|",
        args.common.threads()
    );
    for Recipe { name, change, mixing } in
        recipes().into_iter().filter(|recipe| recipe.name.contains(&args.filter))
    {
        let normalise = Normalise::IMAGENET;
        let (area, aspect) = ((0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0));
        let crop = AreaCrop { size: 224, area, aspect, filter: Filter::Bilinear };
        let mut of_files =
            TransformConfig { area_crop: Some(crop), flip: 0.5, normalise, ..TransformConfig::default() };
        let mut of_small = TransformConfig { normalise, ..TransformConfig::cifar10_train(0) };
        of_small.random_crop = Some(RandomCrop { size: 32, padding: 4 });
        [&mut of_files, &mut of_small].into_iter().for_each(change);
        let large: Arc<dyn BatchSource> =
            Arc::new(CollatedDataset::new(files.clone(), ImageCollation::new(Transform::new(of_files)?)));
        let small: Arc<dyn BatchSource> =
            Arc::new(CollatedDataset::new(small.clone(), ImageCollation::new(Transform::new(of_small)?)));
        let speeds = [speed(&large, mixing, &args.common)?, speed(&small, mixing, &args.common)?];
        println!("| {name} | {:.0} | {:.0} |", speeds[0], speeds[1]);
        rows.push(json!({ "augmentation": name, "images_per_second": speeds }));
    }
    args.common.write(&json!({ "threads": args.common.threads(), "rows": rows }))
}
