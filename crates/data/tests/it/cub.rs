//! A small CUB-200-2011 in the published form, valid and damaged.

use crate::files::{QUARTERS, adobe, blocks, encoded, photo, quarters, write};
use image::{DynamicImage, ImageFormat};
use phalanx_data::{
    CubCaptions, CubConfig, CubDataset, DataError, Dataset, Exclusions, LabelledDataset, Split, Subset,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const IMAGES: [(&str, &str); 6] = [
    ("1", "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg"),
    ("2", "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg"),
    ("3", "001.Black_footed_Albatross/Black Footed Albatross 0002.jpg"),
    ("10", "002.Laysan_Albatross/Laysan_Albatross_0004_930.jpg"),
    ("11", "002.Laysan_Albatross/Laysan_Albatross_0082_524.jpg"),
    ("12", "002.Laysan_Albatross/Laysan_Albatross_0044_784.jpg"),
];

/// Writes the dataset to `CUB_200_2011`, six images of 100x60 pixels, of which the third and the sixth are for testing.
/// The captions are in the parent folder.
fn cub() -> TempDir {
    let place = TempDir::new().unwrap();
    let root = place.path().join("CUB_200_2011");
    let table = |row: &dyn Fn(usize, &str, &str) -> String| -> String {
        IMAGES.iter().enumerate().map(|(at, (id, path))| row(at, id, path) + "\n").collect()
    };
    write(&root.join("classes.txt"), "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n");
    write(&root.join("images.txt"), table(&|_, id, path| format!("{id} {path}")));
    write(&root.join("image_class_labels.txt"), table(&|at, id, _| format!("{id} {}", 1 + at / 3)));
    write(&root.join("train_test_split.txt"), table(&|at, id, _| format!("{id} {}", u8::from(at % 3 < 2))));
    write(&root.join("bounding_boxes.txt"), table(&|_, id, _| format!("{id} 50.0 8.0 40.0 24.0")));
    for (at, (_, path)) in IMAGES.iter().enumerate() {
        write(&root.join("images").join(path), photo(100, 60));
        let captions: String = (0..10).map(|number| format!("this bird {at} has wing {number}.\n")).collect();
        write(&place.path().join("text_c10").join(path).with_extension("txt"), captions);
    }
    place
}

fn open(path: &Path, split: Split) -> Result<CubDataset, DataError> {
    CubDataset::open(&CubConfig::new(path, split))
}

#[test]
fn images_are_cropped_to_birds_and_captions_chosen() {
    let place = cub();
    for path in [place.path().to_path_buf(), place.path().join("CUB_200_2011")] {
        let train = open(&path, Split::Train).unwrap();
        assert_eq!((train.name(), train.len(), open(&path, Split::Test).unwrap().len()), ("cub/train", 4, 2));
        assert_eq!(train.class_names(), ["001.Black_footed_Albatross", "002.Laysan_Albatross"]);
        assert_eq!((0..4).map(|index| train.label(index).unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1]);
        // Centre (70, 20), half side 30: from 40 to 100, and from the top to 50.
        let sample = train.get(2, 0).unwrap();
        assert_eq!((sample.image.dimensions(), sample.label), ((60, 50), 1));
        let middle = sample.image.get_pixel(40, 10).0;
        assert!(middle.iter().zip(QUARTERS[1]).all(|(a, b)| a.abs_diff(b) < 10), "{middle:?}");
        let captions: BTreeSet<_> = (0..100).map(|epoch| train.get(2, epoch).unwrap().caption).collect();
        let expected: BTreeSet<_> = (0..10).map(|number| format!("this bird 3 has wing {number}.")).collect();
        assert_eq!(captions, expected);
        assert_eq!(
            train.get(2, 7).unwrap().caption,
            open(&path, Split::Train).unwrap().get(2, 7).unwrap().caption
        );
    }
    let whole = CubConfig { crop: 0.0, ..CubConfig::new(place.path(), Split::Test) };
    let whole = CubDataset::open(&whole).unwrap();
    assert_eq!(whole.get(0, 0).unwrap().image.dimensions(), (100, 60));
    assert!(whole.file(0).unwrap().ends_with("Black Footed Albatross 0002.jpg"), "a name with spaces");
}

#[test]
fn species_can_be_held_out_for_testing() {
    let place = cub();
    let list = place.path().join("testclasses.txt");
    write(&list, "002.Laysan_Albatross\r\n\r\n");
    let open = |split| {
        CubDataset::open(&CubConfig {
            test_classes: Some(list.clone()),
            ..CubConfig::new(place.path(), split)
        })
    };
    for (split, label) in [(Split::Train, 0), (Split::Test, 1)] {
        let found = open(split).unwrap();
        assert_eq!((0..found.len()).map(|index| found.label(index).unwrap()).collect::<Vec<_>>(), [label; 3]);
    }
    write(&list, "002.Laysan_Albatross\nLaysan Albatross\n");
    let said = open(Split::Test).unwrap_err().to_string();
    assert!(
        said.contains("testclasses.txt") && said.contains('2') && said.contains("`Laysan Albatross`"),
        "{said}"
    );
    write(&list, "001.Black_footed_Albatross\n002.Laysan_Albatross\n");
    let said = open(Split::Train).unwrap_err().to_string();
    assert!(said.contains("testclasses.txt") && said.contains("train"), "{said}");
}

#[test]
fn a_number_of_each_species_can_be_selected() {
    let place = cub();
    let train = Arc::new(open(place.path(), Split::Train).unwrap());
    let one = Subset::per_class(train.clone(), 1, 3).unwrap();
    assert_eq!((one.label(0).unwrap(), one.label(1).unwrap(), one.len()), (0, 1, 2));
    let error = Subset::per_class(train, 3, 3).unwrap_err().to_string();
    assert!(error.contains("001.Black_footed_Albatross, which has 2"), "{error}");
}

#[test]
fn tables_with_windows_line_ends_in_any_order_are_read() {
    let place = cub();
    let root = place.path().join("CUB_200_2011");
    for name in
        ["classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"]
    {
        let text = fs::read_to_string(root.join(name)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        if !["classes.txt", "images.txt"].contains(&name) {
            lines.reverse();
        }
        let mut text = lines.join("\r\n");
        if name == "images.txt" {
            text = text.replacen(' ', " ./", 1);
        }
        write(&root.join(name), format!("\u{feff}{text}\r\n\r\n"));
    }
    let text = place.path().join("text_c10").join(IMAGES[0].1).with_extension("txt");
    write(&text, "\u{feff}a  bird\u{fffd}\u{fffd}with a beak \r\n\r\n");
    let train = open(place.path(), Split::Train).unwrap();
    assert_eq!((0..4).map(|index| train.label(index).unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!(train.get(0, 5).unwrap().caption, "a bird with a beak");
}

/// Returns the error when a file has these contents.
fn error_with(file: &str, contents: impl AsRef<[u8]>) -> String {
    let place = cub();
    write(&place.path().join(file), contents);
    open(place.path(), Split::Train).unwrap_err().to_string().replace(&place.path().display().to_string(), "")
}

#[test]
fn every_fault_of_a_table_names_its_line() {
    let lines = |more: &str| {
        let all: Vec<String> = IMAGES.iter().map(|(id, _)| format!("{id} 1")).collect();
        format!("{}\n{more}", all.join("\n"))
    };
    for (file, contents, expected) in [
        (
            "images.txt",
            "1 a.jpg\n2 b.jpg\n1 c.jpg".to_owned(),
            "images.txt, line 3: id 1 is already on line 1",
        ),
        ("images.txt", "1 a.jpg\nx b.jpg".to_owned(), "images.txt, line 2: \"x\" is not an id"),
        ("images.txt", "1".to_owned(), "images.txt, line 1: 1 field; an image has 2"),
        (
            "images.txt",
            "1 ../../secret.jpg".to_owned(),
            "images.txt, line 1: \"../../secret.jpg\" is not a path within",
        ),
        ("images.txt", String::new(), "images.txt: the table is empty"),
        ("classes.txt", "1 Black footed".to_owned(), "classes.txt, line 1: 3 fields; a class has 2"),
        ("train_test_split.txt", lines("99 1"), "train_test_split.txt, line 7: id 99 is not in images.txt"),
        ("train_test_split.txt", lines("2 0"), "train_test_split.txt, line 7: id 2 is already on line 2"),
        ("train_test_split.txt", "1 1\n2 2".to_owned(), "line 2: \"2\" is neither 0 (for testing) nor 1"),
        ("train_test_split.txt", "1 1 1".to_owned(), "line 1: 3 fields; there are 2"),
        (
            "train_test_split.txt",
            "1 1\n2 1".to_owned(),
            "no line for 001.Black_footed_Albatross/Black Footed Albatross 0002.jpg, line 3 of images.txt",
        ),
        ("train_test_split.txt", lines("").replace(" 1\n", " 0\n"), "none of the images"),
        (
            "image_class_labels.txt",
            lines("").replace("11 1", "11 3"),
            "line 5: class 3 is not in classes.txt",
        ),
        (
            "bounding_boxes.txt",
            "1 1.0 2.0 3.0".to_owned(),
            "bounding_boxes.txt, line 1: 3 fields after the id",
        ),
        ("bounding_boxes.txt", "1 1.0 2.0 3.0 x".to_owned(), "line 1: \"x\" is not a number"),
    ] {
        let found = error_with(&format!("CUB_200_2011/{file}"), contents);
        assert!(found.contains(expected), "{found}\nfor {expected}");
    }
    let found = error_with("CUB_200_2011/classes.txt", b"1 001.Caf\xe9\n");
    assert!(found.contains("classes.txt, line 1: not UTF-8"), "{found}");
}

#[test]
fn faults_of_captions_and_images_name_their_file() {
    let text = Path::new("text_c10").join(IMAGES[1].1).with_extension("txt");
    let empty = error_with(text.to_str().unwrap(), " \r\n");
    assert!(empty.contains("0009_34.txt: the file has no caption"), "{empty}");

    let place = cub();
    let root = place.path().join("CUB_200_2011");
    fs::remove_file(place.path().join(&text)).unwrap();
    let missing = open(place.path(), Split::Train).unwrap_err().to_string();
    assert!(
        missing.contains("images.txt, line 2: the captions") && missing.contains("0009_34.txt are missing"),
        "{missing}"
    );
    // Once it is excluded, the other images remain.
    write(&place.path().join("bad.txt"), "Black_Footed_Albatross_0009_34.jpg\n");
    let excluded = Exclusions::read(place.path().join("bad.txt")).unwrap();
    let config = CubConfig { excluded, ..CubConfig::new(place.path(), Split::Train) };
    assert_eq!(CubDataset::open(&config).unwrap().len(), 3);

    let image = |number: usize, bytes: &[u8]| {
        write(&root.join("images").join(IMAGES[number].1), bytes);
        let config =
            CubConfig { captions: CubCaptions::ClassNames, ..CubConfig::new(place.path(), Split::Train) };
        CubDataset::open(&config).unwrap().get(number, 0)
    };
    let cut = image(0, &photo(100, 60)[..400]).unwrap_err().to_string();
    assert!(cut.contains("0046_18.jpg: truncated"), "{cut}");
    let small = encoded(&DynamicImage::ImageRgb8(quarters(16, 8)), ImageFormat::Jpeg);
    let outside = image(0, &small).unwrap_err().to_string();
    assert!(
        outside.contains("0046_18.jpg: the box in bounding_boxes.txt, 40x24 pixels at (50, 8)"),
        "{outside}"
    );
    let cmyk = image(1, &blocks(12, &adobe(0), |_, _| vec![200, 100, 50, 255])).unwrap();
    assert_eq!((cmyk.image.dimensions(), cmyk.image.get_pixel(1, 1).0), ((56, 50), [200, 100, 50]));
    assert!(cmyk.caption.contains("a black footed albatross"), "{}", cmyk.caption);
    fs::remove_file(root.join("images").join(IMAGES[0].1)).unwrap();
    let gone = CubDataset::open(&config).unwrap().get(0, 0).unwrap_err();
    assert!(matches!(gone, DataError::Io { path, .. } if path.ends_with(IMAGES[0].1)));
}

#[test]
fn missing_files_are_named() {
    let place = TempDir::new().unwrap();
    let none = open(place.path(), Split::Train).unwrap_err().to_string();
    assert!(none.contains("images.txt (also in CUB_200_2011)"), "{none}");
    let place = cub();
    let elsewhere = place.path().join("CUB_200_2011/elsewhere");
    fs::rename(place.path().join("text_c10"), &elsewhere).unwrap();
    let none = open(place.path(), Split::Train).unwrap_err().to_string();
    assert!(none.contains("text_c10"), "{none}");
    let with =
        |captions| CubDataset::open(&CubConfig { captions, ..CubConfig::new(place.path(), Split::Train) });
    assert!(
        with(CubCaptions::Folder(elsewhere)).unwrap().get(0, 0).unwrap().caption.starts_with("this bird 0")
    );
    assert!(with(CubCaptions::Folder(PathBuf::from("nowhere"))).is_err());
    assert!(
        CubDataset::open(&CubConfig { crop: -1.0, ..CubConfig::new(place.path(), Split::Train) }).is_err()
    );
}
