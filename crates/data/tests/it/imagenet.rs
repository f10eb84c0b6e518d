//! A small ImageNet in the forms of torchvision and Kaggle.

use crate::files::{photo, write};
use phalanx_data::{DataError, Dataset, Exclusions, ImageFolder, LabelledDataset, Split, open_imagenet};
use std::path::Path;
use tempfile::TempDir;

fn open(path: &Path, split: Split) -> Result<ImageFolder, DataError> {
    open_imagenet(path, split, 0, &Exclusions::default())
}

/// Writes training images of two synsets to `root`.
fn train(root: &Path) {
    for name in
        ["n01440764/n01440764_10026.JPEG", "n01440764/n01440764_10027.JPEG", "n01484850/n01484850_17.JPEG"]
    {
        write(&root.join("train").join(name), photo(16, 8));
    }
}

#[test]
fn class_folders_are_named_by_their_synsets() {
    let place = TempDir::new().unwrap();
    train(place.path());
    write(&place.path().join("val/n01484850/ILSVRC2012_val_00002338.JPEG"), photo(8, 8));
    let plain = open(place.path(), Split::Train).unwrap();
    assert_eq!(plain.class_names(), ["n01440764", "n01484850"]);
    write(
        &place.path().join("LOC_synset_mapping.txt"),
        "n01440764 tench, Tinca tinca\r\nn01484850 great white shark, white shark\r\n",
    );
    let (train, test) = (open(place.path(), Split::Train).unwrap(), open(place.path(), Split::Test).unwrap());
    assert_eq!((train.name(), train.len(), test.len()), ("imagenet/train", 3, 1));
    assert_eq!(train.class_names(), ["tench", "great white shark"]);
    // A class without test images does not shift the others.
    assert_eq!((train.label(2).unwrap(), test.label(0).unwrap()), (1, 1));
    let caption = test.get(0, 0).unwrap().caption;
    assert!(caption.contains("a great white shark"), "{caption}");
    std::fs::remove_file(place.path().join("LOC_synset_mapping.txt")).unwrap();
    write(
        &place.path().join("words.txt"),
        "n00001740\tentity\nn01440764\ttench, Tinca tinca\nn01484850\tgreat white shark\n",
    );
    assert_eq!(open(place.path(), Split::Train).unwrap().class_names(), train.class_names());
}

#[test]
fn kaggles_flat_folder_is_labelled_by_its_table() {
    let place = TempDir::new().unwrap();
    let root = place.path().join("ILSVRC/Data/CLS-LOC");
    train(&root);
    for number in [1, 2] {
        write(&root.join(format!("val/ILSVRC2012_val_0000000{number}.JPEG")), photo(8, 8));
    }
    let table = place.path().join("LOC_val_solution.csv");
    let none = open(place.path(), Split::Test).unwrap_err().to_string();
    assert!(none.contains("LOC_val_solution.csv"), "{none}");
    let lines = "ImageId,PredictionString\nILSVRC2012_val_00000002,n01440764 85 1 499 272 \n";
    write(&table, format!("{lines}ILSVRC2012_val_00000001,n01484850 1 2 3 4 n01484850 5 6 7 8\n"));
    let test = open(place.path(), Split::Test).unwrap();
    assert_eq!((test.len(), test.label(0).unwrap(), test.label(1).unwrap()), (2, 1, 0));
    // As spreadsheets save it, and with names of files.
    let quoted = "\u{feff}\"ImageId\",\"PredictionString\"\r\n\"ILSVRC2012_val_00000002\",\"n01440764 85 1 499 272\"\r\n";
    write(&table, format!("{quoted}./ILSVRC2012_val_00000001.JPEG,\"n01484850 1 2 3 4\"\r\n"));
    let test = open(place.path(), Split::Test).unwrap();
    assert_eq!((test.len(), test.label(0).unwrap(), test.label(1).unwrap()), (2, 1, 0));
    for (more, expected) in [
        ("\"ILSVRC2012_val_00000001,n01440764", "line 3: a double quote is not closed on this line"),
        ("ILSVRC2012_val_00000001,n09 1 2 3 4", "line 3: \"n09\" is not one of the 2 folders of train"),
        ("ILSVRC2012_val_00000002,n01440764 1", "line 3: image ILSVRC2012_val_00000002 already has a line"),
        ("ILSVRC2012_val_00000001", "line 3: \"\" is not one"),
        ("", "no line for"),
    ] {
        write(&table, format!("{lines}{more}\n"));
        let error = open(place.path(), Split::Test).unwrap_err().to_string();
        assert!(error.contains("LOC_val_solution.csv") && error.contains(expected), "{error}");
    }
}

#[test]
fn faults_name_their_file() {
    let place = TempDir::new().unwrap();
    let none = open(place.path(), Split::Train).unwrap_err().to_string();
    assert!(none.contains("train/<synset>/*.JPEG (also in ILSVRC/Data/CLS-LOC)"), "{none}");
    train(place.path());
    assert!(
        matches!(open(place.path(), Split::Test).unwrap_err(), DataError::NoTestSplit { looked_for, .. } if looked_for.ends_with("val, test, valid, validation"))
    );
    for (mapping, expected) in [
        ("n01440764 tench", "no name for class folder n01484850"),
        ("n01440764", "line 1: expected a synset and its names"),
        ("n01440764 ,x", "line 1: n01440764 has no name"),
    ] {
        write(&place.path().join("LOC_synset_mapping.txt"), mapping);
        let error = open(place.path(), Split::Train).unwrap_err().to_string();
        assert!(error.contains("LOC_synset_mapping.txt") && error.contains(expected), "{error}");
    }
    write(&place.path().join("val/n99/1.JPEG"), photo(8, 8));
    let stranger = open(place.path(), Split::Test).unwrap_err().to_string();
    assert!(stranger.contains("class n99 is not in"), "{stranger}");
}
