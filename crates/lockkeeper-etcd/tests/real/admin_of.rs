//! What an administrator of etcd does with the server's own tools: wipe, save, restore, users and rights.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_servers::process::{Launch, Process};
use lockkeeper_servers::{Etcd as Server, Port};
use tempfile::TempDir;

const TOOL_MAX: Duration = Duration::from_secs(30);

/// Base64, as the gateway wants keys and values.
pub(crate) fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let three = [0, 1, 2].map(|at| chunk.get(at).copied().unwrap_or(0));
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Write a key, as anybody with another tool may.
pub(crate) async fn put(server: &Server, key: &str, value: &str) {
    let json = format!(r#"{{"key": "{}", "value": "{}"}}"#, base64(key), base64(value));
    server.post("/v3/kv/put", &json).await.unwrap();
}

fn data(server: &Server) -> PathBuf {
    server.folder().join("data")
}

/// The server loses its disk and starts empty.
pub(crate) async fn wipe(server: &Server) {
    server.kill().unwrap();
    std::fs::remove_dir_all(data(server)).unwrap();
    server.start().await.unwrap();
}

fn tool(folder: &Path) -> Launch {
    Launch::new("etcdctl", "etcd-client", folder).env("ETCDCTL_API", "3")
}

/// Save what the server holds now.
pub(crate) async fn save(server: &Server) -> PathBuf {
    let file = server.folder().join("snapshot.db");
    let save = tool(server.folder())
        .arg(format!("--endpoints={}", server.url()))
        .args(["snapshot", "save"])
        .arg(file.as_os_str());
    save.run(TOOL_MAX).await.unwrap();
    file
}

/// Put back what was saved. With `same` the cluster keeps its id, as it does if all its addresses stay.
pub(crate) async fn restore(server: &Server, saved: &Path, same: bool) {
    let members = server.post("/v3/cluster/member/list", "{}").await.unwrap();
    let peer = members.split("\"peerURLs\":[\"").nth(1).and_then(|it| it.split('"').next()).unwrap();
    server.kill().unwrap();
    std::fs::remove_dir_all(data(server)).unwrap();
    let token = if same { "etcd-cluster" } else { "another" };
    let restore = tool(server.folder())
        .args(["snapshot", "restore"])
        .arg(saved.as_os_str())
        .arg(format!("--data-dir={}", data(server).display()))
        .args(["--name=e0".to_owned(), format!("--initial-cluster=e0={peer}")])
        .args([format!("--initial-advertise-peer-urls={peer}"), format!("--initial-cluster-token={token}")]);
    restore.run(TOOL_MAX).await.unwrap();
    server.start().await.unwrap();
}

/// A server on the client port of another that is gone, as a cluster of its own.
pub(crate) struct Alone {
    _process: Process,
    _folder: TempDir,
    _peer: Port,
}

/// The node loses its disk and is started as a cluster of its own, on its old port.
pub(crate) fn restart_alone(node: &Server) -> Alone {
    node.kill().unwrap();
    let (folder, peer) = (tempfile::tempdir().unwrap(), Port::claim().unwrap());
    let (here, there) = (node.url(), format!("http://127.0.0.1:{}", peer.number()));
    let process = Launch::new("etcd", "etcd-server", folder.path())
        .args(["--name=alone", "--data-dir=data", "--logger=zap", "--log-level=warn"])
        .args([format!("--listen-client-urls={here}"), format!("--advertise-client-urls={here}")])
        .args([format!("--listen-peer-urls={there}"), format!("--initial-advertise-peer-urls={there}")])
        .arg(format!("--initial-cluster=alone={there}"))
        .spawn()
        .unwrap();
    Alone { _process: process, _folder: folder, _peer: peer }
}

/// Turn on users: `root` with the password `canary`, and `clerk` with the same password and these rights.
pub(crate) async fn enable_users(server: &Server, rights: &[&str]) {
    let mut orders = vec![
        ("user/add", r#"{"name": "root", "password": "canary"}"#.to_owned()),
        ("role/add", r#"{"name": "root"}"#.to_owned()),
        ("user/grant", r#"{"user": "root", "role": "root"}"#.to_owned()),
        ("user/add", r#"{"name": "clerk", "password": "canary"}"#.to_owned()),
        ("role/add", r#"{"name": "clerk"}"#.to_owned()),
        ("user/grant", r#"{"user": "clerk", "role": "clerk"}"#.to_owned()),
    ];
    for prefix in rights {
        let (key, end) = (base64(prefix), base64(&format!("{prefix}\u{7f}")));
        let perm = format!(r#"{{"permType": "READWRITE", "key": "{key}", "range_end": "{end}"}}"#);
        orders.push(("role/grant", format!(r#"{{"name": "clerk", "perm": {perm}}}"#)));
    }
    orders.push(("enable", "{}".to_owned()));
    for (order, json) in orders {
        server.post(&format!("/v3/auth/{order}"), &json).await.unwrap();
    }
}
