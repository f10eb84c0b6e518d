//! A small ELF program, for the lookup of function names.

/// Bytes of the file's header, of a section's, and of a symbol.
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// The address and the length of the code.
const CODE: (u64, u64) = (0x1000, 0x100);

/// Returns the bytes of 64-bit numbers.
fn words(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a section header: name, type, flags, address, offset, size, link, info, alignment, and entry size.
fn section(
    name: u32,
    kind: u32,
    all: [u64; 4],
    (link, info): (u32, u32),
    (align, entry): (u64, u64),
) -> Vec<u8> {
    let short = |number: u32| number.to_le_bytes();
    [short(name).as_slice(), &short(kind), &words(&all), &short(link), &short(info), &words(&[align, entry])]
        .concat()
}

/// Returns the symbol of a function at an address.
fn function(name: u32, address: u64, length: u64) -> Vec<u8> {
    // Global, in the first section.
    [name.to_le_bytes().as_slice(), &[0x12, 0, 1, 0], &words(&[address, length])].concat()
}

/// Returns a shared object for x86-64 with two functions, one of them a stack walker.
pub(super) fn program() -> Vec<u8> {
    let names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let functions = b"\0phalanx_trainer::sleep::h0123456789abcdef\0_ZN3abc3defE\0";
    let symbols = [vec![0; SYMBOL], function(1, CODE.0, 0x80), function(43, CODE.0 + 0x80, 0x80)].concat();
    let code = vec![0xc3; CODE.1 as usize];
    let (of_code, of_symbols) = (HEADER as u64, HEADER as u64 + CODE.1);
    let of_functions = of_symbols + symbols.len() as u64;
    let of_names = of_functions + functions.len() as u64;
    let of_sections = of_names + names.len() as u64;
    let short = |number: u16| number.to_le_bytes();
    let counts: Vec<u8> = [HEADER as u16, 56, 0, SECTION as u16, 5, 4].into_iter().flat_map(short).collect();
    let header = [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".as_slice(),
        &short(3),
        &short(62),
        &1_u32.to_le_bytes(),
        &words(&[CODE.0, 0, of_sections]),
        &0_u32.to_le_bytes(),
        &counts,
    ]
    .concat();
    let sections = [
        vec![0; SECTION],
        section(1, 1, [6, CODE.0, of_code, CODE.1], (0, 0), (16, 0)),
        section(7, 2, [0, 0, of_symbols, symbols.len() as u64], (3, 1), (8, SYMBOL as u64)),
        section(15, 3, [0, 0, of_functions, functions.len() as u64], (0, 0), (1, 0)),
        section(23, 3, [0, 0, of_names, names.len() as u64], (0, 0), (1, 0)),
    ]
    .concat();
    [header, code, symbols, functions.to_vec(), names.to_vec(), sections].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_as_long_as_its_header_says() {
        let program = program();
        let of_sections = u64::from_le_bytes(program[40..48].try_into().expect("8 bytes")) as usize;
        assert_eq!(program.len(), of_sections + 5 * SECTION);
        assert_eq!(&program[of_sections - 10..of_sections - 1], b".shstrtab");
    }
}
