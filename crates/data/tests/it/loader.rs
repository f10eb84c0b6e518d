//! Tests of the loader: order, resumption, errors, prefetching.

use phalanx_data::{
    Batch, BatchSource, CaptionedImage, CollatedDataset, DataError, Dataset, DistributedSampler,
    ImageCollation, LabelledDataset, Loader, LoaderConfig, Order, PadTo, RandomCrop, Result, SamplerConfig,
    Samples, SequenceCollation, SequenceConfig, ShapesConfig, ShapesDataset, SourceSubset, StepBatch, Subset,
    Tail, Transform, TransformConfig,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The misbehaviour of a dataset at one index.
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
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        "odd"
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        // Some batches take longer, so that they finish out of order.
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
    let config = SamplerConfig {
        len,
        world_size: 1,
        rank: 0,
        global_batch: 4,
        micro_batches: 1,
        seed: 5,
        order: if shuffle { Order::Shuffled } else { Order::Sequential },
        tail,
    };
    DistributedSampler::new(config).unwrap()
}

fn transform() -> Transform {
    let random_crop = Some(RandomCrop { size: 8, padding: 1 });
    Transform::new(TransformConfig { random_crop, flip: 0.5, ..Default::default() }).unwrap()
}

/// Batches of a dataset of images.
fn source(dataset: Arc<Odd>, transform: Transform) -> Arc<dyn BatchSource> {
    Arc::new(CollatedDataset::new(dataset, ImageCollation::new(transform)))
}

fn loader(dataset: Arc<Odd>, workers: usize, prefetch: usize, start: (u64, usize)) -> Loader {
    let sampler = sampler(dataset.len(), true, Tail::Ragged);
    Loader::new(
        source(dataset, transform()),
        sampler,
        LoaderConfig { workers, prefetch, ..LoaderConfig::default() },
        start,
    )
    .unwrap()
}

fn take(loader: Loader, n: usize) -> Vec<StepBatch> {
    loader.take(n).map(|batch| batch.unwrap()).collect()
}

#[test]
fn any_number_of_workers_gives_the_same_batches() {
    let dataset = Odd::new(22, Fault::None);
    let expected = take(loader(dataset.clone(), 0, 0, (0, 0)), 15);
    let places: Vec<_> = expected.iter().map(|batch| (batch.epoch, batch.step)).collect();
    assert_eq!(places, (0..15).map(|n| (n / 6, n as usize % 6)).collect::<Vec<_>>());
    assert_eq!(expected[0].batch.array("images").unwrap().shape(), [4, 3, 8, 8]);
    assert_eq!(expected[5].batch.array("images").unwrap().shape(), [2, 3, 8, 8]);
    assert_eq!((expected[5].valid, expected[5].global_samples, expected[5].global_weight), (2, 2, 2.0));
    for StepBatch { batch, indices, .. } in &expected {
        let labels: Vec<u32> = indices.iter().map(|&index| dataset.inner.label(index).unwrap()).collect();
        assert_eq!(batch.values::<u32>("labels").unwrap(), labels);
        assert_eq!(batch.weights(), vec![1.0; indices.len()]);
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
fn it_continues_from_any_position() {
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
fn an_error_takes_the_place_of_its_batch_and_ends_the_loader() {
    for fault in [Fault::Error, Fault::Panic, Fault::OtherSize] {
        for workers in [0, 1, 4] {
            // Without shuffling, sample 13 is in batch 3 of 6. There is no crop, so sizes differ.
            let transform = Transform::new(TransformConfig::default()).unwrap();
            let config = LoaderConfig { workers, prefetch: 6, ..LoaderConfig::default() };
            let dataset = Odd::new(24, fault);
            let mut loader =
                Loader::new(source(dataset, transform), sampler(24, false, Tail::Drop), config, (0, 0))
                    .unwrap();
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
    // One batch was delivered, and at most five more were begun.
    assert!(dataset.calls.load(Ordering::SeqCst) <= 6 * 4);
    // Only this test holds the dataset: the threads have ended.
    assert_eq!(Arc::strong_count(&dataset), 1);
}

#[test]
fn ranks_beyond_a_ragged_batch_get_a_sample_that_does_not_count() {
    let dataset = Odd::new(5, Fault::None);
    let config = SamplerConfig {
        len: 5,
        world_size: 3,
        rank: 2,
        global_batch: 4,
        micro_batches: 1,
        seed: 0,
        order: Order::Shuffled,
        tail: Tail::Ragged,
    };
    let sampler = DistributedSampler::new(config).unwrap();
    let mut loader =
        Loader::new(source(dataset, transform()), sampler, LoaderConfig::default(), (0, 1)).unwrap();
    let StepBatch { batch, valid, micro_batches, global_samples, global_weight, .. } =
        loader.next().unwrap().unwrap();
    assert_eq!((valid, global_samples, global_weight), (0, 1, 1.0));
    assert!(micro_batches[0].positions.is_empty());
    assert_eq!((batch.array("images").unwrap().shape(), batch.weights()), (&[1, 3, 8, 8][..], &[0.0][..]));
}

#[test]
fn impossible_settings_are_refused() {
    let make = |len, prefetch| {
        let config = LoaderConfig { workers: 1, prefetch, ..LoaderConfig::default() };
        let source = source(Odd::new(8, Fault::None), transform());
        Loader::new(source, sampler(len, true, Tail::Drop), config, (0, 0))
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

/// Lines of a text by bytes, without their last in odd epochs; 0 is no byte of them.
struct Lines([&'static [u8]; 5]);

impl Dataset for Lines {
    type Item = Vec<u32>;

    fn name(&self) -> &str {
        "lines"
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<Vec<u32>> {
        let line = &self.0[index][..self.0[index].len() - epoch as usize % 2];
        Ok(line.iter().map(|byte| u32::from(*byte)).collect())
    }

    fn weight(&self, index: usize, epoch: u64) -> Result<f32> {
        Ok(self.get(index, epoch)?.len() as f32 - 1.0)
    }
}

/// Makes batches of three lines of different lengths, with padding at the end.
fn lines(world_size: usize, rank: usize) -> Vec<StepBatch> {
    let lines = Lines([b"one\n", b"two or more\n", b"three\n", b"four lines in all\n", b"five\n"]);
    let config = SequenceConfig { predict_next: true, length: PadTo::Multiple(8), ..Default::default() };
    let source = CollatedDataset::new(Arc::new(lines), SequenceCollation::new(config).unwrap());
    let config = SamplerConfig {
        len: 5,
        world_size,
        rank,
        global_batch: 3,
        micro_batches: 1,
        seed: 2,
        order: Order::Shuffled,
        tail: Tail::Pad,
    };
    let sampler = DistributedSampler::new(config).unwrap();
    take(Loader::new(Arc::new(source), sampler, LoaderConfig::default(), (0, 0)).unwrap(), 4)
}

#[test]
fn weights_are_the_datasets_and_add_up_to_one_number_on_all_ranks() {
    let alone = lines(1, 0);
    // The predictions of an epoch: the characters of each line, since its line feed is predicted in even ones.
    let of_epochs =
        [&alone[..2], &alone[2..]].map(|steps| steps.iter().map(|step| step.global_weight).sum::<f64>());
    assert_eq!(of_epochs, [3.0 + 11.0 + 5.0 + 17.0 + 4.0, 2.0 + 10.0 + 4.0 + 16.0 + 3.0]);
    assert_eq!((alone[1].valid, alone[1].batch.len(), alone[1].batch.weights()[2]), (2, 3, 0.0));
    for (step, whole) in alone.iter().enumerate() {
        let mut sum = 0.0;
        for rank in 0..2 {
            let own = &lines(2, rank)[step];
            assert_eq!(own.global_weight, whole.global_weight);
            sum += own.batch.weights().iter().map(|weight| f64::from(*weight)).sum::<f64>();
            let marked: f32 = own.batch.values::<f32>("mask").unwrap().iter().sum();
            let lengths: u32 = own.batch.values::<u32>("lengths").unwrap().iter().sum();
            assert_eq!(marked, lengths as f32);
        }
        assert_eq!(sum, whole.global_weight);
    }
}

#[test]
fn a_subset_of_a_source_gives_what_a_subset_of_the_dataset_gives() {
    let plain = || Transform::new(TransformConfig::default()).unwrap();
    let whole = source(Odd::new(22, Fault::None), plain());
    let chosen = Subset::take(Odd::new(22, Fault::None), 9, 4).unwrap();
    let of_dataset = CollatedDataset::new(Arc::new(chosen), ImageCollation::new(plain()));
    let of_source = SourceSubset::take(whole.clone(), 9, 4).unwrap();
    assert_eq!((of_source.len(), of_source.weight(8, 0).unwrap()), (9, 1.0));
    let indices = [8, 0, 3];
    let batch = of_source.batch(&indices, 2, &|| true).unwrap();
    assert_eq!(batch, of_dataset.batch(&indices, 2, &|| true).unwrap());
    assert!(of_source.weight(9, 0).is_err() && of_source.batch(&[9], 0, &|| true).is_err());
    assert!(SourceSubset::take(whole, 23, 4).is_err());
}

#[test]
fn a_batch_can_be_cancelled() {
    let source = source(Odd::new(4, Fault::None), transform());
    let asked = AtomicUsize::new(0);
    let wanted = || asked.fetch_add(1, Ordering::SeqCst) < 2;
    assert!(matches!(source.batch(&[0, 1, 2], 0, &wanted), Err(DataError::Cancelled)));
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[test]
fn a_collation_that_loses_samples_is_an_error() {
    fn none_of(_: &mut Samples<'_, CaptionedImage>) -> Result<Batch> {
        Ok(Batch::new(0))
    }
    let source = CollatedDataset::new(Odd::new(4, Fault::None), none_of);
    let error = source.batch(&[0, 1], 0, &|| true).unwrap_err();
    assert!(error.to_string().contains("0 samples out of 2"), "{error}");
}
