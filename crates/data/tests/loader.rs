//! The loader against what its order and its end promise.

use phalanx_data::{
    Batch, DataError, Dataset, DistributedSampler, Loader, LoaderConfig, RandomCrop, Result, Sample,
    SamplerConfig, ShapesConfig, ShapesDataset, Tail, Transform, TransformConfig,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an odd dataset does at one index.
#[derive(Clone, Copy)]
enum Fault {
    None,
    Error,
    Panic,
    OtherSize,
}

/// A dataset that counts its calls, takes uneven time, and misbehaves at index 13.
struct Odd {
    inner: ShapesDataset,
    fault: Fault,
    calls: AtomicUsize,
}

impl Odd {
    fn new(len: usize, fault: Fault) -> Arc<Self> {
        let inner = ShapesDataset::new(ShapesConfig { len, resolution: 8, ..Default::default() }).unwrap();
        Arc::new(Self { inner, fault, calls: AtomicUsize::new(0) })
    }
}

impl Dataset for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn class_names(&self) -> &[String] {
        self.inner.class_names()
    }

    fn label(&self, index: usize) -> Result<u32> {
        self.inner.label(index)
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Sample> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        // Some batches take longer, so that they are finished out of order.
        std::thread::sleep(std::time::Duration::from_micros(if index.is_multiple_of(5) { 400 } else { 5 }));
        let mut sample = self.inner.get(index, epoch)?;
        match self.fault {
            Fault::Error if index == 13 => {
                return Err(DataError::CorruptImage {
                    file: "there.bin".into(),
                    row: 13,
                    reason: "torn".into(),
                });
            }
            Fault::Panic if index == 13 => panic!("sample 13 fell over"),
            Fault::OtherSize if index == 13 => sample.image = image::RgbImage::new(9, 8),
            _ => {}
        }
        Ok(sample)
    }
}

fn sampler(len: usize, shuffle: bool, tail: Tail) -> DistributedSampler {
    let config =
        SamplerConfig { len, world_size: 1, rank: 0, global_batch: 4, pieces: 1, seed: 5, shuffle, tail };
    DistributedSampler::new(config).unwrap()
}

fn transform() -> Transform {
    let random_crop = Some(RandomCrop { size: 8, padding: 1 });
    Transform::new(TransformConfig { random_crop, flip: 0.5, ..Default::default() }).unwrap()
}

fn loader(dataset: Arc<dyn Dataset>, workers: usize, prefetch: usize, start: (u64, usize)) -> Loader {
    let sampler = sampler(dataset.len(), true, Tail::Ragged);
    Loader::new(dataset, transform(), sampler, LoaderConfig { workers, prefetch }, start).unwrap()
}

fn take(loader: Loader, n: usize) -> Vec<Batch> {
    loader.take(n).map(|batch| batch.unwrap()).collect()
}

#[test]
fn any_number_of_workers_gives_the_same_batches() {
    let dataset = Odd::new(22, Fault::None);
    let expected = take(loader(dataset.clone(), 0, 0, (0, 0)), 15);
    let places: Vec<_> = expected.iter().map(|batch| (batch.epoch, batch.step)).collect();
    assert_eq!(places, (0..15).map(|n| (n / 6, n as usize % 6)).collect::<Vec<_>>());
    assert_eq!(expected[0].shape, [4, 3, 8, 8]);
    assert_eq!(expected[5].shape, [2, 3, 8, 8]);
    assert_eq!((expected[5].valid, expected[5].global_valid), (2, 2));
    for batch in &expected {
        assert_eq!(batch.images.len(), batch.shape.iter().product::<usize>());
        let labels: Vec<u32> = batch.indices.iter().map(|&index| dataset.label(index).unwrap()).collect();
        assert_eq!(batch.labels, labels);
    }
    assert_ne!(expected[0].indices, expected[6].indices);
    for (workers, prefetch) in [(1, 1), (1, 4), (3, 1), (3, 8), (8, 3)] {
        assert_eq!(
            take(loader(dataset.clone(), workers, prefetch, (0, 0)), 15),
            expected,
            "{workers} {prefetch}"
        );
    }
}

#[test]
fn it_goes_on_from_any_place() {
    let dataset = Odd::new(22, Fault::None);
    let expected = take(loader(dataset.clone(), 2, 3, (0, 0)), 15);
    for (start, skipped) in [((0, 4), 4), ((1, 2), 8), ((0, 8), 8)] {
        let loader = loader(dataset.clone(), 2, 3, start);
        assert_eq!(loader.position(), (skipped as u64 / 6, skipped % 6));
        assert_eq!(take(loader, 15 - skipped), expected[skipped..]);
    }
    let mut loader = loader(dataset, 2, 3, (0, 0));
    loader.by_ref().take(7).for_each(drop);
    assert_eq!(loader.position(), (1, 1));
}

#[test]
fn an_error_comes_in_its_place_and_ends_the_loader() {
    for fault in [Fault::Error, Fault::Panic, Fault::OtherSize] {
        for workers in [0, 1, 4] {
            // Without shuffling, sample 13 is in batch 3 of 6. No crop, so that sizes differ.
            let transform = Transform::new(TransformConfig::default()).unwrap();
            let config = LoaderConfig { workers, prefetch: 6 };
            let dataset = Odd::new(24, fault);
            let mut loader =
                Loader::new(dataset, transform, sampler(24, false, Tail::Drop), config, (0, 0)).unwrap();
            for step in 0..3 {
                assert_eq!(loader.next().unwrap().unwrap().step, step);
            }
            let error = loader.next().unwrap().unwrap_err();
            let expected = match fault {
                Fault::Error => matches!(error, DataError::CorruptImage { row: 13, .. }),
                Fault::Panic => {
                    matches!(&error, DataError::WorkerPanicked { epoch: 0, step: 3, message } if message.contains("13"))
                }
                _ => matches!(error, DataError::MixedSizes { index: 13, .. }),
            };
            assert!(expected, "{error}");
            assert!(loader.next().is_none());
            assert!(loader.next().is_none());
        }
    }
}

#[test]
fn prefetch_bounds_the_work_ahead_and_dropping_ends_it() {
    let dataset = Odd::new(400, Fault::None);
    let mut running = loader(dataset.clone(), 3, 5, (0, 0));
    running.next().unwrap().unwrap();
    drop(running);
    // One batch was delivered, and five more at most were begun.
    assert!(dataset.calls.load(Ordering::SeqCst) <= 6 * 4);
    // Only this test holds the dataset: the threads are gone, and with them their share of it.
    assert_eq!(Arc::strong_count(&dataset), 1);
}

#[test]
fn ranks_beyond_a_ragged_batch_get_an_empty_one() {
    let dataset = Odd::new(5, Fault::None);
    let config = SamplerConfig {
        len: 5,
        world_size: 3,
        rank: 2,
        global_batch: 4,
        pieces: 1,
        seed: 0,
        shuffle: true,
        tail: Tail::Ragged,
    };
    let sampler = DistributedSampler::new(config).unwrap();
    let mut loader = Loader::new(dataset, transform(), sampler, LoaderConfig::default(), (0, 1)).unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!((batch.shape, batch.valid, batch.global_valid), ([0, 3, 8, 8], 0, 1));
}

#[test]
fn impossible_settings_are_refused() {
    let make = |len, prefetch| {
        let config = LoaderConfig { workers: 1, prefetch };
        Loader::new(Odd::new(8, Fault::None), transform(), sampler(len, true, Tail::Drop), config, (0, 0))
    };
    assert!(make(8, 1).is_ok());
    assert!(make(8, 0).is_err());
    assert!(make(9, 1).is_err());
}

#[test]
fn waiting_is_counted() {
    let mut loader = loader(Odd::new(8, Fault::None), 0, 0, (0, 0));
    assert!(loader.waited().is_zero());
    loader.next().unwrap().unwrap();
    assert!(!loader.waited().is_zero());
}
