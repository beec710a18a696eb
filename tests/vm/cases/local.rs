//! File systems on NVMe drives, alone and put together.

use crate::data::{Data, every_way};
use crate::guest::{Mounted, drive, ext4_on};

#[test]
fn ext4_with_sectors_of_512_bytes() {
    let mounted = ext4_on(&drive("n0"));
    every_way(&Data::in_folder(mounted.join("data")), true);
}
