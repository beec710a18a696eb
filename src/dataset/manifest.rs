//! The manifest of a dataset folder, `dataset.json`, which says what its files hold.

use crate::dataset::dtype::Dtype;
use crate::{Error, ErrorKind, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// The name of the manifest in a dataset's folder.
pub(crate) const FILE_NAME: &str = "dataset.json";

/// The version of the manifest that is read.
const VERSION: u64 = 1;

/// What a manifest says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// At least one, in the manifest's order, no two of one name.
    pub(crate) columns: Vec<ManifestColumn>,
}

/// One column: a sequence of samples of one dtype and shape, in one or more files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestColumn {
    /// Not empty.
    pub(crate) name: String,
    /// The format of the column's files.
    pub(crate) format: ManifestFormat,
    /// The pattern of the files' names, relative to the folder. It has no `..` and does not begin with `/`.
    pub(crate) files: String,
    /// The type of the elements. Always there for records; for npy, if there, what the files must have.
    pub(crate) dtype: Option<Dtype>,
    /// The length of each axis of one sample, all at least 1. Always there for records; for npy, if there,
    /// what the files must have after their first axis.
    pub(crate) shape: Option<Vec<u64>>,
    /// The size of one sample in bytes: dtype times shape. Always there for records, never for npy.
    pub(crate) record_bytes: Option<u64>,
}

/// The format of a column's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ManifestFormat {
    /// Records of one size, one after the other, with nothing before, between or after them.
    Records,
    /// Arrays of numpy, whose first axis counts the samples.
    Npy,
}

impl ManifestColumn {
    /// The dtype and the shape of one record, for a column of records; their size is then at least 1 byte and
    /// does not overflow.
    pub(crate) fn record_shape(&self) -> (Dtype, Vec<u64>) {
        // `check` put both there.
        (self.dtype.unwrap_or(Dtype::U8), self.shape.clone().unwrap_or_default())
    }
}

/// Reads the manifest `text` of the file `path`, which is only named in errors.
///
/// Every mistake is one error of the kind `InvalidData` (a version from the future: `Unsupported`), which
/// names the file, and the column and the key if it is about one.
pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Manifest> {
    // Before the rest: what a newer version has besides is unknown, and its version the better thing to
    // complain of.
    let Object(RawVersion { version }) = from_json(path, text)?;
    match version {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(version) if version.as_u64().is_some_and(|version| version > VERSION) => {
            let message =
                format!("version {version} of a dataset manifest; this gpufeed reads version {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message).at(path));
        }
        Some(version) => {
            return Err(Error::data(path, format!("the key \"version\" is {version}; it must be {VERSION}")));
        }
        None => {
            return Err(Error::data(path, format!("the key \"version\" is missing; it must be {VERSION}")));
        }
    }
    let Object(RawManifest { columns: List(raw), .. }) = from_json(path, text)?;
    if raw.is_empty() {
        return Err(Error::data(path, "the key \"columns\" is an empty list"));
    }
    let mut columns: Vec<ManifestColumn> = Vec::new();
    for (number, Object(column)) in (1..).zip(raw) {
        if column.name.is_empty() {
            return Err(Error::data(path, format!("column {number}: the key \"name\" is empty")));
        }
        if columns.iter().any(|other| other.name == column.name) {
            return Err(Error::data(path, format!("column {number}: the name {:?} is taken", column.name)));
        }
        let name = column.name.clone();
        columns.push(column.check().map_err(|e| Error::data(path, format!("column {name:?}: {e}")))?);
    }
    Ok(Manifest { columns })
}

fn from_json<'a, T: Deserialize<'a>>(path: &Path, text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => Error::data(path, e.to_string()),
        _ => Error::data(path, format!("not valid JSON: {e}")),
    })
}

#[derive(serde::Deserialize)]
struct RawVersion {
    version: Option<serde_json::Value>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    #[serde(rename = "version")]
    _version: serde::de::IgnoredAny,
    columns: List<Object<RawColumn>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawColumn {
    #[serde(deserialize_with = "keyed::name")]
    name: String,
    #[serde(deserialize_with = "keyed::format")]
    format: ManifestFormat,
    #[serde(deserialize_with = "keyed::files")]
    files: String,
    #[serde(default, deserialize_with = "keyed::dtype")]
    dtype: Option<String>,
    #[serde(default, deserialize_with = "keyed::shape")]
    shape: Option<Vec<u64>>,
    #[serde(default, deserialize_with = "keyed::record_bytes")]
    record_bytes: Option<u64>,
}

impl RawColumn {
    /// The column, if it makes sense; else what is wrong with it.
    fn check(self) -> Result<ManifestColumn, String> {
        check_files(&self.files)?;
        let dtype = self.dtype.map(|name| name.parse::<Dtype>()).transpose();
        let dtype = dtype.map_err(|e| format!("the key \"dtype\": {e}"))?;
        if self.shape.as_ref().is_some_and(|shape| shape.contains(&0)) {
            return Err("the key \"shape\" has an axis of length 0".into());
        }
        let mut column = ManifestColumn {
            name: self.name,
            format: self.format,
            files: self.files,
            dtype,
            shape: self.shape,
            record_bytes: self.record_bytes,
        };
        match column.format {
            ManifestFormat::Npy if column.record_bytes.is_some() => {
                return Err("the key \"record_bytes\" is for records; a .npy file says its own sizes".into());
            }
            ManifestFormat::Npy => {
                if let Some(shape) = &column.shape {
                    byte_size(column.dtype.unwrap_or(Dtype::U8), shape)?;
                }
            }
            ManifestFormat::Records => {
                let dtype = column.dtype.unwrap_or(Dtype::U8);
                let (shape, bytes) = resolve(dtype, column.shape, column.record_bytes)?;
                (column.dtype, column.shape, column.record_bytes) = (Some(dtype), Some(shape), Some(bytes));
            }
        }
        Ok(column)
    }
}

/// The manifest comes with the data, from anywhere: it must not name files that are none of the dataset's.
fn check_files(files: &str) -> Result<(), String> {
    if files.is_empty() {
        return Err("the key \"files\" is empty".into());
    }
    if files.starts_with('/') || files.split('/').any(|part| part == "..") {
        return Err(format!("the key \"files\" is {files:?}, which leads out of the dataset's folder"));
    }
    if files.contains('\0') {
        return Err(format!("the key \"files\" is {files:?}, which is no name of a file"));
    }
    Ok(())
}

/// The shape and the size in bytes of a record, from whichever of them is stated.
fn resolve(
    dtype: Dtype,
    shape: Option<Vec<u64>>,
    record_bytes: Option<u64>,
) -> Result<(Vec<u64>, u64), String> {
    if record_bytes == Some(0) {
        return Err("the key \"record_bytes\" is 0".into());
    }
    let size = dtype.size();
    match (shape, record_bytes) {
        (None, None) => Err("records need the key \"record_bytes\" or the key \"shape\"".into()),
        (None, Some(bytes)) if !bytes.is_multiple_of(size) => Err(format!(
            "the key \"record_bytes\" is {bytes}, not a multiple of the {size} bytes of a {dtype}"
        )),
        (None, Some(bytes)) => Ok((vec![bytes / size], bytes)),
        (Some(shape), stated) => {
            let bytes = byte_size(dtype, &shape)?;
            match stated {
                Some(stated) if stated != bytes => Err(format!(
                    "the key \"record_bytes\" is {stated}, but the shape {shape:?} of {dtype} has {bytes} bytes"
                )),
                _ => Ok((shape, bytes)),
            }
        }
    }
}

fn byte_size(dtype: Dtype, shape: &[u64]) -> Result<u64, String> {
    shape
        .iter()
        .try_fold(dtype.size(), |product, &n| product.checked_mul(n))
        .ok_or_else(|| format!("the key \"shape\" is {shape:?}, too large for any file"))
}

/// One function for each key, which deserializes its value and puts the key in front of the error.
mod keyed {
    use super::*;

    macro_rules! keyed {
        ($($key:ident),*) => {$(
            pub(super) fn $key<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<T, D::Error> {
                T::deserialize(value)
                    .map_err(|e| D::Error::custom(format_args!("the key \"{}\": {e}", stringify!($key))))
            }
        )*};
    }

    keyed!(name, format, files, dtype, shape, record_bytes);
}

/// A `T` that is written as an object. Without this, serde takes a list of the values for a struct too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Expected<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Expected<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Expected(PhantomData))
    }
}

/// The columns, with the number of the column in front of the error of each.
struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Expected<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Expected<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of columns")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                loop {
                    let next = seq.next_element();
                    let number = list.len() + 1;
                    match next.map_err(|e| A::Error::custom(format_args!("column {number}: {e}")))? {
                        Some(element) => list.push(element),
                        None => return Ok(List(list)),
                    }
                }
            }
        }

        deserializer.deserialize_seq(Expected(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Manifest> {
        parse(Path::new("d/dataset.json"), text.as_bytes())
    }

    /// The only column of a manifest that has one with these keys.
    fn column(keys: &str) -> Result<ManifestColumn> {
        read(&format!(r#"{{"version": 1, "columns": [{{{keys}}}]}}"#))
            .map(|mut manifest| manifest.columns.remove(0))
    }

    fn records(keys: &str) -> Result<ManifestColumn> {
        column(&format!(r#""name": "x", "format": "records", "files": "x.bin"{keys}"#))
    }

    fn assert_refused<T: fmt::Debug>(result: Result<T>, parts: &[&str]) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        for part in parts.iter().chain(&["d/dataset.json: "]) {
            assert!(error.to_string().contains(part), "no {part:?} in {error}");
        }
        assert!(!error.to_string().contains('\n'), "{error}");
    }

    #[test]
    fn a_manifest_says_what_each_column_is() {
        let manifest = read(
            r#"{ "version": 1,
                 "columns": [
                   { "name": "image", "format": "records", "files": "images-*.bin", "dtype": "u8", "shape": [8, 8] },
                   { "name": "label", "format": "npy", "files": "labels/*.npy" },
                   { "name": "weight", "format": "npy", "files": "w.npy", "dtype": "f32", "shape": [] } ] }"#,
        )
        .unwrap();
        let [image, label, weight] = &manifest.columns[..] else { panic!("{manifest:?}") };
        assert_eq!((image.name.as_str(), image.files.as_str()), ("image", "images-*.bin"));
        assert_eq!(image.record_shape(), (Dtype::U8, vec![8, 8]));
        assert_eq!((image.format, image.record_bytes), (ManifestFormat::Records, Some(64)));
        assert_eq!((label.format, label.files.as_str()), (ManifestFormat::Npy, "labels/*.npy"));
        assert_eq!((label.dtype, &label.shape, label.record_bytes), (None, &None, None));
        assert_eq!((weight.dtype, &weight.shape), (Some(Dtype::F32), &Some(vec![])));
    }

    #[test]
    fn records_need_their_size_or_their_shape() {
        for (keys, dtype, shape, bytes) in [
            (r#", "record_bytes": 3073"#, Dtype::U8, &[3073][..], 3073),
            (r#", "record_bytes": 3072, "dtype": "f32""#, Dtype::F32, &[768], 3072),
            (r#", "shape": [3, 5]"#, Dtype::U8, &[3, 5], 15),
            (r#", "shape": [3, 5], "dtype": "u16""#, Dtype::U16, &[3, 5], 30),
            (r#", "shape": [3, 5], "dtype": "bf16", "record_bytes": 30"#, Dtype::Bf16, &[3, 5], 30),
            (r#", "shape": [], "dtype": "i64""#, Dtype::I64, &[], 8),
            (r#", "shape": null, "record_bytes": 7"#, Dtype::U8, &[7], 7),
        ] {
            let column = records(keys).unwrap();
            assert_eq!(column.record_shape(), (dtype, shape.to_vec()), "{keys}");
            assert_eq!(column.record_bytes, Some(bytes), "{keys}");
        }
        for (keys, parts) in [
            ("", &["\"record_bytes\" or the key \"shape\""][..]),
            (r#", "dtype": "f32""#, &["\"record_bytes\" or the key \"shape\""]),
            (r#", "record_bytes": 10, "dtype": "f32""#, &["\"record_bytes\" is 10", "4 bytes of a f32"]),
            (
                r#", "record_bytes": 16, "shape": [3, 5]"#,
                &["\"record_bytes\" is 16", "[3, 5] of u8 has 15 bytes"],
            ),
            (r#", "record_bytes": 0"#, &["\"record_bytes\" is 0"]),
            (r#", "record_bytes": 0, "shape": [1]"#, &["\"record_bytes\" is 0"]),
            (r#", "shape": [3, 0]"#, &["\"shape\" has an axis of length 0"]),
            (r#", "shape": [4294967296, 4294967296]"#, &["\"shape\" is [4294967296, 4294967296], too large"]),
            (r#", "shape": [4611686018427387904], "dtype": "f64""#, &["too large"]),
            (
                r#", "shape": [1], "dtype": "float""#,
                &["\"dtype\": unknown dtype \"float\"; known are bool, u8"],
            ),
        ] {
            assert_refused(records(keys), &[&["column \"x\": "], parts].concat());
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_by_column_and_key() {
        for (keys, parts) in [
            (r#", "record_bytes": "8""#, &["the key \"record_bytes\": invalid type: string \"8\""][..]),
            (r#", "record_bytes": -8"#, &["the key \"record_bytes\": invalid value: integer `-8`"]),
            (r#", "record_bytes": 8.5"#, &["the key \"record_bytes\": invalid type: floating point"]),
            (r#", "record_bytes": 18446744073709551616"#, &["the key \"record_bytes\": invalid type"]),
            (r#", "shape": 8"#, &["the key \"shape\": invalid type: integer `8`"]),
            (r#", "shape": [8, "8"]"#, &["the key \"shape\": invalid type: string"]),
            (r#", "dtype": 8"#, &["the key \"dtype\": invalid type"]),
            (r#", "dytpe": "u8""#, &["unknown field `dytpe`", "`dtype`"]),
            (r#", "files": "y.bin", "shape": [1]"#, &["duplicate field `files`"]),
        ] {
            assert_refused(records(keys), &[&["column 1: ", "line 1 column"], parts].concat());
        }
        let format = r#""name": "x", "format": "tfrecord", "files": "x""#;
        assert_refused(
            column(format),
            &["column 1: the key \"format\": unknown variant `tfrecord`", "`records` or `npy`"],
        );
        for missing in ["name", "format", "files"] {
            let keys = [r#""name": "x""#, r#""format": "npy""#, r#""files": "x.npy""#];
            let keys = keys.into_iter().filter(|key| !key.contains(missing)).collect::<Vec<_>>().join(", ");
            assert_refused(column(&keys), &["column 1: ", &format!("missing field `{missing}`")]);
        }
    }

    #[test]
    fn files_outside_of_the_folder_are_refused() {
        let named = |files: &str| column(&format!(r#""name": "x", "format": "npy", "files": "{files}""#));
        for files in ["/etc/passwd", "..", "../x.npy", "a/../../x.npy", "a/.."] {
            assert_refused(
                named(files),
                &["column \"x\": the key \"files\" is", files, "out of the dataset's folder"],
            );
        }
        assert_refused(named(""), &["column \"x\": the key \"files\" is empty"]);
        assert_refused(named("a\\u0000"), &["is no name of a file"]);
        for files in ["x.npy", "train/x-*.npy", "x..npy", "...", "{a,b}/*.npy"] {
            assert_eq!(named(files).unwrap().files, files);
        }
    }

    #[test]
    fn an_npy_column_says_no_record_size() {
        let npy = |keys: &str| column(&format!(r#""name": "x", "format": "npy", "files": "x.npy", {keys}"#));
        assert_refused(
            npy(r#""record_bytes": 8"#),
            &["column \"x\": the key \"record_bytes\" is for records"],
        );
        assert_refused(npy(r#""shape": [0]"#), &["\"shape\" has an axis of length 0"]);
        assert_refused(npy(r#""shape": [9223372036854775808], "dtype": "u16""#), &["too large"]);
        assert_eq!(npy(r#""shape": [2]"#).unwrap().shape, Some(vec![2]));
    }

    #[test]
    fn only_version_one_is_read() {
        let error = read(r#"{"version": 2, "rows": []}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("version 2 of a dataset manifest; this gpufeed reads version 1"));
        for version in ["0", "-1", "1.0", "\"1\"", "[1]"] {
            let text = format!(r#"{{"version": {version}, "columns": []}}"#);
            assert_refused(read(&text), &[&format!("the key \"version\" is {version}; it must be 1")]);
        }
        for text in ["{}", r#"{"columns": []}"#, r#"{"version": null, "columns": []}"#] {
            assert_refused(read(text), &["the key \"version\" is missing; it must be 1"]);
        }
    }

    #[test]
    fn a_manifest_without_columns_or_with_two_of_one_name_is_refused() {
        let npy = |name: &str| format!(r#"{{"name": "{name}", "format": "npy", "files": "x.npy"}}"#);
        let with = |columns: &str| read(&format!(r#"{{"version": 1, "columns": {columns}}}"#));
        assert_refused(with("[]"), &["\"columns\" is an empty list"]);
        assert_refused(with("{}"), &["a list of columns"]);
        assert_refused(read(r#"{"version": 1}"#), &["missing field `columns`"]);
        assert_refused(read(r#"{"version": 1, "columns": [], "extra": 1}"#), &["unknown field `extra`"]);
        assert_refused(
            read(r#"{"version": 1, "version": 1, "columns": []}"#),
            &["duplicate field `version`"],
        );
        assert_refused(
            with(&format!("[{}, {}]", npy("a"), npy("a"))),
            &["column 2: the name \"a\" is taken"],
        );
        assert_refused(
            with(&format!("[{}, {}]", npy("a"), npy(""))),
            &["column 2: the key \"name\" is empty"],
        );
        assert_refused(
            with(r#"[["a", "npy", "x.npy", null, null, null]]"#),
            &["column 1: ", "expected an object"],
        );
        assert_refused(read("[1, []]"), &["expected an object"]);
    }

    #[test]
    fn invalid_json_is_refused_with_its_place() {
        for (text, part) in [
            ("", "not valid JSON: EOF while parsing a value at line 1 column 0"),
            ("{\"version\": 1,\n \"columns\": [}", "not valid JSON: expected value at line 2 column 14"),
            ("{\"version\": 1, \"columns\": []", "not valid JSON: EOF while parsing an object at line 1"),
            (
                "{\"version\": 1, \"columns\": []} x",
                "not valid JSON: trailing characters at line 1 column 31",
            ),
            ("\u{feff}{}", "not valid JSON: expected value at line 1 column 1"),
        ] {
            assert_refused(read(text), &[part]);
        }
        assert_refused(
            parse(Path::new("d/dataset.json"), b"{\"\xff\": 1}"),
            &["not valid JSON: invalid unicode"],
        );
        assert_refused(read(&"[".repeat(100_000)), &[]);
    }

    proptest! {
        #[test]
        fn a_manifest_with_one_byte_changed_never_panics(at in 0usize..1000, to: u8) {
            let mut text = br#"{"version":1,"columns":[{"name":"a","format":"records","files":"a*","dtype":"u8","shape":[8,8]}]}"#
                .to_vec();
            let length = text.len();
            text[at % length] = to;
            if let Ok(manifest) = parse(Path::new("m"), &text) {
                let column = &manifest.columns[0];
                let (dtype, shape) = column.record_shape();
                prop_assert_eq!(column.record_bytes, Some(dtype.size() * shape.iter().product::<u64>()));
            }
        }
    }
}
