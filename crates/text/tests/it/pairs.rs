//! Pairs of texts from files.

use phalanx_data::Split;
use phalanx_text::pairs::catalogue;
use phalanx_text::{Languages, ParallelTexts, TextPair};

/// Makes a compiled catalogue of messages and translations, in either order of bytes.
fn compiled(entries: &[(&str, &[u8])], is_swapped: bool) -> Vec<u8> {
    let number = |value: usize| {
        let value = value as u32;
        if is_swapped { value.to_be_bytes() } else { value.to_le_bytes() }
    };
    let count = entries.len();
    let mut at = 28 + 16 * count;
    let mut texts = Vec::new();
    let mut tables = [Vec::new(), Vec::new()];
    for (side, table) in tables.iter_mut().enumerate() {
        for (message, translation) in entries {
            let text = if side == 0 { message.as_bytes() } else { translation };
            table.extend(number(text.len()));
            table.extend(number(at));
            at += text.len() + 1;
            texts.extend(text);
            texts.push(0);
        }
    }
    let header = [0x9504_12de, 0, count, 28, 28 + 8 * count, 0, 28 + 16 * count];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(number).collect();
    bytes.extend(tables.concat());
    bytes.extend(texts);
    bytes
}

fn pair(source: &str, target: &str) -> TextPair {
    TextPair { source: source.to_owned(), target: target.to_owned() }
}

#[test]
fn catalogues_have_messages_contexts_and_plurals() {
    let entries: &[(&str, &[u8])] = &[
        ("", b"Project-Id-Version: x\nContent-Type: text/plain; charset=UTF-8\n"),
        ("%d file\0%d files", "%d Datei\0%d Dateien".as_bytes()),
        ("menu\u{4}Open", "Öffnen".as_bytes()),
        ("one form\0more forms", "eine".as_bytes()),
    ];
    let expected = [
        pair("%d file", "%d Datei"),
        pair("%d files", "%d Dateien"),
        pair("Open", "Öffnen"),
        pair("one form", "eine"),
    ];
    for is_swapped in [false, true] {
        assert_eq!(catalogue(&compiled(entries, is_swapped)).expect("sound"), expected);
    }
    let latin: &[(&str, &[u8])] =
        &[("", b"Content-Type: text/plain; charset=ISO-8859-15\n"), ("price", b"f\xfcnf \xa4")];
    assert_eq!(catalogue(&compiled(latin, false)).expect("sound"), [pair("price", "fünf €")]);
    let other: &[(&str, &[u8])] = &[("", b"Content-Type: text/plain; charset=KOI8-R\n"), ("a", b"b")];
    assert!(catalogue(&compiled(other, false)).expect_err("unknown").contains("koi8-r"));
}

#[test]
fn every_damaged_catalogue_is_refused_or_read() {
    let entries: &[(&str, &[u8])] =
        &[("", b"Content-Type: text/plain; charset=UTF-8\n"), ("a text", b"ein Text")];
    let whole = compiled(entries, false);
    for length in 0..whole.len() - 1 {
        let cut = catalogue(&whole[..length]);
        assert!(cut.is_err(), "cut to {length} bytes: {cut:?}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            // It may be another catalogue; it must not be read beyond its end.
            let _ = catalogue(&flipped);
        }
    }
}

#[test]
fn pairs_are_read_from_tables_lines_and_two_files() {
    let place = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writes");
        std::fs::write(&path, text).expect("writes");
        path
    };
    let languages = Languages { source: "en".into(), target: "de".into() };
    let open = |path: &std::path::Path| ParallelTexts::open(path, &languages).expect("sound");
    let words: Vec<(String, String)> =
        (0..20).map(|at| (format!("word {at}"), format!("Wort {at}"))).collect();
    let of = |make: &dyn Fn(&str, &str) -> String| -> String {
        words.iter().map(|(source, target)| make(source, target)).collect()
    };
    let expected = |read: &ParallelTexts| {
        assert_eq!(read.pairs(Split::Test), [pair("word 9", "Wort 9"), pair("word 19", "Wort 19")]);
        assert_eq!(read.pairs(Split::Train).len(), 18);
    };
    expected(&open(&write("plain.tsv", &of(&|source, target| format!("{source}\t{target}\n")))));
    let named = format!("id\tde\ten\n{}", of(&|source, target| format!("7\t{target}\t{source}\r\n")));
    expected(&open(&write("named.tsv", &named)));
    let nested = of(&|source, target| {
        format!("{{\"translation\": {{\"en\": \"{source}\", \"de\": \"{target}\"}}}}\n")
    });
    expected(&open(&write("nested.jsonl", &nested)));
    write("sides/news.en", &of(&|source, _| format!("{source}\n")));
    write("sides/news.de", &of(&|_, target| format!("{target}\n")));
    expected(&open(&place.path().join("sides")));
    // Names of files tell the splits, and pairs with an empty side are left out.
    for (name, text) in [
        ("split/train.en", "one\n\nthree\n"),
        ("split/train.de", "eins\nzwei\ndrei\n"),
        ("split/valid.en", "four\n"),
        ("split/valid.de", "vier\n"),
    ] {
        write(name, text);
    }
    let read = open(&place.path().join("split"));
    assert_eq!(read.pairs(Split::Train), [pair("one", "eins"), pair("three", "drei")]);
    assert_eq!(read.pairs(Split::Test), [pair("four", "vier")]);
}

#[test]
fn catalogues_are_split_as_wholes() {
    let place = tempfile::tempdir().expect("a folder");
    for number in 0..10 {
        let (message, translation) = (format!("m{number}"), format!("t{number}"));
        let header: &[u8] = b"Content-Type: text/plain; charset=UTF-8\n";
        let entries =
            [("", header), (message.as_str(), translation.as_bytes()), ("common", b"gemein".as_slice())];
        std::fs::write(place.path().join(format!("{number}.mo")), compiled(&entries, false)).expect("writes");
    }
    let languages = Languages { source: "en".into(), target: "de".into() };
    let read = ParallelTexts::open(place.path(), &languages).expect("sound");
    assert_eq!(read.pairs(Split::Test), [pair("m9", "t9"), pair("common", "gemein")]);
    assert_eq!(read.pairs(Split::Train).len(), 18);
}
