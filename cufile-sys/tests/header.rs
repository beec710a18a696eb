//! The types, constants and functions of this crate, compared by the C compiler with NVIDIA's `cufile.h`.
//!
//! For each header that is found, a C program is made from this crate's tables that includes the header,
//! declares each function once more as this crate has it, and prints each size, alignment, offset and
//! constant.

mod common;
#[path = "common/prototype.rs"]
mod prototype;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use common::{Folder, Found, has_compiler, run, wheels};
use cufile_sys::*;
use prototype::Prototype;

/// Constants whose value changed: name, the first version with the value of today, the value before it.
const MOVED: &[(&str, Version, i64)] = &[
    ("CU_FILE_IO_MAX_ERROR", Version::new(1, 15), 5039),
    ("CU_FILE_MAX_TARGET_TYPES", Version::new(1, 19), 14),
];

/// Macros of the header that are no constants.
const LEFT_OUT: &[&str] = &[
    "CUFILEOP_STATUS_ENTRIES",
    "CUFILE_ERRSTR",
    "CU_FILE_CUDA_ERR",
    "IS_CUDA_ERR",
    "IS_CUFILE_ERR",
    "__CUFILE_H_",
    "cuFileDriverClose",
];

/// One field of a type, by its path in C.
struct Field {
    path: String,
    offset: usize,
    size: usize,
    align: usize,
}

/// A type of this crate and the versions whose headers have it in this layout.
struct Record {
    c_name: &'static str,
    from: Version,
    before: Version,
    size: usize,
    align: usize,
    fields: Vec<Field>,
}

const V: fn(i32) -> Version = |minor| Version::new(1, minor);
const END: i32 = 99;

/// The size and alignment of what a closure points to.
fn pointee<T, F>(_: impl FnOnce(*const T) -> *const F) -> (usize, usize) {
    (size_of::<F>(), align_of::<F>())
}

macro_rules! record {
    ($c_name:literal, $rust:ty, $from:expr, $before:expr, [$($first:ident $(. $next:ident)*),* $(,)?]) => {
        Record {
            c_name: $c_name,
            from: V($from),
            before: V($before),
            size: size_of::<$rust>(),
            align: align_of::<$rust>(),
            fields: vec![$({
                // SAFETY: the closure is never called; only its type is looked at.
                let (size, align) = pointee::<$rust, _>(|at| unsafe { &raw const (*at).$first $(. $next)* });
                let path = stringify!($first $(. $next)*).replace(' ', "");
                // `type` is a word of the language in Rust.
                let path = if path == "kind" { "type".into() } else { path };
                Field { path, offset: offset_of!($rust, $first $(. $next)*), size, align }
            }),*],
        }
    };
}

macro_rules! levels {
    ($one:ty, $two:ty, $three:ty, $from:expr, $before:expr, [$($more:ident),*]) => {[
        record!("CUfileStatsLevel1_t", $one, $from, $before, [
            read_ops, write_ops, hdl_register_ops, hdl_deregister_ops, buf_register_ops, buf_deregister_ops,
            read_bytes, write_bytes, read_bw_bytes_per_sec, write_bw_bytes_per_sec, read_lat_avg_us,
            write_lat_avg_us, read_ops_per_sec, write_ops_per_sec, read_lat_sum_us, write_lat_sum_us,
            batch_submit_ops, batch_complete_ops, batch_setup_ops, batch_cancel_ops, batch_destroy_ops,
            batch_enqueued_ops, batch_posix_enqueued_ops, batch_processed_ops, batch_posix_processed_ops,
            batch_nvfs_submit_ops, batch_p2p_submit_ops, batch_aio_submit_ops, batch_iouring_submit_ops,
            batch_mixed_io_submit_ops, batch_total_submit_ops, batch_read_bytes, batch_write_bytes,
            batch_read_bw_bytes, batch_write_bw_bytes, batch_submit_lat_avg_us, batch_completion_lat_avg_us,
            batch_submit_ops_per_sec, batch_complete_ops_per_sec, batch_submit_lat_sum_us,
            batch_completion_lat_sum_us, last_batch_read_bytes, last_batch_write_bytes, $($more),*
        ]),
        record!("CUfileStatsLevel2_t", $two, $from, $before, [basic, read_size_kb_hist, write_size_kb_hist]),
        record!("CUfileStatsLevel3_t", $three, $from, $before, [detailed, num_gpus, per_gpu_stats]),
    ]};
}

fn records() -> Vec<Record> {
    let mut records = vec![
        record!("CUfileError_t", CUfileError_t, 0, END, [err, cu_err]),
        record!(
            "CUfileDrvProps_t",
            CUfileDrvProps_t,
            0,
            END,
            [
                nvfs.major_version,
                nvfs.minor_version,
                nvfs.poll_thresh_size,
                nvfs.max_direct_io_size,
                nvfs.dstatusflags,
                nvfs.dcontrolflags,
                fflags,
                max_device_cache_size,
                per_buffer_cache_size,
                max_device_pinned_mem_size,
                max_batch_io_size,
                max_batch_io_timeout_msecs
            ]
        ),
        record!("cufileRDMAInfo_t", cufileRDMAInfo_t, 0, END, [version, desc_len, desc_str]),
        record!(
            "CUfileFSOps_t",
            CUfileFSOps_t,
            0,
            END,
            [fs_type, getRDMADeviceList, getRDMADevicePriority, read, write]
        ),
        record!("CUfileDescr_t", CUfileDescr_t, 0, END, [kind, handle.fd, handle.handle, fs_ops]),
        record!(
            "CUfileIOParams_t",
            CUfileIOParams_t,
            0,
            END,
            [
                mode,
                u.batch.devPtr_base,
                u.batch.file_offset,
                u.batch.devPtr_offset,
                u.batch.size,
                fh,
                opcode,
                cookie
            ]
        ),
        record!("CUfileIOEvents_t", CUfileIOEvents_t, 0, END, [cookie, status, ret]),
        record!("CUfileIOVec_t", CUfileIOVec_t, 19, END, [base, len]),
        record!("CUfileOpCounter_t", CUfileOpCounter_t, 15, END, [ok, err]),
        record!(
            "CUfilePerGpuStats_t",
            CUfilePerGpuStats_t,
            15,
            END,
            [
                uuid,
                read_bytes,
                read_bw_bytes_per_sec,
                read_utilization,
                read_duration_us,
                n_total_reads,
                n_p2p_reads,
                n_nvfs_reads,
                n_posix_reads,
                n_unaligned_reads,
                n_dr_reads,
                n_sparse_regions,
                n_inline_regions,
                n_reads_err,
                writes_bytes,
                write_bw_bytes_per_sec,
                write_utilization,
                write_duration_us,
                n_total_writes,
                n_p2p_writes,
                n_nvfs_writes,
                n_posix_writes,
                n_unaligned_writes,
                n_dr_writes,
                n_writes_err,
                n_mmap,
                n_mmap_ok,
                n_mmap_err,
                n_mmap_free,
                reg_bytes
            ]
        ),
        record!("CUfileHandle_t", CUfileHandle_t, 0, END, []),
        record!("CUfileBatchHandle_t", CUfileBatchHandle_t, 0, END, []),
        record!("CUfileOpError", CUfileOpError, 0, END, []),
        record!("CUfileDriverStatusFlags_t", CUfileDriverStatusFlags_t, 0, END, []),
        record!("CUfileDriverControlFlags_t", CUfileDriverControlFlags_t, 0, END, []),
        record!("CUfileFeatureFlags_t", CUfileFeatureFlags_t, 0, END, []),
        record!("CUfileP2PFlags_t", CUfileP2PFlags_t, 16, END, []),
        record!("CUfileOpcode_t", CUfileOpcode_t, 0, END, []),
        record!("enum CUfileFileHandleType", CUfileFileHandleType, 0, END, []),
        record!("CUfileStatus_t", CUfileStatus_t, 0, END, []),
        record!("CUfileBatchMode_t", CUfileBatchMode_t, 0, END, []),
        record!("CUFileSizeTConfigParameter_t", CUFileSizeTConfigParameter_t, 14, END, []),
        record!("CUFileBoolConfigParameter_t", CUFileBoolConfigParameter_t, 14, END, []),
        record!("CUFileStringConfigParameter_t", CUFileStringConfigParameter_t, 14, END, []),
        record!("CUFileArrayConfigParameter_t", CUFileArrayConfigParameter_t, 15, END, []),
    ];
    records.extend(levels!(
        CUfileStatsLevel1_v1_15_t,
        CUfileStatsLevel2_v1_15_t,
        CUfileStatsLevel3_v1_15_t,
        15,
        19,
        []
    ));
    records.extend(levels!(
        CUfileStatsLevel1_t,
        CUfileStatsLevel2_t,
        CUfileStatsLevel3_t,
        19,
        END,
        [
            readv_ops,
            writev_ops,
            readv_bytes,
            writev_bytes,
            readv_bw_bytes_per_sec,
            writev_bw_bytes_per_sec,
            readv_lat_avg_us,
            writev_lat_avg_us,
            readv_ops_per_sec,
            writev_ops_per_sec,
            readv_lat_sum_us,
            writev_lat_sum_us
        ]
    ));
    records
}

/// This crate's declaration of each function, in C.
fn declarations() -> BTreeMap<&'static str, String> {
    fn declare<F: Prototype>(symbol: Symbol<F>) -> (&'static str, String) {
        (symbol.name, F::declaration(symbol.name))
    }
    macro_rules! declare {
        ($($name:ident)*) => { BTreeMap::from([$(declare(sym::$name)),*]) };
    }
    declare! {
        cuFileBatchIOCancel cuFileBatchIODestroy cuFileBatchIOGetStatus cuFileBatchIOSetUp cuFileBatchIOSubmit
        cuFileBufDeregister cuFileBufRegister cuFileDriverClose cuFileDriverClose_v2 cuFileDriverGetP2PFlags
        cuFileDriverGetProperties cuFileDriverOpen cuFileDriverSetMaxCacheSize cuFileDriverSetMaxDirectIOSize
        cuFileDriverSetMaxPinnedMemSize cuFileDriverSetP2PFlags cuFileDriverSetPollMode cuFileExportPCIeTopology
        cuFileGetBARSizeInKB cuFileGetParameterBool cuFileGetParameterGpuBounceBufferSlabArray
        cuFileGetParameterMinMaxValue cuFileGetParameterPosixPoolSlabArray cuFileGetParameterSizeT
        cuFileGetParameterString cuFileGetStatsL1 cuFileGetStatsL2 cuFileGetStatsL3 cuFileGetStatsLevel
        cuFileGetVersion cuFileHandleDeregister cuFileHandleRegister cuFileRead cuFileReadAsync cuFileReadv
        cuFileSetParameterBool cuFileSetParameterGpuBounceBufferSlabArray cuFileSetParameterPosixPoolSlabArray
        cuFileSetParameterSizeT cuFileSetParameterString cuFileSetStatsLevel cuFileStatsReset cuFileStatsStart
        cuFileStatsStop cuFileStreamDeregister cuFileStreamRegister cuFileUseCount cuFileWrite cuFileWriteAsync
        cuFileWritev
    }
}

/// The types of the function pointers in `CUfileFSOps_t`, in C.
fn operations() -> Vec<(&'static str, String)> {
    fn pointer<F: Prototype>(_: impl FnOnce(&CUfileFSOps_t) -> Option<F>) -> String {
        F::declaration("(*)")
    }
    vec![
        ("fs_type", pointer(|operations| operations.fs_type)),
        ("getRDMADeviceList", pointer(|operations| operations.getRDMADeviceList)),
        ("getRDMADevicePriority", pointer(|operations| operations.getRDMADevicePriority)),
        ("read", pointer(|operations| operations.read)),
        ("write", pointer(|operations| operations.write)),
    ]
}

/// This crate's constants that a header of this version has, with the values that they have there.
fn constants_of(version: Version) -> BTreeMap<&'static str, i64> {
    constants()
        .chain(CUfileOpError::CONSTANTS.iter().copied())
        .filter(|constant| constant.since <= version)
        .map(|Constant { name, value, .. }| {
            let before = MOVED.iter().find(|moved| moved.0 == name && version < moved.1);
            (name, before.map_or(value, |moved| moved.2))
        })
        .collect()
}

/// Runs `check` for each header, with a folder that has a `cuda.h` to include.
fn for_each_header(name: &str, check: impl Fn(&Path, &Path, Version)) {
    let Some(headers) = wheels("cufile.h") else { return };
    if !has_compiler() {
        return;
    }
    let folder = Folder::new(name);
    // All that cufile.h takes from CUDA's own header.
    folder.file(
        "cuda.h",
        "typedef enum { CUDA_SUCCESS } CUresult;\n\
         typedef struct CUstream_st *CUstream;\n\
         typedef unsigned long long CUdeviceptr;\n",
    );
    for Found { version, file } in headers {
        check(folder.path(), &file, version);
        eprintln!("checked against cuFile {version}: {}", file.display());
    }
}

fn compiler(folder: &Path) -> Command {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-D_GNU_SOURCE", "-w", "-I"]).arg(folder);
    command
}

/// The header after the preprocessor, without what it includes, in one line.
fn preprocessed(folder: &Path, header: &Path) -> String {
    let text = run(compiler(folder).args(["-E", "-P", "-x", "c"]).arg(header));
    let start = text.find("typedef enum CUfileOpError").expect("the header's first type");
    text[start..].split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The text between the brace at `open` and its partner.
fn braces(text: &str, open: usize) -> &str {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return &text[open + 1..at],
            b'}' => depth -= 1,
            _ => {}
        }
    }
    panic!("a brace is not closed: {}", &text[open..]);
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[test]
fn sizes_offsets_constants_and_signatures_are_those_of_the_header() {
    let (records, declarations) = (records(), declarations());
    assert_eq!(declarations.len(), FUNCTIONS.len(), "each function is declared in this test");
    for_each_header("header-values", |folder, header, version| {
        let constants = constants_of(version);
        let mut program = String::new();
        let mut expected = String::new();
        let _ = writeln!(
            program,
            "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <time.h>"
        );
        let _ = writeln!(program, "#include \"{}\"\n#undef cuFileDriverClose", header.display());
        for function in FUNCTIONS.iter().filter(|function| function.since <= version) {
            let _ = writeln!(program, "{};", declarations[function.name]);
        }
        // Up to 1.15 the handles are not const.
        for (field, pointer) in operations().iter().filter(|_| version >= V(16)) {
            let _ = writeln!(
                program,
                "_Static_assert(__builtin_types_compatible_p(__typeof__(((CUfileFSOps_t *)0)->{field}), \
                 {pointer}), \"{field}\");"
            );
        }
        let _ = writeln!(program, "int main(void) {{");
        for record in records.iter().filter(|record| record.from <= version && version < record.before) {
            let name = record.c_name;
            let _ = writeln!(program, "printf(\"{name} %zu %zu\\n\", sizeof({name}), _Alignof({name}));");
            let _ = writeln!(expected, "{name} {} {}", record.size, record.align);
            for Field { path, offset, size, .. } in &record.fields {
                let _ = writeln!(
                    program,
                    "printf(\"{name}.{path} %zu %zu\\n\", offsetof({name}, {path}), sizeof((({name} *)0)->{path}));"
                );
                let _ = writeln!(expected, "{name}.{path} {offset} {size}");
            }
        }
        for (name, value) in &constants {
            let _ = writeln!(program, "printf(\"{name} %lld\\n\", (long long)({name}));");
            let _ = writeln!(expected, "{name} {value}");
        }
        let _ = writeln!(program, "}}");
        let source = folder.join("values.c");
        let binary = folder.join("values");
        std::fs::write(&source, program).unwrap();
        run(compiler(folder).arg("-o").args([&binary, &source]));
        let printed = run(&mut Command::new(&binary));
        let differences: Vec<_> =
            printed.lines().zip(expected.lines()).filter(|(theirs, ours)| theirs != ours).collect();
        assert!(differences.is_empty(), "cuFile {version}, (theirs, ours): {differences:#?}");
        assert_eq!(printed.lines().count(), expected.lines().count());
        assert!(printed.lines().count() > 120);
    });
}

#[test]
fn the_header_has_nothing_that_is_unknown_here_and_nothing_sooner_or_later_than_said() {
    for_each_header("header-names", |folder, header, version| {
        let text = preprocessed(folder, header);
        let macros: BTreeSet<_> = constants_of(version)
            .into_keys()
            .filter(|name| MACROS.iter().any(|known| known.name == *name) || name.contains("_P2P_FLAG_"))
            .collect();

        let mut enumerators = BTreeSet::new();
        for (at, _) in text.match_indices("enum ") {
            let open = at + text[at..].find(['{', ';', ')', ',']).unwrap();
            if text.as_bytes()[open] == b'{' {
                enumerators.extend(braces(&text, open).split(',').filter_map(|entry| words(entry).next()));
            }
        }
        let ours: BTreeSet<_> =
            constants_of(version).into_keys().filter(|name| !macros.contains(name)).collect();
        assert_eq!(enumerators, ours, "enumerators of cuFile {version}");

        let defined = run(compiler(folder).args(["-E", "-dM", "-x", "c"]).arg(header));
        let defined: BTreeSet<_> = defined
            .lines()
            .filter_map(|line| words(line.strip_prefix("#define ")?).next())
            .filter(|name| {
                ["CU_FILE", "CUFILE", "IS_CU", "__CUFILE", "cuFile"]
                    .iter()
                    .any(|start| name.starts_with(start))
            })
            .filter(|name| !LEFT_OUT.contains(name))
            .collect();
        assert_eq!(defined, macros, "macros of cuFile {version}");

        let declared: BTreeSet<_> = text
            .match_indices("cuFile")
            .filter(|(at, _)| {
                *at == 0 || !text[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            })
            .filter_map(|(at, _)| {
                let name = words(&text[at..]).next()?;
                text[at + name.len()..].trim_start().starts_with('(').then_some(name)
            })
            .collect();
        let ours: BTreeSet<_> = FUNCTIONS
            .iter()
            .filter(|function| function.since <= version)
            .map(|function| function.name)
            .collect();
        assert_eq!(declared, ours, "functions of cuFile {version}");
    });
}

#[test]
fn every_type_and_every_field_of_the_header_is_here() {
    let records = records();
    for_each_header("header-types", |folder, header, version| {
        let text = preprocessed(folder, header);
        let here: BTreeMap<_, _> = records
            .iter()
            .filter(|record| record.from <= version && version < record.before)
            .map(|record| (record.c_name, record))
            .collect();
        let mut there = BTreeSet::new();
        for keyword in ["typedef struct ", "typedef enum "] {
            for (at, _) in text.match_indices(keyword) {
                let open = at + text[at..].find(['{', ';']).unwrap();
                if text.as_bytes()[open] != b'{' {
                    continue;
                }
                let body = braces(&text, open);
                let name = words(&text[open + body.len() + 2..]).next().unwrap();
                let record = here.get(name).unwrap_or_else(|| panic!("cuFile {version} has {name}"));
                there.insert(name);
                if keyword == "typedef struct " {
                    // A piece is one field, or the end of a structure inside.
                    let fields = body.split(';').map(str::trim);
                    let fields = fields.filter(|field| !field.is_empty() && !field.starts_with('}')).count();
                    assert_eq!(record.fields.len(), fields, "fields of {name} in cuFile {version}");
                }
            }
        }
        for name in here.keys().filter(|name| !there.contains(**name)) {
            assert!(
                ["CUfileHandle_t", "CUfileBatchHandle_t", "enum CUfileFileHandleType"].contains(name),
                "cuFile {version} has no {name}"
            );
        }
    });
}

#[test]
fn fields_leave_no_room_but_padding() {
    for record in records().iter().filter(|record| !record.fields.is_empty()) {
        let mut end = 0_usize;
        for field in &record.fields {
            // The first field of a structure or union inside is aligned as that is; the second member of a
            // union begins where the first does.
            let begins = [field.align, record.align].map(|align| end.next_multiple_of(align));
            let in_union = field.path == "handle.handle";
            assert!(begins.contains(&field.offset) || in_union, "{}.{}", record.c_name, field.path);
            end = field.offset + field.size;
        }
        assert_eq!(end.next_multiple_of(record.align), record.size, "{}", record.c_name);
    }
}
