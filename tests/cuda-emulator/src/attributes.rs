//! Device attributes: plausible values of a data-centre device, and honest ones where they say what works here.

use crate::device::pci_bus;
use crate::ffi::Device;

/// Major and minor.
pub(crate) const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);

/// One past the last attribute of CUDA 13.
const ATTRIBUTES_END: i32 = 150;

/// The value of a `CU_DEVICE_ATTRIBUTE_*`; none for a number that is no attribute.
pub(crate) fn value(attribute: i32, device: Device) -> Option<i32> {
    let value = match attribute {
        1..=3 => 1024,         // threads per block; block size in x and y
        4 => 64,               // block size in z
        5 => i32::MAX,         // grid size in x
        6 | 7 => 65_535,       // grid size in y and z
        8 => 49_152,           // shared memory per block
        9 => 65_536,           // constant memory
        10 => 32,              // warp size
        11 => i32::MAX,        // largest pitch
        12 | 82 => 65_536,     // registers per block, per multiprocessor
        13 => 1_755_000,       // clock in kHz
        14 => 512,             // texture alignment
        15 => 1,               // copies overlap with kernels
        16 => 132,             // multiprocessors
        19 => 1,               // can map host memory
        31 => 1,               // concurrent kernels
        32 => 1,               // ECC
        33 => pci_bus(device), // PCI bus
        34 | 50 => 0,          // PCI device, domain
        36 => 2_619_000,       // memory clock in kHz
        37 => 5120,            // memory bus in bits
        38 => 50 << 20,        // L2 cache
        39 => 2048,            // threads per multiprocessor
        40 => 3,               // copy engines
        41 => 1,               // unified addressing
        51 => 32,              // pitch alignment of textures
        75 => COMPUTE_CAPABILITY.0,
        76 => COMPUTE_CAPABILITY.1,
        78 => 1,        // stream priorities
        79 | 80 => 1,   // L1 caches
        81 => 233_472,  // shared memory per multiprocessor
        83 => 0,        // managed memory: cuMemAllocManaged answers NOT_SUPPORTED
        88 | 89 => 0,   // no access to pageable or managed memory
        90 => 1,        // preemption
        91 => 1,        // registered host memory keeps its address on the device
        92..=94 => 1,   // stream memory operations, 64-bit ones, NOR
        95 => 1,        // cooperative launch
        97 => 232_448,  // shared memory per block, opt-in
        98 => 1,        // can flush remote writes
        99 => 1,        // host registration
        102 | 103 => 0, // virtual memory management: cuMemCreate answers NOT_SUPPORTED
        106 => 32,      // blocks per multiprocessor
        110 => 0,       // GPUDirect RDMA with virtual memory management
        113 => 0,       // read-only host registration
        115 => 1,       // memory pools
        116 => 1,       // GPUDirect RDMA
        117 => 1,       // ...flushed by the host
        118 => 200,     // ...and ordered for all devices
        119 => 0,       // pools cannot be shared
        130 => -1,      // NUMA configuration: none
        _ if (1..ATTRIBUTES_END).contains(&attribute) => 0,
        _ => return None,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_a_value_and_nothing_else_has() {
        assert!((1..ATTRIBUTES_END).all(|attribute| value(attribute, 0).is_some()));
        assert_eq!(value(0, 0), None);
        assert_eq!(value(ATTRIBUTES_END, 0), None);
    }

    #[test]
    fn each_device_has_a_bus_of_its_own() {
        assert_ne!(value(33, 0), value(33, 1));
    }
}
