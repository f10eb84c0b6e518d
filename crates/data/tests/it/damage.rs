//! Other samples in the place of damaged ones, and fingerprints of datasets.

use crate::files::{photo, write};
use phalanx_data::{
    BatchSource, CachedImages, CollatedDataset, DamagedSamples, DistributedSampler, Filter, Fingerprint,
    ImageCollation, ImageFolder, Loader, LoaderConfig, Order, SamplerConfig, Split, Tail, Transform,
    TransformConfig,
};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes 12 images of two classes, of which those with these numbers are damaged.
fn folder(damaged: &[usize]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for number in 0..12 {
        let bytes =
            if damaged.contains(&number) { photo(8, 8)[..100].to_vec() } else { photo(8 + number as u32, 8) };
        write(&dir.path().join(format!("train/{}/{number:02}.jpg", number / 6)), bytes);
    }
    dir
}

fn source(dir: &Path, damaged: &Arc<DamagedSamples>) -> CollatedDataset<ImageFolder, ImageCollation> {
    let transform = Transform::new(TransformConfig::square(8, Filter::Bilinear)).unwrap();
    let images = Arc::new(ImageFolder::open(dir, Split::Train).unwrap());
    CollatedDataset::new(images, ImageCollation::new(transform)).with_substitutes(damaged.clone())
}

/// Returns the pixels and labels of all samples of two epochs, read by `ranks` ranks from a step on.
fn read(dir: &TempDir, ranks: usize, start: (u64, usize)) -> Vec<(Vec<f32>, Vec<u32>)> {
    let mut loaders: Vec<Loader> = (0..ranks)
        .map(|rank| {
            let sampler = DistributedSampler::new(SamplerConfig {
                len: 12,
                world_size: ranks,
                rank,
                global_batch: 4,
                micro_batches: 1,
                seed: 3,
                order: Order::Shuffled,
                tail: Tail::Drop,
            });
            let source = Arc::new(source(dir.path(), &Arc::default()));
            Loader::new(
                source,
                sampler.unwrap(),
                LoaderConfig { workers: 2, prefetch: 2, ..LoaderConfig::default() },
                start,
            )
            .unwrap()
        })
        .collect();
    let steps = 6 - 3 * start.0 as usize - start.1;
    let step = |_| {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for loader in &mut loaders {
            let batch = loader.next().unwrap().unwrap().batch;
            pixels.extend_from_slice(batch.values::<f32>("images").unwrap());
            labels.extend_from_slice(batch.values::<u32>("labels").unwrap());
        }
        (pixels, labels)
    };
    (0..steps).map(step).collect()
}

#[test]
fn ranks_and_resumptions_use_the_same_samples_in_the_place_of_damaged_ones() {
    let dir = folder(&[2, 7, 8]);
    let alone = read(&dir, 1, (0, 0));
    assert_eq!(alone.len(), 6);
    for ranks in [2, 3, 4] {
        assert!(read(&dir, ranks, (0, 0)) == alone, "{ranks} ranks");
    }
    assert!(read(&dir, 2, (1, 1)) == alone[4..]);
    assert!(alone != read(&folder(&[2, 7, 9]), 1, (0, 0)));
}

#[test]
fn damaged_samples_are_counted_once_and_named() {
    let (dir, damaged) = (folder(&[2, 7]), Arc::default());
    let source = source(dir.path(), &damaged);
    let all: Vec<usize> = (0..12).collect();
    let first = source.batch(&all, 0, &|| true).unwrap();
    assert_eq!(source.batch(&all, 0, &|| true).unwrap(), first);
    let expected = ["0/02.jpg", "1/07.jpg"].map(|name| dir.path().join("train").join(name));
    assert_eq!(damaged.paths(), expected);
    // A file that is missing is damage, too; its place is taken by another of the same dataset.
    std::fs::remove_file(dir.path().join("train/1/11.jpg")).unwrap();
    source.batch(&[11], 0, &|| true).unwrap();
    assert_eq!(damaged.paths().len(), 3);
}

#[test]
fn a_folder_without_any_good_sample_is_an_error() {
    let (dir, damaged) = (folder(&(0..12).collect::<Vec<_>>()), Arc::default());
    let error = source(dir.path(), &damaged).batch(&[5], 0, &|| true).unwrap_err().to_string();
    assert!(
        error.contains("05.jpg: truncated") && error.contains("none of 64 samples in its place"),
        "{error}"
    );
}

#[test]
fn a_consumer_with_cached_pixels_gets_the_label_that_belongs_to_them() {
    let (dir, damaged) = (folder(&[2]), Arc::default());
    let source = source(dir.path(), &damaged);
    let label = source.batch(&[2], 0, &|| true).unwrap().values::<u32>("labels").unwrap().to_vec();
    let cached = Arc::new(CachedImages::new(12));
    cached.insert(2);
    let without_pixels = source.as_bytes(Some(cached)).unwrap().batch(&[2], 1, &|| true).unwrap();
    assert_eq!(without_pixels.values::<u32>("labels").unwrap(), label);
}

fn fingerprint(root: &Path) -> Fingerprint {
    Fingerprint::of(&ImageFolder::open(root, Split::Train).unwrap(), root).unwrap()
}

#[test]
fn fingerprints_name_the_files_that_changed() {
    let dir = folder(&[]);
    let root = dir.path();
    let before = fingerprint(root);
    assert_eq!(fingerprint(root).differences(&before), [""; 0]);
    assert_eq!(fingerprint(folder(&[]).path()).differences(&before), [""; 0], "the folder may move");
    write(&root.join("train/0/01.jpg"), photo(64, 64));
    let mut same_length = std::fs::read(root.join("train/1/08.jpg")).unwrap();
    let last = same_length.len() - 3;
    same_length[last] ^= 1;
    write(&root.join("train/1/08.jpg"), same_length);
    std::fs::rename(root.join("train/1/09.jpg"), root.join("train/0/new.jpg")).unwrap();
    let mut lines = fingerprint(root).differences(&before);
    lines.sort();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].starts_with("train/0/01.jpg has ") && lines[0].contains("bytes (was "), "{lines:?}");
    assert_eq!(
        lines[1..],
        ["train/0/new.jpg is new", "train/1/08.jpg has other contents", "train/1/09.jpg is gone"]
    );
    write(&root.join("train/00/1.jpg"), photo(8, 8));
    let after = fingerprint(root);
    let moved = after.moved_class(&before).expect("a class came before another");
    assert_eq!((moved.label, moved.before, moved.now), (1, "1", "00"));
    assert!(after.differences(&before).contains(&"13 samples (was 12)".to_owned()));
}

#[test]
fn a_fingerprint_of_many_files_looks_into_some_and_notices_names() {
    let dir = TempDir::new().unwrap();
    let path = |number: usize| dir.path().join(format!("train/a/{number}.jpg"));
    for number in 0..600 {
        write(&path(number), b"no image");
    }
    let before = fingerprint(dir.path());
    // Some of the files are not looked into, but all names are compared.
    for number in 0..600 {
        std::fs::rename(path(number), path(number).with_extension("png")).unwrap();
        let lines = fingerprint(dir.path()).differences(&before);
        assert!(!lines.is_empty() && lines.len() <= 2, "{lines:?}");
        std::fs::rename(path(number).with_extension("png"), path(number)).unwrap();
        if lines == ["other names of files, or other labels"] {
            return;
        }
    }
    panic!("every file is looked into");
}
