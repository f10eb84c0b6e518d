//! Records of TensorBoard's HParams plugin: the settings of a run and its end
//! (`tensorboard/plugins/hparams/plugin_data.proto`).

use serde_json::Value;

use crate::protobuf::Message;

/// The name of the plugin.
const PLUGIN: &[u8] = b"hparams";

/// Returns the summary value that begins a session with these settings, at `seconds` since 1970.
pub(super) fn session_start(settings: &[(String, Value)], seconds: f64) -> Message {
    let entry = |start: Message, (name, value): &(String, Value)| {
        let entry = Message::new().bytes(1, name.as_bytes()).message(2, &setting(value));
        start.message(1, &entry)
    };
    let start = settings.iter().fold(Message::new(), entry).double(5, seconds);
    value("_hparams_/session_start_info", &Message::new().message(3, &start))
}

/// Returns the summary value that ends a session with success, at `seconds` since 1970.
pub(super) fn session_end(seconds: f64) -> Message {
    let end = Message::new().varint(1, 1).double(2, seconds);
    value("_hparams_/session_end_info", &Message::new().message(4, &end))
}

/// Returns the summary value of a record.
fn value(tag: &str, data: &Message) -> Message {
    let data = data.clone().into_bytes();
    let plugin = Message::new().message(1, &Message::new().bytes(1, PLUGIN).bytes(2, &data));
    // TensorBoard wants a tensor with every record: one float.
    let shape = Message::new().message(2, &Message::new().varint(1, 1));
    let tensor = Message::new().varint(1, 1).message(2, &shape).bytes(5, &0_f32.to_le_bytes());
    Message::new().bytes(1, tag.as_bytes()).message(8, &tensor).message(9, &plugin)
}

/// Returns a setting as a `google.protobuf.Value`: a number, a truth value or a text.
fn setting(value: &Value) -> Message {
    match value {
        Value::Bool(value) => Message::new().varint(4, u64::from(*value)),
        Value::Number(number) => Message::new().double(2, number.as_f64().unwrap_or_default()),
        Value::String(text) => Message::new().bytes(3, text.as_bytes()),
        other => Message::new().bytes(3, other.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{Field, fields};

    fn field(of: &[Field], number: u64) -> &Field {
        of.iter().find(|field| field.number == number).expect("the field")
    }

    fn within(bytes: &[u8], path: &[u64]) -> Vec<Field> {
        let found = fields(bytes).expect("a message");
        match path {
            [] => found,
            [first, rest @ ..] => within(&field(&found, *first).bytes, rest),
        }
    }

    #[test]
    fn settings_are_values_of_their_types() {
        let settings = [
            ("optim.lr", serde_json::json!(0.5)),
            ("train.amp", true.into()),
            ("optim.kind", "sgd".into()),
            ("sample.prompts", serde_json::json!(["a"])),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        let bytes = session_start(&settings, 2.0).into_bytes();
        let value = fields(&bytes).expect("a value");
        assert_eq!(field(&value, 1).bytes, b"_hparams_/session_start_info");
        let plugin = within(&bytes, &[9, 1]);
        assert_eq!(field(&plugin, 1).bytes, b"hparams");
        let start = within(&field(&plugin, 2).bytes, &[3]);
        let entries: Vec<_> = start.iter().filter(|field| field.number == 1).collect();
        let read = |at: usize| {
            let entry = fields(&entries[at].bytes).expect("an entry");
            (field(&entry, 1).bytes.clone(), fields(&field(&entry, 2).bytes).expect("a value")[0].clone())
        };
        assert_eq!(
            read(0),
            (b"optim.lr".to_vec(), Field { number: 2, bytes: 0.5_f64.to_le_bytes().into(), varint: 0 })
        );
        assert_eq!(read(1).1, Field { number: 4, varint: 1, bytes: vec![] });
        assert_eq!(read(2).1, Field { number: 3, bytes: b"sgd".to_vec(), varint: 0 });
        assert_eq!(read(3).1.bytes, b"[\"a\"]");
        assert_eq!(field(&start, 5).bytes, 2.0_f64.to_le_bytes());
        let end = within(&session_end(3.0).into_bytes(), &[9, 1, 2, 4]);
        assert_eq!(field(&end, 1).varint, 1, "success");
    }
}
