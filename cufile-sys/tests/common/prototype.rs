//! Rust's types of functions, spelled in C, so that the C compiler can compare them with a header's
//! declarations.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A type that a function of cuFile takes or gives.
pub(crate) trait CType {
    fn c() -> String;
}

macro_rules! named {
    ($($rust:ty: $c:literal;)*) => {$(
        impl CType for $rust {
            fn c() -> String {
                $c.into()
            }
        }
    )*};
}

named! {
    (): "void";
    bool: "_Bool";
    c_char: "char";
    c_int: "int";
    c_uint: "unsigned int";
    // Also off_t and loff_t, which are `long` for C too.
    i64: "long";
    isize: "ssize_t";
    usize: "size_t";
    c_void: "void";
    libc::timespec: "struct timespec";
    libc::sockaddr: "struct sockaddr";
}

macro_rules! of_cufile {
    ($($name:ident)*) => {$(
        impl CType for cufile_sys::$name {
            fn c() -> String {
                stringify!($name).into()
            }
        }
    )*};
}

of_cufile! {
    CUFileBoolConfigParameter_t CUFileSizeTConfigParameter_t CUFileStringConfigParameter_t CUfileBatchHandle_t
    CUfileDescr_t CUfileDriverStatusFlags_t CUfileDrvProps_t CUfileError_t CUfileHandle_t CUfileIOEvents_t
    CUfileIOParams_t CUfileIOVec_t CUfileP2PFlags_t CUfileStatsLevel1_t CUfileStatsLevel2_t CUfileStatsLevel3_t
    CUstream cufileRDMAInfo_t
}

impl<T: CType> CType for *const T {
    fn c() -> String {
        format!("{} const *", T::c())
    }
}

impl<T: CType> CType for *mut T {
    fn c() -> String {
        format!("{} *", T::c())
    }
}

/// A function pointer.
pub(crate) trait Prototype {
    /// The declaration in C of what `declarator` stands for: a name, or `(*)` for the pointer's own type.
    fn declaration(declarator: &str) -> String;
}

macro_rules! prototypes {
    ($( ($($argument:ident)*) )*) => {$(
        impl<R: CType, $($argument: CType),*> Prototype for unsafe extern "C" fn($($argument),*) -> R {
            fn declaration(declarator: &str) -> String {
                let arguments: &[String] = &[$($argument::c()),*];
                let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
                format!("{} {declarator}({arguments})", R::c())
            }
        }
    )*};
}

prototypes! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) }
