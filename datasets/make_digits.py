#!/usr/bin/env python3
"""Writes digits/ and digits-npy/, the same 1797 handwritten digits in two formats, from scikit-learn's copy.

    make_digits.py                        imports the scikit-learn of the Python that runs this
    make_digits.py PATH                   imports the scikit-learn installed under PATH (a site-packages folder)
    make_digits.py --csv digits.csv.gz    reads the file itself; needs neither scikit-learn nor NumPy

Every way writes the same bytes. README.md beside this file says where the data is from and lists the checksums.
"""
import argparse
import csv
import gzip
import json
import pathlib
import sys

COUNT, ROWS, COLUMNS = 1797, 8, 8
RECORD_SHARDS = [700, 500, 400, 197]
NPY_SHARDS = [811, 640, 346]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="folder that holds an installed scikit-learn")
    parser.add_argument("--csv", help="scikit-learn's digits.csv or digits.csv.gz")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent,
                        help="folder to write digits/ and digits-npy/ into (default: this file's own)")
    args = parser.parse_args()
    if args.path and args.csv:
        parser.error("PATH and --csv exclude each other")

    samples = from_csv(args.csv) if args.csv else from_scikit_learn(args.path)
    if len(samples) != COUNT:
        sys.exit(f"expected {COUNT} samples, found {len(samples)}")
    for number, (pixels, label) in enumerate(samples):
        if len(pixels) != ROWS * COLUMNS or not all(0 <= p <= 16 for p in pixels) or not 0 <= label <= 9:
            sys.exit(f"sample {number} is not 64 pixels of 0 to 16 and a label of 0 to 9")

    columns = [("image", "images", [ROWS, COLUMNS]), ("label", "labels", [])]
    write_records(args.out / "digits", samples, columns)
    write_npy(args.out / "digits-npy", samples, columns)


def from_csv(path):
    """[(64 pixels, label)]: a line of the file is an image's 64 pixels, row by row, and its label."""
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
    with opened as lines:
        rows = [[int(float(cell)) for cell in row] for row in csv.reader(lines)]
    return [(row[:-1], row[-1]) for row in rows]


def from_scikit_learn(path):
    if path:
        sys.path.insert(0, path)
    import sklearn
    from sklearn.datasets import load_digits

    print(f"scikit-learn {sklearn.__version__}")
    digits = load_digits()
    return [([int(p) for p in row], int(label)) for row, label in zip(digits.data, digits.target)]


def write_records(folder, samples, columns):
    described = [
        {"name": name, "format": "records", "files": f"{stem}-*.bin", "dtype": "u8", "shape": shape}
        for name, stem, shape in columns
    ]
    write_folder(folder, described)
    for shard, part in enumerate(split(samples, RECORD_SHARDS)):
        for (_, stem, _), payload in zip(columns, payloads(part)):
            (folder / f"{stem}-{shard:03}.bin").write_bytes(payload)


def write_npy(folder, samples, columns):
    described = [{"name": name, "format": "npy", "files": f"{stem}-*.npy"} for name, stem, _ in columns]
    write_folder(folder, described)
    for shard, part in enumerate(split(samples, NPY_SHARDS)):
        for (_, stem, shape), payload in zip(columns, payloads(part)):
            header = npy_header((len(part), *shape))
            (folder / f"{stem}-{shard:03}.npy").write_bytes(header + payload)


def write_folder(folder, columns):
    """dataset.json, with one column a line; and no shard of an earlier run left beside the new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.bin"), *folder.glob("*.npy")]:
        old.unlink()
    lines = ",\n".join(f"    {json.dumps(column)}" for column in columns)
    (folder / "dataset.json").write_text(f'{{\n  "version": 1,\n  "columns": [\n{lines}\n  ]\n}}\n')


def split(samples, counts):
    assert sum(counts) == len(samples)
    start = 0
    for count in counts:
        yield samples[start:start + count]
        start += count


def payloads(part):
    return b"".join(bytes(pixels) for pixels, _ in part), bytes(label for _, label in part)


def npy_header(shape):
    """A version 1.0 header, byte for byte what numpy.save writes for an array of uint8.

    NumPy leaves room for the first dimension to grow to 21 digits in place, and pads the whole to 64 bytes.
    """
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (21 - len(str(shape[0])))
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


if __name__ == "__main__":
    main()
