//! Gives the library the name that CUDA programs ask the loader for: preloaded under any file name, it is then what
//! `dlopen("libcuda.so.1")` finds.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
