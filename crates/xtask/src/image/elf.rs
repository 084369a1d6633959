//! Whether a program is static: whether its file names another program that must load it and its libraries.

/// The kind of a program header that names the loader.
const INTERPRETER: usize = 3;

/// The loader that a 64-bit program of a little-endian machine asks for.
pub(super) fn interpreter(program: &[u8]) -> Result<Option<String>, String> {
    const CUT: &str = "the program's file is cut off";
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return Err("the program is no 64-bit ELF file of a little-endian machine".to_owned());
    }
    let number = |at: usize, len: usize| {
        let bytes = at.checked_add(len).and_then(|end| program.get(at..end)).ok_or(CUT)?;
        let value = bytes.iter().rev().fold(0_u64, |value, it| (value << 8) | u64::from(*it));
        usize::try_from(value).map_err(|_| CUT)
    };
    let (headers, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    for header in (0..count).map(|it| headers + it * size) {
        if number(header, 4)? == INTERPRETER {
            let (at, len) = (number(header + 8, 8)?, number(header + 32, 8)?);
            let name = at.checked_add(len).and_then(|end| program.get(at..end)).ok_or(CUT)?;
            return Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with one header of this kind, whose text stands behind it.
    fn program(kind: u8, text: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 0x40 + 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[0x20] = 0x40;
        file[0x36] = 56;
        file[0x38] = 1;
        file[0x40] = kind;
        file[0x40 + 8] = 0x40 + 56;
        file[0x40 + 32] = u8::try_from(text.len()).unwrap();
        file.extend(text);
        file
    }

    #[test]
    fn a_program_that_needs_a_loader_is_told_from_one_that_does_not() {
        assert_eq!(interpreter(&program(3, b"/lib/ld.so\0")).unwrap().as_deref(), Some("/lib/ld.so"));
        assert_eq!(interpreter(&program(1, b"x")).unwrap(), None);
        assert!(interpreter(b"#!/bin/sh").is_err());
        let cut = &program(3, b"/lib/ld.so\0")[..0x40 + 60];
        assert!(interpreter(cut).is_err());
    }

    /// As every test program here is: linked to the C library of the system.
    #[test]
    fn this_program_is_not_static() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(interpreter(&this).unwrap().is_some_and(|it| it.starts_with('/')));
    }
}
