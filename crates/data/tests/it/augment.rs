//! Augmented and mixed images depend on neither the number of ranks nor that of threads, and on no resumption.

use phalanx_data::mix::{LABEL_SHARES, PARTNER_LABELS};
use phalanx_data::{
    BatchSource, CollatedDataset, ColorJitter, DistributedSampler, Filter, ImageCollation, Loader,
    LoaderConfig, Mixing, Order, RandAugment, RandomCrop, RandomErasing, Resize, SamplerConfig, ShapesConfig,
    ShapesDataset, StepBatch, Tail, Transform, TransformConfig,
};
use std::sync::Arc;

const LEN: usize = 23;
const SIDE: usize = 10;

fn source() -> Arc<dyn BatchSource> {
    let shapes = ShapesDataset::new(ShapesConfig { len: LEN, resolution: 12, ..Default::default() }).unwrap();
    let transform = Transform::new(TransformConfig {
        resize: Some(Resize::square(12, Filter::Bilinear)),
        random_crop: Some(RandomCrop { size: SIDE as u32, padding: 1 }),
        flip: 0.5,
        rand_augment: Some(RandAugment::new(2, 9)),
        color_jitter: Some(ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 }),
        erasing: Some(RandomErasing::new(0.5)),
        seed: 4,
        ..Default::default()
    });
    Arc::new(CollatedDataset::new(Arc::new(shapes), ImageCollation::new(transform.unwrap())))
}

/// A sample of a step: its position in the global batch, image, labels and share.
type Sample = (usize, Vec<f32>, [u32; 2], f32);

/// Returns the real samples of a rank's batch.
fn samples(StepBatch { batch, valid, micro_batches, .. }: &StepBatch) -> Vec<Sample> {
    let images = batch.values::<f32>("images").unwrap().chunks_exact(3 * SIDE * SIDE);
    let labels = [batch.values::<u32>("labels").unwrap(), batch.values::<u32>(PARTNER_LABELS).unwrap()];
    let shares = batch.values::<f32>(LABEL_SHARES).unwrap();
    let positions = micro_batches.iter().flat_map(|own| own.positions.clone());
    let rows = positions.zip(images).enumerate().take(*valid);
    rows.map(|(at, (position, image))| {
        (position, image.to_vec(), labels.map(|labels| labels[at]), shares[at])
    })
    .collect()
}

/// Returns the samples of some steps by position, from a world of `ranks`.
fn steps(ranks: usize, micro_batches: usize, workers: usize, start: (u64, usize)) -> Vec<Vec<Sample>> {
    const STEPS: usize = 7;
    let mut all = vec![Vec::new(); STEPS];
    for rank in 0..ranks {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: LEN,
            world_size: ranks,
            rank,
            global_batch: 7,
            micro_batches,
            seed: 2,
            order: Order::Shuffled,
            tail: Tail::Ragged,
        });
        let mixing = Some(Mixing { mixup: 0.8, cutmix: 1.0, seed: 6 });
        let config = LoaderConfig { workers, prefetch: 3, mixing };
        let loader = Loader::new(source(), sampler.unwrap(), config, start).unwrap();
        for (step, batch) in loader.take(STEPS).enumerate() {
            all[step].extend(samples(&batch.unwrap()));
        }
    }
    all.iter_mut().for_each(|samples| samples.sort_by_key(|sample| sample.0));
    all
}

#[test]
fn ranks_threads_and_resumptions_give_the_same_pictures() {
    let expected = steps(1, 1, 0, (0, 0));
    // Seven samples have a last one without a partner; the last step of an epoch has two.
    let sizes: Vec<usize> = expected.iter().map(Vec::len).collect();
    assert_eq!(sizes, [7, 7, 7, 2, 7, 7, 7]);
    for samples in &expected {
        for (position, _, [own, partner], share) in samples {
            let other = samples.get(position ^ 1).unwrap_or(&samples[*position]);
            assert_eq!((other.2, other.3), ([*partner, *own], *share));
        }
    }
    let shares: std::collections::BTreeSet<u32> =
        expected.iter().map(|samples| samples[0].3.to_bits()).collect();
    assert!(shares.len() > 4, "each step has its own");
    for (ranks, micro_batches, workers) in [(1, 2, 1), (2, 1, 2), (3, 1, 0), (3, 2, 1), (4, 1, 0), (5, 3, 2)]
    {
        assert!(steps(ranks, micro_batches, workers, (0, 0)) == expected, "{ranks} ranks, {micro_batches}");
    }
    assert!(steps(2, 1, 1, (0, 2))[..5] == expected[2..]);
}
