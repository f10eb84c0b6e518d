//! The machine that executes a pickle: a stack, a memo, and the instructions that Python's `pickletools` documents.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};

use super::objects::{ClassName, Id, Object, Objects};

/// The largest number of objects of a pickle, so that positions fit.
const OBJECTS: usize = 1 << 30;

/// The longest line, such as the name of a class.
const LINE: u64 = 1 << 16;

/// A pickle that has been executed.
#[derive(Debug)]
pub(super) struct Pickle {
    pub(super) objects: Objects,
    pub(super) root: Id,
}

/// Executes the pickle at the reader's position, and leaves the reader after it. Nothing that it names is called.
/// `left` is the number of bytes that the reader has, which no length may exceed. The error is a message.
pub(super) fn execute(reader: &mut dyn BufRead, left: u64) -> Result<Pickle, String> {
    let mut machine = Machine {
        reader,
        left,
        read: 0,
        objects: Objects::default(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        let at = machine.read;
        let [code] = machine.array::<1>()?;
        if code == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { objects: machine.objects, root });
        }
        machine.step(code).map_err(|problem| format!("{problem} (byte {at} of its pickle)"))?;
        if machine.objects.len() > OBJECTS {
            return Err("its pickle has too many objects".to_owned());
        }
    }
}

/// The machine.
struct Machine<'a> {
    reader: &'a mut dyn BufRead,
    left: u64,
    read: u64,
    objects: Objects,
    stack: Vec<Id>,
    /// Lengths of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

type Done = Result<(), String>;

fn cut_off(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "its pickle is cut off".to_owned(),
        _ => error.to_string(),
    }
}

impl Machine<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|error| cut_off(&error))?;
        self.read += N as u64;
        Ok(bytes)
    }

    /// Reads `count` bytes; the memory grows with the bytes that are there.
    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, String> {
        if count > self.left.saturating_sub(self.read) {
            return Err(format!("its pickle has a text of {count} bytes, more than the file"));
        }
        let mut bytes = Vec::new();
        (&mut *self.reader).take(count).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        self.read += bytes.len() as u64;
        if bytes.len() as u64 == count { Ok(bytes) } else { Err("its pickle is cut off".to_owned()) }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut bytes = Vec::new();
        let mut line = (&mut *self.reader).take(LINE);
        line.read_until(b'\n', &mut bytes).map_err(|error| error.to_string())?;
        self.read += bytes.len() as u64;
        match bytes.pop() {
            Some(b'\n') => Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\r').to_owned()),
            _ => Err("its pickle is cut off".to_owned()),
        }
    }

    fn pop(&mut self) -> Result<Id, String> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= bottom {
            return Err("its pickle takes an object that is not there".to_owned());
        }
        self.stack.pop().ok_or_else(|| "its pickle takes an object that is not there".to_owned())
    }

    fn top(&mut self) -> Result<Id, String> {
        let top = self.pop()?;
        self.stack.push(top);
        Ok(top)
    }

    fn push(&mut self, object: Object) -> Done {
        let id = self.objects.add(object);
        self.stack.push(id);
        Ok(())
    }

    /// Removes and returns the objects above the last mark, and the mark.
    fn since_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("its pickle lacks a mark")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn tuple(&mut self, count: usize) -> Done {
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(self.pop()?);
        }
        parts.reverse();
        self.push(Object::Tuple(parts))
    }

    fn text(&mut self, bytes: &[u8]) -> Done {
        self.push(Object::Text(String::from_utf8_lossy(bytes).into()))
    }

    fn text_of(&mut self, count: u64) -> Done {
        let bytes = self.bytes(count)?;
        self.text(&bytes)
    }

    fn bytes_of(&mut self, count: u64) -> Done {
        self.bytes(count)?;
        self.push(Object::Bytes)
    }

    /// Pushes an integer of any length; one that 64 bits cannot hold is not kept.
    fn long(&mut self, count: u64) -> Done {
        let bytes = self.bytes(count)?;
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        match wide.get_mut(..bytes.len()) {
            Some(low) => low.copy_from_slice(&bytes),
            None => return self.push(Object::Bytes),
        }
        self.push(Object::Int(i64::from_le_bytes(wide)))
    }

    fn step(&mut self, code: u8) -> Done {
        match code {
            // The protocol, and the length of a frame.
            0x80 => self.array::<1>().map(|_| ()),
            0x95 => self.array::<8>().map(|_| ()),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => match self.marks.last() {
                Some(mark) if *mark == self.stack.len() => {
                    self.marks.pop().map(|_| ()).ok_or_else(String::new)
                }
                _ => self.pop().map(|_| ()),
            },
            b'1' => self.since_mark().map(|_| ()),
            b'2' => self.top().map(|top| self.stack.push(top)),
            b'N' | 0x88 | 0x89 | b'I' | b'L' | b'F' | b'J' | b'K' | b'M' | b'G' | 0x8a | 0x8b => {
                self.number(code)
            }
            b'X' | b'V' | b'S' | b'T' | b'U' | b'B' | b'C' | 0x8c | 0x8d | 0x8e | 0x96 => self.string(code),
            b')'
            | b't'
            | 0x85..=0x87
            | b']'
            | b'l'
            | b'a'
            | b'e'
            | b'}'
            | b'd'
            | b's'
            | b'u'
            | 0x8f..=0x91 => self.container(code),
            b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.memo(code),
            b'c' | 0x93 | b'R' | 0x81 | 0x92 | b'b' | b'Q' | b'P' => self.object(code),
            other => Err(format!("its pickle has the unknown instruction {other:#04x}")),
        }
    }

    fn number(&mut self, code: u8) -> Done {
        match code {
            b'N' => self.push(Object::None),
            0x88 | 0x89 => self.push(Object::Bool(code == 0x88)),
            b'J' => {
                self.array::<4>().and_then(|bytes| self.push(Object::Int(i32::from_le_bytes(bytes).into())))
            }
            b'K' => self.array::<1>().and_then(|[byte]| self.push(Object::Int(byte.into()))),
            b'M' => {
                self.array::<2>().and_then(|bytes| self.push(Object::Int(u16::from_le_bytes(bytes).into())))
            }
            b'G' => self.array::<8>().and_then(|_| self.push(Object::Float)),
            0x8a => self.array::<1>().and_then(|[count]| self.long(count.into())),
            0x8b => self.array::<4>().and_then(|count| self.long(u32::from_le_bytes(count).into())),
            b'F' => self.line().and_then(|_| self.push(Object::Float)),
            _ => {
                let line = self.line()?;
                let value = line.trim_end_matches('L').parse().map_or(Object::Bytes, Object::Int);
                self.push(value)
            }
        }
    }

    fn string(&mut self, code: u8) -> Done {
        match code {
            b'X' | b'T' => self.array::<4>().and_then(|count| self.text_of(u32::from_le_bytes(count).into())),
            b'U' | 0x8c => self.array::<1>().and_then(|[count]| self.text_of(count.into())),
            0x8d => self.array::<8>().and_then(|count| self.text_of(u64::from_le_bytes(count))),
            b'V' => self.line().and_then(|line| self.text(line.as_bytes())),
            b'S' => self.line().and_then(|line| self.text(line.trim_matches(['\'', '"']).as_bytes())),
            b'B' => self.array::<4>().and_then(|count| self.bytes_of(u32::from_le_bytes(count).into())),
            b'C' => self.array::<1>().and_then(|[count]| self.bytes_of(count.into())),
            _ => self.array::<8>().and_then(|count| self.bytes_of(u64::from_le_bytes(count))),
        }
    }

    fn container(&mut self, code: u8) -> Done {
        match code {
            b')' => self.tuple(0),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            b't' => self.since_mark().and_then(|parts| self.push(Object::Tuple(parts))),
            b']' | 0x8f => self.push(Object::List(Vec::new())),
            b'l' | 0x91 => self.since_mark().and_then(|parts| self.push(Object::List(parts))),
            b'}' => self.push(Object::Dict(Vec::new())),
            b'd' => self.since_mark().and_then(|parts| self.push(Object::Dict(pairs(&parts)?))),
            b'a' => self.pop().and_then(|value| self.extend(&[value])),
            b'e' | 0x90 => self.since_mark().and_then(|parts| self.extend(&parts)),
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.insert(&[key, value])
            }
            _ => self.since_mark().and_then(|parts| self.insert(&parts)),
        }
    }

    /// Appends to the list on top; lists of other classes are not kept.
    fn extend(&mut self, values: &[Id]) -> Done {
        let top = self.top()?;
        if let Some(Object::List(parts)) = self.objects.get_mut(top) {
            parts.extend(values);
        }
        Ok(())
    }

    /// Inserts keys and values into the dict on top. An object of a class of dicts becomes a dict.
    fn insert(&mut self, parts: &[Id]) -> Done {
        let top = self.top()?;
        let new = pairs(parts)?;
        match self.objects.get_mut(top) {
            Some(Object::Dict(entries)) => entries.extend(new),
            Some(object) => *object = Object::Dict(new),
            None => {}
        }
        Ok(())
    }

    fn memo(&mut self, code: u8) -> Done {
        let key = match code {
            b'q' | b'h' => u32::from(self.array::<1>()?[0]),
            b'r' | b'j' => u32::from_le_bytes(self.array()?),
            0x94 => self.memo.len() as u32,
            _ => self.line()?.parse().map_err(|_| "its pickle has a damaged memo")?,
        };
        if matches!(code, b'h' | b'j' | b'g') {
            let known = self.memo.get(&key).ok_or("its pickle refers to an object that is not there")?;
            self.stack.push(*known);
        } else {
            let top = self.top()?;
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn object(&mut self, code: u8) -> Done {
        match code {
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Object::Class(Box::new(ClassName { module, name })))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |id| self.objects.text(id).unwrap_or_default().to_owned();
                let class = ClassName { module: text(module), name: text(name) };
                self.push(Object::Class(Box::new(class)))
            }
            b'Q' => self.pop().and_then(|id| self.push(Object::Persistent(id))),
            b'P' => {
                let line = self.line()?;
                self.text(line.as_bytes())?;
                let id = self.pop()?;
                self.push(Object::Persistent(id))
            }
            b'b' => {
                let state = self.pop()?;
                let top = self.top()?;
                if let Some(Object::Call { state: own, .. }) = self.objects.get_mut(top) {
                    *own = Some(state);
                }
                Ok(())
            }
            _ => {
                if code == 0x92 {
                    // Named arguments.
                    self.pop()?;
                }
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let object = self.objects.call(callable, arguments);
                self.push(object)
            }
        }
    }
}

fn pairs(parts: &[Id]) -> Result<Vec<(Id, Id)>, String> {
    let (pairs, rest) = parts.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("its pickle has a key without a value".to_owned());
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &[u8]) -> Result<Pickle, String> {
        execute(&mut &*program, program.len() as u64)
    }

    #[test]
    fn references_are_no_copies() {
        // A pair of the last object twice, repeated: it would double with every five bytes.
        let mut doubling = b"\x80\x02Nq\x00".to_vec();
        for _ in 0..1000 {
            doubling.extend(b"h\x00h\x00\x86q\x00");
        }
        let nested = [&b"\x80\x02N"[..], &[0x85; 100_000], b"."].concat();
        // A list that contains itself.
        let list_of_itself = [&b"\x80\x02]q\x00"[..], &b"h\x00a".repeat(100), b"."].concat();
        doubling.push(b'.');
        for program in [doubling, nested, list_of_itself] {
            let pickle = run(&program).expect("sound");
            assert!(pickle.objects.len() <= program.len());
        }
    }

    #[test]
    fn damaged_programs_are_errors() {
        for (program, words) in [
            (&b""[..], "cut off"),
            (b"\x80\x02}q\x00", "cut off"),
            (b"\xff", "the unknown instruction 0xff (byte 0 of its pickle)"),
            (b"\x80\x02t", "lacks a mark"),
            (b"\x80\x02\x86", "takes an object that is not there"),
            (b"\x80\x02(.", "takes an object that is not there"),
            (b"\x80\x02h\x07", "refers to an object that is not there"),
            (b"\x80\x02X\xff\xff\xff\x7fabc", "more than the file"),
            (b"\x80\x02}(Nu.", "a key without a value"),
            (b"ctorch", "cut off"),
        ] {
            let problem = run(program).expect_err(words);
            assert!(problem.contains(words), "{program:?}: {problem}");
        }
    }

    #[test]
    fn strings_and_dicts_of_python_2_are_read() {
        // OrderedDict([['a', 1]]), as Python 2 writes it.
        let program =
            b"\x80\x02ccollections\nOrderedDict\nq\x00]q\x01]q\x02(U\x01aq\x03K\x01ea\x85q\x04Rq\x05.";
        let pickle = run(program).expect("sound");
        let [(key, value)] = pickle.objects.entries(pickle.root).expect("a dict") else {
            panic!("one entry")
        };
        assert_eq!((pickle.objects.text(*key), pickle.objects.int(*value)), (Some("a"), Some(1)));
        let longs = run(b"\x80\x02\x8a\x02\x00\xff.").expect("sound");
        assert_eq!(longs.objects.int(longs.root), Some(-256));
    }
}
