//! All functions of `cufile.h`: how each answers, and since which version it is there.

/// How a function answers, and so which faults make sense for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `CUfileError_t` by value.
    Status,
    /// `ssize_t`: bytes, -1 with errno, or minus a code.
    Transfer,
    /// `CUfileError_t` at once, bytes later.
    Async,
    /// `CUfileError_t` at once, and a status for each entry later.
    Submit,
    /// Nothing, or a count: cannot fail.
    Silent,
}

/// One function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The first version that exports it, as seen in the published wheels; 0 for all that are still to be found.
    pub(crate) since: i32,
}

macro_rules! functions {
    ($($kind:ident $since:literal: $($name:ident)*;)*) => {
        pub(crate) const FUNCTIONS: &[Function] = &[
            $($(Function { name: stringify!($name), kind: Kind::$kind, since: $since },)*)*
        ];
    };
}

functions! {
    Status 0:
        cuFileDriverOpen cuFileDriverClose cuFileDriverClose_v2 cuFileDriverGetProperties cuFileDriverSetPollMode
        cuFileDriverSetMaxDirectIOSize cuFileDriverSetMaxCacheSize cuFileDriverSetMaxPinnedMemSize
        cuFileHandleRegister cuFileBufRegister cuFileBufDeregister cuFileBatchIOSetUp cuFileBatchIOGetStatus
        cuFileBatchIOCancel cuFileStreamRegister cuFileStreamDeregister cuFileGetVersion;
    Silent 0: cuFileUseCount cuFileHandleDeregister cuFileBatchIODestroy;
    Transfer 0: cuFileRead cuFileWrite;
    Async 0: cuFileReadAsync cuFileWriteAsync;
    Submit 0: cuFileBatchIOSubmit;
    Status 1140:
        cuFileGetParameterSizeT cuFileGetParameterBool cuFileGetParameterString cuFileSetParameterSizeT
        cuFileSetParameterBool cuFileSetParameterString;
    Status 1150:
        cuFileGetParameterMinMaxValue cuFileGetParameterPosixPoolSlabArray cuFileSetParameterPosixPoolSlabArray
        cuFileGetBARSizeInKB cuFileSetStatsLevel cuFileGetStatsLevel cuFileStatsStart cuFileStatsStop
        cuFileStatsReset cuFileGetStatsL1 cuFileGetStatsL2 cuFileGetStatsL3;
    Status 1160: cuFileDriverGetP2PFlags cuFileDriverSetP2PFlags;
    Status 1170:
        cuFileExportPCIeTopology cuFileGetParameterGpuBounceBufferSlabArray
        cuFileSetParameterGpuBounceBufferSlabArray;
    Transfer 1190: cuFileReadv cuFileWritev;
}

/// A function by its name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}
