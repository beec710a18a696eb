#!/usr/bin/env python3
"""Runs several commands in turn (A B C A B C ...), each right after fio's direct sequential read of the same files, cold.

    benches/in_turn.py --files '/data/*.bin' --rounds 5 \\
        --run 'uring=target/release/gpufeed load /data --record-bytes 150528 --backend uring --json' \\
        --run 'cufile=...'

A command prints a JSON object with at least `bytes` and `seconds` as the last thing on its standard output. Its CPU time
is that of the whole process and its children, unless the object has `cpu_s` (an interpreter's start is not its work). The page cache is dropped before each run (as root: all of it; otherwise
the pages of the files) and what is left of it is checked. fio's rate is taken anew before each run, and the ratio pair
by pair, since disks drift.
"""
import argparse
import datetime
import glob
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

GIB = 1 << 30


def drop(files):
    os.sync()
    for name in files:
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("1")


def cached_pages(files):
    """Pages of the files in the page cache, by util-linux's fincore; None without it."""
    try:
        out = subprocess.run(["fincore", "-n", "-o", "PAGES"] + files, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return sum(int(line) for line in out.stdout.split())


def fio(files, bs, depth, rw):
    cmd = ["fio", "--name=disk", "--readonly", "--output-format=json", "--thread", "--filename=" + ":".join(files),
           "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1", f"--rw={rw}", f"--bs={bs}",
           f"--iodepth={depth}", "--file_service_type=" + ("sequential" if rw == "read" else "random"), "--invalidate=0"]
    out = subprocess.run(cmd, capture_output=True, text=True, check=True).stdout
    job = json.loads(out[out.index("{"):])["jobs"][0]
    gib = job["read"]["io_bytes"] / GIB
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return gib / (job["read"]["runtime"] / 1000), cpu / gib


def last_object(text):
    """The JSON object that ends the text, on one line or on many."""
    decoder = json.JSONDecoder()
    for start in (i for i, c in enumerate(text) if c == "{"):
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if not text[end:].strip():
            return value
    raise ValueError("no JSON object at the end of: " + text[-200:])


def run(command, timeout, after_setup):
    before = os.times()
    start = time.monotonic()
    out = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    after = os.times()
    if out.returncode:
        raise RuntimeError(f"exit {out.returncode}: {out.stderr.strip()[-300:]}")
    result = last_object(out.stdout)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    gib = result["bytes"] / GIB
    setup = (result.get("setup_seconds", 0), result.get("setup_cpu_seconds", 0)) if after_setup else (0, 0)
    if result["seconds"] > time.monotonic() - start:
        raise RuntimeError("it says that it took longer than it did")
    return gib / (result["seconds"] - setup[0]), result.get("cpu_s", cpu - setup[1]) / gib


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--files", required=True, help="a pattern: what fio reads, and whose pages are dropped")
    p.add_argument("--run", action="append", required=True, metavar="NAME=COMMAND")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--bs", default="1M")
    p.add_argument("--depth", type=int, default=16)
    p.add_argument("--rw", choices=["read", "randread"], default="read")
    p.add_argument("--after-setup", action="store_true",
                   help="leave out what a command says of itself as setup_seconds and setup_cpu_seconds")
    p.add_argument("--timeout", type=float, default=120)
    a = p.parse_args()
    files = sorted(glob.glob(a.files))
    if not files:
        sys.exit(f"{a.files} matches no file")
    runs = dict(item.split("=", 1) for item in a.run)
    rows = {name: [] for name in runs}
    disk, failed = [], {}
    for _ in range(a.rounds):
        for name, command in runs.items():
            if name in failed:
                continue
            drop(files)
            disk.append(fio(files, a.bs, a.depth, a.rw))
            drop(files)
            left = cached_pages(files)
            try:
                rate, cpu = run(command, a.timeout, a.after_setup)
                rows[name].append((rate, rate / disk[-1][0], cpu, left))
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                failed[name] = str(error)
    print(f"{datetime.date.today()}, {a.rounds} rounds, median (min-max); fio: {a.rw}, bs {a.bs}, depth {a.depth}\n")
    print("| | GiB/s | ratio to fio | CPU s/GiB | cached pages before |\n| --- | --- | --- | --- | --- |")

    def figure(values, digits):
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"

    print(f"| fio | {figure([d[0] for d in disk], 2)} | 1 | {figure([d[1] for d in disk], 3)} | |")
    for name, row in rows.items():
        if name in failed:
            print(f"| {name} | failed: {failed[name]} | | | |")
        else:
            left = {r[3] for r in row}
            print(f"| {name} | {figure([r[0] for r in row], 2)} | {figure([r[1] for r in row], 2)} | "
                  f"{figure([r[2] for r in row], 3)} | {'unknown' if None in left else max(left)} |")
    print("\nCommands:\n")
    for name, command in runs.items():
        print(f"    {name}: {command}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
