#!/usr/bin/env python3
"""An independent check of the disk's figures in `gpufeed bench`: what direct reads of the same files give without gpufeed.

    benches/direct_read.py /data --threads 16 --rounds 5

Every file of the folder (not of its subfolders) is opened with O_DIRECT and read once, front to back, in 1 MiB reads that
threads take in turn, each into a buffer of its own: aligned to 2 MiB, and of huge pages where the kernel gives them.
Nothing looks at the bytes. Before each round every file is dropped from the page cache, and mincore is asked whether it is
gone; pages that stayed are reported, for direct reads of them are not what the disk gives. A file's tail is read
as a whole block, of which the kernel gives what there is. It prints GiB/s for each round, and the median; it never writes.

Needs Linux, Python 3.9 and nothing else. The interpreter's lock is taken for each read, so a very fast array may give more.
"""
import argparse
import contextlib
import ctypes
import mmap
import os
import statistics
import sys
import threading
import time

GIB, MIB, HUGE, BLOCK = 1 << 30, 1 << 20, 2 << 20, 4096

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def cached_pages(fd, size):
    """How many pages of the file are in the page cache. Mapping it brings none in."""
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        if libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(page & 1 for page in bytes(pages))
    finally:
        libc.munmap(address, size)


def evict(files):
    """Drops the files from the page cache; returns how many pages stayed."""
    left = 0
    for name, size in files:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)  # a page that is not on the disk yet would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        left += cached_pages(fd, size)
        os.close(fd)
    return left


def buffer():
    """1 MiB that begins at a multiple of 2 MiB."""
    memory = mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: small ones will do
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    view = memoryview(memory)[start:start + MIB]
    view[::BLOCK] = bytes(len(view) // BLOCK)  # so that the pages are there before the clock runs
    return view


def read_all(files, buffers):
    """Reads every file once and returns the seconds it took."""
    fds = [os.open(name, os.O_RDONLY | os.O_DIRECT) for name, _ in files]
    todo = iter([(fd, at, min(MIB, size - at)) for fd, (_, size) in zip(fds, files) for at in range(0, size, MIB)])
    lock, failures = threading.Lock(), []

    def work(view):
        try:
            while not failures:
                with lock:
                    fd, at, wanted = next(todo, (None, 0, 0))
                if fd is None:
                    return
                # The offset is a multiple of 1 MiB, the length one of a block; beyond the end nothing comes.
                got = os.preadv(fd, [view[:-(-wanted // BLOCK) * BLOCK]], at)
                if got != wanted:
                    raise OSError(f"{got} bytes came of {wanted} at {at}")
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(view,)) for view in buffers]
    start = time.perf_counter()
    for step in (threading.Thread.start, threading.Thread.join):
        list(map(step, threads))
    seconds = time.perf_counter() - start
    list(map(os.close, fds))
    return seconds if not failures else sys.exit(f"direct_read: {failures[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    entries = sorted((entry for entry in os.scandir(args.folder) if entry.is_file()), key=lambda entry: entry.name)
    files = [(entry.path, entry.stat().st_size) for entry in entries if entry.stat().st_size > 0]
    if not files or args.threads < 1 or args.rounds < 1:
        parser.error("it takes a file with bytes in it, a thread and a round")
    total = sum(size for _, size in files)
    buffers, rates = [buffer() for _ in range(args.threads)], []
    for number in range(1, args.rounds + 1):
        stayed = evict(files)
        rates.append(total / GIB / read_all(files, buffers))
        print(f"round {number}: {rates[-1]:.3f} GiB/s" + (f" ({stayed} pages stayed cached)" if stayed else ""), flush=True)
    print(f"median: {statistics.median(rates):.3f} GiB/s of {total / GIB:.3f} GiB in {len(files)} files, {args.threads} threads")


if __name__ == "__main__":
    main()
