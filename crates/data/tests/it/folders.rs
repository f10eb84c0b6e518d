//! Class folders as people have them: other splits, other files, nested folders, and a test split that is held out.

use crate::files::{photo, write};
use phalanx_data::{
    DataError, Dataset, Exclusions, HeldOut, ImageDataset, ImageFolder, LabelledDataset, Split,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a folder with a small image at each place.
fn folder(places: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for place in places {
        write(&dir.path().join(place), photo(8, 8));
    }
    dir
}

fn error_of(dir: &TempDir, split: Split) -> String {
    ImageFolder::open(dir.path(), split).expect_err("an error").to_string()
}

#[test]
fn a_class_folder_without_images_is_an_error_that_tells_its_contents() {
    for (name, found) in [
        ("train/b/1.gif", "1 file is not read (1 .gif), such as"),
        ("train/b/more/1.jpg", "1 image in deeper folders not read, such as"),
        ("train/b/.hidden.jpg", "it is empty"),
        ("test/b/1.tiff", "1 file is not read (1 .tiff), such as"),
    ] {
        let dir = folder(&["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg"]);
        let split = if name.starts_with("test") { Split::Test } else { Split::Train };
        if split == Split::Train {
            std::fs::remove_file(dir.path().join("train/b/1.jpg")).unwrap();
        }
        write(&dir.path().join(name), photo(8, 8));
        let error = error_of(&dir, split);
        let class = Path::new(name).iter().take(2).collect::<std::path::PathBuf>();
        let begin = format!("{}: a class folder without images (.png, ", dir.path().join(class).display());
        assert!(error.starts_with(&begin) && error.contains(found), "{error}");
    }
    // A test split may lack a class, and archives made on macOS have a folder more.
    let dir = folder(&["train/a/1.jpg", "train/b/1.jpg", "train/__MACOSX/._1.jpg", "test/a/1.jpg"]);
    std::fs::create_dir(dir.path().join("test/b")).unwrap();
    assert_eq!(ImageFolder::open(dir.path(), Split::Train).unwrap().class_names(), ["a", "b"]);
    assert_eq!(ImageFolder::open(dir.path(), Split::Test).unwrap().len(), 1);
}

#[test]
fn excluding_all_images_of_a_class_moves_no_label() {
    let dir = folder(&["train/a/1.jpg", "train/b/1.jpg"]);
    write(&dir.path().join("bad.txt"), "a/1.jpg\n");
    let excluded = Exclusions::read(dir.path().join("bad.txt")).unwrap();
    let images = ImageFolder::open_seeded(dir.path(), Split::Train, 0, &excluded).unwrap();
    assert_eq!((images.len(), images.label(0).unwrap()), (1, 1));
    excluded.check_used().unwrap();
}

#[test]
fn files_that_are_not_read_are_counted() {
    let dir = folder(&[
        "train/a/1.jpg",
        "train/a/2.GIF",
        "train/a/3.gif",
        "train/b/1.jpg",
        "train/b/x/y/1.jpg",
        "train/b/x/2.png",
        "train/notes",
        "train/a/.DS_Store",
    ]);
    let images = ImageFolder::open(dir.path(), Split::Train).unwrap();
    assert_eq!(images.len(), 2);
    let notes = images.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes[0].starts_with("train images: 3 files are not read (2 .gif, 1 no extension), such as "),
        "{notes:?}"
    );
    assert!(notes[1].starts_with("train images: 2 images in deeper folders not read, such as "), "{notes:?}");
    let plain = folder(&["train/a/1.jpg"]);
    assert!(ImageFolder::open(plain.path(), Split::Train).unwrap().notes().is_empty());
}

#[test]
fn test_images_are_in_any_of_the_usual_folders() {
    for name in ["test", "val", "valid", "validation"] {
        let dir = folder(&["train/a/1.jpg", "train/b/1.jpg", &format!("{name}/b/2.jpg")]);
        let test = ImageFolder::open(dir.path(), Split::Test).unwrap();
        assert_eq!((test.len(), test.label(0).unwrap()), (1, 1));
        assert_eq!(test.classes_from(), Some(dir.path().join("train").as_path()));
    }
    let dir = folder(&["train/a/1.jpg"]);
    let error = ImageFolder::open(dir.path(), Split::Test).unwrap_err();
    assert!(matches!(&error, DataError::NoTestSplit { .. }), "{error}");
    assert!(error.to_string().contains("test, val, valid, validation"), "{error}");
    let dir = folder(&["val/a/1.jpg"]);
    assert!(error_of(&dir, Split::Train).contains("train: no such folder"));
}

/// Returns the names of the images of a split.
fn names(images: &dyn LabelledDataset<Item = phalanx_data::CaptionedImage>) -> BTreeSet<String> {
    let name = |index| {
        let path = images.sample_path(index).unwrap();
        path.iter()
            .rev()
            .take(2)
            .map(|part| part.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join("<")
    };
    (0..images.len()).map(name).collect()
}

#[test]
fn a_part_of_each_class_is_held_out_of_a_plain_folder() {
    let places: Vec<String> =
        (0..30).map(|number| format!("{}/{number}.jpg", if number < 20 { "a" } else { "b" })).collect();
    let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
    places.push("c/only.jpg");
    let dir = folder(&places);
    let open = |dir: &TempDir| -> Arc<ImageDataset> {
        Arc::new(ImageFolder::open(dir.path(), Split::Train).unwrap())
    };
    let HeldOut { train, test } = HeldOut::of(&open(&dir), 0.2).unwrap();
    assert_eq!((train.len(), test.len()), (25, 6));
    let of_class = |label| (0..test.len()).filter(|index| test.label(*index).unwrap() == label).count();
    assert_eq!([0, 1, 2].map(of_class), [4, 2, 0]);
    assert_eq!(train.class_names(), ["a", "b", "c"]);
    assert!(names(&train).is_disjoint(&names(&test)));
    // Neither the place of the folder nor another image moves the others.
    let mut more = places.clone();
    more.push("a/new.jpg");
    let HeldOut { test: moved, .. } = HeldOut::of(&open(&folder(&more)), 0.2).unwrap();
    let kept = names(&test).intersection(&names(&moved)).count();
    assert!(kept >= test.len() - 1, "{kept} of {} remain", test.len());
    for fraction in [0.0, 1.0, f64::NAN] {
        assert!(HeldOut::of(&open(&dir), fraction).is_err());
    }
    let lonely = HeldOut::of(&open(&folder(&["a/1.jpg", "b/1.jpg"])), 0.5).unwrap_err().to_string();
    assert!(lonely.contains("no class of"), "{lonely}");
}
