//! Windows and sequences.

use phalanx_data::collate::{Collate as _, Samples};
use phalanx_data::{DataError, Dataset};
use phalanx_text::{
    DocumentBorders, SequenceBorders, ShardFormat, ShardWriter, TokenPart, TokenSequences, TokenShard,
    TokenStream, TokenWindows, WindowCollation, WindowsConfig,
};
use proptest::prelude::*;

fn windows(parts: Vec<TokenPart>, context: usize, stride: usize, documents: DocumentBorders) -> TokenWindows {
    TokenWindows::new("w", parts, WindowsConfig { context, stride, documents }).expect("sound")
}

fn memory(tokens: impl IntoIterator<Item = u32>) -> TokenPart {
    TokenPart::whole(TokenStream::memory("m", tokens.into_iter().collect()))
}

proptest! {
    #[test]
    fn every_token_is_predicted_once(
        lengths in prop::collection::vec(0_u32..60, 1..4),
        context in 1_usize..20,
        stride in 1_usize..20,
    ) {
        let stride = stride.min(context);
        prop_assume!(lengths.iter().any(|length| *length > 1));
        let mut first = 0;
        let parts: Vec<TokenPart> = lengths.iter().map(|length| {
            first += 1000;
            memory(first..first + length)
        }).collect();
        let windows = windows(parts, context, stride, DocumentBorders::Joined);
        let mut predicted = Vec::new();
        for index in 0..windows.len() {
            let window = windows.get(index, 0).expect("there");
            let weights = window.weights();
            prop_assert!(window.tokens.len() <= context + 1);
            let sum: f32 = weights.iter().sum();
            prop_assert_eq!(windows.weight(index, 0).expect("there"), sum);
            prop_assert!(sum > 0.0);
            for (at, weight) in weights.iter().enumerate() {
                prop_assert_eq!(window.tokens[at] + 1, window.tokens[at + 1]);
                if *weight > 0.0 {
                    predicted.push(window.tokens[at + 1]);
                }
            }
        }
        let expected: Vec<u32> = lengths.iter().enumerate()
            .flat_map(|(part, length)| (1..*length).map(move |at| (part as u32 + 1) * 1000 + at)).collect();
        prop_assert_eq!(predicted, expected);
    }
}

#[test]
fn documents_apart_have_starts_and_no_prediction_across() {
    // 9 ends a document.
    let tokens = [1, 2, 9, 3, 9, 4, 5, 6, 7];
    let apart = DocumentBorders::Apart { end: Some(9) };
    let windows_of = windows(vec![memory(tokens)], 6, 6, apart);
    let first = windows_of.get(0, 0).expect("there");
    assert_eq!(first.starts, [0, 0, 0, 3, 3, 5, 5]);
    assert_eq!(first.weights(), [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    assert_eq!(windows_of.weight(0, 0).expect("there"), 4.0);
    let batch = WindowCollation::new(6)
        .collate(&mut Samples::new("w", &[0, 1], 0, &|index| windows_of.get(index, 0)))
        .expect("fits");
    assert_eq!(batch.values::<u32>("positions").expect("apart")[..6], [0, 1, 2, 0, 1, 0]);
    assert_eq!(batch.values::<u32>("starts").expect("apart")[..6], [0, 0, 0, 3, 3, 5]);
    assert_eq!(batch.values::<f32>("mask").expect("always")[6..], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(batch.values::<u32>("targets").expect("always")[6..8], [6, 7]);
    // An index says the same without the token.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.bin");
    let mut writer = ShardWriter::create(&path, ShardFormat::Megatron, 10).expect("room");
    for document in [&tokens[..3], &tokens[3..5], &tokens[5..]] {
        writer.push(document).expect("written");
        writer.end_document();
    }
    writer.finish().expect("written");
    let part = TokenPart::whole(TokenStream::File(TokenShard::open(&path).expect("written")));
    let indexed = windows(vec![part], 6, 6, DocumentBorders::Apart { end: None });
    for index in 0..2 {
        assert_eq!(indexed.get(index, 0).expect("there"), windows_of.get(index, 0).expect("there"));
    }
    let joined = windows(vec![memory(tokens)], 6, 6, DocumentBorders::Joined);
    assert!(joined.get(0, 0).expect("there").starts.is_empty());
}

#[test]
fn sequences_keep_their_lengths_and_long_ones_continue() {
    let text = b"abcdefghi\nabcde\n\n12345".map(u32::from);
    let texts = |max_tokens: usize| -> Vec<String> {
        let borders = SequenceBorders::Behind(u32::from(b'\n'));
        let sequences = TokenSequences::new("s", memory(text), borders, max_tokens).expect("sound");
        (0..sequences.len())
            .map(|index| {
                let tokens = sequences.get(index, 0).expect("there");
                assert_eq!(sequences.weight(index, 0).expect("there") as usize, tokens.len() - 1);
                tokens.iter().map(|token| char::from(*token as u8)).collect()
            })
            .collect()
    };
    assert_eq!(texts(5), ["abcde", "efghi", "i\n", "abcde", "e\n", "12345"]);
    assert_eq!(texts(99), ["abcdefghi\n", "abcde\n", "12345"]);
    let borders = SequenceBorders::Documents;
    assert!(TokenSequences::new("s", memory(text), borders, 1).is_err());
    assert!(TokenSequences::new("s", memory([1]), borders, 5).is_err());
}

#[test]
fn settings_out_of_range_are_refused() {
    for (context, stride) in [(0, 1), (4, 0), (4, 5)] {
        let config = WindowsConfig { context, stride, documents: DocumentBorders::Joined };
        assert!(matches!(TokenWindows::new("w", vec![memory(0..9)], config), Err(DataError::Config { .. })));
    }
    let config = WindowsConfig { context: 4, stride: 4, documents: DocumentBorders::Joined };
    assert!(
        TokenWindows::new("w", vec![memory(0..1)], config)
            .expect_err("one token")
            .to_string()
            .contains("1 tokens")
    );
    let some = windows(vec![memory(0..9)], 4, 4, DocumentBorders::Joined);
    assert!(some.get(2, 0).is_err() && some.weight(2, 0).is_err());
}
