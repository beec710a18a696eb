#!/usr/bin/env python3
"""Prints the SHA-256 over a dataset's sample bytes in a given order: an oracle for `gpufeed load --digest`.

    check_digest.py FOLDER --order FILE    FILE holds sample numbers, one a line, as `gpufeed load --order-out` writes
    check_digest.py FOLDER                 the order in which the samples lie in the files

FOLDER holds a dataset.json. A sample's bytes are those of its columns, one after the other as dataset.json lists them.
Plain Python that shares no code with gpufeed and holds the whole dataset in memory.
"""
import argparse
import ast
import fnmatch
import hashlib
import json
import math
import os
import pathlib

SIZES = {"u8": 1, "i8": 1, "bool": 1, "u16": 2, "i16": 2, "f16": 2, "bf16": 2,
         "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8, "c64": 8, "c128": 16}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--order", type=pathlib.Path, help="sample numbers, one a line")
    args = parser.parse_args()

    described = json.loads((args.folder / "dataset.json").read_text())
    columns = [read_column(args.folder, column) for column in described["columns"]]
    count = len(columns[0])
    assert all(len(column) == count for column in columns), "the columns differ in length"

    order = map(int, args.order.read_text().split()) if args.order else range(count)
    digest = hashlib.sha256()
    for number in order:
        assert 0 <= number < count, f"there is no sample {number}"
        for column in columns:
            digest.update(column[number])
    print(digest.hexdigest())


def read_column(folder, column):
    """The column's samples, each as bytes, over all its shards in byte order of their names."""
    names = sorted(fnmatch.filter(os.listdir(folder), column["files"]), key=os.fsencode)
    assert names, f"no file matches {column['files']}"
    samples = []
    for name in names:
        data = (folder / name).read_bytes()
        if column["format"] == "npy":
            data, size = npy_payload(data)
        else:
            assert column["format"] == "records", f"unknown format {column['format']}"
            size = SIZES[column["dtype"]] * math.prod(column["shape"])
        assert len(data) % size == 0, f"{name} does not hold whole samples of {size} bytes"
        samples += [data[at:at + size] for at in range(0, len(data), size)]
    return samples


def npy_payload(data):
    """The bytes after a version 1 header, and how many of them make one sample."""
    assert data[:8] == b"\x93NUMPY\x01\x00", "not an npy file of version 1"
    start = 10 + int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:start].decode("latin1"))
    assert not header["fortran_order"], "Fortran order is not supported"
    count, *shape = header["shape"]
    size = int(header["descr"][2:]) * math.prod(shape)
    assert len(data) - start == count * size, "the payload is not as long as the header says"
    return data[start:], size


if __name__ == "__main__":
    main()
