//! Headers of `.npy` files, versions 1.0, 2.0 and 3.0.
//!
//! A header is the literal of a Python dict with three keys. It is parsed by a small parser that knows just
//! that literal; nothing is ever evaluated or unpickled.

mod literal;

use crate::dataset::dtype::Dtype;
use crate::{Error, ErrorKind, Result};
use literal::{Descr, Literal, excerpt};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What every `.npy` file begins with.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// The largest header that is read, in bytes. Those that numpy writes for arrays of numbers have about a
/// hundred.
const MAX_HEADER: u64 = 16 << 20;

/// What the header of a `.npy` file says of the array in it.
///
/// The array is in C order and ends where the file ends. `shape` has at least one axis, the first of which
/// counts the samples; its axes longer than 0, multiplied, times the element size, do not overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    /// The type of the elements.
    pub(crate) dtype: Dtype,
    /// The length of each axis, in elements.
    pub(crate) shape: Vec<u64>,
    /// Where the first element begins, in bytes from the start of the file.
    pub(crate) data_offset: u64,
}

/// Reads the header of `file`, which is `file_len` bytes long, and checks that the array fills the rest of
/// it.
///
/// Nothing but the header is read. The error of anything that is not an array which this crate can deliver
/// says what it is: `InvalidData` for malformed files, `Unsupported` for well-formed ones.
pub(crate) fn read_header(path: &Path, file: &File, file_len: u64) -> Result<NpyHeader> {
    let head = read(path, file, 0, file_len.min(64))?;
    if !head.starts_with(MAGIC) {
        return Err(Error::data(path, format!("not a .npy file: {}", what_it_is(&head))));
    }
    let ends_early =
        || Error::data(path, format!("the file ends after {file_len} bytes, within its .npy header"));
    let (Some(&major), Some(&minor)) = (head.get(6), head.get(7)) else {
        return Err(ends_early());
    };
    let (length, text_offset) = match (major, minor) {
        (1, 0) => (head.get(8..10).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))), 10),
        (2 | 3, 0) => (head.get(8..12).map(|b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))), 12),
        _ => {
            let message = format!(".npy version {major}.{minor}; the versions 1.0, 2.0 and 3.0 can be read");
            return Err(Error::new(ErrorKind::Unsupported, message).at(path));
        }
    };
    let length = length.ok_or_else(ends_early)?;
    // Before anything is allocated: the length is whatever the file says.
    let data_offset = text_offset + length;
    if data_offset > file_len {
        return Err(Error::data(
            path,
            format!(
                "the .npy header is {data_offset} bytes long by its own account, the whole file {file_len}"
            ),
        ));
    }
    if length > MAX_HEADER {
        let message = format!("a .npy header of {length} bytes; at most {MAX_HEADER} are read");
        return Err(Error::new(ErrorKind::Unsupported, message).at(path));
    }
    let bytes = read(path, file, text_offset, length)?;
    let text = match major {
        3 => String::from_utf8(bytes)
            .map_err(|e| Error::data(path, "the .npy header is not UTF-8").caused_by(e))?,
        _ => bytes.into_iter().map(char::from).collect(),
    };
    let literal =
        Literal::parse(&text).map_err(|what| Error::data(path, format!("malformed .npy header: {what}")))?;
    check(path, literal, data_offset, file_len)
}

fn read(path: &Path, file: &File, offset: u64, length: u64) -> Result<Vec<u8>> {
    // At most 64 bytes or `MAX_HEADER`.
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Changed, "the file became shorter while its header was read").at(path)
        }
        _ => Error::io(path, "cannot read the .npy header", e).range(offset, length),
    })?;
    Ok(bytes)
}

/// What a file that begins with `head` is, if not a `.npy` file.
fn what_it_is(head: &[u8]) -> &'static str {
    const KINDS: [(&[u8], &str); 5] = [
        (b"PK\x03\x04", "it is a zip archive, as .npz files are; extract the arrays from it"),
        (b"PK\x05\x06", "it is an empty zip archive"),
        (b"\x1f\x8b", "it is compressed with gzip; decompress it"),
        (b"version https://git-lfs", "it is a pointer of git-LFS to the real file; run `git lfs pull`"),
        (b"\x80", "it begins as a pickle does, and pickles are never loaded"),
    ];
    if head.is_empty() {
        return "it is empty";
    }
    match KINDS.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, what)) => what,
        None if MAGIC.starts_with(head) => "it ends within the first six bytes",
        None => "it does not begin with \\x93NUMPY",
    }
}

/// Whether this crate can deliver what the header describes, and whether all of it is there.
fn check(path: &Path, literal: Literal<'_>, data_offset: u64, file_len: u64) -> Result<NpyHeader> {
    let unsupported = |what: String| Error::new(ErrorKind::Unsupported, what).at(path);
    let dtype = match literal.descr {
        Descr::Name(name) => dtype(name).map_err(|(kind, what)| Error::new(kind, what).at(path))?,
        Descr::Structured(text) => {
            return Err(unsupported(format!(
                "a structured dtype, {}; save each field by itself",
                excerpt(text)
            )));
        }
    };
    let shape = literal.shape;
    if shape.is_empty() {
        return Err(unsupported("an array of shape () has no sample axis".into()));
    }
    let elements = shape.iter().filter(|&&n| n > 0).try_fold(1u64, |product, &n| product.checked_mul(n));
    let Some(mut length) = elements.and_then(|n| n.checked_mul(dtype.size())) else {
        return Err(Error::data(path, format!("an array of shape {shape:?} and dtype {dtype} is too large")));
    };
    if shape.contains(&0) {
        length = 0;
    }
    // With one axis longer than 1 there is only one order; with no elements there is none.
    if literal.fortran_order && length > 0 && shape.iter().filter(|&&n| n > 1).count() > 1 {
        return Err(unsupported(
            "the array is in Fortran order, where the parts of a sample lie apart; save it again as \
             np.ascontiguousarray(array)"
                .into(),
        ));
    }
    let there = file_len - data_offset;
    if length > there {
        return Err(Error::data(
            path,
            format!(
                "truncated: {} of the {length} bytes of a {dtype} array of shape {shape:?} are missing",
                length - there
            ),
        ));
    }
    if length < there {
        return Err(Error::data(
            path,
            format!("{} bytes follow the {length} of the {dtype} array of shape {shape:?}", there - length),
        )
        .range(data_offset + length, there - length));
    }
    Ok(NpyHeader { dtype, shape, data_offset })
}

/// The dtype that numpy calls `name`, as in `<f4`; or why there is none.
fn dtype(name: &str) -> Result<Dtype, (ErrorKind, String)> {
    let shown = excerpt(name);
    let unknown = || (ErrorKind::InvalidData, format!("unknown dtype {shown}"));
    let unsupported = |what: &str| Err((ErrorKind::Unsupported, format!("dtype {shown}: {what}")));
    let mut chars = name.chars();
    let (Some(order @ ('<' | '>' | '=' | '|')), Some(kind)) = (chars.next(), chars.next()) else {
        return Err(unknown());
    };
    let rest = chars.as_str();
    match kind {
        'O' => return unsupported("Python objects would have to be unpickled, which is refused"),
        'S' | 'a' | 'U' | 'T' => {
            return unsupported("arrays of strings cannot be read; encode them as numbers");
        }
        'M' | 'm' => return unsupported("dates and durations cannot be read; save array.view('<i8')"),
        'V' => {
            return unsupported("raw (void) records cannot be read; save array.view() of a dtype of numbers");
        }
        _ => {}
    }
    let dtype = match (kind, rest) {
        ('b', "1") => Dtype::Bool,
        ('u', "1") => Dtype::U8,
        ('i', "1") => Dtype::I8,
        ('u', "2") => Dtype::U16,
        ('i', "2") => Dtype::I16,
        ('u', "4") => Dtype::U32,
        ('i', "4") => Dtype::I32,
        ('u', "8") => Dtype::U64,
        ('i', "8") => Dtype::I64,
        ('f', "2") => Dtype::F16,
        ('f', "4") => Dtype::F32,
        ('f', "8") => Dtype::F64,
        ('c', "8") => Dtype::C64,
        ('c', "16") => Dtype::C128,
        ('f', "12" | "16") | ('c', "24" | "32") => {
            return unsupported("extended precision cannot be read; convert it to f8 or c16");
        }
        _ => return Err(unknown()),
    };
    match order {
        '>' if dtype.size() > 1 => {
            unsupported("big-endian numbers cannot be read; save array.astype(array.dtype.newbyteorder('<'))")
        }
        // No byte order at all, for elements that need one.
        '|' if dtype.size() > 1 => Err(unknown()),
        _ => Ok(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with `text` as its header, unpadded, and `data` bytes after it.
    fn npy(major: u8, text: &[u8], data: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([major, 0]);
        match major {
            1 => bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes()),
            _ => bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes()),
        }
        bytes.extend(text);
        bytes.resize(bytes.len() + data, 7);
        bytes
    }

    fn dict(descr: &str, fortran_order: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n")
    }

    fn parse(bytes: &[u8]) -> Result<NpyHeader> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("array.npy");
        std::fs::write(&path, bytes).unwrap();
        read_header(&path, &File::open(&path).unwrap(), bytes.len() as u64)
    }

    fn assert_array(bytes: &[u8], dtype: Dtype, shape: &[u64]) {
        let header = parse(bytes).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((header.dtype, &header.shape[..]), (dtype, shape));
        let text_end = bytes.iter().rposition(|&b| b == b'}').unwrap() as u64;
        assert!(header.data_offset > text_end && header.data_offset <= bytes.len() as u64);
    }

    fn assert_refused(bytes: &[u8], kind: ErrorKind, parts: &[&str]) {
        let error = parse(bytes).expect_err("should be refused");
        assert_eq!(error.kind(), kind, "{error}");
        for part in parts.iter().chain(&["array.npy: "]) {
            assert!(error.to_string().contains(part), "no {part:?} in {error}");
        }
        assert!(error.to_string().len() < 400, "{error}");
    }

    #[test]
    fn every_dtype_of_numbers_is_read() {
        let names = "|b1 bool, |i1 i8, |u1 u8, <u1 u8, >i1 i8, <i2 i16, <u2 u16, =i4 i32, <u4 u32, <i8 i64, <u8 u64, \
                     <f2 f16, <f4 f32, =f8 f64, <c8 c64, <c16 c128";
        for (name, dtype) in names.split(", ").map(|row| row.split_once(' ').unwrap()) {
            let dtype = dtype.parse::<Dtype>().unwrap();
            let text = dict(&format!("'{name}'"), "False", "(3, 5)");
            assert_array(&npy(1, text.as_bytes(), 15 * dtype.size() as usize), dtype, &[3, 5]);
        }
    }

    #[test]
    fn other_dtypes_are_refused_by_name() {
        let cases = [
            (">f4", "big-endian"),
            (">i4", "big-endian"),
            (">c16", "big-endian"),
            ("|S3", "strings"),
            ("<U2", "strings"),
            (">U2", "strings"),
            ("<M8[ns]", "dates"),
            ("<m8[s]", "dates"),
            ("|O", "unpickled, which is refused"),
            ("|O8", "unpickled, which is refused"),
            ("|V16", "void"),
            ("<f16", "extended precision"),
        ];
        for (name, what) in cases {
            let bytes = npy(1, dict(&format!("'{name}'"), "False", "(3,)").as_bytes(), 24);
            assert_refused(&bytes, ErrorKind::Unsupported, &[name, what]);
        }
        let structured = "[('a', '<i4'), (\"b]\", '<f4', (2, 2))]";
        let bytes = npy(1, dict(structured, "False", "(2,)").as_bytes(), 40);
        assert_refused(&bytes, ErrorKind::Unsupported, &["structured", "('a', '<i4')", "(2, 2))]"]);
        let bytes = npy(1, dict("('<i4', {'unit': 'm'})", "False", "(2,)").as_bytes(), 8);
        assert_refused(&bytes, ErrorKind::Unsupported, &["structured", "'unit': 'm'"]);
        for name in
            ["", "<", "<i", "i4", "float32", "<i3", "<i4 ", "|i4", "<b2", "<x4", "é", "<\\x694", "<i44"]
        {
            let bytes = npy(3, dict(&format!("'{name}'"), "False", "(3,)").as_bytes(), 12);
            assert_refused(&bytes, ErrorKind::InvalidData, &["unknown dtype"]);
        }
    }

    #[test]
    fn every_way_to_write_the_dict_is_read() {
        let texts = [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (10, 4), }       \n",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (10, 4), }",
            "{\"descr\":\"<i4\",\"fortran_order\":False,\"shape\":(10,4)}",
            "{'shape': (10L, 4L), 'fortran_order': False, 'descr': '<i4'}\n",
            " \t{ 'fortran_order'  :False  ,\n 'shape' : ( 10 ,4 , ) ,'descr': '<i4' , } \r\n",
        ];
        for text in texts {
            for major in 1..=3 {
                assert_array(&npy(major, text.as_bytes(), 160), Dtype::I32, &[10, 4]);
            }
        }
        for (shape, axes, bytes) in [
            ("(768,)", &[768][..], 768),
            ("(10L,)", &[10], 10),
            ("(10, 4,)", &[10, 4], 40),
            ("(0, 5)", &[0, 5], 0),
            ("(5, 0)", &[5, 0], 0),
            ("(0,)", &[0], 0),
            ("(1, 2, 3, 4)", &[1, 2, 3, 4], 24),
        ] {
            assert_array(&npy(1, dict("'|u1'", "False", shape).as_bytes(), bytes), Dtype::U8, axes);
        }
    }

    #[test]
    fn a_malformed_header_is_told_by_its_mistake() {
        let text = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), 'metadata': {}}";
        let parts = ["malformed .npy header: ", "unknown key \"metadata\""];
        assert_refused(&npy(1, text.as_bytes(), 8), ErrorKind::InvalidData, &parts);
    }

    #[test]
    fn only_version_three_is_utf8() {
        let latin = b"{'descr': [('\xe9', '<i4')], 'fortran_order': False, 'shape': (2,)}";
        for major in [1, 2] {
            assert_refused(&npy(major, latin, 8), ErrorKind::Unsupported, &["structured", "'é'"]);
        }
        assert_refused(&npy(3, latin, 8), ErrorKind::InvalidData, &["not UTF-8"]);
        let utf8 = dict("[('é', '<i4')]", "False", "(2,)");
        assert_refused(&npy(3, utf8.as_bytes(), 8), ErrorKind::Unsupported, &["structured", "'é'"]);
        let header = npy(9, dict("'<i4'", "False", "(2,)").as_bytes(), 8);
        assert_refused(&header, ErrorKind::Unsupported, &["version 9.0"]);
        let mut minor = npy(1, dict("'<i4'", "False", "(2,)").as_bytes(), 8);
        minor[7] = 9;
        assert_refused(&minor, ErrorKind::Unsupported, &["version 1.9"]);
    }

    #[test]
    fn a_header_of_any_length_is_read() {
        let text = dict("'<f4'", "False", "(2, 3)");
        let padded = |length: usize| (text.clone() + &" ".repeat(length - text.len())).into_bytes();
        for length in [text.len(), 118, 119, 4096 - 10, 65535] {
            let header = parse(&npy(1, &padded(length), 24)).unwrap();
            assert_eq!(header.data_offset, 10 + length as u64);
        }
        assert_eq!(parse(&npy(2, &padded(70_000), 24)).unwrap().data_offset, 70_012);
        let many = format!("[{}]", "('field', '<i4'), ".repeat(4000));
        let bytes = npy(2, dict(&many, "False", "(2,)").as_bytes(), 0);
        assert_refused(&bytes, ErrorKind::Unsupported, &["structured", "..."]);
    }

    #[test]
    fn a_header_length_is_not_believed() {
        for length in [0u32, 1, u32::MAX] {
            let bytes = [MAGIC, &[2, 0], &length.to_le_bytes()].concat();
            assert_refused(
                &bytes,
                ErrorKind::InvalidData,
                if length == 0 { &["malformed"] } else { &["12"] },
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.npy");
        std::fs::write(&path, [MAGIC, &[3, 0], &u32::MAX.to_le_bytes()].concat()).unwrap();
        let file = File::options().write(true).read(true).open(&path).unwrap();
        file.set_len(5 << 30).unwrap();
        let error = read_header(&path, &file, 5 << 30).unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes; at most 16777216"), "{error}");
    }

    #[test]
    fn fortran_order_is_read_only_where_it_makes_no_difference() {
        for (shape, elements) in [("(6,)", 6), ("(6, 1)", 6), ("(1, 6, 1)", 6), ("(2, 0, 3)", 0), ("(1,)", 1)]
        {
            parse(&npy(1, dict("'<f4'", " True", shape).as_bytes(), 4 * elements)).unwrap();
        }
        for order in ["True", "  True  "] {
            let bytes = npy(1, dict("'<f4'", order, "(2, 3)").as_bytes(), 24);
            assert_refused(&bytes, ErrorKind::Unsupported, &["Fortran order", "np.ascontiguousarray"]);
        }
        parse(&npy(1, dict("'<f4'", "  False  ", "(2, 3)").as_bytes(), 24)).unwrap();
    }

    #[test]
    fn the_array_must_end_where_the_file_does() {
        let text = dict("'<f4'", "False", "(2, 3)");
        let short = npy(1, text.as_bytes(), 21);
        assert_refused(&short, ErrorKind::InvalidData, &["3 of the 24 bytes", "f32", "[2, 3]", "missing"]);
        let long = npy(1, text.as_bytes(), 29);
        assert_refused(&long, ErrorKind::InvalidData, &["5 bytes follow the 24"]);
        assert_eq!(parse(&long).unwrap_err().length(), Some(5));
        let whole = npy(1, text.as_bytes(), 24);
        for end in 0..whole.len() {
            assert_refused(&whole[..end], ErrorKind::InvalidData, &[]);
        }
    }

    #[test]
    fn shapes_that_make_no_array_are_refused() {
        assert_refused(
            &npy(1, dict("'<f4'", "False", "()").as_bytes(), 4),
            ErrorKind::Unsupported,
            &["no sample axis"],
        );
        for shape in [
            "(4294967296, 4294967296)",
            "(18446744073709551615,)",
            "(0, 9223372036854775808, 9223372036854775808)",
            "(4611686018427387904,)",
        ] {
            let bytes = npy(1, dict("'<f4'", "False", shape).as_bytes(), 0);
            assert_refused(&bytes, ErrorKind::InvalidData, &["too large"]);
        }
        let bytes = npy(1, dict("'<f4'", "False", "(1000000000000,)").as_bytes(), 8);
        assert_refused(&bytes, ErrorKind::InvalidData, &["3999999999992 of the 4000000000000"]);
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "empty"),
            (b"PK\x03\x04\x14\0\0\0", ".npz"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
            (b"\x80\x04\x95", "pickle"),
            (b"\x93NUM", "ends within the first six bytes"),
            (b"NUMPY", "does not begin with"),
            (b"\x93NUMPX\x01\0", "does not begin with"),
        ];
        for (bytes, part) in cases {
            assert_refused(bytes, ErrorKind::InvalidData, &["not a .npy file", part]);
        }
    }

    #[test]
    fn a_file_that_shrank_is_told_from_a_malformed_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("array.npy");
        std::fs::write(&path, b"\x93NUMPY").unwrap();
        let error = read_header(&path, &File::open(&path).unwrap(), 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), major in 0..5u8) {
            let _ = parse(&bytes);
            if bytes.len() > 11 {
                bytes[..6].copy_from_slice(MAGIC);
                bytes[6..12].copy_from_slice(&[major, 0, 90, 0, 0, 0]);
                let _ = parse(&bytes);
            }
        }

        #[test]
        fn a_changed_byte_gives_an_error_or_an_array_that_fits(
            at in 0usize..1000, to: u8, shape in proptest::collection::vec(0..5u64, 1..4),
        ) {
            let elements: u64 = shape.iter().product();
            let axes: String = shape.iter().map(|n| format!("{n}, ")).collect();
            let good = npy(1, dict("'<f4'", "False", &format!("({axes})")).as_bytes(), 4 * elements as usize);
            prop_assert_eq!(&parse(&good).unwrap().shape, &shape);
            let mut bytes = good.clone();
            let at = at % good.len();
            bytes[at] = to;
            if let Ok(header) = parse(&bytes) {
                let data = header.shape.iter().product::<u64>() * header.dtype.size();
                prop_assert_eq!(header.data_offset + data, bytes.len() as u64);
            }
        }
    }
}
