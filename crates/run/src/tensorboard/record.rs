//! TensorFlow's record format, in little endian: length, masked checksum of the length, payload, masked checksum of the
//! payload.

/// Returns the record of a payload.
pub(super) fn framed(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend(length);
    record.extend(masked(crc32c(&length)).to_le_bytes());
    record.extend(payload);
    record.extend(masked(crc32c(payload)).to_le_bytes());
    record
}

/// Masks a checksum. The CRC of data that holds its own CRC would be weak (`crc32c.h` of LevelDB).
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The Castagnoli polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum of each single byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Computes CRC-32C (RFC 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// Decodes the payloads of a sequence of records; `None` if a checksum is wrong or the last record is cut off.
#[cfg(test)]
pub(super) fn records(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let length = bytes.get(..8)?;
        let payload = bytes.get(12..12 + u64::from_le_bytes(length.try_into().ok()?) as usize)?;
        let end = 12 + payload.len();
        let sum = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if sum(8)? != masked(crc32c(length)) || sum(end)? != masked(crc32c(payload)) {
            return None;
        }
        found.push(payload.to_vec());
        bytes = &bytes[end + 4..];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_of_the_standard() {
        // RFC 3720, B.4, and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
    }

    #[test]
    fn records_are_read_back_and_damage_is_seen() {
        let mut bytes = [framed(b"abc"), framed(b""), framed(&[7; 1000])].concat();
        let payloads = [b"abc".to_vec(), vec![], vec![7; 1000]];
        assert_eq!(records(&bytes).expect("sound"), payloads);
        // The first record of every file of events that TensorFlow writes begins so.
        assert_eq!(framed(&[0; 24])[..12], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
        bytes[13] ^= 1;
        assert_eq!(records(&bytes), None);
    }
}
