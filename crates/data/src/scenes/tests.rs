//! Tests of scenes against their descriptions.

use super::split::split_of;
use super::*;
use crate::dataset::{Dataset, LabelledDataset};
use std::collections::BTreeSet;

fn dataset(split: Split, objects: RangeInclusive<usize>, resolution: u32) -> ScenesDataset {
    ScenesDataset::new(ScenesConfig {
        split,
        objects,
        resolution,
        len: 600,
        seed: 3,
        ..ScenesConfig::default()
    })
    .unwrap()
}

fn specs(dataset: &ScenesDataset) -> Vec<SceneSpec> {
    (0..dataset.len()).map(|index| dataset.spec(index).unwrap()).collect()
}

#[test]
fn stated_relations_hold_and_splits_share_no_pair() {
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    for (split, seen) in [Split::Train, Split::Test].into_iter().zip(&mut seen) {
        for spec in specs(&dataset(split, 2..=3, 32)) {
            assert_eq!(spec.relations.len(), spec.objects.len() - 1);
            let found = spec.stated().compare(&spec.cells());
            assert_eq!((found.objects, found.relations), (spec.objects.len(), spec.relations.len()));
            for stated in &spec.relations {
                let (from, to) = (&spec.objects[stated.subject], &spec.objects[stated.object]);
                let (from, to) = ((from.shape, from.colour), (to.shape, to.colour));
                assert_eq!(split_of(from, stated.relation, to), split);
                seen.insert((from, stated.relation, to));
            }
        }
    }
    assert!(seen[0].is_disjoint(&seen[1]));
    for relation in Relation::ALL {
        assert!(seen.iter().all(|seen| seen.iter().any(|(_, told, _)| told == relation)));
    }
}

#[test]
fn objects_lie_in_their_cells_apart_from_each_other() {
    for spec in specs(&dataset(Split::Train, 3..=3, 32)) {
        for (number, object) in spec.objects.iter().enumerate() {
            let (x, y) = object.centre;
            let (column, row) = object.place.column_and_row();
            assert_eq!(((x * 3.0) as usize, (y * 3.0) as usize), (column, row));
            for edge in [x, y] {
                assert!(edge - object.radius > 0.0 && edge + object.radius < 1.0);
            }
            for other in &spec.objects[..number] {
                let apart = (x - other.centre.0).hypot(y - other.centre.1);
                assert!(apart >= object.radius + other.radius, "{object:?} {other:?}");
            }
        }
    }
}

#[test]
fn pictures_show_the_colours_where_attributes_say_at_every_resolution() {
    for resolution in [32, 64, 256] {
        let dataset = dataset(Split::Test, 2..=3, resolution);
        for index in 0..20 {
            let (spec, sample) = (dataset.spec(index).unwrap(), dataset.get(index, 1).unwrap());
            assert_eq!(sample.image.dimensions(), (resolution, resolution));
            assert_eq!(sample.label, spec.objects[0].shape as u32);
            assert_eq!(dataset.attributes().len(), sample.attributes.len());
            let cells = cells(&sample.attributes).unwrap();
            assert_eq!(cells, spec.cells());
            for object in &spec.objects {
                // A ring is empty in its middle.
                let (x, y) = object.centre;
                let y = if object.shape == Shape::Ring { y - 0.72 * object.radius } else { y };
                let at = |part: f32| (part * resolution as f32) as u32;
                // At 32 pixels a ring's pixel has a little of the background in it.
                let found = sample.image.get_pixel(at(x), at(y)).0;
                let off = found.iter().zip(object.colour.rgb()).map(|(a, b)| a.abs_diff(b)).max();
                assert!(off <= Some(12), "{object:?}: {found:?}");
            }
            assert_eq!(sample.image.get_pixel(0, 0).0, spec.background.rgb());
        }
    }
}

#[test]
fn a_scene_depends_on_seed_and_index_and_its_wording_on_the_epoch() {
    let one = dataset(Split::Train, 2..=3, 32);
    assert_eq!(specs(&one), specs(&dataset(Split::Train, 2..=3, 64)));
    let (a, b) = (one.get(5, 0).unwrap(), one.get(5, 9).unwrap());
    assert_eq!(a.image, b.image);
    let captions: BTreeSet<_> = (0..40).map(|epoch| one.get(5, epoch).unwrap().caption).collect();
    assert_eq!(captions.len(), SceneSpec::NUM_WORDINGS);
    let prompts = heldout_scenes(64, &(2..=3));
    assert_eq!(prompts, heldout_scenes(64, &(2..=3)));
    assert_eq!(prompts.iter().map(|(text, _)| text).collect::<BTreeSet<_>>().len(), 64);
    assert!(prompts.iter().all(|(_, spec)| split::allows(Split::Test, spec)));
    assert_eq!((prompts[0].1.objects.len(), prompts[1].1.objects.len()), (2, 3));
}

#[test]
fn a_share_of_training_captions_tells_places() {
    let of = |placed: f64, split: Split| {
        ScenesDataset::new(ScenesConfig { split, len: 600, seed: 3, placed, ..ScenesConfig::default() })
            .unwrap()
    };
    let caption = |dataset: &ScenesDataset, index: usize, epoch: u64| {
        dataset.without_pixels(index, epoch).unwrap().caption
    };
    let placed = |dataset: &ScenesDataset, epoch: u64| -> Vec<usize> {
        let tells =
            |index: &usize| caption(dataset, *index, epoch) == dataset.spec(*index).unwrap().placed_caption();
        (0..600).filter(tells).collect()
    };
    let (half, none) = (of(0.5, Split::Train), of(0.0, Split::Train));
    let first = placed(&half, 0);
    assert!((250..350).contains(&first.len()), "{}", first.len());
    assert_ne!(first, placed(&half, 1), "chosen again in each epoch");
    assert_eq!(placed(&of(1.0, Split::Train), 0).len(), 600);
    assert!(placed(&none, 0).is_empty());
    // The other captions are worded as without the share, and those of test scenes always are.
    let others = (0..600).filter(|index| !first.contains(index));
    others.for_each(|index| assert_eq!(caption(&half, index, 0), caption(&none, index, 0)));
    assert!(placed(&of(1.0, Split::Test), 0).is_empty());
}

#[test]
fn a_share_of_training_captions_tells_all_places_but_one() {
    let shares =
        ScenesConfig { len: 600, seed: 3, placed: 0.25, partly_placed: 0.5, ..ScenesConfig::default() };
    let dataset = ScenesDataset::new(shares).unwrap();
    let (mut all, mut all_but_one) = (0, 0);
    for index in 0..600 {
        let (spec, caption) =
            (dataset.spec(index).unwrap(), dataset.without_pixels(index, 0).unwrap().caption);
        all += usize::from(caption == spec.placed_caption());
        all_but_one += usize::from(caption == spec.partly_placed_caption());
    }
    assert!((110..190).contains(&all) && (250..350).contains(&all_but_one), "{all}, {all_but_one}");
}

#[test]
fn bad_settings_and_values_are_errors() {
    let config = ScenesConfig::default();
    for bad in [
        ScenesConfig { len: 0, ..config.clone() },
        ScenesConfig { resolution: 0, ..config.clone() },
        ScenesConfig { objects: 1..=2, ..config.clone() },
        ScenesConfig { objects: 2..=4, ..config.clone() },
        ScenesConfig { placed: 1.5, ..config.clone() },
        ScenesConfig { placed: f64::NAN, ..config.clone() },
        ScenesConfig { partly_placed: -0.1, ..config.clone() },
        ScenesConfig { placed: 0.7, partly_placed: 0.4, ..config.clone() },
    ] {
        assert!(ScenesDataset::new(bad.clone()).is_err(), "{bad:?}");
    }
    assert!(cells(&[0; 18]).is_err());
    let mut values = vec![0; 19];
    values[1] = 1 + Shape::ALL.len() as u32;
    assert!(cells(&values).unwrap_err().to_string().contains("shape_top_left"));
}
