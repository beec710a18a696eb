#!/bin/bash
# For tests/vm/run --script: `uring` beside fio with the same I/O size, queue depth and connections, in turn, cold, on an NVMe
# drive and on NFS over TCP. Prints every pair and the median of their ratios. Everything here is emulated: the ratios say
# whether gpufeed asks as well as fio does, and the figures say nothing about any drive or network.
set -eu
export LD_LIBRARY_PATH=/vm XDG_CACHE_HOME=/nonexistent
PAIRS=6 SIZE=256 TIMES=3

# Prints MiB/s of fio's reads of a file.
fio_reads() { # file rw bytes depth
    fio --minimal --name=read --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --ioengine=io_uring --direct=1 --fixedbufs \
        --registerfiles --size=${SIZE}M --loops=$TIMES --norandommap=0 --randrepeat=0 | awk -F';' '{ printf "%.1f\n", $7 / 1024 }'
}

# Prints MiB/s of gpufeed's reads of the same, as often, in one epoch of as many links to it; without what goes before the epoch,
# as fio does not count that either.
gpufeed_reads() { # file shuffle bytes depth
    rm -rf /tmp/links && mkdir /tmp/links
    for i in $(seq $TIMES); do ln -s "$1" /tmp/links/$i.bin; done
    /vm/gpufeed load /tmp/links --record-bytes "$3" --io-bytes "$3" --queue-depth "$4" --shuffle "$2" --batch-size $((4194304 / $3)) \
        --backend uring --device host --json 2>/dev/null >/tmp/json
    grep -q '"uring_direct": [1-9]' /tmp/json || { echo "not read directly" >&2; exit 1; }
    awk -F'[:,]' '/^  "bytes":/ { b = $2 } /^  "seconds":/ { s = $2 } /^  "setup_seconds":/ { t = $2 }
        END { printf "%.1f\n", b / 1048576 / (s - t) }' /tmp/json
}

# Prints how many reads the last run of gpufeed had in flight on average.
in_flight() {
    awk '/^    "read": / { read = 1 } read && /"occupancy"/ { printf "%.1f\n", $2; exit }' /tmp/json
}

compare() { # what file
    for kind in "sequential none read 1048576 16" "shuffled full randread 65536 16"; do
        set -- "$1" "$2" $kind
        ratios=()
        for pair in $(seq $PAIRS); do
            # Whichever goes first in one pair goes second in the next.
            for who in $([ $((pair % 2)) -eq 1 ] && echo one other || echo other one); do
                sync; echo 3 >/proc/sys/vm/drop_caches
                case $who in
                one) one=$(gpufeed_reads "$2" "$4" "$6" "$7") ;;
                other) other=$(fio_reads "$2" "$5" "$6" "$7") ;;
                esac
            done
            ratio=$(awk "BEGIN { printf \"%.3f\", $one / $other }")
            ratios+=("$ratio")
            echo "$1, $3, $6 bytes, depth $7: gpufeed $one MiB/s ($(in_flight) in flight), fio $other MiB/s, ratio $ratio"
        done
        median=$(printf '%s\n' "${ratios[@]}" | sort -n | sed -n "$((PAIRS / 2)),$((PAIRS / 2 + 1))p" | awk '{ s += $1 } END { print s / NR }')
        echo "$1, $3, $6 bytes, depth $7: median of the ratios $median, all $(printf '%s\n' "${ratios[@]}" | sort -n | xargs)"
    done
}

mkdir -p /mnt/drive /mnt/net
drive=/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_n0
mkfs.ext4 -q -F $drive && mount -o data=ordered $drive /mnt/drive
head -c ${SIZE}M /dev/urandom >/mnt/drive/a.bin
compare "ext4 on NVMe" /mnt/drive/a.bin

modprobe nfsd; mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /run/rpc_pipefs; rpcbind -w; rpc.mountd --no-udp 2>/dev/null
exportfs -i -o rw,no_root_squash,fsid=1,insecure,no_subtree_check '127.0.0.1:/mnt/drive'
rpc.nfsd --no-udp --grace-time 10 --lease-time 10 8
mount -t nfs -o vers=4.2,proto=tcp,nconnect=4 127.0.0.1:/mnt/drive /mnt/net
grep /mnt/net /proc/self/mounts
compare "NFS 4.2 over TCP, 4 connections" /mnt/net/a.bin
umount /mnt/net; rpc.nfsd 0; umount /mnt/drive
