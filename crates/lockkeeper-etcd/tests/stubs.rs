//! The checked-in stubs are what `proto/etcd.proto` says, so that building needs no protocol compiler.
//!
//! After a change of the file run `LOCKKEEPER_WRITE_STUBS=1 cargo test -p lockkeeper-etcd --test stubs`.

use std::fs;
use std::path::Path;

#[test]
fn the_stubs_are_generated_from_the_protocol_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    let files = protox::compile(["etcd.proto"], [here.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        .out_dir(out.path())
        .compile_fds(files)
        .unwrap();
    let fresh = fs::read_to_string(out.path().join("etcdserverpb.rs")).unwrap();
    let kept = here.join("src/wire/etcdserverpb.rs");
    if std::env::var_os("LOCKKEEPER_WRITE_STUBS").is_some() {
        fs::write(&kept, &fresh).unwrap();
    }
    let same = fs::read_to_string(&kept).is_ok_and(|it| it == fresh);
    assert!(same, "src/wire/etcdserverpb.rs is not what proto/etcd.proto says; see the head of this test");
}
