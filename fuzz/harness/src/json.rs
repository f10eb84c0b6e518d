//! Random changes of valid JSON: values of other types, extreme numbers, removed and repeated entries.

use serde_json::{Map, Value};

use crate::random::Random;

/// Changes one to four values of a JSON text. Returns false, without a change, if the text is not JSON.
pub fn change(text: &mut Vec<u8>, random: &mut Random) -> bool {
    let Ok(mut value) = serde_json::from_slice::<Value>(text) else { return false };
    for _ in 0..1 + random.below(4) {
        once(&mut value, random);
    }
    *text = value.to_string().into_bytes();
    true
}

fn once(value: &mut Value, random: &mut Random) {
    // Descends to a random depth.
    if !random.once_in(4) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                let at = random.below(items.len());
                return once(&mut items[at], random);
            }
            Value::Object(map) if !map.is_empty() => {
                let at = random.below(map.len());
                if let Some((_, inner)) = map.iter_mut().nth(at) {
                    return once(inner, random);
                }
            }
            _ => {}
        }
    }
    match (random.below(6), &mut *value) {
        (0, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
        (1, Value::Array(items)) if !items.is_empty() && items.len() < 10_000 => {
            let copy = items[random.below(items.len())].clone();
            items.extend(std::iter::repeat_n(copy, 1 + random.below(3)));
        }
        (0, Value::Object(map)) if !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned();
            drop(key.and_then(|key| map.remove(&key)));
        }
        (1, Value::Object(map)) if !map.is_empty() => {
            let (from, to) = (random.below(map.len()), random.below(map.len()));
            let names: Vec<String> = map.keys().cloned().collect();
            if let Some(copy) = map.get(&names[from]).cloned() {
                map.insert(names[to].clone(), copy);
            }
        }
        (2, Value::String(text)) => match random.below(3) {
            0 => text.push_str(random.pick::<&str>(&["/../../etc/passwd", "\0", "😀", "-1", "%s", "::"])),
            1 => text.clear(),
            _ => *text = text.repeat(1 + random.below(40)),
        },
        (2 | 3, Value::Number(number)) => {
            let found = number.as_i64().unwrap_or_default();
            *value = match random.below(3) {
                0 => found.wrapping_add(1).into(),
                1 => found.wrapping_neg().into(),
                _ => random.awkward().into(),
            };
        }
        _ => *value = any(random),
    }
}

fn any(random: &mut Random) -> Value {
    match random.below(9) {
        0 => Value::Null,
        1 => Value::Bool(random.once_in(2)),
        2 => random.awkward().into(),
        3 => (random.awkward() as i64).into(),
        4 => (*random.pick(&[0.5, -0.0, 1e300, -1e300, 5e-324, 1e19])).into(),
        5 => Value::String("x".repeat(random.below(20))),
        6 => Value::Array((0..random.below(5)).map(|_| random.awkward().into()).collect()),
        7 => Value::Object(Map::new()),
        _ => (0..1 + random.below(100)).fold(Value::Null, |inner, _| Value::Array(vec![inner])),
    }
}
